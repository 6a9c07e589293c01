"""Read what a page needs from a run, at about as many points as a screen can show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.board.pages.forward_view import ForwardData, read_forward
from equipoise.board.predict import predicted
from equipoise.board.words import by_severity
from equipoise.finding import Finding
from equipoise.monitor.diagnose.events import WENT_FIRST, Event
from equipoise.monitor.runs.directory import spelled
from equipoise.monitor.runs.final_loss import Best, Final
from equipoise.monitor.runs.recorded import taken_as
from equipoise.monitor.runs.schedule_points import Remembered
from equipoise.monitor.runs.short_names import natural
from equipoise.monitor.store.layout import LOG, Column, TensorInfo
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.tables import Coverage, Table
from equipoise.theory import Memory

Array = NDArray[Any]

OF_LAYERS = {
    "norm": "norm of the weights",
    "rotation": "rotation per step",
    "relative_update": "‖update‖/‖w‖",
    "effective_lr": "lr/‖w‖",
    "radial_decay": "radial part, as weight decay",
    "grad_weight_cos": "cosine of gradient and weights",
    "c_err": "update² relative to a random walk",
    "grad_norm": "norm of the gradient",
    "angle": "angle from the start",
}
"""What is shown of every layer, where it was measured."""

OF_SPECTRA = {
    "weight_stable_rank": "stable rank, weights",
    "weight_top": "largest singular value, weights",
    "weight_entropy": "entropy of spectrum, weights",
    "update_stable_rank": "stable rank, update",
    "update_entropy": "entropy of spectrum, update",
    "update_orthogonality": "update, distance from orthogonal",
}
"""What is shown of spectra, where it was measured."""

OF_GROUPS = {
    "lr": "learning rate",
    "weight_decay": "weight decay",
    "init_share": "initial weights left",
    "memory": "batches remembered",
}
"""What is shown of every parameter group."""

EVEN = 200
"""Points of a schedule at even distances, beside the ends of its straight lines."""

BAND = (0.1, 0.9)
"""Quantiles over neurons between which a band is drawn."""

NUMBERS = 280_000
"""Numbers of layers in a page: in base64 four bytes become 5.3, so that this is 1.5 MB at most."""

FEWEST = 60
"""Points of each layer, at least."""

CELLS = 2_000_000
"""Numbers that are read from the file at once."""


@dataclass(frozen=True)
class Curves:
    """Quantities over steps.

    Attributes:
        step: where they were measured.
        time: seconds since the run began.
        values: for each quantity one number a step, or one line of them for each tensor.
        low: smallest values, where several steps were put together.
        high: largest values.
    """

    step: Array
    time: Array
    values: dict[str, Array] = field(default_factory=dict)
    low: dict[str, Array] = field(default_factory=dict)
    high: dict[str, Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class RunData:
    """A run, as much of it as a page shows.

    Attributes:
        name: what to call it.
        status: of the run.
        meta: what its writer said.
        tensors: those that are shown, matrices first.
        known: how many were measured: of very many, those most off are shown.
        findings: the worst first.
        events: what left its usual course before the loss did, where that is a finding.
        reviewed: whether its numbers were looked at for findings.
        layers: of every tensor, one line each.
        schedule: what `OF_GROUPS` says of each group, as "lr/0", from every step that was taken.
        peaks: the largest lr and weight decay of each group, by name as there.
        remembered: what the main group's steps have left in the weights.
        logged: what the loop logged.
        spectra: of every tensor, seldom.
        forward: the forward pass.
        final: how the training loss ended so far.
        best: the best validation loss so far.
        coverage: how many steps were taken and measured.
        seconds: time from its beginning to the last row.
        since: when it began, in seconds since 1970.
    """

    name: str
    status: str
    meta: dict[str, Any]
    tensors: list[TensorInfo]
    known: int
    findings: list[Finding]
    events: list[Event]
    reviewed: bool
    layers: Curves
    schedule: Curves
    peaks: dict[str, float]
    remembered: Memory | None
    logged: Curves
    spectra: Curves
    forward: ForwardData
    final: Final | None
    best: Best | None
    coverage: Coverage
    seconds: float
    since: float

    @property
    def last(self) -> int:
        """The last step that was taken."""
        return self.coverage.taken

    @property
    def ratio(self) -> Array:
        """Rotation over its forecast; over the median matrix of the step where it is not held against one."""
        rotation = self.layers.values.get("rotation", np.empty((len(self.tensors), 0)))
        with np.errstate(all="ignore"):
            forecast = self.layers.values.get("rotation_forecast")
            if forecast is not None:
                return rotation / forecast  # NaN where there is none: nothing to be off from
            matrices = [i for i, t in enumerate(self.tensors) if len(t.shape) > 1] or list(range(len(self.tensors)))
            among = np.where(rotation[matrices] > 0, rotation[matrices], np.nan)
            middle = [np.median(r[np.isfinite(r)]) if np.isfinite(r).any() else np.nan for r in among.T]
            return rotation / np.array(middle)

    @property
    def finetune(self) -> bool:
        """Whether the weights were trained before."""
        return taken_as(self.meta) is not None

    @property
    def held_to_forecast(self) -> bool:
        """Whether layers are held against a forecast."""
        return "rotation_forecast" in self.layers.values

    def tokens(self, step: Array) -> Array | None:
        """Tokens or samples seen at a step, where that is known."""
        seen = self.logged.values.get("tokens")
        if seen is not None and np.isfinite(seen).any():
            there = np.isfinite(seen)
            return np.interp(step, self.logged.step[there], seen[there])
        each = self.meta.get("tokens_per_step")
        return step * float(each) if isinstance(each, int | float) and math.isfinite(each) else None


def gather(run: Run, name: str | None = None, *, numbers: int = NUMBERS, quick: bool = False) -> RunData:
    """Read what a page shows.

    Args:
        run: the run.
        name: what to call it; its directory's name if not given.
        numbers: how many numbers of layers may be shown.
        quick: leave out what takes long in a large run, forecasts and the diagnosis of its numbers.
    """
    columns = set(run.columns)
    known = [
        t for t in run.tensors.values() if Column("norm", t.name) in columns or Column("rotation", t.name) in columns
    ]
    status = run.status
    shown = sum(any(Column(q, t.name) in columns for t in known) for q in OF_LAYERS) + 6
    tensors = _most_off(run, columns, known, max(1, numbers // (shown * FEWEST)))
    tensors.sort(key=lambda t: (len(t.shape) < 2, natural(t.name)))
    points = int(np.clip(numbers / (max(1, len(tensors)) * shown), FEWEST, 400))
    start = run.started
    # The forecast is that of a random walk from random weights: it says nothing of weights that were trained before.
    layers = _main(run, columns, tensors, points, start, forecast=not quick and taken_as(run.meta) is None)
    final = run.final
    logged = _logged(run, final, start)
    seconds = max((float(c.time[-1]) for c in (layers, logged) if len(c)), default=0.0)
    memory = Remembered(run)
    findings = by_severity(run.findings if quick else run.diagnose())
    schedule, peaks = _schedule(memory, layers, logged)
    return RunData(
        name=spelled(name or run.path.resolve().name),
        status=status,
        meta=run.meta,
        tensors=tensors,
        known=len(known),
        findings=findings,
        events=run.events() if any(f.code == WENT_FIRST for f in findings) else [],
        reviewed=not quick,
        layers=layers,
        schedule=schedule,
        peaks=peaks,
        remembered=memory.of(main_group(tensors)),
        logged=logged,
        spectra=_spectra(run, columns, tensors, start),
        forward=read_forward(run, columns, start),
        final=final,
        best=run.best,
        coverage=run.coverage,
        seconds=seconds,
        since=start,
    )


def _most_off(run: Run, columns: set[Column], known: list[TensorInfo], most: int) -> list[TensorInfo]:
    """The matrices whose rotation at the end is furthest from the median, where a page has no room for all."""
    if len(known) <= most:
        return known
    rotation = {t.name: Column("rotation", t.name) for t in known if len(t.shape) > 1}
    rotation = {name: c for name, c in rotation.items() if c in columns}
    measured = run.coverage.last
    table = run.table(list(rotation.values()), kind="main", start=measured) if rotation and measured else None
    off = np.full(len(rotation), -1.0)
    if table is not None and len(table):
        with np.errstate(all="ignore"):
            last = np.log(table.values[-1].astype(np.float64))
            off = np.nan_to_num(np.abs(last - np.median(last[np.isfinite(last)])), nan=-1.0, posinf=np.inf)
    score = dict(zip(rotation, off.tolist(), strict=True))
    return sorted(known, key=lambda t: -score.get(t.name, -2.0))[:most]


def _main(
    run: Run, columns: set[Column], tensors: Sequence[TensorInfo], points: int, start: float, *, forecast: bool
) -> Curves:
    wanted: dict[tuple[str, int], Column] = {}
    for i, t in enumerate(tensors):
        for q in OF_LAYERS:
            wanted[q, i] = Column(q, t.name)
        for q in ("norm", "rotation"):
            for side, share in zip(("low", "high"), BAND, strict=True):
                wanted[f"{q}_{side}", i] = Column(q, t.name, quantile=share)
    found = {key: c for key, c in wanted.items() if c in columns}
    if not found or "main" not in run.kinds:
        return Curves(np.empty(0), np.empty(0))
    table = run.table(list(found.values()), kind="main", points=points, fine=_fine(points, len(found)))
    at = {c: i for i, c in enumerate(table.columns)}
    values: dict[str, Array] = {}
    for q in dict.fromkeys(q for q, _ in found):
        matrix = np.full((len(tensors), len(table)), np.nan, np.float32)
        for i in range(len(tensors)):
            if (q, i) in found:
                matrix[i] = table.values[:, at[found[q, i]]]
                if q.startswith("norm_"):  # of rows: as large as the whole if all rows were alike
                    matrix[i] *= math.sqrt(tensors[i].shape[0] if tensors[i].shape else 1)
        if np.isfinite(matrix).any():
            values[q] = matrix
    if forecast:
        _add_forecast(run, tensors, table, values)
    return Curves(table.steps, table.times - start, values)


def _add_forecast(run: Run, tensors: Sequence[TensorInfo], table: Table, values: dict[str, Array]) -> None:
    found = predicted(run, [t.name for t in tensors if len(t.shape) > 1], table)
    for q in ("norm", "rotation") if found else ():
        matrix = np.full((len(tensors), len(table)), np.nan, np.float32)
        for i, t in enumerate(tensors):
            if t.name in found:
                matrix[i] = getattr(found[t.name], q)
        values[f"{q}_forecast"] = matrix


def _logged(run: Run, final: Final | None, start: float, points: int = 800) -> Curves:
    first = None if final is None else final.name
    if LOG in run.kinds:
        mine, kind = None, LOG
    elif first is not None:
        mine, kind = [Column(first)], "main"
    else:
        return Curves(np.empty(0), np.empty(0))
    table = run.table(mine, kind=kind, points=points, fine=16 * points)
    names = [c.quantity for c in table.columns]
    order = sorted(range(len(names)), key=lambda i: (names[i] != first, i))[:12]
    parts = ({names[i]: part[:, i] for i in order} for part in (table.values, table.low, table.high))
    return Curves(table.steps, table.times - start, *parts)


def _schedule(memory: Remembered, *clocks: Curves) -> tuple[Curves, dict[str, float]]:
    """Settings and memory of each group over all steps, drawn at the ends of their straight lines and in between."""
    schedules = memory.schedules
    names = [(name, g) for name in ("lr", "weight_decay") for g in schedules.groups]
    points = {(name, g): schedules.change_points(name, g) for name, g in names}
    points = {key: (steps, values) for key, (steps, values) in points.items() if len(steps)}
    if not points:
        return Curves(np.empty(0), np.empty(0)), {}
    first, last = schedules.start + 1, schedules.last
    even = np.linspace(first, last, min(EVEN, last - first + 1)).round().astype(np.int64)
    at = np.unique(np.concatenate([even, *(_corners(*part) for part in points.values())]))
    at = at[(at >= first) & (at <= last)]
    values: dict[str, Array] = {}
    for name, g in points:
        dense = schedules.lr(g) if name == "lr" else schedules.weight_decay(g)
        values[f"{name}/{g}"] = dense[at - first]
    for g in schedules.groups:
        effective, left = memory.so_far(g)
        values |= {f"init_share/{g}": left[at - first], f"memory/{g}": effective[at - first]}
    known = [c for c in clocks if len(c)]
    steps, times = (np.concatenate([getattr(c, part) for c in known] or [np.zeros(1)]) for part in ("step", "time"))
    order = np.argsort(steps, kind="stable")
    peaks = {f"{name}/{g}": float(v.max()) for (name, g), (_, v) in points.items()}
    return Curves(at, np.interp(at, steps[order], times[order]), values), peaks


def _corners(steps: Array, values: Array) -> Array:
    """The points of a schedule; of very many, in each stretch the lowest and the highest."""
    if len(steps) <= 2 * EVEN:
        return steps
    stretches = np.array_split(np.arange(len(steps)), EVEN)
    return steps[[i for s in stretches for i in (s[np.argmin(values[s])], s[np.argmax(values[s])])]]


def main_group(tensors: Sequence[TensorInfo]) -> int:
    """The group with the most weights in matrices."""
    sizes: dict[int, int] = {}
    for t in tensors:
        weights = int(np.prod(t.shape)) if t.shape else 1
        sizes[t.group] = sizes.get(t.group, 0) + weights * (1 if len(t.shape) > 1 else 0)
    return max(sizes, key=lambda g: sizes[g], default=0)


def _spectra(run: Run, columns: set[Column], tensors: Sequence[TensorInfo], start: float, points: int = 120) -> Curves:
    wanted = [(q, i, c) for i, t in enumerate(tensors) for q in OF_SPECTRA if (c := Column(q, t.name)) in columns]
    if not wanted or "slow" not in run.kinds:
        return Curves(np.empty(0), np.empty(0))
    points = int(np.clip(NUMBERS / (4 * len(tensors) * len(OF_SPECTRA)), 20, points))
    table = run.table([c for *_, c in wanted], kind="slow", points=points, fine=_fine(points, len(wanted)))
    values = {q: np.full((len(tensors), len(table)), np.nan, np.float32) for q in OF_SPECTRA}
    for k, (q, i, _) in enumerate(wanted):
        values[q][i] = table.values[:, k]
    there = {q: v for q, v in values.items() if np.isfinite(v).any()}
    return Curves(table.steps, table.times - start, there)


def _fine(points: int, columns: int) -> int:
    """How many lines may be read for so many points."""
    return max(points, min(16 * points, CELLS // max(1, columns)))
