"""Checks of what is plainly wrong: values that are not finite, layers that stand still or turn wildly, lr."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from equipoise.finding import Finding
from equipoise.monitor.attach.finite import not_finite
from equipoise.monitor.diagnose.evidence import Evidence
from equipoise.monitor.runs.recorded import UNTRAINED
from equipoise.monitor.store.layout import Column

EXPLODES = 0.5
"""Radians a step; a random direction of equal length would be 0.8."""

ORTHOGONAL = 0.6
"""Root mean square of σ²/mean σ² − 1 of Muon's update; five steps of Newton–Schulz give about 0.3."""

LEAP = 10.0
"""Factor on lr within one step."""


def check_finite(e: Evidence) -> Iterator[Finding]:
    """The first gradient or momentum that is NaN or infinite, and where."""
    found: dict[tuple[int, str], list[str]] = {}
    skipped = np.empty(0, np.int64)
    if Column("skipped") in e.run.columns:
        series = e.run.series("skipped", kind="main")
        skipped = series.steps[series.values > 0]  # a scaler's own way to find its scale
    for quantity, what in (("grad_norm", "gradient"), ("momentum_norm", "momentum")):
        for i in np.flatnonzero(np.isposinf(e.high(quantity)).any(0)).tolist():
            series = e.run.series(quantity, e.names[i], kind="main")
            bad = np.setdiff1d(series.steps[np.isposinf(series.values)], skipped)
            if len(bad):
                found.setdefault((int(bad[0]), what), []).append(e.names[i])
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
    if e.finetune:  # what is frozen is meant to be, and the rest of the model where only adapters train
        left_out, frozen = [] if e.mostly_untrained else left_out, []
    reasons: list[tuple[list[str], str, str, str]] = [
        (left_out, "warning", "the optimizer does not have it", "add it to the optimizer, or freeze it"),
        (frozen, "info", "requires_grad is False", "it is frozen, on purpose or by mistake"),
    ]
    # Where the graph is cut, all layers before the cut get no gradient: the last of them is named.
    no_grad = {i for i in still if np.isnan(grad[late, i]).all()}
    for i in sorted(still, key=lambda i: (i not in no_grad, not e.rotates[i], -i if i in no_grad else i)):
        g = int(e.group[i])
        zero = g < len(e.groups) and not e.hyper("lr", g)[max(0, int(e.steps[late][0]) - 1) :].any()
        why = "its lr is 0" if zero else "it gets no gradient" if i in no_grad else "its weights did not change"
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


def check_explodes(e: Evidence) -> Iterator[Finding]:
    """Weights that turn by half a radian a step."""
    rotation = e.late_mean("rotation")
    off = [i for i in e.matrices if rotation[i] > EXPLODES]
    if off:
        worst = max(off, key=lambda i: float(rotation[i]))
        rest = len(off) - 1
        yield Finding(
            "layer-exploding",
            "error",
            e.names[worst],
            f"turns by {rotation[worst]:.2g} rad a step: nothing that it learns lasts"
            + (f"; {rest} other tensor{'s' if rest > 1 else ''} too" if rest else ""),
            f"less than {EXPLODES:g} rad a step",
            "its updates are too large beside its weights: its lr is too high, or its weights have shrunk",
            "measured rotation",
        )


def check_lr_leap(e: Evidence) -> Iterator[Finding]:
    """Lr that changed by a large factor from one step to the next."""
    for g in range(len(e.groups)):
        at, lr = e.comparer.schedules.change_points("lr", g)
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
                "info",
                e.groups[g].name or f"group {g}",
                f"lr went from {lr[k]:.3g} to {lr[k + 1]:.3g} at step {at[k + 1]:,}",
                f"less than {LEAP:g}× from one step to the next",
                "a scheduler was restarted, or a checkpoint was loaded with another lr: a new transient begins"
                if up
                else "a step schedule may mean it; after the fall the norm is too large for the new lr for a while",
                "a leap of lr starts a new transient",
            )  # fmt: skip


def check_orthogonal(e: Evidence) -> Iterator[Finding]:
    """Updates of Muon whose singular values are far from equal."""
    muon = {t.name for t in e.tensors if t.group < len(e.groups) and e.groups[t.group].dynamics.optimizer == "muon"}
    found = _slow(e, "update_orthogonality", lambda x: x > ORTHOGONAL, only=muon)
    if found:
        name, spread, rest = found
        yield Finding(
            "muon-not-orthogonal",
            "info",
            name,
            f"the squares of its update's singular values spread by {spread:.2g} about their mean{rest}",
            f"below {ORTHOGONAL:g}; exactly orthogonal is 0",
            "either the iteration ends too early, or the gradient has directions of almost no size, which stay near 0",
            "[muon-appendix]: the update is UVᵀ",
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
    check_finite, check_still, check_explodes, check_lr_leap, check_orthogonal,
)  # fmt: skip
