"""A run as a row of a table: its status, losses, settings, last logged values, and meta. Needs no torch."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.monitor.runs.schedule_points import Schedules
from equipoise.monitor.runs.tags import tags_of
from equipoise.monitor.store.layout import LOG, Column
from equipoise.monitor.store.run import Run

Value = float | int | str | list[str]

CURVE = 40
"""Points of the loss that a line shows."""

MOST = 300
"""Values of meta that a line has."""

LONGEST = 200
"""Letters of a value."""


@dataclass(frozen=True)
class RunRow:
    """A run in a table.

    Attributes:
        values: by the names of columns. Of equal names the run's own comes first, then what it logged (else
            `logged.NAME`), then its meta (else `meta.NAME`).
        logged: those of the columns that were logged.
        meta: those of the columns that are of the meta.
        counts: how many findings there are of each severity.
        curve: the training loss, for a small picture.
        error: why the run cannot be read.
    """

    values: dict[str, Value] = field(default_factory=dict)
    logged: frozenset[str] = frozenset()
    meta: frozenset[str] = frozenset()
    counts: Mapping[str, int] = field(default_factory=dict)
    curve: tuple[float, ...] = ()
    error: str = ""

    @property
    def read(self) -> bool:
        """Whether the run was opened: the values of one that was not are those of its file alone."""
        return "status" in self.values


def row_of(path: Path) -> RunRow:
    """The line of a run; of one that cannot be read, why."""
    try:
        with Run.open(path) as run:
            return _line(run)
    except Exception as error:  # whatever is wrong with one run, the others must be listed
        said = str(error).replace(f"{path}{os.sep}", "")
        return RunRow({"status": "broken"}, error=said.encode("utf-8", "backslashreplace").decode())


def _line(run: Run) -> RunRow:
    meta = run.meta
    values: dict[str, Value] = {"status": run.status, "started": run.started}
    if "optimizer" in meta:
        values["optimizer"] = str(meta["optimizer"])[:LONGEST]
    if tags := tags_of(run.path, meta):
        values["tags"] = tags
    findings = run.findings  # as stored: to diagnose every run takes too long
    if findings:
        values["findings"] = list(dict.fromkeys(f.code for f in findings))
    final, best = run.final, run.best
    if final is not None:
        values |= {"loss": final.mean, "last": final.last}
    if best is not None:
        values |= {"validation": best.value, "validation_step": best.step}
    values |= _settings(run)
    coverage = run.coverage
    if coverage.steps:
        values |= {"steps": coverage.steps, "measured": coverage.measured, "measured_to": coverage.last}
    last, curve = _logged(run, None if final is None else final.name)
    named = {_free(name, "logged", values): value for name, value in last.items() if name != "loss"}  # that is `last`
    values |= named
    said = {k: v for k, v in _flat(meta) if k not in ("optimizer", "tags")}
    said = {_free(name, "meta", values): value for name, value in list(said.items())[:MOST]}
    return RunRow(values | said, frozenset(named), frozenset(said), Counter(f.severity for f in findings), curve)


def _free(name: str, prefix: str, taken: Mapping[str, Any]) -> str:
    return f"{prefix}.{name}" if name in taken or name in ("name", "changed", "curve", "tags", "findings") else name


def _settings(run: Run) -> dict[str, Value]:
    """The largest lr and weight decay of the group with the most weights in matrices."""
    weights: dict[int, int] = {}
    for t in run.tensors.values():
        weights[t.group] = weights.get(t.group, 0) + (math.prod(t.shape) if len(t.shape) > 1 else 0)
    group = max(weights, key=lambda g: weights[g], default=0)
    schedules = Schedules(run)
    points = {name: schedules.change_points(q, group)[1] for name, q in (("lr", "lr"), ("wd", "weight_decay"))}
    return {name: float(f"{values.max():.6g}") for name, values in points.items() if len(values)}


def _logged(run: Run, loss: str | None) -> tuple[dict[str, float], tuple[float, ...]]:
    """The last value of all that was logged, and the loss as a curve."""
    kind = LOG if LOG in run.kinds else "main"
    columns = [Column(name) for name in run.logged] if kind == LOG else [Column(loss)] if loss is not None else []
    if not columns:
        return {}, ()
    table = run.table(columns, kind=kind, points=CURVE, fine=16 * CURVE)
    curve: tuple[float, ...] = ()
    if loss is not None:
        line = table.values[:, columns.index(Column(loss))]
        curve = tuple(float(f"{v:.4g}") for v in line[np.isfinite(line)])
    last = {c.quantity: _last(run, table, i, kind) for i, c in enumerate(columns)}
    return {name: v for name, v in last.items() if v is not None}, curve


def _last(run: Run, table: Any, i: int, kind: str) -> float | None:
    """The last value of a column: down to the row where the table has the mean of several."""
    while True:
        there = np.flatnonzero(table.count[:, i])
        if not len(there):
            return None
        row = there[-1]
        if table.count[row, i] == 1 or table.level == 0:
            return float(table.values[row, i])
        span = {"start": int(table.first[row]), "stop": int(table.last[row]) + 1}
        table, i = run.table([table.columns[i]], kind=kind, points=256, **span), 0


def _flat(meta: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Value]]:
    """Numbers and words of the meta; those of a table within it by `table.key`."""
    for key, value in meta.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, int | float):
            yield name, value
        elif isinstance(value, list | tuple) and all(isinstance(v, str | int | float) for v in value):
            yield name, ", ".join(map(str, value))[:LONGEST]
        elif isinstance(value, str):
            yield name, value[:LONGEST]
