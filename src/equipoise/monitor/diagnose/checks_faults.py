"""Checks of plain faults: values that are not finite, layers that never change or rotate wildly, jumps of lr."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equipoise.finding import Finding
from equipoise.monitor.attach.finite import not_finite
from equipoise.monitor.diagnose.evidence import Evidence
from equipoise.monitor.runs.recorded import UNTRAINED
from equipoise.monitor.store.layout import Column

EXPLODES = 0.5
"""Radians per step; an update in a random direction, as long as the weights, gives 0.8."""

ORTHOGONAL = 0.6
"""RMS of σ²/mean σ² − 1 of Muon's update; five steps of Newton–Schulz give about 0.3."""

LEAP = 10.0
"""A change of lr by this factor within one step is reported."""


def check_finite(e: Evidence) -> Iterator[Finding]:
    """The first step and tensor whose gradient or momentum is NaN or infinite."""
    found: dict[tuple[int, str], list[str]] = {}
    skipped = np.empty(0, np.int64)
    if Column("skipped") in e.run.columns:
        series = e.run.series("skipped", kind="main")
        skipped = series.steps[series.values > 0]  # a GradScaler skips steps while it looks for its scale
    for quantity, what in (("grad_norm", "gradient"), ("momentum_norm", "momentum")):
        names = [e.names[i] for i in np.flatnonzero(np.isposinf(e.high(quantity)).any(0))]
        if not names:
            continue
        table = e.run.table([Column(quantity, name) for name in names], kind="main")
        bad = np.isposinf(table.values) & ~np.isin(table.steps, skipped)[:, None]
        for i in np.flatnonzero(bad.any(0)):
            found.setdefault((int(table.steps[bad[:, i].argmax()]), what), []).append(names[i])
    if found:
        step, what = min(found)
        yield not_finite(step, what, found[step, what], len(e.names))


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
    if e.finetune:  # frozen layers are intended, and so is the untrained rest of the model if only adapters train
        left_out, frozen = [] if e.mostly_untrained else left_out, []
    reasons: list[tuple[list[str], str, str, str]] = [
        (left_out, "warning", "the optimizer does not have it", "add it to the optimizer, or freeze it"),
        (frozen, "info", "requires_grad is False", "check that it is meant to be frozen"),
    ]
    # If something detaches the graph, all layers before it get no gradient: name the last of them.
    no_grad = {i for i in still if np.isnan(grad[late, i]).all()}
    for i in sorted(still, key=lambda i: (i not in no_grad, not e.rotates[i], -i if i in no_grad else i)):
        g = int(e.group[i])
        zero = g < len(e.groups) and not e.hyper("lr", g)[e.place(e.steps[late][0]) :].any()
        why = "its lr is 0" if zero else "it gets no gradient" if i in no_grad else "its weights did not change"
        reasons.append(([e.names[i]], "warning", why, "check its lr, and whether the loss depends on it"))
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
                "every trained layer changes",
                found[0][2],
                "measured change of the weights",
            )


def check_explodes(e: Evidence) -> Iterator[Finding]:
    """Weights that rotate by more than half a radian per step."""
    rotation = e.late_mean("rotation")
    off = [i for i in e.matrices if rotation[i] > EXPLODES]
    if off:
        worst = max(off, key=lambda i: float(rotation[i]))
        rest = len(off) - 1
        yield Finding(
            "layer-exploding",
            "error",
            e.names[worst],
            f"rotates by {rotation[worst]:.2g} rad per step: nothing that it learns lasts"
            + (f"; {rest} other tensor{'s' if rest > 1 else ''} too" if rest else ""),
            f"less than {EXPLODES:g} rad per step",
            "its updates are too large compared with its weights: its lr is too high, or its weights have shrunk",
            "measured rotation",
        )


def check_lr_leap(e: Evidence) -> Iterator[Finding]:
    """Lr changed by a large factor from one step to the next."""
    for g in range(len(e.groups)):
        at, lr = e.comparer.schedules.change_points("lr", g)
        with np.errstate(all="ignore"):
            ratio = lr[1:] / lr[:-1]
            size = np.abs(np.log(ratio))  # infinite where a schedule ends at 0, which does not count
        leap = (np.diff(at) == 1) & (lr[:-1] > 0) & (lr[1:] > 0) & (size > np.log(LEAP) - 1e-6)
        leaps = np.flatnonzero(
            leap & (np.maximum(lr[1:], lr[:-1]) > lr.max() / LEAP)
        )  # a warmup's first steps are none
        if len(leaps):
            k = int(leaps[0])
            up = ratio[k] > 1
            yield Finding(
                "lr-leap",
                "info",
                e.groups[g].name or f"group {g}",
                f"lr went from {lr[k]:.3g} to {lr[k + 1]:.3g} at step {at[k + 1]:,}",
                f"less than {LEAP:g}× from one step to the next",
                "a scheduler was restarted, or a checkpoint was loaded with another lr: a new transient begins"
                if up
                else "intended in a step schedule; the norm stays too large for the new lr for a while",
                "a jump of lr starts a new transient",
            )  # fmt: skip


def check_orthogonal(e: Evidence) -> Iterator[Finding]:
    """The singular values of Muon's updates are far from equal."""
    muon = {t.name for t in e.tensors if t.group < len(e.groups) and e.groups[t.group].dynamics.optimizer == "muon"}
    found = _slow(e, "update_orthogonality", lambda x: x > ORTHOGONAL, only=muon)
    if found:
        name, spread, rest = found
        yield Finding(
            "muon-not-orthogonal",
            "info",
            name,
            f"the squared singular values of its update spread by {spread:.2g} around their mean{rest}",
            f"below {ORTHOGONAL:g}; 0 is exactly orthogonal",
            "the iteration ends too early, or the gradient has directions of almost no size, which stay near 0",
            "[muon-appendix]: the update is UVᵀ",
        )


def _slow(e: Evidence, quantity: str, bad: object, only: set[str] | None = None) -> tuple[str, float, str] | None:
    """The tensor with the largest late value of a rarely measured quantity, if it is bad, and how many others are."""
    known = set(e.run.columns)
    found: dict[str, float] = {}
    names = [name for name in (e.names if only is None else sorted(only)) if Column(quantity, name) in known]
    if names:
        columns = e.run.table([Column(quantity, name) for name in names], kind="slow", points=50).values.T
        for name, values in zip(names, columns, strict=True):
            late = values[~np.isnan(values)][-5:]
            if len(late) and bad(float(np.median(late))):  # type: ignore[operator]
                found[name] = float(np.median(late))
    if not found:
        return None
    worst = max(found, key=lambda n: found[n])
    return worst, found[worst], f" ({len(found) - 1} other tensors too)" if len(found) > 1 else ""


CHECKS = (
    check_finite, check_still, check_explodes, check_lr_leap, check_orthogonal,
)  # fmt: skip
