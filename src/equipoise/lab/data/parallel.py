"""Sentences in two languages, line by line: IWSLT and the like."""

from __future__ import annotations

import os
import re
from pathlib import Path

from equipoise import _check
from equipoise.lab.data.base import Data
from equipoise.lab.data.packages.places import where
from equipoise.lab.data.phonemes import pairs

SEGMENT = re.compile(r"<seg[^>]*>(.*?)</seg>", re.DOTALL)


def parallel(
    *, path: str | os.PathLike[str], source: str = "de", target: str = "en", length: int = 256, size: int | None = None
) -> Data:
    """Pairs of sentences as characters.

    Args:
        path: folder with a pair of files for training, whose names begin with `train` and end with the languages, as
            train.tags.de-en.de or train.de; at least one to test on, as IWSLT14.TED.tst2012.de-en.de.xml or test.de;
            and, for validation, as IWSLT14.TED.dev2010.de-en.de.xml, valid.de or dev.de. Without a test the pairs for
            validation are tested on. Lines of tags are left out, and XML's segments taken.
        source: language to translate from.
        target: language to translate to.
        length: leave out pairs with a sentence of more characters.
        size: train on the first pairs only.
    """
    return _load("parallel", Path(path), source, target, length, size)


def handbook(
    *, path: str | os.PathLike[str] | None = None, source: str = "de", target: str = "en", length: int = 256,
    size: int | None = None,
) -> Data:  # fmt: skip
    """The Debian Administrator's Handbook in English and another language, as characters.

    Args:
        path: folder of pairs of languages. Default: what `equipoise lab data get debian-handbook` fetched.
        source: language to translate from.
        target: language to translate to; one of both is "en".
        length: leave out pairs with a sentence of more characters.
        size: train on the first pairs only.
    """
    books = where("debian-handbook") if path is None else Path(path)
    known = sorted(f.name.removesuffix("-en") for f in books.glob("*-en"))
    if not known:
        raise ValueError(f"path = {str(books)!r}: must have folders as de-en; `equipoise lab data get debian-handbook`")
    if "en" not in (source, target):
        raise ValueError(f"target = {target!r}: must be 'en', or else source")
    other = _check.choice("target" if source == "en" else "source", target if source == "en" else source, known)
    return _load("handbook", books / f"{other}-en", source, target, length, size)


def _load(name: str, folder: Path, source: str, target: str, length: int, size: int | None) -> Data:
    longest = _check.whole("length", length, low=1)
    train = _both(folder, "train", ("train*",), source, target, longest)[:size]
    test = _both(folder, "test", ("IWSLT*tst*", "test*"), source, target, longest)
    held = _both(folder, "valid", ("IWSLT*dev*", "valid*", "dev*"), source, target, longest)
    for part, found in (("train", train), ("test", test or held)):
        if not found:
            raise ValueError(f"path = {str(folder)!r}: must have a file {part}….{source} and one for {target}")
    return pairs(name, train, test or held, held if test else [])


def _both(
    folder: Path, part: str, starts: tuple[str, ...], source: str, target: str, longest: int
) -> list[tuple[str, str]]:
    sides = []
    for language in (source, target):
        ends = (language, f"{language}.xml")
        sides.append(sorted(f for start in starts for end in ends for f in folder.glob(f"{start}.{end}")))
    texts = [[s for file in side for s in _sentences(file)] for side in sides]
    if len(texts[0]) != len(texts[1]):
        raise ValueError(
            f"path = {str(folder)!r}: has {len(texts[0])} and {len(texts[1])} sentences to {part}: must be as many"
        )
    kept = [(a, b) for a, b in zip(*texts, strict=True) if 0 < len(a) <= longest and 0 < len(b) <= longest]
    if texts[0] and not kept:
        raise ValueError(f"path = {str(folder)!r}: has no pair of sentences up to length = {longest} to {part}")
    return kept


def _sentences(file: Path) -> list[str]:
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".xml":
        return [s.strip() for s in SEGMENT.findall(content)]
    return [line.strip() for line in content.split("\n")[: None if not content.endswith("\n") else -1]
            if not line.lstrip().startswith("<")]  # fmt: skip
