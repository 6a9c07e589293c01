"""Short names: sorted by their numbers, without the parts that all share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

ELLIPSIS = "…"
PLAIN = "weight"
"""What torch calls the matrix of a layer: left out where every name stays different, biases having their own."""

Parts = tuple[str, ...]


def natural(name: str) -> list[tuple[int, int, str]]:
    """How people order names: numbers by their size.

    >>> sorted(["block.10", "block.9", "a"], key=natural)
    ['a', 'block.9', 'block.10']
    """
    parts = re.split(r"(\d+)", name)
    return [(0, int(p), "") if p.isdecimal() and len(p) < 12 else (1, 0, p) for p in parts]


def short_names(names: Iterable[str], width: int | None = None) -> dict[str, str]:
    """A short name for each name. Different names have different short names.

    Names are cut at their dots. A first or last part goes where all names share it, or where half of them do, it is no
    number, and no other name differs in that part alone: "encoder.0" beside "decoder.0" stays. What is still longer
    than `width` loses parts or letters in its middle, unless another name has the same beginning and end.

    Args:
        names: all that are shown together.
        width: of a short name, in letters; a name that cannot be shortened to it stays longer. Default: any.

    >>> short_names(["transformer.h.0.attn.weight", "transformer.h.0.mlp.weight", "lm_head.weight"])
    {'transformer.h.0.attn.weight': '0.attn', 'transformer.h.0.mlp.weight': '0.mlp', 'lm_head.weight': 'lm_head'}
    >>> list(short_names(["encoder.0.up", "encoder.0.down", "decoder.0.up"]).values())
    ['encoder.0.up', 'encoder.0.down', 'decoder.0.up']
    """
    given = list(dict.fromkeys(names))
    parts: list[Parts] = [tuple(name.split(".")) for name in given]
    for end in (0, -1):
        while (fewer := _without_shared(parts, end)) is not None:
            parts = fewer
    if width is None:
        return {name: ".".join(p) for name, p in zip(given, parts, strict=True)}
    return dict(zip(given, _fitted(parts, width), strict=True))


def _without_shared(parts: list[Parts], end: int) -> list[Parts] | None:
    """The names without the first (0) or last (-1) part that most of them share; None where they must keep it."""
    cut = slice(1, None) if end == 0 else slice(None, -1)
    counts = Counter(p[end] for p in parts if len(p) > 1 and any(p[cut]))
    if len(parts) < 2 or not counts:
        return None
    shared, count = counts.most_common(1)[0]
    have = [p[end] == shared and len(p) > 1 and any(p[cut]) for p in parts]
    if count < len(parts):
        if 2 * count < len(parts) or any(c.isdigit() for c in shared):
            return None
        others = [p for p, has in zip(parts, have, strict=True) if not has]
        alike = {p[k:] if end == 0 else p[: len(p) - k] for p in others for k in range(len(p))}
        if any(has and p[cut] in alike for p, has in zip(parts, have, strict=True)) and (end, shared) != (-1, PLAIN):
            return None
    fewer = [p[cut] if has else p for p, has in zip(parts, have, strict=True)]
    return fewer if len(set(fewer)) == len(parts) else None


def _fitted(parts: list[Parts], width: int) -> list[str]:
    """The names, those that are too long without parts of their middle."""
    whole = [".".join(p) for p in parts]
    taken = set(whole)
    ends: dict[tuple[int, int], Counter[tuple[Parts, Parts]]] = {}
    found = []
    for p, name in zip(parts, whole, strict=True):
        fit = None if len(name) <= width else _fit(p, parts, width, ends) or _letters(name, whole, width)
        found.append(name if fit is None or fit in taken else fit)
        taken.add(found[-1])
    return found


def _fit(p: Parts, parts: Sequence[Parts], width: int, ends: dict[tuple[int, int], Counter]) -> str | None:
    """The longest cut that is short enough and that no other name could have; None where there is none."""
    best = None
    for head in range(len(p)):
        for tail in range(1, len(p) - head):
            text = ".".join([*p[:head], ELLIPSIS, *p[len(p) - tail :]])
            if len(text) > width or (best is not None and len(text) <= len(best)):
                continue
            if (head, tail) not in ends:
                ends[head, tail] = Counter((q[:head], q[len(q) - tail :]) for q in parts if len(q) >= head + tail)
            if ends[head, tail][p[:head], p[len(p) - tail :]] == 1:
                best = text
    return best


def _letters(name: str, names: Sequence[str], width: int) -> str | None:
    """As `_fit`, for a name of few and long parts: its first and last letters."""
    tail = width * 3 // 5
    head = width - 1 - tail
    if head < 1 or sum(n[:head] == name[:head] and n[-tail:] == name[-tail:] for n in names) > 1:
        return None
    return name[:head] + ELLIPSIS + name[-tail:]
