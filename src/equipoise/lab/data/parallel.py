"""Sentences in two languages, line by line: IWSLT and the like."""

from __future__ import annotations

import os
import re
from pathlib import Path

from equipoise.lab.data.base import Data
from equipoise.lab.data.phonemes import pairs
from equipoise.theory import _check

SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>", re.DOTALL)


def parallel(
    *, path: str | os.PathLike[str], source: str = "de", target: str = "en", length: int = 256, size: int | None = None
) -> Data:
    """Pairs of sentences as characters.

    Args:
        path: folder with a pair of files for training, whose names begin with `train` and end with the languages, as
            train.tags.de-en.de or train.de; and one for tests that begins with IWSLT, valid, dev or test, as
            IWSLT14.TED.tst2012.de-en.de.xml. Lines of tags are left out, and XML's segments taken.
        source: language to translate from.
        target: language to translate to.
        length: leave out pairs with a sentence of more characters.
        size: train on the first pairs only.
    """
    folder = Path(path)
    longest = _check.whole("length", length, low=1)
    train = _both(folder, ("train",), source, target, longest)[:size]
    test = _both(folder, ("IWSLT", "valid", "dev", "test"), source, target, longest)
    both = [*test, *train]
    return pairs("parallel", [a for a, _ in both], [b for _, b in both], held=len(test))


def _both(folder: Path, starts: tuple[str, ...], source: str, target: str, longest: int) -> list[tuple[str, str]]:
    sides = []
    for language in (source, target):
        found = [f for s in starts for end in (language, f"{language}.xml") for f in sorted(folder.glob(f"{s}*.{end}"))]
        if not found:
            raise ValueError(f"path = {str(folder)!r}: must have a file {starts[0]}….{language}")
        sides.append(_sentences(found[0]))
    if len(sides[0]) != len(sides[1]):
        raise ValueError(
            f"path = {str(folder)!r}: has {len(sides[0])} and {len(sides[1])} sentences to {starts[0]}: must be as many"
        )
    kept = [(a, b) for a, b in zip(*sides, strict=True) if 0 < len(a) <= longest and 0 < len(b) <= longest]
    if not kept:
        raise ValueError(f"path = {str(folder)!r}: has no pair of sentences up to length = {longest}")
    return kept


def _sentences(file: Path) -> list[str]:
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".xml":
        return [s.strip() for s in SEGMENT.findall(content)]
    return [line.strip() for line in content.split("\n")[: None if not content.endswith("\n") else -1]
            if not line.lstrip().startswith("<")]  # fmt: skip
