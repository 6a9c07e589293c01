"""Gradients as networks give them over a run: what the delivered rotation is tested on.

`python -m tests.optim.histories` prints the table of every rotational class. CHOSEN were looked at when the tracker was
chosen, HELD_OUT were not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise import optim
from equipoise.theory import rotation_angle

STEPS, ROWS, COLUMNS = 320, 8, 128


@dataclass(frozen=True)
class History:
    """How the gradient of each row goes over the steps: its size, the mean of its entries, and chance in its size."""

    size: Callable[[int], float] = lambda t: 1.0
    mean: Callable[[int], float] = lambda t: 0.0
    spread: float = 0.0

    def __call__(self, generator: torch.Generator) -> Iterator[Tensor]:
        for t in range(1, STEPS + 1):
            g = torch.randn(ROWS, COLUMNS, generator=generator, dtype=torch.float64) + self.mean(t)
            chance = torch.randn(ROWS, 1, generator=generator, dtype=torch.float64).mul(self.spread).exp()
            yield g * chance * self.size(t)

    def speaks(self, t: int) -> bool:
        """Whether there is a gradient at step t."""
        return self.size(t) > 0


def _silent(first: int, last: int) -> Callable[[int], float]:
    return lambda t: 0.0 if first <= t <= last else 1.0


CHOSEN = {
    "steady": History(),
    "grows, e in 20": History(lambda t: math.exp(t / 20)),
    "shrinks, e in 20": History(lambda t: math.exp(-t / 20)),
    "shrinks, e in 50": History(lambda t: math.exp(-t / 50)),
    "shrinks from 150 on": History(lambda t: math.exp(-max(0, t - 150) / 20)),
    "mean 1×": History(mean=lambda t: 1.0),
    "mean 3×": History(mean=lambda t: 3.0),
    "mean 3×, turns each 50": History(mean=lambda t: 3.0 if t // 50 % 2 else -3.0),
    "silent 101–200": History(_silent(101, 200)),
    "interpolated": History(lambda t: (1 + t / 10) ** -1.5, spread=0.5),
}
HELD_OUT = {
    "grows, e in 30": History(lambda t: math.exp(t / 30)),
    "shrinks, e in 30": History(lambda t: math.exp(-t / 30)),
    "grows, then shrinks": History(lambda t: math.exp(-abs(t - 150) / 20)),
    "mean 2×": History(mean=lambda t: 2.0),
    "mean 3×, a wave of 200": History(mean=lambda t: 3 * math.sin(math.pi * t / 100)),
    "silent 1–100": History(_silent(1, 100)),
    "silent 151–250": History(_silent(151, 250)),
    "interpolated more": History(lambda t: 1 / (1 + (t / 30) ** 2), spread=0.8),
}
HISTORIES = CHOSEN | HELD_OUT

Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]

ANGLE = 0.003
_COMMON: dict[str, Any] = {"lr": 1e-3, "angle": ANGLE, "weight_decay": 0.1}

CLASSES: dict[str, Make] = {
    "RotationalSGDM": lambda p: optim.RotationalSGDM(p, **_COMMON),
    "RotationalAdamW": lambda p: optim.RotationalAdamW(p, **_COMMON),
    "RotationalAdamW, β2 .95": lambda p: optim.RotationalAdamW(p, betas=(0.9, 0.95), **_COMMON),
    "RotationalAdamW, tensor": lambda p: optim.RotationalAdamW(p, granularity="tensor", **_COMMON),
    "RotationalAdamL2": lambda p: optim.RotationalAdamL2(p, **_COMMON),
    "RotationalLion": lambda p: optim.RotationalLion(p, **_COMMON),
    "RotationalSignSGDM": lambda p: optim.RotationalSignSGDM(p, **_COMMON),
    "RotationalMuon": lambda p: optim.RotationalMuon([{"params": p, "muon": True}], **_COMMON),
    "Rotational(SGD)": lambda p: optim.Rotational(torch.optim.SGD(p, 1e-3, momentum=0.9), angle=ANGLE),
    "Rotational(NAdam)": lambda p: optim.Rotational(torch.optim.NAdam(p, 1e-3), angle=ANGLE),
    "Rotational(Adagrad)": lambda p: optim.Rotational(torch.optim.Adagrad(p, 1e-3), angle=ANGLE),
}


def delivered(make: Make, histories: dict[str, History], *, seed: int = 0) -> dict[str, np.ndarray]:
    """The rotation of each step over the one asked for, a mean over rows, for each history: a tensor each."""
    generator = torch.Generator().manual_seed(seed)

    def start() -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(ROWS, COLUMNS, generator=generator, dtype=torch.float64))

    params = [start() for _ in histories]
    optimizer = make(params)
    whole = optimizer.param_groups[0].get("granularity") == "tensor"
    found = []
    for gradients in zip(*(history(generator) for history in histories.values()), strict=True):
        before = torch.stack([p.detach() for p in params])
        for p, g in zip(params, gradients, strict=True):
            p.grad = g
        optimizer.step()
        moved = torch.stack([p.detach() for p in params]) - before
        if whole:
            before, moved = before.flatten(1).unsqueeze(1), moved.flatten(1).unsqueeze(1)
        norm = before.norm(dim=2)
        radial = (moved * before).sum(2) / norm
        theta = rotation_angle(norm=norm.numpy(), change_norm=moved.norm(dim=2).numpy(), radial=radial.numpy())
        found.append(theta.mean(axis=1) / ANGLE)
    return dict(zip(histories, np.array(found).T, strict=True))


def extremes(found: np.ndarray, history: History) -> tuple[float, float, float]:
    """The least and the largest rotation with gradients, and its sum, in full steps, without."""
    speaks = np.array([history.speaks(t) for t in range(1, STEPS + 1)])
    return found[speaks].min(), found[speaks].max(), found[~speaks].sum()


def main() -> None:
    """Print the table."""
    print("Delivered rotation over asked: least and largest of any step with gradients; + steps' worth in silence")
    print("|".join(["", f" {'':24} ", *(f" {name:24} " for name in HISTORIES), ""]))
    for title, make in CLASSES.items():
        cells = []
        for name, found in delivered(make, HISTORIES).items():
            low, high, rest = extremes(found, HISTORIES[name])
            cells.append(f"{low:.2f} {high:.2f}" + (f" + {rest:.0f}" if rest else ""))
        print("|".join(["", f" {title:24} ", *(f" {cell:24} " for cell in cells), ""]), flush=True)


if __name__ == "__main__":
    main()
