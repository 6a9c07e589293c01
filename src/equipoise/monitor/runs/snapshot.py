"""A snapshot of a run: the newest numbers and the worst layers. Needs no torch."""

from __future__ import annotations

import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from equipoise import _check
from equipoise.finding import Finding
from equipoise.monitor.diagnose.ranking import deviation
from equipoise.monitor.forward.quantities import FORWARD, extremes
from equipoise.monitor.runs.final_loss import Best, Final
from equipoise.monitor.runs.recorded import taken_as
from equipoise.monitor.runs.schedule_points import GroupNow, Remembered
from equipoise.monitor.store.layout import LOG, Column
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.tables import Coverage, from_log

SHOWN = ("norm", "rotation", "relative_update", "total_decay", "c_err", "angle")
"""What is shown of a layer."""

SORTS = ("worst", "name", "model", *SHOWN)
"""Orders of the layers: the worst first, by name, as in the model, or by a quantity, the largest first."""

LOGGED = 256
"""Logged rows to look back for the newest number of each name."""

POINTS = 24
"""Points of a layer's history."""

Predict = Callable[[Sequence[str]], Mapping[str, float]]
"""Gives rotation over what theory predicts, at the last measured step, for the layers that it can."""


@dataclass(frozen=True)
class Layer:
    """One layer now.

    Attributes:
        name: of the tensor.
        shape: of the tensor.
        values: the quantities of `SHOWN`; NaN where not measured.
        ratio: rotation over the median of all matrices.
        predicted: rotation over what theory predicts; None where it does not.
        history: rotation over the whole run.
    """

    name: str
    shape: tuple[int, ...]
    values: Mapping[str, float]
    ratio: float
    predicted: float | None = None
    history: tuple[float, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """A run now.

    Attributes:
        path: of the run.
        status: of the run.
        step: the last step that was taken.
        age: seconds since the last row.
        numbers: of the whole run, by name.
        coverage: how many steps were taken and measured; the layers' numbers are of the last measured one.
        groups: lr, weight decay and memory of each group.
        logged: what the loop logged last, by name.
        final: how the training loss ended so far.
        best: the best validation loss so far.
        findings: of the run.
        layers: those that were asked for, in the order that was asked for.
        names: of all tensors.
        hidden: how many of the layers were left out.
        others: how many tensors were not asked for.
        taken_as: what the run is taken as, where it is fine-tuning.
        forward: of each quantity of the forward pass the value to look at, and its module.
    """

    path: str
    status: str
    step: int | None
    age: float | None
    numbers: Mapping[str, float] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=lambda: Coverage(0, 0, 0))
    groups: Sequence[GroupNow] = ()
    logged: Mapping[str, float] = field(default_factory=dict)
    final: Final | None = None
    best: Best | None = None
    findings: Sequence[Finding] = ()
    layers: Sequence[Layer] = ()
    names: Sequence[str] = ()
    hidden: int = 0
    others: int = 0
    taken_as: str | None = None
    forward: Mapping[str, tuple[float, str]] = field(default_factory=dict)


class SnapshotReader:
    """Looks at a run again and again, at the cost of what is new and of the layers that are shown.

    Args:
        run: the run.
        layers: a pattern of names, as `*attn*`, or a part of them. Default: all matrices.
        sort: one of `SORTS`.
        predict: what theory predicts; see `Predict`. Default: there is no such column, and worst is against the median.
    """

    def __init__(
        self, run: Run, *, layers: str | None = None, sort: str = "worst", predict: Predict | None = None
    ) -> None:
        self._run, self._predict = run, predict
        self._pattern = layers
        self._sort = _check.choice("--sort", sort, SORTS)
        self._rows, self._logs = run.follow(), run.follow(LOG)
        self._rows.skip(keep=1)
        self._logs.skip(keep=LOGGED)
        self._passes = run.follow(FORWARD)
        self._passes.skip(keep=1)
        self._forward: Mapping[str, tuple[float, str]] = {}
        self._columns: dict[Column, int] = {}
        self._row: NDArray[np.float64] = np.empty(0)
        self._logged: dict[str, tuple[int, float]] = {}
        self._last: tuple[int, float] | None = None
        self._groups: list[GroupNow] = []
        self._due = 0.0

    def now(self, top: int = 20) -> Snapshot:
        """Look.

        Args:
            top: how many layers to show.
        """
        self._read()
        run = self._run
        coverage = run.coverage
        step, age = (None, None) if self._last is None else (coverage.taken, max(0.0, time.time() - self._last[1]))
        numbers = {c.quantity: self._at(c) for c in self._columns if c.tensor is None}
        layers, others = self._layers()
        shown = self._with_history(layers[:top])
        return Snapshot(
            str(run.path), run.status, step, age, numbers, coverage,
            self._now_groups(), {n: v for n, (_, v) in self._logged.items()},
            run.final, run.best, run.findings, shown, list(run.tensors), len(layers) - len(shown), others,
            taken_as(run.meta), self._forward,
        )  # fmt: skip

    def _now_groups(self) -> list[GroupNow]:
        """Every group now; made anew when twenty times as long as it took has passed."""
        start = time.monotonic()
        if start >= self._due:
            self._groups = Remembered(self._run).now
            self._due = time.monotonic() + 20 * (time.monotonic() - start)
        return self._groups

    def _read(self) -> None:
        """Take in what is new."""
        while new := self._rows.read():
            for rows in new:
                self._columns, self._row = rows.layout.places, rows.values[-1].astype(np.float64)
                self._saw(int(rows.steps[-1]), float(rows.times[-1]), rows.rewound)
        while new := self._passes.read():
            self._forward = extremes(zip(new[-1].layout.columns, new[-1].values[-1].tolist(), strict=True))
        while new := self._logs.read():
            for rows in new:
                if rows.rewound is not None:
                    self._logged = {n: (s, v) for n, (s, v) in self._logged.items() if s <= rows.rewound}
                for step, row in zip(rows.steps.tolist(), rows.values, strict=True):
                    there = ~np.isnan(row)
                    names = [c.quantity for c, is_there in zip(rows.layout.columns, there, strict=True) if is_there]
                    self._logged |= {n: (step, float(v)) for n, v in zip(names, from_log(row[there]), strict=True)}
                self._saw(int(rows.steps[-1]), float(rows.times[-1]), rows.rewound)

    def _saw(self, step: int, when: float, rewound: int | None) -> None:
        if self._last is None or rewound is not None or step >= self._last[0]:
            self._last = step, when

    def _at(self, column: Column) -> float:
        place = self._columns.get(column)
        return float("nan") if place is None else float(self._row[place])

    def _layers(self) -> tuple[list[Layer], int]:
        """The layers that are asked for, in order, and how many are not."""
        tensors = self._run.tensors
        matrices = [name for name, t in tensors.items() if len(t.shape) > 1] or list(tensors)
        names = matrices if self._pattern is None else [name for name in tensors if _fits(name, self._pattern)]
        rotation = {name: self._at(Column("rotation", name)) for name in {*names, *matrices}}
        among = np.array([rotation[name] for name in matrices])
        median = float(np.nanmedian(among)) if np.isfinite(among).any() else float("nan")
        # A forecast says nothing of weights that were trained before.
        told = self._predict if taken_as(self._run.meta) is None else None
        predicted = told(names) if told is not None and len(self._row) else {}
        # A layer without a forecast is held against the others.
        ratio = {name: predicted.get(name, rotation[name] / median if median else np.nan) for name in names}
        found = [
            Layer(
                name,
                tensors[name].shape,
                {q: self._at(Column(q, name)) for q in SHOWN},
                rotation[name] / median if median else float("nan"),
                predicted.get(name),
            )
            for name in names
        ]
        far = deviation(np.array([ratio[n] for n in names]), 1.0)
        order = {layer.name: -score for layer, score in zip(found, far.tolist(), strict=True)}
        if self._sort == "worst":
            found.sort(key=lambda layer: order[layer.name])
        elif self._sort == "name":
            found.sort(key=lambda layer: layer.name)
        elif self._sort != "model":
            found.sort(key=lambda layer: _largest_first(layer.values[self._sort]))
        return found, len(tensors) - len(names)

    def _with_history(self, layers: Sequence[Layer]) -> list[Layer]:
        columns = [Column("rotation", layer.name) for layer in layers]
        columns = [column for column in columns if column in self._columns]
        if not columns:
            return list(layers)
        table = self._run.table(columns, kind="main", points=POINTS, fine=16 * POINTS)
        history = {c.tensor: table.values[:, i][table.count[:, i] > 0] for i, c in enumerate(columns)}
        made = []
        for layer in layers:
            over = tuple(float(v) for v in history.get(layer.name, ()))
            made.append(Layer(layer.name, layer.shape, layer.values, layer.ratio, layer.predicted, over))
        return made


def _fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern) or (not set(pattern) & set("*?[") and pattern in name)


def _largest_first(value: float) -> float:
    return float("inf") if np.isnan(value) else -value
