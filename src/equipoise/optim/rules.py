"""Rules: gradient → direction, one function per equation.

Letters: g gradient, m and v averages of g and g², t the step (from 1), u the direction, so that a plain step is
w ← w − ηu; an average keeps a share β of itself (`keep`) and takes 1 − β of what is new (`take`). Each function changes
its averages in place and returns u, as it is or as a `Ratio` whose division the move makes. The same text runs on one
tensor, on a `TensorList`, and on a `Traced` one that is compiled: a rule may use the methods that these share,
and takes all that changes from step to step from its `numbers`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, final

from torch import Tensor

from equipoise.optim.engine.tensor_list import TensorList, Traced
from equipoise.optim.options import GroupOptions
from equipoise.optim.rows import as_rows, unit
from equipoise.theory import Dynamics

LEAST = 2.0**-75
"""The least ε, about the root of the smallest square that float32 holds: 0/0 is 0 then, and a gradient whose square is
lost gives no step of more than its sign's size."""


@dataclass(frozen=True)
class Ratio:
    """u = scale · top / bottom, not divided yet: a decayed step can divide and add in one pass."""

    top: Any
    bottom: Any
    scale: Any = 1.0

    def value(self) -> Any:
        """u itself."""
        u = self.top / self.bottom
        return u if isinstance(self.scale, float) and self.scale == 1.0 else u.mul_(self.scale)


def sgdm(g: Any, m: Any, *, momentum: float, nesterov: bool) -> Any:
    """m ← αm + g,  u = m;  Nesterov: u = g + αm.  [kosson2024] Eq. 41–42; as torch.optim.SGD."""
    m.mul_(momentum).add_(g)
    return g.add(m, alpha=momentum) if nesterov else m


def square_average(g: Any, v: Any, *, keep2: float, take2: float) -> None:
    """v ← βv + (1−β)g².  Where β = 0 nothing is kept, also of a square that was too large for its type."""
    if isinstance(keep2, float) and keep2 == 0.0:
        v.copy_(g).mul_(g)
    else:
        v.mul_(keep2).addcmul_(g, g, value=take2)


def rmsprop(g: Any, v: Any, *, keep2: float, take2: float, eps: float) -> Ratio:
    """v ← βv + (1−β)g²,  u = g/(√v + ε).  As torch.optim.RMSprop, whose α is β here."""
    square_average(g, v, keep2=keep2, take2=take2)
    return Ratio(g, v.sqrt().add_(eps))


def adam(g: Any, m: Any, v: Any, *, take1: float, keep2: float, take2: float, eps: float, scale: float) -> Ratio:
    """m ← β1m + (1−β1)g,  v ← β2v + (1−β2)g²,  u = m̂/(√v̂ + ε).  [kingma2015] Alg. 1.

    With m̂ = m/(1−β1^t) and v̂ = v/(1−β2^t), u = ρ(t)·m/(√v + ε√(1−β2^t)), ρ(t) = √(1−β2^t)/(1−β1^t): the same
    direction, with the correction on scalars: ρ(t) is in `scale`, the root in `eps`.  [theory] 4.
    """
    m.lerp_(g, take1)
    square_average(g, v, keep2=keep2, take2=take2)
    return Ratio(m, v.sqrt().add_(eps), scale)


def adam_nested(
    g: Any, k: Any, v: Any, *, keep1: float, take1: float, keep2: float, take2: float, eps: float, scale: float
) -> Any:
    """v ← β2v + (1−β2)g²,  K ← β1K + (1−β1) g/(√v̂ + ε),  u = K̂.  [notepad] 3.4.

    The root of v's correction is in `take1` and `eps`; K's, 1/(1−β1^t), is `scale`.
    """
    square_average(g, v, keep2=keep2, take2=take2)
    k.mul_(keep1).addcdiv_(g, v.sqrt().add_(eps), value=take1)
    return k.mul(scale)


def signsgdm(g: Any, m: Any, *, take1: float) -> Any:
    """m ← βm + (1−β)g,  u = sign m.  [bernstein2018] Alg. 2; [memory-article]."""
    return m.lerp_(g, take1).sign()


def lion(g: Any, m: Any, *, take1: float, take2: float) -> Any:
    """u = sign(β1m + (1−β1)g),  m ← β2m + (1−β2)g.  [chen2023]; [kosson2024] Eq. 52–54."""
    u = m.lerp(g, take1).sign_()
    m.lerp_(g, take2)
    return u


class Rule(ABC):
    """A rule as an optimizer uses it: its averages, and what theory knows about its direction."""

    state: ClassVar[tuple[str, ...]]
    """Names of the averages, as torch calls them, so that checkpoints look familiar."""

    by_rows: ClassVar[bool] = False
    """Whether the equation is of rows, in the group's granularity, and not of single elements."""

    compiles: ClassVar[bool] = True
    """Whether the equation is one of elements or rows, which a kernel can take; products of matrices are not."""

    shares: ClassVar[bool] = False
    """Whether it works on whole tensors, which ranks share where tensors lie on several; then it is given them all."""

    def parts(self, tensors: Sequence[Tensor], group: GroupOptions) -> list[list[int]]:
        """Which tensors are stepped in one call, rule and move, one part after the other: all, unless it says so."""
        return [list(range(len(tensors)))]

    @abstractmethod
    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        """All numbers in the equation that depend on step t: those that schedules and the step count change."""

    @abstractmethod
    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        """The direction u; the averages are changed in place. Of the group only switches are read."""

    def starts(self, group: GroupOptions) -> bool:
        """Whether the averages start at the first gradient instead of zero."""
        return False

    def start(self, g: Any, averages: tuple[Any, ...], group: GroupOptions) -> None:
        """Set averages that do not start at zero; needed if `starts` is true."""
        raise NotImplementedError(f"{type(self).__name__}: starts() is true, so start() must say from what")

    @abstractmethod
    def dynamics(self, group: GroupOptions) -> Dynamics:
        """What theory knows about the direction; the move adds what it does with it."""


@lru_cache(maxsize=1024)
def described(optimizer: str, **fields: Any) -> Dynamics:
    """A `Dynamics`, made once."""
    return Dynamics(optimizer, **fields)


@final
class SGDMRule(Rule):
    """`sgdm` with the group's momentum and nesterov."""

    state = ("momentum_buffer",)

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        return {"momentum": group["momentum"]}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        return sgdm(g, *averages, nesterov=group["nesterov"], **numbers)

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described("sgdm", betas=(group["momentum"], 0.999), nesterov=bool(group["nesterov"]), coupled=False)


@final
class RMSPropRule(Rule):
    """`rmsprop` with the group's alpha and eps."""

    state = ("square_avg",)

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        return {"keep2": group["alpha"], "take2": 1 - group["alpha"], "eps": max(group["eps"], LEAST)}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        return rmsprop(g, *averages, **numbers)

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described("rmsprop", betas=(0.0, group["alpha"]), eps=float(group["eps"]))


@final
class AdamRule(Rule):
    """`adam` or `adam_nested` with the group's betas and eps, and [notepad]'s switches."""

    state = ("exp_avg", "exp_avg_sq")

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        (beta1, beta2), corrected = group["betas"], group["bias_correction"]
        fill, root = (1 - beta1**t, math.sqrt(1 - beta2**t)) if corrected else (1.0, 1.0)
        numbers = {"take1": 1 - beta1, "keep2": beta2, "take2": 1 - beta2, "eps": max(group["eps"] * root, LEAST)}
        if group["nested"]:
            return numbers | {"keep1": beta1, "take1": (1 - beta1) * root, "scale": 1 / fill}
        return numbers | {"scale": root / fill}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        return (adam_nested if group["nested"] else adam)(g, *averages, **numbers)

    def starts(self, group: GroupOptions) -> bool:
        return not group["zero_init"]

    def start(self, g: Any, averages: tuple[Any, ...], group: GroupOptions) -> None:
        m, v = averages
        m.copy_(g)
        v.copy_(g).mul_(g)
        if group["nested"]:
            m.copy_(g.sign())  # the average of g/√v, where v = g²

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described(
            "adam_nested" if group["nested"] else "adamw", betas=tuple(group["betas"]), eps=float(group["eps"]),
            bias_correction=bool(group["bias_correction"]), zero_init=bool(group["zero_init"]),
        )  # fmt: skip


@final
class SignSGDMRule(Rule):
    """`signsgdm` with the group's momentum."""

    state = ("exp_avg",)

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        return {"take1": 1 - group["momentum"]}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        return signsgdm(g, *averages, **numbers)

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described("signsgdm", betas=(group["momentum"], 0.999))


@final
class LionRule(Rule):
    """`lion` with the group's betas."""

    state = ("exp_avg",)

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        return {"take1": 1 - group["betas"][0], "take2": 1 - group["betas"][1]}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        return lion(g, *averages, **numbers)

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described("lion", betas=tuple(group["betas"]))


@final
class NormalizedRule(Rule):
    """u = g/‖g‖, over each tensor or each neuron.  [norm-note]."""

    state = ()
    by_rows = True

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        return {}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        if isinstance(g, TensorList):
            return TensorList([self(x, (), numbers, group) for x in g.tensors])
        if isinstance(g, Traced):  # rows already
            return Traced(unit(g.x))
        flat = as_rows(g, group["granularity"])
        return unit(flat).reshape(g.shape)

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described("ngd")
