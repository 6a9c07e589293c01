"""Learning rate and weight decay at every step, stored as the ends of straight lines: few rows for any run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.decompose import GroupStep
from equipoise.monitor.layout import SCHEDULE, Column, Layout, Quantity
from equipoise.monitor.writer import RunWriter

TOLERANCE = 1e-3
"""How far a value may be from the line, as a share of it."""

NAMES = ("lr_knot", "weight_decay_knot")
"""Those of `quantities.PER_GROUP`, with rows of their own."""


class Knots:
    """Takes in the values of every step, and writes a row where a line ends.

    Args:
        writer: where to; None writes nothing.
    """

    def __init__(self, writer: RunWriter | None) -> None:
        self._writer = writer
        self._step = 0
        self._now: NDArray[np.float64] = np.empty((2, 0))  # lr and weight decay of each group
        self._anchor: tuple[int, NDArray[np.float64]] | None = None
        self._slope: NDArray[np.float64] | None = None
        self._last: tuple[int, NDArray[np.float64]] | None = None
        self._written = -1

    def take(self, step: int, first: int, groups: Sequence[GroupStep], total: int) -> None:
        """Take in what an optimizer's groups say at a step.

        Args:
            step: its number.
            first: number of its first group among all.
            groups: the numbers of each of its groups; empty where they were not read.
            total: how many groups there are in all.
        """
        if self._writer is None or not groups:
            return
        if step != self._step:
            self._end_step()
        if total != self._now.shape[1]:
            self.flush()
            self._begin(total)
        self._step = step
        for i, group in enumerate(groups, first):
            self._now[0, i], self._now[1, i] = group.lr, group.weight_decay

    def _end_step(self) -> None:
        """See whether the step lies on the line."""
        if self._now.size == 0:
            return
        step, now = self._step, self._now.copy()
        if self._anchor is None or self._last is None:
            self._anchor = (step, now)
            self._write(step, now)
        elif self._slope is None:
            self._slope = (now - self._anchor[1]) / (step - self._anchor[0])
        else:
            line = self._anchor[1] + self._slope * (step - self._anchor[0])
            if (np.abs(now - line) > TOLERANCE * np.maximum(np.abs(now), np.abs(line))).any():
                self._write(*self._last)
                self._anchor = self._last
                self._slope = (now - self._last[1]) / (step - self._last[0])
        self._last = (step, now)

    def flush(self) -> None:
        """Write the end of the line that is still open."""
        if self._last is None or self._step > self._last[0]:
            self._end_step()
        if self._last is not None:
            self._write(*self._last)

    def _begin(self, groups: int) -> None:
        assert self._writer is not None
        self._now, self._anchor, self._slope, self._last = np.zeros((2, groups)), None, None, None
        words = ("learning rate", "weight decay")
        self._writer.describe(
            quantities=[
                Quantity(f"{name}/{i}", "", "global", f"{word} of group {i}, at the ends of straight lines")
                for name, word in zip(NAMES, words, strict=True)
                for i in range(groups)
            ]
        )
        columns = tuple(Column(f"{name}/{i}") for name in NAMES for i in range(groups))
        self._writer.layout(Layout(columns, kind=SCHEDULE, dtype="float64"))

    def _write(self, step: int, values: NDArray[np.float64]) -> None:
        if self._writer is not None and step > self._written:
            self._writer.append(step, values.reshape(-1), kind=SCHEDULE)
            self._written = step
