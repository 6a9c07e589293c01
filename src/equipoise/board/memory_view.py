"""What each batch so far contributes to the weights now, from the lr and decay that the run really had."""

from __future__ import annotations

from typing import Any

import numpy as np

from equipoise.board.gather import RunData
from equipoise.theory import Memory, memory

FAINT = 1e-30
"""A share of the initial weights below this is lost in float32."""


def remembered(data: RunData) -> Memory | None:
    """Memory of the group with the most rotating weights; None where lr was not measured.

    Between measured steps lr is interpolated. What a step keeps is read off the measured share of the initial weights,
    which knows how the optimizer decays, as long as it can be told from 0; then off lr·wd.
    """
    group = main_group(data)
    lr, wd, left = (data.whole.get(f"{name}/{group}") for name in ("lr", "weight_decay", "init_share"))
    if lr is None or wd is None or not len(data.layers):
        return None
    there = np.isfinite(lr) & np.isfinite(wd)
    if not there.any() or not (lr[there] > 0).any():
        return None
    at, steps = data.layers.step[there], np.arange(1, int(data.layers.step[there][-1]) + 1)
    rate, decay = (np.interp(steps, at, part[there].astype(np.float64)) for part in (lr, wd))
    kept = None
    if left is not None and np.isfinite(left[there]).all() and left[there][-1] > FAINT:
        total = np.interp(steps, np.append(0, at), np.append(0.0, np.log(left[there].astype(np.float64))))
        kept = np.exp(np.diff(total, prepend=0.0))
    try:
        return memory(lr=rate, weight_decay=decay, kept=kept)
    except ValueError:  # decay that overshoots: nothing to remember by
        return None


def main_group(data: RunData) -> int:
    """The group with the most weights in matrices."""
    sizes: dict[int, int] = {}
    for t in data.tensors:
        weights = int(np.prod(t.shape)) if t.shape else 1
        sizes[t.group] = sizes.get(t.group, 0) + weights * (1 if len(t.shape) > 1 else 0)
    return max(sizes, key=lambda g: sizes[g], default=0)


def memory_data(found: Memory | None, points: int = 400) -> dict[str, Any]:
    """Contribution of each step over that of equal shares."""
    if found is None:
        return {"step": [], "share": []}
    steps = len(found.weights)
    picks = np.unique(np.linspace(0, steps - 1, min(points, steps)).round().astype(int))
    return {"step": (picks + 1).astype(np.float64), "share": (found.share[picks] * steps).astype(np.float64)}
