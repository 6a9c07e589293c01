"""Optimizer steps against torch's and others', as ratios measured in one run, interleaved, medians.

    python benchmarks/optim.py [--write]

Below 1 is faster than `torch.optim.AdamW(fused=True)`, which runs at memory bandwidth. `--write` puts the tables into
docs/optim.md.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from machine import device, features
from timing import medians

import equipoise as eq

MATRICES = [(768, 768)] * 12 + [(3072, 768)] * 6 + [(768, 3072)] * 6
SMALL = [(64, 64)] * 200
PAGE = Path(__file__).parents[1] / "docs" / "optim.md"

PEERS = {
    "Lion of lion-pytorch": ("lion_pytorch", "Lion"),
    "AdamW of torch-optimi": ("optimi", "AdamW"),
    "AdamW of heavyball": ("heavyball", "AdamW"),
    "Lion of pytorch-optimizer": ("pytorch_optimizer", "Lion"),
}
"""Optimizers that pip can install; those that are not installed are left out."""


def parameters(shapes: list[tuple[int, ...]]) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.randn(s, device=device()) * 0.02) for s in shapes]
    for p in made:
        p.grad = torch.randn_like(p)
    return made


STREAMS = {"SGDM": 5, "Lion": 5}
"""Passes over the weights' memory that a step needs: weight, average(s) read and written, gradient read. AdamW: 7."""


def jobs(shapes: list[tuple[int, ...]]) -> dict[str, Callable[[], object]]:
    def make(name: str, **options: Any) -> Callable[[], object]:
        return getattr(eq, name)(parameters(shapes), lr=1e-4, weight_decay=0.1, **options).step

    made: dict[str, Callable[[], object]] = {
        "torch AdamW fused": torch.optim.AdamW(parameters(shapes), lr=1e-4, fused=True).step,
        "torch AdamW foreach": torch.optim.AdamW(parameters(shapes), lr=1e-4, foreach=True).step,
        "torch AdamW loop": torch.optim.AdamW(parameters(shapes), lr=1e-4, foreach=False).step,
    }
    for name in ("SGDM", "Lion", "AdamW", "RotationalAdamW", "HyperballAdamW"):
        made[f"{name} compiled"] = make(name, compile=True)
        made[f"{name} foreach"] = make(name, compile=False)
    made["RotationalAdamW centred compiled"] = make("RotationalAdamW", compile=True, center=True)
    made["RotationalAdamW centred foreach"] = make("RotationalAdamW", compile=False, center=True)
    made["RotationalAdamW by step compiled"] = make("RotationalAdamW", compile=True, angle="step")
    made["RotationalAdamW by step foreach"] = make("RotationalAdamW", compile=False, angle="step")
    for label, (module, name) in PEERS.items():
        try:
            peer = getattr(importlib.import_module(module), name)
        except ImportError:
            continue
        made[label] = peer(parameters(shapes), lr=1e-4).step
    return made


def table(title: str, shapes: list[tuple[int, ...]], rounds: int) -> str:
    """One table: ratios to fused AdamW, and the bandwidth that the needed traffic comes to, against a copy's."""
    todo = jobs(shapes)
    count = sum(a * b for a, b in shapes)
    here, there = torch.empty(count, device=device()), torch.randn(count, device=device())
    todo["copy"] = lambda: here.copy_(there)
    seconds = medians(todo, rounds=rounds)
    copy = 2 / seconds.pop("copy")
    fused = seconds["torch AdamW fused"]
    lines = [f"| {title} | time / fused AdamW | bandwidth / a copy's |", "|---|---|---|"]
    for name, value in seconds.items():
        streams = STREAMS.get(name.split()[0], 7)
        shown = f"{streams / value / copy:.2f}" if "compiled" in name or "torch" in name else ""
        lines.append(f"| {name} | {value / fused:.2f} | {shown} |")
    return "\n".join(lines)


def main() -> None:
    tables = [
        table("24 matrices 768² … 3072×768, 35 M weights", MATRICES, 15),
        table("200 matrices 64², 0.8 M weights", SMALL, 60),
    ]
    text = "\n\n".join([f"On {features()}:", *tables])
    print(text)
    if "--write" in sys.argv:
        page = PAGE.read_text()
        head, _, rest = page.partition("<!-- speed -->\n")
        _, _, tail = rest.partition("<!-- /speed -->")
        PAGE.write_text(f"{head}<!-- speed -->\n{text}\n\n<!-- /speed -->{tail}")


if __name__ == "__main__":
    main()
