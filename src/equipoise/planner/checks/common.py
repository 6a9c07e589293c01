"""What the checks of a plan share: whom they quote, and how they name groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan


TUNED = "none needed in a short run; if the weights were trained before, finetune=True plans for that"


def group_name(plan: Plan, i: int) -> str:
    """What to call a group."""
    name = plan.setting.groups[i].name
    return name or ("all parameters" if len(plan.setting.groups) == 1 else f"group {i}")


def decaying_groups(plan: Plan) -> Iterator[int]:
    """Groups of which something rotates, and whose decay is above 0 and below 1."""
    s = plan.setting
    for i in range(len(s.groups)):
        lost = s.decay_per_step(i)
        if 0 < lost.max() < 1 and any(t.group == i and t.rotates for t in s.tensors):
            yield i
