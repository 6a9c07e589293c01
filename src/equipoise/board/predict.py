"""The forecast that is laid over a run: the one place where the board asks `monitor` for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.attribute import Predicted
from equipoise.monitor.compare import Comparer
from equipoise.monitor.run import Run

Array = NDArray[np.float64]


def predicted(run: Run, tensors: Sequence[str], steps: Array, points: int = 200) -> dict[str, Predicted]:
    """What theory says of tensors at these steps; those of which it says nothing are left out.

    Args:
        run: the run.
        tensors: their names.
        steps: where it is wanted; between the steps of the comparison it is interpolated.
        points: how fine the comparison is asked for.
    """
    if not len(steps) or not tensors:
        return {}
    found = {}
    for one in Comparer(run).plain(tensors, points=points):
        at = np.asarray(one.steps, np.float64)
        here = [
            np.interp(steps, at, np.asarray(values, np.float64), left=np.nan, right=np.nan)
            for values in (one.plain.norm, one.plain.rotation, one.plain.update)
        ]
        if np.isfinite(here[0]).any() or np.isfinite(here[1]).any():
            found[one.tensor] = Predicted(*here)
    return found
