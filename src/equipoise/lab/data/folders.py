"""Images in one folder per class: ImageNet, Tiny ImageNet, your own."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import _check
from equipoise._extras import need
from equipoise.lab.data.base import Data, images

ENDINGS = (".jpeg", ".jpg", ".png")


def folders(
    *, path: str | os.PathLike[str], side: int = 64, size: int | None = None, validation: int = 0, crop: int = 0,
    flip: bool = False,
) -> Data:  # fmt: skip
    """Images [3, side, side]: the shorter side is scaled to it and the middle is cut out. All are held in memory.

    Args:
        path: a folder with `train` and `val`, and in them a folder for each class with its images; or Tiny ImageNet's
            own order (train/CLASS/images, val/images and val/val_annotations.txt).
        side: pixels of a side.
        size: take at most this many images of a class.
        validation: set this many of the images to train on apart.
        crop: train on random crops of images with a border of so many pixels.
        flip: train on images that are mirrored left to right by chance.
    """
    root, side = Path(path), _check.whole("side", side, low=1)
    classes = sorted(f.name for f in (root / "train").glob("*") if f.is_dir())
    if not classes:
        raise ValueError(f"path = {str(path)!r}: must have a folder train with a folder for each class")
    number = {name: i for i, name in enumerate(classes)}
    train = [(f, number[c]) for c in classes for f in _files(root / "train" / c)[:size]]
    annotations = root / "val" / "val_annotations.txt"
    if annotations.is_file():
        lines = [line.split("\t")[:2] for line in annotations.read_text().splitlines() if line]
        test = [(root / "val" / "images" / f, number[c]) for f, c in lines]
    else:
        test = [(f, number[c]) for c in classes for f in _files(root / "val" / c)[:size]]
    if not train or not test:
        raise ValueError(f"path = {str(path)!r}: must have images ({', '.join(ENDINGS)}) in train and val")
    return images(
        "folders", _load(train, side), _load(test, side), len(classes), validation=validation, crop=crop, flip=flip,
        names=classes,
    )  # fmt: skip


def _files(folder: Path) -> list[Path]:
    return sorted(f for f in folder.rglob("*") if f.suffix.lower() in ENDINGS)


def _load(files: list[tuple[Path, int]], side: int) -> tuple[Tensor, Tensor]:
    pil: Any = need("PIL.Image")
    x = torch.empty(len(files), 3, side, side, dtype=torch.uint8)
    for i, (file, _) in enumerate(files):
        with pil.open(file) as image:
            width, height = image.size
            short = min(width, height)
            left, top = (width - short) // 2, (height - short) // 2
            box = (left, top, left + short, top + short)
            small = image.convert("RGB").crop(box).resize((side, side), pil.Resampling.BILINEAR)
            x[i] = torch.from_numpy(np.array(small)).permute(2, 0, 1)
    return x, torch.tensor([c for _, c in files], dtype=torch.int16)
