"""What the lab's training loop takes besides forward, backward and step, watching included; it may take 5 %.

    python benchmarks/lab.py

Trials run as `equipoise.lab.train.training` runs them, watched by default settings. The time inside the loss,
`backward` and `optimizer.step` without watch's hooks is counted; the rest is batches, schedules, checks,
checkpoints and watching. Start-up and the last test are left out.
"""

from __future__ import annotations

import tempfile
import time
import types
from collections.abc import Callable
from typing import Any

import torch
from machine import features

from equipoise.lab.data import load
from equipoise.lab.train import optimizers, task
from equipoise.lab.train.training import CHECK, train
from equipoise.lab.train.trial import Trial
from equipoise.monitor.attach.watcher import Watch

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
    """Seconds spent in some functions, without those spent in others."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any], sign: int = 1) -> Callable[..., Any]:
        """The same function, whose time is counted."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += sign * (time.perf_counter() - start)

        return timed


def share(trial: Trial) -> float:
    """The part of a trial's time that is spent on something else, from the first check to the last."""
    clock, marks = Clock(), []
    data = load(trial.data, **trial.data_options)
    maker = torch.optim.AdamW
    places = ((task, "loss", 1), (torch.Tensor, "backward", 1), (Watch, "_before", -1), (Watch, "_after", -1))
    kept = [getattr(where, name) for where, name, _ in places]

    def timed(*args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        made = maker(*args, **kwargs)
        made.step = types.MethodType(clock.around(maker.step), made)  # with torch's own wrapper, that calls the hooks
        return made

    for (where, name, sign), own in zip(places, kept, strict=True):
        setattr(where, name, clock.around(own, sign))
    optimizers.MAKERS["adamw"] = timed
    try:
        with tempfile.TemporaryDirectory() as folder:
            train(trial, folder, data=data, progress=lambda *_: marks.append((time.perf_counter(), clock.seconds)))
    finally:
        for (where, name, _), own in zip(places, kept, strict=True):
            setattr(where, name, own)
        optimizers.MAKERS["adamw"] = maker
    (start, before), (end, after) = marks[0], marks[-1]
    return 1 - (after - before) / (end - start)


def main() -> None:
    print(features())
    for name, trial in TRIALS.items():
        found = sorted(share(trial) for _ in range(3))
        print(f"{name}: {100 * found[1]:.1f} % outside forward, backward and step (checks every {CHECK} steps)")


if __name__ == "__main__":
    main()
