"""Select columns, order and runs, with one syntax for the board and the terminal."""

from __future__ import annotations

import difflib
import math
import operator
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from equipoise.monitor.runs.final_loss import LABEL, loss_text
from equipoise.monitor.runs.lines import RunRow, Value
from equipoise.monitor.runs.short_names import natural

COLUMNS = {
    "name": "run",
    "tags": "",
    "status": "",
    "steps": "",
    "measured": "how many steps were measured",
    "measured_to": "the last measured step",
    "loss": LABEL,
    "last": "last training loss",
    "validation": "best validation loss",
    "validation_step": "step of the best validation loss",
    "lr": "largest, of the main group",
    "wd": "weight decay, largest, of the main group",
    "optimizer": "",
    "curve": "training loss over the run",
    "findings": "",
    "started": "",
    "changed": "",
}
"""The columns that every run may have, and what they are where the name does not say it."""

SHOWN = (
    "name",
    "tags",
    "status",
    "steps",
    "measured",
    "loss",
    "validation",
    "lr",
    "wd",
    "optimizer",
    "curve",
    "findings",
    "changed",
)
"""Columns where nobody says which."""

SORT = "-changed"
"""The newest first."""

TIMES = ("started", "changed")
TERM = re.compile(r'(?:"[^"]*"|[^\s"])+')
COMPARISON = re.compile(r"(.+?)(<=|>=|!=|=|<|>)(.*)")
OPERATORS: dict[str, Callable[[float, float], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


@dataclass(frozen=True)
class KnownColumn:
    """A column that some runs have.

    Attributes:
        name: what it is called.
        group: "run", "logged" or "meta".
        says: what it is where the name does not say it.
    """

    name: str
    group: str
    says: str = ""


def known_columns(lines: Iterable[RunRow]) -> list[KnownColumn]:
    """Every column that there is: those of every run, then those that were logged, then those of the meta."""
    logged: set[str] = set()
    meta: set[str] = set()
    for line in lines:
        logged |= line.logged
        meta |= line.meta
    found = [KnownColumn(name, "run", says) for name, says in COLUMNS.items()]
    found += [KnownColumn(name, "logged", "last logged value") for name in sorted(logged)]
    return found + [KnownColumn(name, "meta") for name in sorted(meta - logged)]


def columns_of(names: Iterable[str]) -> list[str]:
    """The columns to show: each once, the run's name first; those of `SHOWN` where none is named."""
    asked = [n for n in dict.fromkeys(names) if n and n != "name"]
    return ["name", *asked] if asked else list(SHOWN)


def is_number(lines: Iterable[RunRow], column: str) -> bool:
    """Whether a column has numbers, which stand at the right."""
    return column not in TIMES and any(isinstance(line.values.get(column), int | float) for line in lines)


def select(lines: Sequence[RunRow], *, sort: str = SORT, filter: str = "") -> list[RunRow]:
    """The lines that fit, in order.

    Args:
        lines: of all runs.
        sort: a column, the smallest first; with "-" before it the largest. Runs without a value come last.
        filter: words that a run's name, tags, state, optimizer or meta must have, and comparisons such as `lr>1e-3`,
            `tags=good` or `model!=gpt`, with spaces between; all must hold. What has spaces stands in quotes.

    Raises:
        ValueError: a comparison lacks a side, or compares with what is no number.
    """
    tests = [_test(term) for term in TERM.findall(filter.replace('""', ""))]
    found = [line for line in lines if all(test(line) for test in tests)]
    name = sort.removeprefix("-")
    there = [line for line in found if not _missing(line.values.get(name))]
    rest = [line for line in found if _missing(line.values.get(name))]
    # Numbers before words; equal ones by their names, in either direction.
    there.sort(key=lambda line: _order(line.values["name"]))
    there.sort(key=lambda line: _order(line.values[name]), reverse=sort.startswith("-"))
    return there + sorted(rest, key=lambda line: _order(line.values["name"]))


def unknown(lines: Sequence[RunRow], columns: Sequence[str] = (), sort: str = SORT, filter: str = "") -> str:
    """What is asked for and no run has, as a sentence; "" where all is known."""
    names = [k.name for k in known_columns(lines)]
    asked = [*columns, sort.removeprefix("-")]
    asked += [m[1].strip('"') for t in TERM.findall(filter) if (m := COMPARISON.fullmatch(t))]
    for name in asked:
        if name not in names:
            near = difflib.get_close_matches(name, names, n=3) or names[:12]
            return f"column = {name!r}: no run here has it; there are {', '.join(near)}"
    return ""


def value_text(line: RunRow, column: str, now: float | None = None) -> str:
    """A value as text.

    Args:
        line: of the run.
        column: which.
        now: the time, in seconds since 1970; default: this moment.
    """
    value = line.values.get(column)
    if value is None:
        return "" if line.read else "…"
    if column in TIMES and isinstance(value, float):
        return ago((time.time() if now is None else now) - value) if value else ""
    if column in ("steps", "measured", "measured_to", "validation_step"):
        return f"{value:,}"
    if isinstance(value, list):
        return ", ".join(value)
    return loss_text(value) if isinstance(value, float) else str(value)


def ago(seconds: float) -> str:
    """How long something is past.

    >>> ago(5), ago(130), ago(7200), ago(200_000)
    ('5 s ago', '2 min ago', '2 h ago', '2 days ago')
    """
    for size, word in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {word} ago"
    return f"{max(0.0, seconds):.0f} s ago"


def _test(term: str) -> Callable[[RunRow], bool]:
    match = None if term.startswith('"') and term.endswith('"') and term.count('"') == 2 else COMPARISON.fullmatch(term)
    if match is None:
        if (term[0] in "<>=!" and len(term) > 1) or set(term) <= set("<>=!"):
            raise ValueError(f"filter = {term!r}: must have a column before the sign, such as lr>1e-3")
        word = term.replace('"', "").lower()
        return lambda line: word in _text(line)
    name, sign, text = match[1].strip('"'), match[2], match[3].replace('"', "")
    wanted = _number(text)
    if not text or (sign in OPERATORS and wanted is None):
        raise ValueError(f"filter = {term!r}: must compare with a number, such as lr>1e-3, or with a word by = or !=")
    if sign in OPERATORS:
        compare, level = OPERATORS[sign], float(wanted or 0.0)
        return lambda line: isinstance(v := line.values.get(name), int | float) and compare(v, level)
    return lambda line: _equals(line.values.get(name), text, wanted) == (sign == "=")


def _equals(value: Value | None, text: str, wanted: float | None) -> bool:
    if isinstance(value, list):
        return text.lower() in (v.lower() for v in value)
    if isinstance(value, int | float) and wanted is not None:
        return (
            value == wanted or (math.isnan(value) and math.isnan(wanted)) or math.isclose(value, wanted, rel_tol=1e-6)
        )
    return value is not None and str(value).lower() == text.lower()


def _text(line: RunRow) -> str:
    """All words of a line."""
    mine = ("name", "status", "optimizer")
    words = [str(line.values.get(key, "")) for key in (*mine, *sorted(line.meta))]
    for key in ("tags", "findings"):
        found = line.values.get(key, [])
        words += found if isinstance(found, list) else []
    return "\n".join(words).lower()


def _number(text: str) -> float | None:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return None


def _missing(value: Value | None) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _order(value: Value) -> tuple[int, float, list[tuple[int, int, str]]]:
    if isinstance(value, int | float):
        return 0, float(value), []
    text = ", ".join(value) if isinstance(value, list) else value
    return 1, 0.0, natural(text.lower())
