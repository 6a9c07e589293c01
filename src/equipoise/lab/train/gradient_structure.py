"""The singular values of gradients during a trial, and how their singular vectors align with those of the weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from equipoise.monitor.measure.singular_values import spectrum_summary

PARTS = 8
"""The leading ones are the smaller side over this, one at least."""


@torch.no_grad()
def structure(model: nn.Module) -> dict[str, float]:
    """What the gradients that a model has now look like, as numbers for `eq.watch`'s log.

    For each parameter of two dimensions or more that has a gradient, as `grad_entropy/NAME`: `grad_top`, `grad_bottom`,
    `grad_stable_rank`, `grad_entropy` as watch has them of weights; and `align_left`, `align_right` of `alignment`.

    Args:
        model: between backward and step.
    """
    found: dict[str, float] = {}
    for name, p in model.named_parameters():
        if p.ndim < 2 or p.grad is None:
            continue
        g, w = (x.detach().reshape(len(x), -1).double() for x in (p.grad, p))
        if min(g.shape) < 2 or not (torch.isfinite(g).all() and torch.isfinite(w).all()):
            continue
        U, S, Vh = torch.linalg.svd(g, full_matrices=False)
        X, _, Yh = torch.linalg.svd(w, full_matrices=False)
        values = zip(("top", "bottom", "stable_rank", "entropy"), spectrum_summary(S.cpu().numpy()), strict=True)
        found |= {f"grad_{key}/{name}": value for key, value in values}
        found |= {f"align_left/{name}": alignment(U, X), f"align_right/{name}": alignment(Vh.T, Yh.T)}
    return found


def alignment(a: Tensor, b: Tensor) -> float:
    """How much the leading columns of two orthonormal matrices span the same space, over what chance gives.

    ‖AᵀB‖²/k of their first k columns, 1 where they span the same, is k/n on average for random ones of n rows.

    >>> alignment(torch.eye(8), torch.eye(8))
    8.0
    """
    n, columns = a.shape
    k = max(1, columns // PARTS)
    return float((a[:, :k].T @ b[:, :k]).square().sum()) / k / (k / n)
