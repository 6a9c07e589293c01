"""What an optimizer's groups say about a step: lr, and what decay takes of the weights."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from equipoise.planner.live import stepping
from equipoise.theory.directions import decay_share

DECOUPLED = ("adamw", "muon", "lion", "adafactor", "signsgdm", "sophia", "adan", "lamb")
"""Optimizers, by a part of their name, that do w ← (1 − lr·wd)w before their step. Adam, NAdam and RAdam say it."""


class GroupStep(NamedTuple):
    """The numbers of one group in one step.

    Attributes:
        lr: η.
        weight_decay: λ as the group has it, L2 of ours where that is all there is.
        lost: d, the share of the weights that decoupled decay takes; 0 where decay goes through the gradient.
        coupled: whether λ goes through the gradient.
        decays: the share that decay takes in the long run; L2 in SGD's gradient is magnified by momentum as that is.
        cautious: whether decay acts only where it agrees with the step.
        maximize: whether the step goes up the gradient.
        eps: Adam's ε; 0 where there is none.
        turning: whether the move keeps the norms of what it turns, so that decay does not act there.
        rotate: which parameters turn: True, False, or None for those of two dimensions or more.
    """

    lr: float
    weight_decay: float
    lost: float
    coupled: bool
    decays: float
    cautious: bool
    maximize: bool
    eps: float
    turning: bool
    rotate: bool | None

    def turns(self, ndim: int) -> bool:
        """Whether the move keeps the norm of a parameter with so many dimensions."""
        return self.turning and (ndim > 1 if self.rotate is None else self.rotate)

    def lost_of(self, ndim: int) -> float:
        """d for a parameter with so many dimensions."""
        return 0.0 if self.turns(ndim) else self.lost


def group_step(optimizer: Any, group: dict[str, Any]) -> GroupStep:
    """Read one group, without touching it.

    Args:
        optimizer: the optimizer that takes the step.
        group: one of its groups.
    """
    lr, wd = float(group.get("lr", 0.0)), float(group.get("weight_decay") or 0.0)
    common = {"lr": lr, "maximize": bool(group.get("maximize")), "eps": _number(group.get("eps"))}
    inner = stepping(optimizer)
    if hasattr(inner, "rule") and hasattr(inner, "move"):
        l2 = float(group.get("l2") or 0.0)
        kind = str(group.get("decay", "lr"))
        move = type(inner.move).__name__
        turning = inner is not optimizer or move not in ("Decay", "Constrain")
        lost = 0.0 if move == "Constrain" else decay_share(lr, wd, decay=kind, lr_max=group.get("lr_max"))
        coupled = wd == 0 and l2 > 0
        return GroupStep(
            weight_decay=wd or l2, lost=lost, coupled=coupled, decays=_through(group, lr * l2) if coupled else lost,
            cautious=kind == "cautious" and lost > 0,
            turning=turning, rotate=group.get("rotate"), **common,
        )  # fmt: skip
    said = group.get("decoupled_weight_decay")
    decoupled = _decouples(type(inner).__name__) if said is None else bool(said)
    return GroupStep(
        weight_decay=wd, lost=lr * wd if decoupled else 0.0, coupled=not decoupled,
        decays=lr * wd if decoupled else _through(group, lr * wd), cautious=False,
        turning=type(optimizer).__name__ == "Rotational", rotate=group.get("rotate"), **common,
    )  # fmt: skip


@cache
def _decouples(name: str) -> bool:
    return any(word in name.lower() for word in DECOUPLED)


def _through(group: dict[str, Any], share: float) -> float:
    """What L2 takes that goes through an average that does not sum to one."""
    return share / max(1.0 - float(group.get("momentum") or 0.0), 1e-9)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, float | int) else 0.0
