"""Checks of what the weights do: equilibrium, balance, transients, radial gradients. Each yields findings."""

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
"""A layer may turn so much faster or slower than the median of settled layers."""

LAYERS_YOUNG = 12.0
"""The same before equilibrium, when speeds follow the initial norms."""

OWN_LR, OWN_TURNS = 10.0, 2.0
"""Factor between a layer's lr and that of the others, and how much faster or slower it then turns, to be said."""

NEURONS = 8.0
"""The 90 % quantile of a layer's neurons may turn so much faster than the 10 % quantile."""

HARDLY, HARDLY_STEPS = 0.03, 100
"""Share of its norm that the median layer has moved by, had all steps gone one way, and after how many steps."""

UNMOVED = 0.03
"""Share of itself by which a loss falls that has hardly moved."""

DRIFT = 0.7
"""‖w‖² may drift by this share of what decay takes a step."""

BEHIND = 0.4
"""Rotation below this share of the present lr's equilibrium has fallen out of it."""

RADIAL = 3.0
"""λ_u of the gradient beside λ; inwards the norm is then half of what it would be."""

OUTWARDS = -0.9
"""λ_u that takes so much of λ away; the norm is then more than three times what it would be."""


def check_layers(e: Evidence) -> Iterator[Finding]:
    """Layers that turn much faster or slower than the others of the same optimizer."""
    rotation = e.late_mean("rotation")
    off: dict[int, float] = {}
    own: dict[int, float] = {}
    for rule in {g.dynamics.optimizer for g in e.groups}:
        layers = [i for i in e.layers if rotation[i] > 0 and _rule(e, i) == rule]
        if len(layers) < 3:
            continue
        middle = float(np.exp(np.median(np.log(rotation[layers]))))
        lrs = [float(e.hyper("lr", int(e.group[i])).max()) for i in layers]
        for i, lr in zip(layers, lrs, strict=True):
            ratio, more = float(rotation[i]) / middle, lr / float(np.median(lrs))
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
        f"turns {rotation[worst]:.3g} rad a step, {ratio:.3g}× {faster} than the median layer{_others(e, worst, off)}"
        + (f"; its group's lr is {own[worst]:.3g}× that of most layers" if worst in own else ""),
        f"within {LAYERS:g}× of the median of the layers that the same optimizer trains",
        f"it forgets what it learnt that much {faster} than the others",
        "[kosson2024] section 4",
    )


def _rule(e: Evidence, i: int) -> str:
    """The rule that moves tensor i, as theory calls it."""
    return e.groups[e.group[i]].dynamics.optimizer if e.group[i] < len(e.groups) else ""


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
            "info",
            e.names[worst],
            f"a tenth of its neurons turn by {high[worst]:.3g} rad a step or more, another tenth by {low[worst]:.3g} "
            f"or less: {ratio[worst]:.3g}×{_others(e, worst, off)}",
            f"less than {NEURONS:g}×",
            "L2 in Adam's gradient, dead inputs or gradients of very different size do this; a rotational optimizer "
            "turns all neurons alike",
            "[kosson2024] section 4",
        )


def check_transient(e: Evidence) -> Iterator[Finding]:
    """First steps that turn most layers so far that the initial weights are gone after a few of them."""
    early = e.steps <= max(20, 0.1 * e.last)
    layers = [i for i in e.layers if e.start[i] != 0]  # from 0 a step has no angle
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
    """Weights that stay where they began, and a loss that does, too."""
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
        f"all updates of the median layer together are {middle:.2g} of its norm after {e.last:,} steps (lr {said})"
        + ("" if fell is None else f", and the loss fell by {fell:.1%}"),
        f"more than {HARDLY:g}, or a loss that falls by more than {UNMOVED:.0%}",
        "nothing is learnt at this pace: lr is too small by orders of magnitude, or gradients are clipped away",
        "the length of the way bounds how far weights can be from where they began",
    )


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
        lost = e.groups[g].dynamics.decay_share(lr, e.hyper("weight_decay", g)[steps[0] - 1 : steps[-1]])
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
            "[kosson2024] section 3",
        )


def check_falls_out(e: Evidence) -> Iterator[Finding]:
    """Rotation far below the present lr's equilibrium: lr fell faster than norms can follow."""
    off: dict[int, float] = {}
    for i in e.layers:
        if not e.settled(i) or e.groups[e.group[i]].dynamics.decay == "corrected":
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
            "usual where lr falls far in a short time; corrected decay (decay='corrected') keeps the norm, and "
            "rotation goes with lr",
            "[defazio2025]",
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
            "its norm follows the loss, not lr and weight decay; λ_e (total_decay) says what acts in place of λ",
            "[kosson2024] appendix L",
        )


def _others(e: Evidence, worst: int, found: Iterable[int]) -> str:
    """Where else, in brackets."""
    rest = [e.names[i] for i in found if i != worst]
    if not rest:
        return ""
    return f" (also {', '.join(rest[:3])}{f' and {len(rest) - 3} more' if len(rest) > 3 else ''})"


CHECKS = (check_hardly_moves, check_layers)
FROM_SCRATCH = (check_neurons, check_transient, check_drift, check_falls_out, check_radial)
"""Those against what is known of training from scratch."""
