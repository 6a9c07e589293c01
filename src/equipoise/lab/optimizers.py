"""Optimizers by the names of `equipoise.theory`, and equipoise's own besides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import equipoise as eq
from equipoise.lab.config import Trial
from equipoise.lab.data.base import seeded
from equipoise.lab.models import Walk
from equipoise.lab.shapes import shapes
from equipoise.schedules import Scheduler
from equipoise.theory import _check

Maker = Callable[..., torch.optim.Optimizer]


def _sgdm(groups: Any, *, momentum: float = 0.9, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, momentum=momentum, **options)


def _adam_nested(groups: Any, **options: Any) -> torch.optim.Optimizer:
    return eq.AdamW(groups, nested=True, **options)


def _muon(groups: Any, *, lr: float, weight_decay: float, adam: Any = None, **options: Any) -> torch.optim.Optimizer:
    # What AdamW takes decays at the same rate as the matrices, unless it is said otherwise.
    rest = {"lr": 3e-3, "betas": (0.9, 0.95)} | dict(adam or {})
    rest.setdefault("weight_decay", lr * weight_decay / rest["lr"])
    return eq.Muon(groups, lr=lr, weight_decay=weight_decay, adam=rest, **options)


def _imbalanced(groups: Any, *, portion: float = 0.5, factor: float = 0.1, **options: Any) -> torch.optim.Optimizer:
    """Rotational AdamW, but a portion of each hidden layer's neurons turns `factor` times as fast.  RE Fig. 12."""
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


MAKERS: dict[str, Maker] = {
    "adam_l2": torch.optim.Adam,
    "adam_nested": _adam_nested,
    "adamw": torch.optim.AdamW,
    "imbalanced_adamw": _imbalanced,
    "lion": eq.Lion,
    "muon": _muon,
    "ngd": eq.NormalizedGD,
    "rmsprop": eq.RMSProp,
    "rotational_adam_l2": eq.RotationalAdamL2,
    "rotational_adamw": eq.RotationalAdamW,
    "rotational_lion": eq.RotationalLion,
    "rotational_sgdm": eq.RotationalSGDM,
    "sgdm": _sgdm,
    "signsgdm": eq.SignSGDM,
}
"""torch's own where torch has it: SGDM and Adam + L2 put their decay into the gradient. One's own may be added."""


def make(trial: Trial, model: nn.Module) -> tuple[torch.optim.Optimizer, Scheduler]:
    """The optimizer of a trial and its schedule; gains and biases do not decay.

    Args:
        trial: what to make. `optimizer_options["roles"]` has options for roles, as `eq.param_groups` takes them.
        model: whose parameters.
    """
    maker = MAKERS[_check.choice("optimizer", trial.optimizer, MAKERS)]
    options = dict(trial.optimizer_options)
    groups = eq.param_groups(model, head=[] if isinstance(model, Walk) else None, roles=options.pop("roles", None))
    optimizer = maker(groups, lr=trial.lr, weight_decay=trial.weight_decay, **options)
    lr, decay = shapes(trial)
    return optimizer, Scheduler(optimizer, lr=lr, weight_decay=decay, relative=True)
