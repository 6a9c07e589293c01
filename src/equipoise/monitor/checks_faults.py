"""Checks of what is plainly wrong: values that are not finite, layers that stand still or explode, lost updates, lr."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.evidence import Evidence
from equipoise.monitor.finite import not_finite
from equipoise.monitor.layout import Column
from equipoise.monitor.recorded import UNTRAINED
from equipoise.planner.finding import Finding

EXPLODES = 0.5
"""Radians a step; a random direction of equal length would be 0.8."""

BEYOND = 10.0
"""A norm so many times the larger one of where it began and where it should settle."""

EPS = 0.5
"""Share of a tensor's weights with √v̂ < ε."""

ORTHOGONAL = 0.6
"""Root mean square of σ²/mean σ² − 1 of Muon's update; five steps of Newton–Schulz give about 0.3."""

LEAP = 10.0
"""Factor on lr within one step."""


def check_finite(e: Evidence) -> Iterator[Finding]:
    """The first gradient that is NaN or infinite, and where."""
    first: tuple[int, list[str]] | None = None
    infinite = np.isposinf(e.high("grad_norm"))
    for i in np.flatnonzero(infinite.any(0)).tolist():
        name = e.names[i]
        series = e.run.series("grad_norm", name, kind="main")
        bad = series.steps[np.isposinf(series.values)]
        if Column("skipped") in e.run.columns:
            skipped = e.run.series("skipped", kind="main")
            bad = np.setdiff1d(bad, skipped.steps[skipped.values > 0])  # a scaler's own way to find its scale
        if len(bad):
            step = int(bad[0])
            if first is None or step < first[0]:
                first = (step, [name])
            elif step == first[0]:
                first[1].append(name)
    if first is None:
        return
    yield not_finite(first[0], "gradient", first[1], len(e.names))


def check_still(e: Evidence) -> Iterator[Finding]:
    """Layers that no step changes."""
    kept = e.meta(UNTRAINED)
    kept = kept if isinstance(kept, dict) else {}
    late, change, grad = e.late, e.high("change"), e.high("grad_norm")
    enough = int(late.sum()) >= 2
    seen = np.isfinite(change)
    still = [
        i for i in range(len(e.names)) if enough and seen[late, i].any() and not change[late & seen[:, i], i].any()
    ]
    left_out, frozen = list(kept.get("left_out", [])), list(kept.get("frozen", []))
    if e.finetune:  # what is frozen is meant to be, and the rest of the model where only adapters train
        left_out, frozen = [] if e.mostly_untrained else left_out, []
    reasons: list[tuple[list[str], str, str, str]] = [
        (left_out, "warning", "the optimizer does not have it", "add it to the optimizer, or freeze it"),
        (frozen, "info", "requires_grad is False", "nothing, if it is meant; else unfreeze it"),
    ]
    for i in still:
        g = int(e.group[i])
        zero = g < len(e.groups) and not e.hyper("lr", g)[max(0, int(e.steps[late][0]) - 1) :].any()
        no_grad = np.isnan(grad[late, i]).all()
        why = "its lr is 0" if zero else "it gets no gradient" if no_grad else "its weights did not change"
        reasons.append(([e.names[i]], "warning", why, "look at its lr, and at whether it is a part of the loss"))
    for severity in ("warning", "info"):
        found = [(names, why, advice) for names, s, why, advice in reasons if names and s == severity]
        if found:
            names = [n for part, _, _ in found for n in part]
            more = f"; also {', '.join(names[1:4])}{f' and {len(names) - 4} more' if len(names) > 4 else ''}"
            yield Finding(
                "layer-frozen",
                severity,
                names[0],
                f"no step changes it: {found[0][1]}{more if len(names) > 1 else ''}",
                "every trained layer moves",
                found[0][2],
                "measured change of the weights",
            )


def check_dead(e: Evidence) -> Iterator[Finding]:
    """Layers, or most neurons of one, with a gradient of exactly 0."""
    late = e.late
    if late.sum() < 2:
        return
    grad, half = e.high("grad_norm")[late], e.high("grad_norm", 0.5)[late]
    whole = [i for i in range(len(e.names)) if _zero(grad[:, i])]
    parts = [i for i in e.layers if _zero(half[:, i])]
    if whole or parts:
        i = int((whole or parts)[0])
        rest = len(set(whole) | set(parts)) - 1
        what = "its gradient is 0" if whole else "the gradient of half of its neurons or more is 0"
        yield Finding(
            "layer-dead",
            "warning",
            e.names[i],
            f"{what}, at every late step{f'; {rest} other tensors too' if rest else ''}",
            "a gradient above 0",
            "look for dead ReLUs, a mask, or a branch that is not used; a lower lr or another initialisation may help",
            "measured gradients",
        )


def _zero(values: NDArray[np.float64]) -> bool:
    """Whether something was measured, and it was 0 each time."""
    return bool(np.isfinite(values).any()) and not np.nan_to_num(values).any()


def check_explodes(e: Evidence) -> Iterator[Finding]:
    """Weights that turn by half a radian a step, or whose norm is far beyond the forecast."""
    rotation = e.late_mean("rotation")
    off: dict[int, str] = {}
    for i in e.matrices:
        if rotation[i] > EXPLODES:
            off[i] = f"turns by {rotation[i]:.2g} rad a step: nothing that it learns lasts"
        elif e.forecasts(i) and (case := e.case(i)) is not None:
            usual = max(case.common["init_norm"], float(case.equilibrium.norm[-1]))
            if case.seen.norm[-1] > BEYOND * usual:
                off[i] = f"its norm is {case.seen.norm[-1]:.3g}: it began and should settle below {usual:.3g}"
    if off:
        worst = max(off, key=lambda i: float(rotation[i]))
        yield Finding(
            "layer-exploding",
            "error",
            e.names[worst],
            off[worst] + (f"; {len(off) - 1} other tensors too" if len(off) > 1 else ""),
            f"less than {EXPLODES:g} rad a step, and a norm near where it should settle",
            "lower its lr, or clip gradients",
            "measured rotation and norm",
        )


def check_lr_leap(e: Evidence) -> Iterator[Finding]:
    """Lr that changed by a large factor from one step to the next."""
    for g in range(len(e.groups)):
        at, lr = e.comparer.schedules.knots("lr", g)
        with np.errstate(all="ignore"):
            ratio = lr[1:] / lr[:-1]
            size = np.abs(np.log(ratio))  # infinite where a schedule ends at 0, which is no leap
        leap = (np.diff(at) == 1) & (lr[:-1] > 0) & (lr[1:] > 0) & (size > np.log(LEAP) - 1e-6)
        leaps = np.flatnonzero(
            leap & (np.maximum(lr[1:], lr[:-1]) > lr.max() / LEAP)
        )  # a warmup's first steps are none
        if len(leaps):
            k = int(leaps[0])
            up = ratio[k] > 1
            yield Finding(
                "lr-leap",
                "warning" if up else "info",
                e.groups[g].group.name or f"group {g}",
                f"lr went from {lr[k]:.3g} to {lr[k + 1]:.3g} at step {at[k + 1]:,}",
                f"less than {LEAP:g}× from one step to the next",
                "look for who set it: a scheduler that was restarted, or a checkpoint loaded with another lr"
                if up
                else "a step schedule may mean it; after the fall the norm is too large for the new lr for a while",
                "a leap of lr starts a new transient",
            )  # fmt: skip


def check_eps(e: Evidence) -> Iterator[Finding]:
    """Tensors most of whose weights Adam's ε rules."""
    found = _slow(e, "eps_share", lambda share: share > EPS)
    if found:
        name, share, rest = found
        yield Finding(
            "eps-dominated",
            "warning",
            name,
            f"√v̂ < ε for {share:.0%} of its weights{rest}: there Adam is SGD with lr/ε",
            f"less than {EPS:.0%}",
            "lower eps (1e-15 is safe in float32 where gradients are small), or scale the loss",
            "Adam's update is g/(√v + ε)",
        )


def check_orthogonal(e: Evidence) -> Iterator[Finding]:
    """Updates of Muon whose singular values are far from equal."""
    muon = {t.name for t in e.tensors if t.group < len(e.groups) and e.groups[t.group].group.optimizer == "muon"}
    found = _slow(e, "update_orthogonality", lambda x: x > ORTHOGONAL, only=muon)
    if found:
        name, spread, rest = found
        yield Finding(
            "muon-not-orthogonal",
            "warning",
            name,
            f"the squares of its update's singular values spread by {spread:.2g} about their mean{rest}",
            f"below {ORTHOGONAL:g}; exactly orthogonal is 0",
            "more Newton–Schulz steps, or look at the gradient's rank: directions without any gradient stay at 0",
            "Muon appendix: the update is UVᵀ",
        )


def _slow(e: Evidence, quantity: str, bad: object, only: set[str] | None = None) -> tuple[str, float, str] | None:
    """The tensor with the largest late value of a seldom measured quantity, if it is bad, and how many others are."""
    known = set(e.run.columns)
    found: dict[str, float] = {}
    for name in e.names if only is None else sorted(only):
        if Column(quantity, name) in known:
            values = e.run.series(quantity, name, kind="slow", points=50).values
            if len(values) and bad(float(np.median(values[-5:]))):  # type: ignore[operator]
                found[name] = float(np.median(values[-5:]))
    if not found:
        return None
    worst = max(found, key=lambda n: found[n])
    return worst, found[worst], f" ({len(found) - 1} other tensors too)" if len(found) > 1 else ""


CHECKS = (
    check_finite, check_still, check_dead, check_explodes, check_lr_leap, check_eps, check_orthogonal,
)  # fmt: skip
