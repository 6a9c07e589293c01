"""Checks of the gradients: none at all, always clipped, summed up over steps, or below Adam's ε."""

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
"""Measured steps without a gradient before a neuron counts as dead."""

SAME = 1e-3
"""Norms that differ by less than this share are the same: clipped to one number."""

CLIPPED, CLIPPED_STEPS = 0.9, 8
"""Share of the measured steps, and how many at least, at which the gradient has its largest norm."""

EARLY = (5, 32)
"""Steps at which the growth of summed gradients shows before the weights have changed much."""

GROWS, ALIKE = 0.5, 0.75
"""Norm over √t times the first, where sums have 0.75 or more and healthy runs 0.3 or less; cosine with momentum."""

EPS = 3.0
"""√v̂ as a multiple of ε; below it ε is a quarter or more of what Adam divides by. Healthy runs have 600 or more."""

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
            f"its gradient is 0, at every late step{_others(len(whole) - 1)}",
            "a gradient above 0",
            "it learns nothing: dead ReLUs, a mask, a branch that is not used, or weights that have become 0",
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
            "they learn nothing and nothing is learnt from them: ReLUs that no sample reaches, or a mask",
            "measured gradients",
        )


def _zero(values: NDArray[np.float64]) -> bool:
    """Whether something was measured, and it was 0 each time."""
    return bool(np.isfinite(values).any()) and not np.nan_to_num(values).any()


def _others(count: int) -> str:
    return f"; {count} other tensor{'s' if count > 1 else ''} too" if count else ""


def check_clipped(e: Evidence) -> Iterator[Finding]:
    """A total gradient norm that is the same at almost every step."""
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
            "clipping acts all the time, so gradients have one length whatever the loss: "
            + ("SGD's steps are then as long as lr and that norm make them"
               if by_gradient
               else "Adam, Lion and Muon divide it out again, but for Adam's ε"),
            "measured gradients, as the optimizer gets them",
        )  # fmt: skip


def _varies(e: Evidence) -> bool:
    """Whether the gradient changes though its norm does not; else weights stand still, or one batch is seen."""
    for quantity in ("grad_norm", "grad_weight_cos"):
        values = e.mean(quantity)
        with np.errstate(all="ignore"):
            spread = np.ptp(values, axis=0) / np.abs(values).max(0)
        if np.nanmax(spread, initial=0.0) > 10 * SAME:
            return True
    return False


def check_accumulates(e: Evidence) -> Iterator[Finding]:
    """Gradients that are summed up over steps, as without `zero_grad`.

    A sum of t gradients grows with √t where they are noise, with t where they agree, and points where it pointed.
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
            + ("" if cosine is None else f"; it points where the gradients before it did (cosine {cosine:.2f})"),
            "norms that do not grow with the number of steps",
            "call optimizer.zero_grad() before each backward pass: gradients of all earlier steps are in this one",
            "torch adds to .grad until it is set to zero or None",
        )


def check_eps(e: Evidence) -> Iterator[Finding]:
    """Gradients that are small beside Adam's ε: from the first steps on, for half of a layer's neurons."""
    found: dict[int, float] = {}
    typical = e.mean("grad_norm", 0.5)
    layers = [i for i in e.layers if e.group[i] < len(e.groups) and e.groups[e.group[i]].dynamics.optimizer in ADAMS]
    for i in layers:
        values = typical[:, i] / np.sqrt(np.prod(e.tensors[i].shape[1:]))
        values = values[np.isfinite(values) & (values > 0)]  # neurons without a gradient are another finding
        eps = e.groups[e.group[i]].dynamics.eps
        if len(values) >= 2 and eps > 0:
            # A run that ends with a loss of almost 0 has gradients of almost 0: its first half counts, too.
            first = np.median(values[: (len(values) + 1) // 2])
            found[i] = float(max(first, np.median(values))) / eps
    found = {i: ratio for i, ratio in found.items() if ratio < EPS}
    if not found:
        return
    worst = min(found, key=lambda i: found[i])
    eps, most = e.groups[e.group[worst]].dynamics.eps, len(found) >= 0.5 * len(layers)
    short = f"steps are {1 + 1 / found[worst]:.2g}× shorter than lr says, and unlike for unlike gradients"
    yield Finding(
        "eps-dominated",
        "warning" if most else "info",
        e.names[worst],
        f"its gradients are {found[worst]:.2g}× ε = {eps:g}, so that ε is {1 / (1 + found[worst]):.0%} of what Adam "
        f"divides by{_others(len(found) - 1)}",
        f"more than {EPS:g}× ε",
        f"lower eps (torch's default is 1e-8): {short}. On 4 workloads eps = 1e-2 made the loss worse on 3, better on 0"
        if most
        else short,
        "Adam's update is g/(√v + ε)",
    )


CHECKS = (check_dead, check_clipped, check_accumulates, check_eps)
