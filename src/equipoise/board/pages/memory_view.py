"""The contribution of each batch to the current weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.board.gather import RunData

POINTS = 400
"""Steps that are drawn, at most."""


def memory_data(data: RunData) -> dict[str, Any]:
    """Contribution of each step that was taken, over that of equal shares."""
    found = data.remembered
    if found is None:
        return {"step": [], "share": []}
    steps = len(found.weights)
    picks = np.unique(np.linspace(0, steps - 1, min(POINTS, steps)).round().astype(int))
    at = data.coverage.start + picks + 1
    return {"step": at.astype(np.float64), "share": (found.share[picks] * steps).astype(np.float64)}
