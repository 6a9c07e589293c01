"""Regret: how far above the best of the reference sweep a setting ends, in percent of the test loss.

The best is chosen on validation (`sweep.best`), and what is compared is the test loss, a mean over the seeds that both
have. A regret may be below zero: a setting may be better on the test than the one that validation chose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np

from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.policies import POLICIES, Policy, Tuned
from equipoise.lab.workloads.store import Outcomes
from equipoise.lab.workloads.sweep import best, others, settled
from equipoise.planner.checks.paying import KNEE


@final
@dataclass(frozen=True)
class Regret:
    """What a setting costs on a workload.

    Attributes:
        trial: the setting.
        percent: 100·(test loss / the best's − 1), a mean over seeds; infinite where a seed diverged.
        seeds: how many were compared.
        spread: standard deviation of `percent` over seeds; NaN of one seed.
    """

    trial: Trial
    percent: float
    seeds: int
    spread: float = math.nan


def tuned(every: Mapping[str, Outcomes], workloads: Iterable[Workload] | None = None) -> dict[str, Trial]:
    """The settled best of every workload whose grid is done."""
    found = {w.name: settled(w, every.get(w.name, {})) for w in workloads or WORKLOADS.values()}
    return {name: trial for name, trial in found.items() if trial is not None}


def regret(trial: Trial, top: Trial, known: Outcomes) -> Regret | None:
    """What a setting costs against the best one; None where the first seed of one of both is not known.

    Args:
        trial: the setting, of the first seed.
        top: the best of the sweep, of the first seed.
        known: trials of the workload that have ended.
    """
    pairs = [
        (known[a.key].test, known[b.key].test)
        for a, b in zip([trial, *others(trial)], [top, *others(top)], strict=True)
        if a.key in known and b.key in known
    ]
    if trial.key not in known or top.key not in known:
        return None
    each = [100 * (a / b - 1) for a, b in pairs]
    mean = sum(each) / len(each)
    spread = math.nan
    if len(each) > 1 and math.isfinite(mean):
        spread = math.sqrt(sum((x - mean) ** 2 for x in each) / (len(each) - 1))
    return Regret(trial, mean, len(each), spread)


def regrets(
    workload: Workload, known: Outcomes, settings: Tuned, policies: Mapping[str, Policy] = POLICIES
) -> dict[str, Regret | None]:
    """The regret of each policy; None where it has nothing to say, was not trained yet, or the grid is not done.

    Args:
        workload: where.
        known: its trials that have ended.
        settings: the tuned settings of workloads, by name.
        policies: by name.
    """
    top = best(workload, known) if workload.name in settings else None
    found: dict[str, Regret | None] = {}
    for name, policy in policies.items():
        trial = policy.choose(workload, settings)
        found[name] = None if trial is None or top is None else regret(trial, top, known)
    return found


LEAST = 3
"""Stored decays that an lr must have to be one of the surface."""

DIVERGED = 10.0
"""Times the best loss: what a trial that diverged counts as."""


@final
class Surface:
    """The test loss of a workload over lr and lr·wd·T, at its own schedule, betas and first seed.

    Log loss is interpolated piecewise linearly, first in lr·wd·T and then in log lr. A line lies above a loss that
    curves up, so that near the best a regret is overstated rather than understated: where a setting between two stored
    ones was trained later, the line had said 12.5 %, and it was 6.8 (docs/log.md).

    Args:
        workload: which.
        known: its stored trials.
    """

    def __init__(self, workload: Workload, known: Outcomes) -> None:
        top = best(workload, known)
        if top is None:
            raise ValueError(f"workload = {workload.name!r}: must have a stored trial that finished")
        self.workload = workload
        self.best = known[top.key].test
        rows: dict[float, dict[float, float]] = {}
        for one in known.values():
            t = one.trial
            if t.seed == 0 and t == workload.at(t.lr, t.weight_decay):
                loss = min(one.test, DIVERGED * self.best)
                rows.setdefault(t.lr, {})[_place(workload.shrink(t.lr, t.weight_decay))] = math.log(loss)
        self.rows = {lr: dict(sorted(row.items())) for lr, row in sorted(rows.items()) if len(row) >= LEAST}
        if len(self.rows) < 2:
            raise ValueError(f"workload = {workload.name!r}: must have two lrs with {LEAST} stored decays each")
        self.least = min(math.exp(min(row.values())) for row in self.rows.values())

    @property
    def lrs(self) -> tuple[float, ...]:
        """The lrs of the surface, ascending."""
        return tuple(self.rows)

    def loss(self, lr: float, shrink: float) -> float:
        """The test loss at an lr and an lr·wd·T; beyond the outermost lrs the last line goes on."""
        at = [float(np.interp(_place(shrink), list(row), list(row.values()))) for row in self.rows.values()]
        x, logs = math.log(lr), [math.log(each) for each in self.rows]
        left = min(max(int(np.searchsorted(logs, x)) - 1, 0), len(logs) - 2)
        share = (x - logs[left]) / (logs[left + 1] - logs[left])
        return math.exp(at[left] + share * (at[left + 1] - at[left]))

    def regret(self, lr: float, shrink: float) -> float:
        """How far that is above the sweep's best, in percent."""
        return 100 * (self.loss(lr, shrink) / self.best - 1)

    def nearest(self, lr: float, shrink: float) -> float:
        """The regret of the stored setting that lies nearest, in percent."""

        def far(at: tuple[float, float]) -> float:
            return math.hypot(math.log(at[0] / lr), at[1] - _place(shrink))

        near = min(((known, place) for known, row in self.rows.items() for place in row), key=far)
        return 100 * (math.exp(self.rows[near[0]][near[1]]) / self.best - 1)


def _place(shrink: float) -> float:
    return math.log1p(shrink / KNEE)
