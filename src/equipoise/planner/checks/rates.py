"""Checks of what learning rate and weight decay do over the run: memory, norms, rotation."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.finding import Finding
from equipoise.planner.checks.common import decaying_groups, group_name, nothing_to_do
from equipoise.planner.setting import Group
from equipoise.theory import advice, memory

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan


TUNING = 0.15
"""A total decay Σ lr·wd below this has almost no effect: the run fine-tunes, or is very short."""


def out_of_reach(plan: Plan, group: int) -> bool:
    """Whether a group's total decay is so small that its equilibrium does not matter for the run."""
    return 0 < plan.setting.decay_per_step(group).sum() < TUNING


def check_overshoot(plan: Plan) -> Iterator[Finding]:
    """λη ≥ 1: one step of decay removes the whole weight or more."""
    for i, g in enumerate(plan.setting.groups):
        yield from overshoot(g, group_name(plan, i), plan.setting.decay_per_step(i))


def overshoot(group: Group, where: str, lost: NDArray[np.float64]) -> Iterator[Finding]:
    """A finding if one step of decay ever removes the whole weight or more.

    Args:
        group: the group.
        where: its name.
        lost: the share that decay removes, at every step.
    """
    if len(lost) and (worst := float(lost.max())) >= 1:
        yield Finding(
            "decay-overshoot",
            "error",
            where,
            f"decay removes {worst:.3g} of the weights at step {int(lost.argmax()) + 1}",
            "less than 1, usually below 0.01",
            "lower weight_decay below 1: with this kind of decay it does not depend on lr"
            if group.dynamics.decay == "independent" or not group.lr
            else f"lower lr or weight_decay: at lr = {group.lr:g}, weight_decay must be below {1 / group.lr:.3g}",
            "[theory] 1: a step must keep a positive share of the weights",
        )


def check_zero_lr(plan: Plan) -> Iterator[Finding]:
    """Lr is 0 at the first or the last step, usually because of an off-by-one error."""
    curves = [plan.setting.lr(i) for i in range(len(plan.setting.groups))]
    for i, lr in enumerate(curves):
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
    for step, where in ((0, "first"), (-1, "last")):
        groups = [i for i, lr in enumerate(curves) if lr[step] == 0 and len(lr) > 1 and lr.any()]
        if groups:
            names = [group_name(plan, i) for i in groups]
            yield Finding(
                f"lr-zero-{where}",
                "warning" if step == 0 else "info",
                f"{'all parameters' if len(groups) == len(curves) else ', '.join(names)}, {where} step",
                f"lr is 0 at the {where} step",
                "an lr above 0 at every step",
                "start the warmup at peak/warmup: a step with lr 0 wastes a batch"
                if step == 0
                else f"one batch of {plan.setting.steps:,} is not used; a schedule that is one step longer uses it",
                "steps count from 1: a warmup of W steps starts at peak/W, and a schedule ends at its final value",
            )


def check_timescale(plan: Plan) -> Iterator[Finding]:
    """The memory is much longer than the run, or shorter than an epoch."""
    s = plan.setting
    for i in decaying_groups(plan):
        lost, g = s.decay_per_step(i), s.groups[i]
        folds = float(-np.log1p(-lost).sum())
        share, time = math.exp(-folds), memory(lr=s.lr(i), weight_decay=s.weight_decay(i), kept=1 - lost).period
        if share > 0.05:
            wanted = _decay_for(plan, i, 3 / folds)
            tuning = folds < TUNING
            said = (
                nothing_to_do(plan)
                if tuning
                else f"a weight_decay of about {wanted:.2g} would leave less than 5 % of the initial weights. The loss "
                "fell by that on texts seen 15 times, and rose on most data seen once"
            )
            yield Finding(
                "init-share",
                "info",
                group_name(plan, i),
                f"{share:.1%} of the initial weights is left after {s.steps:,} steps (the total decay is {folds:.2g})",
                "below 5 %, which needs a total decay of 3 or more, if the run should forget its initial weights",
                said,
                "[memory-article]",
            )
            if folds < 1 / 3 and not tuning:
                yield Finding(
                    "timescale-long",
                    "info",
                    group_name(plan, i),
                    f"the timescale is {time:,.0f} steps, {time / s.steps:.1f}× the run",
                    "at most the length of the run, if decay should have an effect",
                    "weight decay has little effect",
                    "[wang2024]",
                )
        layers = [t.group for t in s.tensors if t.rotates]
        most = layers.count(i) >= 0.5 * len(layers)
        yield from short_memory(g, group_name(plan, i), lost, time, s.steps_per_epoch, most)


FORGETS = 50
"""Steps. With lr·weight_decay = 0.01 the training loss was 1.5 to 60 times as high on 7 of 7 workloads of 400 steps.
But Lion's best setting on one of the lab's texts has 70."""

REMEMBERS = 1000
"""Steps that the advice asks for instead."""


def short_memory(
    group: Group, where: str, lost: NDArray[np.float64], time: float, per_epoch: float | None, most: bool
) -> Iterator[Finding]:
    """A finding if a group's memory is short: compared with an epoch, with the run, or in steps.

    Args:
        group: the group.
        where: its name.
        lost: the share of the weights that decay removes, at every step.
        time: the timescale of memory, in steps.
        per_epoch: steps per epoch, if known.
        most: whether at least half of the layers are in the group.
    """
    steps = len(lost)
    epochs = per_epoch if per_epoch and steps > per_epoch else None
    forgets = bool(most and round(1 / lost.max()) < FORGETS and lost.sum() > 2)
    time = 1 / float(lost.max()) if forgets else time
    if not forgets and time >= (epochs / 2 if epochs else 0.02 * steps):
        return
    said = f"the timescale of memory is {time:,.0f} steps, " + (
        f"{time / epochs:.2g} epochs" if epochs else f"{time / steps:.1%} of the run"
    )
    goal = epochs or steps / 5
    yield Finding(
        "timescale-short",
        "warning" if forgets else "info",
        where,
        f"{said}: decay removes {1 / time:.2g} of the weights per step" + (" at peak lr" if forgets else ""),
        f"at least {FORGETS} steps"
        + (", and at least one epoch, to remember every sample" if epochs else ", and at least 2 % of a single pass"),
        f"lower weight_decay: {group.weight_decay * time / REMEMBERS:.2g} gives a timescale of {REMEMBERS:,} steps. A "
        f"timescale of {2 * FORGETS} steps raised the training loss by half or more on 7 of 7 workloads of 400 steps"
        if forgets
        else f"older batches are forgotten; at weight_decay = {group.weight_decay * time / goal:.2g} the timescale is "
        + ("one epoch" if epochs else "a fifth of the run"),
        "[wang2024]" if epochs else "[memory-article]",
    )


def _decay_for(plan: Plan, group: int, factor: float) -> float:
    """The weight decay that multiplies the sum of decays by that factor."""
    s = plan.setting
    if s.source is not None and s.source["name"] == "equal_memory":
        return 19 / (s.groups[group].lr * s.steps)  # the curve depends on it: P = 1/(1 + ηλT)
    return s.groups[group].weight_decay * factor


def check_power_lines(plan: Plan) -> Iterator[Finding]:
    """τ far from [power-lines]'s law, where tokens and parameters are known."""
    s = plan.setting
    if s.tokens_per_sample is None or s.batch_size is None or s.parameters is None:
        return
    tokens = s.steps * s.batch_size * s.tokens_per_sample
    wanted = advice.power_lines_timescale(tokens, s.parameters)
    rule = advice.RULES["power-lines"]
    for i in decaying_groups(plan):
        g = s.groups[i]
        if g.dynamics.optimizer not in ("adam", "adamw"):
            continue
        tau = 1 / (float(s.decay_per_step(i).max()) * s.steps)
        if not 1 / 5 < tau / wanted < 5:
            yield Finding(
                "timescale-power-lines",
                "info",
                group_name(plan, i),
                f"τ = batch/(lr·wd·tokens) = {tau:.3g} at peak lr, at {tokens / s.parameters:.3g} tokens per parameter",
                f"about {wanted:.3g} (fitted on {rule.fitted})",
                f"the law gives a weight_decay of about {g.weight_decay * tau / wanted:.2g}",
                rule.source,
            )


def check_transient(plan: Plan) -> Iterator[Finding]:
    """The run ends before the norm reaches its equilibrium."""
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
                "info",
                t.tensor.name,
                f"the norm reaches equilibrium after about {t.steps_to_reach:,.0f} steps, but the run has {steps:,}",
                "equilibrium within the run",
                "normal in a short run: the effective step size follows the initial norm. A rotational optimizer has "
                "no transient",
                "[kosson2024] section 3",
            )


UNLIKE = 1.5
"""Times as far as the plain optimizer over the run, or as little: what is said of a rotational one."""


def check_twin(plan: Plan) -> Iterator[Finding]:
    """A rotational optimizer turns more or less over the run than the plain one with the same lr and weight decay."""
    seen: set[int] = set()
    for t in plan.tensors:
        i, shape = t.tensor.group, t.tensor.shape
        known = plan.setting.dynamics(i)
        asked = known.move == "rotate" and known.turns(len(shape)) and known.angle is None and not known.by_gradient
        if not asked or i in seen or t.forecast is None or not t.tensor.rms:
            continue
        seen.add(i)
        norm = t.tensor.rms * math.sqrt(t.tensor.size)
        lr, weight_decay = plan.setting.lr(i), plan.setting.weight_decay(i)
        alone = replace(known, move="decay", rotate=None)
        plain = alone.forecast(shape, lr=lr, weight_decay=weight_decay, init_norm=norm)
        times = float(t.forecast.rotation.sum() / plain.rotation.sum()) if plain.rotation.any() else 1.0
        if 1 / UNLIKE < times < UNLIKE:
            continue
        yield Finding(
            "rotation-unlike-plain",
            "info",
            t.tensor.name,
            f"over the run it turns {times:.2g} times as far as {known.optimizer} would with this lr and weight decay",
            "1, if lr and weight decay were tuned for the plain optimizer",
            "the plain one needs time to settle, which the run does not have; "
            "equipoise.rotational(model, like=optimizer) turns as that would",
            "[kosson2024] section 3",
        )


FAST = 0.25
"""Radians per step; healthy runs of benchmarks/workloads.py start with up to 0.15, most with less than 0.1."""


def check_fast_rotation(plan: Plan) -> Iterator[Finding]:
    """The first steps rotate most layers so far that the initial weights are lost within a few steps."""
    early = max(2, plan.setting.steps // 10)
    found = sorted(
        (float(t.forecast.rotation[:early].max()), int(t.forecast.rotation[:early].argmax()) + 1)
        for t in plan.tensors
        if t.tensor.rotates and not t.tensor.from_zero and t.forecast is not None
    )
    if found:
        yield from fast_start("all layers", *found[len(found) // 2])


def fast_start(where: str, rotation: float, step: int) -> Iterator[Finding]:
    """A finding if an early step rotates the median layer by a large angle.

    Args:
        where: which layers the finding is about.
        rotation: the largest angle of an early step.
        step: the number of that step.
    """
    if rotation > FAST:
        steps = max(1, round((math.pi / 2 / rotation) ** 2))
        yield Finding(
            "transient-too-fast",
            "info",
            where,
            f"the median layer rotates by {rotation:.2g} rad at step {step:,}",
            f"less than {FAST:g} rad per step",
            f"the initial weights are lost after about {steps:,} such step{'s' if steps > 1 else ''}. With 20 times "
            "the usual lr and no warmup, the loss was worse on 2 of 4 workloads and the same or better on the others",
            "[kosson2024] section 3, Need for Learning Rate Warmup",
        )
