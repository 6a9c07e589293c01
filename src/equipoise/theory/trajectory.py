"""Norm, rotation and update size at every step of a run, for any schedules.  [theory] 2 and 6.

A few scalars, the second moments of the weights and of the optimizer's average, follow the run step by step through
warmup, decay and transients. Time is linear in the steps: a million AdamW steps take a few hundredths of a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from equipoise.theory import _check, _scan
from equipoise.theory._check import Array
from equipoise.theory.directions import direction, finite_beta2, kept_share
from equipoise.theory.memory import Memory, memory


@dataclass(frozen=True)
class Forecast:
    """What a run is expected to do; entry t of each array belongs to step t + 1.

    Attributes:
        norm: ‖w‖ after the step.
        rotation: angle that the step turns the weights by, in radians.
        update: root mean square norm of the gradient part of the update.
        lr: learning rate.
        weight_decay: weight decay.
        kept: a_t, the share of the weights that the step's decay keeps.
        init_norm: ‖w‖ before the first step.
    """

    norm: Array = field(repr=False)
    rotation: Array = field(repr=False)
    update: Array = field(repr=False)
    lr: Array = field(repr=False)
    weight_decay: Array = field(repr=False)
    kept: Array = field(repr=False)
    init_norm: float

    @property
    def steps(self) -> int:
        """The number of steps."""
        return len(self.norm)

    @cached_property
    def effective_lr(self) -> Array:
        """η_eff = ‖update‖ / ‖w before the step‖: the step's size on the normalised weights.  [norm-note]."""
        return self.update / np.concatenate([[self.init_norm], self.norm[:-1]])

    @cached_property
    def memory(self) -> Memory:
        """What each step's update contributes to the final weights."""
        return memory(lr=self.lr, weight_decay=self.weight_decay, kept=self.kept)


def forecast(
    optimizer: str,
    *,
    lr: ArrayLike,
    weight_decay: ArrayLike,
    steps: int | None = None,
    size: int | None = None,
    shape: tuple[int, ...] | None = None,
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
    """Predict norm, rotation and update size at every step of a random walk with any schedules.

    Args:
        optimizer: one of `OPTIMIZERS`.
        lr: learning rate, a number or one a step.
        weight_decay: weight decay, a number or one a step.
        steps: number of steps; may be left out where an array tells it.
        size: number of weights of the neuron or tensor.
        shape: its shape instead, which Muon needs: (m, n), or (…, m, n) of a stack of matrices.
        init_norm: ‖w_0‖.
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

    Reference: [theory] 2. [norm-note]'s and [kosson2024] Eq. 36's geometric relaxation are special cases without
    momentum.

    >>> from equipoise.theory import stationary
    >>> f = forecast("lion", lr=1e-2, weight_decay=0.1, steps=5000, size=512, init_norm=1.0)
    >>> s = stationary("lion", lr=1e-2, weight_decay=0.1, size=512)
    >>> bool(abs(f.norm[-1] / s.norm - 1) < 1e-3), bool(abs(f.rotation[-1] / s.rotation - 1) < 1e-3)
    (True, True)
    """
    T = _check.length(steps, lr=lr, weight_decay=weight_decay)
    eta = _check.series("lr", lr, T, low=0)
    lam = _check.series("weight_decay", weight_decay, T, low=0)
    q = _check.number("init_norm", init_norm, low=0, open_low=True) ** 2
    g2 = _check.number("grad_norm", grad_norm, low=0, open_low=True) ** 2
    lam_u = _check.series("radial", radial, T)
    away = _check.series("drift", drift, T)
    c_err = _check.series("scale", scale, T, low=0)
    u = direction(
        optimizer, size=size, shape=shape, betas=betas, momentum=momentum, nesterov=nesterov, decay=decay,
        coupled=coupled,
    )  # fmt: skip
    corrected = u.adaptive and u.name != "rmsprop" if bias_correction is None else bool(bias_correction)
    own_decay = kept_share(eta, lam, decay=decay, lr_max=lr_max)
    if u.coupled:
        kept, l2 = 1 - eta * away, lam + lam_u
        if u.adaptive and away.any():
            raise ValueError("drift: must be 0 for 'adam_l2', whose weights each have a step size of their own")
    else:
        kept, l2 = own_decay - eta * (lam_u + away), np.zeros(T)
    cautious = decay == "cautious"
    taps = (u.filter.A, u.filter.B, u.filter.p)
    if u.saturating:
        norm2, rotation, update2 = _scan.run(
            "saturating_moments", eta, kept, c_err, *taps, u.kernel.powers, u.kernel.weights, u.signed, cautious,
            scale_invariant, u.square, q, np.zeros(len(u.kernel.powers)), outputs=3, steps=T,
        )  # fmt: skip
    elif u.adaptive and u.coupled:
        # Gaussian initial weights, in classes at the nodes of a Gauss–Hermite rule (mirror images count once).
        nodes, share = np.polynomial.hermite_e.hermegauss(16)
        nodes, share = nodes[8:], 2 * share[8:] / share.sum()
        norm2, rotation, update2 = _scan.run(
            "elementwise_moments", eta, l2, c_err, *taps, u.beta2, corrected, scale_invariant, g2, float(u.size),
            *finite_beta2(u), q, share, q * nodes**2, *np.zeros((3, 8)), 0.0, outputs=3, steps=T,
        )  # fmt: skip
    else:
        norm2, rotation, update2 = _scan.run(
            "linear_moments", eta, kept, l2, c_err, *taps, u.beta2, u.adaptive, corrected, u.nested, cautious,
            scale_invariant, g2, float(u.size), *finite_beta2(u), q, outputs=3, steps=T,
        )  # fmt: skip
    return Forecast(
        norm=np.sqrt(norm2),
        rotation=rotation,
        update=np.sqrt(update2),
        lr=eta,
        weight_decay=lam,
        kept=own_decay,
        init_norm=float(init_norm),
    )


def norm_budget(*, norm: float, update_norm: float, inner: float, lr: float, kept: float) -> tuple[float, float, float]:
    """Split one step's change of ‖w‖² into decay, push and radial part; exact for any gradients.

        Δ‖w‖² = −(1 − a²)‖w‖²  +  η²‖u‖²  −  2aη⟨w,u⟩

    Args:
        norm: ‖w‖ before the step.
        update_norm: ‖u‖ of the direction, without lr.
        inner: ⟨w, u⟩.
        lr: η.
        kept: a, the share of the weights that decay keeps.

    Reference: [theory] 2, "norm budget".

    >>> norm_budget(norm=2.0, update_norm=1.0, inner=0.0, lr=1.0, kept=0.5)
    (-3.0, 1.0, -0.0)
    """
    return -(1 - kept**2) * norm**2, lr**2 * update_norm**2, -2 * kept * lr * inner


def rotation_angle(*, norm: ArrayLike, change_norm: ArrayLike, radial: ArrayLike) -> Array:
    """The angle between w and w + Δ from ‖w‖, ‖Δ‖ and rad = ⟨Δ,w⟩/‖w‖.

        θ = atan2(√(‖Δ‖² − rad²), ‖w‖ + rad)

    An arc cosine loses all digits below 1e-2 rad in single precision; this keeps three at 1e-6 rad.

    Reference: [theory] 6.

    >>> float(rotation_angle(norm=1.0, change_norm=1.0, radial=0.0)) * 4 / np.pi
    1.0
    """
    n, d, rad = (np.asarray(x) for x in (norm, change_norm, radial))
    return np.arctan2(np.sqrt(np.maximum(d * d - rad * rad, 0)), n + rad)
