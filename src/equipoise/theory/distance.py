"""How far weights move from their start, which matters for fine-tuning.  [theory] 2, 3 and 5.

w_T = P·w_0 − Σ_j c_j u_j, so that the distance has two parts: what decay takes of w_0, and what updates add. How far
updates add up depends on the gradients. Fresh noise at each step is a random walk and adds up to the least; gradients
that never change add up to the most. Real runs lie between the two.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from equipoise import _check
from equipoise._check import Array
from equipoise.theory.directions import Direction, direction
from equipoise.theory.trajectory import Forecast


def distance(forecast: Forecast, *, kept: ArrayLike | None = None) -> Array:
    """Root mean square of ‖w_t − w_0‖ after each step of a random walk.

        E‖w_t − w_0‖² = E‖w_t‖² + (1 − 2P_t)‖w_0‖²        as E⟨w_t, w_0⟩ = P_t‖w_0‖²,  P_t = Π a_i

    Args:
        forecast: of the run.
        kept: a_t, the share that a step's decay keeps, where it is not `forecast.kept`: L2 that goes through momentum
            takes 1/(1−α) times as much. What Adam makes of L2 is not known.

    Reference: [theory] 2 and 3. Without decay and momentum it is η√(t·E‖u‖²).

    >>> from equipoise.theory import forecast
    >>> f = forecast("signsgdm", lr=1e-3, weight_decay=0.0, steps=100, size=400, init_norm=1.0, momentum=0.0)
    >>> round(float(distance(f)[-1]), 3)
    0.2
    """
    a = forecast.kept if kept is None else _check.series("kept", kept, forecast.steps, low=0)
    lost = -np.expm1(np.cumsum(np.log(np.maximum(a, 1e-300))))  # 1 − P, exact where little is lost
    start = forecast.init_norm**2
    return np.sqrt(np.maximum(forecast.norm**2 - start + 2 * lost * start, 0.0))


def steady_update(
    optimizer: str,
    *,
    size: int | None = None,
    shape: tuple[int, ...] | None = None,
    betas: tuple[float, float] | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
    grad_norm: float = 1.0,
) -> float:
    """‖u‖ when the gradient is the same at every step: the largest update that can persist.

    √C for Adam, Lion and signs; √min(m, n) for Muon; ‖g‖/(1−α) for SGD. With `travel_bound` it bounds the distance,
    but for the long first steps of averages that start at 0 and are not corrected for it (RMSProp).

    Args:
        optimizer: one of `OPTIMIZERS`.
        size: number of weights.
        shape: their shape instead; (m, n) is needed for Muon.
        betas: averaging factors.
        momentum: another name for `betas[0]`.
        nesterov: Nesterov momentum.
        grad_norm: ‖g‖, which SGD's update depends on.

    >>> round(steady_update("adamw", size=400), 9), round(steady_update("sgdm", momentum=0.9, grad_norm=2.0), 9)
    (20.0, 20.0)
    """
    return longest(
        direction(optimizer, size=size, shape=shape, betas=betas, momentum=momentum, nesterov=nesterov), grad_norm
    )


def longest(u: Direction, grad_norm: float = 1.0) -> float:
    """‖u‖ of a direction when the gradient is the same at every step: `steady_update`."""
    if u.saturating:
        return math.sqrt(u.square)
    long = abs(u.filter.gain)
    return long * math.sqrt(u.size) if u.adaptive else long * _check.number("grad_norm", grad_norm, low=0)
