"""The plain optimizers: each a rule and the decayed step, and the hyperparameters under torch's names."""

from __future__ import annotations

from typing import final

from torch import Tensor

from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.moves import Decay
from equipoise.optim.options import DecayKind, Nonfinite, Params, documented, given
from equipoise.optim.rules import AdamRule, LionRule, NormalizedRule, RMSPropRule, SGDMRule, SignSGDMRule


@final
@documented
class SGDM(RuleOptimizer):
    """SGD with momentum: m ← αm + g, w ← (1−ηλ)w − ηm.

    `weight_decay` is decoupled; `l2` adds λw to the gradient, as torch.optim.SGD's weight_decay does.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        momentum: α.
        weight_decay: λ, decoupled.
        nesterov: u = g + αm.
        {shared}

    Reference: [kosson2024] Eq. 41–42.

    >>> import torch
    >>> w = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = SGDM([w], lr=0.1)
    >>> w.sum().backward(); _ = optimizer.step()
    >>> w.detach()
    tensor([0.9000, 0.9000])
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=SGDMRule(), move=Decay())


@final
@documented
class RMSProp(RuleOptimizer):
    """v ← αv + (1−α)g², w ← (1−ηλ)w − ηg/(√v + ε).

    Args:
        params: parameters or groups.
        lr: learning rate η.
        alpha: averaging factor of v.
        eps: ε.
        weight_decay: λ, decoupled.
        {shared}

    Reference: torch.optim.RMSprop.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=RMSPropRule(), move=Decay())


@final
@documented
class Adam(RuleOptimizer):
    """Adam with the switches of [notepad]; `weight_decay` is decoupled, `l2` is Adam + L2.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        betas: averaging factors.
        eps: ε.
        weight_decay: λ, decoupled.
        zero_init: averages start at 0; False: at the first gradient and its square.
        bias_correction: divide them by 1 − β^t.
        nested: average g/√v instead of dividing the average ([notepad] 3.4).
        {shared}

    Reference: [kingma2015] Alg. 1; [notepad] ch. 3, 4.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        zero_init: bool = True,
        bias_correction: bool = True,
        nested: bool = False,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=AdamRule(), move=Decay())


@final
@documented
class AdamW(RuleOptimizer):
    """Adam with decoupled decay, 0.01 by default as in torch; otherwise `Adam`.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        betas: averaging factors.
        eps: ε.
        weight_decay: λ.
        zero_init: averages start at 0; False: at the first gradient and its square.
        bias_correction: divide them by 1 − β^t.
        nested: average g/√v instead of dividing the average.
        {shared}

    Reference: [loshchilov2019], Alg. 2; [kosson2024] Eq. 29–31.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        zero_init: bool = True,
        bias_correction: bool = True,
        nested: bool = False,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=AdamRule(), move=Decay())


@final
@documented
class SignSGDM(RuleOptimizer):
    """m ← βm + (1−β)g, w ← (1−ηλ)w − η sign(m).

    Args:
        params: parameters or groups.
        lr: learning rate η.
        momentum: β.
        weight_decay: λ, decoupled.
        {shared}

    Reference: [bernstein2018].
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=SignSGDMRule(), move=Decay())


@final
@documented
class Lion(RuleOptimizer):
    """w ← (1−ηλ)w − η sign(β1m + (1−β1)g), m ← β2m + (1−β2)g.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        betas: averaging factors.
        weight_decay: λ, decoupled.
        {shared}

    Reference: [chen2023]; [kosson2024] Eq. 52–54.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=LionRule(), move=Decay())


@final
@documented
class NormalizedGD(RuleOptimizer):
    """w ← (1−ηλ)w − ηg/‖g‖, over each tensor or each neuron.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        weight_decay: λ, decoupled.
        granularity: "tensor" or "neuron".
        {shared}

    Reference: [norm-note].
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        weight_decay: float = 0.0,
        granularity: str | int = "tensor",
        decay: DecayKind = "lr",
        lr_max: float | None = None,
        l2: float = 0.0,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool | None = None,
        nonfinite: Nonfinite = "ignore",
    ):
        super().__init__(params, given(locals()), rule=NormalizedRule(), move=Decay())
