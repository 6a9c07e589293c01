"""Text as tokens: bytes, or byte pairs learnt from the training part. Parts never overlap."""

from __future__ import annotations

import os
import sysconfig
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from equipoise import _check
from equipoise.lab.data.base import VALIDATION, Data, Split
from equipoise.lab.data.packages.places import where
from equipoise.lab.data.tokens import Texts, as_bytes, as_pairs

ENDINGS = ("*.py", "*.txt", "*.md", "*.rst", "*.tokens", "*.raw", "*.yaml")
"""Files that are taken from a folder."""


HELD = 10
"""Each tenth document is tested on; of fewer documents the last tenth of the text."""

ENWIK8 = 100_000_000
"""Bytes: 90 % are trained on, the next 5 % are for validation, the last 5 % for tests."""


def text(
    *, path: str | os.PathLike[str] | None = None, tokens: int | None = None, length: int = 128,
    size: int | None = None, validation: bool = False,
) -> Data:  # fmt: skip
    """The next token of a text.

    Args:
        path: a file, or a folder whose files are documents. Default: the sources of Python's standard library, those
            of the running version: another version is another text, as the checksum says.
        tokens: size of the vocabulary of byte pairs; None takes bytes.
        length: tokens of a sample.
        size: take only about this many characters, from the first documents.
        validation: set as much apart as is tested on, to choose settings by: each tenth document, or the last tenth but
            one of the text.
    """
    folder = Path(sysconfig.get_paths()["stdlib"] if path is None else path)
    return _split("text", _documents(folder, deep=path is not None), tokens, length, size, validation)


def linux_doc(
    *, path: str | os.PathLike[str] | None = None, tokens: int | None = None, length: int = 128,
    size: int | None = None, validation: bool = True,
) -> Data:  # fmt: skip
    """The documentation of Linux, each file a document.

    Args:
        path: a kernel's folder Documentation. Default: what `equipoise lab data get linux-doc` fetched.
        tokens: size of the vocabulary of byte pairs; None takes bytes.
        length: tokens of a sample.
        size: take only about this many characters, from the first documents.
        validation: set each tenth document apart.
    """
    documents = _documents(_fetched("linux-doc", path), deep=True)
    return _split("linux_doc", documents, tokens, length, size, validation)


def metamath(
    *, path: str | os.PathLike[str] | None = None, tokens: int | None = None, length: int = 128,
    size: int | None = None, validation: bool = True,
) -> Data:  # fmt: skip
    """Proofs of set theory: set.mm. The other databases have much of the same text, and are left out.

    Args:
        path: the file. Default: what `equipoise lab data get metamath` fetched.
        tokens: size of the vocabulary of byte pairs; None takes bytes.
        length: tokens of a sample.
        size: take only the first characters, this many.
        validation: set the last tenth but one apart.
    """
    (whole,) = _documents(_fetched("metamath", path, "set.mm"), deep=False)
    return _split("metamath", [whole[:size]], tokens, length, None, validation)


def enwik8(
    *, path: str | os.PathLike[str] | None = None, tokens: int | None = None, length: int = 128,
    size: int | None = None, held: int | None = None,
) -> Data:  # fmt: skip
    """The first 10⁸ bytes of Wikipedia: 90 million to train on, 5 for validation, 5 to test on, as in the literature.

    Args:
        path: the plain file. Default: what `equipoise lab data get enwik8` fetched.
        tokens: size of the vocabulary of byte pairs; None takes bytes, as results in bits per byte do.
        length: tokens of a sample.
        size: train on the first bytes only, this many.
        held: validate and test on the first bytes only, this many of each. Default: all.
    """
    file = _fetched("enwik8", path, "enwik8")
    if not file.is_file():
        raise ValueError(f"path = {str(file)!r}: must be the file enwik8; `equipoise lab data get enwik8` fetches it")
    content = file.read_bytes()
    if len(content) != ENWIK8:
        raise ValueError(f"path = {str(file)!r}: has {len(content)} bytes: must be {ENWIK8}; get it again")
    ends = (0, ENWIK8 * 90 // 100, ENWIK8 * 95 // 100, ENWIK8)
    train, valid, test = (content[a:b] for a, b in pairwise(ends))
    kept = slice(None if held is None else _check.whole("held", held, low=1))
    return from_texts("enwik8", [train[:size]], [test[kept]], validation=[valid[kept]], tokens=tokens, length=length)


def wikitext(*, path: str | os.PathLike[str], tokens: int | None = None, length: int = 128) -> Data:
    """WikiText as it is unpacked: a folder with wiki.train.tokens (or .raw), and wiki.valid, wiki.test or both.

    Args:
        path: the folder. Of one with both, wiki.test is tested on and wiki.valid is for validation.
        tokens: size of the vocabulary of byte pairs; None takes bytes.
        length: tokens of a sample.
    """
    found = {part: sorted(Path(path).glob(f"wiki.{part}.*"))[:1] for part in ("train", "test", "valid")}
    train, *rest = (found["train"], *(files for files in (found["test"], found["valid"]) if files))
    if not train or not rest:
        missing = "valid" if train else "train"
        raise ValueError(f"path = {str(path)!r}: must have a file wiki.{missing}.tokens or wiki.{missing}.raw")
    parts = [[file.read_bytes()] for (file,) in (train, *rest)]
    held = parts[2] if len(parts) > 2 else None
    return from_texts("wikitext", parts[0], parts[1], validation=held, tokens=tokens, length=length)


def from_texts(
    name: str, train: Texts, test: Texts, *, validation: Texts | None = None, tokens: int | None, length: int
) -> Data:
    """Tokens of texts that are already split, cut into samples that follow each other.

    Args:
        name: of the data.
        train: documents to train on, and to learn byte pairs of.
        test: documents to test on.
        validation: documents to choose settings by.
        tokens: size of the vocabulary of byte pairs; None takes bytes.
        length: tokens of a sample.
    """
    length = _check.whole("length", length, low=1)
    documents = {"train": train, "test": test} | ({} if validation is None else {VALIDATION: validation})
    if tokens is None:
        lines, vocabulary = as_bytes(documents), 256
    else:
        lines, vocabulary = as_pairs(documents, _check.whole("tokens", tokens, low=257))
    splits = {part: _samples(name, line, length) for part, line in lines.items()}
    sizes = {part: sum(len(t if isinstance(t, bytes) else t.encode()) for t in documents[part]) for part in documents}
    info = {
        "length": length, "vocabulary": vocabulary,
        "bytes_per_token": {part: sizes[part] / len(lines[part]) for part in lines},
    }  # fmt: skip
    held = {VALIDATION: splits[VALIDATION]} if VALIDATION in splits else {}
    return Data(name, "tokens", splits["train"], splits["test"], vocabulary, info, held)


def _split(
    name: str, documents: list[str], tokens: int | None, length: int, size: int | None, validation: bool
) -> Data:
    if size is not None:
        documents = _first(documents, _check.whole("size", size, low=1))
    _check.flag("validation", validation)
    if len(documents) >= HELD:
        places = {"test": HELD - 1} | ({"valid": HELD - 2} if validation else {})
        parts = {part: [d for i, d in enumerate(documents) if i % HELD == place] for part, place in places.items()}
        train = [d for i, d in enumerate(documents) if i % HELD not in places.values()]
    else:
        whole = "".join(documents)
        held = len(whole) // HELD
        cut = len(whole) - held
        parts = {"test": [whole[cut:]]}
        if validation:
            cut -= held
            parts["valid"] = [whole[cut : cut + held]]
        train = [whole[:cut]]
    return from_texts(name, train, parts["test"], validation=parts.get("valid"), tokens=tokens, length=length)


def _fetched(name: str, path: str | os.PathLike[str] | None, file: str = "") -> Path:
    found = where(name) / file if path is None else Path(path)
    if path is None and not found.exists():
        raise ValueError(f"{name} is not in {found.parent if file else found}: `equipoise lab data get {name}` gets it")
    return found


def _documents(path: Path, *, deep: bool) -> list[str]:
    if path.is_file():
        return [path.read_text(encoding="utf-8", errors="replace")]
    if not path.is_dir():
        raise ValueError(f"path = {str(path)!r}: must be a file or a folder that exists")
    files = {f for ending in ENDINGS for f in (path.rglob(ending) if deep else path.glob(ending)) if f.is_file()}
    if not files:
        raise ValueError(f"path = {str(path)!r}: must have files named {', '.join(ENDINGS)}")
    return [f.read_text(encoding="utf-8", errors="replace") for f in sorted(files)]


def _first(documents: list[str], size: int) -> list[str]:
    ends = np.cumsum([len(d) for d in documents])
    return documents[: int(np.searchsorted(ends, size)) + 1]


def _samples(name: str, tokens: np.ndarray, length: int) -> Split:
    """Views of one array, so that nothing is stored twice: sample i has the tokens from i·length on."""
    if len(tokens) <= length:
        raise ValueError(f"{name} has {len(tokens)} tokens: must have more than length = {length} in train and test")
    line = torch.from_numpy(tokens.copy())
    return Split(line[:-1].unfold(0, length, length), line[1:].unfold(0, length, length))
