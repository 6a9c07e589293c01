"""Rank layers: the worst rotate much more, or much less, than they should."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def deviation(rotation: Array, expected: Array | float | None = None) -> Array:
    """|log(rotation / expected)| of each layer; infinite for a layer that stands still, −1 where nothing is measured.

    Args:
        rotation: of each layer.
        expected: what theory predicts for each. None: the median of all, as balanced layers turn alike.

    >>> deviation(np.array([0.1, 0.1, 0.2])).round(2).tolist()
    [0.0, 0.0, 0.69]
    """
    finite = np.isfinite(rotation)
    if expected is None:
        expected = float(np.median(rotation[finite])) if finite.any() else np.nan
    with np.errstate(all="ignore"):
        score = np.abs(np.log(rotation / expected))
    return np.where(finite, np.where(np.isnan(score), -1.0, score), -1.0)


def worst_first(rotation: Array, expected: Array | float | None = None) -> NDArray[np.int64]:
    """Places of the layers, the worst first, equal ones in their order; those not measured are left out."""
    score = deviation(rotation, expected)
    order = np.argsort(-score, kind="stable")
    return order[score[order] >= 0]


PATIENCE = 3
"""How many times in a row a layer must be among the worst before it is followed."""

TIMES = 3
"""At most so many times `k` layers are followed."""

FAR = math.log(1.5)
"""How far off a layer must be to be followed beyond the first `k`."""


class Followed:
    """The few layers that are followed one by one: a set that only grows, and not beyond a limit.

    A layer is taken in after it was among the worst `k` three times in a row, and stays until the end: its series keeps
    its name and has no holes. Beyond the first `k` only layers come in that turn 1.5 times more or less than expected,
    and never more than three times `k`.

    Args:
        k: how many count as worst.

    >>> followed = Followed(1)
    >>> for rotation in ([0.1, 0.3, 0.1], [0.1, 0.3, 0.1], [0.1, 0.4, 0.1]):
    ...     chosen = followed.look(["a", "b", "c"], np.array(rotation))
    >>> chosen
    ['b']
    """

    def __init__(self, k: int) -> None:
        self._k = k
        self._streak: dict[str, int] = {}
        self._names: list[str] = []

    def look(self, names: list[str], rotation: Array, expected: Array | float | None = None) -> list[str]:
        """Count a measured step, and say who is followed now.

        Args:
            names: of the layers.
            rotation: of each.
            expected: as in `deviation`.
        """
        score = deviation(rotation, expected)
        now = {names[i]: score[i] for i in worst_first(rotation, expected)[: self._k]}
        self._streak = {name: self._streak.get(name, 0) + 1 for name in now}
        for name, far in now.items():
            free = len(self._names) < (TIMES * self._k if far > FAR else self._k)
            if self._streak[name] >= PATIENCE and name not in self._names and free:
                self._names.append(name)
        return list(self._names)
