"""Findings as a page shows them: the evidence, the curve that shows it, and what to do."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from equipoise.board.gather import OF_LAYERS, RunData
from equipoise.board.pages.forward_view import forward_curve
from equipoise.finding import Finding
from equipoise.monitor.diagnose.events import WENT_FIRST, Event

MOST = 40
"""Findings beyond this many are counted and not shown."""

LANES = 12
"""Events that are drawn, and that of the loss."""

POINTS = 90
"""Points of an evidence curve."""

BY_CODE = {"lr": "lr", "decay": "weight_decay", "init": "init_share", "timescale": "memory"}
"""The curve of the whole run that shows a finding which names no tensor, by the beginning of its code."""


def finding_dict(finding: Finding, data: RunData | None = None) -> dict[str, Any]:
    """A finding as plain data, with its evidence."""
    plain: dict[str, Any] = finding.to_dict()
    if data is not None and len(data.layers):
        plain["plot"] = evidence(finding, data)
    return plain


def evidence(finding: Finding, data: RunData) -> dict[str, Any] | None:
    """The curve that a finding is about: of the tensor that it names, or of the run."""
    if finding.code == WENT_FIRST:
        return lanes(data.events)
    tensor = tensor_of(finding, data)
    found = forward_curve(finding.code, finding.where, data)
    if found is not None:
        return _curve(*found)
    if tensor is None:
        start = finding.code.partition("-")[0]
        quantity = BY_CODE.get(start)
        values = data.schedule.values.get(f"{quantity}/0") if quantity else None
        if values is None or quantity is None:
            return None
        return _curve(quantity.replace("_", " "), data.schedule.step, values)
    quantity = next((q for q in OF_LAYERS if q in finding.code.replace("-", "_")), "rotation")
    values = data.layers.values.get(quantity)
    if values is None:
        return None
    forecast = data.layers.values.get(f"{quantity}_forecast")
    at = [t.name for t in data.tensors].index(tensor)
    curve = _curve(OF_LAYERS[quantity], data.layers.step, values[at], None if forecast is None else forecast[at])
    return None if curve is None else curve | {"tensor": tensor}


def lanes(events: Sequence[Event]) -> dict[str, Any] | None:
    """Events as lanes, one each, in their order: what, where, and between which steps.

    Args:
        events: in the order in which they happened.
    """
    shown = [one for i, one in enumerate(events) if i < LANES or one.what == "loss"]
    rows = [{"name": f"{e.what} {e.where}".strip(), "after": e.after, "step": e.step, "said": str(e)} for e in shown]
    return {"lanes": rows, "more": len(events) - len(shown)} if rows else None


def tensor_of(finding: Finding, data: RunData) -> str | None:
    """The tensor that a finding names; the longest of those whose name is in it."""
    names = [t.name for t in data.tensors if t.name and t.name in finding.where]
    return max(names, key=len, default=None)


def _curve(label: str, steps: Any, values: Any, forecast: Any = None) -> dict[str, Any] | None:
    picks = np.unique(np.linspace(0, len(steps) - 1, min(POINTS, len(steps))).round().astype(int))
    if not np.isfinite(np.asarray(values)[picks]).any():
        return None
    curve = {"label": label, "x": steps[picks].tolist(), "y": _plain(values[picks])}
    if forecast is None or not np.isfinite(forecast[picks]).any():  # vectors have none
        return curve
    return curve | {"forecast": _plain(forecast[picks])}


def _plain(values: Any) -> list[float | None]:
    return [float(f"{v:.4g}") if math.isfinite(v) else None for v in np.asarray(values, float)]


def as_json(thing: Any) -> str:
    """JSON that any browser reads: numbers that are not finite become null."""
    return json.dumps(_clean(thing), default=str)


def _clean(thing: Any) -> Any:
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else None
    if isinstance(thing, dict):
        return {str(k): _clean(v) for k, v in thing.items()}
    if isinstance(thing, list | tuple):
        return [_clean(v) for v in thing]
    return thing
