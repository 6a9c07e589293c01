"""Transfer effective step sizes between a baseline and its rotational variant.

A rotational variant turns the weights at step t by η_r(lr_t, wd), what the baseline would do in equilibrium, from the
first step on. A baseline gets there only after a transient: its norm first has to settle. So the same schedule means
different effective steps in the two, and these functions find the schedule that means the same:

    baseline --theory.forecast, or a measured run--> rotation --`rotational_lr`--> lr of the variant
    variant  --`variant_rotation`------------------> rotation --`baseline_lr`----> lr of the baseline

In a random walk η_r depends on p = lr·wd alone, and η_r²/p is smooth down to p = 0. It is tabulated at Chebyshev nodes
of ln(1 + p/c), c the share that momentum forgets a step, and so is its inverse; a million steps are one evaluation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import ArrayLike

from equipoise import _check, theory
from equipoise._check import Array
from equipoise.schedules.base import Schedule
from equipoise.schedules.compose import scale
from equipoise.schedules.curves import constant
from equipoise.schedules.table import from_array

_LARGEST = 0.999
"""The largest lr·wd: at 1 decay takes all of the weight."""

_NODES = 64


def variant_rotation(
    lr: Schedule | ArrayLike,
    *,
    weight_decay: Schedule | ArrayLike,
    steps: int | None = None,
    optimizer: str = "adamw",
    betas: tuple[float, float] | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
    shape: tuple[int, int] | None = None,
    coupled: bool | None = None,
    method: str = "exact",
) -> Array:
    """The rotation of each step of a rotational variant, η_r(lr_t, wd_t), in radians.

        small_step:  η_r = √(2ηλ(1−β1)/(1+β1)) for AdamW, √(2ηλ/(1+α)) for SGDM, …
        exact:       the θ of `theory.stationary`, which holds at any step size

    Args:
        lr: learning rate of the variant: a schedule, a number, or one a step.
        weight_decay: weight decay, in the same forms.
        steps: number of steps; may be left out where an array or the end of a schedule tells it.
        optimizer: one of `theory.OPTIMIZERS` but "adam_l2", whose rotation depends on the gradients.
        betas: averaging factors; None for those of `theory.default_betas`.
        momentum: another name for `betas[0]`, for SGDM, SignSGDM and Muon.
        nesterov: Nesterov momentum, for SGDM and Muon.
        shape: (rows, columns), for Muon.
        coupled: as `theory.stationary` has it: by default L2 in the gradient for SGDM.
        method: "exact" or "small_step".

    Reference: [theory] 7 and 1; [kosson2024] Table 1 and Algorithm 1.

    >>> variant_rotation(1e-3, weight_decay=0.1, steps=2, method="small_step").round(6).tolist()
    [0.003244, 0.003244]
    """
    T = _steps(steps, lr, weight_decay)
    eta, lam = _series("lr", lr, T), _series("weight_decay", weight_decay, T)
    _check.below_one(eta * lam, eta, lam, "lr · weight_decay")
    law = _law(optimizer, _betas(optimizer, betas), momentum, nesterov, shape, coupled, method)
    p = eta * lam
    return np.sqrt(p * law.square_over_product(p))


def rotational_lr(
    rotation: theory.Forecast | ArrayLike,
    *,
    weight_decay: Schedule | ArrayLike,
    optimizer: str = "adamw",
    betas: tuple[float, float] | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
    shape: tuple[int, int] | None = None,
    coupled: bool | None = None,
    method: str = "exact",
) -> Schedule:
    """The learning rates with which a rotational variant turns the weights as a given run did.

    Solves η_r(lr_t, wd_t) = rotation_t for lr_t. The variant then takes the baseline's effective steps, its warmup
    and transient included.

    Args:
        rotation: a baseline's `theory.Forecast`, or a run's rotation at each step in radians.
        weight_decay: the variant's weight decay > 0: a schedule, a number, or one a step.
        optimizer: as in `variant_rotation`, and so the others.
        betas: averaging factors; None for those of `theory.default_betas`.
        momentum: another name for `betas[0]`.
        nesterov: Nesterov momentum.
        shape: (rows, columns), for Muon.
        coupled: L2 in the gradient.
        method: "exact" or "small_step"; the one that the variant uses.

    Raises:
        ValueError: where a rotation is larger than the variant has at lr·wd = 0.999.

    Reference: [theory] 7; [kosson2024] "Scheduling Effects" and "Need for Learning Rate Warmup".

    >>> s = rotational_lr([0.003244428, 0.001], weight_decay=0.1, method="small_step")
    >>> s.values().round(7).tolist()
    [0.001, 9.5e-05]
    """
    theta = _rotation(rotation)
    lam = _series("weight_decay", weight_decay, len(theta), open_low=True)
    law = _law(optimizer, _betas(optimizer, betas), momentum, nesterov, shape, coupled, method)
    if (high := theta > law.largest).any():
        t = int(np.argmax(high))
        raise ValueError(
            f"rotation[{t}] = {theta[t]:.6g}: must be ≤ {law.largest:.6g} rad, what rotational {optimizer} reaches at "
            f"lr · weight_decay = {_LARGEST}; cap it with np.minimum(rotation, {law.largest:.6g})"
        )
    square = theta**2
    return from_array(square * law.product_over_square(square) / lam)


def baseline_lr(
    rotation: theory.Forecast | ArrayLike,
    *,
    weight_decay: Schedule | ArrayLike,
    init_norm: float,
    optimizer: str = "adamw",
    size: int | None = None,
    tolerance: float = 1e-10,
    **setting: Any,
) -> Schedule:
    """The learning rates with which a baseline's forecast rotation follows a wanted curve.

    The reverse of `rotational_lr`: give it the `variant_rotation` of a schedule to learn which warmup and which
    compensation for a moving norm the baseline would need to do the same.

    Step t turns the weights by about lr_t‖u‖/‖w‖, and ‖w‖ follows the root of past lr, so lr_t ← lr_t·(wanted/forecast)
    halves the error each time; it is repeated until the whole curve fits.

    Args:
        rotation: the wanted rotation of each step in radians, or a `theory.Forecast` that has it.
        weight_decay: the baseline's weight decay: a schedule, a number, or one a step.
        init_norm: ‖w_0‖.
        optimizer: one of `theory.OPTIMIZERS`.
        size: number of weights of the neuron or tensor.
        tolerance: largest relative error of the rotation at any step.
        **setting: `betas`, `momentum`, `shape`, `grad_norm` … as `theory.forecast` takes them.

    Raises:
        ValueError: where no learning rate turns the weights so far, naming the first such step.

    Reference: [theory] 2 and 7.

    >>> from equipoise import theory
    >>> wanted = variant_rotation(1e-2, weight_decay=0.1, steps=100)
    >>> lr = baseline_lr(wanted, weight_decay=0.1, size=512, init_norm=1.0)
    >>> f = theory.forecast("adamw", lr=lr.values(), weight_decay=0.1, size=512, init_norm=1.0)
    >>> bool(abs(f.rotation / wanted - 1).max() < 1e-9)
    True
    """
    wanted = _rotation(rotation)
    lam = _series("weight_decay", weight_decay, len(wanted))
    tol = _check.number("tolerance", tolerance, low=0, open_low=True)
    turns = wanted > 0
    cap = _LARGEST / np.maximum(lam, 1e-300)
    lr = np.where(turns, np.minimum(1e-3, cap), 0.0)
    error = np.zeros(len(wanted))
    for _ in range(200):
        got = theory.forecast(
            optimizer, lr=lr, weight_decay=lam, steps=len(lr), size=size, init_norm=init_norm, **setting
        ).rotation
        ratio = np.ones(len(lr))
        np.divide(np.tan(wanted / 2), np.tan(got / 2), out=ratio, where=turns & (got > 0))
        error = np.abs(ratio - 1)
        if error.max() <= tol:
            return from_array(lr)
        lr = np.minimum(lr * np.clip(ratio, 1e-3, 1e3), cap)
    t = int(np.argmax(error > tol))
    raise ValueError(
        f"rotation[{t}] = {wanted[t]:.6g}: no lr of {optimizer} with weight_decay = {lam[t]:.6g} was found that turns "
        f"the weights so (lr = {lr[t]:.6g} comes within {error[t]:.1e}); ask for less rotation, or less jumpy"
    )


def growing_lr(
    lr: Schedule | ArrayLike, *, weight_decay: Schedule | ArrayLike, steps: int | None = None, momentum: float = 0.0
) -> Schedule:
    """The learning rates that do for SGD what lr and weight decay do, without weight decay: they grow exponentially.

        momentum 0:   η̃_t = η_t/(A_{t−1}A_t),   A_t = Π_{i≤t}(1 − η_iλ_i)
        otherwise:    η̃_t = η·α^{1−2t},   α the larger root of x² − (1 + μ − ηλ)x + μ

    For weights whose scale does not count, as before a normalisation, whose gradient is ten times as large at a tenth
    of the norm. Directions are then the same at every step, and norms 1/A_t (or α^{−t}) times those with decay. With
    momentum, lr and weight decay must be constant and decay in the gradient, as in torch's SGD; the first steps differ,
    as the momentum starts at zero in both.

    Args:
        lr: η, a schedule, an array or a number.
        weight_decay: λ, a schedule, an array or a number.
        steps: length of the run, where neither says it.
        momentum: μ.

    Reference: [li2020].

    >>> growing_lr(0.1, weight_decay=0.5, steps=3).values().round(4).tolist()
    [0.1053, 0.1166, 0.1292]
    """
    mu = _check.number("momentum", momentum, low=0, high=1, open_high=True)
    T = _steps(steps, lr, weight_decay)
    eta, lam = _series("lr", lr, T), _series("weight_decay", weight_decay, T)
    _check.below_one(eta * lam, eta, lam, "lr · weight_decay")
    with np.errstate(over="ignore", divide="ignore"):
        if mu == 0:
            left = np.cumprod(1 - eta * lam)
            grown = eta / (left * np.append(1.0, left[:-1]))
        else:
            if np.ptp(eta) or np.ptp(lam):
                raise ValueError("momentum > 0: lr and weight_decay must be constant, or momentum 0")
            half, most = (1 + mu - eta[0] * lam[0]) / 2, (1 - mu**0.5) ** 2
            if eta[0] * lam[0] > most:
                raise ValueError(
                    f"lr · weight_decay = {eta[0] * lam[0]:.3g} with momentum = {mu:.3g}: must be at most "
                    f"(1 − √momentum)² = {most:.3g}, or the weights swing through zero"
                )
            root = half + np.sqrt(max(half * half - mu, 0.0))
            grown = eta[0] * root ** (1.0 - 2.0 * np.arange(1, T + 1))
    if not np.isfinite(grown).all():
        last = int(np.argmin(np.isfinite(grown)))
        raise ValueError(f"steps = {T}: must be fewer, at most {last}, beyond which lr grows beyond all numbers")
    return from_array(grown)


def rescaled(
    lr: Schedule | float, *, weight_decay: Schedule | float, factor: float, optimizer: str = "sgdm"
) -> tuple[Schedule, Schedule]:
    """lr and weight decay at which weights that are `factor` times as large do what others do at lr and weight_decay.

        SGD, whose steps are as long as gradients:  η̃ = r²η,  λ̃ = λ/r²
        the others:                                 η̃ = rη,   λ̃ = λ/r   (λ/r² of the L2 in Adam's gradient)

    Where two layers with a ReLU between them are W₁ and W₂, they can as well be rW₁ and W₂/r, with gradients 1/r and
    r times as large: the network says the same, but at one lr the layers turn r⁻² and r² times as fast by SGD. With
    these lrs, and those of 1/r for the second, it is the same run. So it is for a layer before a normalisation.

    Args:
        lr: η, a schedule or a number.
        weight_decay: λ, decoupled and taken times lr, likewise.
        factor: r.
        optimizer: one of `theory.OPTIMIZERS`.

    Reference: [kosson2024] Eq. 93.

    >>> lr, weight_decay = rescaled(0.1, weight_decay=0.5, factor=2.0)
    >>> lr(1), weight_decay(1)
    (0.4, 0.125)
    """
    r = _check.number("factor", factor, low=0, open_low=True)
    _check.choice("optimizer", optimizer, theory.OPTIMIZERS)
    up = r * r if optimizer == "sgdm" else r
    down = r * r if optimizer in ("sgdm", "adam_l2") else r
    curves = (one if isinstance(one, Schedule) else constant(one) for one in (lr, weight_decay))
    return tuple(scale(one, by) for one, by in zip(curves, (up, 1 / down), strict=True))  # type: ignore[return-value]


def _betas(optimizer: str, betas: tuple[float, float] | None) -> tuple[float, ...]:
    return theory.default_betas(optimizer) if betas is None else tuple(betas)


class _Law:
    """η_r² as a function of p = lr·wd, and back."""

    def __init__(self, forward: Callable[[Array], Array], backward: Callable[[Array], Array], largest: float) -> None:
        self.square_over_product = forward
        self.product_over_square = backward
        self.largest = largest


@functools.lru_cache(maxsize=64)
def _law(
    optimizer: str,
    betas: tuple[float, ...],
    momentum: float | None,
    nesterov: bool,
    shape: tuple[int, int] | None,
    coupled: bool | None,
    method: str,
) -> _Law:
    if optimizer == "adam_l2":
        raise ValueError("optimizer = 'adam_l2': its rotation depends on the gradients; must be another optimizer")

    def square(p: float) -> float:
        state = theory.stationary(
            optimizer,
            lr=p,
            weight_decay=1.0,
            size=None if shape is not None else 1024,  # angles do not depend on it
            shape=shape,
            betas=betas,  # type: ignore[arg-type]
            momentum=momentum,
            nesterov=nesterov,
            coupled=coupled,
            method=method,
        )
        return state.rotation**2

    if method == "small_step":  # proportional at any size; a power of two loses no digits in 1 − (1 − p)
        slope = square(2.0**-7) * 2.0**7
        return _Law(lambda p: np.full_like(p, slope), lambda s: np.full_like(s, 1 / slope), (slope * _LARGEST) ** 0.5)

    memory = betas[0] if momentum is None else momentum
    memory = max(memory, betas[1]) if optimizer == "lion" else memory
    c = 1 - memory

    def at_nodes(p: Array) -> Array:
        return np.array([square(x) / x for x in p.tolist()])

    forward = _fit(at_nodes, c, _LARGEST)
    top = square(_LARGEST)

    def inverse(s: Array) -> Array:
        low, high = np.zeros(len(s)), np.full(len(s), _LARGEST)
        for _ in range(100):
            middle = (low + high) / 2
            short = middle * forward(middle) < s
            low, high = np.where(short, middle, low), np.where(short, high, middle)
        return (low + high) / 2 / s

    return _Law(forward, _fit(inverse, c * float(forward(np.zeros(1))[0]), top), top**0.5)


def _fit(f: Callable[[Array], Array], c: float, largest: float) -> Callable[[Array], Array]:
    """A function on (0, largest] as a polynomial in ln(1 + p/c), by its values at Chebyshev nodes."""
    top = np.log1p(largest / c)
    x = chebyshev.chebpts1(_NODES)
    coefficients = chebyshev.chebfit(x, f(c * np.expm1((1 + x) / 2 * top)), _NODES - 1)

    def evaluate(p: Array) -> Array:
        return np.asarray(chebyshev.chebval(2 * np.log1p(p / c) / top - 1, coefficients), dtype=np.float64)

    return evaluate


def _rotation(value: theory.Forecast | ArrayLike) -> Array:
    array = value.rotation if isinstance(value, theory.Forecast) else value
    if np.ndim(array) != 1:
        raise ValueError("rotation: must be a Forecast, or a one-dimensional array with one angle a step")
    theta = _check.series("rotation", array, low=0)
    if (high := theta >= np.pi).any():
        t = int(np.argmax(high))
        raise ValueError(f"rotation[{t}] = {theta[t]:.6g}: must be < π, half a turn a step")
    return theta


def _series(name: str, value: Schedule | ArrayLike, steps: int, *, open_low: bool = False) -> Array:
    array = value.values(steps) if isinstance(value, Schedule) else value
    return _check.series(name, array, steps, low=0, open_low=open_low)


def _steps(steps: int | None, lr: Schedule | ArrayLike, weight_decay: Schedule | ArrayLike) -> int:
    if steps is None:
        for value in (lr, weight_decay):
            if isinstance(value, Schedule) and value.end is not None:
                return value.end
    known = {k: 0.0 if isinstance(v, Schedule) else v for k, v in (("lr", lr), ("weight_decay", weight_decay))}
    return _check.length(steps, **known)
