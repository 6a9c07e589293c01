"""Checks of fine-tuning: how much of the pretrained weights these settings leave. They state facts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from equipoise.finding import Finding
from equipoise.planner.checks.common import group_name

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan

TAKEN = 0.1
"""Decay may remove this share of the initial weights without a finding."""

FAR = 1.0
"""Distance from the start, relative to the initial norm, that raises no finding."""


def check_taken(plan: Plan) -> Iterator[Finding]:
    """Decay removes much of the initial weights."""
    s = plan.setting
    for i in range(len(s.groups)):
        lost = s.decay_per_step(i)
        sizes = [t.size * t.count for t in s.tensors if t.group == i and not t.from_zero]
        if sizes and lost.max() < 1 and s.groups[i].dynamics.optimizer != "adam_l2":
            yield from taken(group_name(plan, i), -math.expm1(float(np.log1p(-lost).sum())), s.steps)


def taken(where: str, share: float, steps: int) -> Iterator[Finding]:
    """A finding if decay removes more than `TAKEN` of a group's initial weights.

    Args:
        where: name of the group.
        share: the share that decay removes.
        steps: length of the run.
    """
    if share > TAKEN:
        yield Finding(
            "decay-takes-start",
            "info",
            where,
            f"weight decay removes {share:.0%} of the initial weights over {steps:,} steps",
            f"at most {TAKEN:.0%} in fine-tuning, because the initial weights hold what was learnt before",
            "nothing to do if you want to forget them; the share is 1 − Π(1 − lr·weight_decay)",
            "[theory] 3: P, the share of the initial weights left",
        )


def check_far(plan: Plan) -> Iterator[Finding]:
    """Most of the pretrained weights move farther than their own norm, even if gradients are noise."""
    s = plan.setting
    pairs = zip(plan.tensors, plan.travels, strict=True)
    known = [(t, far) for t, far in pairs if far is not None and t.tensor.rotates and not t.tensor.from_zero]
    whole = sum(t.tensor.size * t.tensor.count for t, _ in known)
    if not known or (s.frozen or 0) > whole:
        return  # the trained weights are new ones beside frozen ones
    gone = [(t, far) for t, far in known if far.expected > FAR]
    if 2 * sum(t.tensor.size * t.tensor.count for t, _ in gone) > whole:
        t, far = max(gone, key=lambda found: found[1].expected)
        yield far_from_start(t.tensor.name, f"moves {far.expected:.2g}× its initial norm away from its start if "
                             f"gradients are a random walk; {len(gone)} of {len(known)} kinds of matrices move "
                             f"farther than their own norm")  # fmt: skip


def far_from_start(where: str, evidence: str) -> Finding:
    """The finding for weights that move farther than their own norm.

    Args:
        where: the tensor that moves farthest.
        evidence: how far.
    """
    return Finding(
        "far-from-start",
        "info",
        where,
        evidence,
        f"at most {FAR:g}× in fine-tuning: beyond that, less than half of ‖w‖² lies along the initial weights",
        "nothing to do if you want to relearn the weights; the distance grows with lr·√steps",
        "[theory] 2: E‖w_t − w_0‖² = ‖w_t‖² + (1 − 2P)‖w_0‖²",
    )
