"""Train what `eq.suggest` says for the lab's workloads; docs/suggest.md has the table.

    python benchmarks/suggesting.py choosing [--only text-adamw]    # train what is missing of a half
    equipoise lab workloads payoff docs/payoff.md                   # write the tables

Pilots first: five short runs, of a hundredth of the workload each, and of an eighth ("long pilot"). Trials are stored
in `lab/workloads/stored/suggested`, apart from those of sweeps, whose best they do not change.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
from pathlib import Path

import torch

from equipoise.lab.data import Data, load
from equipoise.lab.train.run_trial import run_trial
from equipoise.lab.workloads import WORKLOADS, store
from equipoise.lab.workloads.base import HALVES
from equipoise.lab.workloads.suggested import FOLDER, KINDS, PILOTS, pilots, store_pilot, wanted


def main() -> None:
    """Train what is missing, one trial after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("half", choices=HALVES)
    parser.add_argument("--how", nargs="*", default=KINDS, choices=KINDS, help="none: pilots alone")
    parser.add_argument("--pilots", nargs="*", default=list(PILOTS), choices=PILOTS)
    parser.add_argument("--only", nargs="*", default=[], choices=WORKLOADS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    some = [w for n, w in WORKLOADS.items() if w.half == given.half and (not given.only or n in given.only)]
    for workload in some:
        for kind in given.pilots:
            if workload.name not in pilots(kind):
                store_pilot(workload, load(workload.trial.data, **workload.trial.data_options), kind)
                print(workload.name, kind, pilots(kind)[workload.name], flush=True)
    loaded: dict[str, Data] = {}
    for how, workload in itertools.product(given.how, sorted(some, key=lambda w: w.seconds)):
        trial = wanted(workload).get(how)
        if trial is None or trial.key in store.read(workload) | store.read(workload, FOLDER):
            continue
        with tempfile.TemporaryDirectory() as place:
            result = run_trial(trial, Path(place), loaded)
        if result.status == "failed":
            print(workload.name, how, result.error, flush=True)
            continue
        known = store.add(workload, [store.outcome(result)], FOLDER)
        print(workload.name, how, trial.lr, trial.weight_decay, known[trial.key].metrics, flush=True)


if __name__ == "__main__":
    main()
