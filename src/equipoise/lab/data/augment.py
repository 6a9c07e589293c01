"""Random crops and flips of a batch of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from equipoise import _check


@final
@dataclass(frozen=True)
class CropFlip:
    """A random crop of each image with a border, and a mirror image of every second one by chance.

    Numbers are drawn on the CPU and pixels are only moved, so that the result is the same on any machine, on any device
    and with any number of threads.

    Attributes:
        crop: pixels of the border on each side, of zeros: [he2016] take 4 on CIFAR. 0 crops nothing.
        flip: mirror images left to right, each with probability ½.
    """

    crop: int = 0
    flip: bool = False

    def __post_init__(self) -> None:
        _check.whole("crop", self.crop)
        _check.flag("flip", self.flip)

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """Images [samples, channels, height, width], each changed on its own.

        >>> x = torch.arange(9, dtype=torch.uint8).view(1, 1, 3, 3).expand(4, 1, 3, 3)
        >>> CropFlip(crop=1)(x, torch.Generator().manual_seed(0))[1, 0]
        tensor([[0, 0, 0],
                [0, 0, 1],
                [0, 3, 4]], dtype=torch.uint8)
        """
        samples, _, height, width = x.shape
        down, right = (torch.randint(2 * self.crop + 1, (samples, 1), generator=generator) for _ in range(2))
        rows, columns = torch.arange(height) + down, torch.arange(width) + right
        if self.flip:
            mirrored = torch.rand(samples, 1, generator=generator) < 0.5
            columns = torch.where(mirrored, columns.flip(1), columns)
        bordered = torch.nn.functional.pad(x, (self.crop,) * 4).flatten(2)
        places = rows[:, :, None] * (width + 2 * self.crop) + columns[:, None, :]
        return bordered.gather(2, places.view(samples, 1, -1).to(x.device).expand(-1, x.shape[1], -1)).view(x.shape)
