"""What an optimizer did to one tensor, inferred from its recorded steps."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from equipoise.auditing.behaviour import KNOWN, NO_GRADIENT, STILL, UNKNOWN, Behaviour, Estimate
from equipoise.auditing.candidates import FREE, ROUNDED, SIGNS, Candidate, Search, directions, of_dynamics
from equipoise.auditing.fit import Fit, TensorSteps, fitted, refined, rounded
from equipoise.auditing.low_precision import infer_low
from equipoise.auditing.record import Track
from equipoise.auditing.recorded import Recorded, data_of

FITS = {"muon": 0.2, "signsgdm": 0.05, "lion": 0.05}
"""The unexplained share up to which a rule fits; Muon's iteration is often run in bfloat16, and signs of the smallest
averages depend on rounding."""

FITS_ELSE = 0.005
"""And of all other rules, in float32."""

SURE = 5e-5
"""The unexplained share below which no other kind of decay is tried."""

ROUND_OFF = 1e-7
"""A share of the weight, about float32's rounding, below which no decay is seen."""

SHRINK = 2.0**-25 / math.sqrt(3)
"""Standard error of 1 − d in float32, of a share d that decay takes."""


def said_of(track: Track) -> Candidate:
    """The candidate that the group says the optimizer is."""
    said = track.said[0]
    return of_dynamics(said.dynamics, tuple(track.param.shape), said.weight_decay)


class Inference:
    """Infers what was done to one tensor after another; what fitted one is tried first on the next."""

    def __init__(self) -> None:
        self._found: list[Candidate] = []

    def of(self, track: Track) -> Behaviour:
        """What was done to a tensor.

        Args:
            track: its recorded steps.
        """
        few = data_of(track, thin=True)
        if few is None:
            moved = any(not torch.equal(a, b) for a, b in zip(track.before, track.after, strict=False))
            return Behaviour(NO_GRADIENT, notes=("moves-without-gradient",) if moved else ())
        if not all(map(math.isfinite, (*track.grad_norms, *track.moves))):
            return Behaviour(UNKNOWN, fits=False, unexplained=math.nan, notes=("not-finite",))
        data = Recorded(track, few)
        if not any(size for size, g in zip(track.moves, track.grads, strict=False) if g is not None):
            return self._still(track, data.all)
        said = said_of(track)
        wd = track.said[0].weight_decay
        part = said.rule == "muon" and not track.whole
        found = infer_low(data, said) if few.low else self._high(track, data, said, wd)
        if part and not found.fits:
            return Behaviour(UNKNOWN, None, False, found.unexplained, notes=("part",))
        return found

    def _high(self, track: Track, data: Recorded, said: Candidate, wd: float) -> Behaviour:
        fit = self._choose(said, data, track, wd)
        return _behaviour(fit, said, data.of(fit.candidate), track)

    def _still(self, track: Track, data: TensorSteps) -> Behaviour:
        """A tensor that did not move: by its lr, by its gradients, or by rounding."""
        said = track.said[0]
        if not data.grads.any():
            return Behaviour(STILL, notes=("gradient-zero",))
        if not float(data.lr.max()):
            return Behaviour(STILL, notes=("lr-zero",))
        u = directions(said_of(track), list(data.grads), list(data.weights), data.start)
        step = u * data.lr.reshape(-1, *[1] * (u.ndim - 1))
        lost = rounded(data.weights - step, data.dtype) == data.weights
        if bool(lost.double().mean() > 0.9):
            return Behaviour(STILL, lost=1.0, decay_lost=1.0 if said.weight_decay else 0.0, notes=("rounding",))
        return Behaviour(STILL, notes=("still",))

    def _choose(self, said: Candidate, data: Recorded, track: Track, wd: float) -> Fit:
        best: Fit | None = None
        seen: set[Candidate] = set()
        found = (c for c in self._found if c != said and (not c.by_matrix or (len(data.shape) > 1 and track.whole)))
        for one in (said, *found):
            fit = self._try(one, data.of(one), wd)
            if _fits(fit):
                return self._keep(fit, one)
            best = fit if best is None or fit.unexplained < best.unexplained else best
            seen.add(one)
        assert best is not None
        ranked: list[Fit] = []
        by_rows = _holds_rows(data.all)
        for one in Search(data.shape, track.whole):
            held = replace(one, by_rows=by_rows)
            ranked.append(fitted(held, data.of(held)))
        ranked.sort(key=lambda f: f.unexplained)
        tried: set[str] = set()
        for rough in ranked:
            key = f"{rough.candidate.rule} {rough.candidate.nesterov} {rough.candidate.polar}"
            if key in tried or len(tried) >= 5:
                continue
            tried.add(key)
            fit = self._try(rough.candidate, data.of(rough.candidate), wd, steps=12)
            best = fit if fit.unexplained < best.unexplained else best
            if _fits(fit):
                return self._keep(fit, replace(rough.candidate, factors=fit.candidate.factors))
        return best

    def _keep(self, fit: Fit, one: Candidate) -> Fit:
        kept = replace(one, l2=fit.candidate.l2)
        if kept not in self._found and len(self._found) < 12:
            self._found.append(kept)
        return fit

    def _try(self, one: Candidate, used: TensorSteps, wd: float, steps: int = 6) -> Fit:
        """The best fit of a rule, over its factors and the kinds of decay."""
        coupled = bool(one.l2) and one.rule not in SIGNS
        base = fitted(one, used, decays=not coupled)
        fit = refined(one, used, decays=not coupled, coupled=coupled, steps=1 if base.unexplained < SURE else steps)
        if base.unexplained < max(SURE, 1.1 * fit.unexplained):  # what it says stands until others explain more
            base.errors = fit.errors
            fit = base
        if one.by_rows and one.rule.startswith("adam") and fit.unexplained > SURE:  # L2 in a gradient beside norms
            other = refined(replace(one, l2=one.l2 or 1e-3), used, coupled=True, steps=steps)
            fit = other if other.unexplained < 0.5 * fit.unexplained else fit
        if one.polar == "quintic" and one.rule == "muon" and not one.stacked and one.split == 1:
            for polar in ROUNDED:  # with the factors that were found: the slopes of what is rounded tell nothing
                other = fitted(replace(fit.candidate, polar=polar), used)
                if other.unexplained < 0.5 * fit.unexplained:
                    other.errors, fit = fit.errors, other
        if one.by_rows or one.rule in ("muon", "ngd"):
            return fit
        if fit.unexplained < SURE:
            return fit
        others: list[Fit] = []
        if one.rule.startswith("adam"):
            others.append(refined(replace(one, corrected=not one.corrected), used, steps=steps))
        if one.mask:
            others.append(refined(replace(one, mask=False, l2=0.0), used, steps=steps))
        elif one.rule not in SIGNS and (one.l2 or wd):
            others.append(refined(replace(one, l2=0.0), used, steps=steps))
            if not one.l2:
                others[-1] = refined(replace(one, l2=wd), used, decays=False, coupled=True, steps=steps)
        # What it says stands until another kind of decay explains clearly more.
        return min([fit, *(f for f in others if f.unexplained < 0.5 * fit.unexplained)], key=lambda f: f.unexplained)


def _holds_rows(data: TensorSteps) -> bool:
    """Whether the norm of every row stays what it was, although the row moves."""
    if len(data.shape) < 2 or not data.whole:
        return False
    w, y = (x.reshape(len(x) * data.shape[0], -1) for x in (data.weights, data.moved))
    change = ((w + y).square().sum(1) - w.square().sum(1)).abs()
    size = y.square().sum(1)
    moving = size > 1e-8 * w.square().sum(1)
    return bool(moving.any()) and bool((change[moving] < 0.05 * size[moving]).double().mean() > 0.95)


def _fits(fit: Fit) -> bool:
    return fit.unexplained <= FITS.get(fit.candidate.rule, FITS_ELSE)


def _behaviour(fit: Fit, said: Candidate, data: TensorSteps, track: Track) -> Behaviour:
    one = fit.candidate
    if fit.unexplained > KNOWN:
        return Behaviour(UNKNOWN, None, False, fit.unexplained)
    group = track.said
    rates, errors = fit.rates, fit.rate_errors
    notes: list[str] = []
    if one.rule.startswith("adam"):
        one, rates, errors = _bias(one, fit, data, notes)
    lr = data.lr
    scale = group[0].dynamics.scale_of(tuple(track.param.shape)) if one.rule == said.rule else 1.0
    rates, errors = rates / scale, errors / scale
    told = errors < 0.02 * rates.abs()
    factor = _common(rates, lr, errors)
    if not _shows(one, data, scale):
        factor, told = Estimate(factor.value, math.inf), torch.zeros_like(told)
    shares = fit.shares
    decay, kind = _decay(one, fit, shares, lr, data)
    factors = {
        name: Estimate(value, error)
        for (name, value), error in zip(one.named.items(), [*fit.errors, *[math.inf] * 3], strict=False)
    }
    if one.l2:
        error = fit.errors[len(FREE[one.rule])] if len(fit.errors) > len(FREE[one.rule]) else math.inf
        decay, kind = Estimate(one.l2, error), "coupled"
    seen = rates.where(told, torch.full_like(rates, math.nan))
    word = one.word
    if one.by_rows:
        word += ", norms held"
    return Behaviour(
        word, one, _fits(fit), fit.unexplained, factor, tuple(seen.tolist()), decay, kind, factors, 0.0, 0.0,
        tuple(notes),
    )  # fmt: skip


def _shows(one: Candidate, data: TensorSteps, scale: float) -> bool:
    """Whether steps of the lr that is said are large enough to be seen in spite of rounding."""
    u = directions(one, list(data.grads), list(data.weights), data.start) * scale
    step = u * data.lr.where(data.lr > 0, torch.ones_like(data.lr)).reshape(-1, *[1] * (u.ndim - 1))
    return float(step.square().mean()) > 16 * 12 * float(data.noise().mean())


def _bias(one: Candidate, fit: Fit, data: TensorSteps, notes: list[str]) -> tuple[Candidate, Tensor, Tensor]:
    """Whether Adam corrects its averages for their start at zero: as the rates then follow the group's lr."""
    t0 = int(data.start.get("step") or 0)
    t = torch.arange(1, len(fit.rates) + 1, dtype=torch.float64) + t0
    b1, b2 = one.factors
    rho = (1 - b2**t).sqrt() / (1 - b1**t)
    if one.rule == "adam_nested":
        rho = 1 / (1 - b1**t)
    if len(fit.rates) < 2 or float((rho - 1).abs().max()) < 1e-3:
        return one, fit.rates, fit.rate_errors
    other = fit.rates * rho if one.corrected else fit.rates / rho
    flat, said = _uneven(other, data.lr, fit.rate_errors), _uneven(fit.rates, data.lr, fit.rate_errors)
    if flat < 0.2 * said and flat < 0.05:
        return replace(one, corrected=not one.corrected), other, fit.rate_errors
    return one, fit.rates, fit.rate_errors


def _uneven(rates: Tensor, lr: Tensor, errors: Tensor) -> float:
    """How far rates are from a multiple of what the group said, relative to their size."""
    keep = (lr > 0) & torch.isfinite(errors)
    if not keep.any():
        return math.inf
    ratio = rates[keep] / lr[keep]
    return float(ratio.std(unbiased=False) / ratio.mean().abs().clamp_min(1e-300))


def _common(rates: Tensor, lr: Tensor, errors: Tensor) -> Estimate:
    """The rate over what the group said, weighted by how well each step tells it; the rate itself where it said 0."""
    keep = (lr > 0) & torch.isfinite(errors)
    if not keep.any():
        return Estimate(float(rates.mean()), float(errors.max()))
    ratio, error = rates[keep] / lr[keep], errors[keep] / lr[keep]
    weight = 1 / (error.square() + (1e-9 * ratio.abs().max()) ** 2 + 1e-300)
    mean = float((weight * ratio).sum() / weight.sum())
    spread = float(ratio.std(unbiased=False)) / math.sqrt(len(ratio))
    return Estimate(mean, max(float(weight.sum() ** -0.5), spread))


def _decay(one: Candidate, fit: Fit, shares: Tensor, lr: Tensor, data: TensorSteps) -> tuple[Estimate, str]:
    """λ of a decay beside the direction, and its kind."""
    errors = fit.share_errors
    keep = (lr > 0) & torch.isfinite(errors)
    if not keep.any() or one.by_rows:
        return Estimate(math.nan, math.inf), ""
    weight = 1 / (errors[keep].square() + 1e-300)
    mean = float((weight * shares[keep] * lr[keep]).sum() / (weight * lr[keep].square()).sum())
    error = float((weight * lr[keep].square()).sum() ** -0.5)
    rest = shares[keep] - mean * lr[keep]
    spread = float(rest.abs().mean()) / float(lr[keep].mean()) / math.sqrt(int(keep.sum()))
    # Optimizers multiply by 1 − lr·λ, which float32 rounds to a multiple of 2⁻²⁴: what acts is not quite what is set.
    rounding = SHRINK / float(lr[keep].mean()) if data.dtype == torch.float32 else 0.0
    value = Estimate(mean, math.hypot(max(error, spread), rounding))
    if abs(mean) < 4 * value.error or abs(mean) * float(lr.max()) < ROUND_OFF:
        return value, ""
    kind = "masked" if one.mask else "decoupled"
    if float(lr[keep].std(unbiased=False)) > 0.05 * float(lr[keep].mean()):
        flat = float((weight * shares[keep]).sum() / weight.sum())
        if float((shares[keep] - flat).abs().mean()) < 0.2 * float(rest.abs().mean()):
            kind = "independent"
    return value, kind
