"""Averages of weights: torch's own as the oracle, swapping, resuming, and what they remember."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import equipoise as eq
from equipoise import theory
from equipoise.optim import WeightAverage


def train(steps: int, average: Any, model: nn.Module, **options: Any) -> list[dict[str, torch.Tensor]]:
    optimizer = eq.AdamW(model.parameters(), lr=0.01, **options)
    generator, seen = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        model(torch.randn(8, 5, generator=generator, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update()
        seen.append({name: p.detach().clone() for name, p in model.named_parameters()})
    return seen


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def test_it_is_torchs_average() -> None:
    model = network()
    torchs = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    ours = WeightAverage(model, beta=0.9)

    class Both:
        def update(self) -> None:
            ours.update()
            torchs.update_parameters(model)

    last = train(20, Both(), model)[-1]
    x = torch.ones(1, 5, dtype=torch.float64)
    with ours:
        torch.testing.assert_close(model(x), torchs(x))
    for name, p in model.named_parameters():
        assert torch.equal(p, last[name])


def test_designed_averages_are_their_sums() -> None:
    model, steps = network(), 15
    b = theory.design_average(np.linspace(1, 0.1, steps), lr=0.01)
    average = WeightAverage(model, weights=b)
    seen = train(steps, average, model)
    np.testing.assert_allclose(average.shares(), b)
    average.swap()
    for name, p in model.named_parameters():
        torch.testing.assert_close(
            p.detach(), sum(float(share) * one[name] for share, one in zip(b, seen, strict=True))
        )
    with pytest.raises(ValueError, match="swap them back"):
        average.update()
    with pytest.raises(ValueError, match="swap them back"):
        average.state_dict()
    average.swap()
    with pytest.raises(ValueError, match="weights has 15 values"):
        average.update()


def test_a_late_average_starts_where_its_first_weight_is() -> None:
    model = network()
    average = WeightAverage(model, weights=[0, 0, 1, 1])
    seen = train(4, average, model)
    with average:
        for name, p in model.named_parameters():
            torch.testing.assert_close(p.detach(), (seen[2][name] + seen[3][name]) / 2)


def test_what_is_resumed_is_the_same() -> None:
    model = network()
    whole = WeightAverage(model, beta=0.8)
    train(6, whole, model)
    other, again = network(), None
    first = WeightAverage(other, beta=0.8)
    optimizer = eq.AdamW(other.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        if step == 3:
            again = WeightAverage(other, beta=0.8)
            again.load_state_dict(first.state_dict())
            first = again
        other(torch.randn(8, 5, generator=generator, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        first.update()
    assert again is not None
    for a, b in zip(whole.state_dict()["average"].values(), again.state_dict()["average"].values(), strict=True):
        assert torch.equal(a, b)
    np.testing.assert_array_equal(whole.shares(), again.shares())


def test_low_precision_is_averaged_in_float32() -> None:
    model = nn.Linear(1, 1, bias=False).bfloat16()
    average = WeightAverage(model, beta=0.99)
    for step in range(200):
        nn.init.constant_(model.weight, 1.0 if step < 1 else 2.0)
        average.update()
    kept = average.state_dict()["average"]["weight"]
    assert kept.dtype == torch.float32
    assert float(kept) == pytest.approx(2 - 0.99**199, rel=1e-4)
    with average:
        assert model.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WeightAverage(nn.ReLU()), "must have parameters"),
        (lambda: WeightAverage(3), "model = int"),  # type: ignore[arg-type]
        (lambda: WeightAverage(nn.Linear(1, 1), beta=1.0), "beta = 1.0"),
        (lambda: WeightAverage(nn.Linear(1, 1), weights=[-1.0]), "weights"),
        (lambda: WeightAverage(nn.Linear(1, 1)).swap(), "no average yet"),
        (lambda: WeightAverage(nn.Linear(1, 1)).load_state_dict({"updates": 1, "average": {}}), "other parameters"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
