"""Muon's step against torch.optim.Muon's, as ratios measured in one run, interleaved, medians.

torch orthogonalises in bfloat16, which a CPU without instructions for it multiplies up to a hundred times slower than
float32. There the peer is torch's own code made to run in float32; where bfloat16 is fast, it is as it comes.
"""

from __future__ import annotations

import torch
from timing import medians

import equipoise as eq

SHAPES = [(768, 768)] * 12 + [(3072, 768)] * 6 + [(768, 3072)] * 6


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.nn.Parameter(torch.randn(s, generator=generator) * 0.02) for s in SHAPES]
    for p in made:
        p.grad = torch.randn(p.shape, generator=generator)
    return made


def off(p: torch.nn.Parameter, before: torch.Tensor, scale: float) -> float:
    """How far the singular values of an update are from their mean, root mean square."""
    values = torch.linalg.svdvals((before - p.detach()) / scale)
    return float((values / values.mean() - 1).square().mean().sqrt())


def main() -> None:
    fast = eq.geometry.fast_dtype("cpu") == torch.bfloat16
    if not fast:
        torch.Tensor.bfloat16 = lambda x, *_: x.float().clone()  # type: ignore[method-assign]
    ours, theirs = parameters(), parameters()
    jobs = {
        "torch.optim.Muon": torch.optim.Muon(theirs, lr=1e-3, weight_decay=0.0),
        "Muon": eq.Muon(ours, lr=1e-3, weight_decay=0.0),
    }
    for name, optimizer in jobs.items():
        p = optimizer.param_groups[0]["params"][0]
        before = p.detach().clone()
        optimizer.step()
        print(f"{name}: singular values of an update differ from their mean by {off(p, before, 1e-3):.3f}")
    seconds = medians({name: optimizer.step for name, optimizer in jobs.items()}, rounds=7)
    peer = "bfloat16, as it comes" if fast else "its code in float32: bfloat16 is slow here"
    print(f"Muon takes {seconds['Muon'] / seconds['torch.optim.Muon']:.2f} of the time of torch.optim.Muon ({peer})")


if __name__ == "__main__":
    main()
