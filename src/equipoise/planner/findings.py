"""What to look for in a setting before it runs.

Each check is a function that yields findings; each finding has a section in docs/findings.md under its code, and a
healthy setting passes all checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.planner.finding import SEVERITIES, Finding
from equipoise.planner.setting import Group
from equipoise.theory import advice, bias_factor, first_step, memory

if TYPE_CHECKING:
    from equipoise.planner.plan import Plan

Check = Callable[["Plan"], Iterator[Finding]]

WANG = "Wang & Aitchison 2024, arXiv 2405.13698"
RE = "Kosson et al., Rotational Equilibrium, arXiv 2305.17212"
SU = "Su, weight decay and learning rate from a moving-average perspective"


def check_overshoot(plan: Plan) -> Iterator[Finding]:
    """λη ≥ 1: a step's decay takes the whole weight or more."""
    for i, g in enumerate(plan.setting.groups):
        yield from overshoot(g, _group(plan, i), plan.setting.decay_per_step(i))


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
                _group(plan, i),
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
                    f"{_group(plan, i)}, {where} step",
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
    for i in _decaying_groups(plan):
        lost, g = s.decay_per_step(i), s.groups[i]
        folds = float(-np.log1p(-lost).sum())
        share, time = math.exp(-folds), memory(lr=s.lr(i), weight_decay=s.weight_decay(i), kept=1 - lost).period
        if share > 0.05:
            wanted = _decay_for(plan, i, 3 / folds)
            tuning = wanted > 20 * g.weight_decay
            advice_text = f"raise weight_decay to about {wanted:.2g}, or lr"
            if tuning:
                advice_text = "expected when fine-tuning; for training from scratch " + advice_text
            severity = "info" if tuning else "warning"
            yield Finding(
                "init-share",
                severity,
                _group(plan, i),
                f"{share:.1%} of the initial weights is left after {s.steps:,} steps (decay adds up to {folds:.2g})",
                "below 5 %: decay that adds up to 3 or more",
                advice_text,
                SU,
            )
            if folds < 1 / 3:
                yield Finding(
                    "timescale-long",
                    severity,
                    _group(plan, i),
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
                _group(plan, i),
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
    for i in _decaying_groups(plan):
        g = s.groups[i]
        if g.optimizer not in ("adam", "adamw"):
            continue
        tau = 1 / (float(s.decay_per_step(i).max()) * s.steps)
        if not 1 / 5 < tau / wanted < 5:
            yield Finding(
                "timescale-power-lines",
                "warning",
                _group(plan, i),
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
            if t.tensor.rotates and t.forecast is not None and t.equilibrium is not None and t.equilibrium.rotation > 0
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


def check_no_decay(plan: Plan) -> Iterator[Finding]:
    """Rotating weights without decay: the norm grows for ever."""
    s = plan.setting
    for i, g in enumerate(s.groups):
        if g.weight_decay == 0 and g.lr > 0 and any(t.group == i and t.rotates for t in s.tensors):
            yield Finding(
                "no-decay",
                "info",
                _group(plan, i),
                "weight_decay is 0: the norm grows and the effective learning rate falls as 1/√t",
                "a weight decay above 0 on matrices",
                f"weight_decay of about {3 / (g.lr * s.steps):.2g} would forget 95 % of the initial weights",
                "norm note, Weight Decay Controls The Effective Learning Rate",
            )


def check_decay_on_gains(plan: Plan) -> Iterator[Finding]:
    """Weight decay on gains and biases, which have no scale invariance to make it harmless."""
    s = plan.setting
    for i, g in enumerate(s.groups):
        names = [t.name for t in s.tensors if t.group == i and not t.rotates]
        if g.weight_decay > 0 and names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            yield Finding(
                "decay-on-gains",
                "warning",
                shown,
                f"gains and biases decay with weight_decay = {g.weight_decay:g}",
                "no decay on gains and biases",
                "put them into a group of their own with weight_decay=0",
                f"{RE}, appendix C.2",
            )


def check_schedule_end(plan: Plan) -> Iterator[Finding]:
    """The schedule was made for another number of steps."""
    s = plan.setting
    end = s.schedule.end
    if end is not None and end != s.steps:
        last = s.lr(s.main_group)[-1]
        yield Finding(
            "schedule-end",
            "warning",
            f"step {min(end, s.steps):,}",
            f"the schedule ends at step {end:,}, the run at step {s.steps:,} (lr {last:.3g} there)",
            "both at the same step",
            f"make the schedule for {s.steps:,} steps",
            "a schedule cut short never cools down; one that ends early trains on at its last value",
        )


def check_jump(plan: Plan) -> Iterator[Finding]:
    """Lr falls to a much smaller value within one step."""
    lr = plan.setting.lr(plan.setting.main_group)
    if len(lr) < 3:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(lr[:-1] > 0, lr[1:] / lr[:-1], 1.0)[:-1]
    step = int(ratio.argmin())
    # A drop of a step schedule is meant; a jump that follows a slide is an end that was cut off.
    sliding = step > 0 and lr[step] < lr[step - 1]
    if len(ratio) and ratio[step] < 0.5 and sliding and lr[step] > 0.01 * lr.max():
        yield Finding(
            "lr-jump",
            "warning",
            f"step {step + 2:,}",
            f"lr falls from {lr[step]:.3g} to {lr[step + 1]:.3g} within one step",
            "a slide that meets its last value",
            "let the schedule fall to that value instead of cutting it off there",
            "a decay towards 0 clipped at a minimum, or a decay made for more steps",
        )


def check_corrected(plan: Plan) -> Iterator[Finding]:
    """Corrected decay λη²/η_max with an η_max that is not the run's largest lr."""
    for i, g in enumerate(plan.setting.groups):
        if g.decay != "corrected" or g.lr_max is None:
            continue
        top = float(plan.setting.lr(i).max())
        if abs(g.lr_max / top - 1) > 0.01:
            yield Finding(
                "corrected-lr-max",
                "warning",
                _group(plan, i),
                f"corrected decay divides by lr_max = {g.lr_max:g}, the largest lr is {top:g}",
                "the same value",
                f"set lr_max = {top:g}, or leave it out",
                "AdamC, arXiv 2506.02285",
            )


def check_bias_correction(plan: Plan) -> Iterator[Finding]:
    """Bias correction that acts as a warmup of its own, or its absence as a kick."""
    s = plan.setting
    for i, g in enumerate(s.groups):
        if g.optimizer not in ("adam", "adamw", "adam_l2", "adam_nested"):
            continue
        if g.bias_correction is False:
            size = first_step(g.betas, bias_correction=False)
            if size > 1.5 and s.warmup < 10:
                yield Finding(
                    "bias-kick",
                    "warning",
                    _group(plan, i),
                    f"without bias correction the first step is {size:.2g}× as large as with it",
                    "a first step of about lr",
                    "turn bias correction on, or warm up",
                    "thesis ch. 4, the four first steps",
                )
            continue
        quiet = int((bias_factor(np.arange(1, min(s.steps, 100_000) + 1), g.betas) < 0.9).sum())
        if s.warmup == 0 and quiet > 0.2 * s.steps and s.steps > 10 and s.lr(i).any():
            low = float(bias_factor(np.arange(1, s.steps + 1), g.betas).min())
            yield Finding(
                "bias-warmup",
                "info",
                _group(plan, i),
                f"bias correction with betas {g.betas} multiplies lr·m/√v by as little as {low:.2f}, and by less than "
                f"0.9 for {quiet:,} of {s.steps:,} steps",
                "a short part of the run",
                f"it is a hidden schedule: choose beta2 below {1 - 10 / s.steps:.4g} or warm up on purpose",
                "thesis 4.1",
            )


def check_momentum(plan: Plan) -> Iterator[Finding]:
    """Decay as fast as the momentum's own average."""
    for i, g in enumerate(plan.setting.groups):
        lost = float(plan.setting.decay_per_step(i).max())
        beta = 0.0 if g.optimizer in ("rmsprop", "ngd") else g.betas[1] if g.optimizer == "lion" else g.betas[0]
        if lost < 1 and beta > 0 and lost > 0.5 * (1 - beta):
            yield Finding(
                "decay-faster-than-momentum",
                "warning",
                _group(plan, i),
                f"decay takes {lost:.3g} a step, momentum averages over 1 − β = {1 - beta:.3g}",
                "lr·wd far below 1 − β",
                "lower lr·weight_decay or momentum: weights forget gradients before momentum has delivered them",
                "THEORY 1: RE's Table 1 is off by tens of per cent here",
            )


def check_l2(plan: Plan) -> Iterator[Finding]:
    """Adam with L2: rotation depends on each neuron's gradient size."""
    for i, g in enumerate(plan.setting.groups):
        if g.optimizer == "adam_l2" and g.weight_decay > 0:
            yield Finding(
                "adam-l2",
                "warning",
                _group(plan, i),
                "weight_decay is added to the gradient and divided by √v",
                "decoupled decay",
                "use AdamW: with L2 neurons rotate at speeds that depend on the size of their gradients",
                f"{RE}, appendix I",
            )


def check_low_precision(plan: Plan) -> Iterator[Finding]:
    """Updates or decay smaller than half a unit in the last place of bfloat16 or float16 weights."""
    half_units = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
    decay_said: set[int] = set()
    for t in plan.tensors:
        if t.tensor.dtype not in half_units or t.forecast is None or not t.tensor.rotates:
            continue
        half = half_units[t.tensor.dtype]
        cure = "keep a float32 copy of the weights (as equipoise's optimizers do), or round stochastically"
        relative = t.forecast.update / np.concatenate([[t.forecast.init_norm], t.forecast.norm[:-1]])
        share = float(np.mean(relative < half))
        if share > 0.1:
            yield Finding(
                "update-lost",
                "warning",
                t.tensor.name,
                f"at {share:.0%} of the steps a typical update is below half a unit of {t.tensor.dtype}",
                f"relative updates above {half:.1g}",
                f"{cure}: plain rounding loses the update",
                "THEORY 7: bf16 weights lose small rotations",
            )
        lost = plan.setting.decay_per_step(t.tensor.group)
        if 0 < lost.max() < half and t.tensor.group not in decay_said and not plan.setting.is_coupled(t.tensor.group):
            decay_said.add(t.tensor.group)
            yield Finding(
                "decay-lost",
                "warning",
                t.tensor.name,
                f"decay takes {lost.max():.2g} of the weights a step, below half a unit of {t.tensor.dtype}",
                f"lr·weight_decay above {half:.1g}, or weights in float32",
                f"{cure}: where decay is a multiplication of its own, as in torch, nothing decays at all",
                "w·(1 − lr·wd) rounds back to w",
            )


CHECKS: tuple[Check, ...] = (
    check_overshoot,
    check_zero_lr,
    check_timescale,
    check_power_lines,
    check_transient,
    check_fast_rotation,
    check_no_decay,
    check_decay_on_gains,
    check_schedule_end,
    check_jump,
    check_corrected,
    check_bias_correction,
    check_momentum,
    check_l2,
    check_low_precision,
)
"""Every check, in the order that findings of one severity are shown in."""


def find(plan: Plan) -> tuple[Finding, ...]:
    """All findings about a plan, the worst first."""
    found = [f for check in CHECKS for f in check(plan)]
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))


def _group(plan: Plan, i: int) -> str:
    name = plan.setting.groups[i].name
    return name or ("all parameters" if len(plan.setting.groups) == 1 else f"group {i}")


def _decaying_groups(plan: Plan) -> Iterator[int]:
    s = plan.setting
    for i in range(len(s.groups)):
        lost = s.decay_per_step(i)
        if 0 < lost.max() < 1 and any(t.group == i and t.rotates for t in s.tensors):
            yield i
