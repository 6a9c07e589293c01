"""Fashion-MNIST, or MNIST: files in IDX format, as Debian's dataset-fashion-mnist installs them."""

from __future__ import annotations

import gzip
import math
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from equipoise.lab.data.base import Data, images
from equipoise.lab.data.packages.places import where


def fashion(
    *, path: str | os.PathLike[str] | None = None, size: int | None = None, validation: int = 0, crop: int = 0,
    flip: bool = False,
) -> Data:  # fmt: skip
    """60,000 images [1, 28, 28] in ten classes, 10,000 to test on.

    Args:
        path: folder with train-images-idx3-ubyte, train-labels-idx1-ubyte and those of t10k, packed by gzip or not.
            Default: where Debian's package or `equipoise lab data get fashion-mnist` puts them.
        size: train on the first ones only.
        validation: set this many of those apart.
        crop: train on random crops of images with a border of so many pixels.
        flip: train on images that are mirrored left to right by chance.
    """
    folder = where("fashion-mnist") if path is None else Path(path)
    parts = []
    for name in ("train", "t10k"):
        x, y = (_idx(folder, f"{name}-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
        parts.append((x.unsqueeze(1), y))
    (x, y), test = parts
    return images("fashion", (x[:size], y[:size]), test, 10, validation=validation, crop=crop, flip=flip)


def _idx(folder: Path, name: str) -> Tensor:
    """An array of bytes: two zeros, type 8, number of dimensions, the dimensions, the data."""
    file = next((f for f in (folder / f"{name}.gz", folder / name) if f.is_file()), None)
    if file is None:
        raise ValueError(
            f"path = {str(folder)!r}: must have {name} or {name}.gz; on Debian "
            "`equipoise lab data get fashion-mnist` fetches it, elsewhere give the path"
        )
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    count = content[3] if len(content) > 4 else 0
    shape = tuple(np.frombuffer(content, ">u4", count, 4).astype(int)) if len(content) >= 4 + 4 * count else ()
    if content[:3] != b"\0\0\x08" or not shape or len(content) != 4 + 4 * count + math.prod(shape):
        raise ValueError(f"{file} is no whole IDX file of bytes: get it again")
    return torch.from_numpy(np.frombuffer(content, np.uint8, offset=4 + 4 * count).reshape(shape).copy())
