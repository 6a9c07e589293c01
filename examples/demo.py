"""Train a small network twice under `eq.watch`, once with a fault, so that there is something to look at.

python examples/demo.py runs
equipoise report runs/healthy runs/fault -o report.html
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import equipoise as eq

WIDTH, DEPTH, CLASSES = 96, 5, 10


def network() -> nn.Sequential:
    """Linear layers, each before a LayerNorm, so that their scale does not matter."""
    torch.manual_seed(0)
    sizes = [32] + [WIDTH] * DEPTH
    blocks = [
        nn.Sequential(nn.Linear(a, b, bias=False), nn.LayerNorm(b), nn.GELU()) for a, b in itertools.pairwise(sizes)
    ]
    return nn.Sequential(*blocks, nn.Linear(WIDTH, CLASSES))


def batch(step: int, teacher: Tensor, size: int = 128) -> tuple[Tensor, Tensor]:
    """Points whose class is the largest output of a fixed random layer, with a little noise."""
    random = torch.Generator().manual_seed(step)
    x = torch.randn(size, teacher.shape[1], generator=random)
    y = (torch.tanh(x) @ teacher.T + 0.3 * torch.randn(size, CLASSES, generator=random)).argmax(1)
    return x, y


def train(
    path: str | Path, *, steps: int = 500, fault: float = 1.0, fail_at: int | None = None, wait: float = 0.0
) -> None:
    """Train with AdamW and a cosine schedule, watched at every step.

    Args:
        path: directory of the run.
        steps: number of steps.
        fault: what the lr of the third layer is multiplied by.
        fail_at: raise at this step, to see a run that crashed.
        wait: seconds to pause a step, to see a run that is on its way.
    """
    model = network()
    teacher = torch.randn(CLASSES, 32, generator=torch.Generator().manual_seed(1))
    odd = [p for n, p in model.named_parameters() if n == "2.0.weight"]
    matrices = [p for n, p in model.named_parameters() if p.ndim > 1 and n != "2.0.weight"]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    lr, decay = 0.02, 0.3
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": decay},
            {"params": odd, "lr": fault * lr, "weight_decay": decay},
            {"params": vectors, "lr": 4e-3, "weight_decay": 0.0},
        ],
        lr=lr,
        betas=(0.9, 0.95),
    )
    curve = eq.schedules.warmup_cosine(steps, warmup=steps // 20, final=0.05)
    schedule = eq.schedules.Scheduler(optimizer, lr=curve, relative=True)
    with eq.watch(
        model, optimizer, path, every=1, spectra=20, meta={"lr": lr, "weight_decay": decay, "fault": fault}
    ) as watch:
        for step in range(1, steps + 1):
            x, y = batch(step, teacher)
            out = model(x)
            loss = nn.functional.cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            watch.log(loss=loss, accuracy=(out.argmax(1) == y).float().mean(), tokens=float(128 * step))
            if step == fail_at:
                raise RuntimeError("meant to fail, to see what a crashed run looks like")
            time.sleep(wait)


def main() -> None:
    """Write the runs `healthy` and `fault` into a directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--steps", type=int, default=500)
    given = parser.parse_args()
    train(given.directory / "healthy", steps=given.steps)
    train(given.directory / "fault", steps=given.steps, fault=100.0)


if __name__ == "__main__":
    main()
