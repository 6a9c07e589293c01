"""Data that needs no download, and loaders for one's own copies."""

from __future__ import annotations

from typing import Any

from equipoise.lab.data.base import TASKS, Batch, Batches, Data, Noise, Source, Split, images, seeded, split
from equipoise.lab.data.cifar import cifar
from equipoise.lab.data.digits import digits
from equipoise.lab.data.facts import Facts, facts
from equipoise.lab.data.fashion import fashion
from equipoise.lab.data.folders import folders
from equipoise.lab.data.noise import noise
from equipoise.lab.data.parallel import parallel
from equipoise.lab.data.phonemes import pairs, phonemes
from equipoise.lab.data.synthetic import classification, regression
from equipoise.lab.data.text import from_texts, text, wikitext
from equipoise.theory import _check

LOADERS = {
    "cifar": cifar,
    "classification": classification,
    "digits": digits,
    "facts": facts,
    "fashion": fashion,
    "folders": folders,
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
    "Batch",
    "Batches",
    "Data",
    "Facts",
    "Noise",
    "Source",
    "Split",
    "cifar",
    "classification",
    "digits",
    "facts",
    "fashion",
    "folders",
    "from_texts",
    "images",
    "load",
    "noise",
    "pairs",
    "parallel",
    "phonemes",
    "regression",
    "seeded",
    "split",
    "text",
    "wikitext",
]


def load(name: str, **options: Any) -> Data:
    """Load data by its name.

    Args:
        name: one of `LOADERS`.
        **options: what its loader takes.

    >>> data = load("regression", samples=50, inputs=3)
    >>> data.train.x.shape, data.checksum == load("regression", samples=50, inputs=3).checksum
    (torch.Size([50, 4]), True)
    """
    return LOADERS[_check.choice("data", name, LOADERS)](**options)
