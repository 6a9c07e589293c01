"""Texts as numbers: bytes, or byte pairs."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from equipoise._extras import need
from equipoise.lab.data.packages.places import data_folder

Texts = Sequence[str | bytes]

PIECE = 1_000_000
"""Characters of a piece of text that is cut into byte pairs as one; it ends with a line."""

AT_ONCE = 8
"""Pieces that are cut into byte pairs at the same time."""

KEPT = 20_000_000
"""Byte pairs of texts of so many bytes are kept on disk: to learn and cut those of 10⁸ bytes takes minutes."""


def as_bytes(parts: Mapping[str, Texts]) -> dict[str, np.ndarray]:
    """Bytes of each part, with a line's end between documents."""
    return {part: np.frombuffer(b"\n".join(map(_plain, texts)), np.uint8) for part, texts in parts.items()}


def as_pairs(parts: Mapping[str, Texts], vocabulary: int) -> tuple[dict[str, np.ndarray], int]:
    """Byte pairs of each part, learnt from the part "train" alone, and how many different ones there are.

    Those of large texts are kept in `tokens` of the data folder, by the content of all parts.

    Args:
        parts: documents by the part's name.
        vocabulary: how many to learn at most.
    """
    if sum(len(text) for texts in parts.values() for text in texts) < KEPT:
        return _learn(parts, vocabulary)
    file = data_folder() / "tokens" / f"{_key(parts, vocabulary)}.npz"
    if not file.is_file():
        lines, count = _learn(parts, vocabulary)
        _write(file, {"count": np.array(count)} | {part: line.astype(_small(count)) for part, line in lines.items()})
    with np.load(file) as stored:
        return {part: stored[part].astype(np.int32) for part in parts}, int(stored["count"])


def _learn(parts: Mapping[str, Texts], vocabulary: int) -> tuple[dict[str, np.ndarray], int]:
    learner: Any = need("tokenizers").ByteLevelBPETokenizer()
    learner.train_from_iterator(_pieces(parts["train"]), vocab_size=vocabulary, show_progress=False)
    lines = {}
    for part, texts in parts.items():
        pieces, found = _pieces(texts), []
        while some := list(islice(pieces, AT_ONCE)):
            found += [np.array(one.ids, np.int32) for one in learner.encode_batch(some)]
        lines[part] = np.concatenate(found)
    return lines, learner.get_vocab_size()


def _pieces(documents: Texts) -> Iterator[str]:
    """Documents in pieces of whole lines: one of 100 MB at a go would take gigabytes."""
    for document in documents:
        text = document if isinstance(document, str) else document.decode("utf-8", errors="replace")
        start = 0
        while start < len(text):
            end = text.rfind("\n", start, start + PIECE) + 1 if start + PIECE < len(text) else len(text)
            end = end or min(start + PIECE, len(text))
            yield text[start:end]
            start = end


def _key(parts: Mapping[str, Texts], vocabulary: int) -> str:
    try:
        learner = version("tokenizers")
    except PackageNotFoundError:
        learner = ""
    content = hashlib.sha256(f"{learner}/{vocabulary}/{PIECE}".encode())
    for part, texts in sorted(parts.items()):
        content.update(f"/{part}/{len(texts)}".encode())
        for text in map(_plain, texts):
            content.update(len(text).to_bytes(8, "little"))
            content.update(text)
    return content.hexdigest()[:32]


def _write(file: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays into a file that is whole or not there: several workers may come to it at once."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle, part = tempfile.mkstemp(suffix=".part", dir=file.parent)
    try:
        with os.fdopen(handle, "wb") as content:
            np.savez(content, allow_pickle=False, **arrays)
        os.replace(part, file)
    except BaseException:
        os.unlink(part)
        raise


def _small(count: int) -> type[np.generic]:
    return np.uint16 if count <= 1 << 16 else np.int32


def _plain(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()
