"""Relatives of rotation: optimizers that set the size of a step by that of the weights, or by the row.

[kosson2024] appendix B compares them. Letters: w weight, g gradient, u direction, η lr, λ weight decay.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.engine.rate import rate
from equipoise.optim.moves import Decay, Move, Piece, decay_of, directions, plain_step, step_numbers, turns, varied
from equipoise.optim.options import PLAIN_ADAM, DecayKind, GroupOptions, Nonfinite, Params, documented, given
from equipoise.optim.rows import as_rows, reduced, row_norm
from equipoise.optim.rules import AdamRule, Rule, SGDMRule
from equipoise.optim.sphere import RowMove
from equipoise.theory import Dynamics


@final
class Trust(RowMove):
    """r = u + λw;  w ← w − η·(‖w‖/‖r‖)·r: a step of relative size η, decay included.  [you2020] Alg. 2.

    Per tensor by default; where w or r is zero the ratio is 1. φ of the paper is the identity, as in its experiments.
    """

    columns = ("trust_ratio",)
    defaults: ClassVar[dict[str, Any]] = {"granularity": "tensor", "rotate": None}

    def begin(self, w: Tensor, group: GroupOptions) -> tuple[Tensor, ...]:
        return (torch.ones_like(row_norm(w)),)

    def numbers(
        self, rule: Rule, t: int, steps: int, group: GroupOptions, shape: tuple[int, ...]
    ) -> dict[str, float] | None:
        return moving(group, {})

    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        lr, lost = numbers["lr"], numbers["lost"]
        square = dd * (lr * lr) + dw * (2 * lr * lost) + ww * (lost * lost)  # ‖ηr‖²
        known = (ww > 0) & (square > 0) & (square < math.inf)
        ratio = torch.where(known, ww.sqrt() * lr / torch.where(known, square, 1.0).sqrt(), 1.0)
        return (ratio,), 1 - ratio * lost, ratio * lr


@final
class Floor(RowMove):
    """u ← u·max(1, c·‖w‖/‖u‖), then a decayed step: none is shorter than lr·c of the weights.  [modded-nanogpt].

    Per tensor by default, as where it was first used; with granularity "neuron" for each row. Where w or u is zero it
    is a plain step.
    """

    columns = ("floor_ratio",)
    defaults: ClassVar[dict[str, Any]] = {"floor": 0.35, "granularity": "tensor", "rotate": None}

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        return varied(Decay().dynamics(rule, group), known=False)

    def begin(self, w: Tensor, group: GroupOptions) -> tuple[Tensor, ...]:
        return (torch.ones_like(row_norm(w)),)

    def numbers(
        self, rule: Rule, t: int, steps: int, group: GroupOptions, shape: tuple[int, ...]
    ) -> dict[str, float] | None:
        return moving(group, {"floor": group["floor"]})

    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        known = (ww > 0) & (dd > 0) & (dd < math.inf)
        wanted = ww.sqrt() * numbers["floor"] / torch.where(known, dd, 1.0).sqrt()
        ratio = torch.where(known, wanted.clamp(1.0, 1e30), 1.0)
        return (ratio,), torch.ones_like(ratio) * (1 - numbers["lost"]), ratio * numbers["lr"]


@final
class Brake(RowMove):
    """y = (1−ηλ)w;  x = y − ηu;  w ← x·n/‖x‖ with n = ‖y‖ + s(‖x‖−‖y‖): growth is slowed.  [emerging-optimizers].

    s is `outward` where x is longer than y, else `inward`: with 1 for both it is a plain step, with 0 a step on the
    sphere. Per tensor by default. Where w is zero it is a plain step.
    """

    columns = ("row_norm",)
    defaults: ClassVar[dict[str, Any]] = {"outward": 0.5, "inward": 1.0, "granularity": "tensor", "rotate": None}

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        return varied(Decay().dynamics(rule, group), known=False)

    def begin(self, w: Tensor, group: GroupOptions) -> tuple[Tensor, ...]:
        return (row_norm(w),)

    def numbers(
        self, rule: Rule, t: int, steps: int, group: GroupOptions, shape: tuple[int, ...]
    ) -> dict[str, float] | None:
        return moving(group, {"outward": group["outward"], "inward": group["inward"]})

    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        lr, left = numbers["lr"], 1 - numbers["lost"]
        before = ww.sqrt() * left
        # ‖x‖² − ‖y‖² as it is, so that small changes are not lost in the difference of two norms.
        change = dd * (lr * lr) - dw * (2 * lr * left)
        after = (before.square() + change).clamp_min(0.0).sqrt()
        grown = change / (after + before).clamp_min(1e-38)
        # What would be turned into nothing has no direction left; what is not finite is not less.
        known = (ww > 0) & (after > 1e-6 * before) & (dd < math.inf)
        share = torch.where(grown > 0, numbers["outward"], numbers["inward"])
        ratio = torch.where(known, 1 + (share - 1) * (grown / torch.where(known, after, 1.0)), 1.0)
        return (after * ratio,), ratio * left, ratio * lr


def moving(group: GroupOptions, more: dict[str, float]) -> dict[str, float] | None:
    """The numbers of a decayed step and some more; None where it moves nothing."""
    lr, lost = rate(group), decay_of(group)
    still = isinstance(lr, float) and isinstance(lost, float) and lr == lost == 0.0
    return None if still else {"lr": lr, "lost": lost} | more


def _length(x: Tensor) -> Tensor:
    """‖x‖ of a tensor, scaled first: squares of large numbers are too large for float32."""
    peak = reduced(x.abs().amax()).clamp_min(torch.finfo(x.dtype).tiny)
    return peak * row_norm(as_rows(x / peak, "tensor")).reshape(())


@final
class LayerRate(Move):
    """g ← μ·‖w‖/(‖g‖ + λ‖w‖)·(g + λw) for each tensor, before the rule;  w ← w − ηu.  [you2017] Alg. 1.

    Deviation: η is outside of the momentum, as in torch's SGD; where η is constant it is the same.
    """

    defaults: ClassVar[dict[str, Any]] = {"trust": 1e-3, "rotate": None}

    def prepare(self, g: Tensor, w: Tensor, group: GroupOptions) -> Tensor:
        if not turns(w, group) or not w.numel():
            return g
        decay = float(group["weight_decay"])
        ww, gg = _length(w), _length(g)
        size = gg + decay * ww
        local = torch.where((ww > 0) & (gg > 0), group["trust"] * ww / torch.where(size > 0, size, 1.0), 1.0)
        local = local.clamp_max(torch.finfo(g.dtype).max)  # a subnormal gradient
        # The rule's gradient is turned round where it is to be followed upwards; decay is not.
        return g.add(w, alpha=-decay if group["maximize"] else decay).mul_(local)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        for piece, one in zip(pieces, directions(u, len(pieces)), strict=True):
            numbers = step_numbers(group)
            plain_step(piece.w, one, numbers | {"left": 1.0} if turns(piece.w, group) else numbers, group)


@final
class Clip(Move):
    """g ← g·min(1, κ·max(‖w‖, ε)/‖g‖) for each row, before the rule; then a decayed step.  [brock2021b] Eq. 3.

    ε is 1e-3, as in the paper. Vectors are one row each. A group with `clip=None`, as the paper has it for the output
    layer, is not clipped.
    """

    defaults: ClassVar[dict[str, Any]] = {"clip": 0.01}
    least: ClassVar[float] = 1e-3

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        found = Decay().dynamics(rule, group)
        return found if group["clip"] is None else varied(found, known=False)

    def prepare(self, g: Tensor, w: Tensor, group: GroupOptions) -> Tensor:
        if group["clip"] is None or not g.numel():
            return g
        by = "neuron" if w.ndim > 1 else "tensor"
        rows = as_rows(g, by)
        most, size = row_norm(as_rows(w, by)).clamp_min(self.least) * group["clip"], row_norm(rows)
        return (rows * torch.where(size > most, most / size.clamp_min(1e-38), 1.0)).reshape(g.shape)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        Decay()(pieces, u, rule=rule, t=t, group=group)


@final
@documented
class LAMB(RuleOptimizer):
    """Adam's direction and decay as a step of relative size lr for each tensor.

    Args:
        params: parameters or groups. Those with two dimensions or more take steps relative to their norm.
        lr: size of a step relative to the weights.
        betas: averaging factors.
        eps: ε.
        weight_decay: λ, which is part of the step: it turns it outward less, and is scaled with it.
        granularity: what takes relative steps as one vector: "tensor", "neuron", or a number of equal parts.
        rotate: whether parameters take relative steps. Default: those with two dimensions or more.
        {shared}

    Reference: [you2020] Alg. 2, with its bias correction; biases and gains take plain steps.

    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> w.grad = torch.ones(2, 2)
    >>> _ = LAMB([w], lr=0.1).step()
    >>> round(float((w.detach() - torch.eye(2)).norm() / torch.eye(2).norm()), 4)
    0.1
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        granularity: str | int = "tensor",
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, PLAIN_ADAM | given(locals()), rule=AdamRule(), move=Trust())


@final
@documented
class LARS(RuleOptimizer):
    """SGDM whose gradients are scaled to the norm of each tensor before the momentum.

    Args:
        params: parameters or groups. Those with two dimensions or more are scaled.
        lr: learning rate η.
        momentum: α.
        weight_decay: λ, in the gradient; decoupled for what is not scaled.
        trust: μ, the size of a scaled gradient relative to the weights.
        nesterov: u = g + αm.
        rotate: whether parameters are scaled. Default: those with two dimensions or more.
        {shared}

    Reference: [you2017] Alg. 1.

    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> w.grad = torch.full((2, 2), 7.0)
    >>> _ = LARS([w], lr=1.0, trust=0.1).step()
    >>> round(float((w.detach() - torch.eye(2)).norm() / torch.eye(2).norm()), 4)
    0.1
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1.0,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 1e-3,
        nesterov: bool = False,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=SGDMRule(), move=LayerRate())


@final
@documented
class ClippedSGDM(RuleOptimizer):
    """SGDM with adaptive gradient clipping: no row's gradient is longer than a share of its weights.

    Args:
        params: parameters or groups; a group may have its own `clip`, or None for the output layer.
        lr: learning rate η.
        momentum: α.
        weight_decay: λ, decoupled.
        nesterov: u = g + αm.
        clip: κ, the largest gradient of a row over the norm of its weights.
        {shared}

    Reference: [brock2021b] Eq. 3.

    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> w.grad = torch.full((2, 2), 7.0)
    >>> _ = ClippedSGDM([w], lr=1.0, momentum=0.0, nesterov=False, clip=0.1).step()
    >>> round(float((w.detach() - torch.eye(2)).norm(dim=1)[0]), 4)
    0.1
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.1,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = True,
        clip: float | None = 0.01,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=SGDMRule(), move=Clip())
