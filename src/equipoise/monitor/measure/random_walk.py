"""The expected size of a random walk's direction, by tensor and age of the averages; `c_err` is relative to it."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.theory import Dynamics

CLOSE = 2e-3
"""Averages are old when the direction's size is that close to what it will be."""

OLDEST = 1 << 40
"""Nothing is older."""


class Walks:
    """What theory expects of each tensor's direction.

    Args:
        dynamics: of each group.
        tensors: group number and shape of each tensor.
    """

    def __init__(self, dynamics: list[Dynamics], tensors: list[tuple[int, tuple[int, ...]]]) -> None:
        self.dynamics = dynamics
        self._group = np.array([group for group, _ in tensors])
        known = {(group, shape) for group, shape in tensors if dynamics[group].known}
        squares = {(group, shape): dynamics[group].square(shape) for group, shape in known}
        self._square = np.array([squares.get(key, math.nan) for key in tensors])
        self.by_gradient = np.array([dynamics[group].optimizer == "sgdm" for group, _ in tensors])
        """Whether a direction's size follows the gradient's, so that E‖u‖² is over E‖g‖², and the effective lr η/‖w‖²
        rather than η/‖w‖."""

    def square(self, ages: NDArray[np.float64]) -> NDArray[np.float64]:
        """E‖u‖² of each tensor's direction; NaN where theory does not know it.

        Args:
            ages: which step of its averages this is.
        """
        if (ages >= self._old).all():
            return self._square
        factor = np.ones(len(ages))
        for age in np.unique(ages).tolist():  # most often one
            if math.isfinite(age) and age >= 1:
                each = np.array([known.growth(int(age)) for known in self.dynamics])
                factor = np.where(ages == age, each[self._group], factor)
        return self._square * factor

    @cached_property
    def _old(self) -> NDArray[np.float64]:
        """The age from which on a tensor's averages are old."""
        ages = []
        for known in self.dynamics:
            age = 1
            while abs(known.growth(age) - 1) > CLOSE and age < OLDEST:
                age *= 2
            ages.append(float(age))
        return np.array(ages)[self._group]
