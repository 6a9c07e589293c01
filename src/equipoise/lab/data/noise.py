"""The inputs and output gradients of a random walk."""

from __future__ import annotations

from equipoise import _check
from equipoise.lab.data.base import Data, Noise


def noise(*, inputs: int = 128, outputs: int = 128, scale: float = 1.0) -> Data:
    """Fresh noise at every step: nothing can be learnt.  [kosson2024] appendix J.

    Args:
        inputs: C.
        outputs: K.
        scale: [kosson2024]'s loss scale: multiplies the output gradients.
    """
    C, K = _check.whole("inputs", inputs, low=1), _check.whole("outputs", outputs, low=1)
    source = Noise(C, K, _check.number("scale", scale, low=0, open_low=True))
    return Data("noise", "walk", source, None, K, {"inputs": C})
