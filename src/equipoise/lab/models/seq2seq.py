"""Encoder and decoder: a sequence from a sequence."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from equipoise import _check
from equipoise.lab.data import Data
from equipoise.lab.data.phonemes import PAD
from equipoise.lab.models.transformer import TransformerLayer, positions, start
from equipoise.optim import add_gains

SIZES = {"tiny": (1, 32, 2), "small": (2, 64, 4), "mini": (3, 128, 4), "iwslt": (6, 512, 4)}
"""Depth of both sides, width, heads."""


@final
class Seq2Seq(nn.Module):
    """Source and target so far → scores of the target's next token."""

    def __init__(
        self, inputs: int, outputs: int, length: int, depth: int, width: int, heads: int, std: float = 0.02
    ) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(inputs, width), nn.Embedding(outputs, width)
        self.places = nn.ModuleList(nn.Embedding(length, width) for _ in range(2))
        self.encoder = nn.ModuleList(TransformerLayer(width, heads, causal=False, bias=True) for _ in range(depth))
        self.decoder = nn.ModuleList(
            TransformerLayer(width, heads, causal=True, cross=True, bias=True) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.head = nn.Linear(width, outputs, bias=False)
        start(self, depth, std)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Scores [batch, length of y, outputs]."""
        mask = x != PAD
        z = self.source(x) + positions(self.places[0], x.shape[1])  # type: ignore[arg-type]
        for layer in self.encoder:
            z = layer(z, mask=mask)
        z = self.norms[0](z)
        y = self.target(y) + positions(self.places[1], y.shape[1])  # type: ignore[arg-type]
        for layer in self.decoder:
            y = layer(y, z, mask)
        return self.head(self.norms[1](y))


def seq2seq(data: Data, *, size: str = "tiny", gains: bool = False, std: float = 0.02) -> Seq2Seq:
    """An encoder and decoder for pairs of sequences.

    Args:
        data: of the task "pairs".
        size: one of `SIZES`.
        gains: a learnable gain for each neuron of the linear layers, as [kosson2024] gives rotational variants.
        std: of the initial weights.
    """
    depth, width, heads = SIZES[_check.choice("size", size, SIZES)]
    model = Seq2Seq(data.info["inputs"], data.outputs, data.info["length"], depth, width, heads, std)
    if gains:
        add_gains(model)
    return model
