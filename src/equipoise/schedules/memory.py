"""Learning rates that give each batch a chosen contribution to the final weights.

With decoupled decay batch j contributes c_j = η_j Π_{i>j}(1 − η_iλ_i). These curves make c follow a wanted profile.
They are learning rates for one weight decay: scaled, shifted or multiplied they no longer have that memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from equipoise import _check, theory
from equipoise._check import Array
from equipoise.schedules.base import Schedule
from equipoise.schedules.table import from_array


@final
@dataclass(frozen=True, repr=False)
class EqualMemory(Schedule):
    """Every batch counts the same at constant weight decay; made by `equal_memory`."""

    weight_decay: float
    peak: float = 1.0

    name = "equal_memory"

    def __post_init__(self) -> None:
        self._set(**_check_pair(self.peak, self.weight_decay))

    @property
    def _rises_until(self) -> int:
        return 1

    def _at(self, t: Array) -> Array:
        return self.peak / (1 + self.peak * self.weight_decay * np.maximum(t - 1, 0))


def equal_memory(*, weight_decay: float, peak: float) -> Schedule:
    """The learning rates with which every batch contributes the same, at constant weight decay λ; without an end.

        1/η_t = 1/η_{t−1} + λ,   so   η_t = η_1 / (1 + η_1 λ (t−1))

    Exact for the true products, at any length of the run.

    Args:
        weight_decay: λ, decoupled and multiplied by the learning rate as torch does.
        peak: η_1, the first and largest; peak·weight_decay < 1.

    Reference: [memory-article] Eq. 16; [theory] 3.

    >>> from equipoise import theory
    >>> c = theory.memory(lr=equal_memory(weight_decay=0.1, peak=0.1).values(1000), weight_decay=0.1).weights
    >>> bool(c.max() / c.min() - 1 < 1e-12)
    True
    """
    return EqualMemory(weight_decay, peak)


@final
@dataclass(frozen=True, repr=False)
class EqualMemoryTied(Schedule):
    """Every batch counts the same where weight decay follows the learning rate; made by `equal_memory_tied`."""

    steps: int
    weight_decay: float
    peak: float = 1.0

    name = "tied_lr"

    def __post_init__(self) -> None:
        self._set(steps=_check.whole("steps", self.steps, low=1), **_check_pair(self.peak, self.weight_decay))

    def _end(self) -> int:
        return self.steps

    @cached_property
    def _lr(self) -> Array:
        return theory.design_lr_tied(np.ones(self.steps), lr_first=self.peak, weight_decay_first=self.weight_decay)[0]

    def _at(self, t: Array) -> Array:
        return self._lr[np.clip(t, 1, self.steps).astype(np.int64) - 1]


def tied_lr(steps: int, *, weight_decay: float, peak: float) -> Schedule:
    """The learning rates of `equal_memory_tied` alone."""
    return EqualMemoryTied(steps, weight_decay, peak)


def equal_memory_tied(steps: int, *, weight_decay: float, peak: float) -> tuple[Schedule, Schedule]:
    """Learning rates and weight decays, λ_t = αη_t, with which every batch contributes the same.

        αη_{t−1}·η_t² + η_t − η_{t−1} = 0,   α = λ_1/η_1

    λ/η stays what it is at the first step, and with it the norm that the weights settle at.

    Args:
        steps: the steps of the run (the recursion has no closed form, so it is run once).
        weight_decay: λ_1, the first and largest weight decay.
        peak: η_1, the first and largest learning rate; peak·weight_decay < 1.

    Returns:
        The schedules of the learning rate and of the weight decay.

    Reference: [memory-article] Eq. 17, in the exact form of [theory] 3.

    >>> from equipoise import theory
    >>> lr, wd = equal_memory_tied(1000, weight_decay=0.1, peak=0.1)
    >>> c = theory.memory(lr=lr.values(), weight_decay=wd.values()).weights
    >>> bool(c.max() / c.min() - 1 < 1e-12)
    True
    """
    lr = EqualMemoryTied(steps, weight_decay, peak)
    return lr, lr * (lr.weight_decay / lr.peak)


def from_weights(weights: ArrayLike, *, weight_decay: ArrayLike | Schedule, lr_first: float) -> Schedule:
    """The learning rates whose memory is proportional to any wanted positive weights.

        η_j = w_j / (w_1/η_1 + Σ_{i=2..j} λ_i w_i)

    Always possible; `lr_first` is free and sets the level. See `uniform`, `recency`, `curriculum` for profiles.

    Args:
        weights: wanted contribution of each step, > 0; only ratios matter.
        weight_decay: a number, one value a step, or a schedule.
        lr_first: η_1.

    Reference: [theory] 3, "Inverse design"; `equipoise.theory.design_lr`.

    >>> from equipoise import theory
    >>> s = from_weights([1, 2, 3], weight_decay=0.1, lr_first=0.5)
    >>> c = theory.memory(lr=s.values(), weight_decay=0.1).weights
    >>> (c / c[0]).round(12).tolist()
    [1.0, 2.0, 3.0]
    """
    wanted = _check.series("weights", weights, None, low=0, open_low=True)
    decay = weight_decay.values(len(wanted)) if isinstance(weight_decay, Schedule) else weight_decay
    return from_array(theory.design_lr(wanted, weight_decay=decay, lr_first=lr_first))


def uniform(steps: int) -> Array:
    """Weights for `from_weights`: every batch counts the same.

    >>> uniform(3).tolist()
    [1.0, 1.0, 1.0]
    """
    return np.ones(_check.whole("steps", steps, low=1))


def recency(steps: int, *, timescale: float) -> Array:
    """Weights for `from_weights`: a batch counts the less the older it is, w_j = exp(−(T−j)/τ); the last counts 1.

    Args:
        steps: T.
        timescale: τ > 0, the age in steps at which a batch counts 1/e.

    >>> recency(3, timescale=1).round(3).tolist()
    [0.135, 0.368, 1.0]
    """
    T = _check.whole("steps", steps, low=1)
    tau = _check.number("timescale", timescale, low=0, open_low=True)
    if (T - 1) / tau > 700:
        raise ValueError(f"timescale = {timescale!r}: must be ≥ {(T - 1) / 700:.6g}, or the oldest batches count 0")
    return np.exp(-np.arange(T - 1, -1, -1) / tau)


def curriculum(parts: Sequence[float], steps: int) -> Array:
    """Weights for `from_weights`: a batch counts as the part of the run that it is in.

    Args:
        parts: what a batch of each part counts, > 0; the parts are equally long, up to a step.
        steps: T ≥ the number of parts.

    >>> curriculum([1, 3], 5).tolist()
    [1.0, 1.0, 1.0, 3.0, 3.0]
    """
    levels = _check.series("parts", parts, low=0, open_low=True)
    T = _check.whole("steps", steps, low=len(levels))
    return levels[np.arange(T) * len(levels) // T]


def _check_pair(peak: float, weight_decay: float) -> dict[str, float]:
    eta = _check.number("peak", peak, low=0, open_low=True)
    lam = _check.number("weight_decay", weight_decay, low=0)
    _check.below_one(np.array([eta * lam]), np.array([eta]), np.array([lam]), "peak · weight_decay")
    return {"peak": eta, "weight_decay": lam}
