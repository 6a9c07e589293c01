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
from equipoise.optim.rows import as_rows, centred, reduced, row_dot, row_mean, row_norm, row_sum
from equipoise.optim.rules import Ratio, Rule


def decayed(w: Any, u: Any, *, lr: float, lost: float) -> None:
    """W ← (1−d)w − ηu.  Loshchilov & Hutter 2019."""
    if not isinstance(lost, float) or lost:
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
        plain_step(w, u, step_numbers(group), group)


@torch.compiler.disable()
@lru_cache(maxsize=4096)
def _settled(items: tuple[tuple[str, Any], ...]) -> theory.Stationary:
    arguments = dict(items)
    return theory.stationary(arguments.pop("optimizer"), **arguments)


def settled(rule: Rule, group: dict[str, Any]) -> theory.Stationary:
    """Where the group's lr and weight decay would settle a row: η_r, and the norm over √size.

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
        "size": 1,
    }
    return _settled(tuple(sorted(known.items())))


def step_numbers(group: dict[str, Any]) -> dict[str, float]:
    """The numbers of a decayed step."""
    return {"lr": float(group["lr"]), "lost": decay_of(group)}


def plain_step(w: Any, u: Any, numbers: dict[str, Any], group: dict[str, Any]) -> None:
    """`decayed` or `cautious`, by the group's kind of decay."""
    step = cautious if group["decay"] == "cautious" else decayed
    step(w, u, lr=numbers["lr"], lost=numbers["lost"])


NO_DECAY = (
    "weight_decay = 0: must be > 0, as the rotation comes from lr and weight decay; or give angle, or rotate=False for "
    "this group"
)


def turns(w: Tensor, group: dict[str, Any]) -> bool:
    """Whether a parameter has its norm controlled: as the group says, or if it has two dimensions or more."""
    return w.ndim > 1 if group["rotate"] is None else bool(group["rotate"])


class RowMove(Move):
    """A move that gives each row keep·w − push·d, the two numbers found from ‖w‖², ⟨d,w⟩ and ‖d‖².

    That is all it needs to know of a row, so a row is read once, and again while it is still in the cache.
    """

    columns: ClassVar[tuple[str, ...]]
    """Names of the numbers that it keeps of each row, in the state."""

    @abstractmethod
    def begin(self, w: Tensor, group: dict[str, Any]) -> tuple[Tensor, ...]:
        """The columns at first, for the rows of w."""

    @abstractmethod
    def numbers(self, rule: Rule, t: int, steps: int, group: dict[str, Any]) -> dict[str, float] | None:
        """The numbers of step t, the tracker's `steps`-th; None: the weights stay where they are."""

    @abstractmethod
    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], size: Any, numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """The new columns, keep and push of rows of that many weights, from their inner products."""

    def direction(self, d: Tensor, group: dict[str, Any]) -> Tensor:
        """What is left of the directions, as rows, before their inner products are taken."""
        return d

    def given(self, column: Tensor, group: dict[str, Any]) -> tuple[Tensor, ...]:
        """More columns, which the group gives and no step changes, of the type and on the ranks of another."""
        return ()

    def steps(self, state: dict[str, Any]) -> int:
        """How many steps the tracker of this parameter will have seen after the next."""
        return int(state["row_step"]) + 1 if "row_step" in state else 1

    def start(self, piece: Piece, group: dict[str, Any]) -> None:
        """Give a parameter's state the columns, if it lacks them."""
        if self.columns[0] not in piece.state:
            piece.state.update(
                zip(self.columns, self.begin(as_rows(piece.w, group["granularity"]), group), strict=True)
            )
            piece.state["row_step"] = torch.zeros((), dtype=torch.float32)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: dict[str, Any]) -> None:
        for piece, direction in zip(pieces, directions(u, len(pieces)), strict=True):
            if not turns(piece.w, group):
                plain_step(piece.w, direction, step_numbers(group), group)
                continue
            numbers = self.numbers(rule, t, self.steps(piece.state), group)
            if numbers is not None:
                self.move(piece, direction, numbers, group)

    def move(self, piece: Piece, u: Tensor, numbers: dict[str, float], group: dict[str, Any]) -> None:
        """Move the rows of one parameter."""
        self.start(piece, group)
        state = piece.state
        state["row_step"] += 1
        w = as_rows(piece.w, group["granularity"])
        d = self.direction(as_rows(u, group["granularity"]), group)
        columns = tuple(state[name] for name in self.columns) + self.given(state[self.columns[0]], group)
        ww, dw, dd = row_dot(w, w), row_dot(d, w), row_dot(d, d)
        columns, keep, push = self.turn(ww, dw, dd, columns, w.shape[1], numbers)
        state.update(zip(self.columns, columns, strict=True))
        if not _all_finite(dd):
            d = torch.where(push != 0, d, 0.0)
        _put(piece.w, w.mul(keep).addcmul_(d, push, value=-1))


@final
class Rotate(RowMove):
    """Turn every row by η_r on average and keep its norm.  RE Algorithm 1, with the flaws of THEORY 7 mended.

        d ← u − ⟨u,w⟩w/‖w‖²   (if asked: of centred gradients, and centred itself)
        ν ← βν + (1−β)‖d‖²/r_t,    s² = (1−ω)·r_t ν̂ + ω·‖d‖²,    ω = β^{t/4}
        w ← n · (w − tan(η_r)·‖w‖·d/s) / ‖…‖,   where ‖w − a·d‖² = ‖w‖² + a²‖d‖²

    Deviations from the paper: gradients and d are centred, as they are under Weight Standardization, before d is
    tracked, so that centring takes nothing from the rotation; weights are centred once, by the constructor; ‖d‖² is
    tracked relative to r_t, what a random walk has at step t, and the step's own size counts until the tracker has seen
    enough, so that the rotation is right from the first step whatever the gradients; tan keeps large angles; a zero row
    grows by plain steps until it is as long as its equilibrium; η_r = 0 moves nothing.
    `reference="paper"` is Algorithm 1 to the letter.
    """

    columns = ("row_norm", "row_square")
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
        return centred(as_rows(g, group["granularity"])).reshape(g.shape)

    def direction(self, d: Tensor, group: dict[str, Any]) -> Tensor:
        return d - row_mean(d) if group["center"] else d

    def given(self, column: Tensor, group: dict[str, Any]) -> tuple[Tensor, ...]:
        return () if group["speeds"] is None else (_like(group["speeds"].reshape(-1, 1), column),)

    def begin(self, w: Tensor, group: dict[str, Any]) -> tuple[Tensor, ...]:
        n = row_norm(w)
        if group["norm"] is not None:
            goal: Any = float(group["norm"])
            n = torch.where(n > 0, torch.full_like(n, goal), n)
        else:  # as long as the other rows, or as a row of torch's default
            typical = float(_local((n * (n > 0)).sum() / (n > 0).sum().clamp_min(1)))
            goal = typical or 1 / math.sqrt(3)
        # A zero row shall grow: its norm is minus the goal until it has come there.
        return torch.where(n > 0, n, -goal), torch.zeros_like(n)

    def numbers(self, rule: Rule, t: int, steps: int, group: dict[str, Any]) -> dict[str, float] | None:
        given = group["angle"]
        if given is None and float(group["weight_decay"]) == 0 and float(group["lr"]) > 0:
            raise ValueError(NO_DECAY)
        angle = settled(rule, group).rotation if given is None else float(given)
        if angle == 0.0:
            return None
        beta, expected = group["track"], rule.expected_square(t, group)
        own, lost = beta ** (steps / 4), decay_of(group)
        known = lost > 0 and group["norm"] is None and rule.theory(group)["optimizer"] not in ("sgdm", "ngd")
        return {
            "angle": angle,
            "tangent": math.tan(min(angle, 1.5)),
            "beta": beta,
            "take": (1 - beta) / expected,
            "tracked": (1 - own) * expected / (1 - beta**steps),
            "own": own,
            "lr": float(group["lr"]),
            "lost": lost,
            "goal": settled(rule, group).norm if known else 0.0,
            "unknown": 0.0 if known else 1.0,
            "noise": 0.0,
        }

    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], size: Any, numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        n, nu, *speeds = columns
        tangent = (numbers["angle"] * speeds[0]).clamp_max(1.5).tan() if speeds else numbers["tangent"]
        along = dw / ww.clamp_min(1e-38)
        now = dd - dw * along  # ‖d‖² without its part along w
        # Less than this is rounding, which must not become a direction; what is not finite is not greater.
        now = torch.where(now > 16 * torch.finfo(dd.dtype).eps * dd + numbers["noise"] * ww, now, 0.0)
        nu = nu * numbers["beta"] + now * numbers["take"]
        s = (nu * numbers["tracked"] + now * numbers["own"]).sqrt()
        length = torch.where((s > 0) & (now > 0), tangent * ww.sqrt() / s.clamp_min(1e-38), 0.0)
        shrink = n / (ww + length.square() * now).sqrt().clamp_min(1e-38)
        keep = shrink * (1 + torch.where(length > 0, length * along, 0.0))
        # Rows that started at zero take plain decayed steps, until they are as long as their equilibrium.
        left, lr = 1 - numbers["lost"], numbers["lr"]
        growing = n < 0
        still = growing | (ww == 0)
        long = (ww * (left * left) - dw * (2 * left * lr) + dd * (lr * lr)).clamp_min(0.0).sqrt()
        goal = numbers["goal"] * size**0.5 - n * numbers["unknown"]
        n = torch.where(growing & (long >= goal), long, n)
        return (n, nu), torch.where(still, left, keep), torch.where(still, lr, shrink * length)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: dict[str, Any]) -> None:
        if group["reference"] != "paper":
            super().__call__(pieces, u, rule=rule, t=t, group=group)
            return
        for piece, direction in zip(pieces, directions(u, len(pieces)), strict=True):
            numbers = self.numbers(rule, t, t, group) if turns(piece.w, group) else None
            if numbers is None:
                plain_step(piece.w, direction, step_numbers(group), group)
            else:
                self._paper(piece, direction, angle=numbers["angle"], t=t, group=group)

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
class Hyperball(RowMove):
    """x = w − η·u·‖w‖/‖u‖;  w ← x·n/‖x‖: a step of relative size η on the sphere.  Follow-up of the norm note.

    Per tensor by default, no projection and no decay; n is the norm at the first step, so that rounding does not add
    up. The published conversion lr = √(ηλ) leaves out momentum's factor; `theory.stationary(...).rotation` has it. A
    zero tensor takes plain steps.
    """

    columns = ("row_norm",)
    defaults: ClassVar[dict[str, Any]] = {"granularity": "tensor", "rotate": None}

    def begin(self, w: Tensor, group: dict[str, Any]) -> tuple[Tensor, ...]:
        return (row_norm(w),)

    def numbers(self, rule: Rule, t: int, steps: int, group: dict[str, Any]) -> dict[str, float] | None:
        return {"lr": float(group["lr"])} if float(group["lr"]) else None

    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], size: Any, numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        (n,) = columns
        length = torch.where(dd > 0, numbers["lr"] * (ww / dd.clamp_min(1e-38)).sqrt(), 0.0)
        shrink = n / (ww - 2 * length * dw + length.square() * dd).sqrt().clamp_min(1e-38)
        still = ww == 0
        n = torch.where(n > 0, n, (dd * (numbers["lr"] * numbers["lr"])).sqrt())
        return (n,), torch.where(still, 1.0, shrink), torch.where(still, numbers["lr"], shrink * length)


@final
class Constrain(Move):
    """w ← w − ηu, then λ ← max(0, λ + μ(R(w) − κ)) and w ← w − 2λw, with R the mean square of each tensor.

    The bound κ is given, or R(w) after `warm_start` steps, or R(w) where its growth first slows down (the inflection
    point of its curve).  Franke et al. 2024, Constrained Parameter Regularization, Alg. 1; thesis 1.1.
    """

    defaults: ClassVar[dict[str, Any]] = {"bound": "inflection", "rate": 1.0, "warm_start": 100, "rotate": None}

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: dict[str, Any]) -> None:
        for piece, direction in zip(pieces, directions(u, len(pieces)), strict=True):
            piece.w.add_(direction, alpha=-float(group["lr"]))
            self.hold(piece, t, group)

    def hold(self, piece: Piece, t: int, group: dict[str, Any]) -> None:
        """Hold one parameter to its bound, after its step."""
        w, state = piece.w, piece.state
        if not turns(w, group):
            return
        size = _local(torch.linalg.vector_norm(w)).square() / w.numel()
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
