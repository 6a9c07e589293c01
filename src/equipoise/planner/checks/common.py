"""Shared by the checks of a plan: how they name groups, and which groups decay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan


def group_name(plan: Plan, i: int) -> str:
    """The name of a group in a finding."""
    name = plan.setting.groups[i].name
    return name or ("all parameters" if len(plan.setting.groups) == 1 else f"group {i}")


def nothing_to_do(plan: Plan) -> str:
    """Advice for a run in which weight decay is too weak to matter; it asks for what the plan was not told."""
    ask = "finetune=False (--no-finetune) adds advice on lr, finetune=True (--finetune) is for pretrained weights"
    return "nothing to do in a short run" + ("" if plan.setting.finetune is not None else f". Not known: {ask}")


def decaying_groups(plan: Plan) -> Iterator[int]:
    """Groups that have rotating tensors and a decay per step between 0 and 1."""
    s = plan.setting
    for i in range(len(s.groups)):
        lost = s.decay_per_step(i)
        if 0 < lost.max() < 1 and any(t.group == i and t.rotates for t in s.tensors):
            yield i
