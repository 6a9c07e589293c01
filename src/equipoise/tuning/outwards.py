"""What draws settings around a suggestion: a Gaussian process in theory's coordinates that expects a bowl.

A setting is a point x = (ln(step / suggested), ln(1 + lr·wd·T / KNEE)), and z = (x − suggested)/LENGTHS. Losses are
counted from the best, in units of their median, and cut at `WORST`. Before any trial a loss is expected to be

    E y(z) = |z|²/2,   cov(y(z), y(z')) = φ(z)ᵀ diag(PRIOR) φ(z') + ROUGH·exp(−|z − z'|²/2),
    φ = (1, z₁, z₂, z₁², z₂², z₁z₂):

a bowl around the suggestion, moved and bent, and something smooth besides. The next trial is where E y − κ·(standard
deviation) is least among points that are drawn everywhere and around the best; κ goes round in `TURNS`: two trials
where the loss should be low, one where little is known.

It is Bayesian linear regression on φ with a Gaussian process for what is left. Constants were chosen by replays on the
workloads of the half "choosing" (docs/tune.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, final

import numpy as np

from equipoise.tuning.space import Around

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

LENGTHS = np.array([0.7, 1.0])
"""Of both coordinates: how far a loss is alike."""

PRIOR = np.array([4.0, 1.0, 1.0, 0.25, 0.25, 0.06])
"""Variances of what the bowl deviates by: level, slopes, curvatures, and how much the axes interact."""

ROUGH = 0.25
"""Variance of what is no quadratic function."""

NOISE = 0.02
"""Variance of a loss that is trained again with another seed."""

TURNS = (0.2, 0.2, 2.0)
"""κ of the trials in turn."""

WORST = 4.0
"""What a trial that was stopped or failed counts as, and what losses are cut at."""

FIRST_UNIT, LEAST_UNIT = 0.08, 0.02
"""Of losses, as a share of the best: while there are one or two, and at least."""

DRAWN = 600
"""Points of each kind that are looked at for the next trial."""

NEARBY = 0.4
"""Standard deviation of those around the best, in `LENGTHS`."""


@final
class Outwards:
    """A sampler that Optuna takes (it needs no base class): from the suggestion outwards.

    Args:
        space: around a suggestion.
        seed: of the points that are looked at.
    """

    def __init__(self, space: Around, seed: int | None = None) -> None:
        self.space, self.seed = space, seed
        self.random = np.random.default_rng(seed)
        ends = zip(*space.ranges.axes.values(), strict=True)
        corners = np.array([space.place(dict(zip(space.ranges.axes, end, strict=True))) for end in ends])
        self.low, self.high = corners.min(0), corners.max(0)
        self.middle = np.array(space.place(space.first))

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        """Optuna's: what is drawn together."""
        from equipoise.tuning.search import distributions

        return distributions(self.space.ranges)

    def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, float]:
        """Optuna's: the next setting, by the trials that have ended or are running."""
        others = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number and t.params]
        points = np.array([self.space.place(t.params) for t in others]).reshape(-1, 2)
        losses = [t.value if t.state.name == "COMPLETE" else math.inf for t in others]
        # Others are running elsewhere: they get what is expected of them, so that nobody draws beside them.
        open_ = np.array([t.state.name in ("RUNNING", "WAITING") for t in others], dtype=bool)
        found = self.space.at(*self.next(points[~open_], np.array(losses)[~open_], points[open_]))
        # The ends of the space come back with their last digit changed, and Optuna takes nothing beyond them.
        return {name: min(max(found[name], low), high) for name, (low, high) in self.space.ranges.axes.items()}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> float:
        """Optuna's: of an axis that is not of the space, which there is none of."""
        raise ValueError(f"{param_name!r}: must be one of {', '.join(self.space.ranges.axes)}")

    def reseed_rng(self) -> None:
        """Optuna's: other points than those of the process that it was copied from."""
        self.random = np.random.default_rng()

    def before_trial(self, study: Any, trial: Any) -> None:
        """Optuna's: nothing is done."""

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        """Optuna's: nothing is done."""

    def next(self, points: Array, losses: Array, running: Array) -> Array:
        """The point of the next trial.

        Args:
            points: of the trials that have ended.
            losses: theirs; infinite where a trial was stopped or failed.
            running: points of the trials that are running.
        """
        if not len(points) and not len(running):
            return self.middle
        y = _units(losses)
        if len(running):
            expected, _ = self.expect(points, y, running)
            points, y = np.vstack((points, running)), np.concatenate((y, expected))
        near = points[np.argmin(y)] + NEARBY * LENGTHS * self.random.standard_normal((DRAWN, 2))
        looked = np.vstack((self.random.uniform(self.low, self.high, (DRAWN, 2)), np.clip(near, self.low, self.high)))
        mean, deviation = self.expect(points, y, looked)
        return looked[np.argmin(mean - TURNS[(len(points) - 1) % len(TURNS)] * deviation)]

    def expect(self, points: Array, y: Array, at: Array) -> tuple[Array, Array]:
        """Mean and standard deviation at other points, given some."""
        known, other = (points - self.middle) / LENGTHS, (at - self.middle) / LENGTHS
        mean = np.square(other).sum(1) / 2
        variance = np.square(_features(other)) @ PRIOR + ROUGH
        if len(known):
            across = _covariance(known, other)
            solved = np.linalg.solve(_covariance(known, known) + NOISE * np.eye(len(known)), across)
            mean = mean + solved.T @ (y - np.square(known).sum(1) / 2)
            variance = variance - (across * solved).sum(0)
        return mean, np.sqrt(np.maximum(variance, 0.0))


def _features(z: Array) -> Array:
    a, b = z.T
    return np.column_stack((np.ones(len(z)), a, b, a * a, b * b, a * b))


def _covariance(z: Array, other: Array) -> Array:
    apart = np.square(z[:, None] - other[None]).sum(-1)
    return (_features(z) * PRIOR) @ _features(other).T + ROUGH * np.exp(-apart / 2)


def _units(losses: Array) -> Array:
    """Losses above the best, in units of the median of those above it, cut at `WORST`.

    >>> _units(np.array([2.0, 2.2, 2.4, 3.0, np.inf])).round(2)
    array([0. , 0.5, 1. , 2.5, 4. ])
    """
    finite = losses[np.isfinite(losses)]
    if not len(finite):
        return np.full(len(losses), WORST)
    best = finite.min()
    unit = LEAST_UNIT * max(abs(best), 1e-12)
    if len(finite) <= 2:
        unit *= FIRST_UNIT / LEAST_UNIT
    elif len(above := finite[finite > best]):
        unit = max(unit, float(np.median(above - best)))
    return np.minimum((losses - best) / unit, WORST)
