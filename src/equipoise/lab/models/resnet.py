"""ResNet-20 for small images, ResNet-18 and -50 for large ones.  [he2016]."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from equipoise import _check
from equipoise.lab.data import Data, Split
from equipoise.lab.models.norms import norm2d
from equipoise.optim import standardize

SHAPES: dict[str, tuple[tuple[int, ...], int, bool, bool]] = {
    "resnet-8": ((1, 1, 1), 8, False, False),
    "resnet-20": ((3, 3, 3), 16, False, False),
    "resnet-18": ((2, 2, 2, 2), 64, False, True),
    "resnet-50": ((3, 4, 6, 3), 64, True, True),
}
"""Blocks of each stage, width of the first, bottlenecks or not, and whether it begins by halving the image twice."""


@final
class ResidualBlock(nn.Module):
    """Two convolutions, or three with a bottleneck, beside a shortcut."""

    def __init__(self, inputs: int, width: int, stride: int, norm: str, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        sizes = [(inputs, width, 1), (width, width, 3), (width, outputs, 1)]
        sizes = sizes if bottleneck else [(inputs, width, 3), (width, outputs, 3)]
        parts: list[nn.Module] = []
        for i, (a, b, kernel) in enumerate(sizes):
            step = stride if kernel == 3 and i == len(sizes) - 2 else 1
            parts += [nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False), norm2d(norm, b), nn.ReLU(inplace=True)]
        self.body = nn.Sequential(*parts[:-1])
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm2d(norm, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """The block's output."""
        return torch.relu(self.body(x) + self.shortcut(x))


@final
class ResNet(nn.Module):
    """Stages of blocks, the average over all places, an output layer."""

    def __init__(
        self, channels: int, outputs: int, blocks: Sequence[int], width: int, bottleneck: bool, large: bool, norm: str
    ) -> None:
        super().__init__()
        stem = nn.Conv2d(channels, width, 7, 2, 3, bias=False) if large else None
        stem = stem or nn.Conv2d(channels, width, 3, 1, 1, bias=False)
        parts: list[nn.Module] = [stem, norm2d(norm, width), nn.ReLU(inplace=True)]
        if large:
            parts.append(nn.MaxPool2d(3, 2, 1))
        now = width
        for stage, count in enumerate(blocks):
            for i in range(count):
                parts.append(ResidualBlock(now, width << stage, 2 if stage and not i else 1, norm, bottleneck))
                now = (width << stage) * (4 if bottleneck else 1)
        self.body = nn.Sequential(*parts)
        self.head = nn.Linear(now, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes."""
        return self.head(self.body(x).mean((2, 3)))


def resnet(
    data: Data, *, size: str = "resnet-20", norm: str = "batch", width: int | None = None, large: bool | None = None,
    standardised: bool = False,
) -> nn.Module:  # fmt: skip
    """A residual network for images.

    Args:
        data: images in classes.
        size: one of `SHAPES`.
        norm: "batch", "layer", "group" or "none".
        width: channels of the first stage, where not the size's own.
        large: begin by halving the image twice, as for ImageNet. Default: as the size's paper, if images have 64
            pixels a side or more.
        standardised: every filter of mean 0 and variance 1, with a learnt gain: `equipoise.optim.standardize`.
    """
    blocks, own, bottleneck, big = SHAPES[_check.choice("size", size, SHAPES)]
    assert isinstance(data.train, Split)
    channels, side = data.train.x.shape[1], data.train.x.shape[-1]
    large = (big and side >= 64) if large is None else large
    model = ResNet(channels, data.outputs, blocks, width or own, bottleneck, large, norm)
    return standardize(model, modules="body.*") if standardised else model
