"""The expected size of a random walk's direction, by tensor and age of the averages; `c_err` is relative to it."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from equipoise.theory import Dynamics


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
        factor = np.ones(len(ages))
        for age in np.unique(ages).tolist():  # most often one
            if math.isfinite(age) and age >= 1:
                each = np.array([known.growth(int(age)) for known in self.dynamics])
                factor = np.where(ages == age, each[self._group], factor)
        return self._square * factor
