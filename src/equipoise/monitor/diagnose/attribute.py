"""Forecasts of one measured tensor or neuron, plain and attributed, which split the gap into causes.

The plain forecast knows the settings alone: a random walk. The attributed one is the same recursion with three things
that were measured, one after the other ([theory] 2):

    size         C_err(t): how large updates are beside a random walk's (for SGD: gradients too)
    radial       λ_u(t): the part of the gradient along the weights, as more decay ([kosson2024] appendix L)
    correlation  what is left of the radial part of the updates: gradients that are correlated over time, and for Adam
                 the part along the weights that dividing by √v makes
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.runs.schedule_points import Schedules
from equipoise.monitor.store.layout import Column, TensorInfo
from equipoise.monitor.store.run import Run
from equipoise.theory import Dynamics, Forecast
from equipoise.theory._scan import run_recursion as scan

Array = NDArray[np.float64]

QUANTITIES = ("norm", "rotation", "update", "grad_norm", "radial_change", "grad_weight_cos")
"""What must have been measured."""

ROUNDS = 3
"""How often updates are matched: each round the forecast's come nearer to the measured ones."""


@dataclass(frozen=True)
class Predicted:
    """A forecast at the measured steps.

    Attributes:
        norm: ‖w‖ after the step.
        rotation: angle that the step turns the weights by.
        update: ‖U‖, the length of the gradient part of the step, with L2 where that goes through the gradient.
    """

    norm: Array
    rotation: Array
    update: Array


@dataclass(frozen=True)
class Spans:
    """Stretches of measured steps that a forecast is averaged over, as the measured numbers of a summary are.

    Attributes:
        steps: the measured steps of all stretches.
        starts: where in them each stretch begins; no stretch is empty.
    """

    steps: NDArray[np.int64]
    starts: NDArray[np.int64]

    def mean(self, values: Array, first: int) -> Array:
        """The mean of each stretch, over its steps from the first that there is a value of; NaN where there is none.

        Args:
            values: one a step.
            first: the step of the first of them.
        """
        at = self.steps - first
        there = (at >= 0) & (at < len(values))
        taken = np.where(there, values[np.clip(at, 0, len(values) - 1)], 0.0)
        with np.errstate(all="ignore"):
            return np.add.reduceat(taken, self.starts) / np.add.reduceat(there.astype(float), self.starts)


@dataclass(frozen=True)
class Measured:
    """What was measured of a tensor or neuron, in double precision."""

    steps: NDArray[np.int64]
    norm: Array
    rotation: Array
    update: Array
    grad_norm: Array
    radial_change: Array
    grad_weight_cos: Array

    @staticmethod
    def read(
        run: Run, names: Sequence[str], *, within: Schedules, points: int | None, neuron: int | None = None
    ) -> list[Measured]:
        """Read some tensors of a run, or one neuron of each.

        Args:
            run: the run.
            names: of the tensors.
            within: only at steps whose lr is known: a run may be written while it is read.
            neuron: which neuron.
            points: about how many points at most; the first and the last measured step are always among them.
        """
        columns = [Column(q, name, neuron=neuron) for name in names for q in QUANTITIES]
        tables = [run.table(columns, kind="main", start=within.start + 1, stop=within.last + 1, points=points)]
        if tables[0].level:  # forecasts start where the tensor was first seen, and the end is what is asked
            ends = [*tables[0].first[:1].tolist(), *tables[0].last[-1:].tolist()]
            tables += [run.table(columns, kind="main", start=step, stop=step + 1) for step in ends]
        steps, rows = np.unique(np.concatenate([t.steps for t in tables]), return_index=True)
        values = np.concatenate([t.values for t in tables]).astype(np.float64)[rows]
        found = []
        for one in values.reshape(len(steps), len(names), len(QUANTITIES)).swapaxes(0, 1):
            there = np.isfinite(one[:, :2]).all(1) & (one[:, 0] > 0)
            found.append(Measured(steps[there], *one[there].T))
        return found

    @property
    def before(self) -> Array:
        """‖w‖ before the step: w + Δ has the length ‖w‖ + r along w."""
        return np.maximum(self.norm * np.cos(self.rotation) - self.radial_change, 1e-300)


class Case:
    """One tensor or neuron, the settings it has, and its forecasts."""

    def __init__(
        self, seen: Measured, info: TensorInfo, neuron: int | None, dynamics: Dynamics, schedules: Schedules
    ) -> None:
        self.seen, self.dynamics, self.group = seen, dynamics, info.group
        self.first = int(seen.steps[0])
        self.at = seen.steps - self.first
        self._schedules, self._place = schedules, self.first - 1 - schedules.start
        self.shape, self.size, self.part = tuple(info.shape), math.prod(info.shape), 1.0
        ndim = len(self.shape)
        self._forecasts = dynamics.forecasts(ndim)
        if neuron is not None:
            rows = self.shape[0] if ndim > 1 else 1
            self.size //= rows
            if dynamics.layout(self.shape) is None:
                self.shape = (1, self.size)
            else:  # a row of Muon's update is a row of the whole tensor's, and has its share of the norm
                self.part = 1 / math.sqrt(rows)
        self.scale = dynamics.scale_of(self.shape)
        self.init_norm = float(seen.before[0]) / self.part
        # The loss of a layer that begins at 0 depends on its norm: its gradients have a size of their own.
        rotates = info.role not in ("gain", "bias") if info.role else ndim > 1
        self.scale_invariant = rotates and info.info.get("init_norm") != 0
        self.grad_norm = self._grad_norm() if dynamics.by_gradient else 1.0

    @property
    def lr(self) -> Array:
        """The learning rate of each step from the first; not kept, as there may be many tensors."""
        return self._schedules.lr(self.group)[self._place :]

    @property
    def weight_decay(self) -> Array:
        """The weight decay of each step from the first."""
        return self._schedules.weight_decay(self.group)[self._place :]

    @property
    def unit(self) -> Array | float:
        """What gradients are multiplied by to be those at unit norm: ‖w‖, or nothing where they do not depend on it."""
        return self.seen.before if self.scale_invariant else 1.0

    def _grad_norm(self) -> float:
        """g̃ of the later half: while rows of unlike gradients are on their way, ‖g‖‖w‖ of the whole is larger."""
        sizes = (self.seen.grad_norm * self.unit)[len(self.seen.steps) // 2 :] ** 2
        sizes = sizes[np.isfinite(sizes) & (sizes > 0)]
        return float(np.sqrt(sizes.mean())) if len(sizes) else 1.0

    @property
    def overshoots(self) -> bool:
        """Whether a step's decay takes the whole weight or more, so that there is nothing to forecast."""
        return bool((self.dynamics.decay_share(self.lr, self.weight_decay) >= 1).any())

    def plain(self, done: dict[Any, tuple[float, Predicted]] | None = None, spans: Spans | None = None) -> Predicted:
        """What is expected from settings alone, from the first measured step on; NaN where theory does not know it.

        Args:
            done: forecasts of other tensors of the run, each with its first norm, which those that start alike share.
            spans: give means over these instead of the values at the measured steps.
        """
        if self.dynamics.move == "constrain" or self.overshoots:
            nothing = np.full(len(self.at) if spans is None else len(spans.starts), np.nan)
            return Predicted(nothing, nothing, nothing)
        if done is None or not self.dynamics.by_size:
            return self._predicted(self._forecast(), spans)
        # Where directions have a size for each weight, norms go with the root of the number of weights.
        start = self.init_norm
        alike = (self.scale_invariant, f"{start / np.sqrt(self.size):.2e}")
        key = (self.group, self.first, self.at.tobytes() if spans is None else id(spans), *alike)
        if key not in done:
            done[key] = start, self._predicted(self._forecast(), spans)
        theirs, found = done[key]
        factor = start / theirs
        return Predicted(found.norm * factor, found.rotation, found.update * factor)

    def _predicted(self, f: Forecast, spans: Spans | None = None) -> Predicted:
        update = f.update
        if self.dynamics.coupled:
            update = np.hypot(f.norm * np.sin(f.rotation), f.radial * f.before)
        parts = (f.norm * self.part, f.rotation, update * self.part)
        return Predicted(*(x[self.at] if spans is None else spans.mean(x, self.first) for x in parts))

    @cached_property
    def equilibrium(self) -> Predicted:
        """Norm and rotation at which lr and weight decay of each measured step would settle."""
        norm, rotation, update = self.dynamics.equilibrium(
            self.shape, lr=self.lr[self.at], weight_decay=self.weight_decay[self.at], grad_norm=self.grad_norm
        )
        return Predicted(norm * self.part, rotation, update * self.part)

    def gap(self, folds: float) -> float:
        """How far ‖w‖² should still be from its equilibrium, as a share of it.

        Args:
            folds: the decay so far, added up.
        """
        end = self.equilibrium.norm[-1]
        return abs((self.init_norm * self.part / end) ** 2 - 1) * math.exp(-2 * folds)

    def stages(self) -> tuple[Predicted, ...]:
        """The four forecasts; the plain one alone where norms are not free, or nothing is left of the weights."""
        if not self._forecasts or self.overshoots:
            return (self.plain(),)
        none, plain = np.zeros(len(self.lr)), self._forecast()
        if self.dynamics.optimizer == "adam_l2":  # followed weight by weight: nothing is matched, and it takes no drift
            start = self._every((self.seen.grad_norm * self.unit / self.grad_norm) ** 2)
            radial = self._forecast(scale=start, radial=self.along(start))
            return tuple(map(self._predicted, (plain, self._forecast(scale=start), radial, radial)))
        start = self._size(plain)
        radial = self.along(start)
        matched = (self._matched(start, none), self._matched(start, radial), self._matched(start, radial, drifts=True))
        return tuple(map(self._predicted, (plain, *matched)))

    def _matched(self, size: Array, radial: Array, *, drifts: bool = False) -> Forecast:
        """The forecast whose updates are as long as measured, and if it drifts have the measured radial part."""
        drift = np.zeros(len(self.lr))
        measured = self.seen.radial_change / self.seen.before
        for _ in range(ROUNDS):
            own = self._forecast(scale=size, radial=radial, drift=drift)
            size = size * self._size(own)
            if drifts:
                drift = self._drift(own, measured, radial, drift)
        return self._forecast(scale=size, radial=radial, drift=drift)

    def _drift(self, own: Forecast, measured: Array, radial: Array, drift: Array) -> Array:
        """The drift with which a forecast's radial part would be as measured, at the measured norm.

        Momentum pushes outwards by a length that does not depend on the norm, and decay, radial gradient and drift
        pull in by a share of it. Where decay is coupled, both go through momentum, and what differs is the next guess.
        Steps that are longer than the weights would ask for more than the whole of them, which has no end.
        """
        at, lr = self.at, self.lr[self.at]
        pull, push = np.zeros(len(at)), own.radial[at] + lr * drift[at]
        if not self.dynamics.coupled:
            pull = 1 - own.kept[at] + lr * radial[at]
            push = (push + pull) * (own.before[at] * self.part / self.seen.before) ** 2
        return self._every(np.clip(push - pull - measured, -1.0, 1.0 - pull) / np.where(lr > 0, lr, np.inf))

    def _forecast(self, *, scale: Array | float = 1.0, **more: Any) -> Forecast:
        return self.dynamics.forecast(
            self.shape, lr=self.lr, weight_decay=self.weight_decay, init_norm=self.init_norm, grad_norm=self.grad_norm,
            scale_invariant=self.scale_invariant, size=scale, **more,
        )  # fmt: skip

    def _every(self, values: Array) -> Array:
        """Values at the measured steps, at every step."""
        good = np.isfinite(values)
        if not good.any():
            return np.zeros(len(self.lr))
        return np.interp(np.arange(len(self.lr)), self.at[good], values[good])

    def _size(self, own: Forecast) -> Array:
        """By how much the squares of updates are larger than a forecast's: of their part across the weights.

        The part along them is matched by `radial` and `drift`.
        """
        seen, at = self.seen, self.at
        with np.errstate(all="ignore"):
            ratio = (seen.norm * np.sin(seen.rotation) / (own.norm * np.sin(own.rotation) * self.part)[at]) ** 2
            if self.dynamics.by_gradient and self.scale_invariant:  # of gradients at unit norm
                ratio = ratio * (seen.before / own.before[at]) ** 2
        return np.maximum(self._every(np.where(np.isfinite(ratio), ratio, np.nan)), 0.0)

    def along(self, size: Array) -> Array:
        """λ_u(t) of the gradient alone: its part along w, at the length that the optimizer gives it.

        Where decay is coupled the forecast takes it through momentum. Elsewhere it is averaged here as momentum does.
        """
        seen, known = self.seen, self.dynamics
        with np.errstate(all="ignore"):
            length = seen.grad_norm if known.by_gradient else np.sqrt(self.size * size[self.at]) * self.scale
            radial = self._every(seen.grad_weight_cos * (-length if known.maximize else length) / seen.before)
        if known.coupled:
            return radial
        beta = known.averaging
        own = 1.0 if known.by_gradient else 1.0 - beta  # SGD sums gradients, the others average them
        return scan("first_order", np.full(len(radial), beta), own * radial, outputs=1, steps=len(radial))[0]
