"""Train what `eq.suggest` says for the lab's workloads; docs/suggest.md has the table.

    python benchmarks/suggesting.py choosing [--only text-adamw]    # train what is missing of a half
    equipoise lab workloads payoff docs/payoff.md                   # write the tables

Trials are stored in `lab/workloads/stored/suggested`, apart from those of sweeps, whose best they do not change.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from equipoise.lab.data import Data
from equipoise.lab.train.run_trial import run_trial
from equipoise.lab.workloads import WORKLOADS, store
from equipoise.lab.workloads.base import HALVES
from equipoise.lab.workloads.suggested import FOLDER, wanted


def main() -> None:
    """Train what is missing, one trial after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("half", choices=HALVES)
    parser.add_argument("--only", nargs="*", default=[], choices=WORKLOADS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    loaded: dict[str, Data] = {}
    for name, workload in WORKLOADS.items():
        if workload.half != given.half or (given.only and name not in given.only):
            continue
        known = store.read(workload) | store.read(workload, FOLDER)
        for how, trial in wanted(workload).items():
            if trial.key in known:
                continue
            with tempfile.TemporaryDirectory() as place:
                result = run_trial(trial, Path(place), loaded)
            if result.status == "failed":
                print(name, how, result.error, flush=True)
                continue
            known = store.read(workload) | store.add(workload, [store.outcome(result)], FOLDER)
            print(name, how, trial.lr, trial.weight_decay, known[trial.key].metrics, flush=True)


if __name__ == "__main__":
    main()
