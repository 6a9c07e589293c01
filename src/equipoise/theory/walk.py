"""Stationary norm and rotation of every optimizer in a random walk.  [theory] 1; [kosson2024] Table 1, appendices E–I.

In a random walk each gradient is fresh noise. Decay pulls the weights in, updates push them out, and the norm settles
where the two balance; the rotation per step settles with it. `method="exact"` solves the second moments at any step
size; `method="small_step"` gives [kosson2024]'s Table 1, its limit for ηλ ≪ 1 − β1.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from equipoise import _check
from equipoise._check import Array
from equipoise.theory._recursions import masked_moments, masked_split
from equipoise.theory.directions import Direction, autocorrelation, finite_beta2, kept_share


@dataclass(frozen=True)
class Stationary:
    """Where a random walk settles.

    Attributes:
        norm: root mean square norm of the weight vector or matrix (Frobenius).
        rotation: angle between successive weights, in radians.
        update: root mean square norm of an update's gradient part, η_g = η√R(0).
    """

    norm: float
    rotation: float
    update: float


def settle(
    u: Direction, *, lr: float, weight_decay: float, kept: float, grad_norm: float, method: str, cautious: bool
) -> Stationary:
    """Where a direction settles; `Dynamics.stationary` checks the arguments.

    Args:
        u: the update direction.
        lr: what the direction is multiplied by in a step: η, and the scale that the optimizer gives to the shape.
        weight_decay: λ, which coupled L2 adds to the gradient.
        kept: a, the share of the weights that a step's decay keeps.
        grad_norm: g̃.
        method: "exact" or "small_step".
        cautious: whether decay acts only where u·w ≥ 0.

    With R(k) = E⟨u_t, u_{t+k}⟩,

        ‖w‖²  = η²/(1 − a²) · [R(0) + 2 Σ_{k≥1} a^k R(k)]
        cos θ = [a‖w‖² + η² Σ_{k≥1} a^{k−1} R(k)] / ‖w‖²

    and coupled L2 is solved for the fixed point of its moments.
    """
    eta, a, g2 = lr, kept, grad_norm**2
    if 0 < eta < 1e-120 and (u.coupled or a < 1):
        raise ValueError(f"lr = {lr!r}: must be 0 or at least 1e-120, because squares of smaller numbers underflow")
    if u.coupled:
        return (_coupled if method == "exact" else _coupled_small_step)(u, eta, weight_decay, g2)
    if a == 1.0 or eta == 0.0:
        still = eta == 0.0
        size_of = 0.0 if still or not u.fixed_size else eta * math.sqrt(autocorrelation(u, 1.0)[0])
        return Stationary(norm=0.0 if still and a < 1 else math.inf, rotation=0.0, update=size_of)
    if method == "small_step":
        return _small_step(u, eta, a, g2, cautious=cautious)
    R = autocorrelation(u, a)
    solve = _balance_cautious if cautious else _balance
    if u.fixed_size:
        q, theta = solve(u, R, a, eta)
    else:
        # Scale invariance makes R(k) ∝ g̃²/‖w‖²: where q = c·g̃²/q, q = g̃·√c. Angles do not depend on the size of R.
        c, theta = solve(u, R, a, eta)
        q = math.sqrt(c * g2)
        R = R * g2 / q
    return Stationary(norm=math.sqrt(q), rotation=theta, update=eta * math.sqrt(R[0]))


def _balance(u: Direction, R: Array, a: float, eta: float) -> tuple[float, float]:
    """‖w‖² and θ from the sums over R(k)."""
    del u
    powers = a ** np.arange(len(R) - 1)
    lagged = float(powers @ R[1:])  # Σ a^{k−1} R(k)
    q = eta**2 / (1 - a * a) * (R[0] + 2 * a * lagged)
    return q, _angle((1 - a) - eta**2 * lagged / q)


def _balance_cautious(u: Direction, R: Array, a: float, eta: float) -> tuple[float, float]:
    """The same where only coordinates with u·w ≥ 0 decay: ‖w‖ and the correlation of u and w found together.

    Per coordinate (u, w) is Gaussian (for the sign: the average behind u is), so a share φ of ‖w‖² decays; the mask
    follows u, so to the past the decay looks like one of all of w by dα and a step longer by dκ (`masked_split`):

        0 = η²R(0) − 2ηx − (2−d)dφq + 2dη·E[u·w; u·w ≥ 0],   d = ηλ,   x = E⟨w,u⟩ = −(η + dκ) Σ (1−dα)^{k−1} R(k)
    """
    d, lags, R0 = 1 - a, np.arange(len(R) - 1), float(R[0])
    q = _balance(u, R, a, eta)[0]
    x = phi = 0.0
    for _ in range(2000):
        phi, aligned, remembered = masked_moments(x, q, R0, d, u.signed)
        kept, more = masked_split(x, q, R0, d, phi, aligned, remembered)
        new_x = -(eta + more) * float((kept**lags) @ R[1:])
        new_q = (eta**2 * R0 - 2 * eta * new_x + 2 * d * eta * aligned) / ((2 - d) * d * phi)
        done = abs(new_q / q - 1) + abs(new_x - x) / math.sqrt(q * R0) < 1e-13
        q, x = math.sqrt(q * new_q), (x + new_x) / 2  # damped: the two feed back on each other
        if done:
            break
    return q, _angle(d * phi + eta * x / q)


def _coupled(u: Direction, eta: float, lam: float, g2: float) -> Stationary:
    """Fixed point of the moments of w and y with h = g + λw.  [theory] 1; small-step limits: [kosson2024] G, I."""
    if lam == 0 or eta == 0:
        return Stationary(norm=math.inf, rotation=0.0, update=0.0)

    def step_size(q: float) -> float:
        return eta / math.sqrt((g2 / q + lam**2 * q) / u.size) if u.adaptive else eta

    def surplus(log_q: float) -> float:
        q = math.exp(log_q)
        return math.log(_coupled_moments(u, step_size(q), lam)[0] * g2 / q) - log_q

    q = math.exp(_root(surplus, *_bracket(surplus, math.log(_coupled_small_step(u, eta, lam, g2).norm ** 2))))
    e = step_size(q)
    unit_q, unit_inner = _coupled_moments(u, e, lam)
    update = e * math.sqrt(u.filter.power * finite_beta2(u)[0] * g2 / q)
    return Stationary(norm=math.sqrt(q), rotation=_angle(e * unit_inner / unit_q), update=update)


def _coupled_moments(u: Direction, e: float, lam: float) -> tuple[float, float]:
    """E‖w‖² and E⟨w,n⟩ per unit of E‖g‖², from the linear fixed point in (q, ⟨w,y⟩, ‖y‖²) of `linear_moments`."""
    A, B, p = u.filter.A, u.filter.B, u.filter.p
    fix_r, fix_x = finite_beta2(u)
    wn = np.array([A * lam, B, 0.0]) * fix_x
    n2 = np.array([A * A * lam**2, 2 * A * B * lam, B * B]) * fix_r
    yn = np.array([A * lam**2, (A * p + B) * lam, B * p])
    system = np.array([-2 * wn + e * n2, np.array([lam, p - 1, 0]) - e * yn, [lam**2, 2 * p * lam, p * p - 1]])
    moments = np.linalg.solve(system, -np.array([e * A * A * fix_r, -e * A, 1.0]))
    if moments[0] <= 0:
        raise ValueError(f"weight_decay = {lam:.6g} makes coupled L2 oscillate without end: lower lr or weight_decay")
    return float(moments[0]), float(wn @ moments)


def _coupled_small_step(u: Direction, eta: float, lam: float, g2: float) -> Stationary:
    if lam == 0 or eta == 0:
        return Stationary(norm=math.inf, rotation=0.0, update=0.0)
    taps = u.filter
    if not u.adaptive:  # [kosson2024] Eq. 47, 51 and Table 1, where taps.gain = 1/(1−α) and taps.power = 1/(1−α²)
        norm = (eta * g2 * taps.gain / (2 * lam)) ** 0.25
        update = eta * math.sqrt(g2 * taps.power) / norm
        return Stationary(norm, update / norm, update)
    # [kosson2024] Eq. 84: 4λ²q³ − Cη²λ²q² − Cη²g̃² = 0, one positive root; Eq. 87.
    C = u.size
    roots = np.roots([4 * lam**2, -C * eta**2 * lam**2, 0.0, -C * eta**2 * g2])
    q = float(roots[np.abs(roots.imag) <= 1e-9 * np.abs(roots)].real.max())
    update = eta * math.sqrt(C * taps.power * g2 / (g2 + lam**2 * q**2))
    return Stationary(math.sqrt(q), update / math.sqrt(q), update)


def _small_step(u: Direction, eta: float, a: float, g2: float, *, cautious: bool) -> Stationary:
    """The limit ηλ ≪ 1 − β1: ‖w‖² = η²/(2d)·ΣR, θ = η√R(0)/‖w‖ with d = 1 − a.  [kosson2024] Table 1, where it has it.

    β2 → 1 as in [kosson2024]. The sign of Lion and SignSGDM is [kosson2024]'s Eq. 64, its linear part. Cautious decay
    takes half of ‖w‖² in this limit, momentum aside.
    """
    d = (1 - a) / 2 if cautious else 1 - a
    gain = u.filter.gain**2 / u.filter.power  # Σ R(k)/R(0) over all lags, of the filter alone
    if u.adaptive:
        R0 = u.size * u.filter.power
    elif u.saturating:
        R0 = u.square
        if u.signed:
            gain *= 2 / math.pi
        elif u.filter.B > 0:
            R = autocorrelation(u)
            gain = float(R[0] + 2 * R[1:].sum()) / R0
    else:
        R0 = u.filter.power
    q = eta**2 * R0 * gain / (2 * d)
    if not u.fixed_size:
        q = math.sqrt(q * g2)
        R0 *= g2 / q
    update = eta * math.sqrt(R0)
    return Stationary(math.sqrt(q), update / math.sqrt(q), update)


def gap_closed(u: Direction, lost: Array, eta: Array, lam: Array, grad_norm: float, *, cautious: bool) -> Array:
    """How much of −ln(gap in ‖w‖²) each step closes.

    A decoupled optimizer with updates of fixed size closes the gap in ‖w‖² by a² a step ([norm-note]; [kosson2024] Eq.
    36). Where updates shrink as the weights grow (SGDM) it is ‖w‖⁴ that closes geometrically, so near equilibrium the
    gap closes twice as fast; coupled L2 decays by ηλ/(1−α) a step ([kosson2024] Eq. 44). Adam+L2 decays by ηλ/√v, which
    grows with ‖w‖: 1.5 times as fast near equilibrium. Cautious decay acts on about half of ‖w‖².
    """
    lost = lost / 2 if cautious else lost
    faster = 1.0
    if not u.fixed_size:
        faster = 2 / (1 - u.filter.p) if u.coupled else 2.0
    elif u.coupled:
        top = int(lost.argmax())
        q = _coupled(u, float(eta[top]), float(lam[top]), grad_norm**2).norm ** 2
        faster = 1.5 / math.sqrt((grad_norm**2 / q + lam[top] ** 2 * q) / u.size)
    return -2 * faster * np.log1p(-lost)


def norm_over_time(steps: ArrayLike, *, lr: float, weight_decay: float, update_norm: float, init_norm: float) -> Array:
    """‖W_t‖ for constant lr and weight decay and updates of norm U orthogonal to the weights.

    ‖W_t‖² = ‖W_∞‖² + (1−ηλ)^{2t}(‖W_0‖² − ‖W_∞‖²) with ‖W_∞‖² = ηU²/(λ(2−ηλ)); without decay ‖W_0‖² + tη²U².

    Reference: [norm-note] "Estimating the weight norm". Momentum makes updates not orthogonal: see `forecast`.

    >>> norm_over_time([0, 3], lr=1.0, weight_decay=0.0, update_norm=1.0, init_norm=1.0)
    array([1., 2.])
    """
    t = np.asarray(steps, dtype=np.float64)
    eta, lam = _check.number("lr", lr, low=0), _check.number("weight_decay", weight_decay, low=0)
    U2 = _check.number("update_norm", update_norm, low=0) ** 2
    q0 = _check.number("init_norm", init_norm, low=0) ** 2
    a = float(kept_share(np.array([eta]), np.array([lam]))[0])
    if a == 1.0:
        return np.sqrt(q0 + t * eta**2 * U2)
    q_end = eta * U2 / (lam * (2 - eta * lam))
    return np.sqrt(q_end + a ** (2 * t) * (q0 - q_end))


def effective_lr(steps: ArrayLike, *, lr: float, weight_decay: float, update_norm: float, init_norm: float) -> Array:
    """η_eff = η‖u‖/‖W_t‖ before step t+1: the size of a step on the normalised weights.

    Tends to √(2ηλ) with decay and to 1/√t without, as [norm-note] has it in the limit; exact here at every t.

    Reference: [norm-note] "Weight Decay Controls The Effective Learning Rate".

    >>> effective_lr([0, 3], lr=0.5, weight_decay=0.0, update_norm=1.0, init_norm=0.5).round(6)
    array([1. , 0.5])
    """
    norm = norm_over_time(steps, lr=lr, weight_decay=weight_decay, update_norm=update_norm, init_norm=init_norm)
    return lr * update_norm / norm


def _angle(one_minus_cos: float) -> float:
    """θ from 1 − cos θ, without the loss that acos has at small angles."""
    return 2 * math.asin(math.sqrt(min(1.0, max(0.0, one_minus_cos / 2))))


def _bracket(f: Callable[[float], float], start: float) -> tuple[float, float]:
    """Two points around a root of a falling function, found by doubling steps."""
    low = high = start
    step = 0.1
    while f(low) < 0:
        low -= step
        step *= 2
    step = 0.1
    while f(high) > 0:
        high += step
        step *= 2
    return low, high


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    """The root of a falling function by bisection, to the last bits."""
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (middle, high) if f(middle) > 0 else (low, middle)
    return (low + high) / 2


LEVELS = 64
"""Settings at which a stationary state is computed; between them it is interpolated."""


def by_level(what: Callable[[float, float], tuple[float, ...]], lr: Array, weight_decay: Array) -> tuple[Array, ...]:
    """The values of a function at each lr and weight decay, interpolated if there are many.

    Args:
        what: (lr, weight decay) → values.
        lr: one a step.
        weight_decay: one a step.
    """
    both = np.stack([lr, weight_decay])
    pairs, which = np.unique(both, axis=1, return_inverse=True)
    many = pairs.shape[1] > LEVELS
    places = np.unique(np.linspace(0, len(lr) - 1, LEVELS).astype(int)) if many else np.arange(pairs.shape[1])
    found = np.array([what(float(x), float(wd)) for x, wd in (both[:, places] if many else pairs).T]).T
    if many:
        return tuple(np.interp(np.arange(len(lr)), places, part) for part in found)
    return tuple(found[:, which.reshape(-1)])
