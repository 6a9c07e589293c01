"""The curves with phases: steps, restarts, one cycle, warmup–stable–decay, and the everyday combinations."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from equipoise import _check
from equipoise._check import Array
from equipoise.schedules import compose, curves
from equipoise.schedules.base import Schedule
from equipoise.schedules.curves import blend, fall

TAILS = ("linear", "1-sqrt", "cosine")
"""How `wsd` may fall: in a line, as 1 − √x, or as half a cosine."""


@final
@dataclass(frozen=True, repr=False)
class Step(Schedule):
    """Constant between milestones; made by `step`."""

    milestones: tuple[int, ...] = ()
    every: int = 0
    factor: float = 0.1
    peak: float = 1.0

    name = "step"

    def __post_init__(self) -> None:
        if bool(self.every) == bool(len(tuple(self.milestones))):
            raise ValueError(f"milestones = {self.milestones!r} and every = {self.every!r}: must give one of the two")
        self._set(
            milestones=rising_steps("milestones", self.milestones),
            every=_check.whole("every", self.every),
            factor=_check.number("factor", self.factor, low=0),
            peak=_check.number("peak", self.peak, low=0),
        )

    def _still_from(self) -> int | None:
        return self.milestones[-1] + 1 if self.milestones else None

    @property
    def _rises_until(self) -> int | None:
        return 1 if self.factor <= 1 else self._still_from()

    def _at(self, t: Array) -> Array:
        if self.every:
            drops = np.maximum(t - 1, 0) // self.every
        else:
            drops = np.searchsorted(self.milestones, t).astype(np.float64)
        return self.peak * self.factor**drops


def step(
    *, milestones: Sequence[int] = (), every: int | None = None, factor: float = 0.1, peak: float = 1.0
) -> Schedule:
    """Constant between milestones, and multiplied by `factor` after each.

        s(t) = peak · factor^k,    k = the number of milestones < t, or ⌊(t−1)/every⌋

    so the first milestone, or the first `every`, is the number of steps with the first value.

    Args:
        milestones: rising steps after which the value changes.
        every: or: it changes after each so many steps.
        factor: what it is multiplied by, ≥ 0.
        peak: the first value.

    >>> step(milestones=[2, 3], factor=0.5).values(4).tolist()
    [1.0, 1.0, 0.5, 0.25]
    >>> step(every=2, factor=0.5).values(4).tolist()
    [1.0, 1.0, 0.5, 0.5]
    """
    return Step(tuple(milestones), 0 if every is None else _check.whole("every", every, low=1), factor, peak)


@final
@dataclass(frozen=True, repr=False)
class CosineRestarts(Schedule):
    """Cosines one after the other; made by `cosine_restarts`."""

    period: int
    growth: int = 1
    factor: float = 1.0
    peak: float = 1.0
    final: float = 0.0

    name = "cosine_restarts"

    def __post_init__(self) -> None:
        self._set(
            period=_check.whole("period", self.period, low=1),
            growth=_check.whole("growth", self.growth, low=1),
            factor=_check.number("factor", self.factor, low=0, open_low=True),
            peak=_check.number("peak", self.peak, low=0),
            final=_check.number("final", self.final, low=0),
        )

    def _at(self, t: Array) -> Array:
        before = np.maximum(t - 1, 0)
        if self.growth == 1:
            cycle = before // self.period
            start, length = cycle * self.period, np.full(len(t), float(self.period))
        else:
            starts = [0.0, float(self.period)]
            while starts[-1] <= before.max(initial=0):
                starts.append(starts[-1] * self.growth + self.period)
            cycle = np.searchsorted(starts, before, side="right") - 1
            start, length = np.array(starts)[cycle], np.diff(starts)[cycle]
        c = fall("cosine", (t - start) / length)
        peak = self.peak * self.factor ** cycle.astype(np.float64)
        return np.where(c == 1, peak, self.final + (peak - self.final) * c)


def cosine_restarts(
    period: int, *, growth: int = 1, factor: float = 1.0, peak: float = 1.0, final: float = 0.0
) -> Schedule:
    """Cosines one after the other, each from the peak to `final`, without an end.

    With cycle i of length L_i = period·growth^i and s its own step 1 … L_i,

        s(t) = final + (peak·factor^i − final) · ½(1 + cos(πs/L_i))

    Args:
        period: steps of the first cycle.
        growth: how many times as long each next cycle is, a whole number ≥ 1.
        factor: what the peak is multiplied by at each restart, > 0.
        peak: the value that the first cycle starts from.
        final: the value at the last step of each cycle.

    Reference: [loshchilov2017], with the step counted from 1, so that each cycle ends in `final`.

    >>> cosine_restarts(2, growth=2).values(6).round(3).tolist()
    [0.5, 0.0, 0.854, 0.5, 0.146, 0.0]
    """
    return CosineRestarts(period, growth, factor, peak, final)


@final
@dataclass(frozen=True, repr=False)
class OneCycle(Schedule):
    """Up and down once; made by `one_cycle`."""

    steps: int
    warmup: int
    start: float
    final: float
    peak: float = 1.0
    anneal: str = "cosine"

    name = "one_cycle"

    def __post_init__(self) -> None:
        T = _check.whole("steps", self.steps, low=2)
        self._set(
            steps=T,
            warmup=_before_end("warmup", self.warmup, T),
            start=_check.number("start", self.start, low=0),
            final=_check.number("final", self.final, low=0),
            peak=_check.number("peak", self.peak, low=0),
            anneal=_check.choice("anneal", self.anneal, ("cosine", "linear")),
        )

    def _end(self) -> int:
        return self.steps

    def _at(self, t: Array) -> Array:
        W, T = self.warmup, self.steps
        up = blend(fall(self.anneal, 1 - np.minimum(t / max(W, 1), 1)), self.peak, self.start)
        down = blend(fall(self.anneal, np.clip((t - W) / (T - W), 0, 1)), self.peak, self.final)
        return np.where(t <= W, up, down)


def one_cycle(
    steps: int,
    *,
    warmup: int | None = None,
    peak: float = 1.0,
    start: float | None = None,
    final: float | None = None,
    anneal: str = "cosine",
) -> Schedule:
    """Up from `start` to `peak`, then down to `final`, each as half a cosine (or a line).

        t ≤ W:  start + (peak − start) · ½(1 − cos(πt/W))
        t > W:  final + (peak − final) · ½(1 + cos(π(t−W)/(T−W)))

    For momentum, which cycles the other way, give a `peak` below `start`: one_cycle(T, start=.95, peak=.85, final=.95).

    Args:
        steps: T, the step at which the curve ends.
        warmup: W, the step of the peak. Default: 30 % of the steps.
        peak: the value at step W.
        start: the value that it starts from. Default: peak/25.
        final: the value at step T and after. Default: start/10000.
        anneal: "cosine" or "linear".

    Reference: [smith2018].

    >>> one_cycle(4, warmup=2, start=0.2, final=0.0).values().round(9).tolist()
    [0.6, 1.0, 0.5, 0.0]
    """
    top = _check.number("peak", peak, low=0)
    low = top / 25 if start is None else start
    rise = round(0.3 * _check.whole("steps", steps, low=2)) if warmup is None else warmup
    return OneCycle(steps, rise, low, low / 1e4 if final is None else final, top, anneal)


@final
@dataclass(frozen=True, repr=False)
class WarmupStableDecay(Schedule):
    """Warmup, a plateau, a tail; made by `wsd`."""

    steps: int
    warmup: int
    decay: int
    peak: float = 1.0
    final: float = 0.0
    tail: str = "linear"

    name = "wsd"

    def __post_init__(self) -> None:
        T = _check.whole("steps", self.steps, low=1)
        W, D = _check.whole("warmup", self.warmup), _check.whole("decay", self.decay)
        if W + D > T:
            raise ValueError(f"warmup + decay = {W} + {D}: must be ≤ steps = {T}")
        self._set(
            steps=T,
            warmup=W,
            decay=D,
            peak=_check.number("peak", self.peak, low=0),
            final=_check.number("final", self.final, low=0),
            tail=_check.choice("tail", self.tail, TAILS),
        )

    def _end(self) -> int:
        return self.steps

    def _at(self, t: Array) -> Array:
        W, D = self.warmup, self.decay
        up = blend(np.minimum(t / max(W, 1), 1), self.peak, 0.0)
        x = np.clip((t - (self.steps - D)) / max(D, 1), 0, 1)
        return np.where(t < W, up, blend(fall(self.tail, x), self.peak, self.final))


def wsd(
    steps: int,
    *,
    warmup: int = 0,
    decay: int | None = None,
    peak: float = 1.0,
    final: float = 0.0,
    tail: str = "linear",
) -> Schedule:
    """Warmup, a plateau at the peak, and a tail to `final` over the last steps.

        t ≤ W:       peak · t/W
        t ≤ T − D:   peak
        else:        final + (peak − final) · f(x),   x = (t − (T − D))/D,   f = 1 − x, 1 − √x or ½(1 + cos πx)

    Args:
        steps: T, the step at which the curve ends.
        warmup: W, steps of linear warmup.
        decay: D, steps of the tail. Default: 20 % of the steps.
        peak: the value of the plateau.
        final: the value at step T and after.
        tail: "linear", "1-sqrt" or "cosine".

    Reference: [hu2024]; the 1−sqrt tail: [hagele2024].

    >>> wsd(8, warmup=2, decay=4).values().tolist()
    [0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    fifth = round(0.2 * _check.whole("steps", steps, low=1)) if decay is None else decay
    return WarmupStableDecay(steps, warmup, fifth, peak, final, tail)


def warmup_cosine(steps: int, *, warmup: int, peak: float = 1.0, final: float = 0.0) -> Schedule:
    """Linear warmup over the first steps of the run, then half a cosine to `final` at its last.

        t ≤ W:  peak · t/W
        t > W:  final + (peak − final) · ½(1 + cos(π(t−W)/(T−W)))

    Args:
        steps: T, the steps of the whole run, warmup included.
        warmup: W < T, the step of the peak.
        peak: the value at step W.
        final: the value at step T and after.

    >>> warmup_cosine(1000, warmup=100, peak=0.01, final=0.001)([1, 100, 1000]).tolist()
    [0.0001, 0.01, 0.001]
    """
    W = _before_end("warmup", warmup, _check.whole("steps", steps, low=1))
    return compose.warmup(curves.cosine(steps - W, peak=peak, final=final), W)


def warmup_linear(steps: int, *, warmup: int, peak: float = 1.0, final: float = 0.0) -> Schedule:
    """Linear warmup over the first steps of the run, then a straight line to `final` at its last.

        t ≤ W:  peak · t/W
        t > W:  final + (peak − final)(T − t)/(T − W)

    Args:
        steps: T, the steps of the whole run, warmup included.
        warmup: W < T, the step of the peak.
        peak: the value at step W.
        final: the value at step T and after.

    >>> warmup_linear(6, warmup=2).values().tolist()
    [0.5, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    W = _before_end("warmup", warmup, _check.whole("steps", steps, low=1))
    return compose.warmup(curves.linear(steps - W, peak=peak, final=final), W)


def rising_steps(name: str, value: Sequence[int]) -> tuple[int, ...]:
    """Whole steps ≥ 1, each larger than the one before."""
    steps = tuple(_check.whole(f"{name}[{i}]", s, low=1) for i, s in enumerate(value))
    if any(a >= b for a, b in itertools.pairwise(steps)):
        raise ValueError(f"{name} = {list(steps)}: must rise from each to the next")
    return steps


def _before_end(name: str, value: int, steps: int) -> int:
    part = _check.whole(name, value)
    if part >= steps:
        raise ValueError(f"{name} = {part}: must be a whole number in [0, {steps}), as steps = {steps}")
    return part
