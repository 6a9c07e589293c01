"""The numbers of a suggestion, each with its reason: lr, weight decay, betas."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from equipoise.planner.checks.paying import ONCE, REPEATED, SHRINK_ONCE, SHRINK_REPEATED, learnt_by_most
from equipoise.planner.planning import plan_setting
from equipoise.planner.setting import Group, Setting
from equipoise.planner.travel import GROWS_TO
from equipoise.theory import advice

STEPS = {"adamw": 0.04, "lion": 0.04, "muon": 0.1}
"""A step at the peak, over the `Travel.scale` of the median layer: its initial norm, if it does not start small."""

FINETUNED = 0.35
"""Distance from the pretrained weights at the end, over their norm: `checks.paying.LEARNT_GOAL` of short runs."""

WARMUP = 0.05
"""Of the steps: what the workloads have."""

SCHEDULE, SCHEDULE_FINETUNED = "wsd", "cosine"
"""Which of a plateau with a linear fall over the last fifth, and a cosine, ended lower on the choosing half."""

PROBE = 0.01
"""How far a run of the probe's lr goes: far enough for float64, and so little that norms stay."""

MANY_TOKENS = 10.0
"""Tokens per parameter from which [power-lines] sets the decay of a text: the workloads have 4 at most."""

AVERAGED = 40
"""Steps of a run over the steps that m averages, at least: a run of 200 steps lost 5 % by β1 = 0.9 (docs/log.md)."""

TEXT_BETA2 = 0.95
"""Of AdamW on texts, as the workloads have it."""


def why_lr(s: Setting) -> str:
    """Why lr is what it is."""
    name = s.groups[s.main_group].dynamics.optimizer
    if s.finetune:
        far = learnt_by_most(plan_setting(undecayed(s))) or 0.0
        return (
            f"the median layer ends {far:.2g}× its initial norm from the pretrained weights, if gradients are a random "
            "walk. Tried with small GPTs alone: large models are often tuned with a tenth of this, so try that too"
        )
    if name not in STEPS:
        return "where a pilot begins: no weights tell how large gradients are"
    return (
        f"a step at the peak moves the median layer by {100 * STEPS[name]:g} % of its initial norm (of RMS "
        f"{GROWS_TO:g}/√inputs if it starts smaller), if gradients are a random "
        f"walk{'' if s.steps <= 2000 else '. Tried in runs of 200 to 1600 steps; longer ones may want less'}"
    )


def why_schedule(s: Setting) -> str:
    """Why the schedule is what it is."""
    name = "" if s.source is None else s.source["name"]
    if name == SCHEDULE:
        return "on 6 of 7 workloads it ended 2 to 7 % lower than a cosine, at the same lr; lr is its peak"
    return "lr is its peak" + ("; fine-tuning ended lower so" if s.finetune and name == SCHEDULE_FINETUNED else "")


def undecayed(s: Setting) -> Setting:
    """A setting without decay, at an lr that does not matter."""
    return replace(s, groups=tuple(replace(g, weight_decay=0.0, lr=1e-3) for g in s.groups))


def lr_of(base: Setting, optimizer: str) -> float | None:
    """The lr of an optimizer, to two digits; None where it has no matrix to tell it by.

    A random walk goes learnt = c·lr·√Σf², f the schedule. c is found with an lr so small that norms stay.
    """
    lr, learnt = 1e-3, None
    for _ in range(2):  # once to see how far this lr goes, once with one that goes as far as the probe should
        at = replace(base, groups=tuple(replace(g, lr=lr) for g in base.groups))
        learnt = learnt_by_most(plan_setting(at), optimizer)
        if not learnt:
            return None
        lr, last = lr * PROBE / learnt, lr
    factor = base.schedule.values(base.steps)
    goal = FINETUNED if base.finetune else STEPS[optimizer] * float(np.sqrt(np.square(factor).sum()))
    return float(f"{goal * last / learnt:.2g}") if learnt else None  # pyright: ignore[reportPossiblyUnboundVariable]


def with_betas(s: Setting, g: Group) -> Group:
    """A group of AdamW with the betas of a text, and averages that are short enough for a short run."""
    if g.dynamics.optimizer != "adamw":
        return g
    first, second = g.dynamics.betas
    if s.tokens_per_sample is not None:
        second = min(second, TEXT_BETA2)
    share = min(AVERAGED / s.steps, 0.5)
    if first > 1 - share:
        first = round(1 - share, 3)
        second = min(second, round(1 - share / 2, 3)) if s.tokens_per_sample is not None else second
    return g.vary(betas=(first, second))


def why_betas(s: Setting) -> tuple[str, str]:
    """Reason and source of the betas."""
    if s.groups[s.main_group].dynamics.optimizer != "adamw":
        return "the optimizer's usual ones; not chosen", ""
    if s.steps < 10 * AVERAGED:
        why = f"m averages over at most 1/{AVERAGED} of the run's steps, in texts v over twice as many"
        return f"{why}: a text of 200 steps lost 5 % by 0.9, 0.95", "[mlodozeniec2025], and the workloads"
    text = s.tokens_per_sample is not None
    return "what the workloads have for texts" if text else "the optimizer's usual ones; not chosen", ""


def weight_decay_of(s: Setting, group: int, lr: float, shrink: float) -> float:
    """The weight decay of a group with which lr·wd·T is that much, to two digits."""
    at = replace(s, groups=tuple(replace(g, lr=lr) for g in s.groups))
    return float(f"{at.weight_decay_for(group, shrink):.2g}")


def shrink_of(s: Setting) -> tuple[float, tuple[str, str]]:
    """lr·wd·T at peak lr, and its reason and source."""
    per_epoch, source = s.steps_per_epoch, "[theory] 9 and 10, constants from the workloads"
    if s.finetune:
        return 0.0, ("fine-tuning: decay pulls towards 0, and not to where the weights were", "stored trials")
    once = f"lr·wd·T = {SHRINK_ONCE:g}"
    if per_epoch is None:
        other = f"lr·wd·T = {SHRINK_REPEATED:g}, {SHRINK_REPEATED / SHRINK_ONCE:g} times this"
        return SHRINK_ONCE, (
            f"{once}, for data that is seen once or twice. If it is seen {REPEATED:g} times or more, {other}: pass "
            "batch_size and dataset_size",
            source,
        )
    epochs = s.steps / per_epoch
    if epochs >= REPEATED:
        return SHRINK_REPEATED, (f"lr·wd·T = {SHRINK_REPEATED:g}: the data is seen {epochs:.3g} times", source)
    if epochs > ONCE:
        share = math.log(epochs / ONCE) / math.log(REPEATED / ONCE)
        between = SHRINK_ONCE * (SHRINK_REPEATED / SHRINK_ONCE) ** share
        return between, (
            f"lr·wd·T = {between:.2g}: the data is seen {epochs:.3g} times, between what was tried",
            source,
        )
    if s.tokens_per_sample is not None and s.parameters is not None and s.batch_size is not None:
        tokens = float(s.steps * s.batch_size * s.tokens_per_sample)
        if tokens / s.parameters >= MANY_TOKENS:
            wanted = 1 / advice.power_lines_timescale(tokens, s.parameters)
            ratio = f"{tokens / s.parameters:.3g} tokens per parameter"
            return wanted, (f"lr·wd·T = {wanted:.2g} by {ratio}; the workloads have 4 at most", "[power-lines]")
    return SHRINK_ONCE, (f"{once}: the data is seen {epochs:.2g} times", source)
