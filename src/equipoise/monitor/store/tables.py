"""The results of reading a run: numbers over steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.store.layout import Column, Layout

LEAST, UP_TO = 28, 0.9
"""Enough of a run was measured with so many steps, the last of them after this share of all. A run of 250 steps has as
many, however short they are."""

LARGEST = float(np.finfo(np.float64).max)


def to_log(value: float) -> float:
    """A logged number as it is stored: there NaN says "not measured", so NaN is ∞, and ∞ the largest number."""
    return math.inf if math.isnan(value) else min(value, LARGEST)


def from_log(high: NDArray[Any], values: NDArray[Any] | None = None) -> NDArray[Any]:
    """Logged numbers of the stored ones.

    Args:
        high: the stored numbers, or the largest of each summary.
        values: another part of the summaries, such as means. Default: `high` itself.

    >>> from_log(np.array([to_log(float(x)) for x in ("nan", "inf", "-inf", "2")])).tolist()
    [nan, inf, -inf, 2.0]
    """
    high = np.asarray(high, np.float64)
    values = high if values is None else values
    return np.where(high == np.inf, np.nan, np.where(high == LARGEST, np.inf, values))


@dataclass(frozen=True)
class Table:
    """Columns over steps. Each line is a row as measured, or a summary of several rows.

    Attributes:
        columns: what the columns of the arrays are.
        steps: the middle of the summarised steps.
        first: the first of them.
        last: the last of them.
        times: when the last was measured, in seconds since 1970.
        values: mean.
        low: smallest value.
        high: largest value.
        count: how many numbers there were; 0 if the rest is NaN. NaN with a count was logged as NaN.
        level: 0 if each line is a row as measured.
    """

    columns: tuple[Column, ...]
    steps: NDArray[np.int64]
    first: NDArray[np.int64]
    last: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[Any]
    low: NDArray[Any]
    high: NDArray[Any]
    count: NDArray[np.int64]
    level: int

    def __len__(self) -> int:
        return len(self.steps)


@dataclass(frozen=True)
class Series(Table):
    """One column over the steps where it was measured; `steps, values = series` works."""

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter((self.steps, self.values))


@dataclass(frozen=True)
class Coverage:
    """How much of a run was measured.

    Attributes:
        measured: how many steps.
        steps: how many were taken while the run was written.
        last: the last measured step; 0 where none was.
        start: the step before its first, which is 0 but for a run that goes on with another's training.
    """

    measured: int
    steps: int
    last: int
    start: int = 0

    @property
    def taken(self) -> int:
        """Number of the last step that was taken."""
        return self.start + self.steps

    @property
    def enough(self) -> bool:
        """Whether so much was measured that finding nothing means something."""
        return self.measured >= LEAST and self.last - self.start >= UP_TO * self.steps

    @property
    def verdict(self) -> str:
        """What it means that nothing was found.

        >>> Coverage(59, 400, 398).verdict
        'No problems found: 59 of 400 steps measured, up to step 398.'
        >>> Coverage(7, 400, 64).verdict
        'Too little was measured to say: 7 of 400 steps measured, up to step 64.'
        """
        return f"{'No problems found' if self.enough else 'Too little was measured to say'}: {self}."

    def __str__(self) -> str:
        """In words.

        >>> str(Coverage(59, 400, 398)), str(Coverage(0, 400, 0))
        ('59 of 400 steps measured, up to step 398', '0 of 400 steps measured')
        """
        to = f", up to step {self.last:,}" if self.measured else ""
        return f"{self.measured:,} of {self.steps:,} step{'' if self.steps == 1 else 's'} measured{to}"


@dataclass(frozen=True)
class Rows:
    """Rows as they were measured, all of one layout.

    Attributes:
        layout: what the numbers are.
        steps: step of each row.
        times: time of each row.
        values: a line for each row.
        rewound: discard rows after this step that were read before; None if there is nothing to discard.
    """

    layout: Layout
    steps: NDArray[np.int64]
    times: NDArray[np.float64]
    values: NDArray[Any]
    rewound: int | None = None
