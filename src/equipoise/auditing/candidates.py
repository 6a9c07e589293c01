"""Candidate rules: what an optimizer may do with the gradients that it saw.

The equations are those of `optim.rules` and `optim.matrices.rules`. A candidate names one, its switches, and the
averaging factors that are fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from equipoise.optim.matrices.rules import MuonRule, averaged
from equipoise.optim.options import GroupOptions, group_options
from equipoise.optim.rules import (
    AdamRule,
    LionRule,
    NormalizedRule,
    Ratio,
    RMSPropRule,
    Rule,
    SGDMRule,
    SignSGDMRule,
)
from equipoise.theory import Dynamics
from equipoise.theory.kernels import QUINTICS

RULES: dict[str, Rule] = {
    "sgdm": SGDMRule(), "rmsprop": RMSPropRule(), "adamw": AdamRule(), "adam_nested": AdamRule(),
    "signsgdm": SignSGDMRule(), "lion": LionRule(), "muon": MuonRule(), "ngd": NormalizedRule(),
}  # fmt: skip
"""By the names of theory; Adam with L2 is "adamw" with `l2`."""

FREE = {
    "sgdm": ("momentum",), "rmsprop": ("alpha",), "adamw": ("beta1", "beta2"), "adam_nested": ("beta1", "beta2"),
    "signsgdm": ("momentum",), "lion": ("beta1", "beta2"), "muon": ("momentum",), "ngd": (),
}  # fmt: skip
"""The averaging factors of each rule."""

SIGNS = ("signsgdm", "lion")
"""Rules whose direction jumps as factors change, so that they are searched and not refined."""

ALIASES = {
    "exp_avg": ("exp_avg", "momentum_buffer", "m", "momentum"),
    "exp_avg_sq": ("exp_avg_sq", "square_avg", "v", "variance"),
    "momentum_buffer": ("momentum_buffer", "exp_avg", "m", "momentum"),
    "square_avg": ("square_avg", "exp_avg_sq", "v", "variance"),
}
"""What optimizers call their averages, by torch's names."""

POLAR = {
    "quintic": {"coefficients": "muon", "bound": "frobenius", "dtype": torch.float32},
    "dion": {"coefficients": QUINTICS["dion"], "bound": "frobenius", "dtype": torch.float32},
    "optimal": {},
    "exact": {"method": "svd"},
}
"""Ways to the polar factor: `geometry.polar`'s arguments."""

ROUNDED = ("rounded", "rounded more")
"""The quintics of "quintic" in bfloat16, rounded as torch's Muon does, and as the first public Muon does."""


@dataclass(frozen=True)
class Candidate:
    """A rule with all its numbers.

    Attributes:
        rule: one of `RULES`.
        factors: values of its averaging factors, in the order of `FREE`.
        eps: Adam's ε.
        nesterov: of SGD with momentum and Muon.
        corrected: whether Adam corrects the bias of its averages.
        zero_init: whether its averages start at zero.
        l2: the weight's share in the gradient.
        polar: of Muon, one of `POLAR` or `ROUNDED`.
        quintics: and its number of steps.
        stacked: whether Muon takes a tensor of three dimensions for a stack of matrices.
        split: and into how many it cuts the rows of each.
        rows: whether normalised GD normalises each row.
        by_rows: whether each row has a factor of its own, as where norms of rows are held.
        mask: whether decay acts only where it agrees with the step.
    """

    rule: str
    factors: tuple[float, ...] = ()
    eps: float = 1e-8
    nesterov: bool = False
    corrected: bool = True
    zero_init: bool = True
    l2: float = 0.0
    polar: str = "quintic"
    quintics: int = 5
    stacked: bool = False
    split: int = 1
    rows: bool = False
    by_rows: bool = False
    mask: bool = False

    @property
    def named(self) -> dict[str, float]:
        """The averaging factors by name."""
        return dict(zip(FREE[self.rule], self.factors, strict=True))

    @property
    def by_matrix(self) -> bool:
        """Whether it sees whole matrices or rows, so that it cannot be told from some of the entries."""
        return self.rule == "muon" or self.rows

    @property
    def word(self) -> str:
        """What people call it."""
        match self.rule:
            case "sgdm" if self.factors[0] == 0:
                return "SGD"
            case "sgdm":
                return "SGD with Nesterov momentum" if self.nesterov else "SGD with momentum"
            case "adamw":
                base = "Adam"
            case _:
                base = WORDS[self.rule]
        return base + (" without bias correction" if self.rule.startswith("adam") and not self.corrected else "")

    def group(self) -> GroupOptions:
        """The group that the rule reads."""
        first = self.factors[0] if self.factors else 0.0
        polar = dict(POLAR.get(self.polar, {}))
        if self.polar == "quintic":
            polar["steps"] = self.quintics
        return group_options({
            "betas": self.factors, "momentum": first, "alpha": first, "eps": self.eps, "nesterov": self.nesterov,
            "bias_correction": self.corrected, "nested": self.rule == "adam_nested", "zero_init": self.zero_init,
            "polar": polar, "scale": "none", "flatten": not self.stacked, "split": self.split,
            "granularity": "neuron" if self.rows else "tensor", "role": "matrix",
        })  # fmt: skip


WORDS = {
    "rmsprop": "RMSProp", "adam_nested": "nested Adam", "signsgdm": "sign of the averaged gradient", "lion": "Lion",
    "muon": "Muon", "ngd": "normalised gradient",
}  # fmt: skip


def directions(
    candidate: Candidate, grads: Sequence[Tensor], weights: Sequence[Tensor], start: dict[str, Any]
) -> Tensor:
    """u at each step, from the gradients that were seen.

    Args:
        candidate: the rule.
        grads: at each step, in the tensor's shape.
        weights: before each step, for L2.
        start: averages and number of steps before the first.
    """
    rule, group = RULES[candidate.rule], candidate.group()
    averages = tuple(begun(name, start, grads[0]) for name in rule.state)
    t0 = int(start.get("step") or 0)
    made = []
    for t, (g, w) in enumerate(zip(grads, weights, strict=True), start=1):
        x = g.add(w, alpha=candidate.l2) if candidate.l2 else g
        if t0 + t == 1 and rule.starts(group):
            rule.start(x, averages, group)
        numbers = rule.numbers(t0 + t, group)
        if candidate.polar in ROUNDED:
            u = _quintics(averaged(x.clone(), *averages, nesterov=candidate.nesterov, **numbers), candidate)
        else:
            u = rule(x.clone(), averages, numbers, group)
        made.append(u.value() if isinstance(u, Ratio) else u.clone())
    return torch.stack(made)


def _quintics(x: Tensor, candidate: Candidate) -> Tensor:
    """Muon's classic iteration in bfloat16, with the roundings of those who published it."""
    ((a, b, c),) = QUINTICS["muon"]
    y = x.reshape(len(x), -1).bfloat16()
    tall = len(y) > y.shape[1]
    y = y.mT if tall else y
    once = candidate.polar == "rounded"
    y = y / y.norm().clamp_min(1e-7) if once else y / (y.norm() + 1e-7)
    for _ in range(candidate.quintics):
        r = y @ y.mT
        h = torch.addmm(r, r, r, beta=b, alpha=c) if once else b * r + c * r @ r
        y = torch.addmm(y, h, y, beta=a) if once else a * y + h @ y
    return (y.mT if tall else y).to(x.dtype).reshape(x.shape)


def begun(name: str, start: dict[str, Any], like: Tensor) -> Tensor:
    """An average as it was before the first step; zero where the optimizer had none."""
    for alias in ALIASES[name]:
        found = start.get(alias)
        if isinstance(found, Tensor) and found.shape == like.shape:
            return found.to(like.dtype).clone()
    return torch.zeros_like(like)


def of_dynamics(dynamics: Dynamics, shape: tuple[int, ...], weight_decay: float) -> Candidate:
    """The candidate that an optimizer says it is.

    Args:
        dynamics: as `dynamics_of` reads it.
        shape: of the tensor.
        weight_decay: λ, which goes through the gradient where decay is coupled.
    """
    made = _of_dynamics(dynamics, shape)
    by_rows = dynamics.move in ("rotate", "hyperball") and dynamics.holds(len(shape))
    mask = dynamics.decay == "cautious"
    return replace(made, l2=weight_decay if dynamics.coupled else 0.0, by_rows=by_rows, mask=mask)


@lru_cache(maxsize=4096)
def _of_dynamics(dynamics: Dynamics, shape: tuple[int, ...]) -> Candidate:
    b1, b2 = dynamics.betas
    match dynamics.optimizer:
        case "sgdm":
            return Candidate("sgdm", (b1,), nesterov=dynamics.nesterov and b1 > 0)
        case "rmsprop":
            return Candidate("rmsprop", (b2,), eps=dynamics.eps)
        case "signsgdm":
            return Candidate("signsgdm", (b1,))
        case "lion":
            return Candidate("lion", (b1, b2))
        case "ngd":
            return Candidate("ngd")
        case "muon":
            if dynamics.layout(shape) is not None:
                way = "dion" if dynamics.quintics == "dion" else "quintic" if dynamics.newton_schulz else "optimal"
                steps = dynamics.newton_schulz or 5
                return Candidate(
                    "muon", (b1,), nesterov=dynamics.nesterov, polar=way, quintics=steps,
                    stacked=dynamics.stacked and len(shape) == 3, split=dynamics.split,
                )  # fmt: skip
            return Candidate("adamw", (0.9, b2))
        case name:
            return Candidate(
                "adam_nested" if name == "adam_nested" else "adamw", (b1, b2), eps=dynamics.eps,
                corrected=dynamics.bias_correction is not False, zero_init=dynamics.zero_init,
            )  # fmt: skip


@dataclass(frozen=True)
class Search:
    """Candidates that are tried where what the optimizer says does not fit."""

    shape: tuple[int, ...]
    whole: bool
    first: tuple[Candidate, ...] = field(default=())

    def __iter__(self) -> Any:
        yield from self.first
        yield Candidate("sgdm", (0.0,))
        for nesterov in (False, True):
            yield Candidate("sgdm", (0.9,), nesterov=nesterov)
        yield Candidate("adamw", (0.9, 0.999))
        yield Candidate("adamw", (0.9, 0.95))
        yield Candidate("adamw", (0.5, 0.9))
        yield Candidate("adam_nested", (0.9, 0.999))
        yield Candidate("rmsprop", (0.99,))
        for beta in (0.0, 0.9, 0.95, 0.99):
            yield Candidate("signsgdm", (beta,))
        for betas in ((0.9, 0.99), (0.95, 0.98), (0.9, 0.999)):
            yield Candidate("lion", betas)
        if len(self.shape) >= 2:
            yield Candidate("ngd", rows=True)
        if len(self.shape) >= 2 and self.whole and max(self.shape) > 1:
            for momentum in (0.95, 0.9, 0.0):
                for nesterov in (True, False):
                    yield Candidate("muon", (momentum,), nesterov=nesterov)
            if len(self.shape) == 3:
                yield Candidate("muon", (0.95,), nesterov=True, stacked=True)
            yield Candidate("muon", (0.95,), nesterov=True, polar="exact")
