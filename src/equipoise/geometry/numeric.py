"""Norms that have no closed form, by power-type iterations: of a matrix from ℓp to ℓq, and of a Hessian.

Both climb: for ‖A‖ = max ⟨s, At⟩ over ‖s‖ = ‖t‖ = 1, the best s for a t is dualize(At) and the best t for an s is
dualize(Aᵀs). The value never falls, and ends in a local maximum: a lower bound, sharpened by restarts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from equipoise import _check as check
from equipoise.geometry.norms import (
    Norm,
    Tensors,
    conjugate,
    dualize_lp,
    exponent,
    scaled_norm,
    wide_dtype,
    widened,
)


def induced_norm(
    x: Tensor, p: float, q: float, *, restarts: int = 32, iterations: int = 500, tolerance: float = 1e-10, seed: int = 0
) -> Tensor:
    """‖X‖_{p→q} = max ‖Xt‖_q over ‖t‖_p = 1, for any p and q in [1, ∞]: a lower bound by climbing.

    Each start climbs until no value grows by more than `tolerance`, so the result is a local maximum to about that
    accuracy. For a matrix without negative entries and p ≥ q a local maximum is the global one. Else the best of the
    starts is an estimate: in tests on small matrices it is the maximum, but to find that is NP-hard in general.

    Args:
        x: Matrices, shape (..., m, n).
        p: Norm of the input.
        q: Norm of the output.
        restarts: How many random starts; all unit vectors are tried besides.
        iterations: At most so many rounds.
        tolerance: Relative growth at which to stop.
        seed: Of the random starts.

    >>> print(f"{induced_norm(torch.eye(3), 4, 2).item():.4f}")
    1.3161

    Reference: [boyd1974]; [higham1992].
    """
    p, q = exponent("p", p), exponent("q", q)
    restarts, iterations = check.whole("restarts", restarts, low=1), check.whole("iterations", iterations, low=1)
    wide = widened("x", x, 2).unsqueeze(-3)
    n = x.shape[-1]
    generator = torch.Generator().manual_seed(check.whole("seed", seed))
    starts = torch.cat([torch.eye(n), torch.randn(restarts, n, generator=generator)])
    t = dualize_lp(starts.to(wide), p)  # (starts, n): any vector of norm 1 will do
    best = torch.zeros(())
    for _ in range(iterations):
        y = (wide @ t.unsqueeze(-1)).squeeze(-1)
        value = scaled_norm(y, q)
        if not bool((value > best * (1 + tolerance)).any()):
            break
        best = value
        s = dualize_lp(y, conjugate(q))
        t = dualize_lp((wide.mT @ s.unsqueeze(-1)).squeeze(-1), p)
    return best.amax(-1).to(x.dtype)


def sharpness(
    closure: Callable[[], Tensor],
    params: Tensors,
    norm: Norm,
    *,
    iterations: int = 20,
    restarts: int = 2,
    seed: int = 0,
) -> float:
    """An estimate of λ = ‖∇²F‖ from ‖·‖ to ‖·‖†, the sharpness that `Norm.step` wants.

    λ = max ‖Hd‖† over ‖d‖ = 1, the least λ with ‖∇F(w + d) − ∇F(w)‖† ≤ λ‖d‖ for small d. It climbs by
    d ← dualize(Hd), one Hessian-vector product each. It is an estimate from below, and at this w alone: the bound of
    steepest descent wants the largest over the whole step, so take a margin.

    Args:
        closure: Returns the loss, with a graph that can be differentiated twice.
        params: The tensor, list or dict of tensors that `norm` is for; leaves that require gradients.
        norm: The norm; `MaxOver` and `SumOver` for several tensors.
        iterations: Hessian-vector products for each start.
        restarts: How many random starts.
        seed: Of the random starts.

    >>> w = torch.tensor([1.0, 1.0], requires_grad=True)
    >>> from equipoise.geometry import named
    >>> round(sharpness(lambda: w[0] ** 2 + 3 * w[1] ** 2, w, named("l2")), 4)
    6.0

    Reference: [muon-appendix] B.3.
    """
    iterations, restarts = check.whole("iterations", iterations, low=1), check.whole("restarts", restarts, low=1)
    if not isinstance(norm, Norm):
        raise ValueError(f"norm = {norm!r}: must be a Norm, such as named('spectral')")
    leaves, like = _leaves(params)
    with torch.enable_grad():
        loss = closure()
        if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
            raise ValueError(f"closure() = {loss!r}: must be a loss of one number that depends on params")
        grads = torch.autograd.grad(loss, leaves, create_graph=True, materialize_grads=True)
    generator = torch.Generator().manual_seed(check.whole("seed", seed))
    best = 0.0
    for _ in range(restarts):
        noise = [torch.randn(w.shape, generator=generator).to(w) for w in leaves]
        value = 0.0
        for _ in range(iterations):
            direction = norm.dualize(like(noise))
            noise = _hessian_times(grads, leaves, _leaves(direction)[0])
            before, value = value, float(norm.dual(like(noise)).detach().to(wide_dtype(leaves[0])).max())
            if value <= before * (1 + 1e-9):
                break
        best = max(best, value)
    return best


def _hessian_times(grads: tuple[Tensor, ...], leaves: list[Tensor], direction: list[Tensor]) -> list[Tensor]:
    along = [(g * d).sum() for g, d in zip(grads, direction, strict=True) if g.requires_grad]
    if not along:
        return [torch.zeros_like(w) for w in leaves]  # the loss is linear
    return list(torch.autograd.grad(sum(along[1:], along[0]), leaves, retain_graph=True, materialize_grads=True))


def _leaves(params: Any) -> tuple[list[Tensor], Callable[[list[Tensor]], Any]]:
    """The tensors as a list, and a function that puts such a list into the form of params."""
    if isinstance(params, Tensor):
        return [params], lambda values: values[0]
    if isinstance(params, Mapping):
        keys = list(params)
        return list(params.values()), lambda values: dict(zip(keys, values, strict=True))
    if not isinstance(params, list | tuple) or not all(isinstance(w, Tensor) for w in params) or not params:
        raise ValueError(f"params = {params!r}: must be a tensor, or a list or dict of tensors")
    return list(params), lambda values: values
