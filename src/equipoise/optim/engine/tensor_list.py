"""Lists of tensors with tensor methods, which let one rule run eagerly, with foreach, and compiled."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class TensorList:
    """A list of tensors with the few methods that rules and moves use, each one foreach call.

    >>> TensorList([torch.tensor([1.0, 4.0]), torch.tensor([9.0])]).sqrt().tensors
    [tensor([1., 2.]), tensor([3.])]
    """

    __slots__ = ("tensors",)

    def __init__(self, tensors: Sequence[Tensor]):
        self.tensors = list(tensors)

    def mul_(self, other: Any) -> TensorList:
        """Multiply in place by a number or by as many tensors."""
        torch._foreach_mul_(self.tensors, _raw(other))
        return self

    def mul(self, other: Any) -> TensorList:
        """The product with a number or with as many tensors."""
        return TensorList(torch._foreach_mul(self.tensors, _raw(other)))

    def add_(self, other: Any, *, alpha: float = 1.0) -> TensorList:
        """Add in place a number, or alpha times as many tensors."""
        if isinstance(other, TensorList):
            torch._foreach_add_(self.tensors, other.tensors, alpha=alpha)
        else:
            torch._foreach_add_(self.tensors, other)
        return self

    def add(self, other: TensorList, *, alpha: float = 1.0) -> TensorList:
        """The sum with alpha times as many tensors."""
        return TensorList(torch._foreach_add(self.tensors, other.tensors, alpha=alpha))

    def div(self, other: Any) -> TensorList:
        """The quotient by a number or by as many tensors."""
        return TensorList(torch._foreach_div(self.tensors, _raw(other)))

    def __truediv__(self, other: Any) -> TensorList:
        return self.div(other)

    def neg(self) -> TensorList:
        """The negatives."""
        return TensorList(torch._foreach_neg(self.tensors))

    def sqrt(self) -> TensorList:
        """The square roots."""
        return TensorList(torch._foreach_sqrt(self.tensors))

    def sign(self) -> TensorList:
        """The signs."""
        return TensorList(torch._foreach_sign(self.tensors))

    def sign_(self) -> TensorList:
        """The signs, in place."""
        torch._foreach_sign_(self.tensors)
        return self

    def clamp_max_(self, most: float) -> TensorList:
        """No more than a number, in place."""
        torch._foreach_clamp_max_(self.tensors, most)
        return self

    def lerp_(self, end: TensorList, weight: float) -> TensorList:
        """Move in place by a share `weight` of the way to `end`."""
        torch._foreach_lerp_(self.tensors, end.tensors, weight)
        return self

    def lerp(self, end: TensorList, weight: float) -> TensorList:
        """The points a share `weight` of the way to `end`."""
        return TensorList(torch._foreach_lerp(self.tensors, end.tensors, weight))

    def addcmul_(self, a: TensorList, b: TensorList, *, value: float) -> TensorList:
        """Add in place value · a · b."""
        torch._foreach_addcmul_(self.tensors, a.tensors, b.tensors, value)
        return self

    def addcdiv_(self, a: TensorList, b: TensorList, *, value: float) -> TensorList:
        """Add in place value · a / b."""
        torch._foreach_addcdiv_(self.tensors, a.tensors, b.tensors, value)
        return self

    def copy_(self, other: TensorList) -> TensorList:
        """Take over the values, in place."""
        torch._foreach_copy_(self.tensors, other.tensors)
        return self


class Traced:
    """One tensor with the methods of `TensorList`, changed by rebinding and not in place, and with tensors as numbers.

    What the compiler sees is so a plain formula from the old values to the new; `x` is the value now.

    >>> m = Traced(torch.tensor([1.0, 4.0]))
    >>> m.mul_(torch.tensor(0.5)).add_(Traced(torch.ones(2)), alpha=torch.tensor(2.0)).x
    tensor([2.5000, 4.0000])
    """

    __slots__ = ("x",)

    def __init__(self, x: Tensor):
        self.x = x

    def _become(self, x: Tensor) -> Traced:
        self.x = x
        return self

    def mul(self, other: Any) -> Traced:
        """The product."""
        return Traced(self.x * _value(other))

    def mul_(self, other: Any) -> Traced:
        """Multiply in place."""
        return self._become(self.x * _value(other))

    def add(self, other: Any, *, alpha: Any = 1.0) -> Traced:
        """The sum with alpha times another."""
        return Traced(self.x + _times(alpha, _value(other)))

    def add_(self, other: Any, *, alpha: Any = 1.0) -> Traced:
        """Add in place alpha times another."""
        return self._become(self.add(other, alpha=alpha).x)

    def div(self, other: Any) -> Traced:
        """The quotient."""
        return Traced(self.x / _value(other))

    def __truediv__(self, other: Any) -> Traced:
        return self.div(other)

    def neg(self) -> Traced:
        """The negative."""
        return Traced(-self.x)

    def sqrt(self) -> Traced:
        """The square root."""
        return Traced(self.x.sqrt())

    def sign(self) -> Traced:
        """The sign."""
        return Traced(self.x.sign())

    def sign_(self) -> Traced:
        """The sign, in place."""
        return self._become(self.x.sign())

    def clamp_max_(self, most: float) -> Traced:
        """No more than a number, in place."""
        return self._become(self.x.clamp_max(most))

    def lerp(self, end: Traced, weight: Any) -> Traced:
        """The point a share `weight` of the way to `end`."""
        if self.x.ndim == 1:
            return Traced(torch.lerp(self.x, end.x, weight))
        # Rows: its choice between two formulas keeps g++ from vectorising the loop, which takes three times as long.
        return Traced(self.x + (end.x - self.x) * weight)

    def lerp_(self, end: Traced, weight: Any) -> Traced:
        """Move in place by a share `weight` of the way to `end`."""
        return self._become(self.lerp(end, weight).x)

    def addcmul_(self, a: Traced, b: Traced, *, value: Any) -> Traced:
        """Add in place value · a · b."""
        return self._become(self.x + a.x * b.x * value)

    def addcdiv_(self, a: Traced, b: Traced, *, value: Any) -> Traced:
        """Add in place value · a / b."""
        return self._become(self.x + a.x / b.x * value)

    def copy_(self, other: Traced) -> Traced:
        """Take over the value."""
        return self._become(other.x)


def _value(other: Any) -> Any:
    return other.x if isinstance(other, Traced) else other


def _times(alpha: Any, x: Any) -> Any:
    return x if isinstance(alpha, float) and alpha == 1.0 else x * alpha


def _raw(other: Any) -> Any:
    return other.tensors if isinstance(other, TensorList) else other
