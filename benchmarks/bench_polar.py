"""The polar factor against torch.optim.Muon's Newton–Schulz, as ratios measured in one run, interleaved, medians.

Below 1 is faster than the peer. The matrices are those of a small transformer: 12 of 768 × 768, 6 of 3072 × 768 and 6 of
768 × 3072; the peer runs on two of each, because on a CPU without bfloat16 instructions it takes minutes for all. The
peer in float32 tells how much is due to the algorithm and how much to the dtype.

python benchmarks/bench_polar.py            # all
python benchmarks/bench_polar.py --float32  # without torch's own function in bfloat16
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import torch
from timing import medians
from torch import Tensor
from torch.optim._muon import _zeropower_via_newtonschulz as newton_schulz

from equipoise import geometry
from equipoise.geometry import _iterate, polar_factor

SHAPES = {(768, 768): 12, (3072, 768): 6, (768, 3072): 6}
SAMPLE = 2


def classic(x: Tensor) -> Tensor:
    """Torch's function word for word, in float32."""
    a, b, c = geometry.MUON
    y = x.mT if x.shape[0] > x.shape[1] else x
    y = y / y.norm().clamp(min=1e-7)
    for _ in range(5):
        r = y @ y.mT
        y = torch.addmm(y, torch.addmm(r, r, r, beta=b, alpha=c), y, beta=a)
    return y.mT if x.shape[0] > x.shape[1] else y


def spread(x: Tensor) -> float:
    """Root mean square of σ − 1."""
    return (torch.linalg.svdvals(x.double()) - 1).square().mean().sqrt().item()


def flops(x: Tensor) -> tuple[str, float]:
    """Products of the default plan, and its flops over those of five classic steps, symmetry not counted."""
    polynomials, dtype = polar_factor.plan(x=x)
    large, small = _iterate.products(polynomials, polar_factor._ends(polynomials, "auto", tuple(x.shape[-2:]), dtype))
    alpha = max(x.shape[-2:]) / min(x.shape[-2:])
    return f"{large} large + {small} small", (alpha * large + small) / (5 * (2 * alpha + 1))


def main() -> None:
    torch.manual_seed(0)
    total: dict[str, float] = {}
    print(f"{torch.get_num_threads()} threads, polar computes in {geometry.fast_dtype('cpu')}")
    for shape, count in SHAPES.items():
        x = torch.randn(count, *shape)
        low = 30 * torch.randn(shape[0], 8) @ torch.randn(8, shape[1]) / 8 + torch.randn(shape)
        few = x[:SAMPLE]
        jobs: dict[str, Callable[[], object]] = {
            "polar": lambda few=few: geometry.polar(few),
            "polar, steps=3": lambda few=few: geometry.polar(few, steps=3, lower=1e-2),
            "classic float32": lambda few=few: [classic(m) for m in few],
        }
        if "--float32" not in sys.argv:
            jobs["torch, bfloat16"] = lambda few=few: [newton_schulz(m, geometry.MUON, 5, 1e-7) for m in few]
        seconds = medians(jobs, rounds=5 if geometry.fast_dtype("cpu") == torch.bfloat16 or len(jobs) == 3 else 1)
        for name, value in seconds.items():
            total[name] = total.get(name, 0) + value * count / SAMPLE
        products, share = flops(x)
        print(f"{shape}: {products} products, {share:.2f} of the flops of five classic steps; rms of σ − 1:")
        for name, m in (("gaussian", x[0]), ("low rank plus noise", low)):
            print(f"  {name}: polar {spread(geometry.polar(m)):.3f}, classic {spread(classic(m)):.3f}")
        for peer in [name for name in jobs if not name.startswith("polar")]:
            ratios = ", ".join(f"{n} {seconds[n] / seconds[peer]:.3f}" for n in jobs if n.startswith("polar"))
            print(f"  time over {peer}: {ratios}", flush=True)
    for peer in [name for name in total if not name.startswith("polar")]:
        for name in total:
            if name.startswith("polar"):
                print(f"all 24: {name} takes {total[name] / total[peer]:.3f} × {peer}")


if __name__ == "__main__":
    main()
