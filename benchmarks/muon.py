"""Muon's step against torch.optim.Muon's, as ratios measured in one run, interleaved, medians.

Two tables: torch's code made to run in float32 against ours in float32, and torch as it comes, in bfloat16, against
ours in bfloat16. The second takes minutes on a CPU without instructions for bfloat16, and is left out there. The errors
are of a Gaussian gradient's update: rms(σ/mean − 1), and the distance from UVᵀ over √rank.

python benchmarks/muon.py            # on CUDA or MPS if there is one, else on the CPU
OMP_NUM_THREADS=1 python benchmarks/muon.py
"""

from __future__ import annotations

from typing import Any

import torch
from machine import bfloat16_is_fast, device, features, wait
from timing import medians

import equipoise as eq

SHAPES = [(768, 768)] * 12 + [(3072, 768)] * 6 + [(768, 3072)] * 6
LR = 1e-3


def parameters(where: torch.device) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.nn.Parameter((torch.randn(s, generator=generator) * 0.02).to(where)) for s in SHAPES]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator).to(where)
    return made


def errors(optimizer: torch.optim.Optimizer, scale: float) -> str:
    """Of the first update of one matrix of each shape."""
    params = optimizer.param_groups[0]["params"]
    chosen = [params[SHAPES.index(s)] for s in sorted(set(SHAPES))]
    before = [p.detach().cpu().double() for p in chosen]
    optimizer.step()
    made = []
    for p, w in zip(chosen, before, strict=True):
        assert p.grad is not None
        update = (w - p.detach().cpu().double()) / (scale * max(1.0, p.shape[0] / p.shape[1]) ** 0.5)
        values = torch.linalg.svdvals(update)
        u, _, vt = torch.linalg.svd(p.grad.cpu().double(), full_matrices=False)
        spread = (values / values.mean() - 1).square().mean().sqrt()
        made.append(f"{tuple(p.shape)} {spread:.3f}, {(update - u @ vt).norm() / len(values) ** 0.5:.3f}")
    return "; ".join(made)


def compare(dtype: torch.dtype, where: torch.device) -> None:
    """Print errors and the ratio of the times."""
    options: dict[str, Any] = {"lr": LR, "weight_decay": 0.0}
    jobs = {
        "torch.optim.Muon": torch.optim.Muon(parameters(where), **options),
        "Muon": eq.Muon(parameters(where), **options, polar={"dtype": dtype}),
        "Muon, five steps": eq.Muon(parameters(where), **options, polar={"dtype": dtype, "steps": 5}),
    }
    for name, optimizer in jobs.items():
        print(f"  {name}: {errors(optimizer, LR)}")

    def step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        wait(where)

    seconds = medians({name: lambda o=o: step(o) for name, o in jobs.items()}, rounds=7)
    for name in list(jobs)[1:]:
        print(f"  {name} takes {seconds[name] / seconds['torch.optim.Muon']:.2f} of the time of torch.optim.Muon")


def main() -> None:
    where = device()
    print(features(where))
    if bfloat16_is_fast(where):
        print("bfloat16 against bfloat16; rms(σ/mean − 1) and distance from UVᵀ:")
        compare(torch.bfloat16, where)
    else:
        print("bfloat16 is slower than float32 here: not measured")
    print("float32 against torch's code in float32:")
    as_it_comes = torch.Tensor.bfloat16
    torch.Tensor.bfloat16 = lambda x, *_: x.float().clone()  # type: ignore[method-assign]
    try:
        compare(torch.float32, where)
    finally:
        torch.Tensor.bfloat16 = as_it_comes  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
