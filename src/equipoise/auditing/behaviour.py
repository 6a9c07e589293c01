"""What an optimizer did to one tensor, in numbers: the result of the inference."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from equipoise.auditing.candidates import Candidate

KNOWN = 0.3
"""The unexplained share above which no rule is named."""

STILL, NO_GRADIENT, UNKNOWN = "nothing", "no gradient", "not known"


@dataclass(frozen=True)
class Estimate:
    """A number with its standard error."""

    value: float
    error: float = 0.0

    def __str__(self) -> str:
        return f"{self.value:.4g}" + (f" ± {self.error:.1g}" if 0 < self.error < math.inf else "")

    def away(self, said: float, share: float) -> bool:
        """Whether it differs from what was said by more than a share of it, and by more than its error explains."""
        return abs(self.value - said) > max(share * abs(said), 4 * self.error)


@dataclass(frozen=True)
class Behaviour:
    """What an optimizer did to one tensor.

    Attributes:
        word: the rule in words; `STILL` where it did not move, `NO_GRADIENT` where none came, `UNKNOWN`.
        candidate: the rule with its numbers; None where there is none.
        fits: whether the rule explains the steps up to rounding.
        unexplained: ‖rest‖/‖Δw‖.
        lr: rate over what the group said, for all steps; the rate itself where it said 0.
        rates: of each step.
        decay: share of the weight that a step's decay takes, over the group's lr.
        kind: of decay: "" none, "decoupled", "independent" of lr, "coupled" (L2 in the gradient), "masked".
        factors: averaging factors by name.
        lost: share of the update that rounding to the parameter's type took.
        decay_lost: and share of the decay.
        notes: what was noticed, as codes.
    """

    word: str
    candidate: Candidate | None = None
    fits: bool = True
    unexplained: float = 0.0
    lr: Estimate = Estimate(math.nan, math.inf)
    rates: tuple[float, ...] = ()
    decay: Estimate = Estimate(math.nan, math.inf)
    kind: str = ""
    factors: dict[str, Estimate] = field(default_factory=dict[str, Estimate], hash=False)
    lost: float = 0.0
    decay_lost: float = 0.0
    notes: tuple[str, ...] = ()
