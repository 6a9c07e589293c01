"""The polar factor against torch.optim.Muon's Newton–Schulz, as ratios measured in one run, interleaved, medians.

Below 1 is faster than the peer. The matrices are those of a small transformer: 12 of 768 × 768, 6 of 3072 × 768 and 6
of 768 × 3072, of which two each are run and weighted. In bfloat16 the peer is torch's own function; where bfloat16 is
slow that would take minutes and is left out. In float32 it is the same function word for word.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from machine import bfloat16_is_fast, device, features
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


def flops(x: Tensor, dtype: torch.dtype) -> tuple[str, float]:
    """Products of the default plan, and its flops over those of five classic steps, symmetry not counted."""
    polynomials, dtype = polar_factor.polar_plan(x=x, dtype=dtype)
    ends = polar_factor._ends(polynomials, "auto", tuple(x.shape[-2:]), dtype, None, True)
    large, small = _iterate.products(polynomials, ends)
    alpha = max(x.shape[-2:]) / min(x.shape[-2:])
    return f"{large} large + {small} small", (alpha * large + small) / (5 * (2 * alpha + 1))


def compare(peer: str, function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """Print the time of `polar` over that of the peer, for each shape and for all."""
    where = device()
    ours = {"polar": {}, "polar, steps=5": {"steps": 5}}
    total = dict.fromkeys((*ours, peer), 0.0)

    for shape, count in SHAPES.items():
        x = torch.randn(SAMPLE, *shape).to(where)
        jobs: dict[str, Callable[[], object]] = {
            name: lambda x=x, options=options: geometry.polar(x, dtype=dtype, **options)
            for name, options in ours.items()
        }
        jobs[peer] = lambda x=x: [function(m) for m in x]
        seconds = medians(jobs, rounds=7)
        for name, value in seconds.items():
            total[name] += value * count / SAMPLE
        ratios = ", ".join(f"{name} {seconds[name] / seconds[peer]:.3f}" for name in ours)
        print(f"  {tuple(x.shape[1:])}: {ratios}", flush=True)
    print("  all 24: " + ", ".join(f"{name} {total[name] / total[peer]:.3f}" for name in ours))


def main() -> None:
    torch.manual_seed(0)
    print(features())
    for dtype in (torch.bfloat16, torch.float32) if bfloat16_is_fast() else (torch.float32,):
        for shape in SHAPES:
            x = torch.randn(shape)
            low = 30 * torch.randn(shape[0], 8) @ torch.randn(8, shape[1]) / 8 + x
            products, share = flops(x, dtype)
            print(
                f"{dtype} {shape}: {products} products, {share:.2f} of the flops of five classic steps; rms of σ − 1:"
            )
            for name, m in (("gaussian", x), ("low rank plus noise", low)):
                ours = spread(geometry.polar(m.to(device()), dtype=dtype).cpu())
                print(f"  {name}: polar {ours:.3f}, classic {spread(classic(m)):.3f}")
        if dtype == torch.bfloat16:
            print("time over torch.optim.Muon's function, in bfloat16")
            compare("torch", lambda m: newton_schulz(m, geometry.MUON, 5, 1e-7), dtype)
        else:
            print("time over the same function in float32")
            compare("classic", classic, dtype)


if __name__ == "__main__":
    main()
