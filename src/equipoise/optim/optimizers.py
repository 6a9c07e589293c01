"""The optimizers: each a rule and a move, and the hyperparameters under torch's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

from equipoise.optim.base import RuleOptimizer
from equipoise.optim.moves import Constrain, Decay, Hyperball, Rotate
from equipoise.optim.rules import AdamRule, LionRule, NormalizedRule, RMSPropRule, SGDMRule, SignSGDMRule

Params = Iterable[Any]
Angle = float | Callable[[int], float] | None


def _common(lr: float, weight_decay: float, options: dict[str, Any], **own: Any) -> dict[str, Any]:
    """The options that every optimizer takes, with the optimizer's own."""
    shared = {
        "lr": lr,
        "weight_decay": weight_decay,
        "decay": "lr",
        "lr_max": None,
        "l2": 0.0,
        "maximize": False,
        "foreach": None,
        "nonfinite": "ignore",
    }
    allowed = shared | own
    if options.pop("differentiable", False):
        raise ValueError("differentiable = True: must be False; steps change weights in place")
    for key, value in options.items():
        if key not in allowed:
            raise ValueError(f"{key} = {value!r}: must be left out; this optimizer takes {', '.join(sorted(allowed))}")
    return allowed | options


def _adam(
    zero_init: bool, bias_correction: bool, nested: bool, betas: tuple[float, float], eps: float
) -> dict[str, Any]:
    return {
        "betas": tuple(betas),
        "eps": eps,
        "zero_init": zero_init,
        "bias_correction": bias_correction,
        "nested": nested,
    }


def _rotation(angle: Angle) -> tuple[dict[str, Any], Callable[[int], float] | None]:
    """The defaults of `Rotate` with the angle, and the angle's schedule where it is one."""
    if callable(angle):
        return Rotate.defaults | {"angle": float(angle(1))}, angle
    return Rotate.defaults | {"angle": angle}, None


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
            `maximize`, `foreach`, `nonfinite` ("ignore", "skip", "error").

    Reference: RE Eq. 41–42.

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
        lr: float = 1e-3,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **options: Any,
    ):
        defaults = _common(lr, weight_decay, options, momentum=momentum, nesterov=nesterov)
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
        lr: float = 1e-3,
        *,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Any,
    ):
        defaults = _common(lr, weight_decay, options, alpha=alpha, eps=eps)
        super().__init__(params, defaults, rule=RMSPropRule(), move=Decay())


@final
class Adam(RuleOptimizer):
    """Adam with the switches of the thesis; `weight_decay` is decoupled, `l2` is Adam + L2.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        betas: averaging factors.
        eps: ε.
        weight_decay: λ, decoupled.
        zero_init: averages start at 0; False: at the first gradient and its square.
        bias_correction: divide them by 1 − β^t.
        nested: average g/√v instead of dividing the average (thesis 3.4).
        **options: as for `SGDM`.

    Reference: Kingma & Ba 2015, Alg. 1; thesis ch. 3, 4.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        zero_init: bool = True,
        bias_correction: bool = True,
        nested: bool = False,
        **options: Any,
    ):
        own = _adam(zero_init, bias_correction, nested, betas, eps)
        super().__init__(params, _common(lr, weight_decay, options, **own), rule=AdamRule(), move=Decay())


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

    Reference: Loshchilov & Hutter 2019, Alg. 2; RE Eq. 29–31.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        zero_init: bool = True,
        bias_correction: bool = True,
        nested: bool = False,
        **options: Any,
    ):
        own = _adam(zero_init, bias_correction, nested, betas, eps)
        super().__init__(params, _common(lr, weight_decay, options, **own), rule=AdamRule(), move=Decay())


@final
class SignSGDM(RuleOptimizer):
    """m ← βm + (1−β)g, w ← (1−ηλ)w − η sign(m).

    Args:
        params: parameters or groups.
        lr: learning rate η.
        momentum: β.
        weight_decay: λ, decoupled.
        **options: as for `SGDM`.

    Reference: Bernstein et al. 2018.
    """

    def __init__(
        self, params: Params, lr: float = 1e-4, *, momentum: float = 0.9, weight_decay: float = 0.0, **options: Any
    ):
        defaults = _common(lr, weight_decay, options, momentum=momentum)
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

    Reference: Chen et al. 2023; RE Eq. 52–54.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Any,
    ):
        defaults = _common(lr, weight_decay, options, betas=tuple(betas))
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

    Reference: norm note.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        *,
        weight_decay: float = 0.0,
        granularity: str | int = "tensor",
        **options: Any,
    ):
        defaults = _common(lr, weight_decay, options, granularity=granularity)
        super().__init__(params, defaults, rule=NormalizedRule(), move=Decay())


@final
class RotationalSGDM(RuleOptimizer):
    """SGDM's direction, every neuron turned by SGDM's equilibrium rotation from the first step, norms kept.

    Args:
        params: parameters or groups. Those with two dimensions or more rotate; a group may say `rotate`.
        lr: learning rate η.
        momentum: α.
        weight_decay: λ; with lr it sets the rotation.
        nesterov: u = g + αm.
        angle: the rotation itself, or a function of the step, instead.
        **options: as for `SGDM`, and `granularity` ("neuron", "tensor", or a number of equal parts, as heads),
            `center`, `track`, `method` ("exact", "small_step"), `reference` ("paper"), `norm`, `speeds`, `rotate`.

    Reference: RE Algorithm 1 and Table 1; `moves.Rotate` says where we deviate.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        *,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        nesterov: bool = False,
        angle: Angle = None,
        **options: Any,
    ):
        own, schedule = _rotation(angle)
        defaults = _common(lr, weight_decay, options, momentum=momentum, nesterov=nesterov, **own)
        super().__init__(params, defaults, rule=SGDMRule(), move=Rotate(), angle=schedule)


@final
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
        angle: the rotation itself, or a function of the step, instead.
        **options: as for `RotationalSGDM`.

    Reference: RE Algorithm 1 and Table 1; `moves.Rotate` says where we deviate.

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
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
        zero_init: bool = True,
        bias_correction: bool = True,
        nested: bool = False,
        angle: Angle = None,
        **options: Any,
    ):
        own, schedule = _rotation(angle)
        own |= _adam(zero_init, bias_correction, nested, betas, eps)
        defaults = _common(lr, weight_decay, options, **own)
        super().__init__(params, defaults, rule=AdamRule(), move=Rotate(), angle=schedule)


@final
class RotationalAdamL2(RuleOptimizer):
    """The direction of Adam + L2 at the rotation of AdamW: RE's test of what makes AdamW better.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        betas: averaging factors.
        eps: ε.
        l2: L2 in the gradient, for the direction.
        weight_decay: λ of the AdamW whose rotation is taken.
        angle: the rotation itself, or a function of the step, instead.
        **options: as for `RotationalSGDM`.

    Reference: RE section 3, "Adam vs AdamW"; Table 2, last column.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        l2: float = 1e-3,
        weight_decay: float = 0.1,
        angle: Angle = None,
        **options: Any,
    ):
        own, schedule = _rotation(angle)
        own |= _adam(True, True, False, betas, eps)
        defaults = _common(lr, weight_decay, {"l2": l2, **options}, **own)
        super().__init__(params, defaults, rule=AdamRule(), move=Rotate(), angle=schedule)


@final
class RotationalLion(RuleOptimizer):
    """Lion's direction at Lion's equilibrium rotation, norms kept.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        betas: averaging factors.
        weight_decay: λ; with lr it sets the rotation.
        angle: the rotation itself, or a function of the step, instead.
        **options: as for `RotationalSGDM`.

    Reference: RE appendix H, Algorithm 1.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        *,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 1.0,
        angle: Angle = None,
        **options: Any,
    ):
        own, schedule = _rotation(angle)
        defaults = _common(lr, weight_decay, options, betas=tuple(betas), **own)
        super().__init__(params, defaults, rule=LionRule(), move=Rotate(), angle=schedule)


@final
class RotationalSignSGDM(RuleOptimizer):
    """SignSGDM's direction at SignSGDM's equilibrium rotation, norms kept.

    Args:
        params: parameters or groups.
        lr: learning rate η.
        momentum: β.
        weight_decay: λ; with lr it sets the rotation.
        angle: the rotation itself, or a function of the step, instead.
        **options: as for `RotationalSGDM`.

    Reference: RE Algorithm 1; THEORY 1.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-4,
        *,
        momentum: float = 0.9,
        weight_decay: float = 1.0,
        angle: Angle = None,
        **options: Any,
    ):
        own, schedule = _rotation(angle)
        defaults = _common(lr, weight_decay, options, momentum=momentum, **own)
        super().__init__(params, defaults, rule=SignSGDMRule(), move=Rotate(), angle=schedule)


@final
class HyperballAdamW(RuleOptimizer):
    """Adam's direction as a step of relative size lr on the sphere of each tensor; no decay.

    Args:
        params: parameters or groups. Those with two dimensions or more keep their norm; the rest take decayed steps.
        lr: size of a step relative to the weights. The equilibrium of AdamW(η, λ) has
            `theory.stationary("adamw", ...).rotation`, not the published √(ηλ).
        betas: averaging factors.
        eps: ε.
        weight_decay: λ of the parameters that do not keep their norm.
        **options: as for `SGDM`, and `granularity`, `rotate`.

    Reference: follow-up of the norm note; THEORY 7.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        **options: Any,
    ):
        own = _adam(True, True, False, betas, eps) | Hyperball.defaults
        super().__init__(params, _common(lr, weight_decay, options, **own), rule=AdamRule(), move=Hyperball())


@final
class AdamCPR(RuleOptimizer):
    """Adam whose tensors are held below a bound on their mean square by a multiplier each, instead of weight decay.

    Args:
        params: parameters or groups. Those with two dimensions or more are constrained; a group may say `rotate`.
        lr: learning rate η.
        betas: averaging factors.
        eps: ε.
        bound: κ of the mean square, or how to find it: "inflection" (where it first grows more slowly than before)
            or "warm_start".
        rate: μ, of the multiplier.
        warm_start: the step at which, or the stretch of steps over which, the bound is looked for.
        **options: as for `SGDM`.

    Reference: Franke et al. 2024, Constrained Parameter Regularization, Alg. 1.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        bound: float | str = "inflection",
        rate: float = 1.0,
        warm_start: int = 100,
        **options: Any,
    ):
        own = _adam(True, True, False, betas, eps) | Constrain.defaults
        own |= {"bound": bound, "rate": rate, "warm_start": warm_start}
        super().__init__(params, _common(lr, 0.0, options, **own), rule=AdamRule(), move=Constrain())
