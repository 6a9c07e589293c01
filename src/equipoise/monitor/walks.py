"""How large a random walk's direction is, the measure of `c_err`: of each tensor, and at each age of the averages."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.owners import Owners, groups_in
from equipoise.optim.rules import AdamRule, RMSPropRule, Rule, SGDMRule
from equipoise.planner.live import read_groups, stepping
from equipoise.planner.setting import Group
from equipoise.theory.directions import autocorrelation, direction, finite_beta2

AGED = 1 << 40
"""A step at which averages have forgotten how they began."""

CLOSE = 2e-3
"""Averages are old when the direction's size is that close to what it will be."""


@dataclass(frozen=True)
class Walk:
    """What a random walk's direction is like, for one tensor.

    Attributes:
        square: R(0) = E‖u‖² of the direction; NaN where theory does not know it. Where `by_gradient`, R(0) / E‖g‖².
        by_gradient: whether the direction's size follows the gradient's, as SGD's does.
        sgd_like: whether the effective lr is η/‖w‖² rather than η/‖w‖.
    """

    square: float
    by_gradient: bool
    sgd_like: bool


def walk(group: Group, shape: tuple[int, ...], update_scale: float = 1.0) -> Walk:
    """The direction that theory expects of a group for a tensor of some shape.

    Args:
        group: the group in theory's words.
        shape: of the tensor; for Muon of its matrices, (…, rows, columns).
        update_scale: by how much the optimizer scales lr for this shape, as Muon does.
    """
    sgd = group.optimizer == "sgdm"
    size = int(np.prod(shape, dtype=np.int64)) if shape else 1
    try:
        if group.optimizer == "muon":
            if len(shape) < 2:
                return Walk(float("nan"), False, False)
            square = float(size // max(shape[-2:]))  # the shorter sides of all matrices
        else:
            momentum = group.betas[0] if group.optimizer in ("sgdm", "signsgdm") else None
            u = direction(group.optimizer, size=size, betas=group.betas, momentum=momentum, nesterov=group.nesterov)
            square = float(autocorrelation(u)[0])
    except (ValueError, KeyError):
        square = float("nan")
    return Walk(square * update_scale**2, sgd, sgd)


def growth(optimizer: Any, group: dict[str, Any], read: Group) -> Callable[[float], float] | None:
    """E‖u_t‖² at step t of the averages, over its value in the long run; None where it is the same from the start.

    r_t of [theory] 7, and the share of β2's fluctuation ([theory] 1) that is there already: 1 + (f − 1)(1 − β2^t),
    within 1 % of a simulated walk for β2 from .9 to .999.

    Args:
        optimizer: the one that computes the step.
        group: one of its groups.
        read: the same in theory's words.
    """
    rule: Rule
    if hasattr(optimizer, "rule"):
        rule, options = optimizer.pair(group)[0], group
    elif read.optimizer in ("adam", "adamw", "adam_l2"):
        rule, options = AdamRule(), {"betas": read.betas, "zero_init": True, "bias_correction": True, "nested": False}
    elif read.optimizer == "sgdm":
        rule, options = SGDMRule(), {"momentum": read.betas[0], "nesterov": read.nesterov}
    elif read.optimizer == "rmsprop":
        rule, options = RMSPropRule(), {"alpha": read.betas[1]}
    else:
        return None
    at_last = rule.expected_square(AGED, options)
    if rule.expected_square(1, options) == at_last:
        return None
    adaptive = read.optimizer not in ("sgdm", "lion", "signsgdm", "muon", "ngd")
    f = finite_beta2(direction(read.optimizer, size=1, betas=read.betas))[0] if adaptive else 1.0
    beta2 = read.betas[1]
    return lambda t: rule.expected_square(int(t), options) / at_last * (1 + (f - 1) * (1 - beta2**t)) / f


class Walks:
    """What theory expects of each tensor's direction, looked up again when averaging factors change.

    Args:
        owners: the optimizers.
        tensors: group number, shape and scale of the update for each tensor.
    """

    def __init__(self, owners: Owners, tensors: list[tuple[int, tuple[int, ...], float]]) -> None:
        self._tensors = tensors
        self._group = np.array([group for group, _, _ in tensors])
        self._key = _key(owners)
        read = [group for one in owners.each for group in read_groups(one)[0]]
        made: dict[tuple[Any, ...], Walk] = {}
        for key in tensors:
            if key not in made:
                made[key] = walk(read[key[0]], key[1], key[2])
        found = [made[key] for key in tensors]
        self._square = np.array([w.square for w in found])
        self.by_gradient = np.array([w.by_gradient for w in found])
        self.sgd_like = np.array([w.sgd_like for w in found])
        inner = [stepping(one) for one in owners.each for _ in groups_in(one)]
        self._growth = [growth(*each) for each in zip(inner, owners.param_groups, read, strict=True)]

    def fits(self, owners: Owners) -> bool:
        """Whether averaging factors are the same still."""
        return _key(owners) == self._key

    def square(self, ages: NDArray[np.float64]) -> NDArray[np.float64]:
        """E‖u‖² of each tensor's direction.

        Args:
            ages: which step of its averages this is.
        """
        if (ages >= self._old).all():
            return self._square
        factor = np.ones(len(ages))
        for age in np.unique(ages).tolist():  # most often one
            if math.isfinite(age) and age >= 1:
                each = np.array([1.0 if grow is None else grow(age) for grow in self._growth])
                factor = np.where(ages == age, each[self._group], factor)
        return self._square * factor

    @cached_property
    def _old(self) -> NDArray[np.float64]:
        """The age from which on a tensor's averages are old."""
        ages = []
        for grow in self._growth:
            age = 1
            while grow is not None and abs(grow(age) - 1) > CLOSE and age < AGED:
                age *= 2
            ages.append(float(age))
        return np.array(ages)[self._group]


def _key(owners: Owners) -> list[Any]:
    names = ("betas", "momentum", "nesterov", "alpha")
    return [[group.get(name) for name in names] for group in owners.param_groups]
