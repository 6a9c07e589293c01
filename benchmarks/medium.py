"""Train the base trials of the preset `medium`, with what is reached without a network beside them.

python benchmarks/medium.py            # print the table, about ten minutes on one core
python benchmarks/medium.py --write    # and put it into docs/lab.md
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from equipoise.lab.data import load
from equipoise.lab.data.baselines import rows
from equipoise.lab.experiments.shared.tasks import MEDIUM
from equipoise.lab.report.claims import markdown
from equipoise.lab.report.page import write_marked
from equipoise.lab.train.training import train
from equipoise.lab.train.trial import Trial

PAGE = Path(__file__).resolve().parents[1] / "docs" / "lab.md"


def measured(task: str, trial: Trial) -> list[dict[str, Any]]:
    """A row for each baseline, and one for the network."""
    data = load(trial.data, **trial.data_options)
    found = [row(task, one["baseline"], one, "") for one in rows(data)]
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        result = train(trial, Path(folder) / "trial", data=data)
        spent = time.process_time() - began
    name = f"{trial.model}, {trial.optimizer}, lr {trial.lr:g}, weight decay {trial.weight_decay:g}"
    return [*found, row(task, name, dict(result.metrics), f"{spent:.0f}")]


def row(task: str, name: str, metrics: dict[str, Any], seconds: str) -> dict[str, Any]:
    """Losses of validation and test, and the accuracy where there is one."""
    accuracy = metrics.get("test_accuracy")
    return {
        "task": task, "what": name, "validation loss": f"{metrics['validation_loss']:.3f}",
        "test loss": f"{metrics['test_loss']:.3f}", "test accuracy": "" if accuracy is None else f"{accuracy:.1%}",
        "seconds of a core": seconds,
    }  # fmt: skip


def main() -> None:
    """Print the table, and write it where that is asked for."""
    torch.set_num_threads(1)
    table = markdown([one for task, trial in MEDIUM.items() for one in measured(task, trial)])
    print(table)
    if "--write" in sys.argv[1:]:
        write_marked(PAGE, "medium", table)


if __name__ == "__main__":
    main()
