"""A random walk of tensors of every shape, planned and watched: what both say against what it does."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.finding import Finding
from equipoise.optim.dynamics_of import GroupState, group_state, stepping
from equipoise.theory import Forecast

STEPS, LAST = 300, 20
SHAPES = {
    "matrix": (64, 64), "conv": (32, 16, 3, 3), "experts": (4, 32, 32), "embedding": (128, 32), "qkv": (96, 48),
    "gain": (4096,), "scalar": (),
}  # fmt: skip
MATRICES = ("matrix", "conv", "experts", "qkv")
RATES: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.5}
SIGNS: dict[str, Any] = {"lr": 0.002, "weight_decay": 2.5}
"""A sign's updates are longer: these settle near where the tensors begin."""


class Walker(nn.Module):
    """Parameters of every shape.

    Args:
        names: which of `SHAPES`.
        rows: how many times as long the first dimension is, where one tensor of that shape is too noisy.
    """

    def __init__(self, names: tuple[str, ...], rows: int = 1) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name in names:
            start = torch.randn([n * (rows if i == 0 else 1) for i, n in enumerate(SHAPES[name])], generator=generator)
            start *= 0.1
            self.register_parameter(name, nn.Parameter(start if name != "scalar" else torch.tensor(0.5)))


def groups(model: Walker) -> list[dict[str, Any]]:
    """A group each, with the role that `param_groups` would give it."""
    roles = {"matrix": "matrix", "conv": "conv", "experts": "matrix", "embedding": "embedding", "qkv": "matrix"}
    return [
        {"params": [p], "name": name, "role": roles.get(name, "gain"), **({"split": 3} if name == "qkv" else {})}
        for name, p in model.named_parameters()
    ]  # fmt: skip


def bare(model: Walker) -> list[dict[str, Any]]:
    return [{"params": [p], "name": name} for name, p in model.named_parameters()]


def walk(model: Walker, optimizer: Any, generator: torch.Generator) -> None:
    """One step of noise: of scale-invariant tensors as long as 1/‖w‖, of gains of a fixed length."""
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=generator) / math.sqrt(p.numel())
        p.grad = noise / p.detach().norm() if p.ndim > 1 else noise
    optimizer.step()


def states_of(model: Walker, optimizer: Any) -> dict[str, GroupState]:
    """What each tensor's group does in the next step, by the tensor's name."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {names[id(p)]: group_state(optimizer, g) for g in stepping(optimizer).param_groups for p in g["params"]}


def watched(model: Walker, optimizer: Any, path: Path) -> tuple[dict[str, Forecast | None], list[Finding]]:
    """Plan, walk and watch; the forecasts by name, and what the watch found."""
    plan = eq.plan(model, optimizer, steps=STEPS, finetune=False)
    generator = torch.Generator().manual_seed(2)
    with eq.watch(model, optimizer, path, every=5, spectra=0, strict=True, quiet=True, finetune=False) as watch:
        for _ in range(STEPS):
            walk(model, optimizer, generator)
    return {t.tensor.name: t.forecast for t in plan.tensors}, watch.findings


def hold(model: Walker, optimizer: Any, path: Path, near: float = 0.03) -> None:
    """Update, kept share, norm and rotation after 300 steps are what plan and comparison say; and no finding."""
    states = states_of(model, optimizer)
    planned, findings = watched(model, optimizer, path)
    with eq.Run.open(path) as run:
        for name in states:
            forecast, state, ndim = planned[name], states[name], len(SHAPES[name])
            assert forecast is not None
            turned = state.dynamics.turns(ndim)
            assert turned or state.coupled or state.lost(ndim) == pytest.approx(1 - forecast.kept[0], rel=1e-9)
            if name == "scalar":
                continue  # one number wanders as it likes
            for quantity in ("update", "norm", "rotation"):
                if quantity == "rotation" and name == "gain":
                    continue
                if quantity == "update" and (turned or state.coupled):
                    continue  # what is measured has L2 in it, or is what the move made of it
                series = run.series(quantity, name)
                measured = series.values[-LAST:].mean()
                wanted = getattr(forecast, quantity)[series.steps - 1][-LAST:].mean()
                assert measured == pytest.approx(wanted, rel=near), (name, quantity, measured / wanted)
                compared = getattr(run.compare(name).plain, quantity)[-LAST:].mean()
                assert compared == pytest.approx(wanted, rel=1e-2), (name, quantity, "compared")
    assert [f for f in findings if f.severity != "info"] == []


def kept_by_a_step_without_gradient(model: Walker, optimizer: Any) -> dict[str, float]:
    """What is left of each tensor when its gradient is 0: all that decay does, by brute force."""
    before = {name: p.detach().double() for name, p in model.named_parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    return {name: float(p.detach().double().norm() / before[name].norm()) for name, p in model.named_parameters()}
