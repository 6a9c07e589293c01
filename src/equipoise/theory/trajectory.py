"""Norm, rotation and update size at every step of a run, for any schedules.  [theory] 2 and 6.

A few scalars, the second moments of the weights and of the optimizer's average, follow the run step by step through
warmup, decay and transients. Time is linear in the steps: a million AdamW steps take a few hundredths of a second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from equipoise._check import Array
from equipoise.theory import _scan
from equipoise.theory.directions import Direction, finite_beta2
from equipoise.theory.memory import Memory, memory


@dataclass(frozen=True)
class Forecast:
    """What a run is expected to do. Entry t of each array belongs to step t + 1.

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
    def before(self) -> Array:
        """‖w‖ before each step."""
        return np.concatenate([[self.init_norm], self.norm[:-1]])

    @cached_property
    def effective_lr(self) -> Array:
        """η_eff = ‖update‖ / ‖w before the step‖: the step's size on the normalised weights.  [norm-note]."""
        return self.update / self.before

    @cached_property
    def radial(self) -> Array:
        """⟨Δ,w⟩/‖w‖² of each step."""
        return self.norm * np.cos(self.rotation) / self.before - 1

    @cached_property
    def memory(self) -> Memory:
        """What each step's update contributes to the final weights."""
        return memory(lr=self.lr, weight_decay=self.weight_decay, kept=self.kept)


def follow(
    u: Direction,
    *,
    lr: Array,
    scale: float,
    weight_decay: Array,
    kept: Array,
    init_norm: float,
    grad_norm: float,
    bias_correction: bool,
    zero_init: bool,
    scale_invariant: bool,
    cautious: bool,
    radial: Array,
    drift: Array,
    size: Array,
) -> Forecast:
    """Follow the second moments of a direction step by step; `Dynamics.forecast` checks and documents the arguments.

    Args:
        u: the update direction.
        lr: η at every step.
        scale: what the optimizer multiplies the direction by, besides lr.
        weight_decay: λ at every step.
        kept: a_t, the share of the weights that each step's decay keeps.
        init_norm: ‖w‖ before the first step.
        grad_norm: g̃.
        bias_correction: of Adam's averages.
        zero_init: whether these begin as zeros; not asked where L2 goes through Adam.
        scale_invariant: whether gradients shrink as 1/‖w‖.
        cautious: whether decay acts only where u·w ≥ 0.
        radial: λ_u at every step.
        drift: more decay at every step.
        size: C_err at every step.
    """
    T, q, g2 = len(lr), init_norm**2, grad_norm**2
    if u.coupled:
        left, l2 = 1 - lr * drift, weight_decay + radial
        if u.adaptive and drift.any():
            raise ValueError("drift: must be 0 for 'adam_l2', whose weights each have a step size of their own")
    else:
        left, l2 = kept - lr * (radial + drift), np.zeros(T)
    eta = lr * scale
    taps = (u.filter.A, u.filter.B, u.filter.p)
    if u.saturating:
        norm2, *turned, update2 = _scan.run_recursion(
            "saturating_moments", eta, left, size, *taps, u.kernel.powers, u.kernel.weights, u.signed, cautious,
            scale_invariant, u.square, q, np.zeros(len(u.kernel.powers)), outputs=4, steps=T,
        )  # fmt: skip
    elif u.adaptive and u.coupled:
        # Gaussian initial weights, in classes at the nodes of a Gauss–Hermite rule (mirror images count once).
        nodes, share = np.polynomial.hermite_e.hermegauss(16)
        nodes, share = nodes[8:], 2 * share[8:] / share.sum()
        norm2, *turned, update2 = _scan.run_recursion(
            "elementwise_moments", eta, l2, size, *taps, u.beta2, bias_correction, scale_invariant, g2, float(u.size),
            *finite_beta2(u), q, share, q * nodes**2, *np.zeros((3, 8)), 0.0, outputs=4, steps=T,
        )  # fmt: skip
    else:
        norm2, *turned, update2 = _scan.run_recursion(
            "linear_moments", eta, left, l2, size, *taps, u.beta2, u.adaptive, bias_correction, zero_init, u.nested,
            cautious, scale_invariant, g2, float(u.size), *finite_beta2(u), q, outputs=4, steps=T,
        )  # fmt: skip
    return Forecast(
        norm=np.sqrt(norm2),
        rotation=_angle(*turned),
        update=np.sqrt(update2),
        lr=lr,
        weight_decay=weight_decay,
        kept=kept,
        init_norm=init_norm,
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
    return _angle(d * d - rad * rad, n + rad)


def _angle(cross: Array, dot: Array) -> Array:
    """θ from the square of what lies across and what lies along, both by the same factor too large or not."""
    return np.arctan2(np.sqrt(np.maximum(cross, 0)), dot)
