"""The iteration for the polar factor: odd polynomials of a matrix, by as few and as small products as possible.

Letters: Y the normalised matrix, R = YYᵀ (or YᵀY, whichever is smaller), a step Y ← h(R)Y with h(r) = a + br + cr².

A step may be applied to Y at once (direct), or only to R, as R ← h R h, while Q gathers the product of all h and Y is
multiplied once at the end (Gram). All products but those with Y are then small and symmetric. With rows k and longer
side αk, in units of 2k³ flops, s quintic steps cost s(2α + 1) directly and 2α + 4s − 3 by the Gram matrix.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

from equipoise.geometry.coefficients import Polynomial

_CHUNK, _CHUNK_ON_CPU = 1 << 22, 1 << 20
_SYMMETRIC_FROM, _BLOCK, _BF16_BLOCK, _MOST_BLOCKS = 512, 128, 192, 8
_GAIN = {torch.float32: 1.5e4, torch.float64: 1e6}
_BF16_PAIR = 9.0
_GRAM_ERROR = 40.0


def chunk(device: str) -> int:
    """How many entries of small matrices share a call on a kind of device: 4 MiB of float32 on a CPU, else 16 MiB.

    On a CPU that stays in the cache; on a GPU it is enough to keep it busy, and little beside a model.
    """
    return _CHUNK_ON_CPU if device == "cpu" else _CHUNK


def restarts(
    polynomials: Sequence[Polynomial],
    gram: bool,
    dtype: torch.dtype,
    accuracy: float | None = None,
    margin: bool = False,
) -> list[bool]:
    """The steps after which Y is multiplied and R computed anew.

    Rounding moves the eigenvalues of R by about ε, also below 0 and above the interval that the polynomials are made
    for. Each step on R enlarges the small ones by a²; a fresh R = YYᵀ has forgotten that. So a² may only gather up to a
    limit before the last R of a stretch, a lower one where an accuracy is promised. The limits were measured on
    low-rank, rank-deficient, geometric and two-valued spectra.

    In bfloat16 at most two steps go together: late ones, whose gains a are small, and the first two if the polynomials
    have a margin for it and two or more steps follow. Without that margin, singular values of which half are 1 and half
    0.03 come out at 2, and with more steps they diverge.

    Args:
        polynomials: one for each step.
        gram: whether steps may go together at all.
        dtype: of the products.
        accuracy: what is promised, if something is.
        margin: whether the polynomials are `optimal` with `BF16_SAFETY`.
    """
    if not gram:
        return [True] * len(polynomials)
    most = _GAIN.get(dtype, 0.0)
    if accuracy is not None:
        most = min(most, accuracy / (_GRAM_ERROR * torch.finfo(dtype).eps))
    ends: list[bool] = []
    gain = 1.0
    for i, (p, following) in enumerate(zip(polynomials, [*polynomials[1:], None], strict=True)):
        if following is None:
            end = True
        elif dtype == torch.bfloat16:
            first = i == 0 and margin and accuracy is None and len(polynomials) >= 4
            end = (p[0] * following[0] > _BF16_PAIR and not first) or ends[-1:] == [False]
        else:
            gain *= p[0] ** 2
            end = gain > most
        ends.append(end)
        gain = 1.0 if end else gain
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
    x: Tensor,
    polynomials: Sequence[Polynomial],
    ends: Sequence[bool],
    dtype: torch.dtype,
    bound: str = "gram",
    overwrite: bool = False,
) -> Tensor:
    """Apply the polynomials to the singular values of every matrix in x (batch, m, n), after normalisation.

    Large matrices go one by one; small ones share a call, up to `chunk` entries. Beside x and the result, a call takes
    room for one more Y and two R, three where steps are gathered.

    Args:
        x: the matrices.
        polynomials: one for each step.
        ends: after which steps Y is multiplied.
        dtype: of the products and of the result.
        bound: as for `polar`.
        overwrite: whether x may be lost.
    """
    size = max(1, chunk(x.device.type) // max(1, x[0].numel()))
    if len(x) <= size:
        return _iterate(_by_largest_entry(x, dtype, overwrite), polynomials, ends, bound)
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    for here, there in zip(x.split(size), out.split(size), strict=True):
        there.copy_(_iterate(_by_largest_entry(here, dtype, overwrite), polynomials, ends, bound))
    return out


def _iterate(y: Tensor, polynomials: Sequence[Polynomial], ends: Sequence[bool], bound: str) -> Tensor:
    """The same for normalised matrices that may be lost, all in one call."""
    tall = y.shape[-2] > y.shape[-1]
    count, k = len(y), min(y.shape[-2:])
    spare = torch.empty_like(y)
    r, h = (torch.empty(count, k, k, dtype=y.dtype, device=y.device) for _ in range(2))
    q = r if all(ends) else torch.empty_like(r)
    t = _corner(spare, k)  # free until the next product with Y
    gathered, fresh, lent = False, True, False
    for i, (p, end) in enumerate(zip(polynomials, ends, strict=True)):
        if fresh:
            _symmetric(y.mT, y, r) if tall else _symmetric(y, y.mT, r)
        if i == 0:
            _first(p, r, h, t, bound)
        else:
            _polynomial(p, r, h)
        if end:
            product = h
            if gathered:
                _symmetric(h, q, r)
                product = r
            _product(y, product, spare) if tall else _product(product, y, spare)
            y, spare = spare, y
            q, t, lent = (t if lent else q), _corner(spare, k), False
        else:
            if gathered:
                _symmetric(h, q, t)
                q, t, lent = t, q, not lent
            _symmetric(h, r, t)
            _symmetric(t, h, r)
            if not gathered:
                q, h = h, q
        gathered, fresh = not end, end
    return y


def _corner(x: Tensor, k: int) -> Tensor:
    """The memory of x as a k × k matrix for each of its own."""
    return x.view(-1)[: len(x) * k * k].view(len(x), k, k)


def _by_largest_entry(x: Tensor, dtype: torch.dtype, overwrite: bool) -> Tensor:
    """A new X over its largest entry, so that no product can overflow or vanish whatever the scale of X."""
    if x.dtype not in (dtype, torch.float64):
        x, overwrite = (x, overwrite) if x.dtype == torch.float32 else (x.float(), True)
    # The norm to infinity says the same, thirty times slower on a CPU.
    largest = torch.maximum(x.amax((-2, -1), keepdim=True), -x.amin((-2, -1), keepdim=True))
    largest = largest.masked_fill(largest == 0, 1)
    y = x.div_(largest) if overwrite and x.is_contiguous() else x / largest
    return y.to(dtype).contiguous()


def _first(p: Polynomial, r: Tensor, h: Tensor, t: Tensor, bound: str) -> None:
    """h(R/s²)/s for a bound s on the largest singular value: ‖Y‖_F if asked for, or better. R² is lost in t.

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
    torch.mul(r, _factor(p[1] / s**3), out=h)
    if len(p) == 3:
        h.addcmul_(t, p[2] / s**5) if r.dtype == dtype else h.add_(t.mul_(_factor(p[2] / s**5)))
    diagonal = h.diagonal(dim1=-2, dim2=-1)
    diagonal.copy_(diagonal + p[0] / s[..., 0])


def _factor(x: Tensor) -> Tensor:
    """A factor of one matrix as a number without dimensions: a CPU then multiplies without a copy in float32."""
    return x.reshape(()) if len(x) == 1 and x.device.type == "cpu" else x


def _polynomial(p: Polynomial, r: Tensor, h: Tensor) -> None:
    """Set h to a + bR + cR²."""
    if len(p) == 3:
        _symmetric(r, r, h, plus=r, beta=p[1], alpha=p[2])
    else:
        torch.mul(r, p[1], out=h)
    h.diagonal(dim1=-2, dim2=-1).add_(p[0])


def _product(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Set out to AB. A batch of one is a plain product: as a batch it takes up to 1.4 times as long in bfloat16."""
    if len(out) == 1:
        torch.mm(a[0], b[0], out=out[0])
    else:
        torch.bmm(a, b, out=out)


def _symmetric(
    a: Tensor, b: Tensor, out: Tensor, plus: Tensor | None = None, beta: float = 0.0, alpha: float = 1.0
) -> None:
    """Set out to β·plus + α·AB, where the result is known to be symmetric.

    On few CPU threads, large products are computed by block rows up to the diagonal and mirrored. Of 768 × 768 on one
    thread this takes 0.63 of the time of a whole product in float32 and 0.76 in bfloat16, on two threads 0.76 and 0.82.
    """
    k = out.shape[-1]
    rows = max(_BLOCK * torch.get_num_threads(), _BF16_BLOCK if out.dtype == torch.bfloat16 else 0)
    blocks = min(_MOST_BLOCKS, k // rows)
    if len(out) > 1 or blocks < 2 or k < _SYMMETRIC_FROM or out.device.type != "cpu":
        if plus is None:
            _product(a, b, out)
        else:
            torch.baddbmm(plus, a, b, beta=beta, alpha=alpha, out=out)
        return
    a, b, c = a[0], b[0], out[0]
    edges = [k * i // blocks for i in range(blocks + 1)]
    for start, end in itertools.pairwise(edges):
        block = c[start:end, :end]
        if plus is None:
            torch.mm(a[start:end], b[:, :end], out=block)
        else:
            torch.addmm(plus[0, start:end, :end], a[start:end], b[:, :end], beta=beta, alpha=alpha, out=block)
        if start:
            # Twice as fast as a copy into the block: dense to dense has a kernel of its own.
            c[:start, start:end] = c[start:end, :start].contiguous().mT.contiguous()
