"""Singular values of weight, update and momentum, and the share of weights that eps dominates; measured rarely."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.store.layout import Quantity

PIECE = 1 << 19
"""Numbers of a matrix that are multiplied at a time."""

_OF = {"weight": "the weight", "update": "the gradient part of the update", "momentum": "the momentum"}
QUANTITIES = (
    *(Quantity(f"{key}_top", "", "tensor", f"largest singular value of {of}") for key, of in _OF.items()),
    *(Quantity(f"{key}_bottom", "", "tensor", f"smallest singular value of {of}") for key, of in _OF.items()),
    *(Quantity(f"{key}_stable_rank", "", "tensor", f"Σσ²/σ₁² of {of}") for key, of in _OF.items()),
    *(Quantity(f"{key}_entropy", "", "tensor", f"entropy of σ²/Σσ² of {of}, 0 to 1") for key, of in _OF.items()),
    Quantity("update_orthogonality", "", "tensor", "root mean square of σ²/mean σ² − 1 of the update: 0 if orthogonal"),
    Quantity("eps_share", "", "tensor", "share of weights with √v̂ < ε, where Adam's eps is in charge"),
)  # fmt: skip
NAMES = [q.name for q in QUANTITIES]


def gram(x: Tensor, *more: tuple[float, Tensor]) -> Tensor:
    """The smaller Gram matrix in float64, on the tensor's device, which nobody waits for.

    It is summed up over pieces, so that no copy of a large matrix is made. A device that does not know float64 (MPS)
    is waited for: the CPU does its work.

    Args:
        x: a matrix, or a tensor whose first dimension are the rows of one.
        more: others of its shape, with factors: the matrix is x plus these.
    """
    terms = [(1.0, x), *more]
    parts = [(factor, t.detach().reshape(t.shape[0], -1)) for factor, t in terms]
    rows, columns = parts[0][1].shape
    wide = rows <= columns
    if x.device.type not in ("cpu", "cuda"):
        parts = [(factor, t.cpu()) for factor, t in parts]
    side, length = (rows, columns) if wide else (columns, rows)
    made = torch.zeros(side, side, dtype=torch.float64, device=parts[0][1].device)
    long = max(1, PIECE // side)
    for start in range(0, length, long):
        cut = slice(start, start + long)
        piece = sum(factor * (t[:, cut] if wide else t[cut].T).double() for factor, t in parts)
        made.addmm_(piece, piece.T)  # type: ignore[union-attr,arg-type]
    return made


def gram_singular_values(squared: Tensor) -> NDArray[np.float64]:
    """Singular values of a matrix, largest first, from its Gram matrix on the CPU: right to 1e-8 of the largest.

    Args:
        squared: the Gram matrix.
    """
    if not torch.isfinite(squared).all():  # the solver raises on NaN
        return np.full(len(squared), np.nan)
    return torch.linalg.eigvalsh(squared).clamp_min_(0.0).sqrt_().flip(0).numpy()


def spectrum_summary(values: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Largest and smallest value, stable rank, and entropy between 0 (rank one) and 1 (all alike)."""
    square = values**2
    total = square.sum()
    if not total > 0 or not np.isfinite(total):
        return float(values[0]), float(values[-1]), math.nan, math.nan
    p = square[square > 0] / total
    entropy = float(-(p * np.log(p)).sum() / math.log(len(values))) if len(values) > 1 else 0.0
    return float(values[0]), float(values[-1]), float(total / square[0]), entropy


def spectrum_facts(key: str, values: NDArray[np.float64]) -> dict[str, float]:
    """What there is to say about the spectrum of a matrix.

    Args:
        key: "weight", "update" or "momentum".
        values: its singular values.
    """
    parts = zip(("top", "bottom", "stable_rank", "entropy"), spectrum_summary(values), strict=True)
    found = {f"{key}_{name}": value for name, value in parts}
    if key == "update" and values.any():
        square = values**2 / np.mean(values**2)
        found["update_orthogonality"] = float(np.sqrt(np.mean((square - 1) ** 2)))
    return found
