"""Odd polynomials whose composition sends every singular value in [lower, 1] towards 1.

One step of an iteration for the polar factor applies p(x) = ax + bx³ (+ cx⁵) to the singular values. Of all
compositions of such polynomials the greedy one is the best in the worst case: step i is the minimax approximation of 1
on the interval that step i − 1 left. We find each by Remez exchange.

Reference: [amsel2025] theorem 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from equipoise import _check as check
from equipoise.theory.kernels import MUON as MUON

Polynomial = tuple[float, ...]
"""Coefficients of x, x³, and for degree 5 of x⁵."""

SAFETY, BF16_SAFETY, BF16_CUSHION = 1.001, 1.03, 0.024
"""Margins for rounding: singular values may be a little too large, and in bfloat16 none may be sent near 0.

The paper's safety is 1.01. With 1.03 the first two steps in bfloat16 can go on one Gram matrix."""

_NEWTON_SCHULZ: dict[int, Polynomial] = {3: (1.5, -0.5), 5: (15 / 8, -10 / 8, 3 / 8)}
_EXCHANGES = 200
_NEAR = 1e-3
_MOST_STEPS = 60


def minimax(lower: float, upper: float, degree: int = 5) -> tuple[Polynomial, float]:
    """The odd polynomial nearest to 1 on [lower, upper], and its largest error there.

    The error of the best p touches ±E, signs alternating, at one point more than p has coefficients: both ends and all
    extrema between. Remez: solve p(x_i) ± E = 1 at a guess of these points, move them to the extrema of p, repeat.

    Args:
        lower: Left end, > 0.
        upper: Right end, > lower.
        degree: 3 or 5.

    >>> p, error = minimax(0.1, 1)
    >>> print(f"{error:.3f}", [round(c, 3) for c in p])
    0.453 [5.604, -13.884, 9.733]

    Reference: [amsel2025] section 3 and appendix on Remez.
    """
    count = _coefficients_of(degree)
    lower = check.number("lower", lower, low=0, open_low=True)
    upper = check.number("upper", upper, low=lower, open_low=True)
    spread = (upper - lower) / (upper + lower)
    if spread < _NEAR:
        # Here the exchange would solve a singular system, and the limit, Newton–Schulz, is as good to rounding.
        centre = (upper + lower) / 2
        error = spread**2 * (3 + spread) / 2 if count == 2 else spread**3 * (20 + 15 * spread + 3 * spread**2) / 8
        return tuple(c / centre ** (2 * k + 1) for k, c in enumerate(_NEWTON_SCHULZ[degree])), error
    powers = 2 * np.arange(count) + 1
    signs = (-1.0) ** np.arange(count + 1)
    points = (lower + upper) / 2 - (upper - lower) / 2 * np.cos(np.pi * np.arange(count + 1) / count)
    p, error, before = [0.0], np.inf, np.inf
    for _ in range(_EXCHANGES):
        *p, error = np.linalg.solve(np.column_stack([points[:, None] ** powers, signs]), np.ones(count + 1))
        if abs(error - before) <= 1e-15:
            break
        before = error
        extrema = np.roots((powers * p)[::-1])  # in x²
        points = np.array([lower, *np.sort(np.sqrt(extrema.real)), upper])
    return tuple(float(c) for c in p), abs(float(error))


@lru_cache(maxsize=256)
def optimal(
    steps: int, lower: float, degree: int = 5, *, safety: float = 1.0, cushion: float = 0.0
) -> tuple[Polynomial, ...]:
    """The best `steps` odd polynomials to compose, for singular values in [lower, 1].

    Args:
        steps: How many polynomials.
        lower: The smallest singular value that should arrive near 1, relative to the largest. Smaller ones are
            enlarged by the product of the first coefficients.
        degree: 3 or 5.
        safety: All polynomials but the last are p(x/safety), so that rounding may make x a little too large.
        cushion: Design each step as if lower were at least cushion · upper, so that no singular value is sent closer
            to 0 than rounding allows; the result is then centred about 1 again.

    >>> [[round(c, 4) for c in p] for p in optimal(2, 0.1)]
    [[5.6037, -13.8837, 9.7334], [2.1306, -1.5116, 0.402]]

    Reference: [amsel2025] theorem 3.1, and section 4.4 for safety and cushion.
    """
    steps = check.whole("steps", steps, low=1)
    lower = check.number("lower", lower, low=0, high=1, open_low=True, open_high=True)
    safety = check.number("safety", safety, low=1)
    cushion = check.number("cushion", cushion, low=0, high=1, open_high=True)
    _coefficients_of(degree)
    upper, sequence = 1.0, []
    for i in range(steps):
        p, error = (
            minimax(max(lower, cushion * upper), upper, degree) if lower < upper else (_NEWTON_SCHULZ[degree], 0.0)
        )
        shrink = safety if i < steps - 1 else 1.0
        p = tuple(c / shrink ** (2 * k + 1) for k, c in enumerate(p))
        lowest = min(float(evaluate([p], lower)), 1 - error)
        centre = (lowest + 1 + error) / 2
        sequence.append(tuple(c / centre for c in p))
        lower, upper = lowest / centre, (1 + error) / centre
    return tuple(sequence)


def evaluate(polynomials: Sequence[Polynomial], x: float | np.ndarray) -> np.ndarray:
    """The composition at x: what the iteration does to a singular value.

    >>> evaluate([(1.5, -0.5)], 0.5).item()
    0.6875
    """
    y = np.asarray(x, dtype=np.float64)
    for p in polynomials:
        y = y * np.polynomial.polynomial.polyval(y * y, np.asarray(p))
    return y


def worst_error(polynomials: Sequence[Polynomial], lower: float) -> float:
    """Largest |1 − p(x)| over [lower, 1], on a fine grid: ‖UVᵀ − X‖₂ of the iteration in exact arithmetic.

    >>> print(f"{worst_error([MUON] * 5, 1e-3):.3f} {worst_error(optimal(5, 1e-3), 1e-3):.3f}")
    0.529 0.113
    """
    lower = check.number("lower", lower, low=0, high=1, open_low=True)
    return _worst(tuple(tuple(p) for p in polynomials), lower)


@lru_cache(maxsize=256)
def _worst(polynomials: tuple[Polynomial, ...], lower: float) -> float:
    # Muon asks at every step, for every shape.
    return float(np.abs(1 - evaluate(polynomials, np.geomspace(lower, 1, 20_001))).max())


@lru_cache(maxsize=256)
def steps_for(accuracy: float, lower: float, degree: int = 5, *, safety: float = 1.0, cushion: float = 0.0) -> int:
    """The fewest optimal steps whose worst error on [lower, 1] is at most `accuracy`.

    >>> steps_for(0.2, lower=3e-3), steps_for(1e-3, lower=1e-3)
    (4, 6)
    """
    accuracy = check.number("accuracy", accuracy, low=0, high=1, open_low=True, open_high=True)
    for steps in range(1, _MOST_STEPS + 1):
        if worst_error(optimal(steps, lower, degree, safety=safety, cushion=cushion), lower) <= accuracy:
            return steps
    raise ValueError(
        f"accuracy = {accuracy!r}: not reached in {_MOST_STEPS} steps from lower = {lower!r}; ask for less"
    )


def check_coefficients(polynomials: Sequence[Sequence[float]]) -> tuple[Polynomial, ...]:
    """The polynomials as tuples of floats, or ValueError when one has not 2 or 3 finite coefficients."""
    made = []
    for i, p in enumerate(polynomials):
        if isinstance(p, str) or not isinstance(p, Sequence | np.ndarray) or len(p) not in (2, 3):
            raise ValueError(f"coefficients[{i}] = {p!r}: must be (a, b) or (a, b, c), of x, x³ and x⁵")
        made.append(tuple(check.number(f"coefficients[{i}][{k}]", c) for k, c in enumerate(p)))
    if not made:
        raise ValueError("coefficients = (): must have at least one polynomial, (a, b) or (a, b, c)")
    return tuple(made)


def _coefficients_of(degree: int) -> int:
    if degree not in (3, 5):
        raise ValueError(f"degree = {degree!r}: must be 3 or 5")
    return (degree + 1) // 2
