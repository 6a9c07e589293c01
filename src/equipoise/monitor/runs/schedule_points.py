"""Learning rate and weight decay of every step, and the memory that follows from them. Needs no torch."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.runs.recorded import recorded
from equipoise.monitor.store import reading
from equipoise.monitor.store.layout import SCHEDULE, Column
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.schema import FOREVER
from equipoise.monitor.store.tables import Table
from equipoise.theory import Dynamics, Memory, memory
from equipoise.theory._scan import run_recursion as scan

Array = NDArray[np.float64]
Points = tuple[NDArray[np.int64], Array]
"""Steps, and values there."""


@dataclass(frozen=True)
class GroupNow:
    """A group after the last step: its lr, the largest so far, its weight decay, and what its weights remember.

    Attributes:
        lr: of the last step.
        peak: the largest lr so far.
        weight_decay: of the last step.
        effective_steps: how many batches are remembered as if equally.
        init_share: the share of the initial weights that is left.
    """

    lr: float
    peak: float
    weight_decay: float
    effective_steps: float
    init_share: float


class Schedules:
    """Learning rate and weight decay of each group at every step, from the first to the last.

    They are known at the ends of straight lines, which every step was compared with; where a run has none, at the
    measured steps. Between those they are taken to lie on straight lines.

    Args:
        run: the run.
        last: up to this step. Default: the last that was taken.
    """

    def __init__(self, run: Run, last: int | None = None) -> None:
        self._run = run
        coverage = run.coverage
        self.start = coverage.start
        """The step before the run's first."""
        self.last = coverage.taken if last is None else last
        self._known = set(run.columns)
        self._points: dict[str, list[Points]] | None = None
        self._done: dict[tuple[str, int], Array] = {}

    @property
    def groups(self) -> list[int]:
        """The groups whose lr is known."""
        parts = [c.quantity.partition("/") for c in self._known if c.tensor is None]
        return sorted({int(g) for name, _, g in parts if name in ("lr", "lr_knot") and g.isdecimal()})

    def lr(self, group: int) -> Array:
        """The learning rate of a group: entry t is of step t + 1; 0 before the group was there."""
        return self._values("lr", group)

    def weight_decay(self, group: int) -> Array:
        """The weight decay of a group."""
        return self._values("weight_decay", group)

    def change_points(self, name: str, group: int) -> Points:
        """The steps at which "lr" or "weight_decay" is known, and its values there.

        Measured values are taken where the ends of lines do not reach: of the last steps of a run on its way.
        """
        stored = self._stored().get(f"{name}_knot/{group}", [])
        end = int(stored[-1][0][-1]) if stored else -1
        parts = list(stored)
        if Column(f"{name}/{group}") in self._known:
            table = self._measured
            exact = (table.first == table.last) & (table.steps > end)
            values = np.asarray(table.values[exact, self._places[f"{name}/{group}"]], np.float64)
            there = ~np.isnan(values)
            parts.append((table.steps[exact][there], values[there]))
        if not parts:
            return np.empty(0, np.int64), np.empty(0)
        steps, values = (np.concatenate(side) for side in zip(*parts, strict=True))
        here = steps <= self.last
        return steps[here], values[here]

    @cached_property
    def _measured(self) -> Table:
        """What was measured of all groups, in one reading, behind the first end of all lines."""
        ends = [int(parts[-1][0][-1]) for parts in self._stored().values()]
        return self._run.table(self._of_groups, kind="main", start=min(ends, default=-1) + 1, points=4000)

    @cached_property
    def _of_groups(self) -> list[Column]:
        return [c for c in self._known if c.tensor is None and c.quantity.startswith(("lr/", "weight_decay/"))]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {c.quantity: i for i, c in enumerate(self._of_groups)}

    def _stored(self) -> dict[str, list[Points]]:
        """The stored points of each column, life after life; a life ends at its last step that counts."""
        if self._points is None:
            self._points = self._run._archive.read(self._read)
        return self._points

    def _read(self, db: sqlite3.Connection) -> dict[str, list[Points]]:
        archive, found = self._run._archive, {}
        for segment in archive.segments.values():
            if segment.layout.kind != SCHEDULE:
                continue
            rows = [(s, row) for s, _, row in reading.raw_rows(archive, db, segment, 0, FOREVER)]
            end = archive.cutoff(segment.session)
            for i, column in enumerate(segment.layout.columns):
                steps = np.array([s for s, row in rows if not np.isnan(row[i])], np.int64)
                values = np.array([row[i] for _, row in rows if not np.isnan(row[i])], np.float64)
                if len(steps) and steps[0] <= end < steps[-1]:
                    at = int(np.searchsorted(steps, end, side="right"))
                    value = np.interp(end, steps, values)
                    steps, values = np.append(steps[:at], end), np.append(values[:at], value)
                if len(steps) and steps[0] <= end:
                    found.setdefault(column.quantity, []).append((steps, values))
        return found

    def _values(self, name: str, group: int) -> Array:
        if (name, group) not in self._done:
            at, values = self.change_points(name, group)
            steps = np.arange(1, self.last + 1)
            stored = f"{name}_knot/{group}" in self._stored()
            left = 0.0 if stored else None  # a group that came late did nothing before
            found = np.interp(steps, at, values, left=left) if len(at) else np.zeros(self.last)
            self._done[name, group] = found
        return self._done[name, group]


class Remembered:
    """What each step that a run took has left in the weights, from the lr and decay of every step.

    Args:
        run: the run.
        schedules: of the run. Default: to the last step that was taken.
    """

    def __init__(self, run: Run, schedules: Schedules | None = None) -> None:
        self.schedules = schedules or Schedules(run)
        self._groups = recorded(run)
        self._done: dict[tuple[bytes, bytes], tuple[Array, Array]] = {}

    def of(self, group: int) -> Memory | None:
        """The memory of a group; None where lr is not known, or decay overshoots, so that there is nothing to say."""
        lr, lost = self._steps(group)
        usable = np.isfinite(lr) & (lr >= 0) & (lost < 1)
        if not usable.all() or not lr.any():
            return None
        return memory(lr=lr, weight_decay=self.schedules.weight_decay(group)[self.schedules.start :], kept=1 - lost)

    def so_far(self, group: int) -> tuple[Array, Array]:
        """Effective steps, and the share of the initial weights, after each step of the run.

        Σc and Σc² of all steps so far decay with every step: Σc ← aΣc + η, Σc² ← a²Σc² + η².
        """
        lr, lost = self._steps(group)
        key = lr.tobytes(), lost.tobytes()  # groups with one schedule are worked out once
        if key not in self._done:
            a, steps = 1 - lost, len(lr)
            with np.errstate(all="ignore"):
                eta = lr / (lr.max(initial=0.0) or 1.0)
                total = scan("first_order", a, eta, outputs=1, steps=steps)[0]
                square = scan("first_order", a * a, eta**2, outputs=1, steps=steps)[0]
                effective = np.where(square > 0, total**2 / square, 0.0)
            self._done[key] = effective, np.asarray(np.cumprod(a), np.float64)
        return self._done[key]

    def _steps(self, group: int) -> tuple[Array, Array]:
        """Lr, and the share of the weights that decay takes, at each step of the run."""
        start = self.schedules.start
        lr, wd = self.schedules.lr(group)[start:], self.schedules.weight_decay(group)[start:]
        known = self._groups[group].dynamics if group < len(self._groups) else Dynamics()
        with np.errstate(all="ignore"):
            return lr, known.decay_share(lr, wd)

    @property
    def now(self) -> list[GroupNow]:
        """Every group as it is after the last step."""
        found = []
        for g in self.schedules.groups:
            lr, wd = self.schedules.lr(g), self.schedules.weight_decay(g)
            if len(lr) > self.schedules.start:
                effective, left = self.so_far(g)
                peak = float(self.schedules.change_points("lr", g)[1].max())
                found.append(GroupNow(float(lr[-1]), peak, float(wd[-1]), float(effective[-1]), float(left[-1])))
        return found
