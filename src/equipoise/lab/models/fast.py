"""The small residual network of the CIFAR-10 speedruns: ResNet-9 of Page's "How to train your ResNet", 2018."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor, nn

from equipoise import _check
from equipoise.lab.data import Data, Split
from equipoise.lab.models.norms import norm2d

LOGITS = 0.125
"""What scores are multiplied by, as there."""


def _conv(inputs: int, outputs: int, norm: str, *, pool: bool = False) -> nn.Sequential:
    parts: list[nn.Module] = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=norm == "none"), norm2d(norm, outputs)]
    return nn.Sequential(*parts, nn.ReLU(inplace=True), *([nn.MaxPool2d(2)] if pool else []))


@final
class _Residual(nn.Module):
    def __init__(self, width: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(_conv(width, width, norm), _conv(width, width, norm))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


@final
class FastResNet(nn.Module):
    """Eight convolutions, of which two pairs have a shortcut, the largest of all places, an output layer."""

    def __init__(self, channels: int, outputs: int, width: int, norm: str) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _conv(channels, width, norm), _conv(width, 2 * width, norm, pool=True), _Residual(2 * width, norm),
            _conv(2 * width, 4 * width, norm, pool=True), _conv(4 * width, 8 * width, norm, pool=True),
            _Residual(8 * width, norm),
        )  # fmt: skip
        self.head = nn.Linear(8 * width, outputs, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes."""
        return LOGITS * self.head(torch.amax(self.body(x), (2, 3)))


def fast_resnet(data: Data, *, width: int = 64, norm: str = "batch") -> FastResNet:
    """ResNet-9 for small images.

    Args:
        data: images in classes, of 8 pixels a side or more.
        width: channels of the first convolution; the source has 64, which takes a GPU.
        norm: "batch", "layer", "group" or "none".
    """
    assert isinstance(data.train, Split)
    channels, side = data.train.x.shape[1], data.train.x.shape[-1]
    if side < 8:
        raise ValueError(f"images have {side} pixels a side: must have 8 or more, because they are halved three times")
    return FastResNet(channels, data.outputs, _check.whole("width", width, low=1), norm)
