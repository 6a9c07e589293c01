"""What the multi-power law says of schedules that it has not seen, on real loss curves: the table of docs/schedules.md.

    python benchmarks/loss_law.py --train                    # train the curves that are missing
    python benchmarks/loss_law.py --write docs/schedules.md  # fit, and write the table

Curves are means of the training loss over 20 steps, stored in `loss_law.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.lab.data import Data
from equipoise.lab.report.claims import markdown
from equipoise.lab.report.page import write_marked
from equipoise.lab.train.run_trial import run_trial
from equipoise.lab.train.schedules import shapes
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads import WORKLOADS
from equipoise.theory import LossLaw, fit_loss

STORED = Path(__file__).with_suffix(".jsonl")
SCHEDULES = ("constant", "cosine", "linear", "wsd", "step")
SETTINGS = {"text-adamw": (3e-3, 0.3), "resnet-layer-adamw": (3e-3, 0.3)}
"""lr and lr·wd·T by workload: the best of their grids, nearly."""

FITS = (("constant", "cosine"), ("cosine", "wsd"), ("constant", "cosine", "wsd"))


def trial_of(workload: str, schedule: str) -> Trial:
    """A trial of a workload with another schedule."""
    lr, shrink = SETTINGS[workload]
    w = WORKLOADS[workload]
    steps = w.trial.steps
    options = {"milestones": [steps // 2, 4 * steps // 5], "factor": 0.3} if schedule == "step" else {}
    return w.at(lr, w.decay(lr, shrink), schedule=schedule, schedule_options=options)


def read() -> dict[str, dict[str, Any]]:
    """Stored curves by the trial's key."""
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    return {one["key"]: one for one in map(json.loads, lines)}


def train() -> None:
    """Train what is missing."""
    torch.set_num_threads(1)
    done, loaded = read(), dict[str, Data]()
    for workload in SETTINGS:
        for schedule in SCHEDULES:
            trial, seen = trial_of(workload, schedule), list[tuple[int, float]]()
            if trial.key in done:
                continue
            with tempfile.TemporaryDirectory() as place:
                result = run_trial(
                    trial, Path(place), loaded, progress=lambda step, loss, seen=seen: seen.append((step, loss))
                )
            if result.status != "finished":
                print(workload, schedule, result.status, result.error, flush=True)
                continue
            metrics = {k: float(f"{v:.6g}") for k, v in result.metrics.items() if k.endswith("_loss")}
            line = {"key": trial.key, "workload": workload, "schedule": schedule, "metrics": metrics}
            line |= {"date": result.date, "seconds": round(result.seconds, 1)}
            done[trial.key] = line | {"curve": [[step, float(f"{loss:.5g}")] for step, loss in seen]}
            STORED.write_text("".join(json.dumps(one) + "\n" for _, one in sorted(done.items())), encoding="utf-8")
            print(workload, schedule, metrics, flush=True)


def curve(workload: str, schedule: str, done: dict[str, dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """lr of each step, and the loss where it was stored, at the middle of its steps."""
    trial = trial_of(workload, schedule)
    lr = trial.lr * shapes(trial)[0].values(trial.steps)
    losses, before = np.full(trial.steps, math.nan), 0
    for step, loss in done[trial.key]["curve"]:
        losses[(before + step) // 2 - 1 if step < trial.steps else step - 1] = loss
        before = step
    return lr, losses


def rows(done: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """A row for each workload and choice of curves to fit."""
    found = []
    for workload in SETTINGS:
        if any(trial_of(workload, s).key not in done for s in SCHEDULES):
            continue
        curves = {s: curve(workload, s, done) for s in SCHEDULES}
        for fitted in FITS:
            law = fit_loss([curves[s] for s in fitted])
            row = {"workload": workload, "fitted": ", ".join(fitted)}
            for s in SCHEDULES:
                row[s] = "fitted" if s in fitted else _row(law, *curves[s])
            said = {s: law.forecast(curves[s][0])[0] for s in SCHEDULES}
            truth = {s: done[trial_of(workload, s).key]["metrics"]["validation_loss"] for s in SCHEDULES}
            chosen = min(said, key=said.__getitem__)
            row["ranked first"] = f"{chosen}, {100 * (truth[chosen] / min(truth.values()) - 1):.1f} % above the best"
            found.append(row)
    return found


def _row(law: LossLaw, lr: np.ndarray, losses: np.ndarray) -> str:
    forecast, error = law.forecast(lr)
    return f"{100 * (forecast / losses[-1] - 1):+.1f} (± {100 * error / forecast:.1f})".replace("-", "−")


def main() -> None:
    """Train, or write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.train:
        train()
    text = markdown(rows(read()))
    if given.write:
        write_marked(given.write, "loss-law", text)
    else:
        print(text)


if __name__ == "__main__":
    main()
