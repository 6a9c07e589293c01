"""What was done to a tensor in few bits: steps rounded one by one, or kept in finer weights beside it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from equipoise.auditing.behaviour import KNOWN, UNKNOWN, Behaviour, Estimate
from equipoise.auditing.candidates import Candidate, Search, directions
from equipoise.auditing.fit import TensorSteps, least_squares, rounded
from equipoise.auditing.record import Track
from equipoise.auditing.recorded import Recorded

LOW_FITS = 0.3
"""The unexplained share, beyond what rounding explains, up to which a rule fits in low precision."""

AGREE = 0.9
"""Share of entries that must be as predicted, for steps to be taken as rounded one by one."""

DECAYS_GONE = 0.5
"""Share of the decay that must be missing for it to be called lost."""


def infer_low(data: Recorded, said: Candidate) -> Behaviour:
    """What was done to a tensor in few bits.

    Args:
        data: its recorded steps.
        said: what the group says.
    """
    best: tuple[float, Candidate, Estimate, Estimate] | None = None
    for one in (said, *Search(data.shape, data.track.whole)):
        used = data.of(one)
        share, rate, decay = _pooled(directions(one, list(used.grads), list(used.weights), used.start), used)
        tried = (share, one, rate, decay)
        if best is None or tried[0] < best[0] * (0.8 if best[1] == said else 1.0):
            best = tried
        if one == said and tried[0] < LOW_FITS:
            break
    assert best is not None
    return _low_behaviour(best, said, data.track, data.of(best[1]))


def _pooled(u: Tensor, data: TensorSteps) -> tuple[float, Estimate, Estimate]:
    """Fit all steps together in low precision: what is unexplained beyond rounding, rate over lr, decay over lr.

    Whether weights are kept in more bits beside them or rounded stochastically, each Δw has an error of about
    unit²/6, where rounding to the nearest has unit²/12.
    """
    lr = data.lr.where(data.lr > 0, torch.ones_like(data.lr))[:, None]
    y, x, w = data.moved.flatten(1), u.flatten(1) * lr, data.weights.flatten(1) * lr
    b, rest, errors = least_squares(y.reshape(1, -1), [x.reshape(1, -1), w.reshape(1, -1)])
    noise = 2 * float(data.noise().sum()) * data.moved[0].numel()
    over = max(0.0, float(rest.square().sum()) - 1.5 * noise)
    signal = float((y.reshape(1, -1) - rest).square().sum())
    share = math.sqrt(over / max(signal + over, 1e-300))
    return share, Estimate(-float(b[0, 0]), float(errors[0, 0])), Estimate(-float(b[0, 1]), float(errors[0, 1]))


def _low_behaviour(
    best: tuple[float, Candidate, Estimate, Estimate], said: Candidate, track: Track, used: TensorSteps
) -> Behaviour:
    score, one, rate, decay = best
    wd = track.said[0].weight_decay
    u = directions(one, list(used.grads), list(used.weights), used.start)
    lr = used.lr.reshape(-1, *[1] * (u.ndim - 1))
    scale = track.said[0].dynamics.scale_of(tuple(track.param.shape)) if one.rule == said.rule else 1.0
    d = torch.zeros_like(lr) if one.l2 else lr * wd
    kind = ("coupled" if one.l2 else "decoupled") if wd else ""
    # If each step were rounded: decay first, as torch does, then the update.
    full = -(lr * u * scale)
    decayed = rounded(used.weights * (1 - d), used.dtype)
    agree = float(((rounded(decayed + full, used.dtype) - used.weights) == used.moved).double().mean())
    decay_lost = 1 - _along(decayed - used.weights, -d * used.weights) if bool(d.any()) else 0.0
    if agree > AGREE:
        lost = 1 - _along(rounded(used.weights + full, used.dtype) - used.weights, full)
        return Behaviour(
            one.word, one, True, 1 - agree, Estimate(1.0, math.inf), (), Estimate(wd, math.inf), kind, _known(one),
            lost, decay_lost, ("rounded",),
        )  # fmt: skip
    if score > KNOWN:
        return Behaviour(UNKNOWN, None, False, score, notes=("low",))
    rate = Estimate(rate.value / scale, rate.error / scale)
    gone = kind == "decoupled" and decay.away(wd, DECAYS_GONE) and abs(decay.value) < 0.5 * wd
    if not (gone and decay_lost > 0.5):
        decay_lost = 0.0
    # Where all steps together are less than a unit, weights beside them may not have shown yet.
    shown = float(full.sum(0).square().mean()) > float(used.noise().mean()) * 12
    if not shown:
        rate, decay = Estimate(rate.value, math.inf), Estimate(decay.value, math.inf)
    return Behaviour(
        one.word, one, score < LOW_FITS, score, rate, (), decay, kind, _known(one), 0.0, decay_lost, ("low",)
    )


def _along(x: Tensor, wanted: Tensor) -> float:
    """⟨x, wanted⟩/‖wanted‖²: how much of what was wanted there is."""
    size = float(wanted.square().sum())
    return float((x * wanted).sum()) / size if size else 1.0


def _known(one: Candidate) -> dict[str, Estimate]:
    return {name: Estimate(value, math.inf) for name, value in one.named.items()}
