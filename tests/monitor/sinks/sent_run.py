"""What the tests of sinks send, and what must arrive."""

from pathlib import Path
from typing import Any

import torch
from tests.monitor.loops import network, train

import equipoise as eq
from equipoise.finding import Finding

ODD = Finding("update-lost", "warning", "0.weight", "evidence", "expected", "advice", "source")


def run(path: Path, sink: Any, steps: int = 5, resume: bool | int = False, first: int = 0) -> eq.monitor.Watch:
    """A watched run of a few steps that sends to one sink, with a loss and a finding."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    with eq.watch(model, optimizer, path, every=1, strict=True, sinks=[sink], resume=resume) as watch:
        train(model, optimizer, steps, lambda step, loss: watch.log(loss=loss), first=first)
        note(watch)
    return watch


def note(watch: eq.monitor.Watch) -> None:
    """Let the watch find something."""
    watch._note(ODD)


def right(path: Path) -> dict[str, dict[int, float]]:
    """Some of the numbers that must have been sent, from the run itself."""
    with eq.Run.open(path) as stored:

        def series(*which: Any) -> dict[int, float]:
            steps, values = stored.series(*which)
            return dict(zip(steps.tolist(), values.tolist(), strict=True))

        rotation = [series("rotation", name) for name in ("0.weight", "3.weight")]
        return {
            "equipoise/log/loss": series("loss"),
            "equipoise/lr/0": series("lr/0"),
            "equipoise/balance/layers": series("balance_layers"),
            "equipoise/rotation/min": {s: min(r[s] for r in rotation) for s in rotation[0]},
            "equipoise/rotation/max": {s: max(r[s] for r in rotation) for s in rotation[0]},
        }
