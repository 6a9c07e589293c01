"""What the lab's training loop takes besides forward, backward and step, watching included; it may take 5 %.

    python benchmarks/lab.py

Trials run as `equipoise.lab.train` runs them, watched by default settings. The time inside the loss, `backward` and
the optimizer's own step (without watch's hooks) is counted; the rest is batches, schedules, checks, checkpoints and
watching. Start-up and the last test are left out.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from equipoise.lab import optimizers, task
from equipoise.lab.config import Trial
from equipoise.lab.data import load
from equipoise.lab.train import CHECK, train

TRIALS = {
    "ResNet-20, digits": Trial(model="resnet", batch_size=128, steps=80),
    "GPT, 4 layers of 128": Trial(
        data="text",
        data_options={"size": 200_000},
        model="gpt",
        model_options={"size": "mini"},
        batch_size=16,
        steps=80,
    ),
    "MLP, digits": Trial(model_options={"width": 512}, batch_size=128, steps=600),
}


class Clock:
    """Seconds spent in some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a function and count its time."""
        start = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self.seconds += time.perf_counter() - start


def share(trial: Trial) -> float:
    """The part of a trial's time that is spent on something else, from the first check to the last."""
    clock, marks = Clock(), []
    data = load(trial.data, **trial.data_options)
    maker = torch.optim.AdamW
    kept = task.loss, torch.Tensor.backward

    class Timed(maker):
        """Torch calls the hooks of watch around this `step`, so what is timed lies inside of them."""

        def step(self, closure: Any = None) -> Any:
            return clock.around(maker.step, self, closure)

    task.loss = partial(clock.around, kept[0])
    torch.Tensor.backward = lambda self, *a, **k: clock.around(kept[1], self, *a, **k)  # type: ignore[method-assign]
    optimizers.MAKERS["adamw"] = Timed
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(trial, folder, data=data, progress=lambda *_: marks.append((time.perf_counter(), clock.seconds)))
    finally:
        task.loss, torch.Tensor.backward = kept[0], kept[1]  # type: ignore[method-assign]
        optimizers.MAKERS["adamw"] = maker
    (start, before), (end, after) = marks[0], marks[-1]
    return 1 - (after - before) / (end - start)


def main() -> None:
    for name, trial in TRIALS.items():
        found = sorted(share(trial) for _ in range(3))
        print(f"{name}: {100 * found[1]:.1f} % outside forward, backward and step (checks every {CHECK} steps)")


if __name__ == "__main__":
    main()
