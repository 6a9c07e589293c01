"""Steps that are not measured: their hyperparameters are buffered and processed many steps at a time.

Between two training steps the processor's caches forget the code of watching, so that a few microseconds' work takes
some hundred; at one go it takes what it should.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from equipoise.monitor.attach.registry import OptimizerRegistry, cheap
from equipoise.optim.dynamics_of import GroupState, group_state

MOST = 64
"""Steps that are kept."""

LONG = 1.0
"""Seconds that the first of them waits."""


class Said:
    """What the groups of an optimizer say in a step.

    Args:
        optimizer: whose.
        mine: its groups.
        first: number of the first of them among all.
        total: how many there are in all.
        earlier: what they said before.
        wait: whether to read them even where that waits for a device.
    """

    def __init__(
        self, optimizer: Any, mine: list[dict[str, Any]], first: int, total: int, earlier: Said | None, wait: bool
    ) -> None:
        self.first, self.total = first, total
        self._optimizer = optimizer
        self._numbers = [(group.get("lr"), group.get("weight_decay")) for group in mine]
        # A tensor is changed in place by schedules.
        self._fixed = not any(isinstance(x, Tensor) for pair in self._numbers for x in pair)
        self._groups = [_copy(group) for group in mine] if wait or cheap(mine) else []
        self._states: list[GroupState] | None = None
        self._earlier = earlier

    def still(self, mine: list[dict[str, Any]]) -> bool:
        """Whether the numbers are the very same, of the same groups."""
        if not self._fixed or len(mine) != len(self._numbers):
            return False
        for group, (lr, weight_decay) in zip(mine, self._numbers, strict=True):
            if group.get("lr") is not lr or group.get("weight_decay") is not weight_decay:
                return False
        return True

    @property
    def states(self) -> list[GroupState]:
        """The same, read as what the groups do; nothing where reading would have waited for a device."""
        if self._states is None:
            earlier, self._earlier = self._earlier, None
            self._states = [self._state(k, group, earlier) for k, group in enumerate(self._groups)]
        return self._states

    def _state(self, k: int, group: dict[str, Any], earlier: Said | None) -> GroupState:
        """What a group does; where only lr has changed, the rest of it is as before."""
        if earlier is not None and k < len(earlier.states) and _alike(earlier._groups[k], group):
            before = earlier.states[k]
            return GroupState(before.dynamics, float(group.get("lr", 1e-3)), before.weight_decay, before.notes)
        return group_state(self._optimizer, group)


def _alike(earlier: dict[str, Any], group: dict[str, Any]) -> bool:
    """Whether groups are the same but for lr."""
    try:
        return earlier | {"lr": group.get("lr")} == group
    except RuntimeError:  # tensors of several numbers, which are neither equal nor not
        return False


def _copy(group: dict[str, Any]) -> dict[str, Any]:
    """A copy of a group that does not change with it."""
    held = {name: float(group[name]) for name in ("lr", "weight_decay") if isinstance(group.get(name), Tensor)}
    return group | held


@dataclass
class Passed:
    """Steps of one optimizer that were not measured, and in which its groups said the same.

    Attributes:
        step: the step of training; the first, where there are several.
        owner: number of the optimizer.
        new: whether the step of training began with it.
        said: what its groups said.
        starts: when each of them began, in seconds.
    """

    step: int
    owner: int
    new: bool
    said: Said
    starts: list[float] = field(default_factory=list)


class Backlog:
    """Keeps such steps, in their order.

    Args:
        registry: the optimizers.
    """

    def __init__(self, registry: OptimizerRegistry) -> None:
        self._registry = registry
        self._kept: list[Passed] = []
        self._count = 0
        self._said: list[Said | None] = [None] * len(registry)

    def add(self, step: int, owner: int, new: bool, start: float) -> bool:
        """Keep a step; whether it is time to take them.

        Args:
            step: the step of training.
            owner: number of the optimizer that steps.
            new: whether the step of training begins with it.
            start: when, in seconds.
        """
        registry, said, kept = self._registry, self._said[owner], self._kept
        mine = registry.groups(owner)
        if said is None or not said.still(mine):
            said = self.read(owner, wait=False)
        if not kept or kept[-1].said is not said or not new or len(registry) > 1:
            kept.append(Passed(step, owner, new, said))
        kept[-1].starts.append(start)
        self._count += 1
        return self._count >= MOST or start - kept[0].starts[0] > LONG

    def read(self, owner: int, wait: bool) -> Said:
        """What the groups of an optimizer say now.

        Args:
            owner: number of the optimizer.
            wait: whether to read them even where that waits for a device.
        """
        registry = self._registry
        first, total = registry.groups_of(owner).start, len(registry.param_groups)
        said = Said(registry.each[owner], registry.groups(owner), first, total, self._said[owner], wait)
        self._said[owner] = said
        return said

    def take(self) -> list[Passed]:
        """The steps that were kept, once."""
        kept, self._kept, self._count = self._kept, [], 0
        return kept
