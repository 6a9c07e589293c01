"""Measure how near the polar iterations come to UVᵀ, and write the tables of docs/geometry.md.

python benchmarks/polar_table.py            # print them
python benchmarks/polar_table.py --write    # and put them into docs/geometry.md
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import Tensor

from equipoise import geometry
from equipoise.geometry.polar_factor import rounding

ROOT = Path(__file__).resolve().parents[1]
MARKS, END = ("<!-- table: polar errors -->", "<!-- table: polar rounding -->"), "<!-- end of table -->"
LOWER = 1e-3


def matrix() -> tuple[Tensor, Tensor]:
    """One of 128 × 128 with singular values spread over [1e-3, 1], and its polar factor."""
    torch.manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(128, 128, dtype=torch.float64))[0] for _ in range(2))
    return (u * torch.logspace(0, -3, 128, dtype=torch.float64)) @ v.T, u @ v.T


def classic(x: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Muon's quintic after division by the Frobenius norm, as torch.optim.Muon does."""
    a, b, c = geometry.MUON
    x = (x / x.norm()).to(dtype)
    for _ in range(steps):
        r = x @ x.T
        x = torch.addmm(x, torch.addmm(r, r, r, beta=b, alpha=c), x, beta=a)
    return x


def table() -> str:
    x, factor = matrix()

    def error(made: Tensor) -> str:
        return f"{torch.linalg.matrix_norm(made.double() - factor, 2).item():.1e}"

    lines = [
        "| products | classic, float64 | classic, bfloat16 | optimal quintic, float64 | Gram, float32 | bfloat16 "
        "| optimal cubic, float64 |",
        "|---|---|---|---|---|---|---|",
    ]
    single = x.float()
    for steps in range(1, 9):
        row = [
            error(classic(x, steps, torch.float64)),
            error(classic(x, steps, torch.bfloat16)),
            error(geometry.polar(x, steps=steps, lower=LOWER)),
            error(geometry.polar(single, steps=steps, lower=LOWER, method="gram", dtype=torch.float32)),
            error(geometry.polar(single, steps=steps, lower=LOWER, dtype=torch.bfloat16)),
            error(geometry.polar(x, steps=3 * steps // 2, lower=LOWER, degree=3)),
        ]
        lines.append(f"| {3 * steps} | " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def bounded(k: int, lower: float, degree: int) -> dict[str, Tensor]:
    """Singular values just inside [lower, 1] · s: the spectra that rounding moves most, of those that were tried."""

    def bound(values: Tensor) -> Tensor:
        return (values**8).sum() ** 0.125 if degree == 5 else (values**4).sum() ** 0.25

    made = {}
    for share in (0.02, 0.1, 0.5, 0.9):
        large = max(1, int(share * k))
        values = torch.ones(k, dtype=torch.float64)
        values[large:] = 1.02 * lower * bound(values[:large])
        made[f"{share} at 1"] = values
    values = torch.logspace(0, math.log10(lower), k, dtype=torch.float64)
    made["geometric"] = values.clamp_min(1.02 * lower * bound(values))
    return made


def worst(lower: float, dtype: torch.dtype) -> float:
    """The largest ‖UVᵀ − result‖₂ after so many steps that the polynomials have no share in it."""
    found = 0.0
    for degree, steps in ((5, 10), (3, 18)):
        for m, n in ((16, 16), (40, 160), (160, 40), (64, 64), (200, 800)):
            for values in bounded(min(m, n), lower, degree).values():
                generator = torch.Generator().manual_seed(7)
                u, v = (
                    torch.linalg.qr(torch.randn(rows, min(m, n), dtype=torch.float64, generator=generator))[0]
                    for rows in (m, n)
                )
                x = ((u * values) @ v.T).float()
                made = geometry.polar(x, steps=steps, lower=lower, degree=degree, method="direct", dtype=dtype)
                found = max(found, torch.linalg.matrix_norm(made.double() - u @ v.T, 2).item())
    return found


def rounding_table() -> str:
    lines = ["| lower | bfloat16, worst | `rounding` | float32, worst | `rounding` |", "|---|---|---|---|---|"]
    for lower in (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3):
        row = []
        for dtype in (torch.bfloat16, torch.float32):
            row += [f"{worst(lower, dtype):.1e}", f"{rounding(lower, dtype):.1e}"]
        lines.append(f"| {lower:g} | " + " | ".join(row) + " |")
        print(lines[-1], flush=True)
    return "\n".join(lines)


def main() -> None:
    for mark, make in zip(MARKS, (table, rounding_table), strict=True):
        text = make()
        if "--write" in sys.argv:
            page = ROOT / "docs" / "geometry.md"
            before, rest = page.read_text().split(mark)
            page.write_text(f"{before}{mark}\n{text}\n{END}{rest.split(END, 1)[1]}")


if __name__ == "__main__":
    main()
