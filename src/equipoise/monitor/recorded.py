"""What a run remembers of its optimizer, in theory's words: enough to forecast it later, without torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from equipoise.monitor.run import Run
from equipoise.planner.live import read_groups, stepping
from equipoise.planner.setting import Group

META = "setting"
"""The key in the run's metadata."""

UNTRAINED = "untrained"
"""The key of the parameters that no step changes: "frozen" ones, and those "left_out" of the optimizer."""

START = "start"
"""The key of what the run began with: whether it is fine-tuning, why, and how many parameters do not train."""

MOST_NAMES = 200
"""Of so many untrained parameters the names are kept."""

KEEPING = ("rotate", "hyperball")
"""Moves that keep the norms of what they turn."""


@dataclass(frozen=True)
class Recorded:
    """One group of the optimizer.

    Attributes:
        group: in theory's words; its lr and weight_decay are those of the first measured step.
        move: what the step does with a direction: "decay", "rotate", "hyperball" or "constrain".
        rotate: which parameters turn: True, False, or None for those of two dimensions or more.
        angle: the rotation that was asked for in so many words.
        known: whether theory knows the optimizer, rather than taking it for the nearest that it knows.
        maximize: whether steps go up the gradient.
    """

    group: Group
    move: str = "decay"
    rotate: bool | None = None
    angle: float | None = None
    known: bool = True
    maximize: bool = False

    def turns(self, ndim: int) -> bool:
        """Whether a parameter with so many dimensions is turned at a fixed norm."""
        return self.move in KEEPING and (ndim > 1 if self.rotate is None else self.rotate)

    def forecasts(self, ndim: int) -> bool:
        """Whether norm and rotation of such a parameter follow from a random walk."""
        return self.move != "constrain" and not self.turns(ndim)


def record(optimizers: Sequence[Any]) -> dict[str, Any]:
    """What to remember of the optimizers, as JSON can hold it; groups are counted through.

    Args:
        optimizers: torch optimizers.
    """
    own, said = [], []
    for optimizer in optimizers:
        inner = stepping(optimizer)
        groups, assumptions = read_groups(optimizer)
        said += [note for note in assumptions if note not in said]
        unknown = any("not known to the theory" in note for note in assumptions)
        wrapped = type(optimizer).__name__ == "Rotational"
        move = "rotate" if wrapped else type(inner.move).__name__.lower() if hasattr(inner, "move") else "decay"
        for read, group in zip(groups, inner.param_groups, strict=True):
            angle = group.get("angle")
            own.append(
                {"group": asdict(read), "move": move, "rotate": group.get("rotate"),
                 "angle": float(angle) if isinstance(angle, float | int) else None, "known": not unknown,
                 "maximize": bool(group.get("maximize"))}
            )  # fmt: skip
    return {"groups": own, "assumptions": said}


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


def recorded(run: Run) -> list[Recorded]:
    """The groups that a run remembers; none where it remembers nothing that can be used."""
    kept = run.meta.get(META)
    names = {f.name for f in fields(Recorded)} - {"group"}
    found = []
    try:
        for one in kept["groups"] if isinstance(kept, dict) else []:
            group = one["group"]
            read = Group(**group | {"betas": tuple(group["betas"])})
            found.append(Recorded(read, **{k: v for k, v in one.items() if k in names}))
    except (KeyError, TypeError, ValueError):
        return []  # written by another version, or by hand
    return found
