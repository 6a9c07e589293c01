"""Distance between Gaussians."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def gaussian_kl(mean_p: ArrayLike, cov_p: ArrayLike, mean_q: ArrayLike, cov_q: ArrayLike) -> float:
    """KL(p ‖ q) of two Gaussians, in nats.

        ½ [ tr(Σ_q⁻¹Σ_p) + (μ_q−μ_p)ᵀΣ_q⁻¹(μ_q−μ_p) − k + ln(det Σ_q / det Σ_p) ]

    Through Cholesky factors, so that no determinant over- or underflows.

    Reference: [notepad] end of ch. 5.

    >>> round(gaussian_kl([0.0], [[1.0]], [1.0], [[1.0]]), 12)
    0.5
    """
    mp, mq = (np.atleast_1d(np.asarray(m, dtype=np.float64)) for m in (mean_p, mean_q))
    lp, lq = _cholesky("cov_p", cov_p, len(mp)), _cholesky("cov_q", cov_q, len(mp))
    if mq.shape != mp.shape:
        raise ValueError(f"mean_q has shape {mq.shape}: must be {mp.shape}, like mean_p")
    spread = np.linalg.solve(lq, lp)
    shift = np.linalg.solve(lq, mq - mp)
    log_ratio = 2 * (np.log(np.diag(lq)).sum() - np.log(np.diag(lp)).sum())
    return float(0.5 * ((spread**2).sum() + shift @ shift - len(mp) + log_ratio))


def _cholesky(name: str, cov: ArrayLike, k: int) -> np.ndarray:
    matrix = np.atleast_2d(np.asarray(cov, dtype=np.float64))
    if matrix.shape != (k, k):
        raise ValueError(f"{name} has shape {matrix.shape}: must be ({k}, {k}), because the means have {k} entries")
    if not np.allclose(matrix, matrix.T, rtol=1e-10, atol=0):
        raise ValueError(f"{name}: must be symmetric")
    try:
        return np.linalg.cholesky(matrix)
    except np.linalg.LinAlgError:
        raise ValueError(f"{name}: must be positive definite") from None
