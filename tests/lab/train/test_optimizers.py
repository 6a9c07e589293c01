"""The lab's own optimizers: a switch on one schedule, ε by the layer, curves of any hyperparameter."""

import numpy as np
import pytest
import torch
from torch import nn

from equipoise.lab.train import optimizers
from equipoise.lab.train.switching import BothSchedules
from equipoise.lab.train.trial import Trial
from equipoise.optim import Switch
from equipoise.schedules import exponential, from_array, named


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def backward(model: nn.Module, t: int) -> None:
    model.zero_grad()
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(t))
    model(x).square().mean().backward()


@pytest.mark.parametrize("blend", [0, 3])
def test_both_optimizers_of_a_switch_follow_one_curve(blend: int) -> None:
    second = {"optimizer": "sgdm", "lr": 0.5, "weight_decay": 0.0, "momentum": 0.8}
    trial = Trial(
        optimizer="switch", lr=0.01, weight_decay=0.1, steps=12, schedule="cosine", warmup=2,
        optimizer_options={"at": 5, "blend": blend, "second": second},
    )  # fmt: skip
    model = net()
    optimizer, schedule = optimizers.make(trial, model)
    assert isinstance(optimizer, Switch)
    assert isinstance(schedule, BothSchedules)
    assert isinstance(optimizer.first, torch.optim.AdamW)
    assert optimizer.second.param_groups[0]["momentum"] == 0.8
    expected = named("cosine", steps=12, warmup=2).values(12)
    for t in range(1, 13):
        if t <= 5 + blend:
            assert optimizer.first.param_groups[0]["lr"] == pytest.approx(0.01 * expected[t - 1])
        if t > 5:
            assert optimizer.second.param_groups[0]["lr"] == pytest.approx(0.5 * expected[t - 1])
        backward(model, t)
        optimizer.step()
        schedule.step()
    with pytest.raises(ValueError, match="must be left out of a switch"):
        optimizers.make(trial.vary({"optimizer_options.curves": {"eps": exponential(4, final=0.1).to_dict()}}), net())


@pytest.mark.parametrize("by", ["layer", "model"])
def test_relative_eps_by_hand(by: str) -> None:
    trial = Trial(optimizer="adamw_relative_eps", optimizer_options={"eps": 0.1, "by": by, "betas": (0.9, 0.99)})
    model = net()
    optimizer, _ = optimizers.make(trial, model)
    v = {p: torch.zeros_like(p, dtype=torch.float64) for p in model.parameters()}
    for t in range(1, 5):
        backward(model, t)
        # Before the step v is of the steps so far; at the first there is only g².
        now = {p: x / (1 - 0.99 ** (t - 1)) if t > 1 else p.grad.double().square() for p, x in v.items()}  # type: ignore[union-attr]
        everything = torch.cat([x.flatten() for x in now.values()])
        for p, x in v.items():
            assert p.grad is not None
            x.mul_(0.99).add_(p.grad.double().square(), alpha=0.01)
        optimizer.step()
        for group in optimizer.param_groups:
            (p,) = group["params"]
            size = now[p] if by == "layer" else everything
            assert group["eps"] == pytest.approx(0.1 * float(size.mean().sqrt()), rel=1e-4)


def test_curves_are_factors() -> None:
    curves = {"lr": from_array([1.0, 0.5, 2.0]).to_dict(), "eps": exponential(3, final=1e-3).to_dict()}
    curves["weight_decay"] = from_array([1.0, 3.0]).to_dict()
    trial = Trial(lr=0.1, weight_decay=0.2, steps=3, schedule="linear", optimizer_options={"curves": curves})
    optimizer, schedule = optimizers.make(Trial.from_json(trial.to_json()), net())
    seen = []
    for _ in range(3):
        seen.append([[g[key] for key in ("lr", "weight_decay", "eps")] for g in optimizer.param_groups])
        optimizer.step()
        schedule.step()
    decays = [g["weight_decay"] > 0 for g in optimizer.param_groups]
    for group, decayed in enumerate(decays):
        found = np.array([step[group] for step in seen])
        assert found[:, 0] == pytest.approx([0.1 * 2 / 3, 0.1 / 3 * 0.5, 0.0])
        assert found[:, 1] == pytest.approx([0.2, 0.6, 0.6] if decayed else [0, 0, 0])
        assert found[:, 2] == pytest.approx([1e-9, 1e-10, 1e-11])
    assert any(decays)
    assert not all(decays)
