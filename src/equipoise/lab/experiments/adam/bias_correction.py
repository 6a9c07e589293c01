"""Bias correction and zero initialisation of Adam's averages: [notepad] Table 4.1, and correction as a schedule."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.shared.checks import learnt
from equipoise.lab.experiments.shared.figures import points
from equipoise.lab.experiments.shared.measured import Rotates
from equipoise.lab.experiments.shared.sweep import Turning, apart, by_seed, cost, seeds, stat, worse
from equipoise.lab.experiments.shared.tasks import METRICS, NEAR, TASKS, by_task, on_both
from equipoise.lab.experiments.shared.watched import hidden, watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.schedules import from_array
from equipoise.theory import bias_factor, eps_factor, first_step

BOTH, NO_BC, NO_ZI, NEITHER = "ZI, BC", "ZI, no BC", "no ZI, BC", "no ZI, no BC"
TORCH, AS_SCHEDULE, LR_ALONE = "torch's AdamW", "no BC, ρ(t)", "no BC, ρ(t) on lr alone"
SWITCHES: dict[str, dict[str, Any]] = {
    BOTH: {},
    NO_BC: {"bias_correction": False},
    NO_ZI: {"zero_init": False},
    NEITHER: {"zero_init": False, "bias_correction": False},
}
"""The four of Table 4.1: zero initialisation of the averages, or the first gradient; bias correction, or none."""

THESIS = {BOTH: 21.87, NO_BC: 21.93, NO_ZI: 22.83, NEITHER: 22.64}
"""Table 4.1: perplexity, four seeds, deviations of 0.04 to 0.15, at betas (.95, .95), lr 0.008, weight decay 0.1."""

TABLED = (0.95, 0.95)
PAIRS = ((0.9, 0.999), TABLED)
_NONE = (
    "[notepad] ch. 4: bias correction can be removed from AdamW with no adverse effects (perplexity 21.93 ± 0.04 "
    "instead of 21.87 ± 0.11)"
)
SAME = 1e-3
START, BEFORE = 0.037, 0.031
"""Of Table 4.1, shares: what a start at the first gradient costs, and by how much more than leaving correction out."""


@dataclass(frozen=True)
class _Size:
    bases: tuple[Trial, ...]
    pairs: tuple[tuple[float, float], ...]
    seeds: int


SIZES = {
    "smoke": _Size(on_both("smoke", {"lr": 3e-3, "steps": 12}, {"lr": 4e-3, "warmup": 4}), PAIRS, 1),
    "small": _Size(on_both("small", {"lr": 3e-3, "steps": 200}, {"lr": 4e-3, "steps": 120}), PAIRS, 3),
    "medium": _Size(on_both("medium", {}, {}), PAIRS, 3),
    "full": _Size(on_both("full", {"lr": 5e-2}, {"lr": 8e-3}), PAIRS, 5),
}  # fmt: skip
"""A trial for each task, with the lr that is about the best for AdamW; pairs of betas; seeds."""


def _tabled(name: str, says: str) -> dict[str, str]:
    """A statement of the table, which is of warmup and a cosine, by task; and carried over to a constant lr."""
    found = by_task(name, says)
    return found | {f"{key}-constant": f"{text}, carried over to a constant lr" for key, text in found.items()}


@final
class BiasCorrection(Rotates):
    """Four starts of Adam's averages, with and without a schedule, and bias correction made of a schedule."""

    name: ClassVar[str] = "bias-correction"
    source: ClassVar[str] = "[notepad] ch. 4, Table 4.1; [theory] 4"
    about: ClassVar[str] = "Does bias correction matter, does zero initialisation, and is the first a schedule?"
    statements: ClassVar[Mapping[str, str]] = {
        **_tabled("no-adverse", f"{_NONE}, at its betas of (.95, .95)"),
        **_tabled("no-adverse-default", f"{_NONE}, carried over to Adam's default betas, (.9, .999)"),
        **_tabled(
            "zero-better",
            "[notepad] Table 4.1: averages that start at zero do better than ones that start at the first gradient "
            "(perplexity 21.87 and 21.93, against 22.83 and 22.64)",
        ),
        **_tabled("start-over-correction", "[notepad] Table 4.1: bias correction matters less than initialisation"),
        **by_task(
            "schedule-hides",
            "[notepad] 4.1: with some betas the gap between correction and none is much greater, particularly without "
            "a learning rate schedule",
        ),
        "first-step": "[notepad] ch. 4: the first step is (1−β1)/√(1−β2) of sign(g) without correction, and the "
        "inverse "
        "with correction of averages that start at the first gradient",
        "is-a-schedule": "[theory] 4: Adam without correction, lr times ρ(t) and ε times √(1−β2^t), is Adam",
        **by_task("lr-alone", "[notepad] 4.1, ε ignored: ρ(t) on the learning rate alone is bias correction"),
    }

    def trials(self, preset: str) -> list[Trial]:
        """Every start, with warmup and cosine, and with a constant lr; the schedules of ρ; torch's AdamW."""
        size = SIZES[preset]
        found = []
        for base in size.bases:
            plain = watched(base.vary({"weight_decay": 0.1}))
            for shaped in (plain, plain.vary({"schedule": "constant", "warmup": 0})):
                for betas in size.pairs:
                    own = shaped.vary({"optimizer_options.betas": betas, "optimizer": "adamw_switches"})
                    found.append(own.vary({"optimizer": "adamw"}))
                    cases = [*SWITCHES.values(), *({**SWITCHES[NO_BC], "curves": c} for c in _curves(own))]
                    found += [own.vary({f"optimizer_options.{k}": v for k, v in c.items()}) for c in cases]
        return seeds(found, size.seeds)

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Rotation, sizes of the first updates, and what is reached without a network."""
        first = np.array([run.series("update", name).values[0] for name in hidden(run)])
        return {**super().measure(result, run), "first": first}

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Each start's metric and first step, and how far trajectories are from torch's AdamW."""
        found: dict[_Where, dict[str, list[Done]]] = {}
        for one in done:
            if one.result.status == "finished":
                found.setdefault(_Where.of(one.trial), {}).setdefault(_case(one.trial), []).append(one)
        rows = []
        for where, cases in found.items():
            for case, members in cases.items():
                rows.append({
                    "task": where.task, "betas": f"{where.betas}", "schedule": where.schedule, "averages": case,
                    "metric": METRICS[where.task].removeprefix("test_"), "value": stat(members, METRICS[where.task]),
                    "worse than ZI, BC": worse(members, cases.get(BOTH, [])),
                    "first step": _first(cases, case),
                    "distance to torch's": by_seed(members, cases.get(TORCH, []), apart),
                    "[notepad]": THESIS.get(case) if where.tabled else None,
                })  # fmt: skip
        claims = [claim for where, cases in found.items() for claim in _claims(where, cases)]
        return Outcome(rows, [*claims, *_hidden_by_schedules(found)], {"found": found})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """How much worse each start is, on both tasks; ρ(t); and distances to torch's AdamW over the steps."""
        axes = figure.subplots(2, 2)
        found: dict[_Where, dict[str, list[Done]]] = outcome.curves["found"]
        for axis, task in zip(axes[0], dict.fromkeys(where.task for where in found), strict=True):
            for place, (where, cases) in enumerate((w, c) for w, c in found.items() if w.task == task):
                stats = [worse(cases.get(case, []), cases.get(BOTH, [])) for case in list(SWITCHES)[1:]]
                at = np.arange(3) + 0.15 * (place - 1.5)
                points(axis, dict(zip(at, stats, strict=True)), ls="none", ms=4, label=where.label)
            axis.set_xticks(range(3), list(SWITCHES)[1:])
            axis.axhline(0, color="grey", lw=0.8)
            axis.set(title=f"{task}: worse than {BOTH}, share")
            axis.margins(y=0.25)  # room for the legend
            axis.legend(fontsize=7, loc="upper center", ncol=2)
        for betas in dict.fromkeys(where.betas for where in found):
            steps = np.unique(np.geomspace(1, 3000, 120).round())
            axes[1, 0].semilogx(steps, bias_factor(steps, betas), label=f"betas {betas}")
        axes[1, 0].set(title="ρ(t)", xlabel="step")
        axes[1, 0].set_ylim(0, 4.6)
        axes[1, 0].legend(fontsize=7)
        where = next(w for w in found if w.schedule == "constant")
        for case in (BOTH, AS_SCHEDULE, LR_ALONE, NO_BC):
            both = [found[where].get(name, []) for name in (case, TORCH)]
            if all(both):
                ours, theirs = (Turning.of(members[0]) for members in both)
                each = [np.abs(ours.layers[n] / theirs.layers[n] - 1) for n in ours.layers]
                axes[1, 1].semilogy(
                    ours.steps,
                    np.maximum(np.median(each, 0), 1e-9),
                    label=case,
                    ls="--" if case == AS_SCHEDULE else "-",
                )
        axes[1, 1].set(title=f"rotation, distance to torch's: {where.task}, {where.label}", xlabel="step")
        axes[1, 1].title.set_fontsize(9)
        axes[1, 1].legend(fontsize=7)


@final
@dataclass(frozen=True)
class _Where:
    """What starts are compared at."""

    task: str
    betas: tuple[float, float]
    schedule: str

    @staticmethod
    def of(trial: Trial) -> _Where:
        beta1, beta2 = trial.optimizer_options["betas"]
        return _Where(TASKS[trial.model], (beta1, beta2), trial.schedule)

    @property
    def label(self) -> str:
        return f"{self.betas}, {self.schedule}"

    @property
    def part(self) -> str:
        return "-".join([self.schedule, *(f"{b:g}" for b in self.betas)])

    @property
    def tabled(self) -> bool:
        return self.task == "text" and self.betas == TABLED and self.schedule == "cosine"


def _curves(trial: Trial) -> list[dict[str, Any]]:
    """ρ(t) on lr, with ε's own factor and decay kept as it was; and on lr alone."""
    betas = trial.optimizer_options["betas"]
    steps = np.arange(1, min(trial.steps, round(16 / (1 - max(betas)))) + 1)  # after that ρ is 1 to seven digits
    rho = bias_factor(steps, betas)
    lr = from_array(rho).to_dict()
    rest = {"eps": from_array(eps_factor(steps, betas)).to_dict(), "weight_decay": from_array(1 / rho).to_dict()}
    return [{"lr": lr, **rest}, {"lr": lr}]


def _case(trial: Trial) -> str:
    if trial.optimizer == "adamw":
        return TORCH
    options = trial.optimizer_options
    if "curves" in options:
        return AS_SCHEDULE if "eps" in options["curves"] else LR_ALONE
    return next(k for k, v in SWITCHES.items() if v == {n: x for n, x in options.items() if n != "betas"})


def _first(cases: Mapping[str, Sequence[Done]], case: str) -> Stat:
    """Size of the first update over that of zero initialisation and correction, mean over hidden layers."""
    return by_seed(
        cases.get(case, []), cases.get(BOTH, []),
        lambda x, y: float((x.measured["first"] / y.measured["first"]).mean()),
    )  # fmt: skip


def _claims(where: _Where, cases: Mapping[str, Sequence[Done]]) -> list[Claim]:
    if not (set(SWITCHES) | {TORCH, AS_SCHEDULE, LR_ALONE}) <= cases.keys():
        return []
    task, part, at = where.task, where.part, f"{where.task}, betas {where.label}"
    table, checks = "[notepad] Table 4.1", [learnt(cases[BOTH])]
    on = task if where.schedule == "cosine" else f"{task}-constant"
    bare = "no-adverse" if where.betas == TABLED else "no-adverse-default"
    found = [
        Claim(f"{bare}-{on}/{part}", f"{table}: 0.003", f"share by which no correction is worse: {at}", 0.0,
              worse(cases[NO_BC], cases[BOTH]), tolerance=NEAR[task], checks=checks),
        Claim(f"is-a-schedule/{task}-{part}", "[theory] 4",
              f"rotation, no correction and ρ(t) against correction: {at}", 0.0,
              by_seed(cases[AS_SCHEDULE], cases[BOTH], apart), tolerance=SAME),
        Claim(f"lr-alone-{task}/{part}", "[notepad] 4.1", f"rotation, ρ(t) on lr alone against correction: {at}", 0.0,
              by_seed(cases[LR_ALONE], cases[BOTH], apart), tolerance=SAME),
    ]  # fmt: skip
    if where.betas == TABLED:
        start, correction = _effects(cases)
        found += [
            Claim(f"zero-better-{on}/{part}", f"{table}: {START}",
                  f"share by which a start at the first gradient is worse: {at}", 0.0, Stat.of(list(start)), "above",
                  checks=checks, least=START / 2),
            Claim(f"start-over-correction-{on}/{part}", f"{table}: {BEFORE}",
                  f"effect of the start less that of correction, sizes: {at}", 0.0,
                  Stat.of(list(np.abs(start) - np.abs(correction))), "above", checks=checks, least=BEFORE / 2),
        ]  # fmt: skip
    if task == "vision" and where.schedule == "constant":
        for case, options in ((NO_BC, {"bias_correction": False}), (NO_ZI, {"zero_init": False})):
            expected = first_step(where.betas, **options)
            found.append(
                Claim(f"first-step/{task}-{part}-{case.replace(', ', '-').replace(' ', '-')}", "[notepad] ch. 4",
                      f"first update, {case}: {at}", expected, _first(cases, case), tolerance=0.02)
            )  # fmt: skip
    return found


def _effects(cases: Mapping[str, Sequence[Done]]) -> tuple[Array, Array]:
    """What the start at the first gradient costs, and leaving correction out, each mean over the other; by seed."""
    costs = {case: {d.trial.seed: cost(d) for d in cases[case]} for case in SWITCHES}
    shared = sorted(set.intersection(*(set(c) for c in costs.values())))
    of = {case: np.array([c[seed] for seed in shared]) for case, c in costs.items()}
    start = (of[NO_ZI] + of[NEITHER] - of[BOTH] - of[NO_BC]) / 2
    return start, (of[NO_BC] + of[NEITHER] - of[BOTH] - of[NO_ZI]) / 2


def _hidden_by_schedules(found: Mapping[_Where, Mapping[str, Sequence[Done]]]) -> list[Claim]:
    """The gap between correction and none, without a schedule less with one."""
    claims = []

    def gaps(cases: Mapping[str, Sequence[Done]]) -> dict[int, float]:
        costs = [{d.trial.seed: cost(d) for d in cases.get(case, [])} for case in (NO_BC, BOTH)]
        return {seed: abs(costs[0][seed] - costs[1][seed]) for seed in costs[0].keys() & costs[1].keys()}

    for where, cases in found.items():
        shaped = found.get(_Where(where.task, where.betas, "cosine"))
        if where.schedule == "constant" and shaped is not None:
            plain, with_schedule = gaps(cases), gaps(shaped)
            both = sorted(plain.keys() & with_schedule.keys())
            part = "-".join(f"{b:g}" for b in where.betas)
            claims.append(
                Claim(f"schedule-hides-{where.task}/{part}", "[notepad] 4.1",
                      f"gap between correction and none, constant lr less warmup and cosine: {where.task}, betas "
                      f"{where.betas}", 0.0, Stat.of([plain[s] - with_schedule[s] for s in both]), "above",
                      checks=[learnt(cases.get(BOTH, []))], least=NEAR[where.task])
            )  # fmt: skip
    return claims
