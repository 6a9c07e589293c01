"""Adam's bias correction as a learning-rate schedule, and its first steps.  [theory] 4; [notepad] ch. 4."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from equipoise import _check
from equipoise._check import Array


def bias_factor(t: ArrayLike, betas: tuple[float, float] = (0.9, 0.999)) -> Array:
    """ρ(t) = √(1−β2^t) / (1−β1^t), by which bias correction multiplies the learning rate at step t ≥ 1.

    m̂/(√v̂ + ε) = ρ(t)·m/(√v + ε√(1−β2^t)) exactly, so Adam without bias correction, with lr·ρ(t) and ε·√(1−β2^t),
    is Adam. It is not a steady warmup: for (.9, .999) it falls from .316 to .152 at step 12 and then rises.

    Reference: [theory] 4; [notepad] 4.1 (which leaves ε out).

    >>> bias_factor([1, 12]).round(3)
    array([0.316, 0.152])
    """
    b1, b2 = _check.betas(betas)
    steps = _steps(t)
    return np.sqrt(_one_minus_power(b2, steps)) / _one_minus_power(b1, steps)


def eps_factor(t: ArrayLike, betas: tuple[float, float] = (0.9, 0.999)) -> Array:
    """√(1−β2^t), by which ε must be multiplied for `bias_factor` to be bias correction exactly."""
    return np.sqrt(_one_minus_power(_check.betas(betas)[1], _steps(t)))


def bias_slope(t: ArrayLike, betas: tuple[float, float] = (0.9, 0.999)) -> Array:
    """dρ/dt at a real t > 0.

        dρ/dt = ρ · [ β1^t ln β1/(1−β1^t) − β2^t ln β2/(2(1−β2^t)) ]

    so ρ rises iff β2^t ln β2/(2(1−β2^t)) < β1^t ln β1/(1−β1^t).

    Reference: [theory] 4; [notepad] 4.1.

    >>> bool(bias_slope(5) < 0), bool(bias_slope(50) > 0)
    (True, True)
    """
    b1, b2 = _check.betas(betas)
    steps = _steps(t)
    return bias_factor(steps, betas) * (_log_slope(b1, steps) - _log_slope(b2, steps) / 2)


def bias_turning_point(betas: tuple[float, float] = (0.9, 0.999)) -> float | None:
    """The real t ≥ 1 at which ρ(t) is smallest, or None where it only rises or only falls from the first step on.

    Reference: [theory] 4.

    >>> round(bias_turning_point((0.9, 0.999)), 1)
    12.0
    >>> bias_turning_point((0.95, 0.95)) is None
    True
    """
    b1, b2 = _check.betas(betas)
    if b1 >= b2 or b1 == 0:  # with β1 = 0 only the rising factor is left; with β1 ≥ β2 only the falling one
        return None
    rises = lambda t: float(bias_slope(t, (b1, b2))) > 0  # noqa: E731
    if rises(1.0):
        return None
    low, high = 1.0, 2.0
    while not rises(high):
        low, high = high, 2 * high
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if rises(middle) else (middle, high)
    return (low + high) / 2


def first_step(
    betas: tuple[float, float] = (0.9, 0.999), *, zero_init: bool = True, bias_correction: bool = True
) -> float:
    """Size of Adam's first step as a multiple of sign(g), ε aside.

    | | bias correction | none |
    |---|---|---|
    | moments start at zero | 1 | (1−β1)/√(1−β2) |
    | moments start at g, g² | √(1−β2)/(1−β1) | 1 |

    Reference: [theory] 4; [notepad] ch. 4, "Bias Correction isn't the End of the Story".

    >>> round(first_step((0.9, 0.999), bias_correction=False), 4)
    3.1623
    """
    b1, b2 = _check.betas(betas)
    raw = (1 - b1) / math.sqrt(1 - b2)
    m_over_v = raw if zero_init else 1.0
    return m_over_v / raw if bias_correction else m_over_v


def _steps(t: ArrayLike) -> Array:
    steps = np.asarray(t, dtype=np.float64)
    if not np.all(np.isfinite(steps) & (steps > 0)):
        raise ValueError(f"t = {t!r}: must be > 0 (the first step is t = 1)")
    return steps


def _one_minus_power(beta: float, t: Array) -> Array:
    return -np.expm1(t * math.log(beta)) if beta > 0 else np.ones_like(t)


def _log_slope(beta: float, t: Array) -> Array:
    """β^t ln β / (1−β^t)."""
    return beta**t * math.log(beta) / _one_minus_power(beta, t) if beta > 0 else np.zeros_like(t)
