"""Checks of what the weights do: equilibrium, balance, transients, radial gradients. Each yields findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.evidence import LATE, SETTLED, Evidence
from equipoise.planner.finding import Finding
from equipoise.theory import forecast

Array = NDArray[np.float64]

RE = "Kosson et al., Rotational Equilibrium, arXiv 2305.17212"
NOTE = "norm note, Weight Decay Controls The Effective Learning Rate"

# Thresholds, chosen on seeds other than those that docs/diagnosis.md reports.
LAYERS = 6.0
"""A layer may turn so much faster or slower than the median of settled layers."""

LAYERS_YOUNG = 12.0
"""The same before equilibrium, when speeds follow the initial norms."""

NEURONS = 8.0
"""The 90 % quantile of a layer's neurons may turn so much faster than the 10 % quantile."""

FAST = 5.0
"""Early rotation over that of equilibrium at peak lr; as `plan` has it."""

DRIFT = 0.7
"""‖w‖² may drift by this share of what decay takes a step."""

BEHIND = 0.4
"""Rotation below this share of the present lr's equilibrium has fallen out of it."""

RADIAL = 3.0
"""λ_u of the gradient beside λ; inwards the norm is then half of what it would be."""

OUTWARDS = -0.9
"""λ_u that takes so much of λ away; the norm is then more than three times what it would be."""


def check_layers(e: Evidence) -> Iterator[Finding]:
    """Layers that turn much faster or slower than the others."""
    rotation = e.late_mean("rotation")
    layers = [i for i in e.layers if rotation[i] > 0]
    if len(layers) < 3:
        return
    middle = float(np.exp(np.median(np.log(rotation[layers]))))
    off = {}
    for i in layers:
        ratio = float(rotation[i]) / middle
        if abs(np.log(ratio)) > np.log(LAYERS if e.settled(i) else LAYERS_YOUNG):
            off[i] = ratio
    if not off:
        return
    worst = max(off, key=lambda i: abs(np.log(off[i])))
    faster = "faster" if off[worst] > 1 else "slower"
    ratio = max(off[worst], 1 / off[worst])
    yield Finding(
        "layers-unbalanced",
        "warning",
        e.names[worst],
        f"turns {rotation[worst]:.3g} rad a step, {ratio:.3g}× {faster} than the median layer{_others(e, worst, off)}"
        + _own_lr(e, worst, layers),
        f"within {LAYERS:g}× of the median, {middle:.3g} rad",
        "give it the lr and weight decay of the others, or use a rotational optimizer, which balances layers",
        f"{RE}, section 4",
    )


def _own_lr(e: Evidence, i: int, layers: list[int]) -> str:
    """A word on the layer's own lr, where others have another one."""
    lrs = {g: float(np.max(e.hyper("lr", g))) for g in set(e.group[layers].tolist()) if g < len(e.groups)}
    own = lrs.get(int(e.group[i]))
    usual = float(np.median([lrs[g] for g in e.group[layers].tolist() if g in lrs])) if lrs else 0.0
    if not own or not usual or 1 / 3 < own / usual < 3:
        return ""
    return f"; its group's lr is {own:.3g}, that of most layers {usual:.3g}"


def check_neurons(e: Evidence) -> Iterator[Finding]:
    """Neurons of one layer that turn at very different speeds."""
    low, high = e.late_mean("rotation", 0.1), e.late_mean("rotation", 0.9)
    with np.errstate(all="ignore"):
        ratio = np.where(e.dense & (low > 0), high / low, 0.0)
    # The neurons of an output layer are classes or tokens, frequent and rare ones.
    inner = [i for i in e.layers if e.tensors[i].role != "head"]
    off = {i: float(ratio[i]) for i in inner if ratio[i] > NEURONS and e.settled(i)}
    if off:
        worst = max(off, key=lambda i: off[i])
        yield Finding(
            "neurons-unbalanced",
            "warning",
            e.names[worst],
            f"a tenth of its neurons turn by {high[worst]:.3g} rad a step or more, another tenth by {low[worst]:.3g} "
            f"or less: {ratio[worst]:.3g}×{_others(e, worst, off)}",
            f"less than {NEURONS:g}×",
            "look for L2 in Adam's gradient, dead inputs, or gradients of very different size; a rotational optimizer "
            "turns all neurons alike",
            f"{RE}, section 4",
        )


def check_transient(e: Evidence) -> Iterator[Finding]:
    """Rotation early in the run far above equilibrium's: warmup is missing or short, and how long it should be."""
    early = e.steps <= max(20, 0.1 * e.last)
    if not early.any():
        return
    rotation = e.high("rotation")[early]
    found: dict[int, tuple[float, int]] = {}
    for i in e.layers:
        case = e.case(i) if e.forecasts(i) and e.start[i] != 0 else None  # from 0 a step has no angle
        if case is None or not np.isfinite(rotation[:, i]).any():
            continue
        settled = float(case.equilibrium.rotation.max())
        at = int(np.nanargmax(rotation[:, i]))
        if settled > 0 and rotation[at, i] > FAST * settled:
            found[i] = (float(rotation[at, i]) / settled, at)
    if not found:
        return
    worst = max(found, key=lambda i: found[i][0])
    ratio, at = found[worst]
    yield Finding(
        "transient-too-fast",
        "warning",
        e.names[worst],
        f"turned by {rotation[at, worst]:.3g} rad at step {e.steps[at]:,}, {ratio:.3g}× as fast as in equilibrium at "
        f"peak lr{_others(e, worst, found)}",
        f"less than {FAST:g}×",
        f"{_warmup(e, worst)}, start with larger weights, or use a rotational optimizer",
        f"{RE}, section 3, Need for Learning Rate Warmup",
    )


def _warmup(e: Evidence, i: int) -> str:
    """How long a linear warmup must be for the forecast to stay below half of the threshold."""
    case = e.case(i)
    assert case is not None
    peak = float(case.equilibrium.rotation.max())
    length = len(case.lr)
    steps = 8
    while steps < length // 2:
        rising = case.common | {"lr": case.lr.max() * np.minimum(1.0, np.arange(1, length + 1) / steps)}
        if forecast(case.name, scale=case.update_scale**2, **rising).rotation.max() < 0.5 * FAST * peak:
            return f"warm up over about {steps:,} steps"
        steps *= 2
    return "lower lr: no warmup shorter than half of the run would do"


def check_drift(e: Evidence) -> Iterator[Finding]:
    """A norm that still grows or shrinks though it had the time to settle."""
    steps, norm = e.steps[e.late], e.mean("norm")[e.late]
    if len(steps) < 8 or steps[-1] - steps[0] < 8:
        return
    off: dict[int, float] = {}
    for i in e.matrices:
        there = np.isfinite(norm[:, i]) & (norm[:, i] > 0)
        if not e.settled(i) or there.sum() < 8:
            continue
        g = int(e.group[i])
        lr = e.hyper("lr", g)[steps[0] - 1 : steps[-1]]
        lost = e.groups[g].group.decay_per_step(lr, e.hyper("weight_decay", g)[steps[0] - 1 : steps[-1]])
        if lr.max() > 1.2 * lr.min() or lost.mean() == 0:
            continue  # the equilibrium itself moves
        case = e.case(i)
        if case is None or case.gap(e.folds[~e.late, i][-1]) > 0.25:
            continue  # it started so far away that it must still be on its way
        slope = float(np.polyfit(steps[there] - steps[0], 2 * np.log(norm[there, i]), 1)[0])
        if abs(slope) > DRIFT * 2 * lost.mean():
            off[i] = slope / (2 * float(lost.mean()))
    if off:
        worst = max(off, key=lambda i: abs(off[i]))
        way = "grows" if off[worst] > 0 else "shrinks"
        yield Finding(
            "not-in-equilibrium",
            "info",
            e.names[worst],
            f"its norm {way}: ‖w‖² changes by {abs(off[worst]):.2g} of what decay takes a step, after decay has added "
            f"up to {e.folds[-1, worst]:.2g}{_others(e, worst, off)}",
            f"less than {DRIFT:g}: decay and updates in balance after {SETTLED:g}",
            "updates or gradients change in size (see c_err), or the gradient has a part along the weights (see "
            "radial_decay)",
            f"{RE}, section 3",
        )


def check_falls_out(e: Evidence) -> Iterator[Finding]:
    """Rotation far below the present lr's equilibrium: lr fell faster than norms can follow."""
    off: dict[int, float] = {}
    for i in e.layers:
        if not e.settled(i) or e.groups[e.group[i]].group.decay == "corrected":
            continue
        case = e.case(i)
        lr = e.hyper("lr", int(e.group[i]))
        if case is None or lr[e.last - 1] > 0.5 * lr.max() or lr[e.last - 1] == 0:
            continue
        ends = case.seen.steps >= 0.95 * e.last
        if not ends.any():
            continue
        ratio = float(np.mean(case.seen.rotation[ends] / case.equilibrium.rotation[ends]))
        if ratio < BEHIND:
            off[i] = ratio
    if off:
        worst = min(off, key=lambda i: off[i])
        yield Finding(
            "leaves-equilibrium",
            "info",
            e.names[worst],
            f"turns {off[worst]:.2g}× as fast as the present lr's equilibrium would{_others(e, worst, off)}: lr fell "
            "faster than the norm can",
            f"above {BEHIND:g}×",
            "none needed if a slow end is wanted; corrected decay (decay='corrected') keeps the norm, and rotation "
            "goes with lr",
            "AdamC, arXiv 2506.02285",
        )


def check_radial(e: Evidence) -> Iterator[Finding]:
    """Gradients with a large part along the weights: the loss depends on the norm."""
    off: dict[int, float] = {}
    for i in e.layers:
        if not e.settled(i):
            continue
        case = e.case(i)
        wd = e.hyper("weight_decay", int(e.group[i]))[e.last - 1]
        if case is None or wd == 0:
            continue
        late = case.seen.steps >= LATE * e.last
        if not late.any():
            continue
        along = case.along(np.ones(len(case.lr)))[case.at[late]]
        share = float(np.mean(along)) / wd
        if share > RADIAL or share < OUTWARDS:
            off[i] = share
    if off:
        worst = max(off, key=lambda i: off[i] if off[i] > 0 else -10 * off[i])
        way = "pulls its norm in" if off[worst] > 0 else "pushes its norm out"
        yield Finding(
            "radial-gradient",
            "info",
            e.names[worst],
            f"its gradient {way} like a weight decay of {off[worst]:+.2g} times the one that is set"
            f"{_others(e, worst, off)}",
            f"between {OUTWARDS:g} and {RADIAL:g}: about 0 where the loss does not depend on the norm",
            "its norm follows the loss, not lr and weight decay: read λ_e (total_decay) instead of λ, or normalise "
            "after the layer",
            f"{RE}, appendix L",
        )


def _others(e: Evidence, worst: int, found: Iterable[int]) -> str:
    """Where else, in brackets."""
    rest = [e.names[i] for i in found if i != worst]
    if not rest:
        return ""
    return f" (also {', '.join(rest[:3])}{f' and {len(rest) - 3} more' if len(rest) > 3 else ''})"


CHECKS = (check_layers, check_neurons, check_transient, check_drift, check_falls_out, check_radial)
