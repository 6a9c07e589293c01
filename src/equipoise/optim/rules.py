"""Rules: gradient → direction, one function an equation.

Letters: g gradient, m and v averages of g and g², t the step (from 1), u the direction, so that a plain step is
w ← w − ηu. Each function changes its averages in place and returns u, as it is or as a `Ratio` whose division the move
makes. The same text runs on one tensor and on `Many` tensors at once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from equipoise.optim.many import Many
from equipoise.theory.kernels import Filter

T = Tensor | Many


@dataclass(frozen=True)
class Ratio:
    """u = scale · top / bottom, not divided yet: a decayed step can divide and add in one pass."""

    top: T
    bottom: T
    scale: float = 1.0

    def value(self) -> Any:
        """U itself."""
        u: Any = self.top / self.bottom  # type: ignore[operator]
        return u.mul_(self.scale) if self.scale != 1.0 else u


def sgdm(g: Any, m: Any, *, momentum: float, nesterov: bool) -> Any:
    """M ← αm + g,  u = m;  Nesterov: u = g + αm.  RE Eq. 41–42; as torch.optim.SGD."""
    m.mul_(momentum).add_(g)
    return g.add(m, alpha=momentum) if nesterov else m


def rmsprop(g: Any, v: Any, *, beta2: float, eps: float) -> Ratio:
    """V ← βv + (1−β)g²,  u = g/(√v + ε).  As torch.optim.RMSprop, whose α is β here."""
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    return Ratio(g, v.sqrt().add_(eps))


def adam(g: Any, m: Any, v: Any, *, t: int, beta1: float, beta2: float, eps: float, bias_correction: bool) -> Ratio:
    """M ← β1m + (1−β1)g,  v ← β2v + (1−β2)g²,  u = m̂/(√v̂ + ε).  Kingma & Ba 2015, Alg. 1.

    With m̂ = m/(1−β1^t) and v̂ = v/(1−β2^t), u = ρ(t)·m/(√v + ε√(1−β2^t)), ρ(t) = √(1−β2^t)/(1−β1^t): the same
    number, with the correction on scalars.  THEORY 4.
    """
    m.lerp_(g, 1 - beta1)
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    if not bias_correction:
        return Ratio(m, v.sqrt().add_(eps))
    root = math.sqrt(1 - beta2**t)
    return Ratio(m, v.sqrt().add_(eps * root), root / (1 - beta1**t))


def adam_nested(
    g: Any, k: Any, v: Any, *, t: int, beta1: float, beta2: float, eps: float, bias_correction: bool
) -> Any:
    """V ← β2v + (1−β2)g²,  K ← β1K + (1−β1) g/(√v̂ + ε),  u = K̂.  Thesis 3.4."""
    v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
    root = math.sqrt(1 - beta2**t) if bias_correction else 1.0
    k.mul_(beta1).addcdiv_(g, v.sqrt().add_(eps * root), value=(1 - beta1) * root)
    return k.div(1 - beta1**t) if bias_correction else k


def signsgdm(g: Any, m: Any, *, momentum: float) -> Any:
    """M ← βm + (1−β)g,  u = sign m.  Bernstein et al. 2018, Alg. 2; memory article."""
    return m.lerp_(g, 1 - momentum).sign()


def lion(g: Any, m: Any, *, beta1: float, beta2: float) -> Any:
    """U = sign(β1m + (1−β1)g),  m ← β2m + (1−β2)g.  Chen et al. 2023; RE Eq. 52–54."""
    u = m.lerp(g, 1 - beta1).sign_()
    m.lerp_(g, 1 - beta2)
    return u


class Rule(ABC):
    """A rule as an optimizer uses it: which averages it keeps, and what theory knows of its direction."""

    state: ClassVar[tuple[str, ...]]
    """Names of the averages, as torch calls them, so that checkpoints look familiar."""

    @abstractmethod
    def __call__(self, g: Any, averages: tuple[Any, ...], t: int, group: dict[str, Any]) -> Any:
        """The direction u at step t; the averages are changed in place."""

    @abstractmethod
    def theory(self, group: dict[str, Any]) -> dict[str, Any]:
        """The arguments of `theory.stationary` that describe the direction."""

    def expected_square(self, t: int, group: dict[str, Any]) -> float:
        """r_t: E‖u_t‖² in a random walk, up to a factor that does not depend on t.  THEORY 7."""
        return 1.0


def _filtered_square(taps: Filter, t: int) -> float:
    """E n_t² of a filter that started empty, for white gradients of unit size."""
    return taps.A**2 + taps.B**2 * (1 - taps.p ** (2 * (t - 1))) / (1 - taps.p**2)


@final
class SGDMRule(Rule):
    """`sgdm` with the group's momentum and nesterov."""

    state = ("momentum_buffer",)

    def __call__(self, g: Any, averages: tuple[Any, ...], t: int, group: dict[str, Any]) -> Any:
        return sgdm(g, *averages, momentum=group["momentum"], nesterov=group["nesterov"])

    def theory(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": "sgdm", "momentum": group["momentum"], "nesterov": group["nesterov"], "coupled": False}

    def expected_square(self, t: int, group: dict[str, Any]) -> float:
        return _filtered_square(Filter.momentum(group["momentum"], nesterov=group["nesterov"], ema=False), t)


@final
class RMSPropRule(Rule):
    """`rmsprop` with the group's alpha and eps."""

    state = ("square_avg",)

    def __call__(self, g: Any, averages: tuple[Any, ...], t: int, group: dict[str, Any]) -> Any:
        return rmsprop(g, *averages, beta2=group["alpha"], eps=group["eps"])

    def theory(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": "rmsprop", "betas": (0.0, group["alpha"])}

    def expected_square(self, t: int, group: dict[str, Any]) -> float:
        return 1 / (1 - group["alpha"] ** t)


@final
class AdamRule(Rule):
    """`adam` or `adam_nested` with the group's betas and eps, and the thesis' switches."""

    state = ("exp_avg", "exp_avg_sq")

    def __call__(self, g: Any, averages: tuple[Any, ...], t: int, group: dict[str, Any]) -> Any:
        m, v = averages
        if t == 1 and not group["zero_init"]:
            m.copy_(g)
            v.copy_(g).mul_(g)
            if group["nested"]:
                m.copy_(g.sign())  # the average of g/√v, where v = g²
        (beta1, beta2), eps = group["betas"], group["eps"]
        rule = adam_nested if group["nested"] else adam
        return rule(g, m, v, t=t, beta1=beta1, beta2=beta2, eps=eps, bias_correction=group["bias_correction"])

    def theory(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": "adam_nested" if group["nested"] else "adamw", "betas": group["betas"]}

    def expected_square(self, t: int, group: dict[str, Any]) -> float:
        beta1, beta2 = group["betas"]
        taps = Filter.momentum(beta1)
        if group["zero_init"]:
            square = _filtered_square(taps, t)
            return square / (1 - beta1**t) ** 2 if group["bias_correction"] else square / (1 - beta2**t)
        # m_0 = g_1 stays in the average, and v starts full: the first gradient weighs β1^(t−1).
        square = beta1 ** (2 * (t - 1)) + taps.A**2 * (1 - beta1 ** (2 * (t - 1))) / (1 - beta1**2)
        return square * (1 - beta2**t) / (1 - beta1**t) ** 2 if group["bias_correction"] else square


@final
class SignSGDMRule(Rule):
    """`signsgdm` with the group's momentum."""

    state = ("exp_avg",)

    def __call__(self, g: Any, averages: tuple[Any, ...], t: int, group: dict[str, Any]) -> Any:
        return signsgdm(g, *averages, momentum=group["momentum"])

    def theory(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": "signsgdm", "momentum": group["momentum"]}


@final
class LionRule(Rule):
    """`lion` with the group's betas."""

    state = ("exp_avg",)

    def __call__(self, g: Any, averages: tuple[Any, ...], t: int, group: dict[str, Any]) -> Any:
        beta1, beta2 = group["betas"]
        return lion(g, *averages, beta1=beta1, beta2=beta2)

    def theory(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": "lion", "betas": group["betas"]}


@final
class NormalizedRule(Rule):
    """u = g/‖g‖, over each tensor or each neuron.  Norm note."""

    state = ()

    def __call__(self, g: Any, averages: tuple[Any, ...], t: int, group: dict[str, Any]) -> Any:
        if isinstance(g, Many):
            return Many([self(x, (), t, group) for x in g.tensors])
        flat = as_rows(g, group["granularity"])
        return (flat / row_norm(flat).clamp_min(1e-30)).reshape(g.shape)

    def theory(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": "ngd"}


def as_rows(x: Tensor, granularity: str | int) -> Tensor:
    """A tensor as a matrix whose rows are its neurons ("neuron"), the whole ("tensor"), or that many equal parts."""
    if granularity == "neuron":
        rows = x.shape[0] if x.ndim else 1
    else:
        rows = 1 if granularity == "tensor" else int(granularity)
    if x.ndim == 2 and x.shape[0] == rows:
        return x
    try:
        return x.reshape(rows, -1)
    except RuntimeError:  # shards of a DTensor that do not meet at the rows' ends: gather it
        if not hasattr(x, "placements"):
            raise
        return gathered(x).reshape(rows, -1)


def gathered(x: Any) -> Tensor:
    """A DTensor with all of it on every rank."""
    from torch.distributed.tensor import Replicate

    return x.redistribute(placements=[Replicate()] * len(x.placements))


def row_sum(rows: Tensor) -> Tensor:
    """The sum of each row, as a column; whole also where a DTensor's rows lie on several ranks."""
    return reduced(rows.sum(dim=1, keepdim=True))


def row_dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product of each row of a with its row of b, as a column, in one pass over the two."""
    return row_sum(a * b) if hasattr(a, "placements") else torch.einsum("ij,ij->i", a, b).unsqueeze(1)


def row_mean(rows: Tensor) -> Tensor:
    """The mean of each row, as a column."""
    return row_sum(rows) / rows.shape[1]


def row_norm(rows: Tensor) -> Tensor:
    """The norm of each row, as a column."""
    return row_dot(rows, rows).sqrt()


def reduced(x: Tensor) -> Tensor:
    """A DTensor whose pending sums over ranks are carried out; any other tensor as it is."""
    if not hasattr(x, "placements"):
        return x
    from torch.distributed.tensor import Replicate

    placements = [Replicate() if p.is_partial() else p for p in x.placements]  # type: ignore[attr-defined]
    return x.redistribute(placements=placements)  # type: ignore[attr-defined]
