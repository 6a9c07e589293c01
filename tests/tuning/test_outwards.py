"""The sampler around a suggestion: its process by brute force, where it begins, what it avoids, what it finds."""

import math

import numpy as np
import pytest
from tests.tuning.test_tuning import around, quiet

from equipoise.tuning import Trial, tune
from equipoise.tuning.outwards import LENGTHS, NOISE, PRIOR, ROUGH, Outwards

NONE = np.zeros((0, 2))


def draws(sampler: Outwards, loss, trials: int) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[no-untyped-def]
    points, losses = NONE, np.zeros(0)
    for _ in range(trials):
        point = sampler.next(points, losses, NONE)
        points, losses = np.vstack((points, point)), np.append(losses, loss(point))
    return points, losses


def test_the_process_by_brute_force() -> None:
    """Conditioning of a joint Gaussian, each covariance by itself, in float64."""
    sampler, random = Outwards(around(), 0), np.random.default_rng(3)
    points = random.uniform(sampler.low, sampler.high, (6, 2))
    y, known = random.uniform(0, 4, 4), 4

    def scaled(x: np.ndarray) -> np.ndarray:
        return (x - sampler.middle) / LENGTHS

    def covariance(x: np.ndarray, other: np.ndarray) -> float:
        (a, b), (c, d) = scaled(x), scaled(other)
        pairs = zip(PRIOR, (1, a, b, a**2, b**2, a * b), (1, c, d, c**2, d**2, c * d), strict=True)
        return sum(p * f * g for p, f, g in pairs) + ROUGH * math.exp(-((a - c) ** 2 + (b - d) ** 2) / 2)

    joint = np.array([[covariance(p, q) for q in points] for p in points])
    prior = np.array([sum(scaled(p) ** 2) / 2 for p in points])
    gain = joint[known:, :known] @ np.linalg.inv(joint[:known, :known] + NOISE * np.eye(known))
    mean, deviation = sampler.expect(points[:known], y, points[known:])
    assert mean == pytest.approx(prior[known:] + gain @ (y - prior[:known]))
    assert deviation**2 == pytest.approx(np.diag(joint[known:, known:] - gain @ joint[:known, known:]))


def test_places_are_inverted() -> None:
    space = around()
    for drawn in ({"step": 0.004, "memory": 0.05}, space.first, {"step": 0.3, "memory": 30.0}):
        assert space.at(*space.place(drawn)) == pytest.approx(drawn)


def test_it_begins_with_the_suggestion_and_goes_outwards() -> None:
    space = around()
    points, _ = draws(Outwards(space, 0), lambda x: 2.0 + 0.2 * sum((x - space.place(space.first)) ** 2), 12)
    assert points[0] == pytest.approx(space.place(space.first))
    far = np.abs((points - points[0]) / LENGTHS).max(1)
    assert far[1] < 1.5  # the second is near
    assert far.max() > 0.5


@pytest.mark.parametrize("moved", [(1.0, 0.0), (-1.2, 1.0), (0.5, -0.8)])
def test_it_finds_bowls_that_lie_elsewhere_sooner_than_chance(moved: tuple[float, float]) -> None:
    sampler = Outwards(around())
    bottom = sampler.middle + np.array(moved)

    def loss(x: np.ndarray) -> float:
        return 2.0 * math.exp(0.1 * ((x - bottom) ** 2).sum())

    random = np.random.default_rng(0)
    found = np.median([draws(Outwards(around(), seed), loss, 12)[1].min() for seed in range(5)])
    chance = [min(loss(x) for x in random.uniform(sampler.low, sampler.high, (12, 2))) for _ in range(200)]
    assert found < 2.0 * 1.01
    assert found < np.quantile(chance, 0.25)


def test_it_stays_away_from_what_failed_and_from_what_others_run() -> None:
    sampler = Outwards(around(), 0)
    points, _ = draws(sampler, lambda x: math.inf if x[0] > -0.5 else 2.0 + x[0] ** 2, 14)
    assert (points[6:, 0] < -0.3).mean() > 0.5
    running = NONE
    for _ in range(4):
        running = np.vstack((running, sampler.next(NONE, np.zeros(0), running)))
    apart = [np.abs(p - q).max() for i, p in enumerate(running) for q in running[:i]]
    assert min(apart) > 0.05


def test_the_same_seed_draws_the_same() -> None:
    def train(trial: Trial) -> float:
        return math.log(trial.lr / 2e-3) ** 2 + 1

    first, again, other = (
        [t.params for t in tune(train, space=around(), trials=5, seed=seed, tell=quiet).trials] for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other
    space = around()
    for params in first:
        assert all(low <= params[k] <= high for k, (low, high) in space.ranges.axes.items())  # type: ignore[misc]


@pytest.mark.parametrize("bottom", [0.0, 9.0, -9.0])
def test_the_ends_of_the_space_can_be_drawn(bottom: float) -> None:
    """Of fine-tuning the suggestion itself lies at an end: no decay."""
    space = around(finetune=True)
    found = tune(
        lambda t: 9 + (math.log(t.lr) - bottom) ** 2 + t.weight_decay, space=space, trials=12, seed=0, tell=quiet
    )
    low, high = space.ranges.axes["memory"]
    memories = [t.params["memory"] for t in found.trials]
    assert memories[0] == high
    assert all(low <= m <= high for m in memories)
    assert len(found.trials) == 12
