"""Eager optimizer steps against torch's, as ratios measured in one run, interleaved, medians.

Below 1 is faster than the peer. The tensors are those of a small transformer, 25 million weights.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from timing import medians

import equipoise as eq

SHAPES = [(1024, 1024)] * 8 + [(4096, 1024)] * 2 + [(1024, 4096)] * 2 + [(1024,)] * 24


def parameters() -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.randn(s) * 0.02) for s in SHAPES]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


def main() -> None:
    jobs: dict[str, Callable[[], object]] = {
        "torch AdamW foreach": torch.optim.AdamW(parameters(), lr=1e-4, foreach=True).step,
        "torch AdamW fused": torch.optim.AdamW(parameters(), lr=1e-4, fused=True).step,
        "AdamW": eq.AdamW(parameters(), lr=1e-4).step,
        "AdamW nonfinite=skip": eq.AdamW(parameters(), lr=1e-4, nonfinite="skip").step,
        "Lion": eq.Lion(parameters(), lr=1e-4, weight_decay=0.1).step,
        "SGDM": eq.SGDM(parameters(), lr=1e-4, weight_decay=0.1).step,
        "RotationalAdamW": eq.RotationalAdamW(parameters(), lr=1e-4).step,
        "HyperballAdamW": eq.HyperballAdamW(parameters(), lr=1e-4).step,
    }
    seconds = medians(jobs, rounds=15)
    peer = seconds["torch AdamW foreach"]
    for name, value in seconds.items():
        print(f"{name:24s} {value / peer:5.2f} × torch's foreach AdamW")


if __name__ == "__main__":
    main()
