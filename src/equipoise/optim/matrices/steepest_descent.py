"""Steepest descent in the modular norm: each layer takes the step that its own norm makes steepest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import torch
from torch import Tensor

from equipoise import _check, geometry
from equipoise.geometry import Norm
from equipoise.optim.engine.base import RuleOptimizer, state_dtype, without_autocast
from equipoise.optim.matrices.muon import add_all, by_dimensions, check_polar, options_of
from equipoise.optim.matrices.rules import DualRule, averaged
from equipoise.optim.moves import Decay
from equipoise.optim.options import DecayKind, GroupOptions, Nonfinite, Params, documented, given

NORMS = {
    "matrix": "spectral",
    "conv": "spectral",
    "embedding": "embedding",
    "head": "sign",
    "gain": "rms",
    "bias": "rms",
}
"""The norm of each role: [theory] 8."""


def _check_norm(norm: Any) -> None:
    if not isinstance(norm, Norm | str):
        raise ValueError(f"norm = {norm!r}: must be a norm of equipoise.geometry or the name of one")
    if isinstance(norm, str):
        geometry.named(norm)  # refuses what is no name


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
        options = given(locals()) | {"role": None, "polar": options_of("polar", polar)}
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
            parts = [(part.pop("muon"), part) for part in by_dimensions(param_group)]
            add_all(self, [part | {"norm": "spectral" if matrix else "rms"} for matrix, part in parts])
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
        """Check the options, norm and layer scale included."""
        super().check_options(group)
        _check_norm(group["norm"])
        _check.number("layer_scale", group["layer_scale"], low=0, open_low=True)
        check_polar(group["polar"])

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
