"""Moves: (weight, direction) → weight. Decay of every kind, rotate, hyperball, constrain.

Letters: w weight, u direction, η lr, d the share of the weight that a step's decay takes.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from equipoise import theory
from equipoise.optim.many import Many
from equipoise.optim.rules import Ratio, Rule, as_rows, reduced, row_dot, row_mean, row_norm, row_sum


def decayed(w: Any, u: Any, *, lr: float, lost: float) -> None:
    """W ← (1−d)w − ηu.  Loshchilov & Hutter 2019."""
    if lost:
        w.mul_(1 - lost)
    if isinstance(u, Ratio):
        w.addcdiv_(u.top, u.bottom, value=-lr * u.scale)
    else:
        w.add_(u, alpha=-lr)


def cautious(w: Any, u: Any, *, lr: float, lost: float) -> None:
    """W ← w − d·w·[u·w ≥ 0] − ηu.  Chen et al. 2025, arXiv 2510.12402."""
    if isinstance(u, Ratio):
        u = u.value()
    mask = u.mul(w).sign_().clamp_max_(0.0).add_(1.0)  # 0 where u and w disagree, else 1
    w.addcmul_(w, mask, value=-lost)
    w.add_(u, alpha=-lr)


def decay_of(group: dict[str, Any]) -> float:
    """d, the share of the weight that a step's decay takes, for the group's kind of decay."""
    lr, wd = float(group["lr"]), float(group["weight_decay"])
    match group["decay"]:
        case "independent":
            return wd
        case "corrected":
            top = max(lr, float(group["lr_max"] or 0.0))
            return wd * lr * lr / top if top else 0.0
        case _:
            return lr * wd


@dataclass(frozen=True)
class Piece:
    """One parameter in a step: its working weight (float32 for low-precision parameters) and its state."""

    w: Tensor
    state: dict[str, Any]


class Move(ABC):
    """How a direction moves the weights."""

    defaults: ClassVar[dict[str, Any]] = {}
    """Group options that belong to the move."""

    def prepare(self, g: Tensor, w: Tensor, group: dict[str, Any]) -> Tensor:
        """What the rule shall see of a gradient."""
        return g

    @abstractmethod
    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: dict[str, Any]) -> None:
        """Move the weights of the pieces by their directions, a `Many` or `Ratio` of one tensor each."""


def directions(u: Any, count: int) -> list[Tensor]:
    """The directions, divided, one tensor for each piece."""
    value = u.value() if isinstance(u, Ratio) else u
    tensors = value.tensors if isinstance(value, Many) else [value]
    assert len(tensors) == count
    return tensors


@final
class Decay(Move):
    """`decayed` or `cautious`, by the group's kind of decay."""

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: dict[str, Any]) -> None:
        together = isinstance(u, Many) or (isinstance(u, Ratio) and isinstance(u.top, Many))
        w: Any = Many([piece.w for piece in pieces]) if together else pieces[0].w
        plain_step(w, u, group)


@torch.compiler.disable()
@lru_cache(maxsize=4096)
def _settled(items: tuple[tuple[str, Any], ...]) -> theory.Stationary:
    arguments = dict(items)
    return theory.stationary(arguments.pop("optimizer"), **arguments)


def settled(rule: Rule, group: dict[str, Any], size: int = 1) -> theory.Stationary:
    """Where the group's lr and weight decay would settle a row of that many weights: η_r, and the norm.

    SGDM's decay is taken as torch's, through its momentum (RE Table 1), unless it is of another kind.
    """
    known = rule.theory(group)
    if known["optimizer"] == "sgdm":
        known["coupled"] = group["decay"] == "lr"
    top = None if group["decay"] != "corrected" else max(float(group["lr"]), float(group["lr_max"] or 0.0)) or None
    known |= {
        "lr": float(group["lr"]),
        "weight_decay": float(group["weight_decay"]),
        "decay": group["decay"],
        "lr_max": top,
        "method": group["method"],
        "size": size,
    }
    return _settled(tuple(sorted(known.items())))


def plain_step(w: Any, u: Any, group: dict[str, Any]) -> None:
    """`decayed` or `cautious`, by the group's kind of decay."""
    step = cautious if group["decay"] == "cautious" else decayed
    step(w, u, lr=float(group["lr"]), lost=decay_of(group))


NO_DECAY = (
    "weight_decay = 0: must be > 0, as the rotation comes from lr and weight decay; or give angle, or rotate=False for "
    "this group"
)


def turns(w: Tensor, group: dict[str, Any]) -> bool:
    """Whether a parameter has its norm controlled: as the group says, or if it has two dimensions or more."""
    return w.ndim > 1 if group["rotate"] is None else bool(group["rotate"])


@final
class Rotate(Move):
    """Turn every row by η_r on average and keep its norm.  RE Algorithm 1, with the flaws of THEORY 7 mended.

        d ← u − ⟨u,w⟩w/‖w‖²   (if asked: of centred gradients, and centred itself)
        ν ← βν + (1−β)‖d‖²/r_t,    s² = (1−ω)·r_t ν̂ + ω·‖d‖²,    ω = β^{t/4}
        w ← n · (w − tan(η_r)·n·d/s) / ‖…‖

    Deviations from the paper: gradients and d are centred, as they are under Weight Standardization, before d is
    tracked, so that centring takes nothing from the rotation; weights are centred once, by the constructor; ‖d‖² is
    tracked relative to r_t, what a random walk has at step t, and the step's own size counts until the tracker has seen
    enough, so that the rotation is right from the first step whatever the gradients; tan keeps large angles; a zero row
    grows by plain steps until it is as long as its equilibrium; η_r = 0 moves nothing.
    `reference="paper"` is Algorithm 1 to the letter.
    """

    defaults: ClassVar[dict[str, Any]] = {
        "granularity": "neuron",
        "center": False,
        "track": 0.99,
        "angle": None,
        "method": "exact",
        "reference": None,
        "norm": None,
        "speeds": None,
        "rotate": None,
    }

    def prepare(self, g: Tensor, w: Tensor, group: dict[str, Any]) -> Tensor:
        if not group["center"] or group["reference"] == "paper" or not turns(w, group):
            return g
        rows = as_rows(g, group["granularity"])
        centred = rows - row_mean(rows)
        # A constant row leaves only rounding, which must not become a direction.
        real = row_sum(centred.square()) > 1e-12 * row_sum(rows.square())
        return torch.where(real, centred, 0.0).reshape(g.shape)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: dict[str, Any]) -> None:
        turning = [turns(piece.w, group) for piece in pieces]
        angle = 0.0
        if any(turning):
            if group["angle"] is None and float(group["weight_decay"]) == 0 and float(group["lr"]) > 0:
                raise ValueError(NO_DECAY)
            angle = settled(rule, group).rotation if group["angle"] is None else float(group["angle"])
        for piece, direction, turned in zip(pieces, directions(u, len(pieces)), turning, strict=True):
            if not turned:
                plain_step(piece.w, direction, group)
            elif group["reference"] == "paper":
                self._paper(piece, direction, angle=angle, t=t, group=group)
            else:
                self.turn(piece, direction, angle=angle, t=t, group=group, rule=rule)

    def turn(
        self,
        piece: Piece,
        u: Tensor,
        *,
        angle: float,
        t: int,
        group: dict[str, Any],
        rule: Rule,
        noise: float = 0.0,
    ) -> None:
        """Turn the rows of one parameter by `angle` on average; a direction below √noise·‖w‖ is none."""
        state = piece.state
        if angle == 0.0:
            return
        w, d = as_rows(piece.w, group["granularity"]), as_rows(u, group["granularity"])
        if "row_norm" not in state:
            n = row_norm(w)
            if group["norm"] is not None:
                n = torch.where(n > 0, torch.full_like(n, float(group["norm"])), n)
            state["row_norm"], state["row_square"] = n, torch.zeros_like(n)
            state["row_step"] = torch.zeros((), dtype=torch.float32)
        state["row_step"] += 1
        n, nu = state["row_norm"], state["row_square"]
        if group["center"]:
            d = d - row_mean(d)
        # All that is needed of w and d are three dot products: the rest is a number for each row.
        ww, dw, dd = row_dot(w, w), row_dot(d, w), row_dot(d, d)
        still = (ww == 0) | (n == 0)
        along = dw / ww.clamp_min(1e-38)
        now = dd - dw * along  # ‖d‖² without its part along w
        # Less than this is rounding, which must not become a direction; what is not finite is not greater.
        now = torch.where(now > 16 * torch.finfo(dd.dtype).eps * dd + noise * ww, now, 0.0)
        expected, beta = rule.expected_square(t, group), group["track"]
        nu.mul_(beta).add_(now, alpha=(1 - beta) / expected)
        steps = float(state["row_step"])
        own = beta ** (steps / 4)
        size = (nu * ((1 - own) * expected / (1 - beta**steps)) + now * own).sqrt()
        tangent: Any = math.tan(min(angle, 1.5))
        if group["speeds"] is not None:
            tangent = (angle * _like(group["speeds"].reshape(-1, 1), n)).clamp_max(1.5).tan()
        length = torch.where((size > 0) & (now > 0), tangent * ww.sqrt() / size.clamp_min(1e-38), 0.0)
        shrink = n / (ww + length.square() * now).sqrt().clamp_min(1e-38)
        grown = self._grown(w, d, state, rule, group) if _any(still) else None
        moved = w.mul(shrink * (1 + torch.where(length > 0, length * along, 0.0)))
        moved.addcmul_(torch.where(length > 0, d, 0.0) if not _all_finite(dd) else d, shrink * length, value=-1)
        _put(piece.w, moved if grown is None else torch.where(still, grown, moved))

    @staticmethod
    def _grown(w: Tensor, d: Tensor, state: dict[str, Any], rule: Rule, group: dict[str, Any]) -> Tensor:
        """Rows that started at zero: plain decayed steps, until they are as long as their equilibrium."""
        grown = w * (1 - decay_of(group)) - float(group["lr"]) * d
        length = row_norm(grown)
        if group["norm"] is not None:
            target = float(group["norm"])
        elif decay_of(group) > 0 and rule.theory(group)["optimizer"] not in ("sgdm", "ngd"):
            target = settled(rule, group, w.shape[1]).norm
        else:  # no equilibrium is known: as long as the other rows, or as a row of torch's default
            others = state["row_norm"]
            typical = _local((others * (others > 0)).sum() / (others > 0).sum().clamp_min(1))
            target = float(typical) or 1 / math.sqrt(3)
        state["row_norm"] = torch.where((state["row_norm"] == 0) & (length >= target), length, state["row_norm"])
        return grown

    @staticmethod
    def _paper(piece: Piece, u: Tensor, *, angle: float, t: int, group: dict[str, Any]) -> None:
        """Algorithm 1, lines 9–13, literally (its loop centres; `center=False` leaves that out)."""
        w, d = as_rows(piece.w, group["granularity"]), as_rows(u, group["granularity"])
        state = piece.state
        if "row_norm" not in state:
            state["row_norm"] = row_norm(w)
            state["row_square"] = torch.zeros_like(state["row_norm"])
        n, nu, beta = state["row_norm"], state["row_square"], group["track"]
        d = d - w * (row_sum(d * w) / row_sum(w.square()))
        nu.mul_(beta).add_(row_sum(d.square()), alpha=1 - beta)
        w = w - angle * n * d / (nu / (1 - beta**t) + 1e-8).sqrt()
        if group["center"]:
            w = w - row_mean(w)
        _put(piece.w, n * w / row_norm(w))


@final
class Hyperball(Move):
    """x = w − η·u·‖w‖/‖u‖;  w ← x·‖w‖/‖x‖: a step of relative size η on the sphere.  Follow-up of the norm note.

    Per tensor by default, no projection and no decay. The published conversion lr = √(ηλ) leaves out momentum's factor;
    `theory.stationary(...).rotation` has it. A zero tensor takes a plain step.
    """

    defaults: ClassVar[dict[str, Any]] = {"granularity": "tensor", "rotate": None}

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: dict[str, Any]) -> None:
        lr = float(group["lr"])
        for piece, direction in zip(pieces, directions(u, len(pieces)), strict=True):
            if not turns(piece.w, group):
                plain_step(piece.w, direction, group)
                continue
            if lr == 0.0:
                continue
            w, d = as_rows(piece.w, group["granularity"]), as_rows(direction, group["granularity"])
            n = row_norm(w)
            size = row_norm(d)
            x = w - d * (lr * torch.where(size > 0, n / size.clamp_min(1e-38), 0.0))
            x = x * (n / row_norm(x).clamp_min(1e-38))
            _put(piece.w, torch.where(n > 0, x, -lr * d))


@final
class Constrain(Move):
    """w ← w − ηu, then λ ← max(0, λ + μ(R(w) − κ)) and w ← w − 2λw, with R the mean square of each tensor.

    The bound κ is given, or R(w) after `warm_start` steps, or R(w) where its growth first slows down (the inflection
    point of its curve).  Franke et al. 2024, Constrained Parameter Regularization, Alg. 1; thesis 1.1.
    """

    defaults: ClassVar[dict[str, Any]] = {"bound": "inflection", "rate": 1.0, "warm_start": 100, "rotate": None}

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: dict[str, Any]) -> None:
        lr = float(group["lr"])
        for piece, direction in zip(pieces, directions(u, len(pieces)), strict=True):
            w, state = piece.w, piece.state
            w.add_(direction, alpha=-lr)
            if not turns(w, group):
                continue
            size = _local(w.square().mean())
            if "multiplier" not in state:
                state["multiplier"] = torch.zeros_like(size)
                state["bound"] = torch.full_like(size, math.inf)
                state["past"] = torch.zeros(2, dtype=size.dtype, device=size.device)
            self._find_bound(state, size, t, group)
            # While the bound is not known, size − ∞ would make 0 of any multiplier, and does.
            state["multiplier"].add_((size - state["bound"]).clamp_min(-1e30), alpha=group["rate"]).clamp_(0.0, 0.5)
            w.mul_(1 - 2 * float(state["multiplier"]))

    @staticmethod
    def _find_bound(state: dict[str, Any], size: Tensor, t: int, group: dict[str, Any]) -> None:
        """Set κ once, by the group's way of choosing it."""
        kind = group["bound"]
        if not isinstance(kind, str):
            state["bound"].fill_(float(kind))
        elif kind == "warm_start":
            if t == group["warm_start"]:
                state["bound"].copy_(size)
        elif t % group["warm_start"] == 0:
            # Every so many steps: R now, and one and two stretches ago; growth slows where the second difference < 0.
            before, earlier = state["past"][0].clone(), state["past"][1].clone()
            slowing = (size - before) < (before - earlier)
            found = slowing & (earlier > 0) & torch.isinf(state["bound"])
            state["bound"].copy_(torch.where(found, size, state["bound"]))
            state["past"].copy_(torch.stack([size, before]))


def center_rows(w: Tensor, granularity: str | int) -> None:
    """Take the mean from every row and keep its norm; a constant row becomes zero."""
    rows = as_rows(w, granularity)
    rows = rows.float() if rows.dtype in (torch.bfloat16, torch.float16) else rows
    before = row_norm(rows)
    rows = rows - row_mean(rows)
    after = row_norm(rows)
    _put(w, rows * torch.where(after > 1e-6 * before, before / after.clamp_min(1e-38), 0.0))


def _put(w: Tensor, rows: Tensor) -> None:
    w.copy_(rows if rows.shape == w.shape else rows.reshape(w.shape))


def _like(x: Tensor, n: Any) -> Tensor:
    """A column for each row, of the type and on the ranks of another."""
    if not hasattr(n, "placements"):
        return x.to(n)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(x.to(dtype=n.dtype, device=n.device), n.device_mesh, n.placements)


def _all_finite(x: Tensor) -> bool:
    return not _any(~torch.isfinite(x))


def _any(mask: Tensor) -> bool:
    return bool(_local(mask.sum()))


def _local(x: Tensor) -> Tensor:
    """A scalar as an ordinary tensor, the same on all ranks."""
    return reduced(x).full_tensor() if hasattr(x, "full_tensor") else x  # type: ignore[attr-defined]
