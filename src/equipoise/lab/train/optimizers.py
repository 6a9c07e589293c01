"""Optimizers by the names of `equipoise.theory`, and equipoise's own besides."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

import equipoise as eq
from equipoise import _check
from equipoise.lab.data.base import seeded
from equipoise.lab.models import Walk
from equipoise.lab.train.schedules import shapes
from equipoise.lab.train.switching import BothSchedules, Maker, switch
from equipoise.lab.train.trial import Trial
from equipoise.optim import Switch, rotational
from equipoise.schedules import Schedule, Scheduler


def _sgdm(groups: Any, *, momentum: float = 0.9, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, momentum=momentum, **options)


def _adam_nested(groups: Any, **options: Any) -> torch.optim.Optimizer:
    return eq.AdamW(groups, nested=True, **options)


def _muon(kind: Maker) -> Maker:
    def make(
        groups: Any, *, lr: float, weight_decay: float, adam: Any = None, polar: Any = None, **options: Any
    ) -> torch.optim.Optimizer:
        # What AdamW takes decays at the same rate as the matrices, unless it is said otherwise.
        rest = {"lr": 3e-3, "betas": (0.9, 0.95)} | dict(adam or {})
        rest.setdefault("weight_decay", lr * weight_decay / rest["lr"])
        # In float32 on every device, so that outcomes repeat.
        polar = {"dtype": torch.float32} | dict(polar or {})
        return kind(groups, lr=lr, weight_decay=weight_decay, adam=rest, polar=polar, **options)

    return make


def _imbalanced(groups: Any, *, portion: float = 0.5, factor: float = 0.1, **options: Any) -> torch.optim.Optimizer:
    """Rotational AdamW, but some of each hidden layer's neurons turn `factor` times as fast.  [kosson2024] Fig. 12."""
    _check.number("portion", portion, low=0, high=1)
    _check.number("factor", factor, low=0)
    apart: list[dict[str, Any]] = []
    for group in groups:
        if group["role"] not in ("matrix", "conv"):
            apart.append(group)
            continue
        for param, name in zip(group["params"], group["param_names"], strict=True):
            rows = param.shape[0]
            # Which ones is drawn: the same channels in every layer of a residual network would be a narrow one.
            chosen = torch.randperm(rows, generator=seeded(0, "speeds", name))[: round(portion * rows)]
            speeds = torch.ones(rows, device=param.device)
            speeds[chosen.to(param.device)] = factor
            apart.append({**group, "params": [param], "param_names": [name], "speeds": speeds})
    return eq.RotationalAdamW(apart, **options)


def _relative_eps(groups: Any, *, eps: float = 1e-2, by: str = "layer", **options: Any) -> torch.optim.Optimizer:
    """AdamW whose ε is `eps` times the root mean square of √v̂, over each tensor or over the model.  [notepad] 3.3."""
    _check.choice("by", by, ("layer", "model"))
    apart = [
        {**group, "params": [param], "param_names": [name]}
        for group in groups for param, name in zip(group["params"], group["param_names"], strict=True)
    ]  # fmt: skip
    optimizer = torch.optim.AdamW(apart, eps=eps, **options)

    def scale(*_: Any) -> None:
        sums = [_squares(optimizer, group) for group in optimizer.param_groups]
        if by == "model":
            sums = [(sum(s for s, _ in sums), sum(n for _, n in sums))] * len(sums)
        for group, (total, count) in zip(optimizer.param_groups, sums, strict=True):
            group["eps"] = eps * math.sqrt(total / count) if count else eps

    optimizer.register_step_pre_hook(scale)
    return optimizer


def _squares(optimizer: torch.optim.Optimizer, group: Any) -> tuple[float, int]:
    """Sum of v̂ over a group's one tensor, as it was before the step (at the first of g²), and its size."""
    (param,) = group["params"]
    if param.grad is None:
        return 0.0, 0
    state = optimizer.state.get(param)
    if not state:
        return float(param.grad.double().square().sum()), param.numel()
    fill = 1 - group["betas"][1] ** float(state["step"])
    return float(state["exp_avg_sq"].double().sum()) / fill, param.numel()


def _switch(groups: Any, **options: Any) -> torch.optim.Optimizer:
    return switch(MAKERS, groups, **options)


MAKERS: dict[str, Maker] = {
    "adam_l2": torch.optim.Adam,
    "adam_nested": _adam_nested,
    "adamw": torch.optim.AdamW,
    "adamw_relative_eps": _relative_eps,
    "adamp": eq.AdamP,
    "adamw_switches": eq.AdamW,
    "angular_muown": _muon(eq.AngularMuown),
    "brake_muon": _muon(eq.BrakeMuon),
    "floor_muon": _muon(eq.FloorMuon),
    "imbalanced_adamw": _imbalanced,
    "hyperball_muon": _muon(eq.HyperballMuon),
    "lion": eq.Lion,
    "md_adam": eq.MDAdam,
    "md_muon": _muon(eq.MDMuon),
    "muon": _muon(eq.Muon),
    "nero": eq.Nero,
    "nor_muon": _muon(eq.NorMuon),
    "ngd": eq.NormalizedGD,
    "rmsprop": eq.RMSProp,
    "rotational_adam_l2": eq.RotationalAdamL2,
    "rotational_adamw": eq.RotationalAdamW,
    "rotational_lion": eq.RotationalLion,
    "rotational_muon": _muon(eq.RotationalMuon),
    "rotational_sgdm": eq.RotationalSGDM,
    "sgdm": _sgdm,
    "signsgdm": eq.SignSGDM,
    "switch": _switch,
}
"""torch's own where torch has it: SGDM and Adam + L2 put their decay into the gradient. One's own may be added.

`adamw_switches` is equipoise's AdamW, with [notepad]'s switches: `zero_init`, `bias_correction`, `nested`.
"""


def make(trial: Trial, model: nn.Module) -> tuple[torch.optim.Optimizer, Scheduler | BothSchedules]:
    """The optimizer of a trial and its schedule; gains and biases do not decay.

    Args:
        trial: what to make. `optimizer_options["roles"]` has options for roles, as `eq.param_groups` takes them.
            `optimizer_options["curves"]` has curves, as `Schedule.to_dict` gives them, by hyperparameter: factors on
            what it would be without. `optimizer_options["twin"]` makes the rotational twin of what the rest says:
            `angle`, as `equipoise.rotational` takes it, and `gains`.
        model: whose parameters.
    """
    options = trial.optimizer_options
    curves: dict[str, Any] = {key: Schedule.from_dict(curve) for key, curve in options.get("curves", {}).items()}
    roles = options.get("roles")
    optimizer = of_groups(trial, eq.param_groups(model, head=[] if isinstance(model, Walk) else None, roles=roles))
    shape, decay = shapes(trial)
    if decay is not None:
        curves["weight_decay"] = decay * curves["weight_decay"] if "weight_decay" in curves else decay
    lr = shape * curves.pop("lr") if "lr" in curves else shape
    if "twin" in options:
        optimizer = _twin(model, optimizer, trial, lr, **options["twin"])
    if isinstance(optimizer, Switch):
        if curves:
            raise ValueError(f"curves of {', '.join(curves)}: must be left out of a switch, which has two optimizers")
        return optimizer, BothSchedules(optimizer, lr)
    return optimizer, Scheduler(optimizer, lr=lr, relative=True, **curves)


def _twin(
    model: nn.Module, plain: torch.optim.Optimizer, trial: Trial, lr: Schedule, *, angle: str = "step",
    gains: bool = False,
) -> torch.optim.Optimizer:  # fmt: skip
    if angle == "forecast":
        return rotational(model, plain, angle=angle, steps=trial.steps, schedule=lr, gains=gains)
    return rotational(model, plain, angle=angle, gains=gains)  # type: ignore[arg-type]  # it is checked there


def of_groups(trial: Trial, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The optimizer of a trial for the groups of `eq.param_groups`, without its schedule."""
    maker = MAKERS[_check.choice("optimizer", trial.optimizer, MAKERS)]
    options = {key: value for key, value in trial.optimizer_options.items() if key not in ("curves", "roles", "twin")}
    return maker(groups, lr=trial.lr, weight_decay=trial.weight_decay, **options)
