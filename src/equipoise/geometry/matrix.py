"""Operator norms of matrices with closed forms: how much W x can be for an x of size 1.

An m × n matrix maps inputs of size n to outputs of size m. ‖W‖_{p→q} = max ‖Wx‖_q over ‖x‖_p = 1.

| norm | closed form | dual norm of G | dualize(G) |
|---|---|---|---|
| ℓp→ℓ∞ | largest ℓp* of a row | Σ over rows of ℓp | dualize every row in ℓp* |
| ℓ1→ℓq | largest ℓq of a column | Σ over columns of ℓq* | dualize every column in ℓq |
| ℓ2→ℓ2 | largest singular value | Σ of singular values | UVᵀ |

with p* the conjugate of p. Measuring x by its RMS, not ℓ2, multiplies by √n at the input and 1/√m at the output.

Reference: [muon-appendix] C.3; [bernstein2024] table 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise import _check as check
from equipoise.geometry.norms import (
    Norm,
    conjugate,
    dualize_lp,
    exponent,
    project_lp,
    scaled_norm,
    wide_dtype,
    widened,
)
from equipoise.geometry.polar_factor import polar


@dataclass(frozen=True)
class Operator(Norm):
    """The norm of W as a map from ℓp to ℓq, on the last two dimensions (m out, n in).

    Args:
        p: Norm of the input: a number in [1, ∞] or `"rms"`.
        q: Norm of the output. There are closed forms for p = 1, for q = ∞, and for p and q both 2 or `"rms"`;
            `induced_norm` estimates the others.
        steps: For ℓ2→ℓ2 and its RMS kin: dualize by this many steps of `polar`, as Muon does, and not exactly. Then
            ‖dualize(G)‖ is near 1, not 1.

    >>> w = torch.tensor([[3.0, -4.0], [1.0, 1.0]])
    >>> Operator(1, math.inf).norm(w).item(), Operator(2, math.inf).norm(w).item()
    (4.0, 5.0)
    >>> Operator(math.inf, math.inf).dualize(w).tolist()
    [[0.0, -1.0], [1.0, 0.0]]
    """

    p: float | str = 2.0
    q: float | str = 2.0
    steps: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("p", self.p), ("q", self.q)):
            if isinstance(value, str):
                check.choice(name, value, ("rms",))
            else:
                exponent(name, value)
        if self._p != 1 and self._q != math.inf and not (self._p == self._q == 2):
            raise ValueError(
                f"p = {self.p!r}, q = {self.q!r}: a closed form needs p = 1, q = ∞, or both 2 or 'rms'; "
                "induced_norm(x, p, q) estimates the others"
            )
        if self.steps is not None:
            check.whole("steps", self.steps, low=1)
            if not (self._p == self._q == 2):
                raise ValueError(f"steps = {self.steps!r}: only ℓ2→ℓ2 and its RMS kin are dualized in steps")

    def norm(self, x: Tensor) -> Tensor:
        """The closed form of the table above."""
        wide = widened("x", x, 2)
        return (self._base_norm(wide) * self._scale(x)).to(x.dtype)

    def dual(self, g: Tensor) -> Tensor:
        """Sum over rows, columns or singular values."""
        wide = widened("g", g, 2)
        if self._q == math.inf:
            value = scaled_norm(wide, self._p).sum(-1)
        elif self._p == 1:
            value = scaled_norm(wide.mT, conjugate(self._q)).sum(-1)
        else:
            value = singular_values(wide).sum(-1)
        return (value / self._scale(g)).to(g.dtype)

    def dualize(self, g: Tensor) -> Tensor:
        """Every row, column or singular value at size 1."""
        wide = widened("g", g, 2)
        if self._q == math.inf:
            value = dualize_lp(wide, conjugate(self._p))
        elif self._p == 1:
            value = dualize_lp(wide.mT, self._q).mT
        elif self.steps is None:
            value = polar(wide, method="svd")
        else:
            return self.iterated(g, steps=self.steps)
        return (value / self._scale(g)).to(g.dtype)

    @property
    def spectral(self) -> bool:
        """Whether this is ℓ2→ℓ2 or one of its RMS kin, whose dualize is UVᵀ up to a factor."""
        return self._p == self._q == 2

    def iterated(self, g: Tensor, **options: Any) -> Tensor:
        """Dualize by `polar` with these arguments. Then ‖g‖† is ⟨g, that⟩, as near as that is to UVᵀ.

        Args:
            g: The gradient.
            **options: Of `polar`, such as `accuracy` or `dtype`.

        >>> g = torch.diag(torch.tensor([3.0, -1.0]))
        >>> [[round(x, 2) for x in row] for row in Operator().iterated(g, accuracy=1e-3).tolist()]
        [[1.0, 0.0], [0.0, -1.0]]
        """
        if not self.spectral:
            raise ValueError(f"p = {self.p!r}, q = {self.q!r}: only ℓ2→ℓ2 and its RMS kin are dualized by iteration")
        return (polar(widened("g", g, 2), **options) / self._scale(g)).to(g.dtype)

    def project(self, x: Tensor) -> Tensor:
        """Every row, column or singular value into its own ball."""
        wide = widened("x", x, 2) * self._scale(x)
        if self._q == math.inf:
            value = project_lp(wide, conjugate(self._p), self)
        elif self._p == 1:
            value = project_lp(wide.mT, self._q, self).mT
        else:
            u, s, vt = torch.linalg.svd(wide, full_matrices=False)
            value = (u * s.clamp(max=1).unsqueeze(-2)) @ vt
        return (value / self._scale(x)).to(x.dtype)

    def _base_norm(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x.sum((-2, -1))
        if self._q == math.inf:
            return scaled_norm(x, conjugate(self._p)).amax(-1)
        if self._p == 1:
            return scaled_norm(x.mT, self._q).amax(-1)
        return singular_values(x)[..., 0]

    @property
    def _p(self) -> float:
        return 2.0 if isinstance(self.p, str) else float(self.p)

    @property
    def _q(self) -> float:
        return 2.0 if isinstance(self.q, str) else float(self.q)

    def _scale(self, x: Tensor) -> float:
        m, n = x.shape[-2:]
        return (math.sqrt(n) if self.p == "rms" else 1.0) / (math.sqrt(m) if self.q == "rms" else 1.0)


def singular_values(x: Tensor) -> Tensor:
    """Singular values, largest first; NaN, not an error, for a matrix that is not finite.

    >>> singular_values(torch.diag(torch.tensor([1.0, -3.0]))).tolist()
    [3.0, 1.0]
    """
    x = x.to(wide_dtype(x))
    bad = ~x.isfinite().all(dim=-1).all(dim=-1)
    top = x.detach().abs().amax(dim=(-2, -1), keepdim=True)
    top = top.masked_fill((top == 0) | bad[..., None, None], 1)
    values = torch.linalg.svdvals((x / top).masked_fill(bad[..., None, None], 0))
    return (values * top.squeeze(-1)).masked_fill(bad.unsqueeze(-1), torch.nan)
