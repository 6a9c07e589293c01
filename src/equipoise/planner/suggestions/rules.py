"""Weight decay and betas of a suggestion, each with its reason."""

from __future__ import annotations

import math
from dataclasses import replace

from equipoise.planner.checks.paying import ONCE, REPEATED, SHRINK_ONCE, SHRINK_REPEATED
from equipoise.planner.setting import Group, Setting
from equipoise.theory import advice

MANY_TOKENS = 10.0
"""Tokens per parameter from which [power-lines] sets the decay of a text: the workloads have 4 at most."""

AVERAGED = 40
"""Steps of a run over the steps that m averages, at least: a run of 200 steps lost 5 % by β1 = 0.9 (docs/log.md)."""

TEXT_BETA2 = 0.95
"""Of AdamW on texts, as the workloads have it."""


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


def decay_of(s: Setting, group: int, lr: float, shrink: float) -> float:
    """The weight decay of a group with which lr·wd·T is that much, to two digits."""
    at = replace(s, groups=tuple(replace(g, lr=lr) for g in s.groups))
    taken = at.dynamics(group).decay_share(lr * float(s.schedule.values(s.steps).max()), 1e-6) * 1e6
    return float(f"{shrink / (taken * s.steps):.2g}")


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
