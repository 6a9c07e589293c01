"""The plain optimizers: each a rule and the decayed step, and the hyperparameters under torch's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, final

from torch import Tensor

from equipoise.optim.base import SHARED, RuleOptimizer
from equipoise.optim.moves import Decay
from equipoise.optim.rules import AdamRule, LionRule, NormalizedRule, RMSPropRule, SGDMRule, SignSGDMRule

Params = Iterable[Any]


def common(lr: float | Tensor, weight_decay: float, options: dict[str, Any], **own: Any) -> dict[str, Any]:
    """The options that every optimizer takes, with the optimizer's own."""
    allowed = SHARED | {"lr": lr, "weight_decay": weight_decay} | own
    if options.pop("differentiable", False):
        raise ValueError("differentiable = True: must be False; steps change weights in place")
    for key, value in options.items():
        if key not in allowed:
            raise ValueError(f"{key} = {value!r}: must be left out; this optimizer takes {', '.join(sorted(allowed))}")
    return allowed | options


def adam_options(
    zero_init: bool, bias_correction: bool, nested: bool, betas: tuple[float, float], eps: float
) -> dict[str, Any]:
    """The options of Adam's rule."""
    return {
        "betas": betas,
        "eps": eps,
        "zero_init": zero_init,
        "bias_correction": bias_correction,
        "nested": nested,
    }


@final
class SGDM(RuleOptimizer):
    """SGD with momentum: m ← αm + g, w ← (1−ηλ)w − ηm.

    `weight_decay` is decoupled; `l2` adds λw to the gradient, as torch.optim.SGD's weight_decay does.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        momentum: α.
        weight_decay: λ, decoupled.
        nesterov: u = g + αm.
        **options: `decay` ("lr", "independent", "corrected", "cautious"), `lr_max` (of corrected decay), `l2`,
            `maximize`, `foreach`, `compile` (None: large groups), `nonfinite` ("ignore", "skip", "error").

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
        **options: Any,
    ):
        defaults = common(lr, weight_decay, options, momentum=momentum, nesterov=nesterov)
        super().__init__(params, defaults, rule=SGDMRule(), move=Decay())


@final
class RMSProp(RuleOptimizer):
    """v ← αv + (1−α)g², w ← (1−ηλ)w − ηg/(√v + ε).

    Args:
        params: parameters or groups.
        lr: learning rate η.
        alpha: averaging factor of v.
        eps: ε.
        weight_decay: λ, decoupled.
        **options: as for `SGDM`.

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
        **options: Any,
    ):
        defaults = common(lr, weight_decay, options, alpha=alpha, eps=eps)
        super().__init__(params, defaults, rule=RMSPropRule(), move=Decay())


@final
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
        **options: as for `SGDM`.

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
        **options: Any,
    ):
        own = adam_options(zero_init, bias_correction, nested, betas, eps)
        super().__init__(params, common(lr, weight_decay, options, **own), rule=AdamRule(), move=Decay())


@final
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
        **options: as for `SGDM`.

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
        **options: Any,
    ):
        own = adam_options(zero_init, bias_correction, nested, betas, eps)
        super().__init__(params, common(lr, weight_decay, options, **own), rule=AdamRule(), move=Decay())


@final
class SignSGDM(RuleOptimizer):
    """m ← βm + (1−β)g, w ← (1−ηλ)w − η sign(m).

    Args:
        params: parameters or groups.
        lr: learning rate η.
        momentum: β.
        weight_decay: λ, decoupled.
        **options: as for `SGDM`.

    Reference: [bernstein2018].
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        **options: Any,
    ):
        defaults = common(lr, weight_decay, options, momentum=momentum)
        super().__init__(params, defaults, rule=SignSGDMRule(), move=Decay())


@final
class Lion(RuleOptimizer):
    """w ← (1−ηλ)w − η sign(β1m + (1−β1)g), m ← β2m + (1−β2)g.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        betas: averaging factors.
        weight_decay: λ, decoupled.
        **options: as for `SGDM`.

    Reference: [chen2023]; [kosson2024] Eq. 52–54.
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Any,
    ):
        defaults = common(lr, weight_decay, options, betas=betas)
        super().__init__(params, defaults, rule=LionRule(), move=Decay())


@final
class NormalizedGD(RuleOptimizer):
    """w ← (1−ηλ)w − ηg/‖g‖, over each tensor or each neuron.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        weight_decay: λ, decoupled.
        granularity: "tensor" or "neuron".
        **options: as for `SGDM`.

    Reference: [norm-note].
    """

    def __init__(
        self,
        params: Params,
        lr: float | Tensor = 1e-3,
        *,
        weight_decay: float = 0.0,
        granularity: str | int = "tensor",
        **options: Any,
    ):
        defaults = common(lr, weight_decay, options, granularity=granularity)
        super().__init__(params, defaults, rule=NormalizedRule(), move=Decay())
