"""Relatives of Muon: rows of one size, a floor under steps, a brake on growth.

Letters: w weight, u direction, o orthogonalised direction, η lr, λ weight decay.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from equipoise.optim.engine.tensor_list import TensorList
from equipoise.optim.matrices.muon import MuonFamily
from equipoise.optim.moves import Decay, Move, Piece, directions, varied
from equipoise.optim.options import DecayKind, GroupOptions, Nonfinite, Params, documented, given
from equipoise.optim.relatives.ratios import Brake, Floor
from equipoise.optim.rows import as_rows, neurons, row_dot, row_norm
from equipoise.optim.rules import Rule
from equipoise.theory import Dynamics


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
            rows = neurons(o, group)
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


@final
@documented
class FloorMuon(MuonFamily):
    """Muon whose steps are never shorter than lr·c of the weights of their matrix; AdamW for the rest.

    The floor keeps steps in proportion to weights, as decay does in the long run, so decay can be weak.

    Args:
        params: as for `Muon`; `rotate` in a group says whether its steps have a floor.
        lr: learning rate η of matrices.
        momentum: β.
        nesterov: orthogonalise βm + (1−β)g instead of m.
        weight_decay: λ.
        floor: c, the least norm of an update over that of the weights, before lr.
        scale: as for `Muon`.
        granularity: what has a floor of its own: "tensor", "neuron", or a number of equal parts.
        rotate: of all groups that do not say it themselves; None: what has two dimensions or more.
        polar: as for `Muon`.
        adam: as for `Muon`.
        split: as for `Muon`.
        flatten: as for `Muon`.
        {shared}

    Reference: [modded-nanogpt], its optimizer track.

    >>> w = torch.nn.Parameter(10 * torch.eye(4))
    >>> w.grad = torch.diag(torch.tensor([4.0, 3.0, 2.0, 1.0]))
    >>> _ = FloorMuon([{"params": [w], "muon": True}], lr=0.1, weight_decay=0.0, floor=0.5).step()
    >>> round(float((10 * torch.eye(4) - w.detach()).norm() / (10 * torch.eye(4)).norm()), 4)
    0.05
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.025,
        floor: float = 0.35,
        scale: str = "original",
        granularity: str | int = "tensor",
        rotate: bool | None = None,
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
        super().__init__(params, given(locals()), Floor())

    def pair(self, group: GroupOptions) -> tuple[Rule, Move]:
        """Muon's rule and the floor for groups of matrices, Adam's rule and decay for the others."""
        rule, move = super().pair(group)
        return (rule, move) if group["muon"] else (rule, _DECAY)


@final
@documented
class BrakeMuon(MuonFamily):
    """Muon whose matrices grow by a share of what a step would make them grow; AdamW for the rest.

    Args:
        params: as for `Muon`; `rotate` in a group says whether its parameters are braked.
        lr: learning rate η of matrices.
        momentum: β.
        nesterov: orthogonalise βm + (1−β)g instead of m.
        weight_decay: λ, which is not braked.
        outward: share of a step's growth in norm that is left.
        inward: share of a step's shrinking that is left.
        scale: as for `Muon`.
        granularity: what has a brake of its own: "tensor", "neuron", or a number of equal parts.
        rotate: of all groups that do not say it themselves; None: what has two dimensions or more.
        polar: as for `Muon`.
        adam: as for `Muon`.
        split: as for `Muon`.
        flatten: as for `Muon`.
        {shared}

    Reference: [emerging-optimizers]; it came from [modded-nanogpt]'s optimizer track.

    >>> w = torch.nn.Parameter(torch.eye(4))
    >>> w.grad = -torch.eye(4)
    >>> _ = BrakeMuon([{"params": [w], "muon": True}], lr=0.1, weight_decay=0.0).step()
    >>> 0.045 < float(w.detach()[0, 0]) - 1 < 0.06  # half of 0.1, as far as the polar factor is exact
    True
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        outward: float = 0.5,
        inward: float = 1.0,
        scale: str = "original",
        granularity: str | int = "tensor",
        rotate: bool | None = None,
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
        super().__init__(params, given(locals()), Brake())

    def pair(self, group: GroupOptions) -> tuple[Rule, Move]:
        """Muon's rule and the brake for groups of matrices, Adam's rule and decay for the others."""
        rule, move = super().pair(group)
        return (rule, move) if group["muon"] else (rule, _DECAY)


_DECAY = Decay()
