"""Checks of the gradients: zero, always clipped, summed over steps, or below Adam's ε."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from equipoise.finding import Finding
from equipoise.monitor.diagnose.evidence import POINTS, Evidence
from equipoise.monitor.store.layout import Column

DEAD = 0.25
"""Share of a layer's neurons without a gradient; healthy ReLU networks here have up to 0.12."""

LEAST_SEEN = 6
"""A neuron counts as dead after this many measured steps without a gradient."""

SAME = 1e-3
"""Norms that differ by less than this share count as equal: clipped to one value."""

CLIPPED, CLIPPED_STEPS = 0.9, 8
"""Clipped: the gradient has its largest norm at this share of the measured steps, and at least at this many."""

EARLY = (5, 32)
"""Steps at which the growth of summed gradients shows before the weights have changed much."""

GROWS, ALIKE = 0.5, 0.75
"""Norm over √t times the first norm (sums have 0.75 or more, healthy runs 0.3 or less), and cosine with momentum."""

EPS = 3.0
"""√v̂ as a multiple of ε. Below this, ε is at least a quarter of Adam's divisor. Healthy runs have 600 or more."""

ADAMS = ("adam", "adamw", "adam_l2", "adam_nested", "rmsprop")


def check_dead(e: Evidence) -> Iterator[Finding]:
    """Layers, or many neurons of one, with a gradient of exactly 0."""
    late = e.late
    if late.sum() < 2:
        return
    grad = e.high("grad_norm")[late]
    whole = [i for i in range(len(e.names)) if _zero(grad[:, i])]
    if whole:
        yield Finding(
            "layer-dead",
            "warning",
            e.names[whole[0]],
            f"its gradient is 0 at every late step{_others(len(whole) - 1)}",
            "a gradient that is not 0",
            "it learns nothing: look for dead ReLUs, a mask, an unused branch, or weights that have become 0",
            "measured gradients",
        )
    if (e.steps > e.last / 3).sum() < LEAST_SEEN:
        return
    share = e.mean("dead")[-1]
    parts = [i for i in e.layers if share[i] >= DEAD and i not in whole]
    if parts:
        worst = max(parts, key=lambda i: share[i])
        rows = e.tensors[worst].shape[0]
        yield Finding(
            "neurons-dead",
            "warning",
            e.names[worst],
            f"{round(share[worst] * rows)} of its {rows} neurons ({share[worst]:.0%}) had a gradient of 0 at every "
            f"measured step since step {e.last // 3:,}{_others(len(parts) - 1)}",
            f"less than {DEAD:.0%} of a layer",
            "they learn nothing: look for ReLUs that no sample activates, or a mask",
            "measured gradients",
        )


def _zero(values: NDArray[np.float64]) -> bool:
    """Whether values were measured and all are 0."""
    return bool(np.isfinite(values).any()) and not np.nan_to_num(values).any()


def _others(count: int) -> str:
    return f"; {count} other tensor{'s' if count > 1 else ''} too" if count else ""


def check_clipped(e: Evidence) -> Iterator[Finding]:
    """The total gradient norm is the same at almost every step."""
    if Column("total_grad_norm") not in e.run.columns:
        return
    total = e.run.series("total_grad_norm", kind="main", points=POINTS)
    norms = np.asarray(total.low, np.float64)
    if len(norms) < CLIPPED_STEPS or not np.isfinite(norms).all() or norms.max() <= 0:
        return
    share = float(np.mean(norms > (1 - SAME) * norms.max()))
    if share >= CLIPPED and _varies(e):
        by_gradient = any(g.dynamics.optimizer == "sgdm" for g in e.groups)
        yield Finding(
            "gradient-clipped",
            "info",
            "all tensors",
            f"the norm of the whole gradient is {norms.max():.3g} at {share:.0%} of the measured steps",
            "a norm that changes from step to step",
            "clipping acts all the time, so gradients have the same length whatever the loss: "
            + ("lr and the clipping norm alone set the length of SGD's steps"
               if by_gradient
               else "Adam, Lion and Muon divide it out again, apart from Adam's ε"),
            "measured gradients, as the optimizer gets them",
        )  # fmt: skip


def _varies(e: Evidence) -> bool:
    """Whether the gradient changes although its norm does not. If not, the weights or the batch never change."""
    for quantity in ("grad_norm", "grad_weight_cos"):
        values = e.mean(quantity)
        with np.errstate(all="ignore"):
            spread = np.ptp(values, axis=0) / np.abs(values).max(0)
        if np.nanmax(spread, initial=0.0) > 10 * SAME:
            return True
    return False


def check_accumulates(e: Evidence) -> Iterator[Finding]:
    """Gradients are summed over steps: `zero_grad` is missing.

    A sum of t gradients grows as √t if they are noise and as t if they agree, and its direction hardly changes.
    """
    if Column("total_grad_norm") not in e.run.columns:
        return
    whole = e.run.series("total_grad_norm", kind="main", points=POINTS)
    if not len(whole):
        return
    start = int(whole.first[0])
    series = e.run.series("total_grad_norm", kind="main", stop=start + EARLY[1])
    age = series.steps - start + 1
    early = age >= EARLY[0]
    first = float(series.values[0])
    if early.sum() < 2 or not first > 0 or not np.isfinite(series.values).all():
        return
    growth = series.values[early] / first
    if (growth < GROWS * np.sqrt(age[early])).any():
        return
    cosines = e.mean("grad_momentum_cos")[(e.steps >= series.steps[early][0]) & (e.steps <= series.steps[-1])]
    cosine = float(np.nanmedian(cosines)) if np.isfinite(cosines).any() else None
    if cosine is None or cosine > ALIKE:
        yield Finding(
            "gradients-accumulate",
            "error",
            "all tensors",
            f"the norm of the whole gradient was {first:.3g} at step {start:,} and {series.values[-1]:.3g}, "
            f"{growth[-1]:.3g}× as much, at step {series.steps[-1]:,}"
            + ("" if cosine is None else f"; its direction is that of the gradients before it (cosine {cosine:.2f})"),
            "a norm that does not grow with the number of steps",
            "call optimizer.zero_grad() before each backward pass: each gradient contains those of all earlier steps",
            "torch adds to .grad until it is set to zero or None",
        )


def check_eps(e: Evidence) -> Iterator[Finding]:
    """Gradients are small compared with Adam's ε, from the first steps on, for half of a layer's neurons."""
    found: dict[int, float] = {}
    typical = e.mean("grad_norm", 0.5)
    layers = [i for i in e.layers if e.group[i] < len(e.groups) and e.groups[e.group[i]].dynamics.optimizer in ADAMS]
    for i in layers:
        values = typical[:, i] / np.sqrt(np.prod(e.tensors[i].shape[1:]))
        values = values[np.isfinite(values) & (values > 0)]  # neurons without a gradient have a finding of their own
        eps = e.groups[e.group[i]].dynamics.eps
        if len(values) >= 2 and eps > 0:
            # A run that ends with a loss near 0 has gradients near 0, so its first half counts too.
            first = np.median(values[: (len(values) + 1) // 2])
            found[i] = float(max(first, np.median(values))) / eps
    found = {i: ratio for i, ratio in found.items() if ratio < EPS}
    if not found:
        return
    worst = min(found, key=lambda i: found[i])
    eps, most = e.groups[e.group[worst]].dynamics.eps, len(found) >= 0.5 * len(layers)
    short = f"steps are {1 + 1 / found[worst]:.2g}× shorter than lr says, and depend on the size of the gradients"
    yield Finding(
        "eps-dominated",
        "warning" if most else "info",
        e.names[worst],
        f"its gradients are {found[worst]:.2g}× ε = {eps:g}, so ε makes up {1 / (1 + found[worst]):.0%} of Adam's "
        f"divisor{_others(len(found) - 1)}",
        f"more than {EPS:g}× ε",
        f"lower eps (torch's default is 1e-8): {short}. With eps = 1e-2 the loss was worse on 3 of 4 workloads"
        if most
        else short,
        "Adam's update is g/(√v + ε)",
    )


CHECKS = (check_dead, check_clipped, check_accumulates, check_eps)
