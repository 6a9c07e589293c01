"""Small training loops that the tests of watch attach to."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import equipoise as eq


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.LayerNorm(10), nn.Linear(10, 6)).to(dtype)


def batch(step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(16, 12, generator=torch.Generator().manual_seed(step)).to(dtype)


def loss_of(model: nn.Module, step: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (model(batch(step, dtype)) - 1).square().mean()


def train(
    model: nn.Module, optimizer: Any, steps: int, after: Callable[[int, Tensor], None] | None = None, first: int = 0
) -> None:
    """Some steps on data that depends on the step alone."""
    dtype = next(model.parameters()).dtype
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model, step, dtype)
        loss.backward()
        optimizer.step()
        if after is not None:
            after(step, loss)


def watched(
    path: Path, optimizer: Callable[[Any], Any], steps: int = 4, dtype: torch.dtype = torch.float32, **options: Any
) -> tuple[eq.Run, eq.monitor.Watch]:
    """The run of a few watched steps."""
    model = network(dtype)
    made = optimizer(model.parameters())
    with eq.watch(model, made, path, **({"every": 1, "strict": True} | options)) as watch:
        train(model, made, steps)
    return eq.Run.open(path), watch


def value(run: eq.Run, quantity: str, tensor: str | None = None, step: int = -1, **which: Any) -> float:
    """One measured number; of the last step unless told otherwise."""
    series = run.series(quantity, tensor, **which)
    return float(series.values[-1] if step == -1 else series.values[list(series.steps).index(step)])
