"""The simple system of [kosson2024] appendix J, for random walks."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from equipoise import _check
from equipoise.lab.data import Data


@final
class Walk(nn.Module):
    """f(X) = γ_out ⊙ N(W(γ_in ⊙ X)): each row of W is scale-invariant, N normalises over the batch.

    Args:
        inputs: C.
        outputs: K.
        gammas: "normal" as in [kosson2024], or "ones".

    Reference: [kosson2024] Eq. 88.
    """

    gamma_in: Tensor
    gamma_out: Tensor

    def __init__(self, inputs: int, outputs: int, gammas: str = "normal") -> None:
        super().__init__()
        _check.choice("gammas", gammas, ("normal", "ones"))
        make = torch.randn if gammas == "normal" else torch.ones
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.register_buffer("gamma_in", make(inputs))
        self.register_buffer("gamma_out", make(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The output whose gradient is noise."""
        y = self.linear(x * self.gamma_in)
        return self.gamma_out * nn.functional.batch_norm(y, None, None, training=True)


def walk(data: Data, *, gammas: str = "normal") -> Walk:
    """The simple system for noise.

    Args:
        data: of the task "walk".
        gammas: "normal" as in [kosson2024], or "ones".
    """
    return Walk(data.info["inputs"], data.outputs, gammas)
