"""The forecast that is laid over a run: the one place where the board asks `monitor` for it."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
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
    try:
        module: Any = importlib.import_module("equipoise.monitor.compare")
        compared = module.Comparer(run).plain(tensors, points=points)
    except ModuleNotFoundError:  # no forecasts of runs in this version
        return {}
    except ValueError:  # the run does not say what its optimizer was, or lacks what a forecast needs
        return {}
    found = {}
    for one in compared:
        at = np.asarray(one.steps, np.float64)
        here = [
            np.interp(steps, at, np.asarray(values, np.float64), left=np.nan, right=np.nan)
            for values in (one.plain.norm, one.plain.rotation)
        ]
        if np.isfinite(here[0]).any() or np.isfinite(here[1]).any():
            found[one.tensor] = Predicted(*here)
    return found


def diagnosed(run: Run) -> list[Finding]:
    """All that is known to be wrong with a run: said while it was written, by its file, and by its numbers."""
    diagnose = getattr(run, "diagnose", None)
    try:
        return run.findings if diagnose is None else [*diagnose(), *_of_file(run)]
    except ValueError:  # too little was measured, or the optimizer is not known
        return run.findings


def _of_file(run: Run) -> list[Finding]:
    """What is wrong with the file itself."""
    said = {(f.code, f.where) for _, f in run.timeline}
    return [f for f in run.findings if (f.code, f.where) not in said]
