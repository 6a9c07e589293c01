"""CIFAR-10 and CIFAR-100: the binary version, as it is unpacked."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.lab.data.base import Data, images
from equipoise.lab.data.packages.places import where

PIXELS = 3 * 32 * 32
LAYOUTS = {
    "data_batch_1.bin": (10, 1, [f"data_batch_{i}.bin" for i in range(1, 6)], "test_batch.bin"),
    "train.bin": (100, 2, ["train.bin"], "test.bin"),
}
"""First file of the training part: classes, bytes of labels (the last one counts), files to train and to test on."""


def cifar(
    *, path: str | os.PathLike[str] | None = None, size: int | None = None, validation: int = 0, crop: int = 0,
    flip: bool = False,
) -> Data:  # fmt: skip
    """Images [3, 32, 32] in 10 or 100 classes.

    Args:
        path: the folder cifar-10-batches-bin or cifar-100-binary. The Python version is a pickle, which could run
            anything, and is not read. Default: what `equipoise lab data get cifar-10` fetched.
        size: train on the first ones only.
        validation: set this many of those apart; 5000 is usual.
        crop: train on random crops of images with a border of so many pixels; 4 is usual.
        flip: train on images that are mirrored left to right by chance.
    """
    folder = where("cifar-10") if path is None else Path(path)
    first = next((name for name in LAYOUTS if (folder / name).is_file()), None)
    if first is None:
        raise ValueError(
            f"path = {str(folder)!r}: must have {' or '.join(LAYOUTS)}, the binary version of CIFAR-10 or CIFAR-100; "
            "`equipoise lab data get cifar-10` fetches CIFAR-10"
        )
    classes, labels, train, test = LAYOUTS[first]
    kept = [name for name in train if (folder / name).is_file()]
    parts = [_read(folder / name, labels) for name in kept]
    x, y = (torch.cat(side) for side in zip(*parts, strict=True))
    tests = _read(folder / test, labels)
    return images(f"cifar-{classes}", (x[:size], y[:size]), tests, classes, validation=validation, crop=crop, flip=flip)


def _read(file: Path, labels: int) -> tuple[Tensor, Tensor]:
    content = np.frombuffer(file.read_bytes(), np.uint8)
    if not len(content) or len(content) % (labels + PIXELS):
        raise ValueError(f"{file} has {len(content)} bytes: must be a multiple of {labels + PIXELS}; get it again")
    rows = torch.from_numpy(content.reshape(-1, labels + PIXELS).copy())
    return rows[:, labels:].reshape(-1, 3, 32, 32), rows[:, labels - 1].clone()
