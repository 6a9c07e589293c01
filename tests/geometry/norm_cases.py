"""Every norm with a shape to try it on, and the slow truths that the tests compare with."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise import geometry as eg

INF = math.inf
CASES: dict[str, tuple[eg.Norm, tuple[int, ...]]] = {
    **{f"l{p:g}": (eg.Lp(p), (7,)) for p in (1, 1.5, 2, 3, 7.5, INF)},
    "l3 of a matrix": (eg.Lp(3, dims=2), (3, 4)),
    "rms": (eg.RMS(), (7,)),
    "matrix rms": (eg.RMS(dims=2), (3, 4)),
    "frobenius": (eg.frobenius(), (3, 4)),
    **{f"l{p:g}->linf": (eg.Operator(p, INF), (3, 4)) for p in (1, 1.5, 2, 4, INF)},
    **{f"l1->l{q:g}": (eg.Operator(1, q), (3, 4)) for q in (1, 1.5, 2, 4)},
    "l1->rms": (eg.Operator(1, "rms"), (3, 4)),
    "rms->linf": (eg.Operator("rms", INF), (3, 4)),
    "spectral": (eg.Operator(2, 2), (3, 4)),
    "spectral, tall": (eg.Operator(2, 2), (5, 3)),
    "rms->rms": (eg.Operator("rms", "rms"), (3, 4)),
    "rms->l2": (eg.Operator("rms", 2), (3, 4)),
    "l2->rms": (eg.Operator(2, "rms"), (3, 4)),
    "scaled": (eg.Scaled(eg.Operator(2, 2), 2.5), (3, 4)),
    "flat": (eg.Flat(eg.Operator(2, 2)), (3, 2, 2, 3)),
    "positions, max": (eg.Positions(eg.Operator("rms", "rms")), (3, 2, 2, 3)),
    "positions, sum": (eg.Positions(eg.Operator(1, 2), combine="sum"), (3, 2, 2, 3)),
    "positions, 1d": (eg.Positions(eg.Operator(2, 2), kernel_dims=1), (3, 2, 3)),
    "heads, max": (eg.Heads(eg.Operator(2, 2), 2), (6, 4)),
    "heads, sum": (eg.Heads(eg.Operator(2, INF), 3, "sum"), (6, 4)),
}


def random(shape: tuple[int, ...], seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def inner(a: Tensor, b: Tensor) -> float:
    return float((a.double() * b.double()).sum())


def climb(norm: eg.Norm, g: Tensor, starts: int, steps: int) -> float:
    """The largest ⟨g, t⟩/‖t‖ by gradient ascent with Adam, which knows nothing of dual norms."""
    t = random((starts, *g.shape), seed=100).requires_grad_()
    optimizer = torch.optim.Adam([t], lr=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    best = 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        values = (g * t).flatten(1).sum(1) / norm.norm(t)
        best = max(best, values.max().item())
        (-values.sum()).backward()
        optimizer.step()
        schedule.step()
    return best
