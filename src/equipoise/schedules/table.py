"""Curves from a list of values: an array, or a function evaluated once."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast, final

import numpy as np
from numpy.typing import ArrayLike

from equipoise import _check
from equipoise._check import Array
from equipoise.schedules.base import Schedule

SHOWN = 8
"""Values up to which `str` shows all of a table."""


@final
@dataclass(frozen=True, repr=False, eq=False)
class Table(Schedule):
    """One value a step; made by `from_array`."""

    array: Array

    name = "from_array"

    def __post_init__(self) -> None:
        if np.ndim(self.array) != 1:
            raise ValueError(f"array has shape {np.shape(self.array)}: must be one-dimensional, one value a step")
        array = _check.series("array", self.array, low=0) + 0.0  # a copy, in which −0.0 is 0.0
        array.setflags(write=False)
        self._set(array=array)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and np.array_equal(self.array, other.array)

    def __hash__(self) -> int:
        return hash((self.name, self.array.tobytes()))

    def _end(self) -> int:
        return len(self.array)

    def _at(self, t: Array) -> Array:
        return self.array[np.clip(t, 1, len(self.array)).astype(np.int64) - 1]

    def fingerprint(self) -> str:
        """Of the bytes, which for a long table is quicker than of its digits."""
        return hashlib.sha256(self.array.astype("<f8").tobytes()).hexdigest()[:16]

    def _render(self, *, short: bool) -> str:
        if not short or len(self.array) <= SHOWN:
            return f"from_array({self.array.tolist()})"
        first, last = float(self.array[0]), float(self.array[-1])
        return f"from_array(<{len(self.array)} values, {first:.6g} … {last:.6g}, {self.fingerprint()}>)"


def from_array(array: ArrayLike) -> Schedule:
    """A curve from one value a step; after the last value it stays there.

    Args:
        array: the values; entry i belongs to step i + 1.

    >>> from_array([0.1, 0.3, 0.2])([1, 2, 3, 4]).tolist()
    [0.1, 0.3, 0.2, 0.2]
    """
    return Table(cast(Array, array))


def from_function(function: Callable[[Any], Any], steps: int, *, vectorized: bool = False) -> Schedule:
    """A curve read off a function of the step.

    The values are taken once, here, so that the curve can be compared, saved and resumed like any other.

    Args:
        function: step → value; steps count from 1 (torch's `LambdaLR` counts from 0: give `lambda t: f(t - 1)`).
        steps: how many steps to read off.
        vectorized: call it once with the array 1 … steps, not once a step.

    >>> from_function(lambda t: 0.5**t, 3).values().tolist()
    [0.5, 0.25, 0.125]
    """
    T = _check.whole("steps", steps, low=1)
    if not callable(function):
        raise ValueError(f"function = {function!r}: must be a function of the step")
    if vectorized:
        values = np.asarray(function(np.arange(1, T + 1)))
        if values.shape != (T,):
            raise ValueError(f"function gave an array of shape {values.shape}: must be ({T},), one value a step")
        return from_array(values)
    return from_array([_check.number(f"function({t})", function(t)) for t in range(1, T + 1)])
