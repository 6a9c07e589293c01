"""Relatives that learn the magnitude of weights apart from their direction, while the model sees one tensor.

Letters: W weight, G gradient, u direction of the rule, η lr, d share that decay takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, final

import torch
from torch import Tensor
from torch.nn.functional import softplus

from equipoise import _check
from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.engine.rate import rate
from equipoise.optim.matrices.muon import MuonFamily
from equipoise.optim.moves import Decay, Move, Piece, decay_of, directions, plain_step, step_numbers, turns, varied
from equipoise.optim.options import PLAIN_ADAM, DecayKind, GroupOptions, Nonfinite, Params, documented, given
from equipoise.optim.rows import everywhere, neurons, put, reduced, row_norm, row_sum
from equipoise.optim.rules import AdamRule, Ratio, Rule
from equipoise.theory import Dynamics

ONE = math.log(math.e - 1)
"""softplus(ONE) = 1."""

LEAST = 1e-7
"""The smallest magnitude of a row or an input: a smaller one could not be divided by."""

MOST = 1e30
"""The largest product of a gradient and a weight: sums of millions of them are still numbers of float32."""

_ADAM, _DECAY = AdamRule(), Decay()


class _Apart(Move):
    """A move of directions, which keeps what it needs of magnitudes in the state and has Adam learn them."""

    names: ClassVar[tuple[str, ...]]
    """Of the magnitudes in the state; each has its averages beside it."""

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        return varied(_DECAY.dynamics(rule, group), known=False)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        lr, lost = rate(group), decay_of(group)
        still = isinstance(lr, float) and isinstance(lost, float) and lr == lost == 0.0
        for piece, one in zip(pieces, directions(u, len(pieces)), strict=True):
            slopes = piece.state.pop("slopes", None)
            if slopes is None:
                plain_step(piece.w, one, step_numbers(group), group)
            elif not still:
                self.move(piece, one, slopes, t, group)

    def gradient(self, g: Tensor, piece: Piece, group: GroupOptions) -> Tensor:
        if not turns(piece.w, group) or not g.numel():
            return g
        state, w = piece.state, neurons(piece.w, group)
        if not self.fit(state, w):
            state.update(self.begin(w, group))
            for name in self.names:
                state[f"{name}_avg"], state[f"{name}_sq"] = (torch.zeros_like(state[name]) for _ in range(2))
        seen, slopes = self.seen(_bounded(neurons(g, group), w), w, state)
        state["slopes"] = [-x if group["maximize"] else x for x in slopes]
        return seen.reshape(g.shape)

    def fit(self, state: dict[str, Any], w: Tensor) -> bool:
        """Whether a parameter's state has the magnitudes of these rows, with their averages."""
        sizes = {"row_gain": (w.shape[0], 1), "magnitude": (w.shape[0], 1), "column_gain": (1, w.shape[1])}
        wanted = {f"{name}{kind}": sizes[name] for name in self.names for kind in ("", "_avg", "_sq")}
        return all(getattr(state.get(name), "shape", None) == size for name, size in wanted.items())

    def begin(self, w: Tensor, group: GroupOptions) -> dict[str, Tensor]:
        """The initial state."""
        raise NotImplementedError

    def seen(self, g: Tensor, w: Tensor, state: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
        """The gradient of the direction, and those of the magnitudes."""
        raise NotImplementedError

    def move(self, piece: Piece, u: Tensor, slopes: list[Tensor], t: int, group: GroupOptions) -> None:
        """The step of a direction and its magnitudes."""
        raise NotImplementedError

    def adam(self, name: str, slope: Tensor, state: dict[str, Any], t: int, group: GroupOptions) -> Tensor:
        """Adam's direction for a magnitude, with the group's betas and eps."""
        averages = (state[f"{name}_avg"], state[f"{name}_sq"])
        u = _ADAM(slope, averages, _ADAM.numbers(t, group), group)
        return u.value() if isinstance(u, Ratio) else u


@final
class MagnitudeDirection(_Apart):
    """W = r·V·c:  x = (1−d)V − ηu, u from r·G·c;  V ← n·x/‖x‖;  r and c by Adam.  [hagele2026] Alg. 2.

    r is a column of magnitudes, one for each row of W, c a row of them, one for each input; they are softplus of what
    Adam learns, 1 at first, so that V and n are those of W at the start. Their lr is ηρ, ρ the group's `gain_rate`.
    A tensor of zeros takes plain steps until it is one no more, and has no norm to keep.
    """

    names = ("row_gain", "column_gain")
    shapes: ClassVar[dict[str, tuple[int, ...]]] = {"direction_norm": ()}
    defaults: ClassVar[dict[str, Any]] = {"gain_rate": 1.0, "rotate": None}

    def begin(self, w: Tensor, group: GroupOptions) -> dict[str, Tensor]:
        row, column = torch.zeros_like(row_sum(w)), torch.zeros_like(reduced(w.sum(dim=0, keepdim=True)))
        return {"row_gain": row + ONE, "column_gain": column + ONE, "direction_norm": _length(w)}

    def seen(self, g: Tensor, w: Tensor, state: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
        r, c = (softplus(state[name]).clamp_min(LEAST) for name in self.names)
        wg = w * g  # V·(r·G·c) in each place
        rows = row_sum(wg) / r * state["row_gain"].sigmoid()
        columns = reduced(wg.sum(dim=0, keepdim=True)) / c * state["column_gain"].sigmoid()
        return r * g * c, [rows, columns]

    def move(self, piece: Piece, u: Tensor, slopes: list[Tensor], t: int, group: GroupOptions) -> None:
        state, w, lr = piece.state, neurons(piece.w, group), rate(group)
        r, c = (softplus(state[name]).clamp_min(LEAST) for name in self.names)
        x = w / r / c * (1 - decay_of(group)) - neurons(u, group) * lr
        n, length = state["direction_norm"], _length(x)
        x = x * torch.where((n > 0) & (length > 0), n / length.clamp_min(1e-38), 1.0)
        for name, slope in zip(self.names, slopes, strict=True):
            state[name] = state[name] - self.adam(name, slope, state, t, group) * (lr * group["gain_rate"])
        r, c = (softplus(state[name]).clamp_min(LEAST) for name in self.names)
        put(piece.w, x * r * c)


@final
class Angular(_Apart):
    """W = r·V:  x = V − ηκu, u from r(G − ⟨G,V⟩V);  V ← x/‖x‖ in each row;  r by Adam.  [hubler2026].

    κ = (1 + c·max(0, t − 1 − t₀))^−p makes steps of directions smaller over the run than those of magnitudes: c is
    `turn_decay`, p `turn_power`, t₀ `turn_warmup`. Decay, if any, is that of r, and its lr is η. A row of zeros begins
    with r = √⅓, that of torch's default.
    """

    names = ("magnitude",)
    defaults: ClassVar[dict[str, Any]] = {"turn_decay": 1e-3, "turn_power": 1.0, "turn_warmup": 0, "rotate": None}

    def begin(self, w: Tensor, group: GroupOptions) -> dict[str, Tensor]:
        r = row_norm(w)
        return {"magnitude": torch.where(r > LEAST, r, 1 / math.sqrt(3))}

    def seen(self, g: Tensor, w: Tensor, state: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
        r = state["magnitude"]
        v = w / r
        along = row_sum(g * v)
        return (g - v * along) * r, [along]

    def move(self, piece: Piece, u: Tensor, slopes: list[Tensor], t: int, group: GroupOptions) -> None:
        state, lr, r = piece.state, rate(group), piece.state["magnitude"]
        turn = (1 + group["turn_decay"] * max(0, t - 1 - group["turn_warmup"])) ** -group["turn_power"]
        x = neurons(piece.w, group) / r - neurons(u, group) * (lr * turn)
        r = r * (1 - decay_of(group)) - self.adam("magnitude", slopes[0], state, t, group) * lr
        state["magnitude"] = r = torch.copysign(r.abs().clamp_min(LEAST), r)
        put(piece.w, x / row_norm(x).clamp_min(LEAST) * r)


def _bounded(g: Tensor, w: Tensor) -> Tensor:
    """G, made smaller where its products with weights would leave float32."""
    size, weight = (everywhere(x.abs().amax()) for x in (g, w))
    return g * (MOST / weight.clamp_min(1.0) / size).clamp_max(1.0)


def _length(x: Tensor) -> Tensor:
    """‖x‖ of a tensor."""
    return everywhere(torch.linalg.vector_norm(x))


@final
@documented
class MDAdam(RuleOptimizer):
    """Adam on the direction of each tensor, whose norm is kept, and on the magnitudes of its rows and inputs.

    The model sees one tensor W = r·V·c; there is nothing to fold.

    Args:
        params: parameters or groups. Those with two dimensions or more have magnitudes apart.
        lr: learning rate η of directions.
        betas: averaging factors.
        eps: ε.
        weight_decay: λ of what has no magnitudes apart; of directions it makes steps a little longer.
        gain_rate: ρ, the lr of the magnitudes over η.
        rotate: whether parameters have magnitudes apart. Default: those with two dimensions or more.
        {shared}

    Reference: [hagele2026] Alg. 2.

    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> w.grad = torch.eye(2)
    >>> _ = MDAdam([w], lr=0.1).step()  # only magnitudes fall, by softplus'(…)·0.1 for rows and for inputs
    >>> w.detach().round(decimals=2)
    tensor([[0.8800, 0.0000],
            [0.0000, 0.8800]])
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        gain_rate: float = 1.0,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, PLAIN_ADAM | given(locals()), rule=AdamRule(), move=MagnitudeDirection())


class _ApartMuon(MuonFamily):
    """Muon whose matrices have magnitudes apart; AdamW for the rest."""

    def pair(self, group: GroupOptions) -> tuple[Rule, Move]:
        """Muon's rule and magnitudes apart for groups of matrices, Adam's rule and decay for the others."""
        rule, move = super().pair(group)
        return (rule, move) if group["muon"] else (rule, _DECAY)


@final
@documented
class MDMuon(_ApartMuon):
    """Muon on the direction of each matrix, whose norm is kept, Adam on the magnitudes of its rows and inputs.

    Args:
        params: as for `Muon`; `rotate` in a group says whether its parameters have magnitudes apart.
        lr: learning rate η of the directions of matrices.
        momentum: β.
        nesterov: orthogonalise βm + (1−β)g instead of m.
        weight_decay: λ of what has no magnitudes apart; of directions it makes steps a little longer.
        gain_rate: ρ, the lr of the magnitudes over η.
        scale: as for `Muon`.
        rotate: of all groups that do not say it themselves; None: what has two dimensions or more.
        polar: as for `Muon`.
        adam: as for `Muon`; betas and eps also for the magnitudes.
        split: as for `Muon`.
        flatten: as for `Muon`.
        {shared}

    Reference: [hagele2026] Alg. 2.

    >>> w = torch.nn.Parameter(torch.eye(4))
    >>> w.grad = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
    >>> _ = MDMuon([{"params": [w], "muon": True}], lr=0.1, gain_rate=0.0).step()
    >>> w.detach().norm().round(decimals=4).item()
    2.0
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.02,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        gain_rate: float = 0.1,
        scale: str = "original",
        rotate: bool | None = None,
        polar: Mapping[str, Any] | None = None,
        adam: Mapping[str, Any] | None = None,
        split: int = 1,
        flatten: bool = False,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), MagnitudeDirection())


@final
@documented
class AngularMuown(_ApartMuon):
    """Muon's step for the directions of rows, ever smaller, and Adam's for their lengths; AdamW for the rest.

    Args:
        params: as for `Muon`; `rotate` in a group says whether its parameters have lengths apart.
        lr: learning rate η of directions and lengths.
        momentum: β.
        nesterov: orthogonalise βm + (1−β)g instead of m.
        weight_decay: λ of lengths.
        turn_decay: c, how fast steps of directions become smaller.
        turn_power: p, to which power.
        turn_warmup: t₀, the step from which on they do.
        scale: as for `Muon`.
        rotate: of all groups that do not say it themselves; None: what has two dimensions or more.
        polar: as for `Muon`.
        adam: as for `Muon`; betas and eps also for the lengths.
        split: as for `Muon`.
        flatten: as for `Muon`.
        {shared}

    Reference: [hubler2026], its defaults.

    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> w.grad = torch.tensor([[0.0, 2.0], [1.0, 0.0]])
    >>> _ = AngularMuown([{"params": [w], "muon": True}], lr=0.1, polar={"method": "svd"}).step()
    >>> round(float(w.detach()[0].norm()), 4), round(float(-w.detach()[0, 1] / w.detach()[0, 0]), 4)
    (1.0, 0.1)
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        *,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        turn_decay: float = 1e-3,
        turn_power: float = 1.0,
        turn_warmup: int = 0,
        scale: str = "original",
        rotate: bool | None = None,
        polar: Mapping[str, Any] | None = None,
        adam: Mapping[str, Any] | None = None,
        split: int = 1,
        flatten: bool = False,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), Angular())

    def check_options(self, group: GroupOptions) -> None:
        """Also the warmup."""
        super().check_options(group)
        _check.whole("turn_warmup", group["turn_warmup"])
