"""Steps that are not measured: what their groups said is kept as it is, and taken in many steps at a time.

Between two training steps the processor's caches forget the code of watching, so that a few microseconds' work takes
some hundred; at one go it takes what it should.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from equipoise.monitor.attach.registry import OptimizerRegistry, cheap, groups_in

MOST = 64
"""Steps that are kept."""

LONG = 1.0
"""Seconds that the first of them waits."""


class Passed(NamedTuple):
    """A step of one optimizer that was not measured.

    Attributes:
        step: the step of training.
        owner: number of the optimizer.
        new: whether the step of training began with it.
        start: when, in seconds.
        groups: what its groups held; None where that would wait for a device.
        first: number of its first group among those of all optimizers.
        total: how many groups there were in all.
    """

    step: int
    owner: int
    new: bool
    start: float
    groups: list[dict[str, Any]] | None
    first: int
    total: int


class Backlog:
    """Keeps such steps, in their order.

    Args:
        registry: the optimizers.
    """

    def __init__(self, registry: OptimizerRegistry) -> None:
        self._registry = registry
        self._kept: list[Passed] = []

    def add(self, step: int, owner: int, new: bool, start: float) -> bool:
        """Keep a step; whether it is time to take them.

        Args:
            step: the step of training.
            owner: number of the optimizer that steps.
            new: whether the step of training begins with it.
            start: when, in seconds.
        """
        registry = self._registry
        optimizer = registry.each[owner]
        groups = [dict(g) for g in groups_in(optimizer)] if cheap(optimizer) else None
        for group in groups or ():
            for name in ("lr", "weight_decay"):
                if isinstance(group.get(name), Tensor):  # changed in place by schedules
                    group[name] = float(group[name])
        where = registry.groups_of(owner)
        kept = self._kept
        kept.append(Passed(step, owner, new, start, groups, where.start, len(registry.param_groups)))
        return len(kept) >= MOST or start - kept[0].start > LONG

    def take(self) -> list[Passed]:
        """The steps that were kept, once."""
        kept, self._kept = self._kept, []
        return kept
