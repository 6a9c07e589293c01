"""The forward pass of a run: what is read of it, as sources of its figure, and as curves beside findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.forward.quantities import FORWARD, LABELS, QUANTITIES
from equipoise.monitor.runs.short_names import natural
from equipoise.monitor.store.layout import Column
from equipoise.monitor.store.run import Run

if TYPE_CHECKING:
    from equipoise.board.gather import RunData

MOST = 40
"""Modules of each quantity that are shown, evenly spread."""

POINTS = 240
"""Points of each line, about."""

ENDS = ("low", "high")
"""Of the heads of a module, the lowest and the highest."""

BY_CODE = {
    "activations-growing": "output_rms",
    "attention-logits-growing": "attention_logit",
    "experts-unbalanced": "expert_load",
    "units-dead": "units_dead",
}
"""The quantity that a finding is about."""

Values = dict[str, tuple[list[str], dict[str, NDArray[np.float32]]]]


class ForwardData:
    """What was measured of the forward pass.

    Args:
        steps: of the points.
        times: seconds since the run began.
        values: for each quantity the modules, and a line for each: "" its number, "low" and "high" of its heads.
    """

    def __init__(
        self, steps: NDArray[Any] | None = None, times: NDArray[Any] | None = None, values: Values | None = None
    ) -> None:
        nothing = np.empty(0)
        self.steps = nothing if steps is None else steps
        self.times = nothing if times is None else times
        self.values = values or {}


def read_forward(run: Run, columns: set[Column], start: float) -> ForwardData:
    """Read the forward pass of a run.

    Args:
        run: the run.
        columns: those of the run.
        start: when it began, in seconds since 1970.
    """
    if FORWARD not in run.kinds:
        return ForwardData()
    known = {q.name for q in QUANTITIES}
    mine = [c for c in columns if c.quantity in known and c.tensor is not None]
    places: dict[str, list[str]] = {}
    for quantity in LABELS:
        names = sorted({str(c.tensor) for c in mine if c.quantity == quantity}, key=natural)
        if names:
            picks = np.unique(np.linspace(0, len(names) - 1, min(MOST, len(names))).round().astype(int))
            places[quantity] = [names[i] for i in picks]
    wanted = [c for c in mine if c.tensor in places.get(c.quantity, ())]
    if not wanted:
        return ForwardData()
    table = run.table(wanted, kind=FORWARD, points=POINTS, fine=4 * POINTS)
    at: dict[tuple[str, str], list[int]] = {}
    whole: dict[tuple[str, str], int] = {}
    for i, c in enumerate(wanted):
        key = c.quantity, str(c.tensor)
        if c.neuron is None:
            whole[key] = i
        else:
            at.setdefault(key, []).append(i)
    values: Values = {}
    for quantity, names in places.items():
        lines = {"": np.full((len(names), len(table)), np.nan, np.float32)}
        lines |= {end: lines[""].copy() for end in ENDS} if any((quantity, n) in at for n in names) else {}
        for row, name in enumerate(names):
            if (quantity, name) in whole:
                lines[""][row] = table.values[:, whole[quantity, name]]
            if (heads := at.get((quantity, name))) is not None:
                lines["low"][row], lines["high"][row] = table.low[:, heads].min(1), table.high[:, heads].max(1)
        values[quantity] = names, lines
    return ForwardData(table.steps, table.times - start, values)


def forward_sources(data: RunData, axis: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The sources of the figure: one with all lines, a module each, and its axis.

    Args:
        data: what was read of the run.
        axis: the axis.
    """
    found = data.forward.values
    columns: dict[str, Any] = {"name": [f"{q} {n}" for q, (names, _) in found.items() for n in names]}
    for part in ("", *ENDS):
        empty = np.full((1, len(data.forward.steps)), np.nan, np.float32)
        lines = [(parts[part] if part in parts else np.repeat(empty, len(names), 0)) for names, parts in found.values()]
        if lines:
            columns[part or "value"] = np.ascontiguousarray(np.concatenate(lines), np.float32)
    return {"passes": columns, "passes-axis": axis}


def forward_curve(code: str, where: str, data: RunData) -> tuple[str, NDArray[Any], NDArray[Any]] | None:
    """The curve of a finding about the forward pass: its label, steps and values; None for other findings.

    Args:
        code: of the finding.
        where: the module that it names.
        data: what was read of the run.
    """
    quantity = BY_CODE.get(code)
    names, parts = data.forward.values.get(quantity or "", ([], {}))
    if quantity is None or where not in names:
        return None
    return LABELS[quantity], data.forward.steps, parts[""][names.index(where)]
