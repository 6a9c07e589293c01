"""What a search draws: ranges by name, or theory's coordinates around a suggestion.

lr and weight decay interact: their product decides how long a run remembers, so that the best decay falls as lr grows.
Around a suggestion a search therefore draws

- `step`: how far a step at the peak moves the median layer, over its initial norm, if gradients are a random walk
- `memory`: 1/(lr·wd·T), over how much of the run decay forgets

and lr and weight decay follow from both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from equipoise import _check
from equipoise.planner.checks.paying import KNEE
from equipoise.planner.suggestions.rules import STEPS
from equipoise.planner.suggestions.suggestion import Suggestion

FACTOR = 10.0
"""How far from the suggested step a search goes, up and down."""

MEMORY = (1 / 30, 30.0)
"""Range of the memory: the longest is as good as no decay."""

Values = dict[str, Any]
"""Hyperparameters by name."""


@final
@dataclass(frozen=True)
class Around:
    """A space of `step` and `memory` around a suggestion.

    Attributes:
        suggestion: of `eq.suggest`.
        factor: how far the step goes from the suggested one, up and down.
    """

    suggestion: Suggestion
    factor: float = FACTOR

    def __post_init__(self) -> None:
        _check.number("factor", self.factor, low=1, open_low=True)

    @property
    def step(self) -> float:
        """The suggested one."""
        return STEPS[self.suggestion.optimizer]

    @property
    def ranges(self) -> Ranges:
        """What is drawn."""
        return Ranges({"step": (self.step / self.factor, self.step * self.factor), "memory": MEMORY})

    def place(self, drawn: Mapping[str, Any]) -> tuple[float, float]:
        """Coordinates in which losses are alike in all directions: ln(step / suggested), ln(1 + lr·wd·T / KNEE).

        Args:
            drawn: `step` and `memory`.
        """
        return math.log(drawn["step"] / self.step), math.log1p(1 / (drawn["memory"] * KNEE))

    def at(self, step: float, decay: float) -> Values:
        """`step` and `memory` of a point of `place`."""
        return {"step": self.step * math.exp(step), "memory": 1 / (KNEE * math.expm1(decay))}

    @property
    def first(self) -> Values:
        """The suggestion itself."""
        shrink = self._shrink
        return {"step": self.step, "memory": min(max(1 / shrink, MEMORY[0]), MEMORY[1]) if shrink else MEMORY[1]}

    @property
    def _shrink(self) -> float:
        s = self.suggestion
        return s.lr * s.weight_decay * s.setting.steps

    def values(self, drawn: Mapping[str, Any]) -> Values:
        """lr and weight decay of a point.

        Args:
            drawn: `step` and `memory`.
        """
        lr = self.suggestion.lr * drawn["step"] / self.step
        return {"lr": lr, "weight_decay": 1 / (drawn["memory"] * lr * self.suggestion.setting.steps)}


@final
@dataclass(frozen=True)
class Ranges:
    """A space by name: (low, high), on a scale of factors where both are positive, or a list of choices.

    >>> space = Ranges({"lr": (1e-4, 1e-1), "norm": ["batch", "layer"]})
    >>> space.axes["norm"], space.log("lr")
    (['batch', 'layer'], True)
    >>> Ranges({"lr": 3})
    Traceback (most recent call last):
    ValueError: space['lr'] = 3: must be (low, high) with low < high, or a list of choices
    """

    axes: Mapping[str, tuple[float, float] | Sequence[Any]]

    def __post_init__(self) -> None:
        if not isinstance(self.axes, Mapping) or not self.axes:
            raise ValueError(
                f"space = {self.axes!r}: must be a suggestion of eq.suggest, or ranges by name, such as "
                "{'lr': (1e-4, 1e-1), 'norm': ['batch', 'layer']}"
            )
        for name, axis in self.axes.items():
            if not isinstance(name, str) or not name.isidentifier():
                raise ValueError(f"space has {name!r}: must be a name, such as lr")
            wrong = f"space[{name!r}] = {axis!r}: must be (low, high) with low < high, or a list of choices"
            if isinstance(axis, tuple):
                numbers = all(isinstance(x, int | float) and math.isfinite(x) for x in axis)
                if len(axis) != 2 or not numbers or not axis[0] < axis[1]:
                    raise ValueError(wrong)
            elif not isinstance(axis, list) or not axis:
                raise ValueError(wrong)

    @property
    def ranges(self) -> Ranges:
        """What is drawn: itself."""
        return self

    @property
    def first(self) -> Values:
        """None that is known to be good."""
        return {}

    def log(self, name: str) -> bool:
        """Whether an axis is drawn on a scale of factors."""
        axis = self.axes[name]
        return isinstance(axis, tuple) and axis[0] > 0 and axis[1] / axis[0] >= 10

    def values(self, drawn: Mapping[str, Any]) -> Values:
        """What is drawn, as it is."""
        return dict(drawn)


def space_of(space: Any) -> Around | Ranges:
    """A space from what users give: a suggestion, or ranges by name."""
    if isinstance(space, Around | Ranges):
        return space
    return Around(space) if isinstance(space, Suggestion) else Ranges(space)
