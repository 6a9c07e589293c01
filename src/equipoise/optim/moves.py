"""Moves: (weight, direction) → weight: decay of every kind, and a constraint. Rotation and hyperball are in `sphere`.

Letters: w weight, u direction, η lr, d the share of the weight that a step's decay takes.
"""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from equipoise.optim.engine.rate import add, rate
from equipoise.optim.engine.tensor_list import TensorList, Traced
from equipoise.optim.options import GroupOptions
from equipoise.optim.rows import everywhere, row_count
from equipoise.optim.rules import Ratio, Rule
from equipoise.theory import Dynamics
from equipoise.theory.directions import BY_LR_MAX, decay_share


def decayed(w: Any, u: Any, *, lr: Any, left: Any) -> None:
    """w ← (1−d)w − ηu.  [loshchilov2019]."""
    if not isinstance(left, float) or left != 1.0:
        w.mul_(left)
    if isinstance(u, Ratio) and (isinstance(lr, float) or isinstance(w, Traced)):
        w.addcdiv_(u.top, u.bottom, value=-lr * u.scale)
    else:
        add(w, u.value() if isinstance(u, Ratio) else u, -lr)


def cautious(w: Any, u: Any, *, lr: Any, left: Any) -> None:
    """w ← w − d·w·[u·w ≥ 0] − ηu.  [chen2025]."""
    if isinstance(u, Ratio):
        u = u.value()
    mask = u.mul(w).sign_().clamp_max_(0.0).add_(1.0)  # 0 where u and w disagree, else 1
    w.addcmul_(w, mask.mul_(left - 1), value=1.0)
    add(w, u, -lr)


def decay_of(group: GroupOptions) -> Any:
    """d, the share of the weight that a step's decay takes, for the group's kind of decay; a tensor where lr is one."""
    return decay_share(rate(group), float(group["weight_decay"]), decay=group["decay"], lr_max=group["lr_max"])


def decay_options(group: GroupOptions) -> dict[str, Any]:
    """What theory is told of a group, whatever its rule."""
    lr_max = group["lr_max"] if group["decay"] in BY_LR_MAX else None
    return {
        "decay": group["decay"],
        "lr_max": float(lr_max) if lr_max else None,
        "maximize": bool(group["maximize"]),
    }


@lru_cache(maxsize=1024)
def varied(dynamics: Dynamics, **changes: Any) -> Dynamics:
    """The same dynamics with some fields changed; made once."""
    return replace(dynamics, **changes)


@dataclass(frozen=True)
class Piece:
    """One parameter in a step: its working weight (float32 for low-precision parameters) and its state."""

    w: Tensor
    state: dict[str, Any]


class Move(ABC):
    """How a direction moves the weights."""

    defaults: ClassVar[dict[str, Any]] = {}
    """Group options that belong to the move."""

    shapes: ClassVar[dict[str, tuple[int, ...]]] = {}
    """Shapes of what it keeps of a parameter that do not depend on it: a saved state must have them."""

    compiles: ClassVar[bool] = False
    """Whether it has a compiled kernel; your own moves run eagerly, unless they are `RowMove`s."""

    def prepare(self, g: Tensor, w: Tensor, group: GroupOptions) -> Tensor:
        """The gradient as the rule sees it."""
        return g

    def gradient(self, g: Tensor, piece: Piece, group: GroupOptions) -> Tensor:
        """The gradient as the rule sees it, for a move without a kernel, which may note in the state what it needs."""
        return self.prepare(g, piece.w, group)

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        """What the rule and the move do together; for your own moves theory only knows their decay."""
        return varied(rule, **decay_options(group), known=False)

    @abstractmethod
    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        """Move the weights of the pieces by their directions, a `TensorList` or `Ratio` of one tensor each."""


def directions(u: Any, count: int) -> list[Tensor]:
    """The directions, divided, one tensor for each piece."""
    value = u.value() if isinstance(u, Ratio) else u
    tensors = value.tensors if isinstance(value, TensorList) else [value]
    assert len(tensors) == count
    return tensors


def direction(g: Any, w: Any, averages: tuple[Any, ...], *, rule: Rule, t: int, group: GroupOptions) -> Any:
    """The rule's direction for the gradients as a move has prepared them; the averages are changed in place."""
    if group["maximize"]:
        g = g.neg()
    if group["l2"]:
        g = g.add(w, alpha=float(group["l2"]))
    if t == 1 and rule.starts(group):
        rule.start(g, averages, group)
    return rule(g, averages, rule.numbers(t, group), group)


@final
class Decay(Move):
    """`decayed` or `cautious`, by the group's kind of decay."""

    compiles = True

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        options = decay_options(group)
        if group["l2"] and not group["weight_decay"]:
            options |= {"coupled": True, "decay": "lr"}
            if rule.optimizer in ("adamw", "rmsprop"):  # RMSProp is Adam without an average of gradients
                options |= {"optimizer": "adam_l2", "bias_correction": rule.corrects}
            elif rule.optimizer != "sgdm":
                options["known"] = False
        return varied(rule, **options)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        plain_step(_weights(pieces, u), u, step_numbers(group), group)


def _weights(pieces: list[Piece], u: Any) -> Any:
    """The weights as their directions are: one tensor, or a list."""
    together = isinstance(u, TensorList) or (isinstance(u, Ratio) and isinstance(u.top, TensorList))
    return TensorList([piece.w for piece in pieces]) if together else pieces[0].w


def step_numbers(group: GroupOptions) -> dict[str, Any]:
    """The numbers of a decayed step."""
    return {"lr": rate(group), "left": 1 - decay_of(group)}


def plain_step(w: Any, u: Any, numbers: dict[str, Any], group: GroupOptions) -> None:
    """`decayed` or `cautious`, by the group's kind of decay."""
    step = cautious if group["decay"] == "cautious" else decayed
    step(w, u, lr=numbers["lr"], left=numbers["left"])


def turns(w: Tensor, group: GroupOptions) -> bool:
    """Whether a parameter has its norm controlled: as the group says, or if it has two dimensions or more.

    Rows of one number cannot turn: with their norms kept they would never learn.
    """
    asked = w.ndim > 1 if group["rotate"] is None else bool(group["rotate"])
    return asked and ("granularity" not in group or w.numel() != row_count(w, group["granularity"]))


@final
class Constrain(Move):
    """w ← w − ηu, then λ ← max(0, λ + μ(R(w) − κ)) and w ← w − 2λw, with R the mean square of each tensor.

    The bound κ is given, or R(w) after `warm_start` steps, or R(w) at the inflection point, where growth begins to
    slow down. Growth is that of r, an average of √R (√R itself in the first stretch, then r ← 0.99r + 0.01√R), over
    stretches of `warm_start` steps: γ = (r − r')/r. From the fourth stretch on, κ ← R(w) at the end of the first with
    γ' > γ > 0.01.

    Reference: [franke2024] Alg. 1, [notepad] 1.1; the averages, the wait and
    the least growth are not in the paper, but in the authors' code (pytorch-cpr 0.3.1, the path for many tensors; its
    path for one looks for a bound of 1000 and so never finds an inflection). We deviate in one thing: 2λ ≤ 1, as a step
    beyond would turn the weights' sign.
    """

    compiles = True
    defaults: ClassVar[dict[str, Any]] = {"bound": "inflection", "rate": 1.0, "warm_start": None, "rotate": None}
    shapes: ClassVar[dict[str, tuple[int, ...]]] = {"multiplier": (), "bound": (), "growth": (3,)}
    average: ClassVar[float] = 0.99
    least_growth: ClassVar[float] = 0.01

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        return varied(rule, **decay_options(group), move="constrain", rotate=group["rotate"])

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        decayed(_weights(pieces, u), u, lr=rate(group), left=1.0)
        self.hold(pieces, t, group)

    def hold(self, pieces: list[Piece], t: int, group: GroupOptions) -> None:
        """Hold parameters of one type to their bounds, after their step; on their device alone."""
        pieces = [piece for piece in pieces if turns(piece.w, group)]
        if not pieces:
            return
        weights, states = [piece.w for piece in pieces], [piece.state for piece in pieces]
        sharded = hasattr(weights[0], "placements")
        sizes = [everywhere(torch.linalg.vector_norm(w)) for w in weights] if sharded else torch._foreach_norm(weights)
        sizes = torch._foreach_clamp_max(sizes, 1e15)  # no ∞ − ∞ below
        sizes = torch._foreach_div(torch._foreach_mul(sizes, sizes), [w.numel() for w in weights])
        for state, size in zip(states, sizes, strict=True):
            if "growth" not in state:
                state["multiplier"] = torch.zeros_like(size)
                state["bound"] = torch.full_like(size, math.inf)
                state["growth"] = torch.stack([size.sqrt(), torch.zeros_like(size), torch.zeros_like(size)])
        multiplier, bound, growth = (torch.stack([state[name] for state in states]) for name in self.shapes)
        size = torch.stack(list(sizes))
        self._find_bound(bound, growth, size, t, group)
        # While the bound is not known, size − ∞ would make 0 of any multiplier, and does.
        multiplier.add_((size - bound).clamp_min(-1e30), alpha=group["rate"]).clamp_(0.0, 0.5)
        for name, values in zip(self.shapes, (multiplier, bound, growth), strict=True):
            torch._foreach_copy_([state[name] for state in states], list(values.unbind()))
        kept = list((1 - 2 * multiplier).unbind())
        if sharded:
            for w, k in zip(weights, kept, strict=True):
                w.mul_(k)
        else:
            torch._foreach_mul_(weights, kept)

    def _find_bound(self, bound: Tensor, growth: Tensor, size: Tensor, t: int, group: GroupOptions) -> None:
        """Set κ once, in place, by the group's way of choosing it; all have one entry for each parameter."""
        kind, stretch = group["bound"], group["warm_start"]
        assert stretch is not None  # filled in where the group was added
        if not isinstance(kind, str):
            bound.fill_(float(kind))
        elif kind == "warm_start":
            if t == stretch:
                bound.copy_(size)
        else:
            r, before, slope = growth.unbind(1)  # r, r', γ'
            r.lerp_(size.sqrt(), 1 - self.average if t >= stretch else 1.0)
            if t > stretch and t % stretch == 0:
                now = (r - before) / r
                found = (slope > now) & (now > self.least_growth) & torch.isinf(bound)
                bound.copy_(torch.where(found, size, bound))
                slope.copy_(torch.where(before > 0, now, 0.0))  # the first stretch that has an r' is the third
                before.copy_(r)
