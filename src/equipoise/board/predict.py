"""The forecast of a run on the board; the only place that asks `monitor` for it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from equipoise.monitor.diagnose.attribute import Predicted, Spans
from equipoise.monitor.diagnose.compare import Comparer
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.tables import Table


def predicted(run: Run, tensors: Sequence[str], table: Table) -> dict[str, Predicted]:
    """What theory says of tensors at the lines of a table; those of which it says nothing are left out.

    Where a line sums up several measured steps, the forecast is the mean over the same steps.

    Args:
        run: the run.
        tensors: their names.
        table: of measured steps.
    """
    if not len(table) or not tensors:
        return {}
    steps = run.measured
    steps = steps[steps <= table.last[-1]]  # the run may have gone on
    starts = np.searchsorted(steps, table.first)
    ends = np.append(starts[1:], len(steps))
    if (starts >= ends).any():  # rows that cannot be read
        return {}
    return Comparer(run).forecasts(tensors, Spans(steps, starts))
