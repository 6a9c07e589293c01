"""The reference sweep of a workload, in stages. What a stage tries depends on what the stages before it found.

| stage | tries |
|---|---|
| coarse | every lr of the workload × lr·wd·T of 0, 0.3 and 3 |
| habits | what needs no thought, `policies.FIRST`, as it is and with the plan's findings followed |
| edges | one more lr, or one more lr·wd·T, each with all of the other, while the best is at an end |
| twins | of a task by another optimizer: lr alone, at one lr·wd·T, until the best has a neighbour on both sides |
| shapes | the best of the grid with two other warmups and other schedules |
| rules | what `policies.RULES` make of the workload |
| fine | lr a factor 10^¼ beside the best, and the next lr·wd·T on both sides |
| seeds | two more seeds of the best three settings, of every policy, and of pairs where a finding seems to have cost |

Everything is a pure function of the stored trials, so that a sweep goes on anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from equipoise import _check
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import Workload
from equipoise.lab.workloads.policies import FIRST, FOLLOWED, POLICIES, Tuned
from equipoise.lab.workloads.store import Outcomes
from equipoise.lab.workloads.twins import shrink_of

STAGES = ("coarse", "habits", "edges", "twins", "shapes", "rules", "fine", "seeds")

SHRINKS = (0.0, 0.3, 3.0)
"""lr·wd·T of the coarse grid."""

FINE_SHRINKS = (0.0, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)
SEEDS = 3
BEST = 3
"""How many settings get all seeds."""

EXTENSIONS = 4
"""How often the grid is extended at each of its ends, at most."""

SCHEDULES = ("linear", "wsd", "constant", "equal_memory")
"""Beside the workload's cosine; the last one needs weight decay."""

FREE = ("shapes", "rules")
"""Stages that later ones do not wait for: they have no say in where the grid goes on."""


def planned(workload: Workload, known: Outcomes, tuned: Tuned) -> dict[str, list[Trial]]:
    """Every trial of the sweep by stage, as far as it can be told by now; a stage comes when those before it are done.

    Args:
        workload: what is swept.
        known: its trials that have ended.
        tuned: the best settings of the workloads whose grids are done; of this one, too.
    """
    if workload.twin_of:
        return {"twins": ladder(workload, known)}
    whole, _ = _extended(workload, known)
    top, early = _best_of(known, whole), (*FIRST, *FOLLOWED)
    makers = {
        "coarse": lambda: grid(workload, workload.lrs, SHRINKS),
        "habits": lambda: _chosen(workload, [p.name for p in early], tuned),
        "edges": lambda: whole,
        "twins": list,
        "shapes": lambda: _shapes(workload, top),
        "rules": lambda: _chosen(workload, [name for name, p in POLICIES.items() if p not in early], tuned),
        "fine": lambda: _fine(workload, top),
        "seeds": lambda: _seeds(workload, known, tuned),
    }
    found: dict[str, list[Trial]] = {}
    before: set[str] = set()
    for stage, make in makers.items():
        unique = {trial.key: trial for trial in make()}
        found[stage] = [trial for key, trial in unique.items() if key not in before]
        before |= unique.keys()
        if stage not in FREE and any(t.key not in known for t in found[stage]):
            break
    return found


def ladder(workload: Workload, known: Outcomes) -> list[Trial]:
    """The lrs of a twin, as far as they can be told: one more at an end while the best is there."""
    lrs, shrink = list(workload.lrs), shrink_of(workload)
    for _ in range(2 * EXTENSIONS):
        trials = grid(workload, lrs, [shrink])
        if any(t.key not in known for t in trials):
            return trials
        top = _best_of(known, trials)
        lr = lrs[0] if top is None else top.lr
        if lrs[0] < lr < lrs[-1]:
            return trials
        lrs = sorted([*lrs, further(lr, up=lr == lrs[-1])])
    return grid(workload, lrs, [shrink])


def grid(workload: Workload, lrs: Iterable[float], shrinks: Iterable[float]) -> list[Trial]:
    """Every lr with every lr·wd·T."""
    return [workload.at(lr, workload.decay(lr, s)) for lr in lrs for s in shrinks]


def best(workload: Workload, known: Outcomes) -> Trial | None:
    """The setting with the least validation loss, as the trial of the first seed; None where none has finished.

    Where some of the best few by the first seed have all seeds, it is chosen among those by the mean over seeds.
    """
    single = {key: one.validation for key, one in known.items() if one.trial.seed == 0}
    few = sorted(single, key=lambda key: (single[key], key))[:BEST]
    means = {key: loss for key, (loss, count) in validation(known).items() if key in few and count >= SEEDS}
    ranked = sorted((loss, key) for key, loss in (means or single).items() if math.isfinite(loss))
    return known[ranked[0][1]].trial if ranked else None


def validation(known: Outcomes) -> dict[str, tuple[float, int]]:
    """Mean validation loss over seeds and how many there are, by the key of the setting's first seed."""
    found = {}
    for key, one in known.items():
        if one.trial.seed == 0:
            seeds = [one, *(known[t.key] for t in others(one.trial) if t.key in known)]
            found[key] = sum(s.validation for s in seeds) / len(seeds), len(seeds)
    return found


def others(trial: Trial) -> list[Trial]:
    """The same setting with the other seeds."""
    return [trial.vary({"seed": seed}) for seed in range(1, SEEDS)]


def settled(workload: Workload, known: Outcomes) -> Trial | None:
    """The best of the grid and its extensions, once they are done: what rules that need a tuned lr start from."""
    tried, done = _extended(workload, known)
    return _best_of(known, tried) if done else None


def further(value: float, *, up: bool) -> float:
    """The next of … 1, 3, 10, 30 ….

    >>> further(0.3, up=True), further(1e-3, up=False), further(3e-4, up=True)
    (1.0, 0.0003, 0.001)
    """
    exponent = math.floor(math.log10(_check.number("value", value, low=0, open_low=True)) + 1e-9)
    leading = round(value / 10.0**exponent)
    if leading not in (1, 3):
        raise ValueError(f"value = {value}: must be 1 or 3 times a power of ten")
    text = (f"3e{exponent}" if up else f"3e{exponent - 1}") if leading == 1 else f"1e{exponent + 1 if up else exponent}"
    return float(text)


def _best_of(known: Outcomes, trials: Iterable[Trial]) -> Trial | None:
    """The best by the first seed alone, so that it stays the same when others come."""
    ranked = sorted((known[t.key].validation, t.key) for t in trials if t.key in known)
    return known[ranked[0][1]].trial if ranked and math.isfinite(ranked[0][0]) else None


def _extended(workload: Workload, known: Outcomes) -> tuple[list[Trial], bool]:
    """The coarse grid and its extensions, as far as they can be told, and whether all of that is done."""
    lrs, shrinks = list(workload.lrs), list(SHRINKS)
    low = high = wide = 0
    made: dict[tuple[float, float], Trial] = {}
    while True:
        for lr in lrs:
            for shrink in shrinks:
                if (lr, shrink) not in made:
                    made[lr, shrink] = workload.at(lr, workload.decay(lr, shrink))
        trials = list(made.values())
        if any(t.key not in known for t in trials):
            return trials, False
        top = _best_of(known, trials)
        # Where all diverged, lower.
        lr, shrink = (lrs[0], 0.0) if top is None else next(at for at, t in made.items() if t.key == top.key)
        if lr == lrs[0] and low < EXTENSIONS:
            lrs.insert(0, further(lr, up=False))
            low += 1
        elif lr == lrs[-1] and high < EXTENSIONS:
            lrs.append(further(lr, up=True))
            high += 1
        elif shrink == shrinks[-1] and wide < EXTENSIONS:
            shrinks.append(further(shrink, up=True))
            wide += 1
        else:
            return trials, True


def _chosen(workload: Workload, names: Iterable[str], tuned: Tuned) -> list[Trial]:
    chosen = (POLICIES[name].choose(workload, tuned) for name in names)
    return [trial for trial in chosen if trial is not None]


def _fine(workload: Workload, top: Trial | None) -> list[Trial]:
    if top is None:
        return []
    shrink = workload.shrink(top.lr, top.weight_decay)
    place = min(range(len(FINE_SHRINKS)), key=lambda i: abs(math.log((shrink + 1e-3) / (FINE_SHRINKS[i] + 1e-3))))
    beside = FINE_SHRINKS[max(0, place - 1) : place + 2]
    lrs = [float(f"{top.lr * 10**power:.2g}") for power in (-0.25, 0.25)]
    return [
        *(workload.at(lr, workload.decay(lr, shrink)) for lr in lrs),
        *(workload.at(top.lr, workload.decay(top.lr, s)) for s in beside if s != FINE_SHRINKS[place]),
    ]


def _shapes(workload: Workload, top: Trial | None) -> list[Trial]:
    if top is None:
        return []
    warmups = (0, 4 * workload.trial.warmup)
    curves = [s for s in SCHEDULES if s != "equal_memory" or top.weight_decay]
    return [*(top.vary({"schedule": s}) for s in curves), *(top.vary({"warmup": w}) for w in warmups)]


def _seeds(workload: Workload, known: Outcomes, tuned: Tuned) -> list[Trial]:
    ranked = sorted((one.validation, key) for key, one in known.items() if one.trial.seed == 0)
    few = [known[key].trial for loss, key in ranked[:BEST] if math.isfinite(loss)]
    policies = [t for t in _chosen(workload, POLICIES, tuned) if t.key in known]
    from equipoise.lab.workloads.follow import costly

    return [other for trial in (*few, *policies, *costly(workload, known)) for other in others(trial)]


def missing(plan: Mapping[str, list[Trial]], known: Outcomes) -> list[tuple[int, Trial]]:
    """The trials of a plan that are still to do, each with the number of its stage."""
    return [(STAGES.index(stage), t) for stage, trials in plan.items() for t in trials if t.key not in known]
