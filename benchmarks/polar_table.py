"""Measure how near the polar iterations come to UVᵀ, and write the table of docs/geometry.md.

python benchmarks/polar_table.py            # print it
python benchmarks/polar_table.py --write    # and put it into docs/geometry.md
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor

from equipoise import geometry

ROOT = Path(__file__).resolve().parents[1]
MARKS = ("<!-- table: polar errors -->", "<!-- end of table -->")
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


def main() -> None:
    text = table()
    if "--write" in sys.argv:
        page = ROOT / "docs" / "geometry.md"
        before, rest = page.read_text().split(MARKS[0])
        page.write_text(f"{before}{MARKS[0]}\n{text}\n{MARKS[1]}{rest.split(MARKS[1])[1]}")


if __name__ == "__main__":
    main()
