"""Optimizers that control the norm: rotational variants, hyperball, constrained regularisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, final

from torch import Tensor

from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.moves import Constrain
from equipoise.optim.options import PLAIN_ADAM, DecayKind, Nonfinite, Params, documented, given
from equipoise.optim.rules import AdamRule, LionRule, SGDMRule, SignSGDMRule
from equipoise.optim.sphere import Hyperball, Rotate

Angle = float | Callable[[int], float] | Literal["step"] | None


@final
@documented
class RotationalSGDM(RuleOptimizer):
    """SGDM's direction, every neuron turned by SGDM's equilibrium rotation from the first step, norms kept.

    Args:
        params: parameters or groups. Those with two dimensions or more rotate; a group may say `rotate`.
        lr: learning rate η.
        momentum: α.
        weight_decay: λ; with lr it sets the rotation.
        nesterov: u = g + αm.
        {rotation}
        {shared}

    Reference: [kosson2024] Algorithm 1 and Table 1; `rotate.Rotate` says where we deviate.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        nesterov: bool = False,
        angle: Angle = None,
        granularity: str | int = "neuron",
        center: bool = False,
        track: float | None = None,
        method: str = "exact",
        reference: str | None = None,
        norm: float | None = None,
        speeds: Tensor | None = None,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=SGDMRule(), move=Rotate())


@final
@documented
class RotationalAdamW(RuleOptimizer):
    """AdamW's direction, every neuron turned by AdamW's equilibrium rotation from the first step, norms kept.

    Args:
        params: parameters or groups. Those with two dimensions or more rotate; a group may say `rotate`.
        lr: learning rate η.
        betas: averaging factors.
        eps: ε.
        weight_decay: λ; with lr it sets the rotation.
        zero_init: averages start at 0.
        bias_correction: divide them by 1 − β^t.
        nested: average g/√v instead.
        {rotation}
        {shared}

    Reference: [kosson2024] Algorithm 1 and Table 1; `rotate.Rotate` says where we deviate.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> optimizer = RotationalAdamW([w], lr=0.1, weight_decay=0.1)
    >>> (w[0, 1] + w[1, 0]).backward(); _ = optimizer.step()
    >>> bool(w.detach().norm(dim=1).allclose(torch.ones(2)))
    True
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        zero_init: bool = True,
        bias_correction: bool = True,
        nested: bool = False,
        angle: Angle = None,
        granularity: str | int = "neuron",
        center: bool = False,
        track: float | None = None,
        method: str = "exact",
        reference: str | None = None,
        norm: float | None = None,
        speeds: Tensor | None = None,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=AdamRule(), move=Rotate())


@final
@documented
class RotationalAdamL2(RuleOptimizer):
    """The direction of Adam + L2 at the rotation of AdamW: [kosson2024]'s test of what makes AdamW better.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        betas: averaging factors.
        eps: ε.
        l2: L2 in the gradient, for the direction.
        weight_decay: λ of the AdamW whose rotation is taken.
        {rotation}
        {shared}

    Reference: [kosson2024] section 3, "Adam vs AdamW"; Table 2, last column.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        l2: float = 1e-3,
        weight_decay: float = 0.1,
        angle: Angle = None,
        granularity: str | int = "neuron",
        center: bool = False,
        track: float | None = None,
        method: str = "exact",
        reference: str | None = None,
        norm: float | None = None,
        speeds: Tensor | None = None,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, PLAIN_ADAM | given(locals()), rule=AdamRule(), move=Rotate())


@final
@documented
class RotationalLion(RuleOptimizer):
    """Lion's direction at Lion's equilibrium rotation, norms kept.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        betas: averaging factors.
        weight_decay: λ; with lr it sets the rotation.
        {rotation}
        {shared}

    Reference: [kosson2024] appendix H, Algorithm 1.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 1.0,
        angle: Angle = None,
        granularity: str | int = "neuron",
        center: bool = False,
        track: float | None = None,
        method: str = "exact",
        reference: str | None = None,
        norm: float | None = None,
        speeds: Tensor | None = None,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=LionRule(), move=Rotate())


@final
@documented
class RotationalSignSGDM(RuleOptimizer):
    """SignSGDM's direction at SignSGDM's equilibrium rotation, norms kept.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        momentum: β.
        weight_decay: λ; with lr it sets the rotation.
        {rotation}
        {shared}

    Reference: [kosson2024] Algorithm 1; [theory] 1.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        *,
        momentum: float = 0.9,
        weight_decay: float = 1.0,
        angle: Angle = None,
        granularity: str | int = "neuron",
        center: bool = False,
        track: float | None = None,
        method: str = "exact",
        reference: str | None = None,
        norm: float | None = None,
        speeds: Tensor | None = None,
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=SignSGDMRule(), move=Rotate())


@final
@documented
class HyperballAdamW(RuleOptimizer):
    """Adam's direction as a step of relative size lr on the sphere of each tensor; no decay.

    Args:
        params: parameters or groups. Those with two dimensions or more keep their norm; the rest take decayed steps.
        lr: size of a step relative to the weights. The equilibrium of AdamW(η, λ) has
            `theory.stationary("adamw", ...).rotation`, not the published √(ηλ).
        betas: averaging factors.
        eps: ε.
        weight_decay: λ of the parameters that do not keep their norm.
        granularity: what keeps its norm as one vector: "tensor", "neuron", or a number of equal parts.
        rotate: whether parameters keep their norm. Default: those with two dimensions or more.
        {shared}

    Reference: [wen2026]; [theory] 7.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        granularity: str | int = "tensor",
        rotate: bool | None = None,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, PLAIN_ADAM | given(locals()), rule=AdamRule(), move=Hyperball())


@final
@documented
class AdamCPR(RuleOptimizer):
    """Adam that bounds the mean square of each tensor, by a multiplier per tensor, instead of decaying it.

    Args:
        params: parameters or groups. Those with two dimensions or more are constrained; a group may say `rotate`.
        lr: learning rate η.
        betas: averaging factors.
        eps: ε.
        bound: κ, the bound on the mean square, or how to find it: "inflection" (where it first grows more slowly than
            before, from the fourth interval on) or "warm_start".
        rate: μ, the rate of the multiplier.
        warm_start: the step whose mean square is the bound (None: 1000); for "inflection", the interval of steps over
            which growth is measured (None: 200).
        weight_decay: must be 0; the bound takes its place.
        rotate: whether parameters are constrained. Default: those with two dimensions or more.
        {shared}

    The defaults are the authors', except lr, which is Adam's 1e-3 as in their README (1e-4 in their code). Their κ
    bounds the sum of squares, and their μ is divided by the number of weights. Ours bounds the mean square, which is
    the same.

    Reference: [franke2024] Alg. 1; `moves.Constrain` has the rule for the inflection, and where we deviate.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        bound: float | str = "inflection",
        rate: float = 1.0,
        warm_start: int | None = None,
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
        super().__init__(params, PLAIN_ADAM | given(locals()), rule=AdamRule(), move=Constrain())
