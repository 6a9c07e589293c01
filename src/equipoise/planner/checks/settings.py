"""Checks of single settings: decay, schedule, betas, precision."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from equipoise.finding import Finding
from equipoise.planner.checks.common import group_name, nothing_to_do
from equipoise.theory import bias_factor, first_step

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan


MOST_DECAY = 2.0
"""The largest weight decay that is suggested. Beyond it the run is too short, or lr too small, to forget its start."""


def check_no_decay(plan: Plan) -> Iterator[Finding]:
    """Rotating weights have no decay, so their norm keeps growing."""
    s = plan.setting
    for i, g in enumerate(s.groups):
        if g.weight_decay == 0 and g.lr > 0 and any(t.group == i and t.rotates for t in s.tensors):
            wanted = 3 / (g.lr * s.steps)
            yield Finding(
                "no-decay",
                "info",
                group_name(plan, i),
                "weight_decay is 0: the norm keeps growing and the effective learning rate falls as 1/√t"
                + _growth(plan, i),
                "a weight decay above 0 on matrices",
                f"a weight_decay of about {wanted:.2g} would forget 95 % of the initial weights"
                if wanted <= MOST_DECAY
                else nothing_to_do(plan),
                "[norm-note] Weight Decay Controls The Effective Learning Rate",
            )


def _growth(plan: Plan, group: int) -> str:
    """When the tensor of a group that grows most has doubled its norm, and where it ends, in a random walk."""
    known = [
        (float(t.forecast.norm[-1]) / t.forecast.init_norm, t.tensor.name, t.forecast)
        for t in plan.tensors
        if t.forecast is not None and t.tensor.group == group and t.tensor.rotates and not t.tensor.from_zero
    ]
    if not known or plan.setting.groups[group].dynamics.by_gradient:
        return ""
    times, name, forecast = max(known, key=lambda found: found[0])
    if times < 2:
        return ""
    doubled = int(np.argmax(forecast.norm > 2 * forecast.init_norm)) + 1
    return (
        f". {name} doubles its norm by step {doubled:,} and ends at {times:.3g} times it, on a random walk; gradients "
        "that agree are faster"
    )


def check_decay_on_gains(plan: Plan) -> Iterator[Finding]:
    """Gains and biases decay. They are not scale-invariant, so decay changes the function."""
    s = plan.setting
    for i, g in enumerate(s.groups):
        names = [t.name for t in s.tensors if t.group == i and not t.rotates]
        if g.weight_decay > 0 and names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            yield Finding(
                "decay-on-gains",
                "info",
                shown,
                f"gains and biases decay with weight_decay = {g.weight_decay:g}",
                "no decay on gains and biases",
                "decay pulls them towards 0 and nothing balances it; equipoise.param_groups excludes them from decay",
                "[kosson2024] appendix C.2",
            )


def check_schedule_end(plan: Plan) -> Iterator[Finding]:
    """The schedule was made for a different number of steps."""
    s = plan.setting
    end = s.schedule.end
    if end is not None and end != s.steps:
        last = s.lr(s.main_group)[-1]
        yield Finding(
            "schedule-end",
            "warning",
            f"step {min(end, s.steps):,}",
            f"the schedule ends at step {end:,}, the run at step {s.steps:,} (lr {last:.3g} there)",
            "a schedule that ends with the run",
            f"make the schedule for {s.steps:,} steps",
            "a schedule cut short never cools down; after one that ends early, training continues at its last value",
        )


def check_jump(plan: Plan) -> Iterator[Finding]:
    """After a smooth decay, lr drops to a much smaller value within one step."""
    lr = plan.setting.lr(plan.setting.main_group)
    if len(lr) < 3:
        return
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(lr[:-1] > 0, lr[1:] / lr[:-1], 1.0)[:-1]
    step = int(ratio.argmin())
    # A drop in a step schedule is intended; a drop after a smooth decay means that its end was cut off. The end of a
    # straight line to 0 halves lr, too, but falls no faster than before.
    sliding = step > 0 and 0 < 2 * (lr[step - 1] - lr[step]) < lr[step] - lr[step + 1]
    if len(ratio) and ratio[step] < 0.5 and sliding and lr[step] > 0.01 * lr.max():
        yield Finding(
            "lr-jump",
            "warning",
            f"step {step + 2:,}",
            f"lr drops from {lr[step]:.3g} to {lr[step + 1]:.3g} within one step",
            "a smooth decay to the final value",
            "let the schedule decay to that value instead of cutting it off",
            "a decay towards 0 that was clipped at a minimum, or made for more steps",
        )


def check_corrected(plan: Plan) -> Iterator[Finding]:
    """Corrected decay, λη²/η_max, uses an η_max that is not the run's largest lr."""
    for i, g in enumerate(plan.setting.groups):
        if g.dynamics.decay != "corrected" or g.dynamics.lr_max is None:
            continue
        top = float(plan.setting.lr(i).max())
        if abs(g.dynamics.lr_max / top - 1) > 0.01:
            yield Finding(
                "corrected-lr-max",
                "warning",
                group_name(plan, i),
                f"corrected decay divides by lr_max = {g.dynamics.lr_max:g}, but the largest lr is {top:g}",
                "the same value",
                f"set lr_max = {top:g}, or leave it out",
                "[defazio2025]",
            )


_ADAM = ("adam", "adamw", "adam_l2", "adam_nested")


def check_bias_kick(plan: Plan) -> Iterator[Finding]:
    """Bias correction is off and there is no warmup, so the first step is too large."""
    s = plan.setting
    for i, g in enumerate(s.groups):
        size = first_step(g.dynamics.betas, bias_correction=False)
        if g.dynamics.optimizer in _ADAM and g.dynamics.bias_correction is False and size > 1.5 and s.warmup < 10:
            yield Finding(
                "bias-kick",
                "warning",
                group_name(plan, i),
                f"without bias correction the first step is {size:.2g}× as large as with it",
                "a first step of about lr",
                "turn bias correction on, or warm up",
                "[notepad] ch. 4, the four first steps",
            )


def check_bias_warmup(plan: Plan) -> Iterator[Finding]:
    """Bias correction acts as a hidden warmup."""
    s = plan.setting
    for i, g in enumerate(s.groups):
        if g.dynamics.optimizer not in _ADAM or g.dynamics.bias_correction is False:
            continue
        quiet = int((bias_factor(np.arange(1, min(s.steps, 100_000) + 1), g.dynamics.betas) < 0.9).sum())
        if s.warmup == 0 and quiet > 0.2 * s.steps and s.steps > 10 and s.lr(i).any():
            low = float(bias_factor(np.arange(1, s.steps + 1), g.dynamics.betas).min())
            yield Finding(
                "bias-warmup",
                "info",
                group_name(plan, i),
                f"with betas {g.dynamics.betas}, bias correction scales lr·m/√v by less than 0.9 for {quiet:,} of "
                f"{s.steps:,} steps, and by as little as {low:.2f}",
                "an effect on only a small part of the run",
                f"bias correction is a hidden schedule; with beta2 = {1 - 10 / s.steps:.4g} it ends in the first sixth",
                "[notepad] 4.1",
            )


def check_momentum(plan: Plan) -> Iterator[Finding]:
    """Decay is as fast as the momentum average."""
    for i, g in enumerate(plan.setting.groups):
        lost = float(plan.setting.decay_per_step(i).max())
        beta = g.dynamics.averaging
        if lost < 1 and beta > 0 and lost > 0.5 * (1 - beta):
            yield Finding(
                "decay-faster-than-momentum",
                "info",
                group_name(plan, i),
                f"decay removes {lost:.3g} of the weights per step; momentum has 1 − β = {1 - beta:.3g}",
                "lr·wd far below 1 − β",
                "weights forget gradients before momentum has applied them; Lion's best on two workloads do so",
                "[theory] 1: Table 1 of [kosson2024] is off by tens of per cent here",
            )


def check_l2(plan: Plan) -> Iterator[Finding]:
    """Adam with L2: the rotation of a neuron depends on the size of its gradients."""
    for i, g in enumerate(plan.setting.groups):
        if g.dynamics.optimizer == "adam_l2" and g.weight_decay > 0:
            yield Finding(
                "adam-l2",
                "info",
                group_name(plan, i),
                "weight_decay is added to the gradient and divided by √v",
                "decoupled decay",
                "neurons rotate at speeds that depend on the size of their gradients; AdamW decays all of them alike",
                "[kosson2024] appendix I",
            )


def check_low_precision(plan: Plan) -> Iterator[Finding]:
    """Updates or decay are smaller than half a unit in the last place of bfloat16 or float16 weights."""
    half_units = {"bfloat16": 2.0**-9, "float16": 2.0**-12}
    decay_said: set[int] = set()
    for t in plan.tensors:
        if t.tensor.dtype not in half_units or t.forecast is None or not t.tensor.rotates:
            continue
        half = half_units[t.tensor.dtype]
        cure = "keep a float32 copy of the weights (as equipoise's optimizers do), or round stochastically"
        share = float(np.mean(t.forecast.effective_lr < half))
        if share > 0.1:
            yield Finding(
                "update-lost",
                "warning",
                t.tensor.name,
                f"at {share:.0%} of steps a typical update is below half a unit in the last place ({t.tensor.dtype})",
                f"relative updates above {half:.1g}",
                f"{cure}: rounding loses the update",
                "[theory] 7: bfloat16 weights lose small rotations",
            )
        lost = plan.setting.decay_per_step(t.tensor.group)
        if (
            0 < lost.max() < half
            and t.tensor.group not in decay_said
            and not plan.setting.groups[t.tensor.group].dynamics.coupled
        ):
            decay_said.add(t.tensor.group)
            yield Finding(
                "decay-lost",
                "warning",
                t.tensor.name,
                f"decay removes {lost.max():.2g} of the weights per step, below half a unit in the last place "
                f"({t.tensor.dtype})",
                f"lr·weight_decay above {half:.1g}, or weights in float32",
                f"{cure}: if decay is a separate multiplication, as in torch, nothing decays at all",
                "w·(1 − lr·wd) rounds back to w",
            )
