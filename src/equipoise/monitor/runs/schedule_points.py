"""Learning rate and weight decay of every step, and the memory that follows from them. Needs no torch."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

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

LONGEST = 2_000_000
"""Schedules, forecasts and memory are worked out for so many steps at most, the last ones: what they need goes with the
number of steps, and a row may say any number."""

KEPT = 1 << 26
"""Bytes of schedules that are kept; what was used longest ago is worked out anew."""

FINE = 1000
"""Points of each straight line at which decay is added up where there are too many steps."""


class _Kept:
    """Arrays by key, as many as `KEPT` bytes hold."""

    def __init__(self) -> None:
        self._held: dict[Hashable, tuple[Array, ...]] = {}

    def get(self, key: Hashable, make: Callable[[], tuple[Array, ...]]) -> tuple[Array, ...]:
        """What is kept under a key, or is made now."""
        found = self._held.pop(key, None)
        self._held[key] = found = make() if found is None else found
        while len(self._held) > 1 and sum(x.nbytes for arrays in self._held.values() for x in arrays) > KEPT:
            del self._held[next(iter(self._held))]
        return found


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
    """Learning rate and weight decay of each group at every step, of the last two million at most.

    They are known at the ends of straight lines, which every step was compared with; where a run has none, at the
    measured steps. Between those they are taken to lie on straight lines.

    Args:
        run: the run.
        last: the last step of all arrays. Default: the last that was taken.
    """

    def __init__(self, run: Run, last: int | None = None) -> None:
        self._run = run
        coverage = run.coverage
        self.begin = coverage.start
        """The step before the run's first."""
        self.last = coverage.taken if last is None else last
        self.start = max(self.begin, self.last - LONGEST)
        """The step before the first of all arrays."""
        self._known = set(run.columns)
        self._points: dict[str, list[Points]] | None = None
        self._kept = _Kept()
        self._found: dict[tuple[str, int], tuple[Points, Hashable]] = {}

    @property
    def groups(self) -> list[int]:
        """The groups whose lr is known."""
        parts = [c.quantity.partition("/") for c in self._known if c.tensor is None]
        return sorted({int(g) for name, _, g in parts if name in ("lr", "lr_knot") and g.isdecimal()})

    def lr(self, group: int) -> Array:
        """The learning rate of a group: entry t is of step `start` + t + 1; 0 before the group was there."""
        return self._values("lr", group)

    def weight_decay(self, group: int) -> Array:
        """The weight decay of a group."""
        return self._values("weight_decay", group)

    def change_points(self, name: str, group: int) -> Points:
        """The steps at which "lr" or "weight_decay" is known, and its values there.

        Measured values are taken where the ends of lines do not reach: of the last steps of a run on its way.
        """
        return self._points_of(name, group)[0]

    def signature(self, name: str, group: int) -> Hashable:
        """The same for groups with the same values."""
        return self._points_of(name, group)[1]

    def _points_of(self, name: str, group: int) -> tuple[Points, Hashable]:
        if (name, group) not in self._found:
            steps, values = self._change_points(name, group)
            late = self._stored_as(name, group) is not None
            self._found[name, group] = (steps, values), (late, steps.tobytes(), values.tobytes())
        return self._found[name, group]

    def _stored_as(self, name: str, group: int) -> list[Points] | None:
        return self._stored().get(f"{name}_knot/{group}")

    def _change_points(self, name: str, group: int) -> Points:
        stored = self._stored_as(name, group) or []
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
        def make() -> tuple[Array, ...]:
            return (self.at(name, group, np.arange(self.start + 1, self.last + 1)),)

        return self._kept.get(self.signature(name, group), make)[0]

    def at(self, name: str, group: int, steps: NDArray[Any]) -> Array:
        """The "lr" or "weight_decay" of a group at some steps, which may be before `start`."""
        at, values = self.change_points(name, group)
        left = None if self._stored_as(name, group) is None else 0.0  # a group that came late did nothing before
        return np.interp(steps, at, values, left=left) if len(at) else np.zeros(len(steps))


class Remembered:
    """What each step that a run took has left in the weights, from the lr and decay of every step.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self.schedules = Schedules(run)
        self._groups = recorded(run)
        self._kept = _Kept()

    def of(self, group: int) -> Memory | None:
        """The memory of a group; None where lr is not known, or decay overshoots, so that there is nothing to say.

        Of a run of more than `LONGEST` steps it is that of the last ones.
        """
        lr, lost = self._steps(group)
        usable = np.isfinite(lr) & (lr >= 0) & (lost < 1)
        if not usable.all() or not lr.any():
            return None
        return memory(lr=lr, weight_decay=self.schedules.weight_decay(group), kept=1 - lost)

    def so_far(self, group: int) -> tuple[Array, Array]:
        """Effective steps, and the share of the initial weights, after each step of the schedules' arrays.

        Σc and Σc² of all steps so far decay with every step: Σc ← aΣc + η, Σc² ← a²Σc² + η².
        """
        key = (self._dynamics(group), *(self.schedules.signature(name, group) for name in ("lr", "weight_decay")))

        def make() -> tuple[Array, ...]:
            lr, lost = self._steps(group)
            a, steps = 1 - lost, len(lr)
            with np.errstate(all="ignore"):
                eta = lr / (lr.max(initial=0.0) or 1.0)
                total = scan("first_order", a, eta, outputs=1, steps=steps)[0]
                square = scan("first_order", a * a, eta**2, outputs=1, steps=steps)[0]
                effective = np.where(square > 0, total**2 / square, 0.0)
                return effective, self._left_before(group) * np.asarray(np.cumprod(a), np.float64)

        effective, left = self._kept.get(key, make)
        return effective, left

    def _left_before(self, group: int) -> float:
        """The share of the initial weights that was left where the schedules' arrays begin.

        Lr and decay lie on straight lines: logarithms are added up along them by the trapezoidal rule.
        """
        schedules = self.schedules
        first, last = schedules.begin + 1, schedules.start
        if last < first:
            return 1.0
        ends = np.concatenate([schedules.change_points(n, group)[0] for n in ("lr", "weight_decay")])
        ends = np.unique(np.clip([*ends, first, last], first, last)).astype(np.float64)
        if 1 < len(ends) < FINE:
            ends = np.unique(np.concatenate([np.linspace(a, b, FINE) for a, b in pairwise(ends)]))
        lr, wd = (schedules.at(name, group, ends) for name in ("lr", "weight_decay"))
        with np.errstate(all="ignore"):
            logs = np.log1p(-np.clip(self._dynamics(group).decay_share(lr, wd), 0.0, 1.0))
            return float(np.exp(np.trapezoid(logs, ends) + (logs[0] + logs[-1]) / 2))

    def _dynamics(self, group: int) -> Dynamics:
        return self._groups[group].dynamics if group < len(self._groups) else Dynamics()

    def _steps(self, group: int) -> tuple[Array, Array]:
        """Lr, and the share of the weights that decay takes, at each step of the schedules' arrays."""
        lr, wd = self.schedules.lr(group), self.schedules.weight_decay(group)
        with np.errstate(all="ignore"):
            return lr, self._dynamics(group).decay_share(lr, wd)

    @property
    def now(self) -> list[GroupNow]:
        """Every group as it is after the last step."""
        found = []
        for g in self.schedules.groups:
            lr, wd = self.schedules.lr(g), self.schedules.weight_decay(g)
            if len(lr):
                effective, left = self.so_far(g)
                peak = float(self.schedules.change_points("lr", g)[1].max())
                found.append(GroupNow(float(lr[-1]), peak, float(wd[-1]), float(effective[-1]), float(left[-1])))
        return found
