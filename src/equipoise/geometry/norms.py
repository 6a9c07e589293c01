"""A norm, its dual norm, and the map between them: what steepest descent needs to know of a space.

With ⟨G, T⟩ the sum of products of entries: ‖G‖† = max ⟨G, T⟩ over ‖T‖ = 1, and dualize(G) is a T that attains it.

Reference: [muon-appendix] A and B; [bernstein2024].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise import _check as check

Tensors = Any
"""A tensor; for `MaxOver` and `SumOver` a list or dict of tensors."""


class Norm(ABC):
    """A norm ‖·‖ on the last dimensions of a tensor; all dimensions before them are a batch.

    Computed in float32 at least, returned in the dtype of the input. A zero input dualizes to zero.
    """

    @abstractmethod
    def norm(self, x: Tensors) -> Tensor:
        """‖x‖, one number for each element of the batch."""

    @abstractmethod
    def dual(self, g: Tensors) -> Tensor:
        """‖g‖† = max ⟨g, t⟩ over ‖t‖ = 1."""

    @abstractmethod
    def dualize(self, g: Tensors) -> Tensors:
        """A t with ‖t‖ = 1 and ⟨g, t⟩ = ‖g‖†. Where several attain it, one of them."""

    def project(self, x: Tensors) -> Tensors:
        """The nearest point to x (in ℓ2) of the unit ball ‖·‖ ≤ 1."""
        raise NotImplementedError(f"{self!r} has no projection in closed form: project with another norm, or rescale")

    def step(self, g: Tensors, sharpness: float) -> Tensors:
        """Δ = −(‖g‖†/λ) dualize(g), the minimiser of ⟨g, Δ⟩ + (λ/2)‖Δ‖².

        Args:
            g: The gradient.
            sharpness: λ > 0; `sharpness` estimates it.

        Reference: [muon-appendix] B.2, proposition 1, with argmin for its misprinted argmax.
        """
        sharpness = check.number("sharpness", sharpness, low=0, open_low=True)
        size, direction = self.dual(g), self.dualize(g)
        return _map(
            lambda t: -(size.reshape(size.shape + (1,) * (t.dim() - size.dim())) / sharpness).to(t) * t, direction
        )


@dataclass(frozen=True)
class Lp(Norm):
    """ℓp of the entries of the last `dims` dimensions: (Σ|xᵢ|ᵖ)^(1/p).

    Dual: ℓq with 1/p + 1/q = 1. dualize: sign(g)(|g|/‖g‖_q)^(q−1); for p = 1 one signed entry, the largest; for p = ∞
    sign(g). Projections are known for p = 1, 2, ∞.

    Args:
        p: In [1, ∞].
        dims: How many of the last dimensions are one vector.

    >>> Lp(2).norm(torch.tensor([3.0, 4.0])).item(), Lp(1).dual(torch.tensor([3.0, -4.0])).item()
    (5.0, 4.0)
    """

    p: float = 2.0
    dims: int = 1

    def __post_init__(self) -> None:
        exponent("p", self.p)
        check.whole("dims", self.dims, low=1)

    def norm(self, x: Tensor) -> Tensor:
        """(Σ|xᵢ|ᵖ)^(1/p)."""
        flat, wide = self._flat(x)
        return scaled_norm(wide, self.p).to(flat.dtype)

    def dual(self, g: Tensor) -> Tensor:
        """‖g‖_q with 1/p + 1/q = 1."""
        flat, wide = self._flat(g)
        return scaled_norm(wide, conjugate(self.p)).to(flat.dtype)

    def dualize(self, g: Tensor) -> Tensor:
        """sign(g)(|g|/‖g‖_q)^(q−1)."""
        _, wide = self._flat(g)
        return dualize_lp(wide, self.p).to(g.dtype).reshape(g.shape)

    def project(self, x: Tensor) -> Tensor:
        """The nearest point of the ball: by shrinking (p = 2), clamping (p = ∞) or thresholding (p = 1)."""
        _, wide = self._flat(x)
        return project_lp(wide, self.p, self).to(x.dtype).reshape(x.shape)

    def _flat(self, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = widened("x", x, self.dims)
        return x, wide.flatten(-self.dims)


def frobenius() -> Lp:
    """The Frobenius norm of matrices: ℓ2 of all entries.

    >>> frobenius().norm(torch.ones(2, 8)).item()
    4.0
    """
    return Lp(2.0, dims=2)


@dataclass(frozen=True)
class RMS(Norm):
    """Root mean square of the entries of the last `dims` dimensions: ℓ2/√d.

    Dual: √d ℓ2. dualize: g with its RMS made 1.

    Args:
        dims: How many of the last dimensions are one vector.

    >>> RMS().norm(torch.tensor([2.0, -2.0, 2.0, 2.0])).item()
    2.0
    """

    dims: int = 1

    def __post_init__(self) -> None:
        check.whole("dims", self.dims, low=1)

    def norm(self, x: Tensor) -> Tensor:
        """‖x‖₂/√d."""
        return (Lp(2.0, self.dims).norm(x.to(wide_dtype(x))) / self._root(x)).to(x.dtype)

    def dual(self, g: Tensor) -> Tensor:
        """√d ‖g‖₂."""
        return (Lp(2.0, self.dims).dual(g.to(wide_dtype(g))) * self._root(g)).to(g.dtype)

    def dualize(self, g: Tensor) -> Tensor:
        """√d g/‖g‖₂."""
        return (Lp(2.0, self.dims).dualize(g.to(wide_dtype(g))) * self._root(g)).to(g.dtype)

    def project(self, x: Tensor) -> Tensor:
        """x, with its RMS lowered to 1 if it is larger."""
        return (Lp(2.0, self.dims).project(x.to(wide_dtype(x)) / self._root(x)) * self._root(x)).to(x.dtype)

    def _root(self, x: Tensor) -> float:
        widened("x", x, self.dims)
        return math.sqrt(math.prod(x.shape[-self.dims :]))


def exponent(name: str, p: Any) -> float:
    """The exponent p as a float in [1, ∞], or ValueError."""
    if isinstance(p, bool) or not isinstance(p, int | float) or not p >= 1:
        raise ValueError(f"{name} = {p!r}: must be a number in [1, ∞]")
    return float(p)


def conjugate(p: float) -> float:
    """The q with 1/p + 1/q = 1.

    >>> conjugate(1), conjugate(2), conjugate(math.inf), conjugate(4)
    (inf, 2.0, 1.0, 1.3333333333333333)
    """
    return math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)


def wide_dtype(x: Tensor) -> torch.dtype:
    """float64 for float64, else float32."""
    return torch.promote_types(x.dtype, torch.float32)


def widened(name: str, x: Tensor, dims: int) -> Tensor:
    """The tensor in the dtype of the computation, or ValueError when it cannot have this norm."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < dims:
        what = f"a {x.dtype} tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)
        raise ValueError(f"{name} is {what}: must be a tensor of a floating dtype with at least {dims} dimensions")
    return x.to(wide_dtype(x))


def scaled_norm(x: Tensor, p: float) -> Tensor:
    """ℓp of the last dimension, divided by the largest entry first so that no power overflows or vanishes."""
    if x.shape[-1] == 0:
        return x.sum(-1)
    if p in (1, math.inf):
        return torch.linalg.vector_norm(x, p, dim=-1)
    top = _top(x)
    return torch.linalg.vector_norm(x / top, p, dim=-1) * top.squeeze(-1)


def dualize_lp(g: Tensor, p: float) -> Tensor:
    """Dualize in ℓp of the last dimension."""
    if g.shape[-1] == 0 or p == math.inf:
        return g.sign()
    if p == 1:
        at = g.abs().argmax(dim=-1, keepdim=True)
        return torch.zeros_like(g).scatter(-1, at, g.gather(-1, at).sign())
    q = conjugate(p)
    g = g / _top(g)
    size = torch.linalg.vector_norm(g, q, dim=-1, keepdim=True)
    return g.sign() * (g.abs() / size.masked_fill(size == 0, 1)) ** (q - 1)


def project_lp(x: Tensor, p: float, norm: Norm) -> Tensor:
    """The nearest point of the unit ball of ℓp of the last dimension, for p = 1, 2, ∞."""
    if p == math.inf:
        return x.clamp(-1, 1)
    if p == 2:
        return x / scaled_norm(x, 2).clamp(min=1).unsqueeze(-1)
    if p == 1:
        # Shrink all entries by the τ that leaves a sum of 1: [duchi2008] figure 1.
        falling = x.abs().sort(dim=-1, descending=True).values
        count = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
        shifts = (falling.cumsum(-1) - 1) / count
        last = (falling > shifts).sum(-1, keepdim=True).clamp(min=1) - 1
        tau = shifts.gather(-1, last).clamp(min=0)
        return x.sign() * (x.abs() - tau).clamp(min=0)
    return Norm.project(norm, x)


def _top(x: Tensor) -> Tensor:
    """Largest entry in absolute value, 1 where that is 0; a constant to autograd, because it cancels."""
    top = x.detach().abs().amax(dim=-1, keepdim=True)
    return top.masked_fill(top == 0, 1)


def _map(function: Any, value: Tensors) -> Tensors:
    if isinstance(value, dict):
        return {key: function(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [function(v) for v in value]
    return function(value)
