"""What an optimizer did to one tensor, inferred from its recorded steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from equipoise.auditing.candidates import FREE, SIGNS, Candidate, Search, directions, of_dynamics
from equipoise.auditing.fit import Data, Fit, fitted, least_squares, refined
from equipoise.auditing.record import Track

FITS = {"muon": 0.2, "signsgdm": 0.05, "lion": 0.05}
"""The unexplained share up to which a rule fits; Muon's iteration is often run in bfloat16, and signs of the smallest
averages depend on rounding."""

FITS_ELSE = 0.005
"""And of all other rules, in float32."""

SURE = 5e-5
"""The unexplained share below which no other kind of decay is tried."""

KNOWN = 0.3
"""The unexplained share above which no rule is named."""

ROUND_OFF = 1e-7
"""A share of the weight, about float32's rounding, below which no decay is seen."""

STILL, NO_GRADIENT, UNKNOWN = "nothing", "no gradient", "not known"


@dataclass(frozen=True)
class Value:
    """A number with its standard error."""

    value: float
    error: float = 0.0

    def __str__(self) -> str:
        return f"{self.value:.4g}" + (f" ± {self.error:.1g}" if 0 < self.error < math.inf else "")

    def away(self, said: float, share: float) -> bool:
        """Whether it differs from what was said by more than a share of it, and by more than its error explains."""
        return abs(self.value - said) > max(share * abs(said), 4 * self.error)


@dataclass(frozen=True)
class Behaviour:
    """What an optimizer did to one tensor.

    Attributes:
        word: the rule in words; `STILL` where it did not move, `NO_GRADIENT` where none came, `UNKNOWN`.
        candidate: the rule with its numbers; None where there is none.
        fits: whether the rule explains the steps up to rounding.
        unexplained: ‖rest‖/‖Δw‖.
        lr: rate over what the group said, for all steps; the rate itself where it said 0.
        rates: of each step.
        decay: share of the weight that a step's decay takes, over the group's lr.
        kind: of decay: "" none, "decoupled", "independent" of lr, "coupled" (L2 in the gradient), "masked".
        factors: averaging factors by name.
        lost: share of the update that rounding to the parameter's type took.
        decay_lost: and share of the decay.
        notes: what was noticed, as codes.
    """

    word: str
    candidate: Candidate | None = None
    fits: bool = True
    unexplained: float = 0.0
    lr: Value = Value(math.nan, math.inf)
    rates: tuple[float, ...] = ()
    decay: Value = Value(math.nan, math.inf)
    kind: str = ""
    factors: dict[str, Value] = field(default_factory=dict[str, Value], hash=False)
    lost: float = 0.0
    decay_lost: float = 0.0
    notes: tuple[str, ...] = ()


def data_of(track: Track) -> Data | None:
    """The steps of a tensor that had a gradient, in float64; None where there are none.

    A tensor whose group changes its rule or averages while it is recorded counts up to there.
    """
    alike = next((i for i, s in enumerate(track.said) if s.dynamics != track.said[0].dynamics), len(track.said))
    keep = [i for i, g in enumerate(track.grads[:alike]) if g is not None and i < len(track.after)]
    if not keep:
        return None

    def stack(xs: Sequence[Tensor]) -> Tensor:
        return torch.stack([x.detach().to("cpu", torch.float64) for x in xs])

    grads = stack([track.grads[i] for i in keep])  # type: ignore[misc]
    before, after = stack([track.before[i] for i in keep]), stack([track.after[i] for i in keep])
    start = {k: x.detach().to("cpu", torch.float64) if isinstance(x, Tensor) else x for k, x in track.start.items()}
    norms = torch.tensor([track.grad_norms[i] for i in keep], dtype=torch.float64)
    scale = grads.flatten(1).norm(dim=1) / norms.clamp_min(1e-300)
    lr = torch.tensor([track.said[i].lr for i in keep], dtype=torch.float64)
    return Data(tuple(grads.shape[1:]), grads, before, after - before, lr, start, track.param.dtype, scale, track.whole)


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
        data = data_of(track)
        if data is None:
            moved = any(not torch.equal(a, b) for a, b in zip(track.before, track.after, strict=False))
            return Behaviour(NO_GRADIENT, notes=("moves-without-gradient",) if moved else ())
        finite = torch.isfinite(data.grads).all() and torch.isfinite(data.moved).all()
        if not finite:
            return Behaviour(UNKNOWN, fits=False, unexplained=math.nan, notes=("not-finite",))
        if not data.moved.any():
            rounded = self._still(track, data)
            return rounded
        said = said_of(track)
        wd = track.said[0].weight_decay
        part = said.rule == "muon" and not track.whole
        found = self._low(track, data, said, wd) if data.low else self._high(track, data, said, wd)
        if part and not found.fits:
            return Behaviour(UNKNOWN, None, False, found.unexplained, notes=("part",))
        return found

    def _high(self, track: Track, data: Data, said: Candidate, wd: float) -> Behaviour:
        return _behaviour(self._choose(said, data, track, wd), said, data, track)

    def _still(self, track: Track, data: Data) -> Behaviour:
        """A tensor that did not move: by its lr, by its gradients, or by rounding."""
        said = track.said[0]
        if not data.grads.any():
            return Behaviour(STILL, notes=("gradient-zero",))
        if not float(data.lr.max()):
            return Behaviour(STILL, notes=("lr-zero",))
        u = directions(said_of(track), list(data.grads), list(data.weights), data.start)
        step = u * data.lr.reshape(-1, *[1] * (u.ndim - 1))
        lost = _rounded(data.weights - step, data.dtype) == data.weights
        if bool(lost.double().mean() > 0.9):
            if track.finer:
                return Behaviour(STILL, notes=("kept",))
            return Behaviour(STILL, lost=1.0, decay_lost=1.0 if said.weight_decay else 0.0, notes=("rounding",))
        return Behaviour(STILL, notes=("still",))

    def _choose(self, said: Candidate, data: Data, track: Track, wd: float) -> Fit:
        thin = data.thinned()
        best: Fit | None = None
        seen: set[Candidate] = set()
        found = (c for c in self._found if c != said and (not _matrix(c) or (len(data.shape) > 1 and track.whole)))
        for one in (said, *found):
            fit = self._try(one, data, thin, wd)
            if _fits(fit):
                return self._keep(fit, one)
            best = fit if best is None or fit.unexplained < best.unexplained else best
            seen.add(one)
        assert best is not None
        ranked: list[Fit] = []
        by_rows = _holds_rows(data)
        for one in Search(data.shape, track.whole):
            ranked.append(fitted(replace(one, by_rows=by_rows), data if _matrix(one) or by_rows else thin))
        ranked.sort(key=lambda f: f.unexplained)
        tried: set[str] = set()
        for rough in ranked:
            key = f"{rough.candidate.rule} {rough.candidate.nesterov} {rough.candidate.polar}"
            if key in tried or len(tried) >= 5:
                continue
            tried.add(key)
            fit = self._try(rough.candidate, data, thin, wd, steps=12)
            best = fit if fit.unexplained < best.unexplained else best
            if _fits(fit):
                return self._keep(fit, replace(rough.candidate, factors=fit.candidate.factors))
        return best

    def _keep(self, fit: Fit, one: Candidate) -> Fit:
        kept = replace(one, l2=fit.candidate.l2)
        if kept not in self._found and len(self._found) < 12:
            self._found.append(kept)
        return fit

    def _try(self, one: Candidate, data: Data, thin: Data, wd: float, steps: int = 6) -> Fit:
        """The best fit of a rule, over its factors and the kinds of decay."""
        used = data if _matrix(one) or one.by_rows else thin
        coupled = bool(one.l2) and one.rule not in SIGNS
        base = fitted(one, used, decays=not coupled)
        fit = refined(one, used, decays=not coupled, coupled=coupled, steps=1 if base.unexplained < SURE else steps)
        if base.unexplained < max(SURE, 1.1 * fit.unexplained):  # what it says stands until others explain more
            base.errors = fit.errors
            fit = base
        if one.by_rows and one.rule.startswith("adam") and fit.unexplained > SURE:  # L2 in a gradient beside norms
            other = refined(replace(one, l2=one.l2 or 1e-3), used, coupled=True, steps=steps)
            fit = other if other.unexplained < 0.5 * fit.unexplained else fit
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

    def _low(self, track: Track, data: Data, said: Candidate, wd: float) -> Behaviour:
        """A tensor in few bits: whether its steps are rounded one by one, or kept in finer weights beside it."""
        thin = data if _matrix(said) or said.by_rows else data.thinned()
        best: tuple[float, Candidate, Value, Value] | None = None
        for one in (said, *Search(data.shape, track.whole)):
            used = data if _matrix(one) else thin
            u = directions(one, list(used.grads), list(used.weights), used.start)
            tried = (_pooled(u, used)[0], one, *_pooled(u, used)[1:])
            if best is None or tried[0] < best[0] * (0.8 if best[1] == said else 1.0):
                best = tried
            if one == said and tried[0] < LOW_FITS:
                break
        assert best is not None
        return _low_behaviour(best, said, track, data, thin)


LOW_FITS = 0.3
"""The unexplained share, beyond what rounding explains, up to which a rule fits in low precision."""

AGREE = 0.9
"""Share of entries that must be as predicted, for steps to be taken as rounded one by one."""


def _pooled(u: Tensor, data: Data) -> tuple[float, Value, Value]:
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
    return share, Value(-float(b[0, 0]), float(errors[0, 0])), Value(-float(b[0, 1]), float(errors[0, 1]))


def _low_behaviour(
    best: tuple[float, Candidate, Value, Value], said: Candidate, track: Track, data: Data, thin: Data
) -> Behaviour:
    score, one, rate, decay = best
    wd = track.said[0].weight_decay
    used = data if _matrix(one) else thin
    u = directions(one, list(used.grads), list(used.weights), used.start)
    lr = used.lr.reshape(-1, *[1] * (u.ndim - 1))
    scale = track.said[0].dynamics.scale_of(tuple(track.param.shape)) if one.rule == said.rule else 1.0
    d = torch.zeros_like(lr) if one.l2 else lr * wd
    kind = ("coupled" if one.l2 else "decoupled") if wd else ""
    # If each step were rounded: decay first, as torch does, then the update.
    full = -(lr * u * scale)
    decayed = _rounded(used.weights * (1 - d), used.dtype)
    agree = float(((_rounded(decayed + full, used.dtype) - used.weights) == used.moved).double().mean())
    decay_lost = 1 - _along(decayed - used.weights, -d * used.weights) if bool(d.any()) else 0.0
    if agree > AGREE and not track.finer:
        lost = 1 - _along(_rounded(used.weights + full, used.dtype) - used.weights, full)
        return Behaviour(
            one.word, one, True, 1 - agree, Value(1.0, math.inf), (), Value(wd, math.inf), kind, _known(one), lost,
            decay_lost, ("rounded",),
        )  # fmt: skip
    if score > KNOWN:
        return Behaviour(UNKNOWN, None, False, score, notes=("low",))
    rate = Value(rate.value / scale, rate.error / scale)
    gone = kind == "decoupled" and decay.away(wd, DECAYS_GONE) and abs(decay.value) < 0.5 * wd
    if not (gone and decay_lost > 0.5):
        decay_lost = 0.0
    # Where all steps together are less than a unit, weights beside them may not have shown yet.
    shown = float(full.sum(0).square().mean()) > float(used.noise().mean()) * 12
    if not shown:
        rate, decay = Value(rate.value, math.inf), Value(decay.value, math.inf)
    return Behaviour(
        one.word, one, score < LOW_FITS, score, rate, (), decay, kind, _known(one), 0.0, decay_lost, ("low",)
    )


DECAYS_GONE = 0.5
"""Share of the decay that must be missing for it to be called lost."""


def _along(x: Tensor, wanted: Tensor) -> float:
    """⟨x, wanted⟩/‖wanted‖²: how much of what was wanted there is."""
    size = float(wanted.square().sum())
    return float((x * wanted).sum()) / size if size else 1.0


def _known(one: Candidate) -> dict[str, Value]:
    return {name: Value(value, math.inf) for name, value in one.named.items()}


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype).to(torch.float64)


def _matrix(one: Candidate) -> bool:
    return one.rule == "muon" or one.rows


def _holds_rows(data: Data) -> bool:
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


def _behaviour(fit: Fit, said: Candidate, data: Data, track: Track) -> Behaviour:
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
    used = data if _matrix(one) or one.by_rows else data.thinned()
    if not _shows(one, used, scale):
        factor, told = Value(factor.value, math.inf), torch.zeros_like(told)
    shares = fit.shares
    decay, kind = _decay(one, fit, shares, lr, data)
    factors = {
        name: Value(value, error)
        for (name, value), error in zip(one.named.items(), [*fit.errors, *[math.inf] * 3], strict=False)
    }
    if one.l2:
        error = fit.errors[len(FREE[one.rule])] if len(fit.errors) > len(FREE[one.rule]) else math.inf
        decay, kind = Value(one.l2, error), "coupled"
    seen = rates.where(told, torch.full_like(rates, math.nan))
    word = one.word
    if one.by_rows:
        word += ", norms held"
    return Behaviour(
        word, one, _fits(fit), fit.unexplained, factor, tuple(seen.tolist()), decay, kind, factors, 0.0, 0.0,
        tuple(notes),
    )  # fmt: skip


def _shows(one: Candidate, data: Data, scale: float) -> bool:
    """Whether steps of the lr that is said are large enough to be seen in spite of rounding."""
    u = directions(one, list(data.grads), list(data.weights), data.start) * scale
    step = u * data.lr.where(data.lr > 0, torch.ones_like(data.lr)).reshape(-1, *[1] * (u.ndim - 1))
    return float(step.square().mean()) > 16 * 12 * float(data.noise().mean())


def _bias(one: Candidate, fit: Fit, data: Data, notes: list[str]) -> tuple[Candidate, Tensor, Tensor]:
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


def _common(rates: Tensor, lr: Tensor, errors: Tensor) -> Value:
    """The rate over what the group said, weighted by how well each step tells it; the rate itself where it said 0."""
    keep = (lr > 0) & torch.isfinite(errors)
    if not keep.any():
        return Value(float(rates.mean()), float(errors.max()))
    ratio, error = rates[keep] / lr[keep], errors[keep] / lr[keep]
    weight = 1 / (error.square() + (1e-9 * ratio.abs().max()) ** 2 + 1e-300)
    mean = float((weight * ratio).sum() / weight.sum())
    spread = float(ratio.std(unbiased=False)) / math.sqrt(len(ratio))
    return Value(mean, max(float(weight.sum() ** -0.5), spread))


def _decay(one: Candidate, fit: Fit, shares: Tensor, lr: Tensor, data: Data) -> tuple[Value, str]:
    """λ of a decay beside the direction, and its kind."""
    errors = fit.share_errors
    keep = (lr > 0) & torch.isfinite(errors)
    if not keep.any() or one.by_rows:
        return Value(math.nan, math.inf), ""
    weight = 1 / (errors[keep].square() + 1e-300)
    mean = float((weight * shares[keep] * lr[keep]).sum() / (weight * lr[keep].square()).sum())
    error = float((weight * lr[keep].square()).sum() ** -0.5)
    rest = shares[keep] - mean * lr[keep]
    spread = float(rest.abs().mean()) / float(lr[keep].mean()) / math.sqrt(int(keep.sum()))
    value = Value(mean, max(error, spread))
    if abs(mean) < 4 * value.error or abs(mean) * float(lr.max()) < ROUND_OFF:
        return value, ""
    kind = "masked" if one.mask else "decoupled"
    if float(lr[keep].std(unbiased=False)) > 0.05 * float(lr[keep].mean()):
        flat = float((weight * shares[keep]).sum() / weight.sum())
        if float((shares[keep] - flat).abs().mean()) < 0.2 * float(rest.abs().mean()):
            kind = "independent"
    return value, kind
