"""Fit steps by a candidate's directions: least squares, one step at a time or all together.

    Δw_t = −a_t u_t − d_t w_t + rest          u_t the direction, a_t the rate, d_t the share that decay takes

u is not linear in the averaging factors; they are refined by Gauss–Newton around the linear fit (variable projection).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from equipoise.auditing.candidates import FREE, SIGNS, Candidate, directions

ENTRIES = 2048
"""Entries of a tensor that rules of single entries are fitted on."""

ROUNDED = 6.0
"""How many times the rounding of weights once is taken as explained: a step rounds a few times."""

MANY = 16384
"""The same in low precision."""

FEW = 8
"""Entries below which steps are not fitted one by one."""

LOOKS = 16
"""Rounds of the pattern search for rules that take signs, at most."""

STEPS = 8
"""Gauss–Newton steps, at most."""


@dataclass
class TensorSteps:
    """The recorded steps of a tensor, in float64.

    Attributes:
        shape: of what is kept.
        grads: (steps, *shape), as the optimizer was given them.
        weights: before each step.
        moved: Δw of each.
        lr: what the group said at each step.
        start: averages before the first step.
        dtype: of the parameter.
        scale: ‖g‖ of what is kept over that of the whole, at each step.
        whole: whether all of the tensor is kept.
    """

    shape: tuple[int, ...]
    grads: Tensor
    weights: Tensor
    moved: Tensor
    lr: Tensor
    start: dict[str, Any]
    dtype: torch.dtype
    scale: Tensor
    whole: bool

    @property
    def low(self) -> bool:
        """Whether weights are stored in fewer bits than float32."""
        return self.dtype.itemsize < 4

    def noise(self) -> Tensor:
        """Mean square of what rounding to the parameter's type puts into each Δw, at each step."""
        _, exponent = torch.frexp(self.weights.abs() + self.moved.abs())
        unit = torch.ldexp(torch.full_like(self.weights, torch.finfo(self.dtype).eps), exponent - 1)
        return unit.square().flatten(1).mean(1) / 12


def chosen(count: int, dtype: torch.dtype) -> Tensor | None:
    """Which entries of a tensor rules of single entries are fitted on; more where rounding hides each; None for all."""
    most = ENTRIES if dtype.itemsize >= 4 else MANY
    return None if count <= most else torch.linspace(0, count - 1, most, dtype=torch.float64).round().long()


@dataclass
class Fit:
    """How well a candidate explains the steps, and with which numbers.

    Attributes:
        candidate: the rule, with its factors as fitted.
        unexplained: ‖rest‖/‖Δw‖ with a rate of its own for each step.
        rates: a of each step.
        shares: d of each step.
        rate_errors: standard errors of the rates.
        share_errors: and of the shares.
        errors: standard errors of the averaging factors, in their order, and of l2 where it is fitted.
    """

    candidate: Candidate
    unexplained: float
    rates: Tensor
    shares: Tensor
    rate_errors: Tensor
    share_errors: Tensor
    errors: tuple[float, ...] = ()


def fitted(candidate: Candidate, data: TensorSteps, decays: bool = True) -> Fit:
    """The least-squares fit of one candidate as it is.

    Args:
        candidate: the rule.
        data: the steps.
        decays: whether a part along the weights is fitted beside the direction.
    """
    rest, rates, shares, rate_errors, share_errors = _solve(candidate, data, decays)
    total = float(data.moved.square().sum())
    rounding = ROUNDED * float(data.noise().sum()) * data.moved[0].numel()
    unexplained = math.sqrt(max(0.0, float(rest.square().sum()) - rounding) / total) if total > 0 else 0.0
    return Fit(candidate, unexplained, rates, shares, rate_errors, share_errors)


def _solve(candidate: Candidate, data: TensorSteps, decays: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    u = directions(candidate, list(data.grads), list(data.weights), data.start)
    if candidate.rule == "ngd" and not candidate.rows:
        u = u * data.scale.reshape(-1, *[1] * (u.ndim - 1))
    w = data.weights
    if candidate.mask:  # u·w ≥ 0, whatever the sign of the rate
        w = w * (u * w >= 0)
    y, steps = data.moved, len(data.moved)
    of_steps = torch.ones(steps, dtype=y.dtype)
    by_rows = candidate.by_rows and y.ndim > 2
    if by_rows:
        y, u, w = (x.reshape(steps * x.shape[1], -1) for x in (y, u, w))
        columns = [u, w, torch.ones_like(u)]
    else:
        y, u, w = (x.reshape(steps, -1) for x in (y, u, w))
        if y.shape[1] < FEW:  # one rate for all steps, relative to what the group says
            of_steps = data.lr.where(data.lr > 0, of_steps)
            y, u, w = y.reshape(1, -1), (u * of_steps[:, None]).reshape(1, -1), (w * of_steps[:, None]).reshape(1, -1)
        columns = [u, w] if decays else [u]
    # Equal weights are rounded alike, which leaves no rest: errors are at least those of rounding once.
    floor = float(data.noise().mean()) if len(y) != steps else data.noise()[:, None]
    fit, rest, errors = least_squares(y, columns, floor)

    def by_step(x: Tensor) -> Tensor:
        return (x.reshape(steps, -1).mean(1) if by_rows else x) * of_steps

    none = torch.zeros(len(y), dtype=y.dtype)
    rates, shares, rate_errors, share_errors = (
        by_step(x) for x in (-fit[:, 0], -fit[:, 1] if decays else none, errors[:, 0], errors[:, 1] if decays else none)
    )
    return rest, rates, shares, rate_errors, share_errors


def least_squares(y: Tensor, columns: Sequence[Tensor], floor: Tensor | float = 0.0) -> tuple[Tensor, Tensor, Tensor]:
    """min ‖y − Xb‖² for each row: b, the rest, and the standard errors of b.

    Args:
        y: (problems, entries).
        columns: of X, each of the same shape.
        floor: the least mean square that the rest is taken to have.
    """
    x = torch.stack(list(columns), -1)
    size = x.norm(dim=1, keepdim=True)
    x = x / size.where(size > 0, torch.ones_like(size))
    gram = x.mT @ x
    inverse = torch.linalg.pinv(gram, hermitian=True, rtol=1e-13)
    b = inverse @ (x.mT @ y[..., None])
    rest = y - (x @ b)[..., 0]
    b = b + inverse @ (x.mT @ rest[..., None])  # once more, for the digits that the Gram matrix loses
    rest = y - (x @ b)[..., 0]
    free = max(1, y.shape[1] - len(columns))
    variance = (rest.square().sum(1, keepdim=True) / free).clamp_min(torch.as_tensor(floor, dtype=y.dtype))
    errors = (variance * inverse.diagonal(dim1=1, dim2=2)).clamp_min(0).sqrt()
    scale = size[:, 0].where(size[:, 0] > 0, torch.ones_like(size[:, 0]))
    errors = errors.masked_fill(size[:, 0] == 0, math.inf)
    if len(columns) > 1:  # columns along one line: nothing tells their shares apart
        least = torch.linalg.eigvalsh(gram)[:, :1]
        errors = errors.masked_fill(least < 1e-7, math.inf)
    return b[..., 0] / scale, rest, errors / scale


def refined(
    candidate: Candidate, data: TensorSteps, decays: bool = True, coupled: bool = False, steps: int = STEPS
) -> Fit:
    """The fit at the averaging factors that explain most, with their standard errors.

    Args:
        candidate: where to begin.
        data: the steps.
        decays: whether a part along the weights is fitted, too.
        coupled: whether `l2` is fitted.
        steps: Gauss–Newton steps, at most.
    """
    found = _factors(candidate, coupled)
    if candidate.rule in SIGNS:
        return _searched(candidate, data, decays)
    if not found or float(data.moved.square().sum()) == 0:
        return fitted(candidate, data, decays)
    unit = float(data.grads.norm() / data.weights.norm().clamp_min(1e-300)) if coupled else 1.0

    def at(z: Tensor) -> Candidate:
        return _with(candidate, z, unit, coupled)

    z = _inverse(candidate, unit, coupled)
    rest = _solve(at(z), data, decays)[0].reshape(-1)
    best = float(rest.square().sum())
    errors = tuple([math.inf] * len(z))
    damp = 1e-6
    for _ in range(steps):
        h = 1e-4
        # Central differences in the factors themselves: a one-sided one would bias the error bars.
        columns = []
        for i in range(len(z)):
            up, down = z.clone(), z.clone()
            up[i] += h
            down[i] -= h
            columns.append((_solve(at(up), data, decays)[0] - _solve(at(down), data, decays)[0]).reshape(-1) / (2 * h))
        jacobian = torch.stack(columns, 1)
        gram = jacobian.mT @ jacobian
        variance = best / max(1, rest.numel() - len(z))
        inverse = torch.linalg.pinv(gram, hermitian=True)
        spread = (variance * inverse.diagonal()).clamp_min(0).sqrt()
        seen = gram.diagonal() > 1e-12 * max(best, 1e-300)
        errors = tuple(float(e) if bool(s) else math.inf for e, s in zip(spread, seen, strict=True))
        gain = 0.0
        for _ in range(6):
            push = torch.linalg.solve(
                gram + damp * torch.diag(gram.diagonal().clamp_min(1e-300)), -(jacobian.mT @ rest)
            ).clamp(-2, 2)
            tried = z + push
            new = _solve(at(tried), data, decays)[0].reshape(-1)
            size = float(new.square().sum())
            if math.isfinite(size) and size < best:
                gain = (best - size) / best
                z, rest, best, damp = tried, new, size, max(damp / 10, 1e-9)
                break
            damp *= 10
        if gain < 1e-3:
            break
    made = fitted(at(z), data, decays)
    made.errors = _in_factors(z, errors, unit, candidate, coupled)
    return made


def _factors(candidate: Candidate, coupled: bool) -> list[str]:
    free = [] if candidate.rule == "sgdm" and candidate.factors == (0.0,) else list(FREE[candidate.rule])
    return free + (["l2"] if coupled else [])


def _inverse(candidate: Candidate, unit: float, coupled: bool) -> Tensor:
    """Averaging factors as log-odds, so that none leaves (0, 1); l2 in gradients."""
    free = len(_factors(candidate, False))
    z = [math.log(max(b, 1e-3) / max(1 - b, 1e-7)) for b in candidate.factors[:free]]
    return torch.tensor(z + ([candidate.l2 / unit] if coupled else []), dtype=torch.float64)


def _with(candidate: Candidate, z: Tensor, unit: float, coupled: bool) -> Candidate:
    free = len(_factors(candidate, False))
    values = tuple(1 / (1 + math.exp(-max(-30.0, min(30.0, float(x))))) for x in z[:free])
    made = replace(candidate, factors=values) if free else candidate
    return replace(made, l2=float(z[-1]) * unit) if coupled else made


def _in_factors(
    z: Tensor, errors: tuple[float, ...], unit: float, candidate: Candidate, coupled: bool
) -> tuple[float, ...]:
    free = len(_factors(candidate, False))
    slopes = [float(torch.sigmoid(x) * (1 - torch.sigmoid(x))) for x in z[:free]] + [unit] * coupled
    return tuple(e * s if math.isfinite(e) else math.inf for e, s in zip(errors, slopes, strict=True))


def _searched(candidate: Candidate, data: TensorSteps, decays: bool) -> Fit:
    """The best factors of a rule that takes signs: a pattern search, coarse to fine, in the log of 1 − β."""
    best = fitted(candidate, data, decays)
    span = 0.5
    for _ in range(LOOKS):
        if span < 0.02:
            break
        here = best.candidate
        better = best
        for i in range(len(here.factors)):
            for sign in (-1, 1):
                values = list(here.factors)
                values[i] = 1 - min(1.0, (1 - values[i]) * math.exp(sign * span))
                tried = fitted(replace(here, factors=tuple(values)), data, decays)
                if tried.unexplained < better.unexplained - 1e-9:
                    better = tried
        if better is best:
            span /= 2
        best = better
    best.errors = tuple(0.5 * (1 - b) * 0.05 for b in best.candidate.factors)
    return best


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What is left of numbers after a type with fewer bits."""
    return x.to(dtype).to(torch.float64)
