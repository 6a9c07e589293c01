"""Adam then SGD, and SGD then Adam, switched in the middle of a run: [notepad] 3.2."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.shared.checks import inside, learnt, on_validation, rotates
from equipoise.lab.experiments.shared.measured import Rotates
from equipoise.lab.experiments.shared.noisy import NOISY, is_noisy, not_by_heart
from equipoise.lab.experiments.shared.sweep import (
    Turning,
    best,
    by_seed,
    by_setting,
    diverged,
    finished,
    seeds,
    stat,
    worse,
)
from equipoise.lab.experiments.shared.tasks import METRICS, NEAR, TASKS, by_task, on_both
from equipoise.lab.experiments.shared.watched import watched
from equipoise.lab.report.claims import Claim
from equipoise.lab.statistics import Check
from equipoise.lab.train.trial import Trial

ALONE = {"adamw": "Adam", "sgdm": "SGD"}
ORDERS = {"Adam, SGD": ("adamw", "sgdm"), "SGD, Adam": ("sgdm", "adamw")}


@dataclass(frozen=True)
class _Task:
    base: Trial
    lrs: dict[str, tuple[float, ...]]
    decays: dict[str, float]
    chosen: dict[str, float]


@dataclass(frozen=True)
class _Size:
    tasks: tuple[_Task, ...]
    settling: _Task | None
    at: tuple[float, ...]
    seeds: int


def _tasks(
    bases: tuple[Trial, Trial], vision: dict[str, tuple[float, ...]], text: dict[str, tuple[float, ...]],
    decays: tuple[dict[str, float], dict[str, float]], chosen: tuple[dict[str, float], dict[str, float]],
) -> tuple[_Task, _Task]:  # fmt: skip
    return _Task(bases[0], vision, decays[0], chosen[0]), _Task(bases[1], text, decays[1], chosen[1])


_DECAYS = ({"adamw": 10.0, "sgdm": 5e-3}, {"adamw": 0.1, "sgdm": 0.0})
_CHOSEN = ({"adamw": 3e-3, "sgdm": 0.1}, {"adamw": 4e-3, "sgdm": 0.03})
"""The best of the sweeps of each alone, at `small`."""

_RATES = {"adamw": 1e-2, "sgdm": 0.1}
_SETTLING = _Task(NOISY, {n: (lr,) for n, lr in _RATES.items()}, {"adamw": 1.0, "sgdm": 1e-2}, _RATES)
"""Noisy labels at a constant lr, with so much decay that both settle well before the end."""

SIZES = {
    "smoke": _Size(_tasks(
        on_both("smoke", {"steps": 24}, {}), {"adamw": (3e-3,), "sgdm": (0.1,)}, {"adamw": (4e-3,), "sgdm": (0.03,)},
        _DECAYS, _CHOSEN,
    ), _Task(NOISY.vary({"steps": 60, "data_options.samples": 4000}), _SETTLING.lrs, _SETTLING.decays, _RATES),
       (0.25, 0.5), 1),
    "small": _Size(_tasks(
        on_both("small", {"steps": 240}, {"steps": 120}), {"adamw": (1e-3, 3e-3, 1e-2), "sgdm": (0.03, 0.1, 0.3)},
        {"adamw": (2e-3, 4e-3, 8e-3), "sgdm": (0.01, 0.03, 0.1, 0.3)}, _DECAYS, _CHOSEN,
    ), None, (0.25, 0.5), 3),
    "medium": _Size(_tasks(
        on_both("medium", {}, {"optimizer_options": {}}),
        {"adamw": (1e-3, 3e-3, 1e-2, 3e-2), "sgdm": (0.01, 0.03, 0.1, 0.3)},
        {"adamw": (5e-3, 1e-2, 2e-2), "sgdm": (0.03, 0.1, 0.3, 1.0)},
        ({"adamw": 0.1, "sgdm": 5e-4}, {"adamw": 0.1, "sgdm": 0.0}),
        ({"adamw": 3e-3, "sgdm": 0.03}, {"adamw": 1e-2, "sgdm": 0.1}),
    ), _SETTLING, (0.25, 0.5), 3),
    "full": _Size(_tasks(
        on_both("full", {}, {"optimizer_options": {}}), {"adamw": (1e-2, 5e-2), "sgdm": (0.25, 0.5)},
        {"adamw": (1e-3, 5e-3), "sgdm": (0.1, 0.3, 1.0)}, ({"adamw": 1e-2, "sgdm": 1e-4}, {"adamw": 0.5, "sgdm": 0.0}),
        ({"adamw": 5e-2, "sgdm": 0.5}, {"adamw": 5e-3, "sgdm": 0.1}),
    ), _SETTLING, (0.1, 0.25, 0.5, 0.75), 5),
}  # fmt: skip
"""For each task: the trial, lrs and decay of both alone, the lrs that a switch has; the same where rotation settles;
when to switch; seeds."""


@final
class SwitchOver(Rotates):
    """Each alone at its best lr, and both orders, switched at a share of the steps."""

    name: ClassVar[str] = "switch"
    source: ClassVar[str] = "[notepad] 3.2"
    about: ClassVar[str] = "Adam then SGD, or SGD then Adam: is either better than one alone?"
    statements: ClassVar[Mapping[str, str]] = {
        **by_task("sgd-first", "[notepad] 3.2, of another paper: SGD2Adam has some advantage (here: over Adam alone)"),
        **by_task("adam-first", "open question of [notepad] 3.2: Adam2SGD; the hypothesis is that it beats SGD alone"),
        **by_task("adam-last", "hypothesis, from the two above: SGD2Adam beats Adam2SGD"),
        "second-decides": "theory: norm and rotation relax to the second optimizer's own, so that late in the run "
        "layers rotate as if it had been alone",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Each alone over its learning rates; and both orders."""
        size = SIZES[preset]
        found = []
        for task in (*size.tasks, *([size.settling] if size.settling else [])):
            steps = task.base.steps
            base = watched(task.base, 60)
            for name, lrs in task.lrs.items():
                found += [base.vary({"optimizer": name, "lr": lr, "weight_decay": task.decays[name]}) for lr in lrs]
            for first, second in ORDERS.values():
                each = {
                    place: {"optimizer": name, "lr": task.chosen[name], "weight_decay": task.decays[name]}
                    for place, name in (("first", first), ("second", second))
                }
                # The switch's own lr and decay are what its two parts would have by default.
                own = base.vary({"optimizer": "switch", "lr": task.chosen[first], "weight_decay": task.decays[first]})
                at = size.at[:1] if task is size.settling else size.at
                found += [own.vary({"optimizer_options": {**each, "at": round(x * steps)}}) for x in at]
        return seeds(found, size.seeds)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Each alone at its best lr, and the switches against them."""
        rows: list[dict[str, Any]] = []
        claims: list[Claim] = []
        curves: dict[str, Any] = {}
        ended = [d for d in done if d.result.status != "failed" and not is_noisy(d.trial)]
        for (model,), own in by_setting(ended, ["model"]).items():
            task = TASKS[model]
            metric = METRICS[task]
            alone: dict[str, list[Done]] = {}
            for name in ALONE:
                lrs = by_setting([d for d in own if d.trial.optimizer == name], ["lr"])
                top = best(lrs, metric, lowest=task == "text")
                if top is not None:
                    alone[name] = lrs[top]
            switched = {
                (_order(members[0].trial), key[2]): members
                for key, members in by_setting(
                    [d for d in own if d.trial.optimizer == "switch"],
                    ["model", "lr", "optimizer_options.at"],
                ).items()
            }
            for name, members in alone.items():
                rows.append(_row(task, ALONE[name], None, members, alone))
            rows += [_row(task, order, at, members, alone) for (order, at), members in switched.items()]
            claims += _claims(task, own, alone, switched)
            curves[task] = (own, alone, switched)
        return Outcome(rows, [*claims, *_settled([d for d in done if is_noisy(d.trial)])], {"tasks": curves})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Results of both alone over lr, and of the switches; rotation over the steps."""
        axes = figure.subplots(2, 2, squeeze=False)
        colours = {"adamw": "tab:blue", "sgdm": "tab:orange", "Adam, SGD": "tab:green", "SGD, Adam": "tab:red"}
        for line, (task, (_, alone, switched)) in zip(axes, outcome.curves["tasks"].items(), strict=False):
            labelled = [(ALONE[name], colours[name], members) for name, members in alone.items()]
            labelled += [(f"{order} at {at}", colours[order], members) for (order, at), members in switched.items()]
            stats = [stat(members, METRICS[task]) for _, _, members in labelled]
            for place, ((_, colour, _), s) in enumerate(zip(labelled, stats, strict=True)):
                line[0].errorbar([s.mean], [place], xerr=np.nan_to_num([s.std]), fmt="o", color=colour, capsize=3)
            line[0].set_yticks(range(len(labelled)), [label for label, _, _ in labelled])
            line[0].invert_yaxis()
            line[0].set(title=f"{task}: {METRICS[task].replace('_', ' ')}")
            shown = [*((ALONE[n], colours[n], m) for n, m in alone.items())]
            shown += [(f"{o} at {a}", colours[o], m) for (o, a), m in switched.items() if a == _middle(switched)]
            for label, colour, members in shown:
                if not finished(members):
                    continue
                turning = Turning.of(finished(members)[0])
                mean = np.mean(list(turning.layers.values()), 0)
                line[1].semilogy(turning.steps[:-1], mean[:-1], color=colour, lw=1, label=label)
            line[1].set(title=f"{task}: rotation, mean over layers", xlabel="step")
            line[1].legend(fontsize=7)


def _middle(switched: Mapping[tuple[str, int], Any]) -> int | None:
    return max((at for _, at in switched), default=None)


def _order(trial: Trial) -> str:
    pair = tuple(trial.optimizer_options[place]["optimizer"] for place in ("first", "second"))
    return next(order for order, names in ORDERS.items() if names == pair)


def _row(
    task: str, name: str, at: int | None, members: Sequence[Done], alone: Mapping[str, Sequence[Done]]
) -> dict[str, Any]:
    return {
        "task": task, "optimizer": name, "switched at": at, "steps": members[0].trial.steps,
        "lr": members[0].trial.lr if at is None else None, "metric": METRICS[task].removeprefix("test_"),
        "value": stat(members, METRICS[task]), "train loss": stat(members, "train_loss"),
        "diverged": diverged(members),
        **{f"worse than {ALONE[n]}": worse(members, alone.get(n, [])) for n in ALONE},
    }  # fmt: skip


def _claims(
    task: str, own: Sequence[Done], alone: Mapping[str, Sequence[Done]],
    switched: Mapping[tuple[str, int], Sequence[Done]],
) -> list[Claim]:  # fmt: skip
    claims = []

    def checks(*names: str) -> list[Check]:
        """That something was learnt, and what each alone needs, whose lr was chosen."""
        found = [learnt(*alone.values())]
        for name in names:
            sweep = by_setting([d for d in own if d.trial.optimizer == name], ["lr"])
            found.append(inside(alone.get(name, []), sweep, ALONE[name]))
        return [*found, on_validation(own, METRICS[task])]

    for (order, at), members in switched.items():
        against, statement = ("adamw", "sgd-first") if order == "SGD, Adam" else ("sgdm", "adam-first")
        where = f"{task}, switched at {at}"
        claims.append(
            Claim(f"{statement}-{task}/{at}", "[notepad] 3.2", f"share by which {order} is worse than "
                                                               f"{ALONE[against]}: "
                  f"{where}", 0.0, worse(members, alone.get(against, [])), "below", checks=checks(against),
                  least=NEAR[task])
        )  # fmt: skip
        other = switched.get(("Adam, SGD", at), [])
        if order == "SGD, Adam":
            claims.append(
                Claim(f"adam-last-{task}/{at}", "hypothesis",
                      f"share by which SGD, Adam is worse than Adam, SGD: {where}", 0.0, worse(members, other), "below",
                      checks=checks(*ALONE), least=NEAR[task])
            )  # fmt: skip
    return claims


def _settled(done: Sequence[Done]) -> list[Claim]:
    """Late rotation after a switch over that of the second optimizer alone, where both settle at a constant lr."""
    alone = by_setting([d for d in done if d.trial.optimizer in ALONE], ["optimizer"])
    switched: dict[str, list[Done]] = {}
    for d in done:
        if d.trial.optimizer == "switch":
            switched.setdefault(_order(d.trial), []).append(d)
    found = []
    for order, members in switched.items():
        second = ORDERS[order][1]
        same = alone.get((second,), [])
        found.append(
            Claim(f"second-decides/{order.replace(', ', '-')}", "theory",
                  f"late rotation of {order} over {ALONE[second]}'s alone, noisy labels, constant lr", 1.0,
                  by_seed(members, same, lambda x, y: Turning.of(x).mean / Turning.of(y).mean), tolerance=0.1,
                  checks=[rotates(same, f"late rotation of {second} alone over theory's"), not_by_heart(same)])
        )  # fmt: skip
    return found
