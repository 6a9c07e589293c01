"""The polar factor UVᵀ of a matrix UΣVᵀ: exactly, or by an iteration made of products alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

from equipoise.geometry import _iterate
from equipoise.geometry import coefficients as co
from equipoise.geometry.coefficients import Polynomial
from equipoise.theory import _check as check

METHODS = ("auto", "direct", "gram", "svd")
_STEPS = 4
_BF16_ERROR, _BF16_ACCURACY = 0.02, 0.1


def polar(
    x: Tensor,
    *,
    steps: int | None = None,
    accuracy: float | None = None,
    lower: float = 3e-3,
    method: str = "auto",
    coefficients: str | Sequence[Sequence[float]] = "optimal",
    degree: int = 5,
    bound: str = "gram",
    dtype: torch.dtype | None = None,
) -> Tensor:
    """UVᵀ for every matrix UΣVᵀ in x, that is dualize(x) in the spectral norm.

    The default is made for Muon: four steps bring every singular value of at least 3e-3 of the largest to within 20 %
    of 1, where Muon's five classic steps leave 32 %. Ask for `accuracy`, or `method="svd"`, to have more.
    The result does not depend on the scale of x. Zero gives zero, NaN gives NaN in its matrix alone. Singular values
    below `lower` come out smaller than 1: with `"svd"` those at rounding level are taken as zero, and stay zero.

    Args:
        x: Matrices, shape (..., m, n), of a floating dtype. The result has the same shape and dtype.
        steps: Number of polynomial steps; 4 unless `accuracy` or `coefficients` say otherwise.
        accuracy: Instead of steps: largest error of a singular value in [lower, 1], relative to a bound on the largest
            one that lies less than √√rank above it.
        lower: The smallest relative singular value that should arrive near 1.
        method: `"direct"` multiplies x in every step, `"gram"` iterates on the smaller Gram matrix, `"auto"` takes the
            one with fewer flops, `"svd"` is exact, in float64, and the only one through which gradients flow.
        coefficients: `"optimal"`, `"muon"` (the classic quintic), or a sequence of (a, b) and (a, b, c).
        degree: Of the optimal polynomials: 3 or 5.
        bound: What x is divided by first, to have no singular value above 1: `"gram"`, ‖(xxᵀ)²‖_F^¼, is sharp and
            costs nothing; `"frobenius"` is what Muon was published with.
        dtype: Of the computation. By default float64 for float64; else bfloat16 where the device multiplies it faster
            (`fast_dtype`) and no more than 2 % (by steps) or 10 % (by accuracy) is asked for; else float32.

    >>> x = torch.diag(torch.tensor([3.0, 1.0, -0.5]))
    >>> polar(x, accuracy=1e-4).round(decimals=3).diagonal().tolist()
    [1.0, 1.0, -1.0]

    Reference: Muon appendix, C.3; Jordan et al. 2024 (Muon); Amsel et al. 2025, arXiv 2505.16932.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2:
        what = f"a {x.dtype} tensor of shape {tuple(x.shape)}" if isinstance(x, Tensor) else repr(x)
        raise ValueError(f"x is {what}: must be a tensor of a floating dtype with at least two dimensions")
    check.choice("method", method, METHODS)
    check.choice("bound", bound, ("gram", "frobenius"))
    polynomials, dtype = plan(
        steps=steps, accuracy=accuracy, lower=lower, coefficients=coefficients, degree=degree, dtype=dtype, x=x
    )
    if x.numel() == 0:
        return x.clone()
    if method == "svd":
        return _exact(x)
    with torch.no_grad():
        ends = _ends(polynomials, method, tuple(x.shape[-2:]), dtype)
        out = _iterate.iterate(x.reshape(-1, *x.shape[-2:]), polynomials, ends, dtype, bound)
        return out.reshape(x.shape).to(x.dtype)


def plan(
    *,
    x: Tensor,
    steps: int | None = None,
    accuracy: float | None = None,
    lower: float = 3e-3,
    coefficients: str | Sequence[Sequence[float]] = "optimal",
    degree: int = 5,
    dtype: torch.dtype | None = None,
) -> tuple[tuple[Polynomial, ...], torch.dtype]:
    """The polynomials and the dtype that `polar` would use for x; same arguments.

    >>> polynomials, dtype = plan(x=torch.zeros(8, 8, dtype=torch.float64), accuracy=1e-6)
    >>> len(polynomials), dtype
    (6, torch.float64)
    """
    if steps is not None and accuracy is not None:
        raise ValueError(f"accuracy = {accuracy!r} with steps = {steps!r}: give one of them")
    if dtype is not None and dtype not in (torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(f"dtype = {dtype!r}: must be torch.bfloat16, torch.float32 or torch.float64")
    if coefficients != "optimal":
        if accuracy is not None:
            raise ValueError(f"accuracy = {accuracy!r}: works with coefficients = 'optimal' alone; give steps")
        if isinstance(coefficients, str):
            check.choice("coefficients", coefficients, ("muon", "optimal"))
            made = (co.MUON,) * check.whole("steps", 5 if steps is None else steps, low=1)
        else:
            if steps is not None:
                raise ValueError(f"steps = {steps!r}: a sequence of coefficients has its own number of steps")
            made = co.checked(coefficients)
        return made, dtype or _default_dtype(x, co.worst_error(made, lower))
    margins = {"safety": co.SAFETY}
    if dtype is None:
        asked = accuracy
        if asked is None:
            count = check.whole("steps", _STEPS if steps is None else steps, low=1)
            asked = co.worst_error(co.optimal(count, lower, degree), lower)
        # A promise is kept in bfloat16 only if it is coarse: small singular values drown in its rounding.
        dtype = _default_dtype(x, asked, _BF16_ERROR if accuracy is None else _BF16_ACCURACY)
    if dtype == torch.bfloat16:
        margins = {"safety": co.BF16_SAFETY, "cushion": co.BF16_CUSHION}
    if accuracy is None:
        count = check.whole("steps", _STEPS if steps is None else steps, low=1)
    else:
        count = co.steps_for(accuracy, lower, degree, **margins)
    return co.optimal(count, lower, degree, **margins), dtype


@lru_cache(maxsize=16)
def fast_dtype(device: str) -> torch.dtype:
    """bfloat16 on a kind of device (`"cpu"`, `"cuda"`) that multiplies it faster than float32, else float32.

    It looks at what the hardware has and does not measure, so that all ranks of a distributed run decide alike. A CPU
    without bfloat16 instructions multiplies it up to a hundred times slower than float32.

    >>> fast_dtype("cpu") in (torch.bfloat16, torch.float32)
    True
    """
    if device == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if device == "cpu":
        names = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
        if any(getattr(torch.cpu, name, bool)() for name in names):
            return torch.bfloat16
    return torch.float32


def _default_dtype(x: Tensor, error: float, coarse: float = _BF16_ERROR) -> torch.dtype:
    if x.dtype == torch.float64:
        return torch.float64
    return fast_dtype(x.device.type) if error >= coarse else torch.float32


@lru_cache(maxsize=1024)
def _ends(
    polynomials: tuple[Polynomial, ...], method: str, shape: tuple[int, int], dtype: torch.dtype
) -> tuple[bool, ...]:
    """After which steps x is multiplied: the cheaper plan, or the one that was asked for."""
    alpha = max(shape) / min(shape)

    def cost(ends: list[bool]) -> float:
        large, small = _iterate.products(polynomials, ends)
        return alpha * large + small

    direct, gram = (_iterate.restarts(polynomials, g, dtype) for g in (False, True))
    if method == "auto":
        return tuple(min(direct, gram, key=cost))
    return tuple(gram if method == "gram" else direct)


def _exact(x: Tensor) -> Tensor:
    """By the singular value decomposition, in float64."""
    wide = x.double()
    largest = wide.abs().amax(dim=(-2, -1), keepdim=True)
    bad = ~largest.isfinite()  # the decomposition would raise for the whole batch
    scaled = (wide / largest.masked_fill(largest == 0, 1)).masked_fill(bad, 0)
    u, s, vt = torch.linalg.svd(scaled, full_matrices=False)
    kept = s > s[..., :1] * max(x.shape[-2:]) * torch.finfo(torch.float64).eps
    return ((u * kept.unsqueeze(-2)) @ vt).masked_fill(bad, torch.nan).to(x.dtype)
