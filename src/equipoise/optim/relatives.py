"""Relatives of rotation: optimizers that set the size of a step by that of the weights, or by the row.

[kosson2024] appendix B compares them. Letters: w weight, g gradient, u direction, η lr, λ weight decay.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.engine.rate import rate
from equipoise.optim.engine.tensor_list import TensorList
from equipoise.optim.matrix import MuonFamily
from equipoise.optim.moves import Decay, Move, Piece, decay_of, directions, plain_step, step_numbers, turns, varied
from equipoise.optim.options import PLAIN_ADAM, DecayKind, GroupOptions, Nonfinite, Params, documented, given
from equipoise.optim.rows import as_rows, reduced, row_dot, row_norm
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
        lr, lost = rate(group), decay_of(group)
        still = isinstance(lr, float) and isinstance(lost, float) and lr == lost == 0.0
        return None if still else {"lr": lr, "lost": lost}

    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        lr, lost = numbers["lr"], numbers["lost"]
        square = dd * (lr * lr) + dw * (2 * lr * lost) + ww * (lost * lost)  # ‖ηr‖²
        known = (ww > 0) & (square > 0) & (square < math.inf)
        ratio = torch.where(known, ww.sqrt() * lr / torch.where(known, square, 1.0).sqrt(), 1.0)
        return (ratio,), 1 - ratio * lost, ratio * lr


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
class EvenRows(Move):
    """v ← β2v + (1−β2)·mean of o² of each row;  ô = o/(√v + ε);  w ← (1−ηλ)w − 0.2η·√size·ô/‖ô‖.  [li2025] Alg. 1."""

    defaults: ClassVar[dict[str, Any]] = {"beta2": 0.95, "row_eps": 1e-8}
    size: ClassVar[float] = 0.2
    """Root mean square of an update over lr, about Adam's."""

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        return varied(Decay().dynamics(rule, group), scale="adam")  # an update's norm is Muon's of that scale

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        beta2 = group["beta2"]
        made = []
        for piece, o in zip(pieces, directions(u, len(pieces)), strict=True):
            stack = o.ndim == 3 and not group["flatten"]
            rows = o.reshape(-1, o.shape[-1]) if stack else as_rows(o, "neuron")
            square = row_dot(rows, rows) / rows.shape[1]
            if getattr(piece.state.get("row_square"), "shape", None) != square.shape:
                piece.state["row_square"] = torch.zeros_like(square)
            v = piece.state["row_square"].mul_(beta2).add_(square, alpha=1 - beta2)
            even = rows / (v.sqrt() + group["row_eps"])
            norm = row_norm(as_rows(even, "tensor")).reshape(())
            made.append((even * (self.size * o.numel() ** 0.5 / norm.clamp_min(1e-30))).reshape(o.shape))
        Decay()(pieces, TensorList(made), rule=rule, t=t, group=group)


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


@final
@documented
class NorMuon(MuonFamily):
    """Muon whose rows all have about the same size, by an average of their squares; AdamW for the rest.

    Args:
        params: as for `Muon`.
        lr: learning rate η of matrices; the RMS of an update is 0.2η.
        momentum: β.
        nesterov: orthogonalise βm + (1−β)g instead of m.
        weight_decay: λ.
        beta2: averaging factor of the squares of rows.
        row_eps: ε beside their roots.
        polar: as for `Muon`.
        adam: as for `Muon`.
        split: as for `Muon`.
        flatten: as for `Muon`.
        {shared}

    Reference: [li2025] Alg. 1.

    >>> w = torch.nn.Parameter(torch.eye(4))
    >>> w.grad = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0]))
    >>> _ = NorMuon([{"params": [w], "muon": True}], lr=0.1, weight_decay=0.0).step()
    >>> round(float((torch.eye(4) - w.detach()).square().mean().sqrt()), 4)
    0.02
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 3e-3,
        *,
        momentum: float = 0.95,
        nesterov: bool = False,
        weight_decay: float = 0.1,
        beta2: float = 0.95,
        row_eps: float = 1e-8,
        polar: Mapping[str, Any] | None = None,
        adam: Mapping[str, Any] | None = None,
        split: int = 1,
        flatten: bool = False,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), EvenRows())

    def pair(self, group: GroupOptions) -> tuple[Rule, Move]:
        """Muon's rule and even rows for groups of matrices, Adam's rule and decay for the others."""
        rule, move = super().pair(group)
        return (rule, move) if group["muon"] else (rule, _DECAY)


_DECAY = Decay()
