"""Every optimizer as filter, bend and coupling, and every kind of decay as the share of the weights that it keeps.

One table for the stationary state (`walk`) and the whole run (`trajectory`): each reads off a `Direction` what the
optimizer is, and never asks for its name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from equipoise import _check
from equipoise._check import Array
from equipoise.theory._recursions import begun_with_one
from equipoise.theory.kernels import (
    Filter,
    Kernel,
    adam_factors,
    identity_kernel,
    matrix_sign_kernel,
    mean_square_ratio,
    sign_kernel,
)

OPTIMIZERS = ("sgdm", "rmsprop", "adam", "adamw", "adam_l2", "adam_nested", "signsgdm", "lion", "muon", "ngd")
"""Names of the optimizers, here and on the command line."""

DECAYS = ("lr", "schedule", "independent", "corrected", "cautious")
"""Kinds of decay, in order w ← (1−ηλ)w as in torch, (1−λη/η_max)w, (1−λ)w, (1−λη²/η_max)w, and (1−ηλ)w if u·w ≥ 0."""

POWERS = {"lr": (1, 0), "schedule": (0, 1), "independent": (0, 0), "corrected": (1, 1), "cautious": (1, 0)}
"""Of each kind the powers of η and of min(1, η/η_max) that multiply λ."""

BY_LR_MAX = tuple(kind for kind, (_, share) in POWERS.items() if share)
"""The kinds that need to know the largest lr."""

MEANING = {
    "lr": "lr · weight_decay",
    "schedule": "weight_decay · lr / lr_max",
    "independent": "weight_decay",
    "corrected": "weight_decay · lr² / lr_max",
    "cautious": "lr · weight_decay",
}
"""What each takes of the weights."""

BETAS = {"lion": (0.9, 0.99)}
"""The optimizers whose averaging factors, where nobody says, are not Adam's (0.9, 0.999): those of `eq.Lion`."""

SCALES = ("original", "adam", "spectral", "none")
"""What Muon multiplies UVᵀ by: see `matrix_scale`."""

Shape = tuple[int, ...]

_ADAM = ("adam", "adamw", "adam_l2", "adam_nested")
_SATURATING = ("signsgdm", "lion", "muon", "ngd")


def matrix_scale(rows: int, columns: int, rule: str) -> float:
    """What UVᵀ of a rows × columns matrix is multiplied by.

    "original" √max(1, rows/columns), of Muon's authors and torch; "adam" 0.2·√max(rows, columns), which gives the
    update Adam's RMS ([liu2025]); "spectral" √(rows/columns), dualize of the RMS→RMS norm
    ([theory] 8).

    Args:
        rows: outputs.
        columns: inputs.
        rule: one of `SCALES`.
    """
    match rule:
        case "original":
            return math.sqrt(max(1.0, rows / columns))
        case "adam":
            return 0.2 * math.sqrt(max(rows, columns))
        case "spectral":
            return math.sqrt(rows / columns)
        case _:
            return 1.0


class MatrixLayout(NamedTuple):
    """Which part of a parameter is a matrix to Muon and similar optimizers.

    Attributes:
        stack: how many matrices it is: a stack of experts, a fused QKV or heads that are split.
        rows: of each.
        columns: of each.
        scale: what the orthogonal factor of each is multiplied by, besides lr.
    """

    stack: int
    rows: int
    columns: int
    scale: float


@dataclass(frozen=True)
class Direction:
    """An optimizer's update direction as filter, bend and coupling: all that the moments need to know of it.

    Made by `direction`. `saturating` directions have a fixed size `square`; the others are linear in the gradients,
    up to Adam's 1/√v (`adaptive`).
    """

    name: str
    filter: Filter
    size: int
    square: float
    kernel: Kernel
    beta2: float
    adaptive: bool
    nested: bool
    signed: bool
    saturating: bool
    coupled: bool

    @property
    def fixed_size(self) -> bool:
        """Whether the size of an update does not depend on the size of the gradients."""
        return self.saturating or self.adaptive


def default_betas(optimizer: str) -> tuple[float, float]:
    """The averaging factors of an optimizer where nobody says.

    >>> default_betas("adamw"), default_betas("lion")
    ((0.9, 0.999), (0.9, 0.99))
    """
    return BETAS.get(optimizer, (0.9, 0.999))


def direction(
    optimizer: str,
    *,
    size: int | None = None,
    shape: tuple[int, ...] | None = None,
    betas: tuple[float, float] | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
    decay: str = "lr",
    coupled: bool | None = None,
    newton_schulz: int = 0,
    quintics: str = "muon",
) -> Direction:
    """Check an optimizer's arguments and describe its update direction.

    Where `betas` are None they are `default_betas`. `momentum` and `betas[0]` name the same factor, under the name that
    each optimizer uses; `momentum` wins where it is given. RMSProp and normalised GD average nothing and ignore it.
    """
    name = _check.choice("optimizer", optimizer, OPTIMIZERS)
    _check.choice("decay", decay, DECAYS)
    beta1, beta2 = _check.betas(default_betas(name) if betas is None else betas)
    if momentum is not None:
        beta1 = _check.number("momentum", momentum, low=0, high=1, open_high=True)
    count, (stack, rows, columns) = _size(name, size, shape)
    can_couple = name in ("sgdm", "adam_l2")
    if coupled is None:
        coupled = name == "adam_l2" or (name == "sgdm" and decay == "lr")
    if coupled and not can_couple:
        raise ValueError(f"coupled = True with optimizer = {name!r}: must be False; use 'sgdm' or 'adam_l2' for L2")
    if name == "adam_l2" and not coupled:
        raise ValueError("coupled = False with optimizer = 'adam_l2': must be True; 'adamw' is the decoupled one")
    if coupled and decay != "lr":
        raise ValueError(f"decay = {decay!r} with coupled L2: must be 'lr'; the other kinds exist for decoupled decay")
    if nesterov and name not in ("sgdm", "muon"):
        raise ValueError(f"nesterov = True with optimizer = {name!r}: must be False; it exists for 'sgdm' and 'muon'")

    kernel, square = identity_kernel(), 1.0
    match name:
        case "sgdm":
            taps = Filter.momentum(beta1, nesterov=nesterov, ema=False)
        case "lion":
            taps, kernel, square = Filter.lion(beta1, beta2), sign_kernel(), float(count)
        case "signsgdm":
            taps, kernel, square = Filter.momentum(beta1), sign_kernel(), float(count)
        case "muon":
            taps = Filter.momentum(beta1, nesterov=nesterov)
            kernel, each = matrix_sign_kernel(rows, columns, newton_schulz, quintics)
            square = stack * min(rows, columns) * each
        case "rmsprop" | "ngd":
            taps = Filter.momentum(0.0)
        case _:
            taps = Filter.momentum(beta1)
    return Direction(
        name=name,
        filter=taps,
        size=count,
        square=square,
        kernel=kernel,
        beta2=beta2,
        adaptive=name in _ADAM or name == "rmsprop",
        nested=name == "adam_nested",
        signed=name in ("signsgdm", "lion"),
        saturating=name in _SATURATING,
        coupled=coupled,
    )


def decay_share(lr: Any, weight_decay: Any, *, decay: str = "lr", lr_max: float | None = None) -> Any:
    """d, the share of the weights that a step's decay takes (cautious: where it acts), 1 or more included.

    The one place that knows the kinds of decay; steps, plans and measurements ask it. Where lr is above η_max it counts
    as η_max in η/η_max: corrected decay takes ηλ there, and that by the schedule λ.

    Args:
        lr: η, a number, an array or a tensor.
        weight_decay: λ, a number or an array.
        decay: one of `DECAYS`.
        lr_max: η_max. Default: the largest lr.

    >>> decay_share(1e-3, 0.1), decay_share(1e-3, 0.1, decay="corrected", lr_max=1e-2)
    (0.0001, 1e-05)
    >>> decay_share(1e-3, 0.1, decay="corrected", lr_max=1e-4)
    0.0001
    """
    by_lr, by_share = POWERS[decay]
    taken = lr * weight_decay if by_lr else weight_decay + 0.0 * lr
    return taken * share_of_largest(lr, lr_max) if by_share else taken


def share_of_largest(lr: Any, lr_max: float | None) -> Any:
    """min(1, η/η_max)."""
    largest = lr if lr_max is None else lr_max
    share = lr / (float(np.max(largest)) or 1e-38)
    return share.clip(max=1.0) if hasattr(share, "clip") else min(share, 1.0)


def kept_share(lr: Array, weight_decay: Array, *, decay: str = "lr", lr_max: float | None = None) -> Array:
    """a_t = 1 − d_t, the share of the weights that a step's decay keeps; refuses decay that takes all of them."""
    _check.choice("decay", decay, DECAYS)
    if decay in BY_LR_MAX and lr_max is not None:
        _check.number("lr_max", lr_max, low=0, open_low=True)
    lost = decay_share(lr, weight_decay, decay=decay, lr_max=lr_max)
    _check.below_one(lost, lr, weight_decay, MEANING[decay])
    return 1.0 - lost


def autocorrelation(u: Direction, kept: float = 1.0) -> Array:
    """R(k) for k = 0, 1, … as far as it matters; for SGDM per unit of squared gradient norm.

    Reference: the table of [theory] 1.

    >>> autocorrelation(direction("signsgdm", size=3, momentum=0.0))
    array([3., 0.])
    """
    lags = u.filter.lags(kept)
    rho = u.filter.correlation(lags)
    if u.saturating:
        # f(1) = 1 exactly; the expansion behind a measured kernel knows it only nearly.
        return u.square * np.concatenate([[1.0], u.kernel(rho[1:])])
    if not u.adaptive:
        return u.filter.power * rho
    if u.nested:
        return u.size * u.filter.power * rho * mean_square_ratio(u.beta2, (0.0,))[0]
    return u.size * u.filter.power * rho * adam_factors(u.filter.p, u.beta2, lags)


def started_square(u: Direction, t: int, *, corrected: bool, zero_init: bool = True) -> float:
    """r_t: E‖u_t‖² of averages that began t steps ago, up to a factor that does not depend on t.  [theory] 7.

        averages that begin empty    A² + B²(1 − p^{2(t−1)})/(1 − p²)   of the filter; Adam: / (1−β1^t)², or / (1−β2^t)
        from the first gradient      β1^{2(t−1)} E[z²/v] + (1−β1)²(1 − β1^{2(t−1)})/(1 − β1²) E[1/v],
                                     v = β2^{t−1}z² + 1 − β2^{t−1} (`_recursions.begun_with_one`)

    Args:
        u: the direction; those of fixed size have it from the start.
        t: the step, from 1.
        corrected: whether averages are corrected for their start at zero.
        zero_init: whether averages begin empty, and not with the first gradient.
    """
    if u.saturating:
        return 1.0
    taps, old = u.filter, u.filter.p ** (2 * (t - 1))
    if zero_init or not u.adaptive:
        square = taps.A**2 + taps.B**2 * (1 - old) / (1 - taps.p**2)
        if not u.adaptive:
            return square
        return square / (1 - taps.p**t) ** 2 if corrected else square / (1 - u.beta2**t)
    first = u.beta2 ** (t - 1)
    inverse, own = begun_with_one(first, 1 - first)
    square = old * own + taps.A**2 * (1 - old) / (1 - taps.p**2) * inverse
    return square * (1 - u.beta2**t) / (1 - taps.p**t) ** 2 if corrected else square


def finite_beta2(u: Direction) -> tuple[float, float]:
    """Factors on E‖u‖² and on Σ_k R(k), k ≥ 1, by which a fluctuating v moves Adam's direction."""
    if not u.adaptive:
        return 1.0, 1.0
    if u.nested or u.filter.p == 0:
        own = float(mean_square_ratio(u.beta2, (0.0,))[0])
        return own, own
    R = autocorrelation(u)
    plain = u.size * u.filter.power * u.filter.correlation(len(R))
    return float(R[0] / plain[0]), float(R[1:].sum() / plain[1:].sum())


def _size(name: str, size: Any, shape: Any) -> tuple[int, tuple[int, int, int]]:
    """The number of weights, and for Muon that of matrices, of their rows and columns."""
    if shape is not None:
        if not isinstance(shape, tuple | list) or len(shape) == 0:
            raise ValueError(f"shape = {shape!r}: must be a tuple of whole numbers ≥ 1")
        dims = [_check.whole(f"shape[{i}]", s, low=1) for i, s in enumerate(shape)]
        count = math.prod(dims)
        if size is not None and _check.whole("size", size, low=1) != count:
            raise ValueError(f"size = {size} and shape = {shape!r} disagree: give one of them")
        if name == "muon" and len(dims) < 2:
            raise ValueError(f"shape = {shape!r}: must be (rows, columns) for muon, or (…, rows, columns) of a stack")
        rows, columns = dims[-2:] if len(dims) > 1 else (1, count)
        return count, (count // (rows * columns), rows, columns)
    if name == "muon":
        raise ValueError("shape = None: must be (rows, columns) for muon, or (…, rows, columns) of a stack")
    if size is None:
        if name in ("sgdm", "ngd"):
            return 1, (1, 1, 1)  # their sizes do not depend on the number of weights
        raise ValueError(f"size = None: must be the number of weights (a whole number ≥ 1) for {name}")
    return _check.whole("size", size, low=1), (1, 1, 1)
