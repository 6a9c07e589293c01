"""Moves on the sphere: rotation and hyperball, which rotate rows and keep their norms.

Letters: w weight, d direction, n norm to keep, ν largest ‖d‖² that is remembered, η_r rotation per step.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, ClassVar, Literal, final

import torch
from torch import Tensor

from equipoise.optim.engine.clock import count_of, value_of
from equipoise.optim.engine.rate import known_rate, rate, readable
from equipoise.optim.moves import (
    Decay,
    Move,
    Piece,
    decay_of,
    decay_options,
    directions,
    plain_step,
    step_numbers,
    turns,
    varied,
)
from equipoise.optim.options import GroupOptions
from equipoise.optim.rows import (
    as_rows,
    centred,
    column_like,
    everywhere,
    put,
    row_dot,
    row_mean,
    row_norm,
    row_sum,
    tensor_sum,
)
from equipoise.optim.rules import Rule
from equipoise.theory import Dynamics

NO_DECAY = (
    "weight_decay = 0: must be > 0, because the rotation comes from lr and weight decay; or give angle, or "
    "rotate=False for this group"
)

TRACK, PAPER_TRACK = 0.9, 0.99
"""Share of a row's tracked square that is left after a step; and the averaging factor of Algorithm 1."""

QUIET = 0.01
"""Share of the tracked square below which a direction is held for what is left of earlier gradients."""

BY_STEP: Literal["step"] = "step"
"""The `angle` of groups whose rows share the rotation of their tensor's plain step."""

WIDEST = math.tan(1.5)
"""The largest tangent of an angle."""


def on_sphere(rule: Dynamics, group: GroupOptions) -> Dynamics:
    """What a rule does whose directions turn rows by the rotation at which lr and weight decay would settle.

    SGDM's decay is taken as torch's, through its momentum ([kosson2024] Table 1), unless it is of another kind; L2 in
    Adam's gradient as AdamW's decay.
    """
    options = decay_options(group) | {"move": "rotate", "rotate": group["rotate"], "method": group["method"]}
    if rule.optimizer == "sgdm":
        options["coupled"] = group["decay"] == "lr"
    elif rule.optimizer == "adam_l2":
        options |= {"optimizer": "adamw", "coupled": False}
    return varied(rule, **options)


class RowMove(Move):
    """A move that gives each row keep·w − push·d, the two numbers found from ‖w‖², ⟨d,w⟩ and ‖d‖².

    That is all it needs to know of a row, so a row is read once, and again while it is still in the cache.
    """

    compiles = True
    columns: ClassVar[tuple[str, ...]]
    """Names of the numbers that it keeps of each row, in the state."""

    @abstractmethod
    def begin(self, w: Tensor, group: GroupOptions) -> tuple[Tensor, ...]:
        """The initial columns, for the rows of w."""

    @abstractmethod
    def numbers(
        self, rule: Rule, t: int, steps: int, group: GroupOptions, shape: tuple[int, ...]
    ) -> dict[str, float] | None:
        """The numbers of step t, the tracker's `steps`-th, for this shape; None: the weights do not move."""

    def sized(self, numbers: dict[str, float], size: int) -> dict[str, float]:
        """The numbers for rows of that many weights."""
        return numbers

    def by_tensor(self, group: GroupOptions) -> bool:
        """Whether the rows of a tensor depend on each other: `turn` needs all of them, and heights if of several."""
        return False

    @abstractmethod
    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        """The new columns, keep and push of the rows, from their inner products and the numbers for their size."""

    def products(self, w: Tensor, d: Tensor, group: GroupOptions) -> tuple[Tensor, Tensor, Tensor]:
        """‖w‖², ⟨d,w⟩, ‖d‖² of the rows, of what `direction` makes of d, in one pass."""
        return row_dot(w, w), row_dot(d, w), row_dot(d, d)

    def direction(self, d: Tensor, group: GroupOptions) -> Tensor:
        """The directions that rows are moved along."""
        return d

    def given(self, column: Tensor, group: GroupOptions) -> tuple[Tensor, ...]:
        """More columns, which the group gives and no step changes, of the type and on the ranks of another."""
        return ()

    def steps(self, state: dict[str, Any]) -> int:
        """How many steps the tracker of this parameter will have seen after the next."""
        return value_of(state.get("row_step", 0)) + 1

    def fit(self, state: dict[str, Any], rows: Tensor) -> bool:
        """Whether a parameter's state has the columns, of these rows."""
        held = [state.get(name) for name in self.columns]
        return all(torch.is_tensor(column) and column.shape == (rows.shape[0], 1) for column in held)

    def start(self, piece: Piece, group: GroupOptions) -> None:
        """Give a parameter's state the columns, if it lacks them."""
        rows = as_rows(piece.w, group["granularity"])
        # Until rows have moved (a step of lr 0 moves none), and where the granularity is another than before.
        if not self.fit(piece.state, rows) or not value_of(piece.state.get("row_step", 0)):
            piece.state.update(zip(self.columns, self.begin(rows, group), strict=True))
            piece.state["row_step"] = count_of(0)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        for piece, direction in zip(pieces, directions(u, len(pieces)), strict=True):
            if not turns(piece.w, group):
                plain_step(piece.w, direction, step_numbers(group), group)
                continue
            numbers = self.numbers(rule, t, self.steps(piece.state), group, tuple(piece.w.shape))
            if numbers is not None:
                self.move(piece, direction, numbers, group)
            else:  # a distributed checkpoint is loaded into the state that a step of lr 0 makes
                self.start(piece, group)

    def move(self, piece: Piece, u: Tensor, numbers: dict[str, float], group: GroupOptions) -> None:
        """Move the rows of one parameter."""
        self.start(piece, group)
        state = piece.state
        state["row_step"] = count_of(self.steps(state))
        w = as_rows(piece.w, group["granularity"])
        d = as_rows(u, group["granularity"])
        columns = tuple(state[name] for name in self.columns) + self.given(state[self.columns[0]], group)
        columns, w = self.rows(w, d, columns, numbers, group)
        state.update(zip(self.columns, columns, strict=True))
        put(piece.w, w)

    def rows(
        self,
        w: Tensor,
        d: Tensor,
        columns: tuple[Tensor, ...],
        numbers: dict[str, float],
        group: GroupOptions,
        out: Tensor | None = None,
        heights: list[int] | None = None,
    ) -> tuple[tuple[Tensor, ...], Tensor]:
        """The new columns, and the rows moved along their directions; into `out`, which may be w itself.

        The heights are given where the rows are of several tensors.
        """
        ww, dw, dd = self.products(w, d, group)
        d = self.direction(d, group)
        columns, keep, push = self.turn(ww, dw, dd, columns, self.sized(numbers, w.shape[1]) | {"heights": heights})
        # What is not finite moves nothing; to look first would wait for the device.
        return columns, torch.mul(w, keep, out=out).addcmul_(d.nan_to_num(0.0, 0.0, 0.0), push, value=-1)


class CentredMove(RowMove):
    """A move of rows that keep their means where the group says `center`: gradients and directions lose theirs."""

    def prepare(self, g: Tensor, w: Tensor, group: GroupOptions) -> Tensor:
        if not group["center"] or group.get("reference") == "paper" or not turns(w, group):
            return g
        return centred(as_rows(g, group["granularity"])).reshape(g.shape)

    def products(self, w: Tensor, d: Tensor, group: GroupOptions) -> tuple[Tensor, Tensor, Tensor]:
        ww, dw, dd = super().products(w, d, group)
        if not group["center"]:
            return ww, dw, dd
        # Of d without its mean: by algebra, as another pass would cost more than the digits lost. What is left of a
        # constant row is rounding.
        mean = row_mean(d)
        left = dd - mean * row_sum(d)
        return ww, dw - mean * row_sum(w), torch.where(left > 16 * torch.finfo(dd.dtype).eps * dd, left, 0.0)

    def direction(self, d: Tensor, group: GroupOptions) -> Tensor:
        return d - row_mean(d) if group["center"] else d


@final
class Rotate(CentredMove):
    """Turn every row by η_r and keep its norm.  [kosson2024] Algorithm 1, mended as in [theory] 7.

        d ← u − ⟨u,w⟩w/‖w‖²   (if asked: of centred gradients, and centred itself)
        ν ← max(‖d‖², βν),    s² = max(‖d‖², ν/100)
        w ← n · (w − tan(η_r)·‖w‖·d/s) / ‖…‖,   where ‖w − a·d‖² = ‖w‖² + a²‖d‖²

    A row turns by η_r, not by η_r on average, unless its direction has shrunk to less than a tenth of what it was, and
    faster than β forgets: by e in 19 steps at the default of 0.9. Then it turns as much less as it is shorter still.
    So a row never turns more than asked, however its gradients grow, and what is left of one without gradients is not
    made as large as a gradient, for 20·ln(k) steps if it has shrunk by k.

    Deviations from the paper: the paper tracks an average of ‖d‖², with β = 0.99, which lags behind gradients that grow
    or shrink; gradients and d are centred, as they are under Weight Standardization, before d is
    tracked, so that centring takes nothing from the rotation; weights are centred once, by the constructor; tan keeps
    large angles; a zero row grows by plain steps until it is as long as its equilibrium; η_r = 0 moves nothing.
    `reference="paper"` is Algorithm 1 to the letter; where that divides zero by zero, a row of zeros stays one.

    `angle="step"` takes η_r and n from the plain step x = (1 − ηλ)w − ηu instead, whose parts along w and across it are
    p and q in each row: tan η_r = √(Σq²/Σp²), over the rows of the tensor, and n = ‖x‖. So a tensor moves as far as by
    the plain optimizer and has the same norms, and its rows turn by one angle. A row of zeros takes the plain step.
    """

    columns = ("row_norm", "row_square")
    defaults: ClassVar[dict[str, Any]] = {
        "granularity": "neuron",
        "center": False,
        "track": None,
        "angle": None,
        "method": "exact",
        "reference": None,
        "norm": None,
        "speeds": None,
        "rotate": None,
    }

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        angle = group["angle"]
        if angle == BY_STEP:  # in the mean of a tensor's rows it is the plain optimizer
            return varied(Decay().dynamics(rule, group), known=False)
        return varied(on_sphere(rule, group), angle=None if angle is None else float(angle))

    def given(self, column: Tensor, group: GroupOptions) -> tuple[Tensor, ...]:
        return () if group["speeds"] is None else (column_like(group["speeds"].reshape(-1, 1), column),)

    def begin(self, w: Tensor, group: GroupOptions) -> tuple[Tensor, ...]:
        n = row_norm(w)
        if group["norm"] is not None:
            goal: Any = float(group["norm"])
            n = torch.where(n > 0, torch.full_like(n, goal), n)
        else:  # as long as the other rows, or as a row of torch's default
            typical = everywhere((n * (n > 0)).sum() / (n > 0).sum().clamp_min(1))
            goal = torch.where(typical > 0, typical, 1 / math.sqrt(3))
        # A zero row shall grow: its norm is minus the goal until it has come there.
        return torch.where(n > 0, n, -goal), torch.zeros_like(n)

    def numbers(
        self, rule: Rule, t: int, steps: int, group: GroupOptions, shape: tuple[int, ...]
    ) -> dict[str, float] | None:
        given, wd = group["angle"], float(group["weight_decay"])
        if given == BY_STEP:
            lr, lost = rate(group), decay_of(group)
            still = isinstance(lr, float) and isinstance(lost, float) and lr == lost == 0.0
            beta = TRACK if group["track"] is None else group["track"]
            return None if still else {
                "angle": 0.0, "tangent": 0.0, "beta": beta, "lr": lr, "left": 1 - lost, "goal": 0.0, "unknown": 0.0,
                "noise": 0.0, "by_step": 1.0,
            }  # fmt: skip
        if given is None and wd == 0 and known_rate(group) > 0:
            raise ValueError(NO_DECAY)
        dynamics = on_sphere(rule.dynamics(group), group)
        asked = dynamics.asked(shape, lr=known_rate(group), weight_decay=wd) if given is None else float(given)
        if asked == 0.0:
            return None
        lost = decay_of(group)
        known = isinstance(lost, float) and lost > 0 and readable(group["lr"])
        known = known and group["norm"] is None and dynamics.by_size
        end = dynamics.stationary(1, lr=known_rate(group), weight_decay=wd).norm if known else 0.0
        return {
            "angle": asked,
            "tangent": math.tan(min(asked, 1.5)),
            "beta": TRACK if group["track"] is None else group["track"],
            "lr": rate(group),
            "left": 1 - lost,
            "goal": end,
            "unknown": 0.0 if known else 1.0,
            "noise": 0.0,
        }

    def by_tensor(self, group: GroupOptions) -> bool:
        return group["angle"] == BY_STEP

    def sized(self, numbers: dict[str, float], size: int) -> dict[str, float]:
        return numbers | {"goal": numbers["goal"] * math.sqrt(size)}

    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        n, nu, *speeds = columns
        if "by_step" in numbers:
            n, tangent = self.plain(ww, dw, dd, numbers)
        else:
            tangent = numbers["tangent"]
        if speeds:
            angle = tangent.atan() if "by_step" in numbers else numbers["angle"]
            tangent = (angle * speeds[0]).clamp_max(1.5).tan()
        along = dw / ww.clamp_min(1e-38)
        now = dd - dw * along  # ‖d‖² without its part along w
        # Less than this is rounding, which must not become a direction; what is not finite is not greater.
        now = torch.where(now > 16 * torch.finfo(dd.dtype).eps * dd + numbers["noise"] * ww, now, 0.0)
        nu = torch.maximum(now, nu * numbers["beta"])
        square = torch.maximum(now, nu * QUIET)  # s²
        moves = now > 0
        square = torch.where(moves, square, 1.0)
        length = torch.where(moves, tangent * ww.sqrt() / square.sqrt(), 0.0)
        # ‖w − length·d‖² = ‖w‖²·(1 + tan²·‖d‖²/s²): length² itself may be too large for its type.
        shrink = n / (ww * (1 + torch.where(moves, tangent * tangent * (now / square), 0.0))).sqrt().clamp_min(1e-38)
        keep = shrink * (1 + torch.where(length > 0, length * along, 0.0))
        # Rows that started at zero take plain decayed steps, until they are as long as their equilibrium, and stay so.
        left, lr = numbers["left"], numbers["lr"]
        growing = n < 0
        still = growing | (ww == 0)
        reached = ww * (left * left) - dw * (2 * left * lr) + dd * (lr * lr)  # ‖w − ηd‖² of the decayed step
        goal = numbers["goal"] - n * numbers["unknown"]
        n = torch.where(growing & (reached >= goal * goal) & (reached < math.inf), goal, n)
        return (n, nu), torch.where(still, left, keep), torch.where(still, lr, shrink * length)

    def plain(self, ww: Tensor, dw: Tensor, dd: Tensor, numbers: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """The norms of the rows after a plain step, and the tangent of the rotation that it is in all of them."""
        w = ww.sqrt()
        lengthwise = torch.where(ww > 0, w * numbers["left"] - dw / w.clamp_min(1e-38) * numbers["lr"], 0.0)
        across = torch.where(ww > 0, dd - dw * (dw / ww.clamp_min(1e-38)), 0.0).clamp_min(0.0).sqrt() * numbers["lr"]
        turned, kept = (tensor_sum(x.square(), numbers.get("heights")) for x in (across, lengthwise))
        return torch.hypot(lengthwise, across), (turned / kept.clamp_min(1e-38)).sqrt().clamp_max(WIDEST)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        if group["reference"] != "paper":
            super().__call__(pieces, u, rule=rule, t=t, group=group)
            return
        for piece, direction in zip(pieces, directions(u, len(pieces)), strict=True):
            turning = turns(piece.w, group)
            if turning and not self.fit(piece.state, rows := as_rows(piece.w, group["granularity"])):
                piece.state["row_norm"] = row_norm(rows)
                piece.state["row_square"] = torch.zeros_like(piece.state["row_norm"])
            numbers = self.numbers(rule, t, t, group, tuple(piece.w.shape)) if turning else None
            if numbers is None:
                plain_step(piece.w, direction, step_numbers(group), group)
            else:
                self._paper(piece, direction, angle=numbers["angle"], t=t, group=group)

    @staticmethod
    def _paper(piece: Piece, u: Tensor, *, angle: float, t: int, group: GroupOptions) -> None:
        """Algorithm 1, lines 9–13, literally (its loop centres; `center=False` leaves that out)."""
        w, d = as_rows(piece.w, group["granularity"]), as_rows(u, group["granularity"])
        n, nu, beta = piece.state["row_norm"], piece.state["row_square"], group["track"]
        beta = PAPER_TRACK if beta is None else beta
        d = d - w * (row_sum(d * w) / row_sum(w.square()).clamp_min(1e-38))  # a row of zeros stays one
        nu.mul_(beta).add_(row_sum(d.square()), alpha=1 - beta)
        w = w - angle * n * d / (nu / (1 - beta**t) + 1e-8).sqrt()
        if group["center"]:
            w = w - row_mean(w)
        put(piece.w, n * w / row_norm(w).clamp_min(1e-38))


@final
class Hyperball(RowMove):
    """x = w − η·u·‖w‖/‖u‖;  w ← x·n/‖x‖: a step of relative size η on the sphere.  [wen2026].

    Per tensor by default, no projection and no decay; n is the norm at the first step, so that rounding does not add
    up. The published conversion lr = √(ηλ) leaves out momentum's factor; `theory.stationary(...).rotation` has it. A
    zero tensor takes plain steps.
    """

    columns = ("row_norm",)
    defaults: ClassVar[dict[str, Any]] = {"granularity": "tensor", "rotate": None}

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        return varied(rule, **decay_options(group), move="hyperball", rotate=group["rotate"])

    def begin(self, w: Tensor, group: GroupOptions) -> tuple[Tensor, ...]:
        return (row_norm(w),)

    def numbers(
        self, rule: Rule, t: int, steps: int, group: GroupOptions, shape: tuple[int, ...]
    ) -> dict[str, float] | None:
        lr = rate(group)
        return None if isinstance(lr, float) and lr == 0.0 else {"lr": lr}

    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        (n,) = columns
        length = (numbers["lr"] * _root(ww) / dd.sqrt().clamp_min(1e-30)).clamp_max(1e37)
        keep, push = back_on_sphere(n, ww, dw, dd, length)
        still = ww == 0
        n = torch.where(n > 0, n, (dd * (numbers["lr"] * numbers["lr"])).sqrt())
        return (n,), torch.where(still, 1.0, keep), torch.where(still, numbers["lr"], push)


def back_on_sphere(n: Tensor, ww: Tensor, dw: Tensor, dd: Tensor, length: Tensor) -> tuple[Tensor, Tensor]:
    """keep and push of (w − length·d)·n/‖w − length·d‖; a row stays where that says nothing."""
    # ‖x‖ = ‖w‖·√(1 − 2·length·⟨d,w⟩/‖w‖² + r²), as ‖w‖² times anything may be too large for its type.
    w, d = _root(ww), dd.sqrt()
    step = (length * d / w).square()
    ratio = 1 - 2 * length * (dw / ww.clamp_min(1e-38)) + step
    # A row stays where there is no direction, it is not finite, or x is rounding alone.
    moves = (d > 0) & (d < math.inf) & (ratio > 16 * torch.finfo(dd.dtype).eps * (1 + step))
    shrink = n / (w * torch.where(moves, ratio, 1.0).sqrt())
    return shrink, shrink * torch.where(moves, length, 0.0)


def _root(square: Tensor) -> Tensor:
    return square.sqrt().clamp_min(1e-38)
