"""A sweep of Adam's betas: what they do to rotation, to the result, and whether β1 is a learning rate in disguise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise.lab.experiments.adam import adam_walks
from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.shared.checks import learnt, rotates
from equipoise.lab.experiments.shared.figures import points
from equipoise.lab.experiments.shared.measured import Rotates
from equipoise.lab.experiments.shared.noisy import NOISY, is_noisy, not_by_heart
from equipoise.lab.experiments.shared.sweep import Turning, by_seed, cost, diverged, finished, seeds, stat, worse
from equipoise.lab.experiments.shared.tasks import METRICS, NEAR, TASKS, by_task, on_both
from equipoise.lab.experiments.shared.watched import watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.schedules import linear
from equipoise.theory import stationary

Betas = tuple[float, float]
DEFAULT: Betas = (0.9, 0.99)
FIRSTS, SECONDS = (0.0, 0.5, 0.98), (0.9, 0.999)
"""The other β1, at the default β2; and the other β2, at the default β1."""

PAIRS: tuple[Betas, ...] = (DEFAULT, *((b, DEFAULT[1]) for b in FIRSTS), *((DEFAULT[0], b) for b in SECONDS))
WALKS: tuple[Betas, ...] = ((0.0, 0.99), (0.5, 0.99), (0.9, 0.99), (0.98, 0.99), (0.9, 0.9), (0.9, 0.999))
NOISE, STILL = "noisy", "noisy, constant lr"
"""The tasks on which rotation is controlled, and on which it settles by itself."""

KEPT = (0.9, 1.1)
"""Rotation over the default's that counts as the same."""

SAME, MATCHED, FALLING, RISING = "same lr", "same rotation", "β1 falling", "β1 rising"
CURVES = {FALLING: linear(1, peak=1.0, final=0.5), RISING: linear(1, peak=0.5, final=1.0)}
"""Factors on β1 over the run: to half of it, or from half of it."""


@dataclass(frozen=True)
class _Size:
    bases: tuple[Trial, ...]
    turned: Trial
    walks: tuple[Betas, ...]
    width: int
    steps: int
    rate: float
    seeds: int


_TURNED = NOISY.vary({
    "optimizer": "rotational_adamw", "lr": 1e-2, "weight_decay": 1.0, "steps": 400, "schedule": "cosine", "warmup": 8,
})  # fmt: skip
_VISION, _TEXT = {"lr": 3e-3, "weight_decay": 10.0}, {"lr": 4e-3, "weight_decay": 0.1}

SIZES = {
    "smoke": _Size(on_both("smoke", {**_VISION, "steps": 24}, _TEXT),
                   _TURNED.vary({"steps": 60, "data_options.samples": 4000}),
                   ((0.0, 0.99), (0.9, 0.9)), 32, 500, 5e-3, 1),
    "small": _Size(on_both("small", {**_VISION, "steps": 200}, {**_TEXT, "steps": 120}), _TURNED,
                   WALKS, 64, 1500, 5e-3, 3),
    "medium": _Size(on_both("medium", {"weight_decay": 1.0}, {}), _TURNED, WALKS, 64, 1500, 5e-3, 3),
    "full": _Size(on_both("full", {"lr": 5e-2, "weight_decay": 1e-2}, {"lr": 5e-3, "weight_decay": 0.5}),
                  _TURNED.vary({"steps": 4000, "data_options.samples": 300_000, "weight_decay": 0.1}),
                  WALKS, 128, 20_000, 1e-3, 5),
}  # fmt: skip
"""A trial for each task; one in which rotation is controlled; betas, width, steps and decay of a step of the walks;
seeds."""


@final
class BetaSweep(Rotates):
    """β1 and β2 one at a time, β1 on a schedule, β1 where rotation is controlled; and random walks."""

    name: ClassVar[str] = "betas"
    source: ClassVar[str] = "[notepad] 3.2, 4.1; [theory] 1"
    about: ClassVar[str] = "What do β1 and β2 do to rotation and to the result, and does a schedule of β1 help?"
    statements: ClassVar[Mapping[str, str]] = {
        "walk": "[theory] 1: on a random walk the betas set rotation and norm: [kosson2024]'s √(2ηλ(1−β1)/(1+β1)), "
        "made exact",
        "network": "[kosson2024] Table 1: rotation of a settled network is as √((1−β1)/(1+β1)) over β1, and the same "
        "for any β2",
        "in-disguise": "hypothesis from [kosson2024]: β1 acts through rotation, so results differ less over β1 where "
        "norm and "
        "rotation are kept",
        **by_task(
            "first-over-second",
            "hypothesis from [kosson2024]: rotation depends on β1 and hardly on β2, and so do results",
        ),
        **by_task("scheduled", "open question of [notepad] 3.2: a schedule of β1; the hypothesis: it changes nothing"),
    }

    def trials(self, preset: str) -> list[Trial]:
        """Every pair of betas; schedules; walks; and rotational AdamW over β1, at the same lr and the same rotation."""
        size = SIZES[preset]
        found = []
        for base in size.bases:
            own = watched(base)
            found += [own.vary({"optimizer_options.betas": pair}) for pair in PAIRS]
            for curve in CURVES.values():
                curves = {"beta1": {**curve.to_dict(), "steps": base.steps}}
                found.append(own.vary({"optimizer_options.betas": DEFAULT, "optimizer_options.curves": curves}))
        turned = watched(size.turned)
        for pair in (DEFAULT, *((b, DEFAULT[1]) for b in FIRSTS)):
            found.append(turned.vary({"optimizer_options.betas": pair}))
            if pair != DEFAULT:  # hidden matrices alone: gains, biases and the output layer are the same in both
                times = _rotation(turned.vary({"optimizer_options.betas": DEFAULT})) / _rotation(found[-1])
                kept = {"lr": turned.lr * times, "weight_decay": turned.weight_decay * times}
                found.append(found[-1].vary({"optimizer_options.roles": {"matrix": kept}}))
        still = turned.vary({"optimizer": "adamw", "schedule": "constant", "warmup": 0, "steps": 2 * turned.steps})
        found += [still.vary({"optimizer_options.betas": pair}) for pair in PAIRS]
        for pair in size.walks:
            found.append(adam_walks.walk(pair, nested=False, width=size.width, steps=size.steps, rate=size.rate))
        return seeds(found, size.seeds)

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Where a walk settles; the rotation of a network, and the loss that is reached without one."""
        if adam_walks.is_walk(result.trial):
            return {"walk": adam_walks.measure(run, result.trial)}
        return super().measure(result, run)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Rotation over theory's, and results against the default's."""
        nets: dict[str, dict[tuple[Betas, str], list[Done]]] = {}
        walks: dict[Betas, list[Done]] = {}
        for one in done:
            beta1, beta2 = one.trial.optimizer_options["betas"]
            if one.result.status == "failed":
                continue
            if adam_walks.is_walk(one.trial):
                walks.setdefault((beta1, beta2), []).append(one)
            else:
                noisy = STILL if one.trial.optimizer == "adamw" else NOISE
                task = noisy if is_noisy(one.trial) else TASKS[one.trial.model]
                nets.setdefault(task, {}).setdefault(((beta1, beta2), _kind(one.trial)), []).append(one)
        rows, claims = [], []
        for task, cases in nets.items():
            base = cases.get((DEFAULT, SAME), [])
            for (pair, kind), members in cases.items():
                rows.append({
                    "task": task, "betas": f"{pair}", "lr": members[0].trial.lr, "case": kind,
                    "metric": _metric(task).removeprefix("test_"), "value": stat(members, _metric(task)),
                    "diverged": diverged(members), "worse than default": worse(members, base),
                    "rotation / default's": _turn(members, base),
                    "theory's": _rotation(members[0].trial) / _rotation(base[0].trial) if base else None,
                })  # fmt: skip
            claims += {NOISE: _disguised, STILL: _network}.get(task, lambda c, t=task: _claims(t, c))(cases)
        for pair, members in walks.items():
            over = [adam_walks.over_theory(d) for d in finished(members)]
            claims += [
                Claim(f"walk/{what}-{pair[0]:g}-{pair[1]:g}", "[theory] 1", f"{what} over theory's: walk, betas {pair}",
                      1.0, Stat.of([o[what] for o in over]), tolerance=0.02)
                for what in ("norm", "rotation")
            ]  # fmt: skip
        return Outcome(rows, claims, {"nets": nets, "walks": walks})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Results over β1 and over β2; rotation over β1, of networks, walks and theory."""
        axes = figure.subplots(2, 2)
        for line, by in ((0, "β1"), (1, "β2")):
            for task, cases in outcome.curves["nets"].items():
                for kind in (SAME, MATCHED) if task == NOISE else (SAME,):
                    if task == STILL or (task == NOISE and by == "β2"):
                        continue
                    axis = axes[line, 0]
                    chosen = {p: m for (p, k), m in cases.items() if p[1 - line] == DEFAULT[1 - line]
                              and (k == kind or (p == DEFAULT and k == SAME))}  # fmt: skip
                    stats = [(p[line], worse(m, cases.get((DEFAULT, SAME), []))) for p, m in sorted(chosen.items())]
                    style = {"marker": "o", "ls": "-"} if kind == SAME else {"marker": "s", "ls": "--"}
                    points(axis, {f"{x:g}": s for x, s in stats}, label=f"{task}, {kind}", **style)
            axes[line, 0].set(xlabel=by, title=f"share by which it is worse than {DEFAULT}")
            axes[line, 0].axhline(0, color="grey", lw=0.8)
            axes[line, 0].legend(fontsize=7)
        for axis, place, by in ((axes[0, 1], 0, "β1"), (axes[1, 1], 1, "β2")):
            for task, cases in outcome.curves["nets"].items():
                base = cases.get((DEFAULT, SAME), [])
                found = sorted(
                    (p, m) for (p, k), m in cases.items() if k == SAME and p[1 - place] == DEFAULT[1 - place]
                )
                turns = [_turn(m, base).mean for _, m in found]
                if len(found) > 1:
                    axis.semilogy([f"{p[place]:g}" for p, _ in found], turns, "o-", label=task)
            pairs = sorted(p for p in outcome.curves["walks"] if p[1 - place] == DEFAULT[1 - place])
            if DEFAULT in pairs:
                reference = _walk_turn(outcome.curves["walks"][DEFAULT])
                turns = [_walk_turn(outcome.curves["walks"][p]) / reference for p in pairs]
                axis.semilogy([f"{p[place]:g}" for p in pairs], turns, "k^:", label="walk")
            labels = [*(b for b in (FIRSTS if place == 0 else SECONDS)), DEFAULT[place]]
            wanted = [
                _factor((b, 0.99)) ** 0.5 / _factor(DEFAULT) ** 0.5 if place == 0 else 1.0 for b in sorted(labels)
            ]
            axis.semilogy([f"{b:g}" for b in sorted(labels)], wanted, color="grey", lw=0.8, label="[kosson2024]")
            axis.set(xlabel=by, title="rotation over the default's")
            if place:
                axis.set(yscale="linear", ylim=(0, 1.5))
            axis.legend(fontsize=7)


def _factor(pair: Betas) -> float:
    """(1−β1)/(1+β1), by which [kosson2024]'s squared rotation is less than without momentum."""
    return (1 - pair[0]) / (1 + pair[0])


def _kind(trial: Trial) -> str:
    curves = trial.optimizer_options.get("curves")
    if curves is None:
        return MATCHED if "roles" in trial.optimizer_options else SAME
    return FALLING if curves["beta1"]["final"] < curves["beta1"]["peak"] else RISING


def _metric(task: str) -> str:
    return "test_accuracy" if task in (NOISE, STILL) else METRICS[task]


def _rotation(trial: Trial) -> float:
    """The rotation of settled hidden layers, by theory."""
    beta1, beta2 = trial.optimizer_options["betas"]
    own = {"lr": trial.lr, "weight_decay": trial.weight_decay} | trial.optimizer_options.get("roles", {}).get(
        "matrix", {}
    )
    return stationary("adamw", size=1, betas=(beta1, beta2), **own).rotation


def _turn(members: Sequence[Done], base: Sequence[Done]) -> Stat:
    """Late rotation of hidden layers over the default's; lr falls alike in both."""
    return by_seed(members, base, lambda x, y: Turning.of(x).mean / Turning.of(y).mean)


def _walk_turn(members: Sequence[Done]) -> float:
    found = [adam_walks.over_theory(d)["rotation"] * _rotation(d.trial) for d in members]
    return float(np.mean(found))


def _spread(groups: Sequence[Sequence[Done]]) -> dict[int, float]:
    """Standard deviation of the cost over settings, by seed."""
    costs = [{d.trial.seed: cost(d) for d in finished(members)} for members in groups]
    shared = set.intersection(*(set(c) for c in costs)) if costs else set()
    return {seed: float(np.std([c[seed] for c in costs])) for seed in sorted(shared)}


def _wider(groups: Sequence[Sequence[Done]], others: Sequence[Sequence[Done]]) -> Stat:
    """The difference of two spreads over settings, by seed."""
    first, other = _spread(groups), _spread(others)
    return Stat.of([first[s] - other[s] for s in sorted(first.keys() & other.keys())])


def _disguised(cases: Mapping[tuple[Betas, str], Sequence[Done]]) -> list[Claim]:
    """Results over β1 at the same lr and at the same rotation, which must have been the same."""
    base = cases.get((DEFAULT, SAME), [])
    arms = {kind: {p: m for (p, k), m in cases.items() if k == kind and p != DEFAULT} for kind in (SAME, MATCHED)}
    if not base or not all(arms.values()):
        return []
    checks: list[Check] = [learnt(base)]
    for pair, members in arms[MATCHED].items():
        checks.append(Check.between(f"rotation over the default's, β1 = {pair[0]:g}", _turn(members, base).mean, *KEPT))
    apart = _wider([base, *arms[SAME].values()], [base, *arms[MATCHED].values()])
    words = "spread of results over β1, at the same lr less at the same rotation, under rotational AdamW"
    return [Claim("in-disguise", "hypothesis from [kosson2024]", words, 0.0, apart, "above", checks=checks,
                  least=NEAR["vision"])]  # fmt: skip


def _network(cases: Mapping[tuple[Betas, str], Sequence[Done]]) -> list[Claim]:
    """Rotation over the default's where layers are scale-invariant, by batch normalisation, and have settled."""
    base = cases.get((DEFAULT, SAME), [])
    if not base:
        return []
    checks = [rotates(base, "late rotation of the default over theory's"), not_by_heart(base)]
    return [
        Claim(f"network/{pair[0]:g}-{pair[1]:g}", "[kosson2024] Table 1", f"late rotation over the default's: betas "
                                                                          f"{pair}",
              _rotation(members[0].trial) / _rotation(base[0].trial), _turn(members, base), tolerance=0.1,
              checks=checks)
        for (pair, _), members in cases.items() if pair != DEFAULT
    ]  # fmt: skip


def _claims(task: str, cases: Mapping[tuple[Betas, str], Sequence[Done]]) -> list[Claim]:
    base = cases.get((DEFAULT, SAME), [])
    claims = []
    learns = [learnt(base)]
    firsts, seconds = (
        [base, *(m for (p, k), m in cases.items() if k == SAME and p != DEFAULT and p[i] == DEFAULT[i])] for i in (1, 0)
    )
    claims.append(
        Claim(f"first-over-second-{task}", "hypothesis from [kosson2024]", f"spread of results over β1 less that over "
                                                                           f"β2: {task}",
              0.0, _wider(firsts, seconds), "above", checks=learns, least=NEAR[task])
    )  # fmt: skip
    for kind in CURVES:
        measured = worse(cases.get((DEFAULT, kind), []), base)
        claims.append(
            Claim(f"scheduled-{task}/{'falling' if kind == FALLING else 'rising'}", "[notepad] 3.2, open",
                  f"share by which {kind} is worse than constant: {task}", 0.0, measured, tolerance=NEAR[task],
                  checks=learns)
        )  # fmt: skip
    return claims
