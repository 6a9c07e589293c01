"""Data that needs no download, data from package registries, and loaders for your own copies.

Comes in: the name of a data set and its options. Goes out: `Data`, tensors in memory split into parts, and batches
that are a function of seed and step. Read `base`, then any data set (`digits` is the smallest); `packages` fetches
what is not shipped; `baselines` has the scores without a network.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from equipoise import _check
from equipoise.lab.data.augment import CropFlip
from equipoise.lab.data.base import (
    TASKS,
    VALIDATION,
    Batch,
    Batches,
    BatchSource,
    Data,
    Noise,
    Split,
    images,
    seeded,
    split,
)
from equipoise.lab.data.bleu import Bleu, bleu
from equipoise.lab.data.cifar import cifar
from equipoise.lab.data.digits import digits
from equipoise.lab.data.facts import Facts, facts
from equipoise.lab.data.fashion import fashion
from equipoise.lab.data.folders import folders
from equipoise.lab.data.noise import noise
from equipoise.lab.data.parallel import handbook, parallel
from equipoise.lab.data.phonemes import pairs, phonemes, texts
from equipoise.lab.data.synthetic import classification, regression
from equipoise.lab.data.text import enwik8, from_texts, linux_doc, metamath, text, wikitext

LOADERS = {
    "cifar": cifar,
    "classification": classification,
    "digits": digits,
    "enwik8": enwik8,
    "facts": facts,
    "fashion": fashion,
    "folders": folders,
    "handbook": handbook,
    "linux_doc": linux_doc,
    "metamath": metamath,
    "noise": noise,
    "parallel": parallel,
    "phonemes": phonemes,
    "regression": regression,
    "text": text,
    "wikitext": wikitext,
}
"""By the names that configs use. One's own loader may be added."""

__all__ = [
    "LOADERS",
    "TASKS",
    "VALIDATION",
    "Batch",
    "BatchSource",
    "Batches",
    "Bleu",
    "CropFlip",
    "Data",
    "Facts",
    "Noise",
    "Split",
    "bleu",
    "cifar",
    "classification",
    "digits",
    "enwik8",
    "facts",
    "fashion",
    "folders",
    "from_texts",
    "handbook",
    "images",
    "linux_doc",
    "load",
    "metamath",
    "noise",
    "pairs",
    "parallel",
    "phonemes",
    "regression",
    "seeded",
    "split",
    "text",
    "texts",
    "wikitext",
]


def load(name: str, *, smoothing: float = 0.0, **options: Any) -> Data:
    """Load data by its name.

    Args:
        name: one of `LOADERS`.
        smoothing: label smoothing: what share of each label is spread over all classes, in training alone.
        **options: what its loader takes.

    >>> data = load("regression", samples=50, inputs=3)
    >>> data.train.x.shape, data.checksum == load("regression", samples=50, inputs=3).checksum
    (torch.Size([50, 4]), True)
    """
    data = LOADERS[_check.choice("data", name, LOADERS)](**options)
    return replace(data, smoothing=smoothing) if smoothing else data
