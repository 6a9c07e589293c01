"""Following a plan's findings: what their changes make of a trial, and what that did to the loss.

A change that leads from one stored trial to another is a pair, and needs no training of its own: the grids of the
sweeps are in the coordinates of the findings, so that most changes stay on them.
"""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from equipoise.finding import Finding
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import HALVES, USED, Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.plans import plan_of, read
from equipoise.lab.workloads.regret import regret
from equipoise.lab.workloads.store import Outcomes
from equipoise.planner.checks.paying import PAID

ROUNDS = 4
"""How often a changed setting is planned again, at most."""

NEAR = 0.03
"""Relative difference of weight decays that count as the same: grids and findings round to three digits."""


COSTLY = 0.5
"""Percent."""

NARROWED = {"decay-low": ("held-out", "fresh"), "lr-low": ("held-out",)}
"""Findings whose range was narrowed after a look at these halves: only far texts; constant lrs (docs/log.md)."""


@final
@dataclass(frozen=True)
class Pair:
    """A stored trial, and the stored trial that a finding's change leads to.

    Attributes:
        workload: where.
        code: of the finding.
        percent: 100·(test loss of the second over the first − 1), a mean over the seeds that both have; infinite where
            the second diverged.
        trials: the two, of the first seed.
    """

    workload: Workload
    code: str
    percent: float
    trials: tuple[Trial, Trial]


def followed(workload: Workload, trial: Trial) -> Trial:
    """The trial after all changes that its plan's findings ask for, and those of the changed plan, until none is left.

    Args:
        workload: where.
        trial: the setting to begin with.
    """
    for _ in range(ROUNDS):
        changes = [f.change for f in findings(workload, trial) if f.change]
        if not changes:
            break
        trial = trial.vary(changes[0])  # one at a time: the next is judged with the first made
    return trial


def findings(workload: Workload, trial: Trial) -> tuple[Finding, ...]:
    """What the plan of a trial finds."""
    return _findings(workload.name, trial.vary({"seed": 0}).to_json())


@functools.lru_cache(maxsize=4096)
def _findings(name: str, trial: str) -> tuple[Finding, ...]:
    return plan_of(WORKLOADS[name], Trial.from_json(trial)).findings


def pairs(every: Mapping[str, Outcomes]) -> list[Pair]:
    """Every pair of stored trials of the first seed that a finding's change leads from and to."""
    found = []
    described = [workload for name, workload in WORKLOADS.items() if name in read()]
    for workload in described:
        known = every.get(workload.name, {})
        for one in known.values():
            if one.trial.seed or one.status == "diverged":
                continue
            for finding in findings(workload, one.trial):
                other = _near(one.trial.vary(finding.change), known) if finding.change else None
                cost = None if other is None else regret(other, one.trial, known)
                if other is not None and cost is not None:
                    found.append(Pair(workload, finding.code, cost.percent, (one.trial, other)))
    return found


def costly(workload: Workload, known: Outcomes) -> list[Trial]:
    """Both trials of each pair that seems to cost something: they get more seeds, as one seed may have been unlucky."""
    return [t for pair in pairs({workload.name: known}) if pair.percent > COSTLY for t in pair.trials]


def said(found: list[Pair]) -> dict[str, str]:
    """What each finding paid, in a sentence, by its code."""
    return {
        code: "; ".join(
            f"{_sentence(each)} that {'was' if len({p.workload.name for p in each}) == 1 else 'were'} {USED[half]}"
            + (", but used to narrow its range" if half in NARROWED.get(code, ()) else "")
            for half in reversed(HALVES)
            if (each := [p for p in found if p.code == code and p.workload.half == half])
        )
        for code in sorted({p.code for p in found})
    }


def write(found: list[Pair], file: Path = PAID) -> None:
    """Write what findings paid to where the planner reads it."""
    file.write_text(json.dumps(said(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def rows(found: list[Pair]) -> list[dict[str, str]]:
    """A row for each finding and half."""
    table = []
    for code in sorted({p.code for p in found}):
        for half in HALVES:
            each = [p for p in found if p.code == code and p.workload.half == half]
            if each:
                values = [p.percent for p in each]
                table.append({
                    "finding": code, "half": half, "workloads": str(len({p.workload.name for p in each})),
                    "pairs": str(len(each)), "lower loss": str(sum(v < 0 for v in values)),
                    "best": _percent(min(values)), "median": _percent(statistics.median(values)),
                    "worst": _percent(max(values)),
                })  # fmt: skip
    return table


def _sentence(each: list[Pair]) -> str:
    values, places = [p.percent for p in each], len({p.workload.name for p in each})
    return (
        f"test loss {_percent(statistics.median(values))} % in the median of {len(values)} "
        f"pair{'s' * (len(values) > 1)} of runs ({_percent(min(values))} to {_percent(max(values))} %) on {places} "
        f"workload{'s' * (places > 1)}"
    )


def _percent(value: float) -> str:
    return "diverged" if math.isinf(value) else f"{value:+.1f}".replace("-", "−")


def _near(wanted: Trial, known: Outcomes) -> Trial | None:
    """The stored trial that is the wanted one, but for the rounding of its weight decay."""
    if wanted.key in known:
        return wanted
    for one in known.values():
        a, b = one.trial.weight_decay, wanted.weight_decay
        if abs(a - b) <= NEAR * max(a, b) and one.trial == wanted.vary({"weight_decay": a}):
            return one.trial
    return None
