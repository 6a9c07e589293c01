"""Sequence to sequence: how a word is spelt → how it is spoken, from the CMU dictionary."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from equipoise import _check
from equipoise.lab.data.base import VALIDATION, Data, Split
from equipoise.lab.data.packages.places import where

PAD, BEGIN, END = 0, 1, 2
"""The first tokens of both sides."""


def _spoken(path: str | os.PathLike[str] | None) -> dict[str, list[str]]:
    """The first pronunciation of every word of letters."""
    file = where("cmudict") / "cmudict.dict" if path is None else Path(path)
    if not file.is_file():
        what = "" if path is None else f"path = {str(file)!r}: must be the file cmudict.dict; "
        raise ValueError(f"{what}the data 'cmudict' is not here; `equipoise lab data get cmudict` fetches it")
    found: dict[str, list[str]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        word, *said = line.partition("#")[0].split()
        if word.replace("'", "").isalpha() and word.isascii():  # others are told apart as word(2)
            found[word] = said
    return found


def phonemes(
    *, path: str | os.PathLike[str] | None = None, size: int | None = None, stress: bool = False, test: float = 0.05,
    validation: float = 0.0,
) -> Data:  # fmt: skip
    """Letters → phonemes, one pronunciation a word.

    Args:
        path: the file cmudict.dict. Default: what `equipoise lab data get cmudict` fetched.
        size: take only this many words, chosen by their hash.
        stress: keep the stress of vowels.
        test: share of the words that is tested on, chosen by their hash.
        validation: share of the words that is set apart to choose settings by, chosen alike.
    """
    entries = _spoken(path)
    words = sorted(entries, key=_hash)
    words = words[: None if size is None else _check.whole("size", size, low=20)]
    spoken = [entries[w] if stress else [p.rstrip("012") for p in entries[w]] for w in words]
    share = _check.number("test", test, low=0, high=1)
    tested = round(share * len(words))
    held = tested + round(_check.number("validation", validation, low=0, high=1 - share) * len(words))
    both = list(zip(words, spoken, strict=True))
    return pairs("phonemes", both[held:], both[:tested], both[tested:held])


Pairs = Sequence[tuple[Sequence[str], Sequence[str]]]


def pairs(name: str, train: Pairs, test: Pairs, validation: Pairs = ()) -> Data:
    """Padded pairs of sequences of symbols, source and target.

    A source is its tokens; a target is BEGIN, its tokens, END. Both are padded with PAD.

    Args:
        name: of the data.
        train: pairs to train on.
        test: pairs to test on.
        validation: pairs to choose settings by.
    """
    every = [*test, *validation, *train]
    x, symbols_in = _padded([a for a, _ in every], ends=False)
    y, symbols_out = _padded([b for _, b in every], ends=True)
    info = {"inputs": len(symbols_in) + 3, "length": max(x.shape[1], y.shape[1]), "in": symbols_in, "out": symbols_out}
    sizes = [len(test), len(validation), len(train)]
    tested, held, trained = (Split(a, b) for a, b in zip(x.split(sizes), y.split(sizes), strict=True))
    probes = {VALIDATION: held} if validation else {}
    return Data(name, "pairs", trained, tested, len(symbols_out) + 3, info, probes)


def texts(rows: Tensor, symbols: list[str]) -> list[str]:
    """Rows of tokens as text, each up to its END; `symbols` are those of `info["in"]` or `info["out"]`.

    >>> texts(torch.tensor([[BEGIN, 4, 3, 4, END, 3], [3, END, PAD, PAD, PAD, PAD]]), ["a", "b"])
    ['bab', 'a']
    """
    found = []
    for row in rows.tolist():
        kept = row[: row.index(END)] if END in row else row
        found.append("".join([symbols[i - 3] for i in kept if i > END]))
    return found


def _padded(sequences: Sequence[Sequence[str]], *, ends: bool) -> tuple[Tensor, list[str]]:
    symbols = sorted({s for sequence in sequences for s in sequence})
    number = {s: i + 3 for i, s in enumerate(symbols)}
    rows = [[BEGIN, *(number[s] for s in q), END] if ends else [number[s] for s in q] for q in sequences]
    width = max(map(len, rows))
    return torch.tensor([row + [PAD] * (width - len(row)) for row in rows], dtype=torch.int16), symbols


def _hash(word: str) -> bytes:
    return hashlib.sha256(word.encode()).digest()
