"""Which optimizer and which schedule won, on which kind of task, and by how much: from stored trials.

Optimizers: the same lr·wd·T, schedule and steps. The task's own side has three lrs, the best on validation and its
neighbours; the other side as many, or fewer while its twin is not done, which is to its disadvantage.

Schedules: the best setting of the grid, with nothing else changed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np

from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import HALVES, Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.follow import NEAR
from equipoise.lab.workloads.plans import plan_of
from equipoise.lab.workloads.store import Outcomes, StoredTrial
from equipoise.lab.workloads.sweep import SCHEDULES, settled
from equipoise.lab.workloads.twins import TWINS, shrink_of
from equipoise.planner.checks.alike import CHOICES, like
from equipoise.planner.equivalents import equivalents


@final
@dataclass(frozen=True)
class Duel:
    """Two optimizers on one task.

    Attributes:
        workload: the task; its own optimizer is the first.
        first: the best of its three lrs.
        second: the best of the other optimizer.
        lrs: how many lrs that one had; 3 where its best has a neighbour on both sides.
        percent: 100·(test loss of the second over the first − 1); infinite where the second diverged at all lrs.
        guess: the lr that theory calls equivalent to the first's, None where that depends on gradients.
        factor: that lr over the second's; NaN without one.
        lost: what the second's setting nearest to it costs against the second's best, in percent; NaN without one.
    """

    workload: Workload
    first: StoredTrial
    second: StoredTrial
    lrs: int
    percent: float
    guess: float | None
    factor: float
    lost: float


def duels(every: Mapping[str, Outcomes]) -> list[Duel]:
    """All pairs of a workload and a twin; what can be told without a tuned lr of the twin, where it is not done."""
    found = []
    for name, twin in TWINS.items():
        workload = WORKLOADS.get(twin.twin_of)
        if workload is None:
            continue
        ours, theirs = _line(workload, every.get(workload.name, {})), _line(twin, every.get(name, {}))
        first, tuned = _inside(ours), _inside(theirs)
        if first is None or not theirs:
            continue
        second = tuned or min(theirs, key=lambda one: one.validation)
        guess = equivalent_lr(workload, first.trial, twin.trial.optimizer)
        factor = lost = math.nan
        if guess is not None and tuned:
            near = min(theirs, key=lambda one, at=guess: abs(math.log(one.trial.lr / at)))
            factor, lost = guess / second.trial.lr, _percent(near.test, second.test)
        lrs = 3 if tuned else min(2, len(theirs))
        found.append(Duel(workload, first, second, lrs, _percent(second.test, first.test), guess, factor, lost))
    return found


def equivalent_lr(workload: Workload, trial: Trial, optimizer: str) -> float | None:
    """The lr of another optimizer with the same memory and norms as a trial's plan."""
    found = {e.optimizer: e.lr for e in equivalents(plan_of(workload, trial))}
    return found.get(optimizer)


@final
@dataclass(frozen=True)
class Shape:
    """Another schedule, with nothing else changed.

    Attributes:
        workload: where.
        schedule: its name.
        percent: 100·(test loss over the cosine's − 1).
    """

    workload: Workload
    schedule: str
    percent: float


def schedules(every: Mapping[str, Outcomes]) -> list[Shape]:
    """What other schedules do to the best setting of each grid."""
    found = []
    for workload in WORKLOADS.values():
        known = every.get(workload.name, {})
        top = settled(workload, known)
        if top is None:
            continue
        for name in SCHEDULES:
            other = known.get(top.vary({"schedule": name}).key)
            if other is not None:
                found.append(Shape(workload, name, _percent(other.test, known[top.key].test)))
    return found


def for_planner(every: Mapping[str, Outcomes]) -> dict[str, Any]:
    """What plans quote: percents by kind of task and optimizers, and how well equivalent settings did."""
    optimizers: dict[str, dict[str, dict[str, list[float]]]] = {}

    def add(place: dict[str, Any], *path: str, value: float) -> None:
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place.setdefault(path[-1], []).append(round(value, 1))

    for duel in duels(every):
        kind, a, b = kind_of(duel.workload), duel.first.trial.optimizer, duel.second.trial.optimizer
        add(optimizers, kind, a, b, value=duel.percent)
        if duel.lrs == 3:
            add(optimizers, kind, b, a, value=_percent(duel.first.test, duel.second.test))
    return {"optimizers": optimizers, "equivalents": _accuracy(duels(every))}


def write(every: Mapping[str, Outcomes], file: Path = CHOICES) -> None:
    """Write what plans quote to where the planner reads it."""
    file.write_text(text(every), encoding="utf-8")


def text(every: Mapping[str, Outcomes]) -> str:
    """The same as the file has it."""
    return json.dumps(for_planner(every), indent=1, sort_keys=True) + "\n"


def kind_of(workload: Workload) -> str:
    """The kind of a task as a plan sees it."""
    return like(plan_of(workload, workload.trial))


def duel_rows(found: Iterable[Duel]) -> list[dict[str, str]]:
    """A row for each pair of optimizers on a task."""
    return [
        {
            "task": d.workload.name, "half": d.workload.half, "kind": kind_of(d.workload),
            "first": f"{d.first.trial.optimizer}, {d.first.trial.lr:g}", "loss": f"{d.first.test:.4f}",
            "second": f"{d.second.trial.optimizer}, {d.second.trial.lr:g}", "its loss": f"{d.second.test:.4f}",
            "its lrs": str(d.lrs), "percent": _signed(d.percent),
            "equivalent lr": "·" if d.guess is None else f"{d.guess:g}",
            "its regret": "·" if math.isnan(d.lost) else _signed(d.lost),
        }
        for d in found
    ]  # fmt: skip


def schedule_rows(found: list[Shape]) -> list[dict[str, str]]:
    """A row for each schedule and half."""
    rows = []
    for name in SCHEDULES:
        for half in HALVES:
            each = [s.percent for s in found if s.schedule == name and s.workload.half == half]
            if each:
                rows.append({
                    "schedule": name, "half": half, "workloads": str(len(each)),
                    "lower loss": str(sum(x < 0 for x in each)), "best": _signed(min(each)),
                    "median": _signed(float(np.median(each))), "worst": _signed(max(each)),
                })  # fmt: skip
    return rows


def _accuracy(found: list[Duel]) -> dict[str, Any]:
    known = [d for d in found if not math.isnan(d.lost)]
    return {
        "pairs": len(known), "within": sum(1 / 3.2 <= d.factor <= 3.2 for d in known),
        "median": round(float(np.median([d.lost for d in known])), 1) if known else None,
        "worst": round(max(d.lost for d in known), 1) if known else None,
    }  # fmt: skip


def _line(workload: Workload, known: Outcomes) -> list[StoredTrial]:
    """The trials of a task that differ in lr alone, by lr, at the twins' lr·wd·T."""
    shrink, found = shrink_of(workload), []
    for one in known.values():
        t = one.trial
        decay = workload.decay(t.lr, shrink) if t.lr else 0.0
        if abs(t.weight_decay - decay) <= NEAR * decay and t == workload.at(t.lr, t.weight_decay):
            found.append(one)
    return sorted(found, key=lambda one: one.trial.lr)


def _inside(line: list[StoredTrial]) -> StoredTrial | None:
    """The best on validation, if it has a neighbour on both sides."""
    order = sorted(range(len(line)), key=lambda i: line[i].validation)
    return line[order[0]] if order and 0 < order[0] < len(line) - 1 else None


def _percent(loss: float, base: float) -> float:
    return 100 * (loss / base - 1)


def _signed(value: float) -> str:
    return "diverged" if math.isinf(value) else f"{value:+.1f}".replace("-", "−")
