"""Singular values of weight, update and momentum, and the share of weights that eps dominates: measured seldom."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.decompose import GroupStep
from equipoise.monitor.layout import Column, Layout, Quantity
from equipoise.monitor.measure import MOMENTUM, Frame, state_of
from equipoise.monitor.tensors import local

LARGEST = 2048
"""Matrices whose smaller side is longer than this have no spectrum measured."""

_OF = {"weight": "the weight", "update": "the gradient part of the update", "momentum": "the momentum"}
QUANTITIES = (
    *(Quantity(f"{key}_top", "", "tensor", f"largest singular value of {of}") for key, of in _OF.items()),
    *(Quantity(f"{key}_bottom", "", "tensor", f"smallest singular value of {of}") for key, of in _OF.items()),
    *(Quantity(f"{key}_stable_rank", "", "tensor", f"Σσ²/σ₁² of {of}") for key, of in _OF.items()),
    *(Quantity(f"{key}_entropy", "", "tensor", f"entropy of σ²/Σσ² of {of}, 0 to 1") for key, of in _OF.items()),
    Quantity("update_orthogonality", "", "tensor", "root mean square of σ²/mean σ² − 1 of the update: 0 if orthogonal"),
    Quantity("eps_share", "", "tensor", "share of weights with √v̂ < ε, where Adam's eps is in charge"),
)  # fmt: skip
_NAMES = [q.name for q in QUANTITIES]


def singular_values(x: Tensor) -> NDArray[np.float64]:
    """Singular values, largest first, from the Gram matrix in float64: right to 1e-8 of the largest.

    Args:
        x: a matrix, or a tensor whose first dimension are the rows of one.
    """
    x = x.detach().reshape(x.shape[0], -1)
    x = x.double() if x.device.type in ("cpu", "cuda") else x.cpu().double()
    gram = x @ x.T if x.shape[0] <= x.shape[1] else x.T @ x
    if not torch.isfinite(gram).all():  # the solver raises on NaN
        return np.full(len(gram), np.nan)
    values = torch.linalg.eigvalsh(gram).clamp_min_(0.0).sqrt_()
    return values.flip(0).cpu().numpy()


def describe(values: NDArray[np.float64]) -> tuple[float, float, float, float]:
    """Largest and smallest value, stable rank, and entropy between 0 (rank one) and 1 (all alike)."""
    square = values**2
    total = square.sum()
    if not total > 0 or not np.isfinite(total):
        return float(values[0]), float(values[-1]), math.nan, math.nan
    p = square[square > 0] / total
    entropy = float(-(p * np.log(p)).sum() / math.log(len(values))) if len(values) > 1 else 0.0
    return float(values[0]), float(values[-1]), float(total / square[0]), entropy


class Spectra:
    """Takes the tensors of a frame in turn, as many at a time as it is given seconds for.

    Args:
        frame: the tensors.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self._turn = 0
        self._rate = 3e-9
        """Seconds for one multiplication of the Gram matrices; learned."""
        columns = [Column(q, t.name) for t in frame.tensors for q in _NAMES]
        self.layout = Layout(tuple(columns), kind="slow")

    @property
    def count(self) -> int:
        """How many tensors there are."""
        return len(self._frame.tensors)

    def cost(self, index: int) -> float:
        """Seconds that a tensor is expected to take."""
        shape = self._frame.tensors[index].p.shape
        size = math.prod(shape)
        return self._rate * size * (min(shape[0], size // shape[0]) if self._fits(index) else 1) + 1e-4

    def next(self, credit: float) -> list[int]:
        """The tensors whose turn it is, as far as the seconds go."""
        chosen: list[int] = []
        while len(chosen) < self.count:
            cost = self.cost(self._turn)
            if cost > credit:
                break
            credit -= cost
            chosen.append(self._turn)
            self._turn = (self._turn + 1) % self.count
        return chosen

    def due(self, every: int | None, measured: int, credit: float) -> list[int]:
        """The tensors that are measured now.

        Args:
            every: all of them at each k-th measured step, 0 never, None as far as the seconds go.
            measured: how many steps have been measured, with this one.
            credit: seconds that they may take.
        """
        if every is None:
            return self.next(credit)
        return list(range(self.count)) if every and (measured - 1) % every == 0 else []

    def learn(self, indices: list[int], seconds: float) -> None:
        """Take in how long some tensors took."""
        expected = sum(self.cost(i) for i in indices)
        if expected > 0:
            self._rate *= min(4.0, max(0.25, seconds / expected))

    def _fits(self, index: int) -> bool:
        p = self._frame.tensors[index].p
        return p.ndim > 1 and min(p.shape[0], p.numel() // p.shape[0]) <= LARGEST

    def row(self, optimizer: Any, indices: list[int], steps: list[GroupStep]) -> NDArray[np.float64]:
        """One row of the layout; NaN for the tensors whose turn it is not.

        Args:
            optimizer: has just stepped.
            indices: the tensors.
            steps: the numbers of each group in this step.
        """
        row = np.full((self.count, len(_NAMES)), np.nan)
        for i in indices:
            tensor = self._frame.tensors[i]
            step = steps[tensor.group]
            state = state_of(optimizer, tensor.p)
            found: dict[str, float] = {"eps_share": _eps_share(state, step.eps, optimizer, tensor.group)}
            if self._fits(i):
                w, change = tensor.local, self._frame.change_of(i)
                rows = w.reshape(change.shape).to(change.dtype if change.dtype == torch.float64 else torch.float32)
                # U = Δ + d·w with w before the step; cautious decay is left in.
                lost = 0.0 if step.cautious else step.lost_of(tensor.p.ndim)
                update = change + lost * (rows - change)
                momentum = next((state[k] for k in MOMENTUM if state.get(k) is not None), None)
                for key, matrix in (("weight", rows), ("update", update), ("momentum", momentum)):
                    if matrix is None:
                        continue
                    values = singular_values(local(matrix))
                    parts = zip(("top", "bottom", "stable_rank", "entropy"), describe(values), strict=True)
                    found |= {f"{key}_{name}": value for name, value in parts}
                    if key == "update" and values.any():
                        square = values**2 / np.mean(values**2)
                        found["update_orthogonality"] = float(np.sqrt(np.mean((square - 1) ** 2)))
            for name, value in found.items():
                row[i, _NAMES.index(name)] = value
        return row.reshape(-1)


def _eps_share(state: dict[str, Any], eps: float, optimizer: Any, group: int) -> float:
    """Share of weights with √v̂ < ε; NaN without second moments."""
    v, t = state.get("exp_avg_sq"), state.get("step")
    betas = optimizer.param_groups[group].get("betas")
    if not isinstance(v, Tensor) or t is None or betas is None or not v.numel():
        return math.nan
    correction = 1.0 - float(betas[1]) ** float(t)
    return float((local(v).to(torch.float64) < eps * eps * correction).double().mean())
