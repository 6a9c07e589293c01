"""Steps that are not measured: their hyperparameters are buffered and processed many steps at a time.

Between two training steps the processor's caches forget the code of watching, so that a few microseconds' work takes
some hundred; at one go it takes what it should.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from equipoise.monitor.attach.registry import OptimizerRegistry, cheap

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
        self._said: dict[int, list[dict[str, Any]]] = {}

    def add(self, step: int, owner: int, new: bool, start: float) -> bool:
        """Keep a step; whether it is time to take them.

        Args:
            step: the step of training.
            owner: number of the optimizer that steps.
            new: whether the step of training begins with it.
            start: when, in seconds.
        """
        registry = self._registry
        mine = registry.groups(owner)
        if len(registry) == 1:
            first, total = 0, len(mine)
        else:
            first, total = registry.groups_of(owner).start, len(registry.param_groups)
        kept = self._kept
        kept.append(Passed(step, owner, new, start, self._read(owner, mine) if cheap(mine) else None, first, total))
        return len(kept) >= MOST or start - kept[0].start > LONG

    def _read(self, owner: int, groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """A copy of what the groups say, the same one while they say the same."""
        said = self._said.get(owner)
        try:
            if said is not None and groups == said:
                return said
        except RuntimeError:  # tensors of several numbers, which are neither equal nor not
            pass
        said = self._said[owner] = [dict(group) for group in groups]
        for group in said:
            for name in ("lr", "weight_decay"):
                if isinstance(group.get(name), Tensor):  # changed in place by schedules
                    group[name] = float(group[name])
        return said

    def take(self) -> list[Passed]:
        """The steps that were kept, once."""
        kept, self._kept = self._kept, []
        return kept
