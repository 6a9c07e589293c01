"""Norms made of norms: scaled, seen through another shape, and taken together over slices or layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise import _check as check
from equipoise.geometry.norms import Norm, Tensors, widened

_COMBINE = ("max", "sum")


@dataclass(frozen=True)
class Scaled(Norm):
    """c‖·‖. Dual: ‖·‖†/c. dualize: dualize/c.

    Args:
        base: The norm.
        scale: c > 0.
    """

    base: Norm
    scale: float

    def __post_init__(self) -> None:
        _norm("base", self.base)
        check.number("scale", self.scale, low=0, open_low=True)

    def norm(self, x: Tensor) -> Tensor:
        """c‖x‖."""
        return self.base.norm(x) * self.scale

    def dual(self, g: Tensor) -> Tensor:
        """‖g‖†/c."""
        return self.base.dual(g) / self.scale

    def dualize(self, g: Tensor) -> Tensor:
        """The base's direction over c."""
        return self.base.dualize(g) / self.scale

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of the ball of radius 1/c."""
        return self.base.project(x * self.scale) / self.scale


@dataclass(frozen=True)
class _Viewed(Norm):
    """A matrix norm of x in another shape; slices that this makes are taken together by max or sum."""

    base: Norm

    def __post_init__(self) -> None:
        _norm("base", self.base)

    @abstractmethod
    def _view(self, x: Tensor) -> Tensor: ...

    @abstractmethod
    def _back(self, x: Tensor, shape: torch.Size) -> Tensor: ...

    def norm(self, x: Tensor) -> Tensor:
        """The base norm in the other shape, largest or sum over slices."""
        return self._gather(self.base.norm(self._view(x)), "max")

    def dual(self, g: Tensor) -> Tensor:
        """The base's dual in the other shape, sum or largest over slices."""
        return self._gather(self.base.dual(self._view(g)), "sum")

    def dualize(self, g: Tensor) -> Tensor:
        """Dualize the slices: each for max, the one with the largest dual norm for sum."""
        slices = self._view(g)
        t = self.base.dualize(slices)
        if self._combine() == "sum":
            duals = self.base.dual(slices)
            t = t * torch.nn.functional.one_hot(duals.argmax(-1), duals.shape[-1]).to(t)[..., None, None]
        return self._back(t, g.shape)

    def project(self, x: Tensor) -> Tensor:
        """Each slice into its own ball; for a sum over slices there is no closed form."""
        if self._combine() == "sum":
            return super().project(x)
        return self._back(self.base.project(self._view(x)), x.shape)

    def _combine(self) -> str | None:
        return getattr(self, "combine", None)

    def _gather(self, values: Tensor, how: str) -> Tensor:
        combine = self._combine()
        if combine is None:
            return values
        # The dual of a max is a sum and the other way round.
        return values.amax(-1) if combine == how else values.sum(-1)


@dataclass(frozen=True)
class Flat(_Viewed):
    """A convolution's kernel (out, in, k, k) as one matrix out × in·k².

    Args:
        base: A norm of matrices.
        kernel_dims: How many of the last dimensions are spatial.

    >>> from equipoise.geometry import named
    >>> Flat(named("linf->linf")).norm(torch.ones(8, 2, 3, 3)).item()
    18.0
    """

    kernel_dims: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole("kernel_dims", self.kernel_dims, low=1)

    def _view(self, x: Tensor) -> Tensor:
        widened("x", x, 2 + self.kernel_dims)
        return x.flatten(-1 - self.kernel_dims)

    def _back(self, x: Tensor, shape: torch.Size) -> Tensor:
        return x.reshape(shape)


@dataclass(frozen=True)
class Positions(_Viewed):
    """A convolution's kernel (out, in, k, k) as k² matrices out × in, one for each spatial position.

    Args:
        base: A norm of matrices.
        kernel_dims: How many of the last dimensions are spatial.
        combine: `"max"` over the positions, or `"sum"`.

    >>> from equipoise.geometry import named
    >>> Positions(named("l1->linf"), combine="sum").norm(torch.ones(8, 2, 3, 3)).item()
    9.0
    """

    kernel_dims: int = 2
    combine: str = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole("kernel_dims", self.kernel_dims, low=1)
        check.choice("combine", self.combine, _COMBINE)

    def _view(self, x: Tensor) -> Tensor:
        widened("x", x, 2 + self.kernel_dims)
        return x.flatten(-self.kernel_dims).movedim(-1, -3)

    def _back(self, x: Tensor, shape: torch.Size) -> Tensor:
        return x.movedim(-3, -1).reshape(shape)


@dataclass(frozen=True)
class Heads(_Viewed):
    """A matrix (heads·d, n) as one d × n matrix for each attention head.

    Args:
        base: A norm of matrices.
        count: How many heads; must divide the rows.
        combine: `"max"` over the heads, or `"sum"`.
    """

    count: int = 1
    combine: str = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole("count", self.count, low=1)
        check.choice("combine", self.combine, _COMBINE)

    def _view(self, x: Tensor) -> Tensor:
        widened("x", x, 2)
        if x.shape[-2] % self.count:
            raise ValueError(f"count = {self.count}: must divide the {x.shape[-2]} rows of x")
        return x.unflatten(-2, (self.count, x.shape[-2] // self.count))

    def _back(self, x: Tensor, shape: torch.Size) -> Tensor:
        return x.reshape(shape)


@dataclass(frozen=True, init=False)
class _Over(Norm):
    """Norms ‖·‖_l of several layers with scales s_l, for a list or dict of tensors, without batch."""

    norms: tuple[Norm, ...]
    scales: tuple[float, ...]
    keys: tuple[Any, ...] | None

    def __init__(self, norms: Any, scales: Any = None) -> None:
        keys = tuple(norms) if isinstance(norms, Mapping) else None
        made = tuple(norms.values()) if isinstance(norms, Mapping) else tuple(norms)
        if not made:
            raise ValueError(f"norms = {norms!r}: must have at least one norm")
        for i, norm in enumerate(made):
            _norm(f"norms[{keys[i] if keys else i!r}]", norm)
        if scales is None:
            chosen = [1.0] * len(made)
        elif keys is not None:
            if not isinstance(scales, Mapping) or set(scales) != set(keys):
                raise ValueError(
                    f"scales = {scales!r}: must be a dict with the keys of norms, {', '.join(map(str, keys))}"
                )
            chosen = [scales[key] for key in keys]
        else:
            if not isinstance(scales, Sequence) or isinstance(scales, str) or len(scales) != len(made):
                raise ValueError(f"scales = {scales!r}: must be one number for each of the {len(made)} norms")
            chosen = list(scales)
        numbers = tuple(check.number(f"scales[{i}]", s, low=0, open_low=True) for i, s in enumerate(chosen))
        for name, value in (("norms", made), ("scales", numbers), ("keys", keys)):
            object.__setattr__(self, name, value)

    def _layers(self, x: Tensors) -> list[Tensor]:
        if self.keys is not None:
            if not isinstance(x, Mapping) or set(x) != set(self.keys):
                raise ValueError(f"x must be a dict with the keys {', '.join(map(str, self.keys))}")
            return [x[key] for key in self.keys]
        if not isinstance(x, Sequence) or len(x) != len(self.norms):
            raise ValueError(f"x must be a list of {len(self.norms)} tensors, one for each norm")
        return list(x)

    def _same(self, values: list[Tensor]) -> Tensors:
        return values if self.keys is None else dict(zip(self.keys, values, strict=True))

    def _each(self, x: Tensors, function: Callable[[Norm, float, Tensor], Tensor]) -> list[Tensor]:
        return [function(n, s, t) for n, s, t in zip(self.norms, self.scales, self._layers(x), strict=True)]


class MaxOver(_Over):
    """The modular norm: max_l s_l‖W_l‖_l over the layers.

    Dual: Σ ‖G_l‖_l†/s_l. dualize: dualize_l(G_l)/s_l in every layer. So `step(G, λ)` is
    ΔW_l = −(η/s_l) dualize_l(G_l) with η = (1/λ) Σ_k ‖G_k‖_k†/s_k.

    Args:
        norms: A list or dict of norms, one for each layer; inputs are lists or dicts alike.
        scales: The s_l > 0, in the same form; all 1 by default.

    >>> from equipoise.geometry import named
    >>> both = MaxOver([named("l1->linf"), named("l2")], scales=[1, 2])
    >>> both.norm([torch.full((2, 2), 3.0), torch.tensor([3.0, 4.0])]).item()
    10.0

    Reference: [muon-appendix] C.1 and C.2.
    """

    def norm(self, x: Tensors) -> Tensor:
        """The largest s_l‖x_l‖_l."""
        return torch.stack(self._each(x, lambda n, s, t: s * n.norm(t))).amax(0)

    def dual(self, g: Tensors) -> Tensor:
        """Σ ‖g_l‖_l†/s_l."""
        return torch.stack(self._each(g, lambda n, s, t: n.dual(t) / s)).sum(0)

    def dualize(self, g: Tensors) -> Tensors:
        """dualize_l(g_l)/s_l for every layer."""
        return self._same(self._each(g, lambda n, s, t: n.dualize(t) / s))

    def project(self, x: Tensors) -> Tensors:
        """Every layer into its own ball, of radius 1/s_l."""
        return self._same(self._each(x, lambda n, s, t: n.project(t * s) / s))


class SumOver(_Over):
    """Σ s_l‖W_l‖_l over the layers.

    Dual: max ‖G_l‖_l†/s_l. dualize: only the layer with the largest of these moves.

    Args:
        norms: A list or dict of norms, one for each layer; inputs are lists or dicts alike.
        scales: The s_l > 0, in the same form; all 1 by default.
    """

    def norm(self, x: Tensors) -> Tensor:
        """Σ s_l‖x_l‖_l."""
        return torch.stack(self._each(x, lambda n, s, t: s * n.norm(t))).sum(0)

    def dual(self, g: Tensors) -> Tensor:
        """The largest ‖g_l‖_l†/s_l."""
        return torch.stack(self._each(g, lambda n, s, t: n.dual(t) / s)).amax(0)

    def dualize(self, g: Tensors) -> Tensors:
        """dualize_l(g_l)/s_l for the layer with the largest ‖g_l‖_l†/s_l, zero for the others."""
        best = int(torch.stack(self._each(g, lambda n, s, t: n.dual(t) / s)).argmax())
        made = self._each(g, lambda n, s, t: n.dualize(t) / s)
        return self._same([t if i == best else torch.zeros_like(t) for i, t in enumerate(made)])


def _norm(name: str, value: Any) -> None:
    if not isinstance(value, Norm):
        raise ValueError(f"{name} = {value!r}: must be a Norm, such as named('spectral')")
