"""The plain curves: constant, linear, polynomial, exponential, cosine, inverse square root.

Letters: t = step, T = `steps`, x = t/T the progress, held at 1 after the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from equipoise import _check
from equipoise._check import Array
from equipoise.schedules.base import Schedule


def blend(c: Array, start: float, end: float) -> Array:
    """c·start + (1−c)·end, which is exactly `start` at c = 1, `end` at c = 0, and constant where the two are equal."""
    return np.where(c == 1, start, end + (start - end) * c)


def fall(shape: str, x: Array) -> Array:
    """How much is left at progress x: exactly 1 at x = 0 and 0 at x = 1."""
    match shape:
        case "linear":
            return 1 - x
        case "1-sqrt":
            return 1 - np.sqrt(x)
        case _:
            return 0.5 * (1 + np.cos(np.pi * x))


@final
@dataclass(frozen=True, repr=False)
class Constant(Schedule):
    """One value for ever; made by `constant`."""

    peak: float = 1.0

    name = "constant"

    def __post_init__(self) -> None:
        self._set(peak=_check.number("peak", self.peak, low=0))

    def _still_from(self) -> int:
        return 1

    def _at(self, t: Array) -> Array:
        return np.full(len(t), self.peak)


def constant(peak: float = 1.0) -> Schedule:
    """The same value at every step.

    Args:
        peak: the value.

    >>> constant(0.1).values(3).tolist()
    [0.1, 0.1, 0.1]
    """
    return Constant(peak)


@final
@dataclass(frozen=True, repr=False)
class Linear(Schedule):
    """A straight line; made by `linear`."""

    steps: int
    peak: float = 1.0
    final: float = 0.0

    name = "linear"

    def __post_init__(self) -> None:
        _check_span(self)

    def _end(self) -> int:
        return self.steps

    def _at(self, t: Array) -> Array:
        return blend(fall("linear", np.minimum(t / self.steps, 1)), self.peak, self.final)


def linear(steps: int, *, peak: float = 1.0, final: float = 0.0) -> Schedule:
    """A straight line from `peak` before the first step to `final` at the last.

        s(t) = final + (peak − final)(1 − t/T)

    Args:
        steps: T, the step at which the curve ends.
        peak: the value that it starts from. It may be below `final`: then the line rises.
        final: the value at step T and after.

    >>> linear(4).values().tolist()
    [0.75, 0.5, 0.25, 0.0]
    """
    return Linear(steps, peak, final)


@final
@dataclass(frozen=True, repr=False)
class Polynomial(Schedule):
    """A power of what is left; made by `polynomial`."""

    steps: int
    power: float
    peak: float = 1.0
    final: float = 0.0

    name = "polynomial"

    def __post_init__(self) -> None:
        _check_span(self)
        self._set(power=_check.number("power", self.power, low=0, open_low=True))

    def _end(self) -> int:
        return self.steps

    def _at(self, t: Array) -> Array:
        return blend(fall("linear", np.minimum(t / self.steps, 1)) ** self.power, self.peak, self.final)


def polynomial(steps: int, *, power: float, peak: float = 1.0, final: float = 0.0) -> Schedule:
    """A power of the part of the run that is left.

        s(t) = final + (peak − final)(1 − t/T)^power

    Args:
        steps: T, the step at which the curve ends.
        power: > 0; 1 is `linear`, 2 falls fast at first, 0.5 at last.
        peak: the value that it starts from.
        final: the value at step T and after.

    >>> polynomial(4, power=2).values().tolist()
    [0.5625, 0.25, 0.0625, 0.0]
    """
    return Polynomial(steps, power, peak, final)


@final
@dataclass(frozen=True, repr=False)
class Exponential(Schedule):
    """The same ratio at every step; made by `exponential`."""

    steps: int
    final: float
    peak: float = 1.0

    name = "exponential"

    def __post_init__(self) -> None:
        self._set(
            steps=_check.whole("steps", self.steps, low=1),
            peak=_check.number("peak", self.peak, low=0, open_low=True),
            final=_check.number("final", self.final, low=0, open_low=True),
        )

    def _end(self) -> int:
        return self.steps

    def _at(self, t: Array) -> Array:
        x = np.minimum(t / self.steps, 1)
        return np.where(x == 1, self.final, self.peak * (self.final / self.peak) ** x)


def exponential(steps: int, *, final: float, peak: float = 1.0) -> Schedule:
    """The same ratio at every step, from `peak` before the first to `final` at the last.

        s(t) = peak · (final/peak)^(t/T)

    Args:
        steps: T, the step at which the curve ends.
        final: the value at step T and after, > 0. For a ratio γ a step it is peak·γ^T.
        peak: the value that it starts from, > 0.

    >>> exponential(2, final=0.01).values().round(12).tolist()
    [0.1, 0.01]
    """
    return Exponential(steps, final, peak)


@final
@dataclass(frozen=True, repr=False)
class Cosine(Schedule):
    """Half a cosine; made by `cosine`."""

    steps: int
    peak: float = 1.0
    final: float = 0.0

    name = "cosine"

    def __post_init__(self) -> None:
        _check_span(self)

    def _end(self) -> int:
        return self.steps

    def _at(self, t: Array) -> Array:
        return blend(fall("cosine", np.minimum(t / self.steps, 1)), self.peak, self.final)


def cosine(steps: int, *, peak: float = 1.0, final: float = 0.0) -> Schedule:
    """Half a cosine from `peak` before the first step to `final` at the last.

        s(t) = final + (peak − final) · ½(1 + cos(πt/T))

    Args:
        steps: T, the step at which the curve ends.
        peak: the value that it starts from.
        final: the value at step T and after.

    Reference: [loshchilov2017], Eq. 5, with the step counted from 1, so that the last is `final`.

    >>> cosine(2).values().tolist()
    [0.5, 0.0]
    """
    return Cosine(steps, peak, final)


@final
@dataclass(frozen=True, repr=False)
class InverseSqrt(Schedule):
    """One over the root of time; made by `inverse_sqrt`."""

    timescale: float
    peak: float = 1.0

    name = "inverse_sqrt"

    def __post_init__(self) -> None:
        self._set(
            timescale=_check.number("timescale", self.timescale, low=0, open_low=True),
            peak=_check.number("peak", self.peak, low=0),
        )

    @property
    def _rises_until(self) -> int:
        return 1

    def _at(self, t: Array) -> Array:
        return self.peak * np.sqrt(self.timescale / (self.timescale + t))


def inverse_sqrt(timescale: float, *, peak: float = 1.0) -> Schedule:
    """One over the root of time, without an end.

        s(t) = peak · √(τ / (τ + t))

    After a warmup of τ steps, `warmup(inverse_sqrt(τ), τ)`, this is peak·√(τ/t) in steps of the whole run.

    Args:
        timescale: τ > 0, in steps; after 3τ steps half of the peak is left.
        peak: the value that it starts from.

    Reference: [vaswani2017] Eq. 3.

    >>> inverse_sqrt(100)(300)
    0.5
    """
    return InverseSqrt(timescale, peak)


def _check_span(curve: Linear | Polynomial | Cosine) -> None:
    curve._set(
        steps=_check.whole("steps", curve.steps, low=1),
        peak=_check.number("peak", curve.peak, low=0),
        final=_check.number("final", curve.final, low=0),
    )
