"""How far each tensor of a plan moves from its start."""

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


GROWS_TO = 0.8
"""Root mean square times √inputs. Layers that start below it grow: from GPT-2's 0.02 in a layer of 64 inputs (0.16) the
best lr of a text was the same as from 0.1 (0.8), and not a fifth."""


@dataclass(frozen=True)
class Travel:
    """The distance of a tensor from its start, as root mean squares over its weights.

    Attributes:
        walk: after each step, if gradients are a random walk.
        steady: at the end, if every gradient points the same way: the farthest that these settings allow.
        start: of the initial weights; 0 where they are 0.
        scale: the size that `learnt` is measured by: `start`, or `GROWS_TO`/√inputs where a layer that is trained from
            scratch starts smaller.
        taken: share of the initial weights that decay takes away over the run.
    """

    walk: Array = field(repr=False)
    steady: float
    start: float
    scale: float
    taken: float

    @property
    def expected(self) -> float:
        """‖w_T − w_0‖/‖w_0‖ of the random walk; infinite for a tensor that begins at 0."""
        return float(self.walk[-1]) / self.start if self.start else math.inf

    @property
    def learnt(self) -> float:
        """What the updates of a random walk add, over `scale`: the distance without what decay takes of w_0.

        ‖w_T − w_0‖² = (learnt·scale)² + (taken·‖w_0‖)², as the walk is across w_0 in the mean.
        """
        added = max(0.0, float(self.walk[-1]) ** 2 - (self.taken * self.start) ** 2)
        return math.sqrt(added) / self.scale if self.scale else math.inf

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
    scale = tensor.rms if setting.finetune or tensor.from_zero else max(tensor.rms, GROWS_TO / math.sqrt(tensor.inputs))
    return Travel(distance(f, kept=kept) / root, steady / root, tensor.rms, scale, taken)
