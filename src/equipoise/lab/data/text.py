"""Text as tokens: bytes, or byte pairs learnt from the training part."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from equipoise._extras import need
from equipoise.lab.data.base import Data, Split
from equipoise.theory import _check

ENDINGS = ("*.py", "*.txt", "*.md", "*.rst", "*.tokens", "*.raw")
"""Files that are taken from a folder."""

Encode = Callable[[list[str]], np.ndarray]

HELD = 10
"""Each tenth document is tested on; of fewer documents the last tenth of the text."""


def text(
    *, path: str | os.PathLike[str] | None = None, tokens: int | None = None, length: int = 128,
    size: int | None = None,
) -> Data:  # fmt: skip
    """The next token of a text.

    Args:
        path: a file, or a folder whose files are documents. Default: the sources of Python's standard library, those
            of the running version: another version is another text, as the checksum says.
        tokens: size of the vocabulary of byte pairs; None takes bytes.
        length: tokens of a sample.
        size: take only about this many characters, from the first documents.
    """
    folder = Path(sysconfig.get_paths()["stdlib"] if path is None else path)
    documents = _documents(folder, deep=path is not None)
    if size is not None:
        documents = _first(documents, _check.whole("size", size, low=1))
    if len(documents) >= HELD:
        test = [d for i, d in enumerate(documents) if i % HELD == HELD - 1]
        train = [d for i, d in enumerate(documents) if i % HELD != HELD - 1]
    else:
        whole = "".join(documents)
        cut = len(whole) - len(whole) // HELD
        train, test = [whole[:cut]], [whole[cut:]]
    return from_texts("text", train, test, tokens=tokens, length=length)


def wikitext(*, path: str | os.PathLike[str], tokens: int | None = None, length: int = 128) -> Data:
    """WikiText as it is unpacked: a folder with wiki.train.tokens (or .raw), and wiki.valid or wiki.test.

    Args:
        path: the folder.
        tokens: size of the vocabulary of byte pairs; None takes bytes.
        length: tokens of a sample.
    """
    parts = []
    for names in (("train",), ("valid", "test")):
        found = [f for n in names for f in sorted(Path(path).glob(f"wiki.{n}.*"))]
        if not found:
            raise ValueError(f"path = {str(path)!r}: must have a file wiki.{names[0]}.tokens or wiki.{names[0]}.raw")
        parts.append([found[0].read_text(encoding="utf-8")])
    return from_texts("wikitext", *parts, tokens=tokens, length=length)


def from_texts(name: str, train: list[str], test: list[str], *, tokens: int | None, length: int) -> Data:
    """Tokens of texts that are already split, cut into samples that follow each other."""
    length = _check.whole("length", length, low=1)
    encode, vocabulary = _bytes() if tokens is None else _pairs(train, _check.whole("tokens", tokens, low=257))
    parts = [_samples(name, encode(documents), length) for documents in (train, test)]
    return Data(name, "tokens", parts[0], parts[1], vocabulary, {"length": length, "vocabulary": vocabulary})


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


def _bytes() -> tuple[Encode, int]:
    return lambda documents: np.frombuffer("\n".join(documents).encode(), np.uint8), 256


def _pairs(documents: list[str], vocabulary: int) -> tuple[Encode, int]:
    tokenizers = need("tokenizers")
    learner = tokenizers.ByteLevelBPETokenizer()
    learner.train_from_iterator(documents, vocab_size=vocabulary, show_progress=False)

    def encode(texts: list[str]) -> np.ndarray:
        return np.concatenate([np.array(one.ids, np.int32) for one in learner.encode_batch(texts)])

    return encode, learner.get_vocab_size()


def _samples(name: str, tokens: np.ndarray, length: int) -> Split:
    """Views of one array, so that nothing is stored twice: sample i has the tokens from i·length on."""
    if len(tokens) <= length:
        raise ValueError(f"{name} has {len(tokens)} tokens: must have more than length = {length} in train and test")
    line = torch.from_numpy(tokens.copy())
    return Split(line[:-1].unfold(0, length, length), line[1:].unfold(0, length, length))
