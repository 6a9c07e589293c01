"""The optimizer of a run in the terms of theory, as stored: enough to forecast it later, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from equipoise.monitor.store.run import Run
from equipoise.planner.setting import Group

META = "setting"
"""The key in the run's metadata."""

UNTRAINED = "untrained"
"""The key of the parameters that no step changes: "frozen" ones, and those "left_out" of the optimizer."""

START = "start"
"""The key of what the run began with: whether it is fine-tuning, why, how many parameters do not train, and how many
steps were said to come."""

MOST_NAMES = 200
"""Of so many untrained parameters the names are kept."""


def record(optimizers: Sequence[Any]) -> dict[str, Any]:
    """What to remember of the optimizers, as JSON can hold it; groups are counted through.

    Args:
        optimizers: torch optimizers.
    """
    from equipoise.planner.live import read_groups  # here, as it imports torch, which reading a run does without

    read = [read_groups(optimizer) for optimizer in optimizers]
    return {
        "groups": [group.to_dict() for groups, _ in read for group in groups],
        "assumptions": list(dict.fromkeys(note for _, notes in read for note in notes)),
    }


def untrained(names: dict[int, str], model: Any, groups: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The names of a model's parameters that nothing trains.

    Args:
        names: of each parameter by its id.
        model: the model, or None.
        groups: those of the optimizers.
    """
    has = {id(p) for group in groups for p in group["params"]}
    found: dict[str, list[str]] = {"frozen": [], "left_out": []}
    for p in [] if model is None else model.parameters():
        kind = "frozen" if not p.requires_grad else "left_out" if id(p) not in has else None
        if kind and (p.is_floating_point() or p.is_complex()) and len(found[kind]) < MOST_NAMES:
            found[kind].append(names[id(p)])
    return found


def taken_as(meta: Mapping[str, Any]) -> str | None:
    """What a run is taken as, in a line, where it is fine-tuning; None where it trains from scratch.

    Args:
        meta: the metadata of the run.
    """
    kept = meta.get(START)
    if not isinstance(kept, dict) or kept.get("finetune") is not True:
        return None
    return str(kept.get("said", "fine-tuning"))


def recorded(run: Run) -> list[Group]:
    """The groups that a run remembers, as they were at the first measured step; none where it remembers nothing."""
    kept = run.meta.get(META)
    try:
        return [Group.make(**one) for one in kept["groups"]] if isinstance(kept, dict) else []
    except (KeyError, TypeError, ValueError):
        return []  # written by another version, or by hand
