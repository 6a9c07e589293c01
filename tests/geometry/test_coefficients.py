"""Minimax polynomials against their defining property, a brute-force minimiser and the classic quintic."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest

from equipoise.geometry import MUON, coefficients, minimax, optimal, steps_for, worst_error

LOWERS = [1e-9, 1e-6, 1e-4, 1e-3, 3e-3, 1e-2, 0.05, 0.2, 0.5, 0.8, 0.99, 0.9999]


@pytest.mark.parametrize("lower", LOWERS)
@pytest.mark.parametrize("degree", [3, 5])
@pytest.mark.parametrize("upper", [1.0, 1.9])
def test_the_error_touches_its_bound_with_alternating_signs(lower: float, degree: int, upper: float) -> None:
    p, error = minimax(lower, upper, degree)
    x = np.concatenate([np.geomspace(lower, upper, 50_001), np.linspace(lower, upper, 50_001)])
    x.sort()
    off = 1 - coefficients.evaluate([p], x)
    assert np.abs(off).max() <= error * (1 + 1e-6) + 1e-14
    if (upper - lower) / (upper + lower) > 1e-3:
        touching = off[np.abs(off) >= error * (1 - 1e-6)]
        turns = 1 + np.count_nonzero(np.diff(np.sign(touching)))
        assert turns >= (degree + 1) // 2 + 1  # Chebyshev: then no other polynomial is better


def test_no_polynomial_nearby_is_better() -> None:
    p, error = minimax(0.05, 1)
    x = np.linspace(0.05, 1, 4001)
    rng = np.random.default_rng(0)
    for size in (1e-3, 1e-2, 1e-1):
        for _ in range(200):
            other = np.array(p) + size * rng.standard_normal(3)
            assert np.abs(1 - coefficients.evaluate([tuple(other)], x)).max() >= error - 1e-6


@pytest.mark.parametrize("lower", [1e-4, 1e-3, 3e-3, 1e-2, 0.1])
@pytest.mark.parametrize("steps", range(1, 9))
def test_never_worse_than_the_classic_quintic(steps: int, lower: float) -> None:
    assert worst_error(optimal(steps, lower), lower) <= worst_error([MUON] * steps, lower)


@pytest.mark.parametrize("degree", [3, 5])
def test_each_step_helps_down_to_rounding(degree: int) -> None:
    errors = [worst_error(optimal(steps, 1e-3, degree), 1e-3) for steps in range(1, 15)]
    for before, after in itertools.pairwise(errors):
        assert after < before or after < 1e-14
    assert errors[-1] < 1e-14


@pytest.mark.parametrize("accuracy", [0.5, 0.1, 1e-3, 1e-8, 1e-13])
@pytest.mark.parametrize("degree", [3, 5])
def test_steps_for_an_accuracy(accuracy: float, degree: int) -> None:
    steps = steps_for(accuracy, 1e-3, degree)
    assert worst_error(optimal(steps, 1e-3, degree), 1e-3) <= accuracy
    assert worst_error(optimal(steps - 1, 1e-3, degree), 1e-3) > accuracy


def test_margins_cost_little_and_do_what_they_say() -> None:
    margins = {"safety": coefficients.BF16_SAFETY, "cushion": coefficients.BF16_CUSHION}
    careful = optimal(5, 1e-3, **margins)
    assert worst_error(careful, 1e-3) < 1.5 * worst_error(optimal(5, 1e-3), 1e-3)
    # A singular value 1 % too large at every step stays bounded; without the margin it runs away.
    grown = {"with": 1.0, "without": 1.0}
    for p, q in zip(careful, optimal(5, 1e-3), strict=True):
        grown["with"] = float(coefficients.evaluate([p], 1.01 * grown["with"]))
        grown["without"] = float(coefficients.evaluate([q], 1.01 * grown["without"]))
    assert grown["with"] < 1.3
    assert grown["without"] > 2
    # After the first step no singular value above the cushion is near 0.
    x = np.linspace(coefficients.BF16_CUSHION, 1, 10_001)
    assert coefficients.evaluate(careful[:1], x).min() > 3 * coefficients.evaluate(optimal(5, 1e-3)[:1], x).min()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: minimax(0, 1), r"lower = 0: must be a finite number > 0"),
        (lambda: minimax(0.5, 0.5), r"upper = 0.5: must be a finite number > 0.5"),
        (lambda: minimax(0.5, 1, 7), r"degree = 7: must be 3 or 5"),
        (lambda: optimal(0, 0.1), r"steps = 0"),
        (lambda: optimal(3, 1.0), r"lower = 1.0: must be a finite number in \(0, 1\)"),
        (lambda: optimal(3, 0.1, 4), r"degree = 4"),
        (lambda: optimal(3, 0.1, safety=0.9), r"safety = 0.9"),
        (lambda: optimal(3, 0.1, cushion=1), r"cushion = 1"),
        (lambda: steps_for(0, 0.1), r"accuracy = 0"),
        (lambda: steps_for(1e-20, 0.1), r"accuracy = 1e-20: not reached in 60 steps"),
        (lambda: worst_error([MUON], 0), r"lower = 0"),
        (lambda: coefficients.check_coefficients([]), r"coefficients = \(\)"),
        (lambda: coefficients.check_coefficients([(1.0,)]), r"coefficients\[0\] = \(1.0,\): must be \(a, b\) or"),
        (lambda: coefficients.check_coefficients([(1.0, float("nan"))]), r"coefficients\[0\]\[1\] = nan"),
    ],
)
def test_bad_arguments(make: Callable[[], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        make()
