"""Checks of a fine-tuning run: how much is left of the pretrained weights. They state facts."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from equipoise.finding import Finding
from equipoise.monitor.diagnose.evidence import Evidence
from equipoise.monitor.measure.quantities import distances
from equipoise.planner.checks.finetune import FAR, far_from_start, taken


def check_taken(e: Evidence) -> Iterator[Finding]:
    """Decay has removed much of the initial weights."""
    for g, recorded in enumerate(e.groups):
        mine = [i for i in e.members.get(g, ()) if e.start[i] > 0]
        if mine and recorded.dynamics.optimizer != "adam_l2" and e.lost(g).max(initial=0.0) < 1:
            share = -math.expm1(float(np.log1p(-e.lost(g)).sum()))
            yield from taken(recorded.name or e.names[mine[0]], share, e.last)


def check_far(e: Evidence) -> Iterator[Finding]:
    """The median layer is farther from its start than its own norm."""
    if e.mostly_untrained:
        return
    far = distances(e.mean("norm")[-1], e.mean("angle")[-1], e.start)
    there = [i for i in e.layers if np.isfinite(far[i])]
    if there and (middle := float(np.median(far[there]))) > FAR:
        worst = max(there, key=lambda i: far[i])
        evidence = f"is {far[worst]:.2g}× its initial norm away from its start, the median layer {middle:.2g}×"
        yield far_from_start(e.names[worst], evidence)


CHECKS = (check_taken, check_far)
