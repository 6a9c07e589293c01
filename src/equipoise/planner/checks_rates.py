"""Checks of what learning rate and weight decay do over the run: memory, norms, rotation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.planner.checking import RE, SU, TUNED, WANG, decaying_groups, group_name
from equipoise.planner.finding import Finding
from equipoise.planner.setting import Group
from equipoise.theory import advice, memory

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan


TUNING = 0.15
"""Decay that adds up to less than this does next to nothing, and no usual setting would change that: fine-tuning, or a
very short run."""


def out_of_reach(plan: Plan, group: int) -> bool:
    """Whether a group's decay adds up to next to nothing, so that its equilibrium means nothing for the run."""
    return 0 < plan.setting.decay_per_step(group).sum() < TUNING


def check_overshoot(plan: Plan) -> Iterator[Finding]:
    """λη ≥ 1: a step's decay takes the whole weight or more."""
    for i, g in enumerate(plan.setting.groups):
        yield from overshoot(g, group_name(plan, i), plan.setting.decay_per_step(i))


def overshoot(group: Group, where: str, lost: NDArray[np.float64]) -> Iterator[Finding]:
    """The finding of a group, if the share that a step's decay takes is ever 1 or more.

    Args:
        group: the group.
        where: its name.
        lost: that share, at every step.
    """
    if len(lost) and (worst := float(lost.max())) >= 1:
        yield Finding(
            "decay-overshoot",
            "error",
            where,
            f"decay takes {worst:.3g} of the weights at step {int(lost.argmax()) + 1}",
            "less than 1, usually below 0.01",
            "weight_decay must be below 1, as it does not depend on lr"
            if group.decay == "independent" or not group.lr
            else f"lower lr or weight_decay: at lr = {group.lr:g}, weight_decay must be below {1 / group.lr:.3g}",
            "THEORY 1: the share that a step keeps must be positive",
        )


def check_zero_lr(plan: Plan) -> Iterator[Finding]:
    """Lr is 0 at the first or the last step, usually by an off-by-one."""
    for i in range(len(plan.setting.groups)):
        lr = plan.setting.lr(i)
        if not lr.any():
            yield Finding(
                "lr-zero",
                "error",
                group_name(plan, i),
                "lr is 0 at every step",
                "an lr above 0",
                "set lr, or leave the group out of the optimizer",
                "a group with lr 0 does not train",
            )
            continue
        for step, where in ((0, "first"), (-1, "last")):
            if lr[step] == 0 and len(lr) > 1:
                yield Finding(
                    f"lr-zero-{where}",
                    "warning" if step == 0 else "info",
                    f"{group_name(plan, i)}, {where} step",
                    f"lr is 0 at the {where} step",
                    "an lr above 0 at every step",
                    "a step with lr 0 spends a batch and learns nothing: let warmup start at peak/warmup"
                    if step == 0
                    else "a step with lr 0 spends a batch and learns nothing: end at a small lr, or one step later",
                    "steps count from 1: a warmup over W starts at peak/W, and a schedule ends at its final value",
                )


def check_timescale(plan: Plan) -> Iterator[Finding]:
    """Memory far longer than the run, or shorter than an epoch."""
    s = plan.setting
    for i in decaying_groups(plan):
        lost, g = s.decay_per_step(i), s.groups[i]
        folds = float(-np.log1p(-lost).sum())
        share, time = math.exp(-folds), memory(lr=s.lr(i), weight_decay=s.weight_decay(i), kept=1 - lost).period
        if share > 0.05:
            wanted = _decay_for(plan, i, 3 / folds)
            tuning = folds < TUNING
            advice_text = TUNED if tuning else f"raise weight_decay to about {wanted:.2g}, or lr"
            yield Finding(
                "init-share",
                "info" if tuning else "warning",
                group_name(plan, i),
                f"{share:.1%} of the initial weights is left after {s.steps:,} steps (decay adds up to {folds:.2g})",
                "below 5 %: decay that adds up to 3 or more",
                advice_text,
                SU,
            )
            if folds < 1 / 3 and not tuning:
                yield Finding(
                    "timescale-long",
                    "warning",
                    group_name(plan, i),
                    f"the timescale is {time:,.0f} steps, {time / s.steps:.1f}× the run",
                    "no more than the run (the number of epochs)",
                    f"{advice_text}: decay hardly acts",
                    WANG,
                )
        per_epoch = s.steps_per_epoch
        epochs = per_epoch is not None and s.steps > per_epoch
        least = per_epoch / 2 if per_epoch is not None and epochs else 0.02 * s.steps
        if time < least:
            goal = per_epoch if per_epoch is not None and epochs else s.steps / 5
            yield Finding(
                "timescale-short",
                "warning",
                group_name(plan, i),
                f"the timescale at the end of the run is {time:,.0f} steps, {time / s.steps:.1%} of it"
                + (f" or {time / per_epoch:.2g} epochs" if per_epoch is not None else ""),
                "at least one epoch, so that every sample is remembered"
                if epochs
                else "2 % of the run or more in a single pass, or most of the data is forgotten",
                f"weight_decay of about {g.weight_decay * time / goal:.2g} puts it at "
                + ("one epoch" if epochs else "a fifth of the run"),
                WANG if epochs else SU,
            )


def _decay_for(plan: Plan, group: int, factor: float) -> float:
    """The weight decay that multiplies the sum of decays by that factor."""
    s = plan.setting
    if s.source is not None and s.source["name"] == "equal_memory":
        return 19 / (s.groups[group].lr * s.steps)  # the curve depends on it: P = 1/(1 + ηλT)
    return s.groups[group].weight_decay * factor


def check_power_lines(plan: Plan) -> Iterator[Finding]:
    """τ far from Power Lines' law, where tokens and parameters are known."""
    s = plan.setting
    if s.tokens_per_sample is None or s.batch_size is None or s.parameters is None:
        return
    tokens = s.steps * s.batch_size * s.tokens_per_sample
    wanted = advice.power_lines_timescale(tokens, s.parameters)
    rule = advice.RULES["power-lines"]
    for i in decaying_groups(plan):
        g = s.groups[i]
        if g.optimizer not in ("adam", "adamw"):
            continue
        tau = 1 / (float(s.decay_per_step(i).max()) * s.steps)
        if not 1 / 5 < tau / wanted < 5:
            yield Finding(
                "timescale-power-lines",
                "warning",
                group_name(plan, i),
                f"τ = batch/(lr·wd·tokens) = {tau:.3g} at peak lr, with {tokens / s.parameters:.3g} tokens a parameter",
                f"about {wanted:.3g} (fitted on {rule.fitted})",
                f"weight_decay of about {g.weight_decay * tau / wanted:.2g}",
                rule.source,
            )


def check_transient(plan: Plan) -> Iterator[Finding]:
    """The run ends before the norm has reached equilibrium, or rotates too fast on the way there."""
    seen: set[int] = set()
    for t in plan.tensors:
        if not t.tensor.rotates or t.forecast is None or t.equilibrium is None or t.tensor.group in seen:
            continue
        if t.tensor.from_zero or out_of_reach(plan, t.tensor.group):
            continue
        steps = plan.setting.steps
        if math.isfinite(t.equilibrium.norm) and t.steps_to_reach is not None and t.steps_to_reach > steps:
            seen.add(t.tensor.group)
            yield Finding(
                "run-shorter-than-transient",
                "warning",
                t.tensor.name,
                f"norm reaches equilibrium after about {t.steps_to_reach:,.0f} steps, the run has {steps:,}",
                "within the run",
                "effective step sizes follow the initial norm, not the schedule: raise lr·weight_decay, "
                "start nearer to the equilibrium norm, or use a rotational optimizer",
                f"{RE}, section 3",
            )


def check_fast_rotation(plan: Plan) -> Iterator[Finding]:
    """Rotation early in the run far above what equilibrium has at the same lr: warmup is missing or short."""
    early = max(2, plan.setting.steps // 10)
    worst = max(
        (
            (float(t.forecast.rotation[:early].max()) / t.equilibrium.rotation, t.tensor.name, t)
            for t in plan.tensors
            if t.tensor.rotates
            and not t.tensor.from_zero
            and not out_of_reach(plan, t.tensor.group)
            and t.forecast is not None
            and t.equilibrium is not None
            and t.equilibrium.rotation > 0
        ),
        key=lambda found: found[0],
        default=None,
    )
    if worst is None or worst[0] <= 5:
        return
    ratio, name, t = worst
    assert t.forecast is not None
    assert t.equilibrium is not None
    yield Finding(
        "transient-too-fast",
        "warning",
        f"{name}, step {int(t.forecast.rotation[:early].argmax()) + 1}",
        f"weights turn {ratio:.1f}× as fast as in equilibrium at peak lr",
        "less than 5×",
        "warm up for longer, or start with larger weights "
        f"(equilibrium RMS is {t.equilibrium.norm / math.sqrt(t.tensor.size):.3g})",
        f"{RE}, section 3, Need for Learning Rate Warmup",
    )
