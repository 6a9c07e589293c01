"""A vision transformer.  [dosovitskiy2021]; DeiT-tiny by its size, [touvron2021]."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from equipoise import _check
from equipoise.lab.data import Data, Split
from equipoise.lab.models.transformer import TransformerLayer, positions, start

SIZES = {"tiny": (2, 32, 2, 2), "small": (6, 128, 4, 4), "deit-tiny": (12, 192, 3, 16)}
"""Depth, width, heads, pixels of a patch's side."""


@final
class Vit(nn.Module):
    """Patches and a token for the class → scores of classes."""

    def __init__(
        self, channels: int, side: int, outputs: int, depth: int, width: int, heads: int, patch: int, std: float = 0.02
    ) -> None:
        super().__init__()
        if side % patch:
            raise ValueError(f"patch = {patch}: must divide the side, {side}")
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.token, self.places = nn.Embedding(1, width), nn.Embedding((side // patch) ** 2 + 1, width)
        self.layers = nn.ModuleList(TransformerLayer(width, heads, causal=False, bias=True) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        start(self, depth, std)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.weight.expand(len(x), 1, -1), x], 1)
        x = x + positions(self.places, x.shape[1])
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


def vit(
    data: Data, *, size: str = "tiny", patch: int | None = None, depth: int | None = None, width: int | None = None,
    heads: int | None = None, std: float = 0.02,
) -> Vit:  # fmt: skip
    """A vision transformer for images.

    Args:
        data: images in classes.
        size: one of `SIZES`.
        patch: pixels of a patch's side, where not the size's own.
        depth: layers, where not the size's own.
        width: of tokens, where not the size's own.
        heads: where not the size's own.
        std: of the initial weights.
    """
    own = SIZES[_check.choice("size", size, SIZES)]
    d, w, h, p = (a or b for a, b in zip((depth, width, heads, patch), own, strict=True))
    assert isinstance(data.train, Split)
    channels, side = data.train.x.shape[1], data.train.x.shape[-1]
    return Vit(channels, side, data.outputs, d, w, h, p, std)
