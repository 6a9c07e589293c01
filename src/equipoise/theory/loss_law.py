"""The loss of a run under another lr schedule, from two or three finished ones: the multi-power law.  [luo2025].

    L(t) = L0 + A·S(t)^−α − B·Σ_k (η_{k−1} − η_k)·[1 − (1 + C·η_k^−γ·S_k(t))^−β]
    S(t) = Σ_{i≤t} η_i,   S_k(t) = Σ_{k≤i≤t} η_i

The first two terms are what a constant lr reaches after so much lr in sum. The third is what falls of the lr gain, each
as the lr after it acts. The sum over k begins after the largest lr, so that a warmup only adds to S.

L0, A and B enter linearly. They are solved for, all ≥ 0, by least squares of relative errors. α, β, γ and C are
searched on a grid and then by a simplex.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from numpy.typing import ArrayLike

from equipoise._check import Array

BINS = 60
"""Parts of a curve whose mean losses are compared with the law."""

LEFT_OUT = 0.05
"""First part of a run that is left out: the law is not of the first steps."""

FALLS = 150
"""Falls of lr that a fit tells apart; those of a longer curve are summed with their neighbours."""

GRID = ((0.2, 0.5, 1.0), (0.3, 0.6, 1.2), (0.2, 0.6, 1.0), (0.3, 3.0, 30.0))
"""Where the search begins: α, β, γ, and C for lr over its peak and S over that of the longest curve."""

BOUNDS = ((0.02, 3.0), (0.05, 5.0), (0.0, 2.0), (1e-3, 1e4))
"""Between which it stays: fewer curves than the law has shapes leave some numbers open."""

STARTS, ITERATIONS = 3, 250


@final
@dataclass(frozen=True)
class LossLaw:
    """A law of the loss, fitted to curves.

    Attributes:
        least: L0.
        scale: A.
        power: α.
        gain: B.
        reach: C.
        gain_power: β.
        lr_power: γ.
        misfit: root mean square of the relative errors of the curves that it was fitted to.
        left_out: relative errors of the last losses, each by a fit to the other curves, where lr falls in one of those.
        others: those fits.

    The first four letters of [luo2025] keep their meaning; lr and S are in the units of the curves.
    """

    least: float
    scale: float
    power: float
    gain: float
    reach: float
    gain_power: float
    lr_power: float
    misfit: float = 0.0
    left_out: tuple[float, ...] = ()
    others: tuple[LossLaw, ...] = ()

    def loss(self, lr: ArrayLike, at: ArrayLike | None = None) -> Array:
        """The loss after steps of a run.

        Args:
            lr: at every step.
            at: steps, from 1. Default: the last one alone.
        """
        rates = _rates("lr", lr)
        steps = np.atleast_1d(np.asarray(len(rates) if at is None else at, dtype=float))
        if len(steps) and not (steps.min() >= 1 and steps.max() <= len(rates)):
            raise ValueError(f"at = {at}: must be steps of the run, 1 to {len(rates)}")
        shape = _Shape(rates, steps, len(rates))
        fallen = shape.gain(self.gain_power, self.lr_power, self.reach)
        return self.least + self.scale * shape.sums**-self.power - self.gain * fallen

    def forecast(self, lr: ArrayLike) -> tuple[float, float]:
        """The last loss of a run, and how far off it may be.

        The error is the largest of those of the curves, each forecast from the others, and of what those fits say of
        this run. It is measured, no bound.

        Args:
            lr: at every step.
        """
        last = float(self.loss(lr)[0])
        apart = [abs(float(law.loss(lr)[0]) - last) for law in self.others]
        return last, max([*apart, *(abs(e) * last for e in self.left_out), self.misfit * last])


def fit_loss(curves: Sequence[tuple[ArrayLike, ArrayLike]]) -> LossLaw:
    """Fit the law to finished runs, and measure its error by leaving out each of them.

    Runs should differ in the schedule alone: the same model, data, batch and optimizer. Two is the least; three, of
    which one has a constant lr and one falls to 0, say more.

    Args:
        curves: (lr at every step, loss at every step) of each run; a loss of NaN is one that was not measured.

    Reference: [luo2025]. Ours: least squares instead of Huber's loss, and L0, A and B solved for.

    >>> truth = LossLaw(2.0, 0.5, 0.6, 30.0, 10.0, 0.5, 0.5)
    >>> t = np.arange(1, 1001)
    >>> constant, linear = np.full(1000, 0.01), 0.01 * (1 - (t - 1) / 1000)
    >>> law = fit_loss([(lr, truth.loss(lr, t)) for lr in (constant, linear)])
    >>> wsd = np.where(t <= 700, 0.01, 0.01 * (1001 - t) / 300)
    >>> bool(abs(law.forecast(wsd)[0] / truth.loss(wsd)[0] - 1) < 0.005)
    True
    """
    if len(curves) < 2:
        raise ValueError(
            f"curves: must be at least two, have {len(curves)}; one schedule does not tell what falls gain"
        )
    read = [_read(i, *curve) for i, curve in enumerate(curves)]
    if not any(c.falls for c in read):
        raise ValueError("curves: must have one whose lr falls; constant ones do not tell what falls gain")
    law, others, errors = _fit(read), list[LossLaw](), list[float]()
    for i, curve in enumerate(read):
        rest = read[:i] + read[i + 1 :]
        if any(c.falls for c in rest):
            others.append(_fit(rest))
            errors.append(float(others[-1].loss(curve.rates)[0]) / curve.last - 1)
    return replace(law, left_out=tuple(errors), others=tuple(others))


@final
class _Shape:
    """What of a curve's lr the law needs, at some steps."""

    def __init__(self, lr: Array, at: Array, falls: int) -> None:
        total = np.concatenate(([0.0], np.cumsum(lr)))
        self.sums = np.interp(at, np.arange(len(total)), total)
        top = int(np.argmax(lr))
        step = np.arange(top + 1, len(lr))  # step k+1 has lr[k]; it falls from lr[k − 1]
        fall = lr[step - 1] - lr[step]
        step, fall = step[fall != 0], fall[fall != 0]
        if len(step) > falls:
            parts = np.array_split(np.arange(len(step)), falls)
            step, fall = np.array([step[len(p) // 2 + p[0]] for p in parts]), np.array([fall[p].sum() for p in parts])
        self.fall, self.lr = fall, lr[step]
        self.acted = np.maximum(self.sums[None, :] - total[step][:, None], 0.0)

    def gain(self, beta: float, gamma: float, reach: float) -> Array:
        """Σ_k (η_{k−1} − η_k)·[1 − (1 + C·η_k^−γ·S_k)^−β] at each step."""
        if not len(self.fall):
            return np.zeros(len(self.sums))
        factor = np.where(self.lr > 0, np.maximum(self.lr, 1e-300) ** -gamma, 0.0)
        return self.fall @ -np.expm1(-beta * np.log1p(reach * factor[:, None] * self.acted))


@final
@dataclass(frozen=True)
class _Curve:
    rates: Array
    at: Array
    losses: Array

    @property
    def last(self) -> float:
        return float(self.losses[-1])

    @property
    def falls(self) -> bool:
        return bool(self.rates[-1] < self.rates.max())


def _rates(name: str, lr: ArrayLike) -> Array:
    rates = np.asarray(lr, dtype=float)
    if rates.ndim != 1 or not len(rates) or not np.isfinite(rates).all() or rates.min() < 0 or rates.max() <= 0:
        raise ValueError(f"{name}: must be a lr ≥ 0 for every step, and above 0 somewhere")
    return rates


def _read(number: int, lr: ArrayLike, losses: ArrayLike) -> _Curve:
    rates, found = _rates(f"lr of curves[{number}]", lr), np.asarray(losses, dtype=float)
    if found.shape != rates.shape:
        raise ValueError(
            f"losses of curves[{number}]: must be {len(rates)}, one a step as lr has, not {found.shape}; NaN where "
            "none was measured"
        )
    first = max(math.ceil(LEFT_OUT * len(rates)), int(np.argmax(rates)) if rates[0] < rates.max() else 0)
    at, mean = [], []
    for part in np.array_split(np.arange(first, len(rates)), BINS):
        known = part[np.isfinite(found[part])]
        if len(known):
            at.append(float(known.mean()) + 1)
            mean.append(float(found[known].mean()))
    if len(at) < 5 or min(mean) <= 0:
        raise ValueError(
            f"losses of curves[{number}]: must be above 0, and measured in at least 5 places after the warmup"
        )
    return _Curve(rates, np.array(at), np.array(mean))


def _fit(curves: Sequence[_Curve]) -> LossLaw:
    peak = max(float(c.rates.max()) for c in curves)
    total = max(float(c.rates.sum()) for c in curves)
    shapes = [_Shape(c.rates / peak, c.at, FALLS) for c in curves]
    for shape in shapes:
        shape.sums, shape.acted = shape.sums * peak / total, shape.acted * peak / total
    seen = np.concatenate([c.losses for c in curves])

    def solved(point: Array) -> tuple[Array, float]:
        alpha, beta, gamma, reach = _inside(point)
        powers = np.concatenate([s.sums**-alpha for s in shapes])
        gains = np.concatenate([s.gain(beta, gamma, reach) for s in shapes])
        return _least(np.column_stack((np.ones(len(seen)), powers, -gains)) / seen[:, None])

    def misfit(point: Array) -> float:
        beyond = point - np.log(_inside(point) + _SHIFT)
        return solved(point)[1] * (1 + float(beyond @ beyond))

    starts = sorted((np.log(np.array(p) + _SHIFT) for p in itertools.product(*GRID)), key=misfit)[:STARTS]
    point = min((_simplex(misfit, start) for start in starts), key=misfit)
    (least, scale, gain), squares = solved(point)
    alpha, beta, gamma, reach = _inside(point)
    return LossLaw(
        float(least), float(scale * total**alpha), float(alpha), float(gain / peak), float(reach * peak**gamma / total),
        float(beta), float(gamma), math.sqrt(squares / len(seen)),
    )  # fmt: skip


_SHIFT = np.array([0.0, 0.0, 0.1, 0.0])
"""γ may be 0; the others are searched in their logarithm."""


def _inside(point: Array) -> Array:
    low, high = np.array(BOUNDS).T
    return np.clip(np.exp(point) - _SHIFT, low, high)


def _least(columns: Array) -> tuple[Array, float]:
    """Weights ≥ 0 of columns whose sum is nearest to 1, and the squared error: of all subsets the best allowed one."""
    count, best = columns.shape[1], (np.zeros(columns.shape[1]), math.inf)
    for size in range(count, 0, -1):
        for chosen in itertools.combinations(range(count), size):
            some = columns[:, chosen]
            weights = np.linalg.lstsq(some, np.ones(len(some)), rcond=None)[0]
            error = float(np.square(some @ weights - 1).sum())
            if weights.min() >= 0 and error < best[1]:
                best = np.zeros(count), error
                best[0][list(chosen)] = weights
        if math.isfinite(best[1]) and size == count:
            break
    return best


def _simplex(f: Callable[[Array], float], start: Array) -> Array:
    """The least of a function near a point, by Nelder and Mead."""
    n = len(start)
    points = [start, *(start + 0.4 * np.eye(n)[i] for i in range(n))]
    values = [f(p) for p in points]
    for _ in range(ITERATIONS):
        order = np.argsort(values)
        points, values = [points[i] for i in order], [values[i] for i in order]
        if values[-1] - values[0] <= 1e-9 * abs(values[0]):
            break
        middle = np.mean(points[:-1], axis=0)
        reflected = middle + (middle - points[-1])
        at = f(reflected)
        if at < values[0]:
            far = middle + 2 * (middle - points[-1])
            points[-1], values[-1] = min(((far, f(far)), (reflected, at)), key=lambda p: p[1])
        elif at < values[-2]:
            points[-1], values[-1] = reflected, at
        else:
            near = middle + 0.5 * ((reflected if at < values[-1] else points[-1]) - middle)
            value = f(near)
            if value < min(at, values[-1]):
                points[-1], values[-1] = near, value
            else:
                points = [points[0], *(points[0] + 0.5 * (p - points[0]) for p in points[1:])]
                values = [values[0], *(f(p) for p in points[1:])]
    return points[int(np.argmin(values))]
