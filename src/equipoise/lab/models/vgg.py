"""VGG-13, with normalisation or not, with weight standardisation or not.  [simonyan2015]."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn

from equipoise import _check
from equipoise.lab.data import Data, Split
from equipoise.lab.models.norms import norm2d
from equipoise.optim import standardize

STAGES = (1, 2, 4, 8, 8)
"""Width of the five stages over the first's; each has two convolutions and halves the image."""


@final
class Vgg(nn.Module):
    """Ten convolutions, the average over all places, an output layer."""

    def __init__(self, channels: int, side: int, outputs: int, width: int, norm: str) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        now = channels
        for factor in STAGES:
            for _ in range(2):
                parts.append(nn.Conv2d(now, factor * width, 3, padding=1, bias=norm == "none"))
                parts += [norm2d(norm, factor * width), nn.ReLU(inplace=True)]
                now = factor * width
            if side > 1:  # small images are halved as long as there is something to halve
                parts.append(nn.MaxPool2d(2))
                side //= 2
        self.body = nn.Sequential(*parts)
        self.head = nn.Linear(now, outputs)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Scores of classes."""
        return self.head(self.body(x).mean((2, 3)))


def vgg(data: Data, *, width: int = 64, norm: str = "batch", standardised: bool = False) -> nn.Module:
    """VGG-13 for images.

    Args:
        data: images in classes.
        width: channels of the first stage.
        norm: "batch", "layer", "group" or "none".
        standardised: every filter of mean 0 and variance 1, with a learnt gain: `equipoise.optim.standardize`.
    """
    assert isinstance(data.train, Split)
    channels, side = data.train.x.shape[1], data.train.x.shape[-1]
    model = Vgg(channels, side, data.outputs, _check.whole("width", width, low=1), norm)
    return standardize(model, modules="body.*") if standardised else model
