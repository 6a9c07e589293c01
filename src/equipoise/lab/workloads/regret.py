"""Regret: how far above the best of the reference sweep a setting ends, in percent of the test loss.

The best is chosen on validation (`sweep.best`), and what is compared is the test loss, a mean over the seeds that both
have. A regret may be below zero: a setting may be better on the test than the one that validation chose.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import final

from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.policies import POLICIES, Policy, Tuned
from equipoise.lab.workloads.store import Outcomes
from equipoise.lab.workloads.sweep import best, others, settled


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
