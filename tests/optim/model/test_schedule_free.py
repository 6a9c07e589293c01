"""Schedule-free training is its paper's, over any optimizer, and goes on from a saved state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.optim import ScheduleFree

AIM = torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(3, 4)


def slope(y: Any) -> Any:
    return 4 * (y - AIM.numpy()) ** 3 + y


def step(w: torch.nn.Parameter, optimizer: torch.optim.Optimizer) -> None:
    w.grad = torch.from_numpy(slope(w.detach().double().numpy())).to(w.dtype)
    optimizer.step()


@pytest.mark.parametrize("beta", [0.0, 0.6, 0.9])
def test_it_is_the_papers_algorithm(beta: float) -> None:
    """With SGD and a warmup, written out; the average counts each step by the square of its lr."""
    lrs = [0.01, 0.02, 0.03, 0.03, 0.03]
    w = torch.nn.Parameter(torch.zeros_like(AIM))
    optimizer = torch.optim.SGD([w], lr=1.0)
    free = ScheduleFree(optimizer, beta=beta)
    z = x = y = np.zeros((3, 4))
    total = 0.0
    for lr in lrs:
        optimizer.param_groups[0]["lr"] = lr
        step(w, optimizer)
        z = z - lr * slope(y)
        total += lr**2
        x = (1 - lr**2 / total) * x + lr**2 / total * z
        y = (1 - beta) * z + beta * x
        np.testing.assert_allclose(w.detach().numpy(), y, rtol=1e-12)
        before = w.detach().clone()
        with free:
            np.testing.assert_allclose(w.detach().numpy(), x, rtol=1e-12)
        assert torch.equal(w.detach(), before)


@pytest.mark.parametrize("make", [eq.AdamW, eq.RotationalAdamW, eq.Muon, torch.optim.AdamW], ids=lambda m: m.__module__)
def test_without_beta_it_is_the_optimizers_own_training_and_the_mean_of_its_weights(make: Any) -> None:
    start = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ours, theirs = torch.nn.Parameter(start.clone()), torch.nn.Parameter(start.clone())
    mine, other = make([ours], lr=0.02, weight_decay=0.1), make([theirs], lr=0.02, weight_decay=0.1)
    free, seen = ScheduleFree(mine, beta=0.0), []
    for _ in range(6):
        step(ours, mine)
        step(theirs, other)
        seen.append(theirs.detach().clone())
    torch.testing.assert_close(ours, theirs)
    with free:
        torch.testing.assert_close(ours.detach(), torch.stack(seen).mean(0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_it_goes_on_from_a_saved_state(dtype: torch.dtype) -> None:
    def begun() -> tuple[torch.nn.Parameter, Any, ScheduleFree]:
        w = torch.nn.Parameter(torch.ones_like(AIM).to(dtype))
        optimizer = eq.AdamW([w], lr=0.02)
        return w, optimizer, ScheduleFree(optimizer)

    w, optimizer, free = begun()
    for _ in range(3):
        step(w, optimizer)
    saved = (w.detach().clone(), optimizer.state_dict(), free.state_dict())
    again, other, freed = begun()
    with torch.no_grad():
        again.copy_(saved[0])
    other.load_state_dict(saved[1])
    freed.load_state_dict(saved[2])
    for _ in range(3):
        step(w, optimizer)
        step(again, other)
    assert torch.equal(w, again)
    with free, freed:
        assert torch.equal(w, again)
    assert all(value.dtype != torch.bfloat16 for value in free.state_dict()["x"])
    free.remove()
    before = w.detach().clone()
    step(w, optimizer)
    assert not torch.equal(before, w)


def test_what_is_refused() -> None:
    w = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([w], lr=0.1)
    free = ScheduleFree(optimizer)
    w.grad = torch.ones(2)
    with pytest.raises(ValueError, match="closure: must be None"):
        optimizer.step(lambda: 0.0)
    optimizer.step()
    with free:
        with pytest.raises(ValueError, match="leave `with`"):
            optimizer.step()
        with pytest.raises(ValueError, match="already"), free:
            pass
    with pytest.raises(ValueError, match="must be of the model's 1 shapes"):
        free.load_state_dict({"z": [torch.ones(3)], "x": [torch.ones(3)], "totals": {}})
    with pytest.raises(ValueError, match="beta = 2"):
        ScheduleFree(optimizer, beta=2)
