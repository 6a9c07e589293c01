"""The forecast that is laid over a run: the one place where the board asks `monitor` for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.run import Run
from equipoise.planner.finding import Finding

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Predicted:
    """What theory says of a tensor at some steps; NaN where it says nothing.

    Attributes:
        norm: of the weights after each step.
        rotation: angle of each step.
    """

    norm: Array
    rotation: Array


def predicted(run: Run, tensor: str, steps: Array, points: int = 500) -> Predicted | None:
    """What theory says of a tensor, at these steps; None where nothing is known.

    Args:
        run: the run.
        tensor: the tensor's name.
        steps: where it is wanted; between the steps of the comparison it is interpolated.
        points: how fine the comparison is asked for.
    """
    compare = getattr(run, "compare", None)
    if compare is None:
        return None
    try:
        found: Any = compare(tensor, points=points)
    except ValueError:  # a quantity that the comparison needs was not measured
        return None
    at = np.asarray(found.steps, np.float64)
    if not len(at):
        return None

    def here(values: Any) -> Array:
        return np.interp(steps, at, np.asarray(values, np.float64), left=np.nan, right=np.nan)

    both = Predicted(here(found.plain.norm), here(found.plain.rotation))
    return both if np.isfinite(both.rotation).any() or np.isfinite(both.norm).any() else None


def diagnosed(run: Run) -> list[Finding]:
    """All that is known to be wrong with a run: said while it was written, by its file, and by its numbers."""
    diagnose = getattr(run, "diagnose", None)
    try:
        more = list(diagnose()) if diagnose is not None else []
    except ValueError:  # too little was measured
        more = []
    return [*run.findings, *more]
