"""`stationary`, `forecast` and `steps_to_equilibrium` for an optimizer that is given by name."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import ArrayLike

from equipoise import _check
from equipoise.theory.directions import OPTIMIZERS, Shape, default_betas, direction
from equipoise.theory.dynamics import Dynamics
from equipoise.theory.trajectory import Forecast
from equipoise.theory.walk import Stationary


def stationary(
    optimizer: str,
    *,
    lr: float,
    weight_decay: float,
    size: int | None = None,
    shape: Shape | None = None,
    betas: tuple[float, float] | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
    grad_norm: float = 1.0,
    decay: str = "lr",
    method: str = "exact",
    coupled: bool | None = None,
    lr_max: float | None = None,
) -> Stationary:
    """Norm, rotation and update size at which a scale-invariant weight settles in a random walk.

    Args:
        optimizer: one of `OPTIMIZERS`.
        lr: learning rate η.
        weight_decay: λ. With 0 there is no equilibrium: the norm is infinite and the rotation 0.
        size: number of weights C of the neuron or tensor whose norm is asked for.
        shape: its shape instead, which Muon needs: (m, n), or (…, m, n) of a stack of matrices.
        betas: averaging factors. RMSProp uses the second as its α. Default: (0.9, 0.999), for Lion (0.9, 0.99).
        momentum: another name for `betas[0]`, for SGDM, SignSGDM and Muon.
        nesterov: Nesterov momentum, for SGDM and Muon.
        grad_norm: g̃, root mean square gradient norm at unit weight norm. SGDM's norm and Adam+L2 depend on it.
        decay: one of `DECAYS`. Cautious decay is within 5 % up to ηλ = 5(1−β) and not to be trusted far beyond.
        method: "exact", or "small_step" for [kosson2024]'s Table 1.
        coupled: L2 in the gradient instead of decoupled decay. Default: for "adam_l2", and for "sgdm" as torch does.
        lr_max: the η_max of corrected decay. Default: `lr`.

    Returns:
        A `Stationary` with `.norm`, `.rotation` (radians per step) and `.update`.

    The same of an optimizer that is there, or of several tensors: `Dynamics.stationary`. The equations: `walk.settle`.

    Reference: [theory] 1; [kosson2024] Table 1, Eq. 37, 40 (AdamW), 47, 51 (SGDM), 70–72 (Lion), 84, 87 (Adam+L2).
    [kosson2024]'s formulas are the limit of small steps: at ηλ = 0.05 its AdamW norm is 16 % too large for β1 = 0.9.

    >>> s = stationary("adamw", lr=1e-3, weight_decay=0.1, size=4096, method="small_step")
    >>> f"{s.norm / 64:.4f} {s.rotation:.3e}"
    '0.0707 3.244e-03'
    """
    own = _named(optimizer, betas, momentum, nesterov, decay=decay, coupled=coupled, lr_max=lr_max)
    where = _tensor(optimizer, size, shape)
    return own.stationary(where, lr=lr, weight_decay=weight_decay, grad_norm=grad_norm, method=method)


def forecast(
    optimizer: str,
    *,
    lr: ArrayLike,
    weight_decay: ArrayLike,
    steps: int | None = None,
    size: int | None = None,
    shape: Shape | None = None,
    init_norm: float,
    betas: tuple[float, float] | None = None,
    momentum: float | None = None,
    nesterov: bool = False,
    grad_norm: float = 1.0,
    decay: str = "lr",
    coupled: bool | None = None,
    lr_max: float | None = None,
    bias_correction: bool | None = None,
    scale_invariant: bool = True,
    radial: ArrayLike = 0.0,
    drift: ArrayLike = 0.0,
    scale: ArrayLike = 1.0,
) -> Forecast:
    """Norm, rotation and update size at every step of a run.

    Args:
        optimizer: one of `OPTIMIZERS`.
        lr: learning rate, a number or one a step.
        weight_decay: weight decay, a number or one a step.
        steps: number of steps; may be left out where an array tells it.
        size: number of weights C.
        shape: their shape instead, which Muon needs: (m, n), or (…, m, n) of a stack of matrices.
        init_norm: ‖w‖ before the first step.
        betas: averaging factors. RMSProp uses the second as its α. Default: (0.9, 0.999), for Lion (0.9, 0.99).
        momentum: another name for `betas[0]`, for SGDM, SignSGDM and Muon.
        nesterov: Nesterov momentum, for SGDM and Muon.
        grad_norm: g̃, root mean square gradient norm at unit weight norm (of a scale-invariant weight).
        decay: one of `DECAYS`.
        coupled: L2 in the gradient instead of decoupled decay. Default: for "adam_l2", and for "sgdm" as torch does.
        lr_max: the η_max of corrected decay. Default: the largest lr.
        bias_correction: of Adam's averages. Default: as torch, yes for Adam and no for RMSProp.
        scale_invariant: gradients shrink as 1/‖w‖; False for a gradient of fixed size.
        radial: λ_u = E⟨u,w⟩/‖w‖², measured radial part of the direction, which acts as more decay ([kosson2024]
            appendix L). Where decay is coupled it is the gradient's, and goes through momentum as L2 does.
        drift: more decay that does not go through momentum, whether decay is coupled or not; not for "adam_l2".
        scale: C_err = measured E‖u‖² over the random walk's.

    Returns:
        A `Forecast`, with `.norm`, `.rotation`, `.update`, each of one value a step, and `.memory`.

    The same of an optimizer that is there: `Dynamics.forecast`. The equations: `trajectory.follow`.

    Reference: [theory] 2. [norm-note]'s and [kosson2024] Eq. 36's geometric relaxation are special cases without
    momentum.

    >>> from equipoise.theory import stationary
    >>> f = forecast("lion", lr=1e-2, weight_decay=0.1, steps=5000, size=512, init_norm=1.0)
    >>> s = stationary("lion", lr=1e-2, weight_decay=0.1, size=512)
    >>> bool(abs(f.norm[-1] / s.norm - 1) < 1e-3), bool(abs(f.rotation[-1] / s.rotation - 1) < 1e-3)
    (True, True)
    """
    own = _named(
        optimizer, betas, momentum, nesterov, decay=decay, coupled=coupled, lr_max=lr_max,
        bias_correction=bias_correction,
    )  # fmt: skip
    return own.forecast(
        _tensor(optimizer, size, shape), lr=lr, weight_decay=weight_decay, init_norm=init_norm, steps=steps,
        grad_norm=grad_norm, scale_invariant=scale_invariant, radial=radial, drift=drift, size=scale,
    )  # fmt: skip


def steps_to_equilibrium(
    optimizer: str,
    *,
    lr: ArrayLike,
    weight_decay: ArrayLike,
    fraction: float = 0.05,
    decay: str = "lr",
    momentum: float = 0.9,
    coupled: bool | None = None,
    lr_max: float | None = None,
    size: int | None = None,
    grad_norm: float = 1.0,
) -> float:
    """Steps until only `fraction` of the gap between ‖w‖² and its equilibrium is left.

    A decoupled optimizer with updates of fixed size closes the gap in ‖w‖² by a² a step: Π a_i² = fraction, or
    t = ln(fraction)/(2 ln a). Others are faster: `walk.gap_closed`.

    Args:
        optimizer: one of `OPTIMIZERS`.
        lr: learning rate, a number or one a step.
        weight_decay: weight decay, a number or one a step.
        fraction: the share of the gap that counts as closed.
        decay: one of `DECAYS`.
        momentum: averaging factor of SGDM.
        coupled: L2 in the gradient, for SGDM.
        lr_max: the η_max of corrected decay.
        size: number of weights, for Adam+L2.
        grad_norm: g̃, for Adam+L2.

    Returns:
        The number of steps; beyond the end of arrays it is carried on at their mean rate. Infinite without decay.

    >>> round(steps_to_equilibrium("adamw", lr=1e-3, weight_decay=0.1))
    14978
    """
    first = momentum if optimizer == "sgdm" else None
    own = _named(optimizer, None, first, False, decay=decay, coupled=coupled, lr_max=lr_max)
    return own.steps_to_equilibrium(size or 1, lr=lr, weight_decay=weight_decay, fraction=fraction, grad_norm=grad_norm)


def _named(optimizer: str, betas: Any, momentum: float | None, nesterov: bool, **fields: Any) -> Dynamics:
    """The dynamics of an optimizer by name; `momentum` and `betas[0]` name the same factor, and momentum wins."""
    _check.choice("optimizer", optimizer, OPTIMIZERS)
    beta1, beta2 = _check.betas(default_betas(optimizer) if betas is None else betas)
    if momentum is not None:
        beta1 = _check.number("momentum", momentum, low=0, high=1, open_high=True)
    return Dynamics(optimizer, (beta1, beta2), nesterov=nesterov, stacked=True, **fields)


def _tensor(optimizer: str, size: Any, shape: Any) -> Shape | int:
    """The tensor that size or shape describe; to Muon, leading dimensions are a stack."""
    checked = direction(optimizer, size=size, shape=shape)
    if optimizer != "muon":
        return checked.size
    *stack, rows, columns = shape
    return (math.prod(stack), int(rows), int(columns))
