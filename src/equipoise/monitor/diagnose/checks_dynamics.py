"""Checks of how weights move: equilibrium, balance, transients, radial gradients. Each yields findings."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from equipoise.finding import Finding
from equipoise.monitor.diagnose.evidence import LATE, SETTLED, Evidence
from equipoise.planner.checks.rates import fast_start

Array = NDArray[np.float64]


# Thresholds, chosen on the part "chosen" of benchmarks/workloads.py; docs/diagnosis.md reports all.
LAYERS = 6.0
"""Settled layers may rotate up to this factor faster or slower than their median."""

LAYERS_YOUNG = 12.0
"""The same factor before equilibrium, when speeds still depend on the initial norms."""

OWN_LR, OWN_TURNS = 10.0, 2.0
"""A layer is reported if its lr differs from the others' by the first factor and its rotation by the second."""

NEURONS = 8.0
"""The 90 % quantile of a layer's neurons may rotate up to this factor faster than the 10 % quantile."""

HARDLY, HARDLY_STEPS = 0.03, 100
"""Weights hardly move if the updates of the median layer add up to less than this share of its norm, this late."""

UNMOVED = 0.03
"""A loss that fell by less than this share has hardly moved."""

DRIFT = 0.7
"""‖w‖² may drift per step by this share of what decay removes per step."""

BEHIND = 0.4
"""Rotation below this share of the current lr's equilibrium has left it."""

RADIAL = 3.0
"""λ_u/λ of an inward gradient; the norm is then half of what it would be."""

OUTWARDS = -0.9
"""λ_u/λ of an outward gradient; the norm is then more than three times what it would be."""


def check_layers(e: Evidence) -> Iterator[Finding]:
    """Layers that rotate much faster or slower than the others of the same optimizer."""
    rotation = e.late_mean("rotation")
    off: dict[int, float] = {}
    own: dict[int, float] = {}
    for rule in {g.dynamics.optimizer for g in e.groups}:
        layers = [i for i in e.layers if rotation[i] > 0 and _rule(e, i) == rule]
        if len(layers) < 3:
            continue
        middle = float(np.exp(np.median(np.log(rotation[layers]))))
        lrs = [float(e.hyper("lr", int(e.group[i])).max()) for i in layers]
        usual = float(np.median(lrs))
        for i, lr in zip(layers, lrs, strict=True):
            ratio, more = float(rotation[i]) / middle, lr / usual
            far = abs(np.log(ratio)) > np.log(LAYERS if e.settled(i) else LAYERS_YOUNG)
            if (more >= OWN_LR and ratio >= OWN_TURNS) or (more <= 1 / OWN_LR and ratio <= 1 / OWN_TURNS):
                own[i] = more
                off[i] = ratio
            elif far and e.tensors[i].role != "head":
                off[i] = ratio
    if not off:
        return
    worst = max(off, key=lambda i: (i in own, abs(np.log(off[i]))))
    faster = "faster" if off[worst] > 1 else "slower"
    ratio = max(off[worst], 1 / off[worst])
    yield Finding(
        "layers-unbalanced",
        "info",
        e.names[worst],
        f"rotates {rotation[worst]:.3g} rad per step, {ratio:.3g}× {faster} than the median layer"
        + _others(e, worst, off)
        + (f"; its group's lr is {own[worst]:.3g}× that of most layers" if worst in own else ""),
        f"within {LAYERS:g}× of the median layer of the same optimizer",
        f"it forgets what it learnt {ratio:.3g}× {faster} than the median layer",
        "[kosson2024] section 4",
    )


def _rule(e: Evidence, i: int) -> str:
    """The name in theory of the rule that updates tensor i."""
    return e.groups[e.group[i]].dynamics.optimizer if e.group[i] < len(e.groups) else ""


def check_neurons(e: Evidence) -> Iterator[Finding]:
    """Neurons of one layer that rotate at very different speeds."""
    low, high = e.late_mean("rotation", 0.1), e.late_mean("rotation", 0.9)
    with np.errstate(all="ignore"):
        ratio = np.where(e.dense & (low > 0), high / low, 0.0)
    # The neurons of an output layer are classes or tokens, which may be frequent or rare.
    inner = [i for i in e.layers if e.tensors[i].role != "head"]
    off = {i: float(ratio[i]) for i in inner if ratio[i] > NEURONS and e.settled(i)}
    if off:
        worst = max(off, key=lambda i: off[i])
        yield Finding(
            "neurons-unbalanced",
            "info",
            e.names[worst],
            f"the fastest tenth of its neurons rotates at least {high[worst]:.3g} rad per step, the slowest tenth at "
            f"most {low[worst]:.3g}, a factor of {ratio[worst]:.3g}{_others(e, worst, off)}",
            f"a factor below {NEURONS:g}",
            "possible causes: L2 in Adam's gradient, dead inputs, gradients of very different size. A rotational "
            "optimizer rotates all neurons alike",
            "[kosson2024] section 4",
        )


def check_transient(e: Evidence) -> Iterator[Finding]:
    """The first steps rotate most layers so far that the initial weights are lost within a few steps."""
    early = e.steps <= max(20, 0.1 * e.last)
    layers = [i for i in e.layers if e.start[i] != 0]  # a step from 0 has no angle
    if not early.any() or len(layers) == 0:
        return
    rotation = e.high("rotation")[early][:, layers]
    rotation = rotation[:, np.isfinite(rotation).any(0)]
    if rotation.shape[1]:
        most = np.nanmax(rotation, axis=0)
        k = int(np.argsort(most)[len(most) // 2])
        at = int(e.steps[early][np.nanargmax(rotation[:, k])])
        yield from fast_start("all layers", float(most[k]), at)


def check_hardly_moves(e: Evidence) -> Iterator[Finding]:
    """Neither the weights nor the loss have moved."""
    fell = e.loss_fell
    if e.last < HARDLY_STEPS or (fell is not None and not fell < UNMOVED):
        return
    relative = e.mean("relative_update")
    paths = {}
    for i in e.layers:
        there = np.isfinite(relative[:, i])
        lr = e.hyper("lr", int(e.group[i])) if e.group[i] < len(e.groups) else np.zeros(1)
        rising = lr[-1] > 1.02 * lr[int(0.8 * len(lr))]
        if there.sum() >= 8 and lr.any() and not rising:
            paths[i] = float(np.trapezoid(relative[there, i], e.steps[there]))
    if not paths or not 0 < (middle := float(np.median(list(paths.values())))) < HARDLY:
        return
    rates = sorted({float(e.hyper("lr", int(e.group[i])).max()) for i in paths})
    said = f"{rates[0]:.3g}" + (f" to {rates[-1]:.3g}" if len(rates) > 1 else "")
    yield Finding(
        "weights-hardly-move",
        "info" if fell is None else "warning",
        "all layers",
        f"the updates of the median layer add up to {middle:.2g} of its norm after {e.last:,} steps (lr {said})"
        + ("" if fell is None else f", and the loss fell by {fell:.1%}"),
        f"more than {HARDLY:g}, or a loss that falls by more than {UNMOVED:.0%}",
        "nothing is learnt at this pace: lr is too small by orders of magnitude, or clipping removes the gradients",
        "the summed length of all updates bounds the distance from the initial weights",
    )


def check_drift(e: Evidence) -> Iterator[Finding]:
    """A norm still grows or shrinks although it had time to settle."""
    steps, norm = e.steps[e.late], e.mean("norm")[e.late]
    if len(steps) < 8 or steps[-1] - steps[0] < 8:
        return
    off: dict[int, float] = {}
    for i in e.matrices:
        there = np.isfinite(norm[:, i]) & (norm[:, i] > 0)
        if not e.settled(i) or there.sum() < 8:
            continue
        g = int(e.group[i])
        late = slice(e.place(steps[0]), e.place(steps[-1]) + 1)
        lr = e.hyper("lr", g)[late]
        lost = e.groups[g].dynamics.decay_share(lr, e.hyper("weight_decay", g)[late])
        if lr.max() > 1.2 * lr.min() or lost.mean() == 0:
            continue  # the equilibrium itself moves
        case = e.case(i)
        if case is None or case.gap(e.folds[~e.late, i][-1]) > 0.25:
            continue  # it started so far away that it cannot have settled yet
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
            f"its norm {way}: ‖w‖² changes per step by {abs(off[worst]):.2g} of what decay removes, at a total decay "
            f"of {e.folds[-1, worst]:.2g}{_others(e, worst, off)}",
            f"less than {DRIFT:g}: decay and updates balance from a total decay of {SETTLED:g} on",
            "updates or gradients change in size (see c_err), or the gradient has a part along the weights (see "
            "radial_decay)",
            "[kosson2024] section 3",
        )


def check_falls_out(e: Evidence) -> Iterator[Finding]:
    """Rotation is far below the current lr's equilibrium: lr fell faster than norms can follow."""
    off: dict[int, float] = {}
    for i in e.layers:
        if not e.settled(i) or e.groups[e.group[i]].dynamics.decay == "corrected":
            continue
        case = e.case(i)
        lr = e.hyper("lr", int(e.group[i]))
        if case is None or lr[e.place(e.last)] > 0.5 * lr.max() or lr[e.place(e.last)] == 0:
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
            f"rotates at {off[worst]:.2g}× the equilibrium speed of the current lr{_others(e, worst, off)}: lr fell "
            "faster than the norm can follow",
            f"above {BEHIND:g}×",
            "normal if lr falls far in a short time; corrected decay (decay='corrected') keeps the norm, so that "
            "rotation follows lr",
            "[defazio2025]",
        )


def check_radial(e: Evidence) -> Iterator[Finding]:
    """The gradient has a large part along the weights: the loss depends on the norm."""
    off: dict[int, float] = {}
    for i in e.layers:
        if not e.settled(i):
            continue
        case = e.case(i)
        wd = e.hyper("weight_decay", int(e.group[i]))[e.place(e.last)]
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
        way = "shrinks its norm" if off[worst] > 0 else "grows its norm"
        yield Finding(
            "radial-gradient",
            "info",
            e.names[worst],
            f"its gradient {way} like an extra weight decay of {off[worst]:+.2g}× the one that is set"
            f"{_others(e, worst, off)}",
            f"between {OUTWARDS:g}× and {RADIAL:g}×; about 0 if the loss does not depend on the norm",
            "its norm follows the loss, not lr and weight decay; total_decay (λ_e) is the decay that acts",
            "[kosson2024] appendix L",
        )


def _others(e: Evidence, worst: int, found: Iterable[int]) -> str:
    """The other tensors with the same finding, in brackets."""
    rest = [e.names[i] for i in found if i != worst]
    if not rest:
        return ""
    return f" (also {', '.join(rest[:3])}{f' and {len(rest) - 3} more' if len(rest) > 3 else ''})"


CHECKS = (check_hardly_moves, check_layers)
FROM_SCRATCH = (check_neurons, check_transient, check_drift, check_falls_out, check_radial)
"""Checks for training from scratch."""
