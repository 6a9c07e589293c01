"""Muon and its norm-controlling variants, with AdamW for what is no matrix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import torch
from torch import Tensor

from equipoise import _check, geometry
from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.engine.validation import split_group
from equipoise.optim.matrices.rules import MuonRule
from equipoise.optim.moves import Decay, Move
from equipoise.optim.options import (
    PLAIN_ADAM,
    DecayKind,
    GroupOptions,
    Nonfinite,
    Params,
    documented,
    given,
    group_options,
)
from equipoise.optim.rules import AdamRule, Rule
from equipoise.optim.sphere import Hyperball, Rotate
from equipoise.theory.directions import SCALES

ADAM = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8}
POLAR = ("steps", "accuracy", "lower", "method", "coefficients", "degree", "bound", "dtype")


class MuonFamily(RuleOptimizer):
    """Muon for matrices and convolutions, AdamW for everything else, in one optimizer."""

    def __init__(self, params: Params, options: dict[str, Any], move: Move):
        self._matrix, self._other = MuonRule(), AdamRule()
        self._adam = ADAM | options_of("adam", options.pop("adam"))
        for name in self._adam:
            if name not in ("lr", "betas", "eps", "weight_decay", "decay"):
                raise ValueError(f"adam[{name!r}]: must be lr, betas, eps, weight_decay or decay")
        options["polar"] = options_of("polar", options["polar"])
        fixed = {"scale": "none", "muon": None, "role": None, "betas": self._adam["betas"], "eps": self._adam["eps"]}
        super().__init__(params, PLAIN_ADAM | fixed | options, rule=self._matrix, move=move)

    def pair(self, group: GroupOptions) -> tuple[Rule, Move]:
        """Muon's rule for groups of matrices, Adam's for the others; the move is the same."""
        return (self._matrix if group["muon"] else self._other), self.move

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {name: getattr(self, name) for name in ("_matrix", "_other", "_adam")}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group. Without a role and without `muon`, it is split into matrices and the rest.

        Of a group that is split, `lr`, `weight_decay`, `decay` and `lr_max` are for its matrices; the rest takes those
        of `adam`, where that says them. A group that is not split keeps what it says.

        Args:
            param_group: as for any torch optimizer; `role` as `param_groups` gives it, or `muon` True or False.
        """
        role, muon = param_group.get("role"), param_group.get("muon")
        if muon is None and role is not None:
            muon = role in ("matrix", "conv")
        if muon is None:
            add_all(self, [part if part["muon"] else part | self._for_adam() for part in by_dimensions(param_group)])
            return
        group = dict(param_group) | {"muon": bool(muon)}
        if not muon:
            group = self._for_adam() | group
        super().add_param_group(group)

    def check_options(self, group: GroupOptions) -> None:
        """Check the options, those of Muon included."""
        super().check_options(group)
        _check_muon(group)

    def _for_adam(self) -> dict[str, Any]:
        """What a group that takes Adam's step has of its own, where matrices have another."""
        own = {name: self._adam[name] for name in ("lr", "weight_decay", "decay") if name in self._adam}
        return own | {"lr_max": None}


def by_dimensions(group: dict[str, Any]) -> list[dict[str, Any]]:
    """A group as one of matrices and one of the rest, each with its own names; what is empty is left out."""
    return [part | {"muon": matrix} for matrix, part in split_group(group, lambda p: p.ndim >= 2)]


def add_all(optimizer: RuleOptimizer, groups: list[dict[str, Any]]) -> None:
    """Add all of the groups, or none where one is refused."""
    before = len(optimizer.param_groups)
    try:
        for group in groups:
            optimizer.add_param_group(group)
    except ValueError:
        del optimizer.param_groups[before:]
        raise


def check_polar(options: Any) -> None:
    """Refuse arguments that `geometry.polar` does not take."""
    if not isinstance(options, Mapping):
        raise ValueError(f"polar = {options!r}: must be a dict of options, such as {{}}")
    for name in options:
        _check.choice("polar", name, POLAR)
    geometry.polar(torch.zeros(1, 1), **options)  # refuses values that make no sense


def options_of(name: str, given: Any) -> dict[str, Any]:
    """Options that were given as a dict, or none."""
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{name} = {given!r}: must be a dict of options, such as {{}}")
    return dict(given or {})


def _check_muon(group: GroupOptions) -> None:
    _check.choice("scale", group["scale"], SCALES)
    _check.whole("split", group["split"], low=1)
    check_polar(group["polar"])
    for name in ("muon", "flatten"):
        _check.flag(name, group[name])
    if not group["muon"]:
        return
    for p in group["params"]:
        if p.ndim < 2:
            raise ValueError(f"muon = True for a parameter of shape {tuple(p.shape)}: must have two dimensions or more")
        layout = MuonRule().dynamics(group_options(group, split=1)).layout(tuple(p.shape))
        rows = 0 if layout is None else layout.rows
        if rows % int(group["split"]):
            raise ValueError(f"split = {group['split']}: must divide the {rows} rows of each matrix")


@final
@documented
class Muon(MuonFamily):
    """m ← βm + (1−β)g, w ← (1−ηλ)w − η·scale·UVᵀ, UVᵀ the polar factor of m or its Nesterov form; AdamW for the rest.

    Give it `param_groups(model)`: matrices and convolutions take Muon's step, embeddings, heads, gains and biases
    AdamW's, in one object with one state. Without roles, parameters of two dimensions or more take Muon's.

    Args:
        params: parameters or groups. A group may say `muon` (True, False), `split` (equal parts of the rows that are
            matrices of their own: 3 for fused QKV, or heads), `flatten` (a three-dimensional parameter is one matrix
            and not a stack of them, as experts are). The lr and decay of a group without role and `muon` are for its
            matrices; the rest of it takes `adam`'s.
        lr: learning rate η of matrices.
        momentum: β.
        nesterov: orthogonalise βm + (1−β)g instead of m.
        weight_decay: λ, decoupled.
        scale: "original", "adam", "spectral" or "none": `theory.directions.matrix_scale`.
        polar: arguments of `geometry.polar`, such as `{"steps": 5}`, `{"accuracy": 1e-3}`, `{"dtype": torch.bfloat16}`.
            By default, products are in float64 for float64, in bfloat16 on CUDA and in float32 elsewhere,
            whatever the processor is fast at. A CPU with bfloat16 instructions needs a quarter of the time in bfloat16.
        adam: `lr`, `betas`, `eps`, `weight_decay`, `decay` of the AdamW groups; default lr 3e-4 and betas (0.9, 0.95).
        split: number of equal parts of the rows that are separate matrices: 3 for fused QKV, or the number of heads.
        flatten: treat a three-dimensional parameter as one matrix, not as a stack of matrices, such as experts.
        {shared}

    Reference: [jordan2024]; torch.optim.Muon; [muon-appendix].

    >>> w = torch.nn.Parameter(torch.zeros(2, 2))
    >>> optimizer = Muon([w], lr=0.1, polar={"accuracy": 1e-4})
    >>> w.grad = torch.tensor([[3.0, 0.0], [0.0, 0.1]])
    >>> _ = optimizer.step()
    >>> w.detach().round(decimals=3)
    tensor([[-0.1000,  0.0000],
            [ 0.0000, -0.1000]])
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        scale: str = "original",
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
        super().__init__(params, given(locals()), Decay())


@final
@documented
class RotationalMuon(MuonFamily):
    """Muon's direction at Muon's equilibrium rotation from the first step, norms kept; RotationalAdamW for the rest.

    Args:
        params: as for `Muon`; `rotate` in a group says whether its parameters rotate.
        lr: learning rate η of matrices; with weight decay it sets the rotation. The scale of the update does not.
        momentum: β.
        nesterov: orthogonalise βm + (1−β)g instead of m.
        weight_decay: λ.
        polar: as for `Muon`.
        adam: as for `Muon`.
        split: as for `Muon`.
        flatten: as for `Muon`.
        {rotation}
        {shared}

    Reference: [kosson2024] Algorithm 1; [theory] 1, 7.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.1,
        polar: Mapping[str, Any] | None = None,
        adam: Mapping[str, Any] | None = None,
        split: int = 1,
        flatten: bool = False,
        angle: float | Callable[[int], float] | Literal["step"] | None = None,
        granularity: str | int = "neuron",
        center: bool = False,
        track: float | None = None,
        method: str = "exact",
        reference: str | None = None,
        norm: float | None = None,
        speeds: Tensor | None = None,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), Rotate())


@final
@documented
class HyperballMuon(MuonFamily):
    """Muon's direction as a step of relative size lr on the sphere of each tensor; HyperballAdamW for the rest.

    Args:
        params: as for `Muon`.
        lr: size of a step relative to the weights; `theory.stationary("muon", ...).rotation` is Muon's own.
        momentum: β.
        nesterov: orthogonalise βm + (1−β)g instead of m.
        weight_decay: λ of the parameters that do not keep their norm.
        polar: as for `Muon`.
        adam: as for `Muon`.
        split: as for `Muon`.
        flatten: as for `Muon`.
        granularity: what keeps its norm as one vector: "tensor", "neuron", or a number of equal parts.
        rotate: whether parameters keep their norm. Default: those with two dimensions or more.
        {shared}

    Reference: [wen2026]; [theory] 7.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        polar: Mapping[str, Any] | None = None,
        adam: Mapping[str, Any] | None = None,
        split: int = 1,
        flatten: bool = False,
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
        super().__init__(params, given(locals()), Hyperball())
