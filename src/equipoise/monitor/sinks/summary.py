"""Summarise a measured step into the few numbers that sinks get."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.diagnose.ranking import Followed
from equipoise.monitor.measure.quantities import PER_GROUP
from equipoise.monitor.store.layout import Column, TensorInfo

Array = NDArray[np.float64]

OVER_LAYERS = ("rotation", "norm", "relative_update", "grad_norm", "total_decay", "c_err")
"""Quantities whose median, least and largest value over matrices are sent."""

OF_FOLLOWED = ("rotation", "norm")
"""Quantities that are sent of a followed layer."""

GROUPS = 4
"""Where there are more groups, the least and the largest value over them are sent instead of one for each."""

NAMES = {
    "balance_neurons": "balance/neurons",
    "balance_layers": "balance/layers",
    "step_time": "time/step",
    "watch_share": "time/watch_share",
}
"""What the quantities of the whole run are called here; the others keep their names."""


class StepSummary:
    """Makes the numbers of each measured step: some 25, and three for each followed layer.

    Args:
        k: how many layers count as worst; see `Followed`.
    """

    def __init__(self, k: int = 3) -> None:
        self._followed = Followed(k)

    def numbers(
        self,
        tensors: Sequence[TensorInfo],
        per: Mapping[str, Array],
        columns: Sequence[Column],
        row: Array,
        expected: Array | None = None,
    ) -> dict[str, float]:
        """The numbers of a step by name; what was not measured is left out.

        Args:
            tensors: the watched tensors.
            per: quantities of each tensor, one array each.
            columns: what the numbers of `row` are; those of the whole run come first.
            row: the row.
            expected: predicted rotation of each tensor, where it is known. None: the median.
        """
        chosen = [i for i, t in enumerate(tensors) if len(t.shape) > 1] or list(range(len(tensors)))
        out: dict[str, float] = {}
        for name in OVER_LAYERS:
            values = per[name][chosen]
            values = values[~np.isnan(values)]
            if len(values):
                out |= {f"{name}/median": np.median(values), f"{name}/min": values.min(), f"{name}/max": values.max()}
        out |= _of_run(columns, row)
        names = [tensors[i].name for i in chosen]
        wanted = None if expected is None else expected[chosen]
        for name in self._followed.look(names, per["rotation"][chosen], wanted):
            if name not in names:
                continue  # frozen, or gone with its group
            i = chosen[names.index(name)]
            out |= {f"worst/{name}/{q}": per[q][i] for q in OF_FOLLOWED}
            against = out.get("rotation/median", np.nan) if expected is None else expected[i]
            word = "median" if expected is None else "predicted"
            with np.errstate(all="ignore"):
                out[f"worst/{name}/rotation_over_{word}"] = per["rotation"][i] / against
        return {f"equipoise/{name}": float(value) for name, value in out.items() if not np.isnan(value)}


def _of_run(columns: Sequence[Column], row: Array) -> dict[str, float]:
    """The numbers of the whole run, those of groups put together where there are many."""
    groups: dict[str, list[float]] = {q.name: [] for q in PER_GROUP}
    out: dict[str, float] = {}
    for column, value in zip(columns, row, strict=False):
        if column.tensor is not None:
            break
        quantity, slash, _ = column.quantity.partition("/")
        if slash and quantity in groups:
            groups[quantity].append(value)
        else:
            out[NAMES.get(column.quantity, column.quantity)] = value
    for name, values in groups.items():
        if len(values) > GROUPS:
            out |= {f"{name}/min": min(values), f"{name}/max": max(values)}
        else:
            out |= {f"{name}/{i}": value for i, value in enumerate(values)}
    return out
