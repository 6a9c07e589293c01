"""What the schedules that are made for equal memory do for the final loss: [memory-article] Eq. 16 and 17."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.checks import baseline, fair
from equipoise.lab.experiments.shared.figures import lr_axis, points
from equipoise.lab.experiments.shared.sweep import Setting, by_seed, by_setting, gap, seeds, stat, tuned
from equipoise.lab.experiments.shared.tasks import BOTH, DIGITS, TEXT, by_task
from equipoise.lab.experiments.shared.watched import curve, hidden, watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run

SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"schedule": "constant"},
    "cosine": {"schedule": "cosine"},
    "linear": {"schedule": "linear"},
    "wsd": {"schedule": "wsd"},
    "Eq. 16": {"schedule": "equal_memory"},
    "Eq. 17": {"schedule": "equal_memory_tied"},
    "curriculum": {"schedule": "curriculum", "schedule_options": {"parts": (1.0, 3.0, 1.0), "first": 0.5}},
}
EQUAL, ENDED = ("Eq. 16", "Eq. 17"), ("cosine", "linear", "wsd")
"""Those of the article, which need no last step; and those that fall to zero at a last step known in advance."""

METRIC = "test_loss"
LEAST = 0.01
"""What of a loss matters, nats; ours."""


@dataclass(frozen=True)
class _Task:
    base: Trial
    lrs: tuple[float, ...]


@dataclass(frozen=True)
class _Size:
    tasks: dict[str, _Task]
    seeds: int


_VISION = DIGITS.vary({"data_options.test": 0.5, "batch_size": 32, "weight_decay": 1.0})
_TEXT = TEXT.vary({"weight_decay": 1.0, "data_options.length": 32, "batch_size": 8})
SIZES = {
    "smoke": _Size({
        "vision": _Task(_VISION.vary({"steps": 12, "warmup": 2, "batch_size": 8, "model_options.width": 16}), (1e-2,)),
        "text": _Task(_TEXT.vary({"steps": 12, "warmup": 2, "batch_size": 8, "data_options.size": 20_000}), (1e-2,)),
    }, 1),
    "small": _Size({
        "vision": _Task(_VISION, (1e-3, 3e-3, 1e-2, 3e-2)), "text": _Task(_TEXT, (1.25e-3, 2.5e-3, 5e-3, 1e-2)),
    }, 5),
    "medium": _Size({
        "vision": _Task(BOTH["medium"][0].vary({"weight_decay": 1.0}), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)),
        "text": _Task(BOTH["medium"][1].vary({"weight_decay": 0.5}), (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2)),
    }, 3),
    "full": _Size({
        "vision": _Task(BOTH["full"][0].vary({"weight_decay": 0.05}), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)),
        "text": _Task(BOTH["full"][1].vary({"weight_decay": 0.1}), (3e-4, 1e-3, 3e-3, 1e-2)),
    }, 5),
}  # fmt: skip
"""For each task: the trial, learning rates; and seeds."""


@final
class SchedulesExperiment(Experiment):
    """Every schedule at its best learning rate, weight decay being the same."""

    name: ClassVar[str] = "schedules"
    source: ClassVar[str] = "[memory-article] Eq. 16 and 17"
    about: ClassVar[str] = "Do schedules by which every batch counts the same end at a lower loss?"
    statements: ClassVar[Mapping[str, str]] = {
        **by_task(
            "optimal",
            "[memory-article] 'Optimal Schedule': Eq. 16 and 17 are optimal, as every batch counts the "
            "same (no run was made); here: their loss against schedules that fall to zero at the end",
        ),
        **by_task(
            "endless",
            "[memory-article] after Eq. 16: it needs no preset end and trains on as long as one likes, "
            "as the stable stage of WSD; here: its loss against a constant learning rate's",
        ),
        "collapse": "[memory-article] after Eq. 16: at constant weight decay the weights may collapse as lr → 0, which "
        "Eq. 17 mends; here: the norm of hidden weights at the end",
        **by_task("tied", "[memory-article] Eq. 17: it mends Eq. 16; here: its loss against Eq. 16's"),
    }

    def trials(self, preset: str) -> list[Trial]:
        """Tasks × schedules × learning rates."""
        size, found = SIZES[preset], []
        for task in size.tasks.values():
            base = watched(task.base, 10)
            found += [base.vary({"lr": lr, **s}) for s in SCHEDULES.values() for lr in task.lrs]
        return seeds(found, size.seeds)

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Last norm of hidden layers over the initial one, geometric mean; and what is reached without a network."""
        ratios = [curve(run, "norm", n)[1][-1] / run.tensors[n].info["init_norm"] for n in hidden(run)]
        return {"norm": float(np.exp(np.mean(np.log(ratios)))), "baseline": baseline(result.trial)}

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """The loss of each schedule at its best learning rate, and over learning rates for the figure."""
        names = {s["schedule"]: name for name, s in SCHEDULES.items()}
        rows: list[dict[str, Any]] = []
        claims: list[Claim] = []
        curves: dict[str, Any] = {}
        for task in ("vision", "text"):
            mine = [d for d in done if (d.trial.model == "gpt") == (task == "text")]
            best = {names[key[0]]: v for key, v in tuned(mine, ["schedule"], METRIC, lowest=True).items()}
            rows += [_row(task, name, best[name]) for name in SCHEDULES if name in best]
            claims += _claims(
                task, best, {names[k[0]]: by_setting(v, ["lr"]) for k, v in by_setting(mine, ["schedule"]).items()}
            )
            if EQUAL[0] in best:
                claims.append(_collapse(task, mine, best[EQUAL[0]][0].trial.lr))
            curves[task] = {
                names[key[0]]: {lr: stat(v, METRIC) for (lr,), v in sorted(by_setting(own, ["lr"]).items())}
                for key, own in by_setting(mine, ["schedule"]).items()
            }
        return Outcome(rows, claims, curves)

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Loss over the learning rate; and at the best one."""
        axes = figure.subplots(2, 2)
        for line, (task, found) in zip(axes, outcome.curves.items(), strict=True):
            for name, values in found.items():
                kept = {lr: s for lr, s in values.items() if s.count}
                line[0].plot(list(kept), [s.mean for s in kept.values()], "o-", ms=3, lw=1, label=name)
            lr_axis(line[0], (lr for v in found.values() for lr in v), title=f"{task}: test loss over lr", xlabel="lr")
            mine = [row for row in outcome.rows if row["task"] == task]
            points(line[1], {row["schedule"]: row["test loss"] for row in mine}, ls="none")
            line[1].tick_params(axis="x", labelsize=7)
            line[1].set(title=f"{task}: at the best lr")
        axes[0, 0].legend(fontsize=7)


def _row(task: str, name: str, own: Sequence[Done]) -> dict[str, Any]:
    trial = own[0].trial
    return {
        "task": task, "schedule": name, "best lr": trial.lr, "wd": trial.weight_decay,
        "lr·wd·steps": trial.lr * trial.weight_decay * trial.steps, "test loss": stat(own, METRIC),
        "test accuracy": stat(own, "test_accuracy"), "train loss": stat(own, "train_loss"),
        "last norm / initial": Stat.of([d.measured["norm"] for d in own]),
    }  # fmt: skip


def _collapse(task: str, done: Sequence[Done], lr: float) -> Claim:
    """The claim about collapsing norms, at one lr for both, as norms depend on lr first of all."""
    own = {key[0]: v for key, v in by_setting([d for d in done if d.trial.lr == lr], ["schedule"]).items()}
    first, second = (own.get(SCHEDULES[name]["schedule"], []) for name in EQUAL)
    larger = by_seed(second, first, lambda a, b: a.measured["norm"] / b.measured["norm"])
    return Claim(f"collapse/{task}", "[memory-article]", f"{task}: last norm of hidden layers at the best lr of Eq. "
                                                         f"16, "
                 "Eq. 17 over Eq. 16", 1.0, larger, "above")  # fmt: skip


def _claims(
    task: str, best: Mapping[str, Sequence[Done]], sweeps: Mapping[str, Mapping[Setting, Sequence[Done]]]
) -> list[Claim]:  # fmt: skip
    source, found = "[memory-article]", []

    def checks(mine: str, other: str) -> list[Check]:
        return fair(METRIC, other, {name: (best[name], sweeps[name]) for name in (mine, other)})

    for mine in (x for x in EQUAL if x in best):
        for other in (x for x in ENDED if x in best):
            found.append(Claim(f"optimal-{task}/{mine}-{other}", source, f"{task}: test loss, {mine} less {other}", 0.0,
                               gap(best[mine], best[other], METRIC), "below", checks=checks(mine, other),
                               least=LEAST))  # fmt: skip
        if "constant" in best:
            found.append(Claim(f"endless-{task}/{mine}", source, f"{task}: test loss, {mine} less constant", 0.0,
                               gap(best[mine], best["constant"], METRIC), "below",
                               checks=checks(mine, "constant"), least=LEAST))  # fmt: skip
    if all(x in best for x in EQUAL):
        first, second = (best[x] for x in EQUAL)
        found.append(Claim(f"tied-{task}", source, f"{task}: test loss, Eq. 17 less Eq. 16", 0.0,
                           gap(second, first, METRIC), "below", checks=checks(EQUAL[1], EQUAL[0]),
                           least=LEAST))  # fmt: skip
    return found
