"""Linear layers, with or without normalisation between them."""

from __future__ import annotations

from itertools import pairwise
from typing import final

from torch import Tensor, nn

from equipoise import _check
from equipoise.lab.data import Data, Facts, Split

NORMS = ("batch", "layer", "none")


def mlp(data: Data, *, width: int = 128, depth: int = 2, norm: str = "batch", bias: bool = True) -> nn.Module:
    """A multilayer perceptron; `depth=0` is linear or logistic regression.

    Args:
        data: of the task "classes" or "regression".
        width: of the hidden layers.
        depth: number of hidden layers.
        norm: "batch", "layer" or "none", after each hidden layer; layers before a norm have no bias.
        bias: of the other layers.
    """
    _check.choice("norm", norm, NORMS)
    assert isinstance(data.train, Split | Facts)
    inputs = data.train.x[0].numel() if isinstance(data.train, Split) else data.train.x.shape[-1]
    hidden = [inputs] + [_check.whole("width", width, low=1)] * _check.whole("depth", depth)
    parts: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(hidden):
        parts.append(nn.Linear(a, b, bias=bias and norm == "none"))
        if norm != "none":
            parts.append(nn.BatchNorm1d(b) if norm == "batch" else nn.LayerNorm(b))
        parts.append(nn.ReLU())
    return Mlp(nn.Sequential(*parts), nn.Linear(hidden[-1], data.outputs, bias=bias))


@final
class Mlp(nn.Module):
    """Hidden layers and an output layer."""

    def __init__(self, body: nn.Sequential, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes, or numbers."""
        return self.head(self.body(x))
