"""Nested Adam, which averages what is divided, against Adam, which divides the average: [notepad] 3.4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.adam import adam_walks
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.checks import baseline, fair
from equipoise.lab.experiments.shared.figures import lr_axis, points
from equipoise.lab.experiments.shared.sweep import best, by_seed, by_setting, diverged, finished, seeds, stat, worse
from equipoise.lab.experiments.shared.tasks import METRICS, NEAR, TASKS, by_task, on_both
from equipoise.lab.experiments.shared.watched import hidden, watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import Dynamics

Betas = tuple[float, float]
PAIRS: tuple[Betas, ...] = ((0.9, 0.999), (0.9, 0.5))
"""Adam's default, and a second average so short that the order of the two matters on a random walk."""

WALKS: tuple[Betas, ...] = ((0.9, 0.999), (0.9, 0.9), (0.9, 0.5))
SHORT = 0.5
"""A β2 that is small."""

_ALIKE = (
    "open question of [notepad] 3.4: is g/(√v + ε) alike for all early steps, so that the correction of the nested "
    "average is 1 − β1^t, too?"
)
FIRST = 0.1
"""The share of the steps that are the first ones."""

OPENING = adam_walks.FIRST
"""Steps of the walks that are watched from the first step on."""


@dataclass(frozen=True)
class _Size:
    tasks: tuple[Trial, Trial]
    lrs: tuple[tuple[float, ...], tuple[float, ...]]
    pairs: tuple[Betas, ...]
    walks: tuple[Betas, ...]
    width: int
    steps: int
    seeds: int


SIZES = {
    "smoke": _Size(on_both("smoke", {"steps": 20}, {}), ((3e-3,), (3e-3,)), PAIRS, PAIRS, 32, 700, 1),
    "small": _Size(on_both("small", {"steps": 200}, {"steps": 120}), ((1e-3, 3e-3, 1e-2), (2e-3, 4e-3, 8e-3)),
                   PAIRS, WALKS, 64, 1500, 3),
    "medium": _Size(on_both("medium", {}, {}), ((1e-3, 3e-3, 1e-2, 3e-2), (5e-3, 1e-2, 2e-2, 4e-2)),
                    PAIRS, WALKS, 64, 1500, 3),
    "full": _Size(on_both("full", {}, {}), ((1e-3, 1e-2, 5e-2), (1e-3, 5e-3, 1e-2)),
                  (*PAIRS, (0.9, 0.95), (0.95, 0.95)), (*WALKS, (0.95, 0.95)), 128, 20_000, 5),
}  # fmt: skip
"""A trial for each task and its learning rates; betas; betas, width and steps of the walks; seeds."""

RATE = 5e-3
"""Decay of a walk's step."""


def _by_beta(name: str, says: str) -> dict[str, str]:
    """A statement by task, where β2 is near 1 and where it is short: there theory says that they differ."""
    return {
        f"{key}{end}": f"{text}, {where}"
        for key, text in by_task(name, says).items()
        for end, where in (("", "β2 near 1"), ("-short", "β2 = 0.5"))
    }


@final
class NestedAdam(Experiment):
    """Both orders of averaging and dividing, on two tasks and on random walks."""

    name: ClassVar[str] = "nested-adam"
    source: ClassVar[str] = "[notepad] 3.2, 3.4; [theory] 1, 4"
    about: ClassVar[str] = "Normalise then average, or average then normalise: does the order matter?"
    statements: ClassVar[Mapping[str, str]] = {
        **_by_beta("same", "open question of [notepad] 3.2: nested moving average against Adam, are they the same?"),
        **_by_beta("same-bias-term", _ALIKE),
        "same-bias-term-walk": f"{_ALIKE}; on a random walk, where β2 is near 1",
        "same-bias-term-short": f"{_ALIKE}; on a random walk, where β2 is 0.5",
        "walk": "theory: on a random walk the two settle alike where β2 is near 1",
        "walk-short": "theory: on a random walk nested Adam settles at a smaller norm where β2 is small (0.763 of "
        "Adam's at (.9, .5))",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Both on every task, pair of betas and lr; settled walks; and walks watched from the first step on."""
        size = SIZES[preset]
        found = []
        for base, lrs in zip(size.tasks, size.lrs, strict=True):
            own = watched(base.vary({"optimizer": "adamw_switches", "weight_decay": 0.1}), 50)
            found += [
                own.vary({"lr": lr, "optimizer_options": {"betas": betas, "nested": nested}})
                for betas in size.pairs for lr in lrs for nested in (False, True)
            ]  # fmt: skip
        for nested in (False, True):
            found += [
                adam_walks.walk(b, nested=nested, width=size.width, steps=size.steps, rate=RATE) for b in size.walks
            ]
        # Wide, so that one walk says much; β2 = .999 as by default, and a short one.
        found += [adam_walks.walk(b, nested=True, width=128, steps=OPENING, rate=RATE) for b in PAIRS]
        return seeds(found, size.seeds)

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Where a walk settles; the first updates of a network, and the loss that is reached without one."""
        if adam_walks.is_walk(result.trial):
            return {"walk": adam_walks.measure(run, result.trial)}
        series = [run.series("update", name) for name in hidden(run)]
        firsts = [s.values[s.steps <= FIRST * result.trial.steps].mean() for s in series]
        return {"firsts": float(np.mean(firsts)), "baseline": baseline(result.trial)}

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Each at its best lr, their first updates, and the walks."""
        done = [one for one in done if one.result.status != "failed"]
        keys = ["model", "optimizer_options.betas", "lr", "optimizer_options.nested"]
        nets = by_setting([d for d in done if not adam_walks.is_walk(d.trial)], keys)
        walks = [d for d in done if adam_walks.is_walk(d.trial)]
        rows, claims = _tasks(nets)
        for betas, (plain, nested) in _by_order([d for d in walks if d.trial.steps != OPENING]).items():
            rows += [_walk_row(betas, members) for members in (plain, nested)]
            claims += _walk_claims(betas, plain, nested)
        opening = by_setting([d for d in walks if d.trial.steps == OPENING], ["optimizer_options.betas"])
        for (betas,), members in opening.items():
            claims.append(
                Claim(f"same-bias-term-{'short' if betas[1] <= SHORT else 'walk'}", "[notepad] 3.4",
                      f"first {OPENING} updates of nested Adam over those of an average of alike terms: walk, betas "
                      f"{betas}", 1.0,
                      Stat.of([float(_opening(d).mean()) for d in members]))
            )  # fmt: skip
        curves = {"nets": nets, "opening": {b: _opening(m[0]) for (b,), m in opening.items()}}
        return Outcome(rows, claims, curves)

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Each task over lr; and the first updates of nested walks."""
        axes = figure.subplots(1, 3)
        nets: dict[Any, list[Done]] = outcome.curves["nets"]
        for axis, model in zip(axes, dict.fromkeys(key[0] for key in nets), strict=False):
            metric = METRICS[TASKS[model]]
            means = [stat(members, metric).mean for key, members in nets.items() if key[0] == model]
            limit = 2.5 * min(means)  # some perplexities are as bad as to have diverged
            for colour, betas in zip(
                ("tab:blue", "tab:orange", "tab:green", "tab:red"), _pairs(nets, model), strict=False
            ):
                for nested in (False, True):
                    own = {k[2]: stat(v, metric) for k, v in nets.items() if k[0] == model and k[1] == betas
                           and k[3] == nested}  # fmt: skip
                    own = {lr: s for lr, s in own.items() if s.mean < limit}
                    label = f"{'nested' if nested else 'Adam'} {betas}"
                    points(axis, own, color=colour, ls="--" if nested else "-", label=label)
            lrs = {key[2] for key in nets if key[0] == model}
            lr_axis(axis, lrs, xlabel="lr", title=f"{TASKS[model]}: {metric.replace('_', ' ')}")
            axis.legend(fontsize=7)
        for betas, sizes in outcome.curves["opening"].items():
            axes[2].plot(np.arange(1, len(sizes) + 1), sizes, "o-", ms=3, label=f"betas {betas}")
        axes[2].axhline(1, color="grey", lw=0.8)
        axes[2].set(title="nested walk: update over √r(t)", xlabel="step", ylim=(0, 1.5))
        axes[2].legend(fontsize=7)


def _pairs(nets: Mapping[Any, Any], model: str) -> list[Betas]:
    return list(dict.fromkeys(key[1] for key in nets if key[0] == model))


def _tasks(nets: Mapping[Any, list[Done]]) -> tuple[list[dict[str, Any]], list[Claim]]:
    rows, claims = [], []
    for model in dict.fromkeys(key[0] for key in nets):
        task = TASKS[model]
        metric, lowest = METRICS[task], task == "text"
        for betas in _pairs(nets, model):
            own = {k[2:]: v for k, v in nets.items() if k[0] == model and k[1] == betas}
            tops = [best({k: v for k, v in own.items() if k[1] == n}, metric, lowest=lowest) for n in (False, True)]
            if None in tops:
                continue
            plain, nested = (own[top] for top in tops if top is not None)
            for members in (plain, nested):
                rows.append({
                    "task": task, "betas": f"{betas}", "order": _order(members), "lr": members[0].trial.lr,
                    "metric": metric.removeprefix("test_"), "value": stat(members, metric),
                    "worse than Adam": worse(members, plain), "diverged at any lr": sum(
                        diverged(m) for k, m in own.items() if k[1] == members[0].trial.optimizer_options["nested"]
                    ), "norm / theory": None, "rotation / theory": None,
                })  # fmt: skip
            arms = {
                _order(members): (members, {k: v for k, v in own.items() if k[1] == n})
                for members, n in ((plain, False), (nested, True))
            }
            short = "-short" if betas[1] <= SHORT else ""
            part, at = f"{task}{short}/{betas[0]:g}-{betas[1]:g}", f"{task}, betas {betas}"
            claims.append(
                Claim(f"same-{part}", "[notepad] 3.2, open", f"share by which nested is worse, each at its best lr: "
                                                             f"{at}",
                      0.0, worse(nested, plain), tolerance=NEAR[task], checks=fair(metric, "Adam", arms))
            )  # fmt: skip
            pairs = [(own[lr, True], own[lr, False]) for lr in dict.fromkeys(k[0] for k in own)]
            claims.append(
                Claim(f"same-bias-term-{part}", "[notepad] 3.4, open",
                      f"first tenth's updates of nested Adam over Adam's, mean over lr: {at}", 1.0, _early(pairs))
            )  # fmt: skip
    return rows, claims


def _early(pairs: Sequence[tuple[Sequence[Done], Sequence[Done]]]) -> Stat:
    """First updates of nested Adam over Adam's, mean over those lr at which no trial diverged."""
    pairs = [both for both in pairs if not any(diverged(members) for members in both)]
    found: dict[int, list[float]] = {}
    for nested, plain in pairs:
        other = {d.trial.seed: d for d in finished(plain)}
        for d in finished(nested):
            if d.trial.seed in other:
                found.setdefault(d.trial.seed, []).append(_firsts(d) / _firsts(other[d.trial.seed]))
    return Stat.of([float(np.mean(each)) for each in found.values() if len(each) == len(pairs)])


def _order(members: Sequence[Done]) -> str:
    return "nested" if members[0].trial.optimizer_options["nested"] else "Adam"


def _firsts(done: Done) -> float:
    """Mean size of the first updates over hidden layers."""
    return done.measured["firsts"]


def _opening(done: Done) -> Array:
    """Size of an element of each first update, over that of an average of terms that are alike from the first on."""
    alike = Dynamics("adamw", betas=tuple(done.trial.optimizer_options["betas"]))
    sizes = adam_walks.first_sizes(done)
    return sizes / np.sqrt([alike.expected_square(t) for t in range(1, len(sizes) + 1)])


def _by_order(walks: Sequence[Done]) -> dict[Betas, tuple[list[Done], list[Done]]]:
    found: dict[Any, tuple[list[Done], list[Done]]] = {}
    for one in walks:
        options = one.trial.optimizer_options
        found.setdefault(tuple(options["betas"]), ([], []))[options["nested"]].append(one)
    return {betas: both for betas, both in found.items() if all(both)}


def _walk_row(betas: Any, members: Sequence[Done]) -> dict[str, Any]:
    over = [adam_walks.over_theory(d) for d in members]
    return {
        "task": "walk", "betas": f"{betas}", "order": _order(members), "lr": members[0].trial.lr, "metric": "",
        "value": "", "worse than Adam": "", "diverged at any lr": "",
        **{f"{what} / theory": Stat.of([o[what] for o in over]) for what in ("norm", "rotation")},
    }  # fmt: skip


def _walk_claims(betas: Any, plain: Sequence[Done], nested: Sequence[Done]) -> list[Claim]:
    """Norm and rotation, nested over Adam's, each in units of lr and against theory's."""
    width = plain[0].trial.data_options["inputs"]
    claims = []
    for what, tolerance in (("norm", 0.02), ("rotation", 0.01)):
        theory = [
            getattr(adam_walks.expected(plain[0].trial, betas, nested=n, width=width), what) for n in (True, False)
        ]
        ratio = theory[0] / theory[1]
        measured = by_seed(
            nested, plain, lambda x, y, w=what, r=ratio: r * adam_walks.over_theory(x)[w] / adam_walks.over_theory(y)[w]
        )
        claims.append(
            Claim(f"walk{'-short' if betas[1] <= SHORT else ''}/{what}-{betas[0]:g}-{betas[1]:g}", "theory",
                  f"settled {what} of nested Adam over Adam's: walk, betas {betas}", ratio, measured,
                  tolerance=tolerance)
        )  # fmt: skip
    return claims
