"""Curves made of curves: warmup, join, scale, product, sum, clip."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from equipoise import _check
from equipoise._check import Array
from equipoise.schedules.base import Schedule, joint_end
from equipoise.schedules.curves import blend


@final
@dataclass(frozen=True, repr=False)
class Warmup(Schedule):
    """A ramp before a curve; made by `warmup`."""

    schedule: Schedule
    steps: int
    start: float = 0.0

    name = "warmup"

    def __post_init__(self) -> None:
        _check_schedule("schedule", self.schedule)
        self._set(steps=_check.whole("steps", self.steps, low=1), start=_check.number("start", self.start, low=0))

    def _end(self) -> int | None:
        return None if self.schedule.end is None else self.steps + self.schedule.end

    def _still_from(self) -> int | None:
        still = self.schedule._still_from()
        return None if still is None else self.steps + still

    @property
    def _rises_until(self) -> int | None:
        rises = self.schedule._rises_until
        return None if rises is None else self.steps + rises

    def _at(self, t: Array) -> Array:
        goal = float(self.schedule._at(np.zeros(1))[0])
        ramp = blend(np.minimum(t / self.steps, 1), goal, self.start)
        return np.where(t <= self.steps, ramp, self.schedule._at(np.maximum(t - self.steps, 0)))


def warmup(schedule: Schedule, steps: int, *, start: float = 0.0) -> Schedule:
    """A linear ramp to where the curve starts, then the curve, later by as many steps.

        t ≤ W:  start + (s(0) − start) · t/W
        t > W:  s(t − W)

    The first step is not 0 and step W has the full value. To lay a warmup over a curve without shifting it, multiply:
    `s * warmup(constant(), W)`.

    Args:
        schedule: the curve s; its own steps count from the end of the warmup.
        steps: W ≥ 0; with 0 the curve is returned as it is.
        start: the value that the ramp starts from.

    >>> from equipoise.schedules import constant
    >>> warmup(constant(), 4).values(5).tolist()
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    _check_schedule("schedule", schedule)
    return Warmup(schedule, steps, start) if _check.whole("steps", steps) else schedule


@final
@dataclass(frozen=True, repr=False)
class Join(Schedule):
    """Curves one after the other; made by `join`."""

    schedules: tuple[Schedule, ...]
    at: tuple[int, ...]

    name = "join"

    def __post_init__(self) -> None:
        from equipoise.schedules.phases import rising_steps

        _check_schedules(self.schedules)
        at = rising_steps("at", self.at)
        if len(at) != len(self.schedules) - 1:
            raise ValueError(f"at has {len(at)} steps: must have {len(self.schedules) - 1}, one between two schedules")
        self._set(schedules=tuple(self.schedules), at=at)

    def _end(self) -> int | None:
        last = self.schedules[-1].end
        return None if last is None else (self.at[-1] if self.at else 0) + last

    def _still_from(self) -> int | None:
        last = self.schedules[-1]._still_from()
        return None if last is None else (self.at[-1] if self.at else 0) + last

    @property
    def _rises_until(self) -> int | None:
        last = self.schedules[-1]._rises_until
        return None if last is None else (self.at[-1] if self.at else 0) + last

    def _at(self, t: Array) -> Array:
        piece = np.searchsorted(self.at, t)
        out = np.empty(len(t))
        for i, schedule in enumerate(self.schedules):
            own = piece == i
            if own.any():
                out[own] = schedule._at(t[own] - (self.at[i - 1] if i else 0))
        return out

    def _render(self, *, short: bool) -> str:
        return f"join({', '.join(s._render(short=short) for s in self.schedules)}, at={list(self.at)})"


def join(*schedules: Schedule, at: Sequence[int]) -> Schedule:
    """Curves one after the other; each begins with its own first step.

        s(t) = s_i(t − at_{i−1})    for at_{i−1} < t ≤ at_i

    Args:
        *schedules: the curves.
        at: the last step of each curve but the last, rising.

    >>> from equipoise.schedules import constant, linear
    >>> join(constant(), linear(2), at=[2]).values(5).tolist()
    [1.0, 1.0, 0.5, 0.0, 0.0]
    """
    return Join(schedules, tuple(at))


@dataclass(frozen=True, repr=False)
class Changed(Schedule):
    """A curve whose values are changed, each by itself, and in the same order of size."""

    schedule: Schedule

    def _end(self) -> int | None:
        return self.schedule.end

    def _still_from(self) -> int | None:
        return self.schedule._still_from()

    @property
    def _rises_until(self) -> int | None:
        return self.schedule._rises_until


@dataclass(frozen=True, repr=False)
class SideBySide(Schedule):
    """Curves of the same steps, put together by an operation."""

    schedules: tuple[Schedule, ...]

    together: ClassVar[np.ufunc]

    def __post_init__(self) -> None:
        _check_schedules(self.schedules)
        self._set(schedules=tuple(self.schedules))

    def _end(self) -> int | None:
        return joint_end(self.schedules)

    def _still_from(self) -> int | None:
        return joint_end(self.schedules, ended=True)

    @property
    def _rises_until(self) -> int | None:
        """Where curves ≥ 0 have all stopped rising, so have their product and their sum."""
        rises = [s._rises_until for s in self.schedules]
        known = [r for r in rises if r is not None]
        return max(known) if len(known) == len(rises) else None

    def _at(self, t: Array) -> Array:
        return functools.reduce(self.together, (schedule._at(t) for schedule in self.schedules))

    def _render(self, *, short: bool) -> str:
        return f"{self.name}({', '.join(s._render(short=short) for s in self.schedules)})"


@final
@dataclass(frozen=True, repr=False)
class Scale(Changed):
    """A curve times a number; made by `scale` or `2 * s`."""

    factor: float

    name = "scale"

    def __post_init__(self) -> None:
        _check_schedule("schedule", self.schedule)
        self._set(factor=_check.number("factor", self.factor, low=0))

    def _at(self, t: Array) -> Array:
        return self.factor * self.schedule._at(t)


def scale(schedule: Schedule, factor: float) -> Schedule:
    """A curve times a number; the same as `factor * schedule`.

    >>> from equipoise.schedules import linear
    >>> (0.1 * linear(2)).values().tolist()
    [0.05, 0.0]
    """
    return Scale(schedule, factor)


@final
@dataclass(frozen=True, repr=False)
class Product(SideBySide):
    """Curves multiplied; made by `product` or `a * b`."""

    name = "product"
    together = np.multiply


def product(*schedules: Schedule) -> Schedule:
    """Curves multiplied step by step; `a * b` for two.

    >>> from equipoise.schedules import constant, linear, warmup
    >>> product(linear(4), warmup(constant(), 2)).values().tolist()
    [0.375, 0.5, 0.25, 0.0]
    """
    return Product(schedules)


@final
@dataclass(frozen=True, repr=False)
class Add(SideBySide):
    """Curves added; made by `add` or `a + b`."""

    name = "add"
    together = np.add


def add(*schedules: Schedule) -> Schedule:
    """Curves added step by step; `a + b` for two.

    >>> from equipoise.schedules import constant, linear
    >>> add(linear(2), constant(0.5)).values().tolist()
    [1.0, 0.5]
    """
    return Add(schedules)


@final
@dataclass(frozen=True, repr=False)
class Clip(Changed):
    """A curve held between two values; made by `clip`."""

    low: float | None = None
    high: float | None = None

    name = "clip"

    def __post_init__(self) -> None:
        _check_schedule("schedule", self.schedule)
        low = None if self.low is None else _check.number("low", self.low, low=0)
        high = None if self.high is None else _check.number("high", self.high, low=0)
        if low is not None and high is not None and low > high:
            raise ValueError(f"low = {low!r}: must be ≤ high = {high!r}")
        self._set(low=low, high=high)

    def _at(self, t: Array) -> Array:
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        return np.clip(self.schedule._at(t), low, high)


def clip(schedule: Schedule, low: float | None = None, high: float | None = None) -> Schedule:
    """A curve held between two values.

    Args:
        schedule: the curve.
        low: the smallest value, or None.
        high: the largest value, or None.

    >>> from equipoise.schedules import linear
    >>> clip(linear(4), low=0.3).values().tolist()
    [0.75, 0.5, 0.3, 0.3]
    """
    return Clip(schedule, low, high)


def _check_schedule(name: str, value: object) -> None:
    if not isinstance(value, Schedule):
        raise ValueError(f"{name} = {value!r}: must be a Schedule, such as constant, cosine or from_array return")


def _check_schedules(values: Sequence[object]) -> None:
    if len(values) == 0:
        raise ValueError("schedules = (): must be one Schedule or more")
    for i, value in enumerate(values):
        _check_schedule(f"schedules[{i}]", value)
