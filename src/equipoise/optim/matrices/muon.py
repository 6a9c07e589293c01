"""Optimizers for matrices: Muon and its norm-controlling variants, with AdamW for the rest; steepest descent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, final

import torch
from torch import Tensor

from equipoise import _check, geometry
from equipoise.geometry import Norm
from equipoise.optim.engine.base import RuleOptimizer, state_dtype, without_autocast
from equipoise.optim.engine.validation import with_params
from equipoise.optim.matrices.rules import DualRule, MuonRule, averaged
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
from equipoise.theory.dynamics import SCALES

ADAM = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8}
POLAR = ("steps", "accuracy", "lower", "method", "coefficients", "degree", "bound", "dtype")


class MuonFamily(RuleOptimizer):
    """Muon for matrices and convolutions, AdamW for everything else, in one optimizer."""

    def __init__(self, params: Params, options: dict[str, Any], move: Move):
        self._matrix, self._other = MuonRule(), AdamRule()
        self._adam = ADAM | _options_of("adam", options.pop("adam"))
        for name in self._adam:
            if name not in ("lr", "betas", "eps", "weight_decay", "decay"):
                raise ValueError(f"adam[{name!r}]: must be lr, betas, eps, weight_decay or decay")
        options["polar"] = _options_of("polar", options["polar"])
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
            _add_all(self, [part if part["muon"] else part | self._for_adam() for part in _by_dimensions(param_group)])
            return
        group = dict(param_group) | {"muon": bool(muon)}
        if not muon:
            group = self._for_adam() | group
        super().add_param_group(group)

    def check_options(self, group: GroupOptions) -> None:
        """Also those of Muon."""
        super().check_options(group)
        _check_muon(group)

    def _for_adam(self) -> dict[str, Any]:
        """What a group that takes Adam's step has of its own, where matrices have another."""
        own = {name: self._adam[name] for name in ("lr", "weight_decay", "decay") if name in self._adam}
        return own | {"lr_max": None}


def _by_dimensions(group: dict[str, Any]) -> list[dict[str, Any]]:
    """A group as one of matrices and one of the rest, each with its own names; what is empty is left out."""
    group = with_params(group)
    parts = []
    for muon in (True, False):
        chosen = [i for i, p in enumerate(group["params"]) if (p.ndim >= 2) is muon]
        lists = {name: [group[name][i] for i in chosen] for name in ("params", "param_names") if name in group}
        if chosen or (muon and not group["params"]):  # a group without parameters stays one
            parts.append(group | lists | {"muon": muon})
    return parts


def _add_all(optimizer: RuleOptimizer, groups: list[dict[str, Any]]) -> None:
    """Add all of the groups, or none where one is refused."""
    before = len(optimizer.param_groups)
    try:
        for group in groups:
            optimizer.add_param_group(group)
    except ValueError:
        del optimizer.param_groups[before:]
        raise


def _check_norm(norm: Any) -> None:
    if not isinstance(norm, Norm | str):
        raise ValueError(f"norm = {norm!r}: must be a norm of equipoise.geometry or the name of one")
    if isinstance(norm, str):
        geometry.named(norm)  # refuses what is no name


def _check_polar(options: Any) -> None:
    if not isinstance(options, Mapping):
        raise ValueError(f"polar = {options!r}: must be a dict of options, such as {{}}")
    for name in options:
        _check.choice("polar", name, POLAR)
    geometry.polar(torch.zeros(1, 1), **options)  # refuses values that make no sense


def _options_of(name: str, given: Any) -> dict[str, Any]:
    if given is not None and not isinstance(given, Mapping):
        raise ValueError(f"{name} = {given!r}: must be a dict of options, such as {{}}")
    return dict(given or {})


def _check_muon(group: GroupOptions) -> None:
    _check.choice("scale", group["scale"], SCALES)
    _check.whole("split", group["split"], low=1)
    _check_polar(group["polar"])
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
        scale: "original", "adam", "spectral" or "none": `theory.dynamics.matrix_scale`.
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


NORMS = {
    "matrix": "spectral",
    "conv": "spectral",
    "embedding": "embedding",
    "head": "sign",
    "gain": "rms",
    "bias": "rms",
}
"""The norm of each role: [theory] 8."""


@final
@documented
class SteepestDescent(RuleOptimizer):
    """w_l ← (1−ηλ)w_l − (η/s_l)·dualize_l(x_l), x the averaged gradient, each layer in a norm of its own.

    With `sharpness` L the step follows from the gradients: η = (1/L)·Σ_l ‖x_l‖†_l/s_l over all layers, the minimiser of
    ⟨g, Δ⟩ + (L/2)‖Δ‖² in the modular norm max_l s_l‖Δ_l‖_l; each group's lr is then set to it, as a tensor without
    dimensions. Without, η is lr: steps of one length, as those of a linear minimisation oracle.

    Args:
        params: parameters or groups. A group may have its own `norm` and `layer_scale`; give it `param_groups(model)`
            and each role has the norm of `NORMS`.
        lr: η, where sharpness is None.
        norm: a `geometry` norm or its name, for all groups without one.
        sharpness: L > 0.
        momentum: β of the average; 0: the gradient itself.
        nesterov: x = βm + (1−β)g.
        weight_decay: λ, decoupled.
        layer_scale: s_l.
        polar: arguments of `geometry.polar` for the spectral norm and its RMS kin. Without, UVᵀ is exact for float64;
            else it is iterated to an accuracy of 1e-2, in float32, on singular values down to 3e-3 of their bound:
            ‖dualize(x)‖ is then at most 1.01, and a step at the right sharpness still goes down. `{"method": "svd"}`
            is exact; a norm that is an object made of others is, too.
        {shared}

    Reference: [muon-appendix] B.2, C; [theory] 8.

    >>> w = torch.nn.Parameter(torch.zeros(2))
    >>> optimizer = SteepestDescent([w], norm="linf", sharpness=2.0)
    >>> w.grad = torch.tensor([3.0, -1.0])
    >>> _ = optimizer.step()
    >>> w.tolist()
    [-2.0, 2.0]
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        norm: Norm | str | None = None,
        sharpness: float | None = None,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        layer_scale: float = 1.0,
        polar: Mapping[str, Any] | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        options = given(locals()) | {"role": None, "polar": _options_of("polar", polar)}
        del options["sharpness"]  # of the whole optimizer, not of a group
        self.sharpness = None if sharpness is None else _check.number("sharpness", sharpness, low=0, open_low=True)
        super().__init__(params, options, rule=DualRule(), move=Decay())
        self.register_step_pre_hook(_lr_first)

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"sharpness": self.sharpness}

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; without a norm and a role, one of matrices (spectral) and one of the rest (RMS).

        Args:
            param_group: as for any torch optimizer; `norm`, `layer_scale`, and `role` as `param_groups` gives it.
        """
        chosen = param_group.get("norm", self.defaults["norm"])
        role = param_group.get("role")
        if chosen is None and role is None:
            parts = [(part.pop("muon"), part) for part in _by_dimensions(param_group)]
            _add_all(self, [part | {"norm": "spectral" if matrix else "rms"} for matrix, part in parts])
            return
        if chosen is None:
            chosen = NORMS[_check.choice("role", role, NORMS)]
        _check_norm(chosen)
        if not isinstance(chosen, str):  # by its name where it has one, so that a checkpoint holds no object
            chosen = next((name for name, norm in geometry.NAMES.items() if norm == chosen), chosen)
        super().add_param_group(param_group | {"norm": chosen})
        if self.sharpness is not None:  # from the start what it will be, so that a checkpoint fits
            group = self.param_groups[-1]
            kinds = [state_dtype(p) for p in group["params"]]
            group["lr"] = torch.as_tensor(group["lr"], dtype=kinds[0] if kinds else torch.float32)

    def check_options(self, group: GroupOptions) -> None:
        """Also those of this descent."""
        super().check_options(group)
        _check_norm(group["norm"])
        _check.number("layer_scale", group["layer_scale"], low=0, open_low=True)
        _check_polar(group["polar"])

    _known = False
    """Whether lr has been set for the step that comes."""

    def _step_all(self) -> None:
        if not self._known:
            self._find_lr()
        self._known = False
        super()._step_all()

    @torch.no_grad()
    def _find_lr(self) -> None:
        self._known = True
        self._refuse_sparse()
        if self.sharpness is not None and self._all_finite():
            duals = [d for group in self.groups for d in self._duals(group)]
            first = duals[0] if duals else torch.zeros(())
            total = torch.stack([d.to(first.device, state_dtype(first)) for d in duals or [first]]).sum()
            for group in self.param_groups:
                group["lr"] = total / self.sharpness  # a tensor: nothing waits for it

    def _duals(self, group: GroupOptions) -> list[torch.Tensor]:
        """‖x‖†/s of each parameter, of the average that the step will have."""
        made = []
        numbers = self.rule.numbers(1, group)
        for p in group["params"]:
            if p.grad is None or not p.numel():
                continue
            known = self.state[p].get("momentum_buffer") if p in self.state else None
            g = -p.grad if group["maximize"] else p.grad
            g = g.add(p, alpha=float(group["l2"])) if group["l2"] else g
            m = torch.zeros_like(p, dtype=state_dtype(p)) if known is None else known.clone()
            made.append(DualRule.dual(averaged(g.to(m.dtype), m, nesterov=group["nesterov"], **numbers), group))
        return made


def _lr_first(optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Set lr before other hooks look at it, unless a closure has yet to make the gradients.

    A copy of an optimizer has no hooks: it finds lr in the step.
    """
    if optimizer.sharpness is not None and len(args) < 2 and kwargs.get("closure") is None:
        with without_autocast():
            optimizer._find_lr()
