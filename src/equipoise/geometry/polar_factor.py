"""The polar factor UVᵀ of a matrix UΣVᵀ: exactly, or by an iteration made of products alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from equipoise import _check as check
from equipoise.geometry import _iterate
from equipoise.geometry import coefficients as co
from equipoise.geometry.coefficients import Polynomial

METHODS = ("auto", "direct", "gram", "svd")
_STEPS, _LOWER, _BF16_LOWER = 4, 3e-3, 3.3e-3
_DTYPES = (torch.bfloat16, torch.float32, torch.float64)
_ROUNDING = {torch.bfloat16: (1.1e-3, 1e-2), torch.float32: (8e-8, 2e-6), torch.float64: (1.6e-16, 4e-15)}


def polar(
    x: Tensor,
    *,
    steps: int | None = None,
    accuracy: float | None = None,
    lower: float | None = None,
    method: str = "auto",
    coefficients: str | Sequence[Sequence[float]] = "optimal",
    degree: int = 5,
    bound: str = "gram",
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> Tensor:
    """UVᵀ for every matrix UΣVᵀ in x, that is dualize(x) in the spectral norm.

    The default is made for Muon: in float32 four steps bring every singular value of at least 3e-3 s to within 20 % of
    1, where Muon's five classic steps leave 32 %. Here s is the bound on the largest singular value that x is divided
    by: (Σσ⁸)^⅛, at most rank^⅛ times the largest one, 1.6 times for a Gaussian 768 × 768 matrix. In bfloat16 they
    bring those of at least 3.3e-3 s to within 21 %, before rounding, which moves the smallest of them by up to a third.
    Ask for `accuracy`, or `method="svd"`, to have more.
    The result does not depend on the scale of x. Zero gives zero, NaN gives NaN in its matrix alone. Singular values
    below `lower` come out smaller than 1: with `"svd"` those at rounding level are taken as zero, and stay zero.

    Args:
        x: Matrices, shape (..., m, n), of a floating dtype. The result has the same shape and dtype.
        steps: Number of polynomial steps; 4 unless `accuracy` or `coefficients` say otherwise.
        accuracy: Instead of steps: largest ‖UVᵀ − result‖₂ of a matrix whose singular values are in [lower, 1] · s. It
            holds in the dtype of the products, rounding included, or is refused.
        lower: The smallest singular value, relative to s, that should arrive near 1; 3e-3, in bfloat16 3.3e-3.
        method: `"direct"` multiplies x in every step, `"gram"` iterates on the smaller Gram matrix, `"auto"` takes the
            one with fewer flops, `"svd"` is exact and the only one through which gradients flow.
        coefficients: `"optimal"`, `"muon"` (the classic quintic), or a sequence of (a, b) and (a, b, c).
        degree: Of the optimal polynomials: 3 or 5.
        bound: What x is divided by first, to have no singular value above 1: `"gram"` is s, ‖(xxᵀ)²‖_F^¼ (‖xxᵀ‖_F^½ for
            degree 3), sharp and for nothing; `"frobenius"` is what Muon was published with.
        dtype: Of the products: bfloat16, float32 or float64. By default float64 for float64; else bfloat16 on CUDA,
            unless an accuracy is asked for; else float32. It depends on the kind of device, never on its model, so that
            results repeat. Ask for bfloat16 where the processor is fast at it. Of `"svd"`: float64, on MPS float32.
        overwrite: The memory of x may be used, which then holds nothing of worth.

    >>> x = torch.diag(torch.tensor([3.0, 1.0, -0.5]))
    >>> polar(x, accuracy=1e-4).round(decimals=3).diagonal().tolist()
    [1.0, 1.0, -1.0]

    Reference: [muon-appendix] C.3; [jordan2024]; [amsel2025].
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        what = f"a {x.dtype} tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)
        raise ValueError(f"x is {what}: must be a tensor of a floating dtype with at least two dimensions")
    check.choice("method", method, METHODS)
    check.choice("bound", bound, ("gram", "frobenius"))
    polynomials, products = polar_plan(
        steps=steps, accuracy=accuracy, lower=lower, coefficients=coefficients, degree=degree, dtype=dtype, x=x
    )
    if x.numel() == 0:
        return x.clone()
    if method == "svd":
        return _exact(x, dtype)
    with torch.no_grad():
        margin = coefficients == "optimal"
        ends = _ends(polynomials, method, tuple(x.shape[-2:]), products, accuracy, margin)
        out = _iterate.iterate(x.reshape(-1, *x.shape[-2:]), polynomials, ends, products, bound, overwrite)
        return out.reshape(x.shape).to(x.dtype)


def polar_plan(
    *,
    x: Tensor,
    steps: int | None = None,
    accuracy: float | None = None,
    lower: float | None = None,
    coefficients: str | Sequence[Sequence[float]] = "optimal",
    degree: int = 5,
    dtype: torch.dtype | None = None,
) -> tuple[tuple[Polynomial, ...], torch.dtype]:
    """The polynomials and the dtype that `polar` would use for x; same arguments.

    >>> polynomials, dtype = polar_plan(x=torch.zeros(8, 8, dtype=torch.float64), accuracy=1e-6)
    >>> len(polynomials), dtype
    (6, torch.float64)
    """
    if steps is not None and accuracy is not None:
        raise ValueError(f"accuracy = {accuracy!r} with steps = {steps!r}: give one of them")
    if dtype is not None and dtype not in _DTYPES:
        raise ValueError(f"dtype = {dtype!r}: must be torch.bfloat16, torch.float32 or torch.float64")
    dtype = dtype or default_dtype(x.dtype, x.device.type, accuracy)
    lower = lower if lower is not None else _BF16_LOWER if dtype == torch.bfloat16 else _LOWER
    if coefficients != "optimal":
        if accuracy is not None:
            raise ValueError(f"accuracy = {accuracy!r}: works with coefficients = 'optimal' alone; give steps")
        if isinstance(coefficients, str):
            check.choice("coefficients", coefficients, ("muon", "optimal"))
            return (co.MUON,) * check.whole("steps", 5 if steps is None else steps, low=1), dtype
        if steps is not None:
            raise ValueError(f"steps = {steps!r}: a sequence of coefficients has its own number of steps")
        return co.check_coefficients(coefficients), dtype
    margins = {"safety": co.SAFETY}
    if dtype == torch.bfloat16:
        margins = {"safety": co.BF16_SAFETY, "cushion": co.BF16_CUSHION}
    if accuracy is None:
        count = check.whole("steps", _STEPS if steps is None else steps, low=1)
    else:
        count = co.steps_for(_left(accuracy, lower, dtype), lower, degree, **margins)
    return co.optimal(count, lower, degree, **margins), dtype


def default_dtype(dtype: torch.dtype, device: str, accuracy: float | None = None) -> torch.dtype:
    """The dtype of the products where none is asked for, by dtype of the matrices and kind of device alone.

    >>> default_dtype(torch.float32, "cpu"), default_dtype(torch.bfloat16, "cuda"), default_dtype(torch.float64, "cuda")
    (torch.float32, torch.bfloat16, torch.float64)
    """
    if dtype == torch.float64:
        return dtype
    return torch.bfloat16 if device == "cuda" and accuracy is None else torch.float32


def rounding(lower: float, dtype: torch.dtype) -> float:
    """How much of ‖UVᵀ − result‖₂ is due to rounding, at most, when singular values are in [lower, 1] · s.

    Rounding x moves its singular vectors, those of small singular values most: c/lower + d. The numbers bound what
    `benchmarks/polar_table.py` measures on two-valued and geometric spectra, which are the worst that were found.

    >>> print(f"{rounding(3e-3, torch.bfloat16):.2f} {rounding(3e-3, torch.float32):.0e}")
    0.38 3e-05
    """
    slope, rest = _ROUNDING[dtype]
    return slope / lower + rest


def _left(accuracy: float, lower: float, dtype: torch.dtype) -> float:
    """What rounding leaves of an accuracy for the polynomials, or ValueError where that is nothing."""
    accuracy = check.number("accuracy", accuracy, low=0, high=1, open_low=True, open_high=True)
    lower = check.number("lower", lower, low=0, high=1, open_low=True, open_high=True)
    lost = rounding(lower, dtype)
    if accuracy <= lost:
        raise ValueError(
            f"accuracy = {accuracy!r} with lower = {lower!r}: rounding in {dtype} may cost {lost:.1g}; ask for less, "
            "give a wider dtype, or take method='svd'"
        )
    return accuracy - lost


@lru_cache(maxsize=1024)
def _ends(
    polynomials: tuple[Polynomial, ...],
    method: str,
    shape: tuple[int, int],
    dtype: torch.dtype,
    accuracy: float | None = None,
    margin: bool = False,
) -> tuple[bool, ...]:
    """The steps after which x is multiplied: the cheaper plan, or the one that was asked for."""
    alpha = max(shape) / min(shape)

    def cost(ends: list[bool]) -> float:
        large, small = _iterate.products(polynomials, ends)
        return alpha * large + small

    direct, gram = (_iterate.restarts(polynomials, g, dtype, accuracy, margin) for g in (False, True))
    if method == "auto":
        return tuple(min(direct, gram, key=cost))
    return tuple(gram if method == "gram" else direct)


def _exact(x: Tensor, dtype: torch.dtype | None) -> Tensor:
    """The polar factor by singular value decomposition, in float64 where the kind of device has it."""
    if dtype is None:
        dtype = torch.float32 if x.device.type == "mps" else torch.float64
    dtype = torch.promote_types(dtype, torch.float32)  # there is none in bfloat16
    wide = x.to(torch.promote_types(x.dtype, dtype))
    largest = wide.abs().amax(dim=(-2, -1), keepdim=True)
    bad = ~largest.isfinite()  # the decomposition would raise for the whole batch
    scaled = (wide / largest.masked_fill(largest == 0, 1)).masked_fill(bad, 0)
    u, s, vt = torch.linalg.svd(scaled, full_matrices=False)
    kept = s > s[..., :1] * max(x.shape[-2:]) * torch.finfo(wide.dtype).eps
    return ((u * kept.unsqueeze(-2)) @ vt).masked_fill(bad, torch.nan).to(x.dtype)
