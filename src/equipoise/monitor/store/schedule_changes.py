"""Learning rate and weight decay at every step, stored as the end points of straight lines, which need few rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from equipoise.monitor.store.layout import SCHEDULE, Column, Layout, Quantity
from equipoise.monitor.store.writer import RunWriter
from equipoise.optim.dynamics_of import GroupState

TOLERANCE = 1e-3
"""How far a value may be from the line, as a share of it."""

PEAK = 1e-9
"""A value inside of a line that is above both its ends by more than this share of them is stored, too."""

NEWS, SHORT = 1.05, 64
"""A row is written when so many times as many steps were taken as at the last one, and at least so many: a run that is
killed says about how many steps it took."""

NAMES = ("lr_knot", "weight_decay_knot")
"""Those of `quantities.PER_GROUP`, with rows of their own."""

Values = list[float]
"""Learning rates of all groups, then their weight decays: so few that plain numbers are faster than arrays."""

Point = tuple[int, Values]
"""A step, and its values."""


class ChangePointWriter:
    """Takes in the values of every step, and writes a row where a line ends, at its peak, and at the last step.

    A row of NaN says that a step was taken whose values were not read.

    Args:
        writer: where to; None writes nothing.
    """

    def __init__(self, writer: RunWriter | None) -> None:
        self._writer = writer
        self._step, self._read = 0, False
        self._now: Values = []
        self._anchor: Point | None = None
        self._slope: Values | None = None
        self._last: Point | None = None
        self._high: Values = []
        self._peaks: dict[int, Point] = {}  # for each number of a row, where it was highest since the line began
        self._written = -1

    def take(self, step: int, first: int, groups: Sequence[GroupState], total: int, times: int = 1) -> None:
        """Take in what an optimizer's groups say at a step.

        Args:
            step: its number.
            first: number of its first group among all.
            groups: the numbers of each of its groups; empty where they were not read.
            total: how many groups there are in all.
            times: of how many steps, from that one on, they are the numbers.
        """
        if self._writer is None:
            return
        last = step + times - 1
        while step <= last:
            self._take(step, first, groups, total)
            level = self._slope is not None and not any(self._slope)
            same = self._last is not None and self._last[1] == self._now
            step = max(step + 1, last) if level and same else step + 1  # between them the line goes on

    def _take(self, step: int, first: int, groups: Sequence[GroupState], total: int) -> None:
        if step != self._step:
            self._end_step()
        if 2 * total != len(self._now):
            self.flush()
            self._begin(total)
        self._step = step
        for i, group in enumerate(groups, first):
            self._now[i], self._now[total + i] = group.lr, group.weight_decay
            self._read = True

    def _end_step(self) -> None:
        """See whether the step lies on the line."""
        if not self._now:
            return
        step, now, read = self._step, self._now.copy(), self._read
        self._read = False
        if read:
            self._extend(step, now)
        if step >= SHORT and step > NEWS * self._written:
            self._store()

    def _extend(self, step: int, now: Values) -> None:
        if self._anchor is None or self._last is None:
            self._start((step, now))
            self._write(step, now)
        elif self._slope is None:
            self._slope = _slope(self._anchor, (step, now))
        elif now != self._last[1] or any(self._slope):  # else it stays where it was
            start, values = self._anchor
            for x, first, slope in zip(now, values, self._slope, strict=True):
                line = first + slope * (step - start)
                if abs(x - line) > TOLERANCE * max(abs(x), abs(line)):
                    self._end_line(self._last)
                    self._slope = _slope(self._last, (step, now))
                    break
        self._last = (step, now)
        for i, (x, high) in enumerate(zip(now, self._high, strict=True)):
            if x > high:
                self._peaks[i] = self._last
                self._high[i] = x

    def _start(self, anchor: Point) -> None:
        self._anchor, self._high, self._peaks = anchor, anchor[1].copy(), {}

    def _end_line(self, end: Point) -> None:
        """Write the peaks of the line that ends here, and its end; the next begins there."""
        assert self._anchor is not None
        ends = [max(both) for both in zip(self._anchor[1], end[1], strict=True)]
        tops = {p[0]: p for i, p in self._peaks.items() if p[1][i] > ends[i] * (1 + PEAK)}
        for step in sorted(tops):
            self._write(*tops[step])
        self._write(*end)
        self._start(end)

    def flush(self) -> None:
        """Write the end of the line that is still open."""
        if self._step > (self._last[0] if self._last is not None else 0):
            self._end_step()
        self._store()

    def _store(self) -> None:
        """End the line at the last step that was read, and say which step was taken after it."""
        if self._last is not None:
            self._end_line(self._last)
            self._slope = None
        if self._step > self._written and self._now:
            self._write(self._step, [math.nan] * len(self._now))

    def _begin(self, groups: int) -> None:
        assert self._writer is not None
        self._now, self._anchor, self._slope, self._last = [0.0] * 2 * groups, None, None, None
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

    def _write(self, step: int, values: Values) -> None:
        if self._writer is not None and step > self._written:
            self._writer.append(step, np.array(values), kind=SCHEDULE)
            self._written = step


def _slope(start: Point, end: Point) -> Values:
    """Change of each value over a step, on the line through two points."""
    return [(b - a) / (end[0] - start[0]) for a, b in zip(start[1], end[1], strict=True)]
