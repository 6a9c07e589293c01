"""Adam's ε: one for all, one for each layer, on a schedule, and so large that Adam is SGD: [notepad] 3.2, 3.3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.shared.checks import learnt
from equipoise.lab.experiments.shared.figures import points
from equipoise.lab.experiments.shared.measured import Rotates
from equipoise.lab.experiments.shared.sweep import apart, by_seed, cost, diverged, finished, seeds, stat, worse
from equipoise.lab.experiments.shared.tasks import METRICS, NEAR, TASKS, by_task, on_both
from equipoise.lab.experiments.shared.watched import watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.train.trial import Trial
from equipoise.schedules import exponential

DEFAULT, RAISED, LOWERED = 1e-8, 1e-6, 1e-12
FIXED = (LOWERED, DEFAULT, RAISED, 1e-4, 1e-2)
STABLE = (LOWERED, DEFAULT, RAISED)
"""Values that are held against each other at the high lr, too."""

LARGE = 1e-2
"""Where schedules begin or end: the √v of the layers with the largest gradients."""

HIGH = 4.0
"""The high lr, over the usual one."""

HUGE, MOMENTUM, SGD_LR = 1e3, 0.9, 0.1
"""An ε beside which √v is nothing; and the SGD that Adam is then."""

BETAS = (MOMENTUM, 0.99)
Case = tuple[str, float, bool]
"""Kind, its number, whether lr is high."""


@dataclass(frozen=True)
class _Size:
    bases: tuple[Trial, ...]
    fixed: tuple[float, ...]
    relative: tuple[float, ...]
    seeds: int


SIZES = {
    "smoke": _Size(on_both("smoke", {"lr": 3e-3, "steps": 12}, {"lr": 4e-3}), (*STABLE, 1e-2), (1.0,), 1),
    "small": _Size(on_both("small", {"lr": 3e-3, "steps": 200}, {"lr": 4e-3, "steps": 120}), FIXED, (0.1, 1.0), 3),
    "medium": _Size(on_both("medium", {}, {}), STABLE, (0.1, 1.0), 3),
    "full": _Size(on_both("full", {"lr": 5e-2}, {"lr": 5e-3}), FIXED, (0.01, 0.1, 1.0), 5),
}  # fmt: skip
"""A trial for each task; ε for all; ε in units of √v; seeds."""


@final
class Epsilon(Rotates):
    """A sweep of ε, ε by the layer's own gradients against by the model's, schedules, and the limit of large ε."""

    name: ClassVar[str] = "epsilon"
    source: ClassVar[str] = "[notepad] 3.2, 3.3"
    about: ClassVar[str] = "Why is the same ε used everywhere: does its size matter, and would a layer's own do better?"
    statements: ClassVar[Mapping[str, str]] = {
        "raised-better": "[notepad] 3.3, of other papers: raising ε to 1e-6 can lower a language model's perplexity",
        "raised-unstable": "[notepad] 3.3, of other papers: raising ε to 1e-6 makes training less stable",
        "lowered-alike": "[notepad] 3.3, of other papers: lowering ε does no noticeable harm",
        "lowered-stable": "[notepad] 3.3, of other papers: lowering ε can make training more stable",
        **by_task(
            "own-better",
            "open question of [notepad] 3.2, 3.3: one ε for all parameters could be foolish, so that a layer's own "
            "does better",
        ),
        **by_task("scheduled", "open question of [notepad] 3.2: ε on a schedule; the hypothesis: it changes nothing"),
        "large-is-sgd": "theory, behind [notepad]'s 3.2 (ε scheduling is related to Adam2SGD): where ε is far above √v "
        "Adam is SGD with momentum, its lr times (1−β1)/ε",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Every ε on both tasks, some of them at the high lr, too."""
        size = SIZES[preset]
        found = []
        for base in size.bases:
            own = watched(base.vary({"weight_decay": 0.1, "optimizer_options.betas": BETAS}))
            found += [own.vary({"optimizer_options.eps": eps}) for eps in size.fixed]
            found += [own.vary({"optimizer_options.eps": eps, "lr": HIGH * own.lr}) for eps in STABLE]
            found += [
                own.vary({"optimizer": "adamw_relative_eps", "optimizer_options.eps": k, "optimizer_options.by": by})
                for k in size.relative for by in ("layer", "model")
            ]  # fmt: skip
            for start, end in ((LARGE, DEFAULT), (DEFAULT, LARGE)):
                curve = exponential(base.steps, final=end / start).to_dict()
                found.append(own.vary({"optimizer_options.eps": start, "optimizer_options.curves": {"eps": curve}}))
            sgd = own.vary({"weight_decay": 0.0, "optimizer": "sgdm", "optimizer_options": {"momentum": MOMENTUM}})
            found.append(sgd.vary({"lr": SGD_LR}))
            options = {"betas": BETAS, "eps": HUGE, "bias_correction": False}
            huge = sgd.vary({"optimizer": "adamw_switches", "optimizer_options": options})
            found.append(huge.vary({"lr": SGD_LR * HUGE / (1 - MOMENTUM)}))
        return seeds(found, size.seeds)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Each case against ε = 1e-8 at the same lr."""
        found: dict[str, dict[Case, list[Done]]] = {}
        usual: dict[str, float] = {}
        for one in done:
            if "curves" in one.trial.optimizer_options:
                usual[one.trial.model] = one.trial.lr
        for one in done:
            if one.result.status != "failed" and one.trial.model in usual:
                case = _case(one.trial, usual[one.trial.model])
                found.setdefault(TASKS[one.trial.model], {}).setdefault(case, []).append(one)
        rows: list[dict[str, Any]] = []
        claims: list[Claim] = []
        for task, cases in found.items():
            for (kind, number, high), members in cases.items():
                rows.append({
                    "task": task, "ε": kind, "value of ε": number, "lr": members[0].trial.lr,
                    "metric": METRICS[task].removeprefix("test_"), "value": stat(members, METRICS[task]),
                    "diverged": diverged(members),
                    "worse than 1e-8": worse(members, cases.get(("fixed", DEFAULT, high), [])),
                })  # fmt: skip
            claims += _claims(task, cases)
        return Outcome(rows, claims, {"found": found})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Results over ε at both lrs, schedules beside them; and over ε in units of √v."""
        axes = figure.subplots(2, 2, squeeze=False)
        for line, (task, cases) in zip(axes, outcome.curves["found"].items(), strict=False):
            metric = METRICS[task]
            for kind, high, axis, label in (
                ("fixed", False, line[0], "one for all"), ("fixed", True, line[0], f"one for all, lr × {HIGH:g}"),
                ("falling", False, line[0], "falling from here to 1e-8"),
                ("rising", False, line[0], "rising from here to 1e-2"),
                ("by layer", False, line[1], "by layer"), ("by model", False, line[1], "by model"),
            ):  # fmt: skip
                own = sorted((n, stat(m, metric)) for (k, n, h), m in cases.items() if k == kind and h == high)
                points(axis, dict(own), ls="none" if len(own) < 2 else "-", label=label)
            default = cases.get(("fixed", DEFAULT, False))
            if default:
                line[1].axhline(stat(default, metric).mean, color="grey", lw=0.8, label="ε = 1e-8")
            for axis, words in zip(line, ("ε", "ε / root mean square of √v"), strict=True):
                axis.set(xscale="log", xlabel=words, title=f"{task}: {metric.replace('_', ' ')}")
                axis.legend(fontsize=7)


def _case(trial: Trial, usual: float) -> Case:
    options = trial.optimizer_options
    if trial.optimizer == "sgdm":
        return "SGD, no decay", 0.0, False
    if trial.optimizer == "adamw_switches":
        return "huge, no decay", options["eps"], False
    if trial.optimizer == "adamw_relative_eps":
        return f"by {options['by']}", options["eps"], False
    if "curves" in options:
        return "falling" if options["eps"] == LARGE else "rising", options["eps"], False
    return "fixed", options["eps"], trial.lr > usual


def _claims(task: str, cases: Mapping[Case, Sequence[Done]]) -> list[Claim]:
    def fixed(eps: float, *, high: bool = False) -> Sequence[Done]:
        return cases.get(("fixed", eps, high), [])

    at, near, checks = f": {task}", NEAR[task], [learnt(fixed(DEFAULT))]
    claims = [
        Claim(f"lowered-alike/{task}", "[notepad] 3.3", f"share by which ε = 1e-12 is worse than 1e-8{at}", 0.0,
              worse(fixed(LOWERED), fixed(DEFAULT)), tolerance=near, checks=checks),
        Claim(f"raised-unstable/{task}", "[notepad] 3.3", f"what lr × 4 costs at ε = 1e-6, less at 1e-8{at}", 0.0,
              _fragile(cases, RAISED, DEFAULT), "above", checks=checks, least=near),
        Claim(f"lowered-stable/{task}", "[notepad] 3.3", f"what lr × 4 costs at ε = 1e-12, less at 1e-8{at}", 0.0,
              _fragile(cases, LOWERED, DEFAULT), "below", checks=checks, least=near),
    ]  # fmt: skip
    if task == "text":
        claims.append(
            Claim("raised-better", "[notepad] 3.3", f"share by which ε = 1e-6 is worse than 1e-8{at}", 0.0,
                  worse(fixed(RAISED), fixed(DEFAULT)), "below", checks=checks, least=near)
        )  # fmt: skip
    for kind, number, _ in cases:
        if kind == "by layer":
            other = cases.get(("by model", number, False), [])
            claims.append(
                Claim(f"own-better-{task}/{number:g}", "[notepad] 3.2, open",
                      f"share by which ε by layer is worse than by model, {number:g} of √v{at}", 0.0,
                      worse(cases[kind, number, False], other), "below", checks=checks, least=near)
            )  # fmt: skip
        elif kind in ("falling", "rising"):
            claims.append(
                Claim(f"scheduled-{task}/{kind}", "[notepad] 3.2, open", f"share by which {kind} ε is worse than "
                                                                         f"1e-8{at}",
                      0.0, worse(cases[kind, number, False], fixed(DEFAULT)), tolerance=near, checks=checks)
            )  # fmt: skip
        elif kind == "huge, no decay":
            claims.append(
                Claim(f"large-is-sgd/{task}", "theory", f"rotation, Adam with ε = {HUGE:g} against SGD{at}", 0.0,
                      by_seed(cases[kind, number, False], cases.get(("SGD, no decay", 0.0, False), []), apart),
                      tolerance=1e-3)
            )  # fmt: skip
    return claims


def _fragile(cases: Mapping[Case, Sequence[Done]], one: float, other: float) -> Stat:
    """What the high lr costs over the usual one, of one ε less of the other, by seed."""
    costs = [
        {d.trial.seed: cost(d) for d in finished(cases.get(("fixed", eps, high), []))}
        for eps in (one, other) for high in (True, False)
    ]  # fmt: skip
    shared = sorted(set.intersection(*(set(c) for c in costs)))
    return Stat.of([costs[0][s] - costs[1][s] - costs[2][s] + costs[3][s] for s in shared])
