"""Policies: ways to choose a setting for a workload. Each is trained as a trial and judged by its regret.

A policy is a function of the workload and of what is known of other workloads. One's own goes into `POLICIES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import Workload
from equipoise.theory import advice

Tuned = Mapping[str, Trial]
"""The best known setting of each workload whose grid is done, by the workload's name."""

Choose = Callable[[Workload, Tuned], Trial | None]


@final
@dataclass(frozen=True)
class Policy:
    """A way to choose a setting.

    Attributes:
        name: short, as in tables.
        about: what it does and where it is from.
        choose: (workload, tuned settings of others) → the trial; None where the policy has nothing to say, or not yet.
    """

    name: str
    about: str
    choose: Choose


HABITS: dict[str, tuple[tuple[float, float, str], ...]] = {
    "adamw": ((1e-3, 0.01, "torch's lr and decay, with a schedule"), (3e-4, 0.1, "GPT-3, LLaMA and most since")),
    "sgdm": ((0.1, 5e-4, "Wide ResNets on CIFAR"), (0.1, 1e-4, "ResNets on ImageNet")),
    "lion": ((1e-4, 1.0, "the paper: AdamW's lr / 10, decay × 10"), (1e-4, 0.1, "the same lr, AdamW's decay")),
    "muon": ((0.02, 0.01, "its authors' package"), (0.02, 0.1, "the same with the decay of GPTs")),
}
"""Learning rate and weight decay that people take first, by optimizer, and whose habit it is."""

_DEFAULTS: dict[str, Mapping[str, object]] = {
    "adamw": {"lr": 1e-3, "weight_decay": 0.01, "optimizer_options": {}},
    "sgdm": {"lr": 1e-3, "weight_decay": 0.0, "optimizer_options": {"momentum": 0.0}},
    "muon": {"lr": 1e-3, "weight_decay": 0.1},
    "lion": {"lr": 1e-4, "weight_decay": 0.0},
}


def defaults(workload: Workload, _: Tuned) -> Trial:
    """The optimizer as its library has it, at a constant lr: torch's, of Lion lucidrains' and equipoise's."""
    given = _DEFAULTS[workload.trial.optimizer]
    return workload.trial.vary({**given, "schedule": "constant", "warmup": 0})


def _habit(place: int) -> Choose:
    def choose(workload: Workload, _: Tuned) -> Trial:
        lr, decay = HABITS[workload.trial.optimizer][place][:2]
        return workload.at(lr, decay)

    return choose


def _timescale(wanted: Callable[[Workload], float | None], *, tuned: bool) -> Choose:
    """The decay with which 1/(lr·wd) is so many steps; the lr is the first habit's, or the sweep's best."""

    def choose(workload: Workload, known: Tuned) -> Trial | None:
        steps = wanted(workload)
        if steps is None or (tuned and workload.name not in known):
            return None
        lr = known[workload.name].lr if tuned else HABITS[workload.trial.optimizer][0][0]
        return workload.at(lr, workload.decay(lr, workload.trial.steps / steps))

    return choose


def memory_steps(workload: Workload) -> float:
    """Steps of a run of less than an epoch, or those of one epoch of a longer one."""
    return workload.trial.steps / max(1.0, workload.epochs)


def epoch_timescale(workload: Workload) -> float:
    """Between one epoch and all: the geometric middle. Less than an epoch is one of what is seen."""
    return workload.trial.steps / math.sqrt(max(1.0, workload.epochs))


def power_lines(workload: Workload) -> float | None:
    """A share of the run by tokens per parameter; for texts from scratch."""
    if workload.kind not in ("text", "text repeated"):
        return None
    trial = workload.trial
    tokens = trial.steps * trial.batch_size * trial.data_options["length"]
    return trial.steps * advice.power_lines_timescale(tokens, workload.parameters)


def _moved(code: str) -> Choose:
    """The proxy's best setting, moved by a rule of `advice.transfer`."""

    def choose(workload: Workload, known: Tuned) -> Trial | None:
        from equipoise.lab.workloads.catalogue import WORKLOADS

        if workload.proxy not in known:
            return None
        proxy, best = WORKLOADS[workload.proxy], known[workload.proxy]
        a, b = proxy.trial, workload.trial
        change = advice.Change(
            steps=b.steps / a.steps, batch=b.batch_size / a.batch_size,
            data=b.steps * b.batch_size / (a.steps * a.batch_size), width=_width(workload) / _width(proxy),
        )  # fmt: skip
        old = advice.Hyperparameters(best.lr, best.weight_decay, tuple(a.optimizer_options["betas"]))
        for moved in advice.transfer(old, change):
            if moved.rule.code == code:
                to, betas = moved.to, [round(beta, 6) for beta in moved.to.betas]
                options: dict[str, object] = {"betas": betas}
                if to.eps != old.eps:
                    options["eps"] = to.eps
                return workload.at(float(f"{to.lr:.4g}"), float(f"{to.weight_decay:.4g}"), optimizer_options=options)
        return None

    return choose


USUAL, MORE = 0.1, 30.0
"""The usual weight decay, and how many times it [kim2025] found best where data repeats, at the most."""


def _repeated(workload: Workload, _: Tuned) -> Trial | None:
    """The habit's lr with 30 times the usual decay, where data repeats."""
    if workload.trial.optimizer != "adamw" or workload.epochs <= 2 or workload.kind == "fine-tuning":
        return None
    return workload.at(HABITS["adamw"][0][0], USUAL * MORE)


def _beta2_by_tokens(workload: Workload, known: Tuned) -> Trial | None:
    """The proxy's best setting, and a β2 that averages over as many tokens."""
    if workload.proxy not in known:
        return None
    from equipoise.lab.workloads.catalogue import WORKLOADS

    ratio = workload.trial.batch_size / WORKLOADS[workload.proxy].trial.batch_size
    if ratio == 1:
        return None
    best = known[workload.proxy]
    first, second = best.optimizer_options["betas"]
    return workload.at(best.lr, best.weight_decay, optimizer_options={"betas": [first, round(second**ratio, 6)]})


def _width(workload: Workload) -> float:
    from equipoise.lab.models.gpt import SIZES

    return SIZES[workload.trial.model_options["size"]][1]


def _kept(workload: Workload, known: Tuned) -> Trial | None:
    """The proxy's best lr and decay as they are."""
    if workload.proxy not in known:
        return None
    return workload.at(known[workload.proxy].lr, known[workload.proxy].weight_decay)


_TIMESCALES: dict[str, Callable[[Workload], float | None]] = {
    "memory-steps": memory_steps, "epoch-timescale": epoch_timescale, "power-lines": power_lines,
}  # fmt: skip

FIRST = (
    Policy("defaults", "the library's lr and weight decay, no schedule", defaults),
    Policy("habit", "the field's first habit, with the workload's schedule", _habit(0)),
    Policy("other habit", "the field's second habit, with the workload's schedule", _habit(1)),
)
"""What needs no thought; trained first."""


def _followed(first: Policy) -> Policy:
    """A policy after what the plan's findings ask for."""

    def choose(workload: Workload, known: Tuned) -> Trial | None:
        from equipoise.lab.workloads.follow import followed
        from equipoise.lab.workloads.plans import read

        trial = first.choose(workload, known)
        return None if trial is None or workload.name not in read() else followed(workload, trial)

    return Policy(f"{first.name}, findings followed", f"{first.about}, then what `eq.plan` asks for", choose)


FOLLOWED = tuple(_followed(first) for first in FIRST)
"""What needs no thought, after the plan's findings; trained right after it."""


def suggested(workload: Workload, _: Tuned) -> Trial | None:
    """lr, weight decay and betas of `eq.suggest`; what Muon leaves to AdamW stays as the workload has it."""
    from equipoise.lab.workloads.plans import plan_of, read
    from equipoise.planner.suggestions.suggestion import OPTIMIZERS, suggest_setting

    if workload.trial.optimizer not in OPTIMIZERS or workload.name not in read():
        return None
    found = suggest_setting(plan_of(workload, workload.at(workload.lrs[0], 1e-3)).setting)
    betas = list(found.setting.groups[found.setting.main_group].dynamics.betas)
    options = {"betas": betas} if found.optimizer == "adamw" else {}
    return workload.at(found.lr, found.weight_decay, optimizer_options={**workload.trial.optimizer_options, **options})


RULES = (
    *(
        Policy(f"{code}, habit's lr", advice.RULES[code].says, _timescale(rule, tuned=False))
        for code, rule in _TIMESCALES.items()
    ),
    *(
        Policy(f"{code}, best lr", advice.RULES[code].says, _timescale(rule, tuned=True))
        for code, rule in _TIMESCALES.items()
    ),
    Policy("repeated-decay, habit's lr", "30 times the usual decay where data repeats", _repeated),
    Policy(
        "beta2-tokens from proxy", "β2' = β2^(batch ratio), so that v averages over as many tokens", _beta2_by_tokens
    ),
    Policy("proxy's setting as it is", "the best setting of a workload that differs in one respect", _kept),
    *(
        Policy(f"{code} from proxy", advice.RULES[code].says, _moved(code))
        for code in ("memory-steps", "epoch-timescale", "power-lines", "width-product", "width-root", "complete-p")
    ),
)
"""The rules of `equipoise.theory.advice`, each as its source has it."""

SUGGEST = Policy("suggest", "`eq.suggest` without a pilot", suggested)
"""Judged between stored trials (`suggested`), and so not among those that sweeps train."""

POLICIES = {policy.name: policy for policy in (*FIRST, *FOLLOWED, *RULES)}
"""By name, in the order of tables. One's own may be added."""
