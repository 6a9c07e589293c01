"""Trials that searches need, replayed between stored trials of the lab's workloads: the table of docs/tune.md.

    python benchmarks/tuning.py --write docs/tune.md

Each search minimises the interpolated test loss (`Surface`) and is done at the first trial within 1 % of the surface's
least. Optuna's TPE, as it comes, and random search draw lr and weight decay over ranges that people give, on a scale of
factors. Ours is the sampler and the space of `eq.tune` around `eq.suggest`. Workloads of SGDM are left out, as
`eq.suggest` refuses it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from equipoise._extras import need
from equipoise.lab.report.claims import markdown
from equipoise.lab.report.page import write_marked
from equipoise.lab.workloads import WORKLOADS, Workload
from equipoise.lab.workloads.base import HALVES
from equipoise.lab.workloads.plans import plan_of
from equipoise.lab.workloads.regret import Surface
from equipoise.lab.workloads.run import read_all
from equipoise.planner.suggestions.suggestion import OPTIMIZERS, suggest_setting
from equipoise.tuning.search import distributions, sampler
from equipoise.tuning.space import Around, Ranges

NEAR = 0.01
"""A search is done this share above the least."""

LRS = {"adamw": (1e-4, 1e-1), "lion": (1e-5, 1e-2), "muon": (1e-3, 1.0)}
DECAYS = (1e-4, 10.0)

optuna: Any = need("optuna", "tune")

Make = Callable[[int], Any]


def needed(workload: Workload, surface: Surface, space: Around | Ranges, made: Any, most: int) -> int:
    """Trials until one is near the least; `most` + 1 where none was."""
    study = optuna.create_study(sampler=made)
    if space.first:
        study.enqueue_trial(space.first)
    for number in range(1, most + 1):
        drawn = study.ask(distributions(space.ranges))
        values = space.values(drawn.params)
        loss = surface.loss(values["lr"], workload.shrink(values["lr"], values["weight_decay"]))
        study.tell(drawn, loss)
        if loss <= (1 + NEAR) * surface.least:
            return number
    return most + 1


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--most", type=int, default=32)
    parser.add_argument("--half", choices=HALVES, help="only workloads of this half")
    parser.add_argument("--gp", action="store_true", help="also Optuna's Gaussian process in our coordinates")
    parser.add_argument("--write", type=Path, help="the page whose table is written")
    given = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    every, rows, kinds = read_all(), list[dict[str, object]](), dict[str, tuple[Around | Ranges, Make]]()
    for name, workload in WORKLOADS.items():
        if workload.trial.optimizer not in OPTIMIZERS or given.half not in (None, workload.half):
            continue
        surface = Surface(workload, every[name])
        plain = Ranges({"lr": LRS[workload.trial.optimizer], "weight_decay": DECAYS})
        around = Around(suggest_setting(plan_of(workload, workload.at(workload.lrs[0], 1e-3)).setting))
        kinds = {
            "random": (plain, lambda seed: optuna.samplers.RandomSampler(seed=seed)),
            "TPE": (plain, lambda seed: optuna.samplers.TPESampler(seed=seed)),
            "eq.tune": (around, lambda seed, space=around: sampler(seed, space)),
            "TPE, our coordinates": (around, lambda seed: optuna.samplers.TPESampler(seed=seed)),
        }
        if given.gp:
            kinds["GP, our coordinates"] = (
                around, lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=4)
            )  # fmt: skip
        row: dict[str, object] = {"workload": name, "half": workload.half}
        for kind, (space, make) in kinds.items():
            counts = [needed(workload, surface, space, make(seed), given.most) for seed in range(given.seeds)]
            row[kind] = statistics.median(counts)
        rows.append(row)
        print(json.dumps(row), flush=True)
    for half in HALVES:
        own = [row for row in rows if row["half"] == half]
        last: dict[str, object] = {"workload": "median", "half": half}
        last |= {kind: statistics.median(row[kind] for row in own) for kind in kinds}  # type: ignore[type-var]
        rows += [last] * bool(own)
    table = markdown([{k: str(v) for k, v in row.items()} for row in rows])
    print(table)
    if given.write:
        write_marked(given.write, "tuning", table)


if __name__ == "__main__":
    main()
