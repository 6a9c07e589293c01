"""The iteration for the polar factor: odd polynomials of a matrix, by as few and as small products as possible.

Letters: Y the normalised matrix, R = YYᵀ (or YᵀY, whichever is smaller), a step Y ← h(R)Y with h(r) = a + br + cr².

A step may be applied to Y at once (direct), or only to R, as R ← h R h, while Q gathers the product of all h and Y is
multiplied once at the end (Gram). All products but those with Y are then small and symmetric. With rows k and longer
side αk, in units of 2k³ flops, s quintic steps cost s(2α + 1) directly and 2α + 4s − 3 by the Gram matrix.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.geometry.coefficients import Polynomial

_SYMMETRIC_FROM, _BLOCK = 512, 384
_CHUNK = 1 << 20
_GAIN = {torch.bfloat16: 1e2, torch.float32: 1.5e4, torch.float64: 1e6}
_BF16_GAIN = 4e3


def restarts(polynomials: Sequence[Polynomial], gram: bool, dtype: torch.dtype) -> list[bool]:
    """After which steps Y is multiplied and R computed anew.

    Rounding moves the eigenvalues of R by about ε, also below 0 and above the interval that the polynomials are made
    for. Each step on R enlarges the small ones by a²; a fresh R = YYᵀ has forgotten that. So a² may only gather up to a
    limit before the last R of a stretch; the limits were measured on low-rank, rank-deficient and geometric spectra.
    In bfloat16 that is two steps, and only if few follow: else the direct iteration is the one that holds.
    """
    total = math.prod(p[0] for p in polynomials)
    if not gram or (dtype == torch.bfloat16 and total > _BF16_GAIN):
        return [True] * len(polynomials)
    ends, gain = [], 1.0
    for p, following in zip(polynomials, [*polynomials[1:], None], strict=True):
        gain *= p[0] ** 2
        ends.append(following is None or gain > _GAIN[dtype])
        if ends[-1]:
            gain = 1.0
    return ends


def products(polynomials: Sequence[Polynomial], ends: Sequence[bool]) -> tuple[int, int]:
    """How many products with Y (α units each) and of small matrices (one unit each) the iteration takes."""
    large = small = 0
    fresh = True
    for p, end in zip(polynomials, ends, strict=True):
        large += fresh + end
        small += (len(p) == 3) + (not fresh) + 2 * (not end)
        fresh = end
    return large, small


def iterate(
    x: Tensor, polynomials: Sequence[Polynomial], ends: Sequence[bool], dtype: torch.dtype, bound: str = "gram"
) -> Tensor:
    """Apply the polynomials to the singular values of every matrix in x (batch, m, n), after normalisation."""
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    # On a CPU one large matrix at a time stays in cache, and small ones share a call.
    size = max(1, _CHUNK // max(1, x[0].numel())) if x.device.type == "cpu" else max(1, len(x))
    for here, there in zip(x.split(size), out.split(size), strict=True):
        _iterate(here, polynomials, ends, there, bound)
    return out


def _iterate(x: Tensor, polynomials: Sequence[Polynomial], ends: Sequence[bool], out: Tensor, bound: str) -> None:
    tall = x.shape[-2] > x.shape[-1]
    k = min(x.shape[-2:])
    y, spare = _by_largest_entry(x, out.dtype), out
    r, h, t, q = (torch.empty(len(x), k, k, dtype=out.dtype, device=x.device) for _ in range(4))
    gathered, fresh = False, True
    for i, (p, end) in enumerate(zip(polynomials, ends, strict=True)):
        if fresh:
            _symmetric(y.mT, y, r) if tall else _symmetric(y, y.mT, r)
        if i == 0:
            _first(p, r, h, t, bound)
        else:
            _polynomial(p, r, h)
        if gathered:
            _symmetric(h, q, t)
            q, t = t, q
        if end:
            product = q if gathered else h
            torch.bmm(y, product, out=spare) if tall else torch.bmm(product, y, out=spare)
            y, spare = spare, y
        else:
            _symmetric(h, r, t)
            _symmetric(t, h, r)
            if not gathered:
                q, h = h, q
        gathered, fresh = not end, end
    if y is not out:
        out.copy_(y)


def _by_largest_entry(x: Tensor, dtype: torch.dtype) -> Tensor:
    """X over its largest entry, so that no product can overflow or vanish whatever the scale of X."""
    x = x if x.dtype == dtype or x.dtype == torch.float64 else x.float()
    largest = torch.linalg.vector_norm(x, torch.inf, dim=(-2, -1), keepdim=True)
    return (x / largest.masked_fill(largest == 0, 1)).to(dtype)


def _first(p: Polynomial, r: Tensor, h: Tensor, t: Tensor, bound: str) -> None:
    """h(R/s²)/s for a bound s on the largest singular value: ‖Y‖_F if asked for, or better.

    s = ‖R²‖_F^¼ = (Σσ⁸)^⅛ costs nothing, because R² is needed anyway, and is much sharper than ‖Y‖_F: for a Gaussian
    768 × 768 matrix 1.6 times the largest singular value, not 14 times. That is worth more than a step.
    """
    dtype = torch.promote_types(r.dtype, torch.float32)
    if len(p) == 3:
        _symmetric(r, r, t)
    if bound == "frobenius":
        s = r.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=dtype)[..., None, None] ** 0.5
    elif len(p) == 3:
        s = torch.linalg.vector_norm(t, dim=(-2, -1), keepdim=True, dtype=dtype) ** 0.25
    else:
        s = torch.linalg.vector_norm(r, dim=(-2, -1), keepdim=True, dtype=dtype) ** 0.5
    s = s.masked_fill(s == 0, 1)
    torch.mul(r, p[1] / s**3, out=h) if r.dtype == dtype else h.copy_(r * (p[1] / s**3))
    if len(p) == 3:
        h.addcmul_(t, p[2] / s**5) if r.dtype == dtype else h.copy_(h + t * (p[2] / s**5))
    diagonal = h.diagonal(dim1=-2, dim2=-1)
    diagonal.copy_(diagonal + p[0] / s[..., 0])


def _polynomial(p: Polynomial, r: Tensor, h: Tensor) -> None:
    """Set h to a + bR + cR²."""
    if len(p) == 3:
        _symmetric(r, r, h, plus=r, beta=p[1], alpha=p[2])
    else:
        torch.mul(r, p[1], out=h)
    h.diagonal(dim1=-2, dim2=-1).add_(p[0])


def _symmetric(
    a: Tensor, b: Tensor, out: Tensor, plus: Tensor | None = None, beta: float = 0.0, alpha: float = 1.0
) -> None:
    """Set out to β·plus + α·AB, where the result is known to be symmetric.

    With BLAS on one CPU thread, large products are computed by block rows up to the diagonal and mirrored: with two
    block rows ¾ of the flops. With several threads this is a tenth faster at best, and half as fast as whole products
    when the machine is busy, because every call waits for the slowest thread.
    """
    k = out.shape[-1]
    whole = out.device.type != "cpu" or out.dtype.itemsize < 4 or torch.get_num_threads() > 1
    if whole or len(out) > 1 or k < _SYMMETRIC_FROM:
        if plus is None:
            torch.bmm(a, b, out=out)
        else:
            torch.baddbmm(plus, a, b, beta=beta, alpha=alpha, out=out)
        return
    a, b, c = a[0], b[0], out[0]
    count = max(2, k // _BLOCK)
    edges = [k * i // count for i in range(count + 1)]
    for start, end in itertools.pairwise(edges):
        block = c[start:end, :end]
        if plus is None:
            torch.mm(a[start:end], b[:, :end], out=block)
        else:
            torch.addmm(plus[0, start:end, :end], a[start:end], b[:, :end], beta=beta, alpha=alpha, out=block)
        if start:
            c[:start, start:end] = c[start:end, :start].mT
