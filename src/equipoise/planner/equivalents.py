"""The settings of other optimizers with the same memory and norms as a plan's, for all of its matrices at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.theory import Dynamics
from equipoise.theory.equivalent import decay_for, equivalent

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan
    from equipoise.planner.setting import Setting

OTHERS = ("adamw", "lion", "muon", "sgdm")
"""Optimizers that are compared."""


@dataclass(frozen=True)
class Equivalent:
    """What another optimizer would be set to.

    Attributes:
        optimizer: its name.
        lr: at the peak; None where it depends on the size of the gradients.
        weight_decay: at that lr; None where lr is.
        product: lr·weight_decay, which the memory asks for.
        betas: averaging factors that were assumed; the first is momentum.
        rotation: radians per step of the largest matrix in equilibrium; 0 without decay.
    """

    optimizer: str
    lr: float | None
    weight_decay: float | None
    product: float
    betas: tuple[float, float]
    rotation: float

    def to_dict(self) -> dict[str, Any]:
        """The setting as plain data for JSON."""
        return asdict(self) | {"betas": list(self.betas)}


def equivalents(plan: Plan, among: Sequence[str] = OTHERS) -> tuple[Equivalent, ...]:
    """The other optimizers of `OTHERS`; none where decay or norms of the plan's optimizer are of another kind.

    Args:
        plan: whose largest group is taken, at its largest lr.
        among: which optimizers.
    """
    s = plan.setting
    own = s.groups[s.main_group]
    dynamics = own.dynamics
    alike = [i for i, g in enumerate(s.groups) if g.dynamics == dynamics and g.lr == own.lr]
    matrices = [t for t in s.tensors if t.group in alike and t.kind == "matrix" and not t.from_zero]
    lr, decay = float(s.lr(s.main_group).max()), float(s.weight_decay(s.main_group).max())
    if not matrices or not lr or not _comparable(dynamics):
        return ()
    share = float(s.dynamics(s.main_group).decay_share(lr, decay))
    if share >= 1:
        return ()
    largest = max(matrices, key=lambda t: t.size * t.count)
    found = []
    for name in among:
        if name == dynamics.optimizer:
            continue
        target = usual(name, s)
        product = decay_for(target, 1.0, share) if share else 0.0
        eta = None
        if not (dynamics.by_gradient or target.by_gradient):
            each = [equivalent(dynamics, target, t.shape, lr=lr, weight_decay=decay)[0] for t in matrices]
            most = np.repeat(np.log(each), [t.count for t in matrices])
            eta = float(f"{math.exp(float(np.median(most))):.3g}")
        turned = target.stationary(largest.shape, lr=eta or 1.0, weight_decay=product / (eta or 1.0))
        found.append(
            Equivalent(
                name, eta, None if eta is None else float(f"{product / eta:.3g}"), float(f"{product:.3g}"),
                target.betas, turned.rotation,
            )
        )  # fmt: skip
    return tuple(found)


def usual(optimizer: str, setting: Setting) -> Dynamics:
    """An optimizer as it is used: β2 = 0.95 for texts under AdamW, momentum 0.95 and Nesterov under Muon."""
    if optimizer == "muon":
        return Dynamics("muon", betas=(0.95, 0.999), nesterov=True, scale="original")
    if optimizer == "adamw" and setting.tokens_per_sample is not None:
        return Dynamics("adamw", betas=(0.9, 0.95))
    return Dynamics(optimizer)


def _comparable(dynamics: Dynamics) -> bool:
    """Whether a share of the weights decays in each step, and norms are free to settle."""
    d = dynamics
    return d.known and d.optimizer != "adam_l2" and d.move == "decay" and d.decay in ("lr", "independent")
