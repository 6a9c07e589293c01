"""Relatives that look at each neuron's weights and gradient: AdamP takes away what only lengthens, Nero turns.

Letters: w weight, g gradient, u direction, η lr, n norm to keep, ν average of ‖g‖².
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from equipoise import _check
from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.engine.rate import rate
from equipoise.optim.engine.validation import split_group
from equipoise.optim.moves import Decay, Move, Piece, decay_of, directions, plain_step, step_numbers, turns, varied
from equipoise.optim.options import PLAIN_ADAM, DecayKind, GroupOptions, Nonfinite, Params, documented, given
from equipoise.optim.rows import as_rows, everywhere, row_dot, row_norm, unit
from equipoise.optim.rules import AdamRule, Rule, described
from equipoise.optim.sphere import CentredMove, back_on_sphere
from equipoise.theory import Dynamics


@final
class Project(Move):
    """d = u − ⟨u,w⟩w/‖w‖²;  w ← (1 − ρηλ)w − ηd where |cos(g, w)| < δ/√size, else a plain step.  [heo2021] Alg. 1–2.

    First by neurons, if the cosines of all of a tensor's are so small; if not, by the tensor. A gradient that is
    orthogonal to the weights says that their scale does not count. ρ is `wd_ratio`.
    """

    defaults: ClassVar[dict[str, Any]] = {"delta": 0.1, "wd_ratio": 0.1, "rotate": None}

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        return varied(Decay().dynamics(rule, group), known=False)

    def gradient(self, g: Tensor, piece: Piece, group: GroupOptions) -> Tensor:
        if turns(piece.w, group) and g.numel():
            by_row = self._free(g, piece.w, "neuron", group)
            by_tensor = self._free(g, piece.w, "tensor", group) & ~by_row
            piece.state["free"] = (by_row, by_tensor)
        return g

    @staticmethod
    def _free(g: Tensor, w: Tensor, by: str, group: GroupOptions) -> Tensor:
        """Whether the gradient says nothing of the scale of any row."""
        rows = as_rows(w, by)
        cosine = row_dot(unit(as_rows(g, by)), unit(rows)).abs()
        return everywhere(cosine.amax()) < group["delta"] / math.sqrt(rows.shape[1])

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        for piece, one in zip(pieces, directions(u, len(pieces)), strict=True):
            numbers, free = step_numbers(group), piece.state.pop("free", None)
            if free is not None:
                one = sum((self._along(one, piece.w, by) * is_free for by, is_free in zip(_BY, free, strict=True)), one)
                spared = (free[0] | free[1]).to(piece.w.dtype) * (1 - group["wd_ratio"])
                numbers["left"] = 1 - decay_of(group) * (1 - spared)
            plain_step(piece.w, one, numbers, group)

    @staticmethod
    def _along(u: Tensor, w: Tensor, by: str) -> Tensor:
        """−⟨u,w⟩w/‖w‖² of each row."""
        heads = unit(as_rows(w, by))
        return (heads * -row_dot(as_rows(u, by), heads)).reshape(w.shape)


_BY = ("neuron", "tensor")


@final
class GradientRule(Rule):
    """u = g."""

    state = ()

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        return {}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        return g

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described("sgdm", betas=(0.0, 0.999), nesterov=False, coupled=False)


@final
class Balance(CentredMove):
    """ν ← βν + (1−β)‖g‖²;  x = w − η‖w‖·g/√ν̂;  w ← x·n/‖x‖ for each row, all centred.  [liu2021] Alg. 1.

    A row steps by a share η of its norm where its gradient is as long as it mostly is, and keeps norm and mean. A row
    of zeros becomes as long as the others in its first step.

    Deviations: n is the row's own norm unless `norm` is given (the paper's is 1, for networks that are made for it);
    gradients are centred before they are measured, so that centring takes nothing from the step.
    """

    columns = ("row_norm", "row_square")
    defaults: ClassVar[dict[str, Any]] = {
        "granularity": "neuron", "center": True, "norm": None, "rotate": None,
    }  # fmt: skip

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        return varied(Decay().dynamics(rule, group), known=False)

    def begin(self, w: Tensor, group: GroupOptions) -> tuple[Tensor, ...]:
        n = row_norm(w)
        if group["norm"] is not None:
            return torch.full_like(n, float(group["norm"])), torch.zeros_like(n)
        typical = everywhere(n.sum() / (n > 0).sum().clamp_min(1))
        return torch.where(n > 0, n, torch.where(typical > 0, typical, 1.0)), torch.zeros_like(n)

    def numbers(
        self, rule: Rule, t: int, steps: int, group: GroupOptions, shape: tuple[int, ...]
    ) -> dict[str, float] | None:
        lr, beta = rate(group), group["betas"][1]
        still = isinstance(lr, float) and lr == 0.0
        return None if still else {"lr": lr, "beta": beta, "fill": 1 - beta**steps}

    def turn(
        self, ww: Tensor, dw: Tensor, dd: Tensor, columns: tuple[Tensor, ...], numbers: dict[str, Any]
    ) -> tuple[tuple[Tensor, ...], Tensor, Tensor]:
        n, nu = columns
        nu = nu * numbers["beta"] + dd * (1 - numbers["beta"])
        usual = (nu / numbers["fill"]).sqrt()
        length = torch.where(usual > 0, numbers["lr"] * ww.sqrt() / usual.clamp_min(1e-30), 0.0).clamp_max(1e37)
        keep, push = back_on_sphere(n, ww, dw, dd, length)
        begun = torch.where((dd > 0) & (dd < math.inf), n / dd.sqrt().clamp_min(1e-30), 0.0)
        still = ww == 0
        return (n, nu), torch.where(still, 1.0, keep), torch.where(still, begun, push)


@final
class OwnSize(Move):
    """w ← (1 − d)w − ησu, with σ the mean of |w| at the first step, or 0.01 where that is 0.  [liu2021], its biases."""

    shapes: ClassVar[dict[str, tuple[int, ...]]] = {"size": ()}
    least: ClassVar[float] = 0.01

    def dynamics(self, rule: Dynamics, group: GroupOptions) -> Dynamics:
        return varied(Decay().dynamics(rule, group), known=False)

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        for piece, one in zip(pieces, directions(u, len(pieces)), strict=True):
            if "size" not in piece.state:
                size = everywhere(piece.w.abs().mean())
                piece.state["size"] = torch.where(size > 0, size, self.least)
            plain_step(piece.w, one * piece.state["size"], step_numbers(group), group)


@final
@documented
class AdamP(RuleOptimizer):
    """Adam whose steps do not lengthen weights whose scale does not count, as their gradients show.

    Args:
        params: parameters or groups. Those with two dimensions or more are looked at.
        lr: learning rate η.
        betas: averaging factors.
        eps: ε.
        weight_decay: λ, decoupled.
        delta: δ, the largest cosine of gradient and weights, over 1/√size, that counts as none.
        wd_ratio: ρ, the share of decay that is left where steps are projected.
        rotate: whether parameters are looked at. Default: those with two dimensions or more.
        {shared}

    Reference: [heo2021] Alg. 1–2, without its Nesterov form.

    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> w.grad = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    >>> _ = AdamP([w], lr=0.1).step()
    >>> w.detach().round(decimals=3)
    tensor([[ 1.0000, -0.1000],
            [-0.1000,  1.0000]])
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        delta: float = 0.1,
        wd_ratio: float = 0.1,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, PLAIN_ADAM | given(locals()), rule=AdamRule(), move=Project())


@final
@documented
class Nero(RuleOptimizer):
    """Each row of weights turns by about lr a step, at a constant norm and mean; gains and biases take Adam-like steps.

    Args:
        params: parameters or groups. A group is split into what turns, rows of more than one number, and the rest.
        lr: η, the size of a step relative to the weights.
        beta: averaging factor of the squares; there is no momentum.
        norm: the norm to keep. Default: that of each row at the start; the paper's is 1.
        weight_decay: λ of what does not turn.
        rotate: whether parameters turn. Default: those with two dimensions or more.
        {shared}

    Reference: [liu2021] Alg. 1.

    >>> w = torch.nn.Parameter(torch.tensor([[1.0, -1.0, 0.0]]))
    >>> w.grad = torch.tensor([[1.0, 1.0, -2.0]])
    >>> _ = Nero([w], lr=0.1).step()
    >>> round(float(w.detach().norm()), 4), round(float(w.detach()[0, 2]), 3)
    (1.4142, 0.115)
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 0.01,
        *,
        beta: float = 0.999,
        norm: float | None = None,
        weight_decay: float = 0.0,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        options = given(locals())
        beta = _check.number("beta", options.pop("beta"), low=0, high=1, open_high=True)
        self._other, self._size = AdamRule(), OwnSize()
        options |= {"betas": (0.0, beta), "eps": 0.0, "center": True}
        super().__init__(params, PLAIN_ADAM | options, rule=GradientRule(), move=Balance())

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {name: getattr(self, name) for name in ("_other", "_size")}

    def pair(self, group: GroupOptions) -> tuple[Rule, Move]:
        """Rows that turn; the rest by Adam's rule without momentum, in steps of its own size."""
        if group["params"] and not any(turns(p, group) for p in group["params"]):
            return self._other, self._size
        return self.rule, self.move

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, split into what turns and the rest.

        Args:
            param_group: as for any torch optimizer.
        """
        asked: Any = self.defaults | {k: v for k, v in param_group.items() if k != "params"}
        before = len(self.param_groups)
        try:
            for _, part in split_group(param_group, lambda p: turns(p, asked)):
                super().add_param_group(part)
        except ValueError:
            del self.param_groups[before:]
            raise

    def check_options(self, group: GroupOptions) -> None:
        """Also the norm."""
        super().check_options(group)
        if group["norm"] is not None:
            group["norm"] = _check.number("norm", group["norm"], low=0, open_low=True)
