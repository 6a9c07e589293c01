"""`Dynamics`: what an optimizer does to a tensor, in the terms of theory. It answers all other questions.

    w ← a·w − η·s·u        u: the rule's direction     s: its scale     a: what decay keeps     then the move

A `Dynamics` is read off any torch optimizer (`equipoise.optim.dynamics_of`), off a setting or off a stored run. It
answers what a step's decay takes (`decay_share`), what the direction is (`direction`), where norm and rotation settle
(`stationary`), what they do at every step (`forecast`) and what each batch contributes (`memory`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Self, final

import numpy as np
from numpy.typing import ArrayLike

from equipoise import _check
from equipoise._check import Array
from equipoise.theory.directions import (
    DECAYS,
    OPTIMIZERS,
    SCALES,
    Direction,
    MatrixLayout,
    Shape,
    autocorrelation,
    decay_share,
    default_betas,
    direction,
    finite_beta2,
    kept_share,
    matrix_scale,
    started_square,
)
from equipoise.theory.distance import longest
from equipoise.theory.kernels import QUINTICS
from equipoise.theory.memory import Memory, memory
from equipoise.theory.trajectory import Forecast, follow
from equipoise.theory.walk import Stationary, by_level, gap_closed, settle

MOVES = ("decay", "rotate", "hyperball", "constrain")
"""What a step does with its direction: decay and add it; turn rows at a fixed norm, by an angle or by a step of
relative size lr; add it and hold the norm below a bound."""

METHODS = ("exact", "small_step")


@final
@dataclass(frozen=True)
class Dynamics:
    """What one optimizer does to a tensor.

    Attributes:
        optimizer: its rule, one of `OPTIMIZERS`.
        betas: averaging factors; the first is momentum for SGDM, SignSGDM and Muon, the second RMSProp's α. None:
            `default_betas`.
        eps: Adam's ε.
        nesterov: Nesterov momentum, for SGDM and Muon.
        bias_correction: of Adam's averages. None: the optimizer's own way, yes for Adam and no for RMSProp.
        zero_init: whether Adam's averages start at zero, and not at the first gradient.
        decay: one of `DECAYS`.
        coupled: L2 in the gradient instead of decoupled decay. None: for "adam_l2", and for "sgdm" as torch does. What
            it makes of other rules theory does not know.
        lr_max: the η_max of "corrected" and "schedule" decay. None: the largest lr.
        scale: what the direction is multiplied by, besides lr: a number, or for Muon one of `SCALES`.
        stacked: whether Muon sees a parameter of three dimensions as a stack of matrices, as experts are.
        split: into how many equal parts Muon cuts the rows of a matrix: 3 for fused QKV, or heads.
        newton_schulz: steps of Muon's quintics, which leave singular values near 1; 0 where they are 1.
        quintics: whose those are, one of `QUINTICS`.
        move: one of `MOVES`.
        rotate: which tensors the move turns or holds: True, False, or None for those of two dimensions or more.
        angle: the rotation that was asked for, in radians. None: the one that lr and weight decay would settle at; NaN
            where it is not known.
        method: how that one is computed, "exact" or "small_step".
        maximize: whether steps go up the gradient.
        known: whether theory knows the optimizer, rather than taking it for the nearest that it knows.

    >>> adamw = Dynamics("adamw", betas=(0.9, 0.95))
    >>> round(adamw.stationary((64, 64), lr=1e-3, weight_decay=0.1).rotation, 5)
    0.00323
    >>> Dynamics("muon", scale="original", stacked=True).layout((8, 64, 256))
    MatrixLayout(stack=8, rows=64, columns=256, scale=1.0)
    """

    optimizer: str = "adamw"
    betas: tuple[float, float] = None  # type: ignore[assignment]  # the optimizer's own, which is known below
    eps: float = 1e-8
    nesterov: bool = False
    bias_correction: bool | None = None
    zero_init: bool = True
    decay: str = "lr"
    coupled: bool = None  # type: ignore[assignment]  # as above
    lr_max: float | None = None
    scale: float | str = 1.0
    stacked: bool = False
    split: int = 1
    newton_schulz: int = 0
    quintics: str = "muon"
    move: str = "decay"
    rotate: bool | None = None
    angle: float | None = None
    method: str = "exact"
    maximize: bool = False
    known: bool = True

    def __post_init__(self) -> None:
        _check.choice("optimizer", self.optimizer, OPTIMIZERS)
        _check.choice("decay", self.decay, DECAYS)
        _check.choice("move", self.move, MOVES)
        _check.choice("method", self.method, METHODS)
        _check.choice("quintics", self.quintics, QUINTICS)
        for name in ("nesterov", "coupled", "bias_correction", "rotate"):
            if not isinstance(getattr(self, name), bool | None):
                raise ValueError(f"{name} = {getattr(self, name)!r}: must be true or false")
        if isinstance(self.scale, str):
            _check.choice("scale", self.scale, SCALES)
        else:
            _check.number("scale", self.scale, low=0, open_low=True)
        _check.whole("split", self.split, low=1)
        if self.lr_max is not None:
            _check.number("lr_max", self.lr_max, low=0, open_low=True)
        _check.number("eps", self.eps, low=0)
        given: Any = self.betas
        betas = default_betas(self.optimizer) if given is None else given
        object.__setattr__(self, "betas", _check.betas(betas))
        if self.coupled is None:
            natural = self.optimizer == "adam_l2" or (self.optimizer == "sgdm" and self.decay == "lr")
            object.__setattr__(self, "coupled", natural)
        if self.coupled and self.known:
            direction(self.optimizer, shape=(1, 1), nesterov=self.nesterov, decay=self.decay, coupled=True)
        _direction(self, 1)  # what cannot be together is refused here

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}
        return cls(**made)

    def to_dict(self) -> dict[str, Any]:
        """All fields, as plain data for JSON."""
        return dataclasses.asdict(self) | {"betas": list(self.betas)}

    # What of a tensor it sees

    @property
    def by_gradient(self) -> bool:
        """Whether the size of a step depends on the size of the gradients: SGD, and Adam with L2."""
        return self.optimizer in ("sgdm", "adam_l2")

    @property
    def by_size(self) -> bool:
        """Whether norms grow as √size, so that tensors with the same initial RMS share a forecast."""
        return not self.by_gradient and self.optimizer not in ("muon", "ngd")

    @property
    def averaging(self) -> float:
        """The factor of the average over gradients; 0 if there is none."""
        return 0.0 if self.optimizer in ("rmsprop", "ngd") else self.betas[self.optimizer == "lion"]

    def holds(self, ndim: int) -> bool:
        """Whether the move keeps the norm of a tensor with this many dimensions, so that decay does not act on it."""
        return self.move != "decay" and (ndim > 1 if self.rotate is None else self.rotate)

    def turns(self, ndim: int) -> bool:
        """Whether the move rotates a tensor with this many dimensions at a fixed norm."""
        return self.move in ("rotate", "hyperball") and self.holds(ndim)

    def forecasts(self, ndim: int) -> bool:
        """Whether norm and rotation of a tensor with this many dimensions can be forecast."""
        return self.move != "constrain" and not self.turns(ndim)

    def layout(self, shape: Shape) -> MatrixLayout | None:
        """Which part of a tensor is a matrix; None if the optimizer works on single weights.

        A convolution is one matrix out × in·k². A tensor of three dimensions is a stack where `stacked` says so.
        """
        if self.optimizer != "muon" or len(shape) < 2:
            return None
        stack, rows = (shape[0], shape[1]) if self.stacked and len(shape) == 3 else (1, shape[0])
        columns = math.prod(shape) // max(1, stack * rows)
        rows = rows // self.split
        sides = max(1, rows), max(1, columns)
        scale = matrix_scale(*sides, self.scale) if isinstance(self.scale, str) else self.scale
        return MatrixLayout(stack * self.split, rows, columns, scale)

    def scale_of(self, shape: Shape) -> float:
        """The factor on the direction of a tensor, besides lr."""
        layout = self.layout(shape)
        if layout is not None:
            return layout.scale
        return 1.0 if isinstance(self.scale, str) else self.scale

    def direction(self, shape: Shape | int) -> Direction:
        """The update direction of a tensor, without lr and scale.

        Args:
            shape: of the tensor, or how many weights a neuron has. A vector under Muon is stepped by AdamW.
        """
        return _direction(self, shape)

    def square(self, shape: Shape) -> float:
        """R(0) = E‖s·u‖² in a random walk with old averages; where `by_gradient` and not Adam, over E‖g‖².

        >>> round(Dynamics("lion").square((10, 10)))
        100
        """
        return float(autocorrelation(self.direction(shape))[0]) * self.scale_of(shape) ** 2

    def expected_square(self, t: int) -> float:
        """r_t: E‖u_t‖² of averages that began t steps ago, up to a factor that does not depend on t.  [theory] 7.

        >>> round(Dynamics("adamw").expected_square(1), 9)
        1.0
        """
        if self.optimizer == "muon":
            return 1.0  # UVᵀ is as long from the first step on
        return started_square(_direction(self, 1), t, corrected=self.corrects, zero_init=self.zero_init)

    def steady_update(self, shape: Shape, grad_norm: float = 1.0) -> float:
        """‖s·u‖ when the gradient is the same at every step: the largest update that can persist."""
        return longest(self.direction(shape), grad_norm) * self.scale_of(shape)

    def growth(self, t: int) -> float:
        """E‖u_t‖² of averages that began t steps ago over that of old ones, β2's fluctuation included.

        That fluctuation ([theory] 1) comes with 1 − β2^t: within 1 % of a simulated walk for β2 from .9 to .999.
        """
        if self.optimizer == "muon":
            return 1.0
        f = _fluctuation(self)
        return self.expected_square(t) / _old_square(self) * (1 + (f - 1) * (1 - self.betas[1] ** t)) / f

    @property
    def corrects(self) -> bool:
        """Whether averages are corrected for their start at zero."""
        if self.bias_correction is not None:
            return self.bias_correction
        return self.optimizer != "rmsprop" and _direction(self, 1).adaptive

    # What a step does

    def lost(self, lr: Any, weight_decay: Any) -> Any:
        """d, the share of the weights that decoupled decay removes in this step; 0 if decay is not decoupled.

        Args:
            lr: η, a number, an array or a tensor.
            weight_decay: λ.
        """
        if self.coupled or self.move == "constrain":
            return 0.0 * lr
        return decay_share(lr, weight_decay, decay=self.decay, lr_max=self.lr_max)

    def decay_share(self, lr: Any, weight_decay: Any) -> Any:
        """The share of the weights that a step's decay removes in the long run; may be 1 or more.

        L2 that goes through SGD's momentum takes ηλ/(1−α) to first order ([kosson2024] Eq. 44), and ηλ where there is
        none. What Adam makes of L2 depends on the gradients: it is counted as ηλ.

        Args:
            lr: η, a number or one a step.
            weight_decay: λ, a number or one a step.
        """
        if not self.coupled or not self.by_gradient or self.move == "constrain":
            return self.lost(lr, weight_decay)
        share = lr * weight_decay
        if self.optimizer != "sgdm" or not self.betas[0] or np.any(np.asarray(share) >= 1):
            return share
        if isinstance(share, float):
            return -math.expm1(math.log1p(-share) / (1 - self.betas[0]))
        return -np.expm1(np.log1p(-share) / (1 - self.betas[0]))

    def kept(self, lr: Any, weight_decay: Any) -> Any:
        """a, the share of the weights that a step's decay keeps in the long run."""
        return 1 - self.decay_share(lr, weight_decay)

    # What comes of it

    def stationary(
        self,
        shape: Shape | int,
        *,
        lr: float,
        weight_decay: float,
        grad_norm: float = 1.0,
        method: str | None = None,
    ) -> Stationary:
        """Norm, rotation and update size at which a scale-invariant tensor settles in a random walk.

        Args:
            shape: of the tensor, or how many weights a neuron has.
            lr: learning rate η.
            weight_decay: λ. With 0 there is no equilibrium: the norm is infinite and the rotation 0.
            grad_norm: g̃, root mean square gradient norm at unit weight norm. SGDM's norm and Adam+L2 depend on it.
            method: "exact", or "small_step" for [kosson2024]'s Table 1. Default: that of the dynamics.
        """
        return _settled(self, shape, lr, weight_decay, grad_norm, self.method if method is None else method)

    def equilibrium(
        self, shape: Shape | int, *, lr: Array, weight_decay: Array, grad_norm: float = 1.0
    ) -> tuple[Array, Array, Array]:
        """Norm, rotation and update size at which lr and weight decay of each step would settle.

        NaN where decay is so strong that nothing does.

        Args:
            shape: of the tensor, or how many weights a neuron has.
            lr: learning rate, one a step.
            weight_decay: weight decay, one a step.
            grad_norm: g̃, for SGDM and Adam+L2.
        """

        def settled(eta: float, lam: float) -> tuple[float, ...]:
            if eta == 0:
                return math.nan, 0.0, 0.0
            try:
                one = self.stationary(shape, lr=eta, weight_decay=lam, grad_norm=grad_norm)
            except ValueError:
                return math.nan, math.nan, math.nan
            return one.norm, one.rotation, one.update

        norm, rotation, update = by_level(settled, lr, weight_decay)
        return norm, rotation, update

    def asked(self, shape: Shape, *, lr: float, weight_decay: float) -> float:
        """The rotation of a move on the sphere in a step: the given angle, or the one that follows from lr and decay.

        Args:
            shape: of the tensor.
            lr: learning rate.
            weight_decay: weight decay.
        """
        if self.angle is not None:
            return self.angle
        if self.move == "hyperball":
            return math.atan(lr)
        # Rotations do not depend on the size, but for Muon on the shape of a matrix.
        layout = self.layout(shape)
        part = 1 if layout is None else (layout.rows, layout.columns)
        single = self if layout is None else dataclasses.replace(self, stacked=False, split=1)
        return single.stationary(part, lr=lr, weight_decay=weight_decay).rotation

    def forecast(
        self,
        shape: Shape | int,
        *,
        lr: ArrayLike,
        weight_decay: ArrayLike,
        init_norm: float,
        steps: int | None = None,
        grad_norm: float = 1.0,
        scale_invariant: bool = True,
        radial: ArrayLike = 0.0,
        drift: ArrayLike = 0.0,
        size: ArrayLike = 1.0,
    ) -> Forecast:
        """Norm, rotation and update size at every step of a run; for moves that rotate, the given rotation.

        Cautious decay of signs (Lion, SignSGDM), from 1 % of equilibrium on: norm within 5 % and rotation within 12 %
        at every step for ηλ up to 0.01, 13 % and 24 % at 0.025. Beyond, from far below, do not rely on it.

        Args:
            shape: of the tensor, or how many weights a neuron has.
            lr: learning rate, a number or one a step.
            weight_decay: weight decay, a number or one a step.
            init_norm: ‖w‖ before the first step.
            steps: number of steps; may be left out where an array tells it.
            grad_norm: g̃, root mean square gradient norm at unit weight norm (of a scale-invariant weight).
            scale_invariant: gradients shrink as 1/‖w‖; False for a gradient of fixed size.
            radial: λ_u = E⟨u,w⟩/‖w‖², measured radial part of the direction, which acts as more decay ([kosson2024]
                appendix L). Where decay is coupled it is the gradient's, and goes through momentum as L2 does.
            drift: more decay that does not go through momentum, whether decay is coupled or not; not for "adam_l2".
            size: C_err = measured E‖u‖² over the random walk's.
        """
        T = _check.length(steps, lr=lr, weight_decay=weight_decay)
        eta, lam = _check.series("lr", lr, T, low=0), _check.series("weight_decay", weight_decay, T, low=0)
        if not isinstance(shape, int) and self.turns(len(shape)):
            return self._turned(shape, eta, lam, init_norm)
        return follow(
            self.direction(shape),
            lr=eta,
            scale=1.0 if isinstance(shape, int) else self.scale_of(shape),
            weight_decay=lam,
            kept=kept_share(eta, lam, decay=self.decay, lr_max=self.lr_max),
            init_norm=_check.number("init_norm", init_norm, low=0, open_low=True),
            grad_norm=_check.number("grad_norm", grad_norm, low=0, open_low=True),
            bias_correction=self.corrects,
            zero_init=self.zero_init,
            scale_invariant=scale_invariant,
            cautious=self.decay == "cautious",
            radial=_check.series("radial", radial, T),
            drift=_check.series("drift", drift, T),
            size=_check.series("scale", size, T, low=0),
        )

    def _turned(self, shape: Shape, eta: Array, lam: Array, norm: float) -> Forecast:
        def asked(lr: float, weight_decay: float) -> tuple[float, ...]:
            return (self.asked(shape, lr=lr, weight_decay=weight_decay),)

        (rotation,) = by_level(asked, eta, lam)
        whole, kept = np.full(len(eta), norm), np.asarray(self.kept(eta, lam))
        return Forecast(whole, rotation, whole * np.tan(rotation), eta, lam, kept, norm)

    def memory(self, *, lr: ArrayLike, weight_decay: ArrayLike, steps: int | None = None) -> Memory:
        """What each step's update contributes to the final weights.

        Args:
            lr: learning rate, a number or one a step.
            weight_decay: weight decay, a number or one a step.
            steps: number of steps; may be left out where an array tells it.
        """
        T = _check.length(steps, lr=lr, weight_decay=weight_decay)
        eta, lam = _check.series("lr", lr, T, low=0), _check.series("weight_decay", weight_decay, T, low=0)
        return memory(lr=eta, weight_decay=lam, kept=self.kept(eta, lam))

    def steps_to_equilibrium(
        self,
        shape: Shape | int,
        *,
        lr: ArrayLike,
        weight_decay: ArrayLike,
        fraction: float = 0.05,
        grad_norm: float = 1.0,
    ) -> float:
        """Steps until only `fraction` of the gap between ‖w‖² and its equilibrium is left: see the function.

        Args:
            shape: of the tensor, or how many weights a neuron has.
            lr: learning rate, a number or one a step.
            weight_decay: weight decay, a number or one a step.
            fraction: the share of the gap that counts as closed.
            grad_norm: g̃, for Adam+L2.
        """
        share = _check.number("fraction", fraction, low=0, high=1, open_low=True, open_high=True)
        many = np.ndim(lr) or np.ndim(weight_decay)
        T = _check.length(None, lr=lr, weight_decay=weight_decay) if many else 1
        eta, lam = _check.series("lr", lr, T, low=0), _check.series("weight_decay", weight_decay, T, low=0)
        lost = 1 - kept_share(eta, lam, decay=self.decay, lr_max=self.lr_max)
        if not lost.any():
            return math.inf
        u = self.direction(shape)
        closed = np.cumsum(gap_closed(u, lost, eta, lam, grad_norm, cautious=self.decay == "cautious"))
        wanted = -math.log(share)
        if T == 1 or closed[-1] < wanted:
            return T * wanted / float(closed[-1])
        return float(np.searchsorted(closed, wanted) + 1)


@lru_cache(maxsize=4096)
def _direction(d: Dynamics, shape: Shape | int) -> Direction:
    layout = None if isinstance(shape, int) else d.layout(shape)
    name, nesterov, size, dims = d.optimizer, d.nesterov, None, None
    if layout is not None:
        dims = layout[:3]
    else:
        size = shape if isinstance(shape, int) else math.prod(shape)
        name, nesterov = ("adamw", False) if name == "muon" else (name, nesterov)
    coupled = d.coupled and name in ("sgdm", "adam_l2")
    return direction(
        name, size=size, shape=dims, betas=d.betas, nesterov=nesterov, decay=d.decay, coupled=coupled,
        newton_schulz=d.newton_schulz, quintics=d.quintics,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _settled(
    d: Dynamics, shape: Shape | int, lr: float, weight_decay: float, grad_norm: float, method: str
) -> Stationary:
    _check.choice("method", method, METHODS)
    eta = _check.number("lr", lr, low=0)
    lam = _check.number("weight_decay", weight_decay, low=0)
    return settle(
        d.direction(shape),
        lr=eta * (1.0 if isinstance(shape, int) else d.scale_of(shape)),
        weight_decay=lam,
        kept=float(kept_share(np.array([eta]), np.array([lam]), decay=d.decay, lr_max=d.lr_max)[0]),
        grad_norm=_check.number("grad_norm", grad_norm, low=0, open_low=True),
        method=method,
        cautious=d.decay == "cautious",
    )


_AGED = 1 << 40
"""A step at which averages have forgotten their start."""


@lru_cache(maxsize=256)
def _old_square(d: Dynamics) -> float:
    return d.expected_square(_AGED)


@lru_cache(maxsize=256)
def _fluctuation(d: Dynamics) -> float:
    return finite_beta2(d.direction(1))[0]
