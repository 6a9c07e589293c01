"""Checks whose advice was followed on the lab's workloads, and lowered the loss there: each finding has a `change`.

The coordinates are theory's, and so hold for any optimizer whose updates do not depend on the gradient's size:

- *learnt*: how far the updates of a random walk take a layer from its start, over its `Travel.scale` (`Travel.learnt`)
- *shrink*: lr·wd·T at peak lr, how many times over decay alone shrinks the initial weights by a factor e
- *epochs*: how often the data is seen

Thresholds were chosen on the workloads of the half "choosing" (docs/log.md). `paid.json` has what following did on both
halves; `equipoise lab workloads payoff` writes it, and a test computes it again.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from equipoise.finding import Finding
from equipoise.planner.checks.common import group_name
from equipoise.planner.travel import GROWS_TO

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan

PAID = Path(__file__).with_name("paid.json")

LEARNT = 0.18
"""A run that learns less than this has too low an lr: the best settings of workloads have 0.2 to 1."""

COOLED = 0.2
"""The last lr over the peak. Above it the run ends in its own noise, which a higher lr makes worse."""

MARGIN = 10.0
"""SGD's steps follow the gradient's size, which a plan takes as 1 at unit weight norm. It may be wrong by this factor:
only far below is lr called low, and it is raised to what is right for gradients √10 times as large."""

TORCH = ("adam", "adamw", "sgdm")
"""Optimizers that are asked to let a constant lr fall: Lion's, on one of the texts, is better as it is."""

STAYS = 0.9
"""The last lr over the peak above which a schedule counts as constant."""

FALLING = math.sqrt(3 / 8)
"""What a random walk goes with a cosine to 0, as a share of what it goes at its peak: √mean(factor²)."""

LEARNT_GOAL = 0.35
"""What lr is raised to: the middle of the best settings, on a scale of factors."""

LEARNT_BY_HEART = 1.0
"""A run that learns less than this has not gone far enough to be held back by decay, however often it sees its data."""

SHRUNK = 0.45
"""Norm at the end over the initial one; below it decay has taken more than updates gave back."""

SHRINK_ONCE = 0.3
"""lr·wd·T for data that is seen once or twice."""

KNEE = 0.1
"""lr·wd·T below which decay makes no difference: the coordinate is ln(1 + lr·wd·T/KNEE)."""

SHRINK_TRIED = 5.0
"""lr·wd·T above which a run forgets its initial weights on purpose; that was not tried, and is usual in long runs."""

SHRINK_REPEATED = 3.0
"""lr·wd·T for data that is seen many times."""

ONCE, REPEATED = 2.0, 10.0
"""Epochs: up to the first data counts as new, from the second on as repeated. Between the two nothing was tried."""


def check_low_lr(plan: Plan) -> Iterator[Finding]:
    """The weights hardly leave where they began, in a run that has enough data to move them."""
    s, i = plan.setting, plan.setting.main_group
    learnt, g = learnt_by_most(plan), s.groups[i]
    guess = learnt is None and g.dynamics.optimizer == "sgdm"
    if guess:
        learnt = learnt_by_most(plan, guess=True)
    if learnt is None or not learnt > 0 or not (_tells_much(plan) if s.finetune else s.finetune is False):
        return
    constant = s.final_share > STAYS and g.dynamics.optimizer in TORCH
    if constant:  # what it would be with a schedule that falls
        learnt *= FALLING
    if learnt >= (LEARNT / MARGIN if guess else LEARNT):
        return
    lr = nearest_round(g.lr * LEARNT_GOAL / learnt / (math.sqrt(MARGIN) if guess else 1.0))
    decay = float(f"{g.weight_decay * g.lr / lr:.3g}")
    sure = constant or s.final_share <= COOLED
    kept = f", and lower weight_decay to {decay:g}: lr·wd stays as it is" if decay else ""
    falling = ", and let it fall to 0 with a cosine: a constant lr ends in its own noise" if constant else ""
    new = " The loss on the new data is meant: what was learnt before is forgotten sooner" if s.finetune else ""
    yield Finding(
        "lr-low",
        "warning" if sure else "info",
        group_name(plan, i),
        f"if gradients are a random walk, the median layer ends {learnt:.2g}× its initial norm from where it began"
        + (f" (of RMS {GROWS_TO:g}/√inputs, as it starts smaller)" if _starts_small(plan) else "")
        + (" (with an lr that falls to 0)" if constant else "")
        + (", where gradients have a norm of 1 at unit weight norm" if guess else ""),
        f"{LEARNT:g} or more "
        + (f"with gradients up to {MARGIN:g} times as large " if guess else "")
        + (
            "when fine-tuning on more samples or tokens than there are weights"
            if s.finetune
            else "when training from scratch"
        )
        + "; the best settings of the workloads have 0.2 to 1",
        f"raise lr to {lr:g}{kept}{falling}.{new}"
        if sure
        else f"with an lr that falls to 0, {lr:g} would be usual. With one that does not, it lowered the loss on most "
        "workloads, and cost 20 % on a ResNet with batch norm that saw its images 15 times",
        "[theory] 2: E‖w_t − w_0‖² = ‖w_t‖² + (1 − 2P)‖w_0‖²",
        {"lr": lr} | ({"weight_decay": decay} if decay else {}) | ({"schedule": "cosine"} if constant else {})
        if sure
        else {},
        paid("lr-low") if sure else "",
    )


def check_high_decay(plan: Plan) -> Iterator[Finding]:
    """Decay shrinks the weights although the data does not repeat."""
    s, i = plan.setting, plan.setting.main_group
    epochs, end = _epochs(plan), _norm_at_end(plan)
    if end is None or end >= SHRUNK or not 0 < _shrink(plan) <= SHRINK_TRIED or _drawn(plan):
        return
    if epochs is not None and epochs > ONCE:
        return
    decay = _decay_at(plan, SHRINK_ONCE)
    if decay >= s.groups[i].weight_decay:
        return
    said = f"lower weight_decay to {decay:g}, with which lr·wd·T is {SHRINK_ONCE:g}"
    known = epochs is not None
    yield Finding(
        "decay-high",
        "warning" if known else "info",
        group_name(plan, i),
        f"lr·wd·T = {_shrink(plan):.2g}: the median layer ends at {end:.2g}× its initial norm",
        f"{SHRUNK:g}× or more, where the data is seen at most {ONCE:g} times",
        said
        if known
        else f"if the data is seen once or twice, {said}; if it is seen {REPEATED:g} times or more, leave it. "
        "batch_size and dataset_size tell which",
        "[theory] 9, measured here: lr·wd·T of 0.1 to 0.6 is best in short runs of less than an epoch",
        {"weight_decay": decay} if known else {},
        paid("decay-high") if known else "",
    )


def check_low_decay(plan: Plan) -> Iterator[Finding]:
    """Data that is seen many times, and hardly any decay. Where lr is too low, that comes first."""
    s, i = plan.setting, plan.setting.main_group
    epochs = _epochs(plan)
    if epochs is None or epochs < REPEATED or not s.lr(i).any() or _shrink(plan) >= 1 or _drawn(plan):
        return
    decay = _decay_at(plan, SHRINK_REPEATED)
    if (
        not math.isfinite(decay)
        or decay <= s.groups[i].weight_decay
        or any(found.change for found in check_low_lr(plan))
    ):
        return
    text, learnt = s.tokens_per_sample is not None, learnt_by_most(plan)
    far = learnt is not None and learnt >= LEARNT_BY_HEART
    sure = text and far
    yield Finding(
        "decay-low",
        "warning" if sure else "info",
        group_name(plan, i),
        f"the data is seen {epochs:.3g} times, and lr·wd·T = {_shrink(plan):.2g}",
        f"about {SHRINK_REPEATED:g} where a text is seen {REPEATED:g} times or more and lr is high",
        f"raise weight_decay to {decay:g}"
        if sure
        else f"lr·wd·T is {SHRINK_REPEATED:g} at a weight_decay of {decay:g}. On texts that paid where a random walk "
        f"takes the median layer {LEARNT_BY_HEART:g}× its initial norm or more from its start; with a lower lr it "
        "gained 10 % on one text and cost 12 % on another"
        if text
        else f"lr·wd·T is {SHRINK_REPEATED:g} at a weight_decay of {decay:g}. On texts that paid (tokens_per_sample "
        "tells a text); on images with batch norm it gained 3 % at the best lr, and cost 2 % at a low one",
        "[theory] 10: data that repeats wants far more decay",
        {"weight_decay": decay} if sure else {},
        paid("decay-low") if sure else "",
    )


def _tells_much(plan: Plan) -> bool:
    """Whether fine-tuning can tell all weights anew: as many samples or tokens as weights, seen once or twice."""
    s, epochs = plan.setting, _epochs(plan)
    if s.batch_size is None or epochs is None or epochs > ONCE:
        return False
    weights = sum(t.size * t.count for t in s.tensors)
    return s.steps * s.batch_size * (s.tokens_per_sample or 1) >= weights and (s.frozen or 0) < weights


def learnt_by_most(plan: Plan, optimizer: str | None = None, *, guess: bool = False) -> float | None:
    """How far a random walk takes the median layer of an optimizer from its start, over its norm there.

    None where that depends on the gradient's size, or where the optimizer keeps norms.

    Args:
        plan: what is planned.
        optimizer: whose layers; default: the main one's.
        guess: take the gradients' size as the plan has it, where it matters.
    """
    optimizer = optimizer or plan.setting.groups[plan.setting.main_group].dynamics.optimizer
    found = [
        far.learnt
        for t, far in zip(plan.tensors, plan.travels, strict=True)
        if far is not None and t.tensor.rotates and not t.tensor.from_zero
        if _forecast_holds(plan, t.tensor.group, guess=guess)
        if plan.setting.groups[t.tensor.group].dynamics.optimizer == optimizer
        for _ in range(t.tensor.count)
    ]
    return float(np.median(found)) if found else None


def _starts_small(plan: Plan) -> bool:
    """Whether most layers start smaller than what they are measured by."""
    small = [
        far.scale > far.start for t, far in zip(plan.tensors, plan.travels, strict=True) if far and t.tensor.rotates
    ]
    return 2 * sum(small) > len(small)


def nearest_round(value: float) -> float:
    """The nearest of … 1, 3, 10, 30 …, on a scale of factors.

    >>> nearest_round(2e-3), nearest_round(1.5e-3), nearest_round(6e-2)
    (0.003, 0.001, 0.1)
    """
    exponent = math.floor(math.log10(value))
    tries = [float(f"{digit}e{exponent}") for digit in (1, 3)] + [float(f"1e{exponent + 1}")]
    return min(tries, key=lambda x: abs(math.log(x / value)))


def _decay_at(plan: Plan, shrink: float) -> float:
    """The weight decay of the main group, to three digits."""
    return float(f"{plan.setting.weight_decay_for(plan.setting.main_group, shrink):.3g}")


@functools.cache
def _evidence() -> dict[str, str]:
    return json.loads(PAID.read_text(encoding="utf-8")) if PAID.is_file() else {}


def paid(code: str) -> str:
    """What following a finding did to the loss on the workloads, in a sentence; empty where nobody has looked."""
    return _evidence().get(code, "")


def _shrink(plan: Plan) -> float:
    """lr·wd·T at peak lr."""
    return float(plan.setting.decay_per_step(plan.setting.main_group).max()) * plan.setting.steps


def _drawn(plan: Plan) -> bool:
    """Whether the schedule was drawn for the weight decay, so that another decay is another schedule."""
    source = plan.setting.source
    return source is not None and source["name"] == "equal_memory"


def _epochs(plan: Plan) -> float | None:
    per_epoch = plan.setting.steps_per_epoch
    return None if per_epoch is None else plan.setting.steps / per_epoch


def _norm_at_end(plan: Plan) -> float | None:
    """The norm of the median layer at the end, over its initial norm."""
    found = [
        t.forecast.norm[-1] / t.forecast.init_norm
        for t in plan.tensors
        if t.forecast is not None and t.tensor.rotates and not t.tensor.from_zero
        if _forecast_holds(plan, t.tensor.group)
        for _ in range(t.tensor.count)
    ]
    return float(np.median(found)) if found else None


def _forecast_holds(plan: Plan, group: int, *, guess: bool = False) -> bool:
    """Whether norms can be told before the run: not where they follow the gradient's size, or are kept by the move."""
    dynamics = plan.setting.groups[group].dynamics
    return dynamics.known and (guess or not dynamics.by_gradient) and dynamics.forecasts(2)
