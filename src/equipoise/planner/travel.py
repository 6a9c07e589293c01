"""How far each tensor of a plan moves from its start, for plans of fine-tuning."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise._check import Array
from equipoise.theory import distance, travel_bound

if TYPE_CHECKING:
    from equipoise.planner.planning import TensorPlan
    from equipoise.planner.setting import Setting


@dataclass(frozen=True)
class Travel:
    """The distance of a tensor from its start, as root mean squares over its weights.

    Attributes:
        walk: after each step, if gradients are a random walk.
        steady: at the end, if every gradient points the same way: the farthest that these settings allow.
        start: of the initial weights; 0 where they are 0.
        taken: share of the initial weights that decay takes away over the run.
    """

    walk: Array = field(repr=False)
    steady: float
    start: float
    taken: float

    @property
    def expected(self) -> float:
        """‖w_T − w_0‖/‖w_0‖ of the random walk; infinite for a tensor that begins at 0."""
        return float(self.walk[-1]) / self.start if self.start else math.inf

    @property
    def learnt(self) -> float:
        """What the updates of a random walk add, over ‖w_0‖: the distance without what decay takes of w_0.

        ‖w_T − w_0‖² = learnt² + taken², as the walk is across w_0 in the mean.
        """
        return math.sqrt(max(0.0, self.expected**2 - self.taken**2))

    @property
    def farthest(self) -> float:
        """The same if every gradient points the same way."""
        return self.steady / self.start if self.start else math.inf

    def to_dict(self) -> dict[str, Any]:
        """As plain data: relative distances, None for a tensor that begins at 0, and root mean squares."""
        zero = self.start == 0
        return {
            "walk": None if zero else self.expected,
            "steady": None if zero else self.farthest,
            "walk_rms": float(self.walk[-1]),
            "steady_rms": self.steady,
            "taken_by_decay": self.taken,
        }


def travel(setting: Setting, t: TensorPlan) -> Travel | None:
    """The distance of a tensor from its start; None where there is no forecast, or decay depends on the gradients.

    Args:
        setting: of the plan.
        t: what the plan says of the tensor.
    """
    tensor, f = t.tensor, t.forecast
    g = setting.groups[tensor.group]
    if f is None or (g.dynamics.optimizer == "adam_l2" and g.weight_decay > 0):
        return None
    root = math.sqrt(tensor.size)
    kept = 1 - setting.decay_per_step(tensor.group)
    long = g.dynamics.steady_update(tensor.shape, tensor.grad_norm / (f.init_norm if tensor.rotates else 1.0))
    lr = setting.lr(tensor.group)
    norm = root * tensor.rms
    steady = travel_bound(
        norm, np.full(f.steps, long), lr=lr, weight_decay=setting.weight_decay(tensor.group),
        kept=kept,
    )  # fmt: skip
    taken = abs(math.expm1(float(np.log(kept).sum())))
    return Travel(distance(f, kept=kept) / root, steady / root, tensor.rms, taken)
