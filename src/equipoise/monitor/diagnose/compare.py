"""`compare`: a measured tensor or neuron next to its forecast."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise._check import number
from equipoise.monitor.diagnose.attribute import QUANTITIES, Case, Measured, Predicted, Spans
from equipoise.monitor.runs.recorded import recorded
from equipoise.monitor.runs.schedule_points import Schedules
from equipoise.monitor.store.layout import Column
from equipoise.monitor.store.run import Run

Array = NDArray[np.float64]

POINTS = 500
"""About how many points of a tensor are compared, however long the run."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """A measured tensor or neuron beside its forecasts; arrays have an entry for each measured step.

    Attributes:
        tensor: name of the tensor.
        neuron: which of its neurons; None for the whole.
        steps: the measured steps.
        norm: ‖w‖ after the step, as measured.
        rotation: rotation per step, as measured.
        update: ‖U‖, as measured.
        stages: the plain forecast, then with measured size, then with the radial part, then with correlation, too.
        known: whether theory knows the optimizer. If not, the nearest that it knows was taken.
    """

    tensor: str
    neuron: int | None
    steps: NDArray[np.int64]
    norm: Array
    rotation: Array
    update: Array
    stages: tuple[Predicted, ...]
    known: bool

    @property
    def plain(self) -> Predicted:
        """The forecast from settings alone."""
        return self.stages[0]

    @property
    def attributed(self) -> Predicted:
        """The forecast with all that was measured."""
        return self.stages[-1]

    def effects(self, since: float = 0.5) -> dict[str, float]:
        """By how much the norm is larger for each reason: mean log ratios over the later part of the run.

        "c_err", "radial" and "correlation" are the three stages, "left" is what they do not explain, and "gap" is their
        sum: the log of the measured norm over the plain forecast's.

        Args:
            since: share of the measured steps to leave out at the start.
        """
        late = slice(int(len(self.steps) * number("since", since, low=0, high=1, open_high=True)), None)
        logs = [np.log(s.norm[late]) for s in self.stages] + [np.log(self.norm[late])]
        named = ("c_err", "radial", "correlation", "left") if len(self.stages) > 1 else ("left",)
        with np.errstate(all="ignore"):
            parts = {n: _mean(b - a) for n, a, b in zip(named, logs[:-1], logs[1:], strict=True)}
        return {name: parts.get(name, 0.0) for name in ("c_err", "radial", "correlation", "left")} | {
            "gap": _mean(logs[-1] - logs[0])
        }

    def __repr__(self) -> str:
        where = self.tensor if self.neuron is None else f"{self.tensor}, neuron {self.neuron}"
        if not len(self.steps):
            return f"Comparison({where}: nothing was measured)"
        if not self.known:
            where += ", whose optimizer the theory does not know"
        effects = self.effects()
        reasons = ", ".join(f"{name} {math.expm1(effects[name]):+.1%}" for name in effects if name != "gap")
        return (
            f"Comparison({where}: {len(self.steps):,} steps to {self.steps[-1]:,}; norm at the end {self.norm[-1]:.4g}"
            f", forecast {self.plain.norm[-1]:.4g}; over the later half {math.expm1(effects['gap']):+.1%}: {reasons})"
        )

    @property
    def shares(self) -> dict[str, float]:
        """The share of the gap that each reason explains; NaN where there is hardly a gap (below 0.5 %)."""
        effects = self.effects()
        gap = effects.pop("gap")
        return {name: value / gap if abs(gap) > 0.005 else float("nan") for name, value in effects.items()}


def compare(run: Run, tensor: str, *, neuron: int | None = None, points: int | None = POINTS) -> Comparison:
    """Lay one tensor, or one of its sampled neurons, over its forecast.

    Args:
        run: the run.
        tensor: name of the tensor.
        neuron: a sampled neuron (`run.tensors[tensor].neurons`) instead of the whole tensor.
        points: about how many points at most; None for every measured step.

    Raises:
        ValueError: no such tensor or neuron, or the run does not know its optimizer.
    """
    return Comparer(run).compare(tensor, neuron=neuron, points=points)


class Comparer:
    """Makes comparisons of one run; reads settings and schedules once.

    Args:
        run: the run.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.groups = recorded(run)
        self.tensors = run.tensors
        self.columns = set(run.columns)
        self.schedules = Schedules(run)
        self.last = self.schedules.last
        """Up to this step: the run may be written while it is read."""
        self._done: dict[Any, tuple[float, Predicted]] = {}

    def compare(self, tensor: str, *, neuron: int | None = None, points: int | None = POINTS) -> Comparison:
        """Lay a tensor or neuron over its forecast, as the function `compare` does."""
        self._check(tensor, neuron)
        case = self.cases([tensor], points, neuron=neuron).get(tensor)
        if case is None:
            raise ValueError(f"tensor = {tensor!r}: nothing was measured of it")
        seen, known = case.seen, case.dynamics.known
        return Comparison(tensor, neuron, seen.steps, seen.norm, seen.rotation, seen.update, case.stages(), known)

    def cases(
        self, tensors: Iterable[str], points: int | None = POINTS, *, neuron: int | None = None
    ) -> dict[str, Case]:
        """What was measured of tensors beside their settings; without those of which too little is known.

        Args:
            tensors: their names.
            points: about how many points of each at most.
            neuron: which neuron of each, instead of the whole.
        """
        known = [t for t in tensors if self.tensors[t].group < len(self.groups)]
        names = [t for t in known if all(Column(q, t, neuron=neuron) in self.columns for q in QUANTITIES)]
        read = Measured.read(self.run, names, within=self.schedules, points=points, neuron=neuron) if names else []
        found = {}
        for name, seen in zip(names, read, strict=True):
            if len(seen.steps):
                info = self.tensors[name]
                found[name] = Case(seen, info, neuron, self.groups[info.group].dynamics, self.schedules)
        return found

    def forecasts(self, tensors: Sequence[str], spans: Spans) -> dict[str, Predicted]:
        """The plain forecasts of many tensors at the cost of a few; those without one are left out.

        So are those that began at 0: they grow by what the gradients have in common, which no walk knows.

        Args:
            tensors: their names.
            spans: measured steps; forecasts are averaged over each stretch.
        """
        by_gradient = {i for i, group in enumerate(self.groups) if group.dynamics.by_gradient}
        found: dict[str, Predicted] = {}
        for points, needs in ((POINTS, True), (1, False)):  # others need only the norm that they began with
            infos = [self.tensors[t] for t in tensors]
            names = [t.name for t in infos if t.info.get("init_norm") != 0 and (t.group in by_gradient) == needs]
            found |= {name: case.plain(self._done, spans) for name, case in self.cases(names, points).items()}
        return {name: p for name, p in found.items() if np.isfinite(p.norm).any() or np.isfinite(p.rotation).any()}

    def _check(self, tensor: str, neuron: int | None) -> None:
        if tensor not in self.tensors:
            if not self.tensors:
                raise ValueError(f"tensor = {tensor!r}: the run has none yet; train and watch at least one step")
            some = ", ".join(list(self.tensors)[:3])
            raise ValueError(
                f"tensor = {tensor!r}: must be one of the run's {len(self.tensors)} tensors, such as {some}"
            )
        info = self.tensors[tensor]
        if neuron is not None and neuron not in info.neurons:
            raise ValueError(f"neuron = {neuron}: must be a sampled neuron of {tensor}: {list(info.neurons)}")
        if info.group >= len(self.groups):
            raise ValueError(f"{self.run.path}: the run does not say what its optimizer was, so there is no forecast")


class Latest:
    """Rotation over its plain forecast at the last measured step, for a screen that looks again and again.

    It is what `run.compare` has there. Forecasts are made anew when twenty times as long as they took has passed; the
    ratio is then that of the step at which they were made.

    Args:
        run: the run; it may still be written.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._found: dict[str, float] = {}
        self._due = 0.0

    def __call__(self, names: Sequence[str]) -> dict[str, float]:
        """The ratio of each tensor that has a forecast."""
        start = time.monotonic()
        if start >= self._due or not set(names) <= self._found.keys():
            self._found = dict.fromkeys(names, float("nan")) | self._ratios(names)
            self._due = time.monotonic() + 20 * (time.monotonic() - start)
        return {name: self._found[name] for name in names if math.isfinite(self._found[name])}

    def _ratios(self, names: Sequence[str]) -> dict[str, float]:
        last = self._run.coverage.last
        spans = Spans(np.array([last]), np.zeros(1, np.int64))
        found = Comparer(self._run).forecasts(names, spans)
        columns = [Column("rotation", name) for name in found]
        if not columns:
            return {}
        row = self._run.table(columns, kind="main", start=last, stop=last + 1).values[-1]
        with np.errstate(all="ignore"):
            return {n: float(r / found[n].rotation[0]) for n, r in zip(found, row, strict=True)}


def _mean(x: Array) -> float:
    x = x[np.isfinite(x)]
    return float(x.mean()) if len(x) else float("nan")
