"""The input of the checks: measured series of all tensors, their settings, and how long they had to settle."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.diagnose.attribute import QUANTITIES, Case
from equipoise.monitor.diagnose.checks_loss import training
from equipoise.monitor.diagnose.compare import Comparer
from equipoise.monitor.runs.recorded import START, taken_as
from equipoise.monitor.store.layout import Column
from equipoise.monitor.store.run import Run

Array = NDArray[np.float64]

POINTS = 400
"""About so many points of each series are looked at, however long the run."""

SETTLED = 1.5
"""Decay that has added up to this leaves 5 % of the initial gap in ‖w‖²: e^−3."""

LATE, FEWEST = 0.75, 5
"""The state of a run is that of the steps after this share of it, and of at least so many measured ones."""

WANTED = (*QUANTITIES, "change", "angle", "relative_update", "grad_momentum_cos", "momentum_norm", "dead")
SHARES = (0.1, 0.5, 0.9)


class Evidence:
    """The series of a run, as arrays of time × tensors; NaN where something was not measured.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.comparer = Comparer(run)
        self.groups = self.comparer.groups
        known = set(run.columns)
        tensors = run.tensors
        self.names = [n for n in tensors if Column("norm", n) in known]
        self.tensors = [tensors[n] for n in self.names]
        self.rotates = np.array([len(t.shape) > 1 for t in self.tensors], dtype=bool)
        self.dense = self.rotates & np.array([t.role != "embedding" for t in self.tensors], dtype=bool)
        """Matrices whose every row gets a gradient at each step; an embedding's do not."""
        self.matrices = np.flatnonzero(self.rotates).tolist()
        self.layers: list[int] = np.flatnonzero(self.dense).tolist()
        self.group = np.array([t.group for t in self.tensors], dtype=int)
        self.start = np.array([t.info.get("init_norm", np.nan) for t in self.tensors], dtype=float)
        """Norms that tensors began with; 0 for those that began at 0, NaN where it is not known."""
        columns = [Column(q, n) for q in WANTED for n in self.names]
        columns += [Column(q, n, quantile=s) for q in ("rotation", "grad_norm") for s in SHARES for n in self.names]
        columns = [c for c in columns if c in known]
        self._table = run.table(columns, kind="main", stop=self.comparer.last + 1, points=POINTS) if columns else None
        self._places = {c: i for i, c in enumerate(columns)}
        self.steps: NDArray[np.int64] = self._table.steps if self._table else np.empty(0, np.int64)

    # Series

    def mean(self, quantity: str, quantile: float | None = None) -> Array:
        """The means of a quantity at each point, a column for each tensor."""
        return self._of("values", quantity, quantile)

    def high(self, quantity: str, quantile: float | None = None) -> Array:
        """The largest values of a quantity at each point."""
        return self._of("high", quantity, quantile)

    def _of(self, part: str, quantity: str, quantile: float | None) -> Array:
        out = np.full((len(self.steps), len(self.names)), np.nan)
        for i, name in enumerate(self.names):
            place = self._places.get(Column(quantity, name, quantile))
            if place is not None and self._table is not None:
                out[:, i] = getattr(self._table, part)[:, place]
        return out

    @cached_property
    def late(self) -> NDArray[np.bool_]:
        """Which points tell the present state."""
        return self.steps >= min(LATE * self.last, self.steps[-FEWEST:].min(initial=self.last))

    @property
    def last(self) -> int:
        """The last measured step."""
        return int(self.steps[-1]) if len(self.steps) else 0

    def late_mean(self, quantity: str, quantile: float | None = None) -> Array:
        """The mean of a quantity over the late points, for each tensor; NaN where there is none."""
        values = self.mean(quantity, quantile)[self.late]
        there = np.isfinite(values)
        with np.errstate(all="ignore"):
            return np.where(there, values, 0.0).sum(0) / there.sum(0)

    @cached_property
    def loss_fell(self) -> float | None:
        """By which share of itself the training loss fell; None where none was logged."""
        loss = training(self.run)
        first = 0.0 if loss is None else float(np.median(loss.values[: loss.few]))
        return (first - loss.end) / abs(first) if loss is not None and first else None

    # Settings

    def place(self, step: int) -> int:
        """Where a step is in arrays of all steps, which may begin later than the run."""
        return max(0, int(step) - 1 - self.comparer.schedules.start)

    def hyper(self, name: str, group: int) -> Array:
        """The "lr" or "weight_decay" of a group at every step; `place` says where a step is."""
        schedules = self.comparer.schedules
        return schedules.lr(group) if name == "lr" else schedules.weight_decay(group)

    def lost(self, group: int) -> Array:
        """The share of the weights that decay takes at every step, of a group."""
        return self.groups[group].dynamics.decay_share(self.hyper("lr", group), self.hyper("weight_decay", group))

    @cached_property
    def members(self) -> dict[int, list[int]]:
        """The tensors of each group."""
        found: dict[int, list[int]] = {}
        for i, g in enumerate(self.group.tolist()):
            found.setdefault(g, []).append(i)
        return found

    @cached_property
    def _overshoots(self) -> list[bool]:
        return [bool((self.lost(g) >= 1).any()) for g in range(len(self.groups))]

    @cached_property
    def folds(self) -> Array:
        """The decay of each tensor, added up to each measured step."""
        out = np.zeros((len(self.steps), len(self.names)))
        places = [self.place(step) for step in self.steps]
        for i in set(self.group.tolist()):
            if i < len(self.groups):
                out[:, self.group == i] = np.cumsum(self.lost(i))[places, None]
        return out

    def forecasts(self, i: int) -> bool:
        """Whether theory knows what tensor i should do, and its norm is free to do it."""
        if self.group[i] >= len(self.groups) or self._overshoots[self.group[i]]:
            return False
        known = self.groups[self.group[i]].dynamics
        return known.known and known.forecasts(len(self.tensors[i].shape))

    def settled(self, i: int) -> bool:
        """Whether tensor i had the time to come near its equilibrium before the late part of the run."""
        early = self.folds[~self.late, i]
        return self.forecasts(i) and len(early) > 0 and bool(early[-1] >= SETTLED)

    @cached_property
    def _cases(self) -> dict[str, Case]:
        return self.comparer.cases(self.names, POINTS)

    def case(self, i: int) -> Case | None:
        """The forecast of tensor i; None where too little was measured of it."""
        return self._cases.get(self.names[i])

    @property
    def finetune(self) -> bool:
        """Whether the run goes on from weights that were trained before."""
        return taken_as(self.run.meta) is not None

    @property
    def mostly_untrained(self) -> bool:
        """Whether most parameters of the model do not train: what does is an adapter, or a new head."""
        kept = self.meta(START)
        frozen = kept.get("frozen") if isinstance(kept, dict) else 0
        sizes = sum(int(np.prod(t.shape, dtype=np.int64)) for t in self.tensors)
        return isinstance(frozen, int) and frozen > sizes

    def meta(self, key: str) -> Any:
        """A word of the run's metadata; None where there is none."""
        return self.run.meta.get(key)
