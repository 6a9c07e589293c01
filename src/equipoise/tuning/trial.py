"""What a training function gets: hyperparameters, and `report`, which tells it when to stop."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, final


class StopTrial(Exception):  # noqa: N818 - it is no error
    """Raised by `Trial.report`: the trial need not go on. Let it through."""


@final
class Trial:
    """A setting to train, as a training function gets it.

    Attributes:
        number: from 0.
        values: hyperparameters by name; each is an attribute, too: `trial.lr`.
    """

    def __init__(self, number: int, values: Mapping[str, Any], told: Callable[[int, float], str]) -> None:
        self.number = number
        self.values = MappingProxyType(dict(values))
        self._told = told

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            known = ", ".join(self.__dict__.get("values", ()))
            raise AttributeError(f"{name}: must be one of {known}, or number, values, report") from None

    def report(self, step: int, loss: float) -> None:
        """Tell the loss at a step; call it some ten or hundred times.

        Args:
            step: of training.
            loss: smaller is better; the same kind as what is returned.

        Raises:
            StopTrial: the loss is not finite, or above the median of the other trials at this step.
        """
        loss = float(loss)
        if not math.isfinite(loss):
            raise StopTrial(f"the loss is {loss} at step {step}")
        if why := self._told(int(step), loss):
            raise StopTrial(why)
