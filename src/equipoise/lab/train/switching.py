"""One optimizer until a step and another after it, each with its own lr on the trial's schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch

from equipoise import _check
from equipoise.optim import Switch
from equipoise.schedules import Schedule, Scheduler

Maker = Callable[..., torch.optim.Optimizer]


def switch(
    makers: Mapping[str, Maker], groups: Sequence[dict[str, Any]], *, lr: float, weight_decay: float,
    first: Mapping[str, Any] | None = None, second: Mapping[str, Any] | None = None, at: int = 1, blend: int = 0,
) -> Switch:  # fmt: skip
    """A `Switch` between two of the lab's optimizers.

    Args:
        makers: the lab's optimizers.
        groups: of the model; each of the two gets its own copy.
        lr: of whichever has none of its own.
        weight_decay: of whichever has none of its own.
        first: `optimizer` (default "adamw"), `lr`, `weight_decay` and other options of the first.
        second: the same of the second; default "sgdm".
        at: number of steps that are the first's alone.
        blend: number of steps over which one turns into the other.
    """
    made: list[torch.optim.Optimizer] = []
    for given, default in ((first, "adamw"), (second, "sgdm")):
        options = {"optimizer": default, "lr": lr, "weight_decay": weight_decay} | dict(given or {})
        maker = makers[_check.choice("optimizer", options.pop("optimizer"), makers)]
        made.append(maker([{**g, "params": list(g["params"])} for g in groups], **options))
    return Switch(made[0], made[1], _check.whole("at", at, low=1), blend=blend)


@final
class BothSchedules:
    """The schedules of a `Switch`: each moves with the steps of its own optimizer, so that both follow one curve.

    Args:
        optimizer: the switch.
        lr: the curve, as a factor on each one's lr.
    """

    def __init__(self, optimizer: Switch, lr: Schedule) -> None:
        self._at, self._blend, self._steps = optimizer.at, optimizer.blend, 0
        self._first = Scheduler(optimizer.first, lr=lr, relative=True)
        # torch counts steps taken, less one; the second's first step is the one after `at`.
        self._second = Scheduler(optimizer.second, lr=lr, relative=True, last_epoch=optimizer.at - 1)

    def step(self) -> None:
        """Step the schedules of the two, after a step of the switch."""
        self._steps += 1
        if self._steps <= self._at + self._blend:
            self._first.step()
        if self._steps > self._at:
            self._second.step()

    def state_dict(self) -> dict[str, Any]:
        """The states of both, and the step."""
        return {"first": self._first.state_dict(), "second": self._second.state_dict(), "steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state_dict: what `state_dict` returned.
        """
        self._first.load_state_dict(state_dict["first"])
        self._second.load_state_dict(state_dict["second"])
        self._steps = int(state_dict["steps"])
