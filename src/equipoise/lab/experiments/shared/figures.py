"""What figures share: points with the deviation of a seed, and an axis of learning rates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from equipoise.lab.report.claims import Stat


def points(axis: Any, found: Mapping[Any, Stat], **style: Any) -> None:
    """Means with the deviation of a single seed; what no seed has finished is left out."""
    kept = {x: s for x, s in found.items() if s.count}
    spread = np.nan_to_num([s.std for s in kept.values()])
    axis.errorbar(list(kept), [s.mean for s in kept.values()], spread, **{"marker": "o", "capsize": 3, **style})


def lr_axis(axis: Any, lrs: Iterable[float], **words: Any) -> None:
    """A logarithmic axis that names the learning rates, or decays, that were tried."""
    shown = sorted(set(lrs))
    axis.set(xscale="log", **words)
    axis.set_xticks(shown, [f"{lr:.3g}" for lr in shown])
    axis.minorticks_off()
