"""Norms by name, for configuration files and the command line."""

from __future__ import annotations

import math
import re

from equipoise.geometry.matrix import Operator
from equipoise.geometry.norms import RMS, Lp, Norm, frobenius

NAMES: dict[str, Norm] = {
    "l1": Lp(1),
    "l2": Lp(2),
    "linf": Lp(math.inf),
    "rms": RMS(),
    "frobenius": frobenius(),
    "matrix_rms": RMS(dims=2),
    "sign": Operator(1, math.inf),
    "row": Operator(2, math.inf),
    "column": Operator(1, 2),
    "embedding": Operator(1, "rms"),
    "spectral": Operator(2, 2),
    "rms->rms": Operator("rms", "rms"),
}
"""The names that `named` knows beside pairs such as `l1->rms`."""


def named(name: str) -> Norm:
    """The norm of that name: one of `NAMES`, an ℓp such as `l1.5`, or an operator norm such as `l1->rms`.

    Pairs are `p->q` or `p→q` with p and q among l1, l2, linf, any l<number>, rms; ℓ and ∞ are understood.

    Args:
        name: The name; case does not matter.

    >>> named("spectral")
    Operator(p=2, q=2, steps=None)
    >>> named("ℓ1→RMS") == named("embedding")
    True
    >>> import torch
    >>> named("l3").dual(torch.tensor([1.0, 0.0])).item()
    1.0
    """
    if not isinstance(name, str):
        raise ValueError(f"name = {name!r}: must be a string, {_allowed()}")
    plain = name.lower().replace("ℓ", "l").replace("∞", "inf").replace("→", "->").replace(" ", "")
    if plain in NAMES:
        return NAMES[plain]
    ends = [_end(word) for word in plain.split("->")]
    if len(ends) == 2 and None not in ends:
        p, q = ends
        return Operator(p if p is not None else 2, q if q is not None else 2)
    if len(ends) == 1 and isinstance(ends[0], float):
        return Lp(ends[0])
    raise ValueError(f"name = {name!r}: must be {_allowed()}")


def _end(word: str) -> float | str | None:
    if word == "rms":
        return word
    match = re.fullmatch(r"l(inf|\d+(?:\.\d+)?)", word)
    return float(match[1]) if match else None


def _allowed() -> str:
    return f"one of {', '.join(NAMES)}, an ℓp such as l1.5, or a pair such as l1->rms"
