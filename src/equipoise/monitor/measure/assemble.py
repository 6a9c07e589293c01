"""From the sums of a measured step to a row of the run: hyperparameters, formulas, quantiles, columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.measure.frame import Frame
from equipoise.monitor.measure.quantities import (
    BY_NEURON,
    BY_SAMPLED,
    GLOBAL,
    PER_GROUP,
    PER_TENSOR,
    QUANTILES,
    Hyper,
    Quantiles,
    angle_from,
    formulas,
    variation,
)
from equipoise.monitor.measure.random_walk import Walks
from equipoise.monitor.measure.sums import RowSums
from equipoise.monitor.store.layout import Column, Layout, TensorInfo
from equipoise.optim.dynamics_of import GroupState
from equipoise.optim.model.roles import role_by_shape

Array = NDArray[np.float64]
Presence = tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]


class Assembler:
    """Makes rows for one frame.

    Args:
        frame: the tensors.
        groups: how many groups the optimizers have.
        roles: what each tensor is for, by the id of its parameter; others are told by shape and name.
    """

    def __init__(self, frame: Frame, groups: int, roles: dict[int, str]) -> None:
        self._frame, self._roles = frame, roles
        tensors = frame.tensors
        self._group = np.array([t.group for t in tensors])
        self._ndim = np.array([t.p.ndim for t in tensors])
        self._sizes = np.array([t.p.numel() for t in tensors])
        self._low = np.array([t.low for t in tensors])
        self._firsts = np.array([t.first for t in tensors])
        self._counts = np.array([t.rows for t in tensors])
        self._matrices = [i for i, t in enumerate(tensors) if t.p.ndim > 1] if frame.neurons else []
        self._quantiles = Quantiles(
            [tensors[i].first for i in self._matrices], [tensors[i].rows for i in self._matrices]
        )
        self._in_matrix = np.repeat(self._ndim > 1, self._counts)
        shown = {tensors[i].first + n for i in self._matrices for n in frame.samples[i]}
        self._shown = np.array([row in shown for row in frame.sampled], dtype=bool)
        self._owner = np.searchsorted(self._firsts, frame.sampled, side="right") - 1
        self._walks: Walks | None = None
        self._held: dict[str, tuple[list[Any], NDArray[Any]]] = {}
        self._last: tuple[Any, Hyper] | None = None
        self._alive: Array | None = None
        self.layout = self._layout(groups)
        self._is_matrix = (self._ndim > 1).astype(int)

    def _layout(self, groups: int) -> Layout:
        tensors = self._frame.tensors
        columns = [Column(q.name) for q in GLOBAL]
        columns += [Column(f"{q.name}/{i}") for q in PER_GROUP for i in range(groups)]
        columns += [Column(q.name, t.name) for q in PER_TENSOR for t in tensors]
        for name in BY_NEURON:
            columns += [Column(name, tensors[i].name, quantile=q) for i in self._matrices for q in QUANTILES]
        rows = self._frame.sampled[self._shown]
        owners = self._owner[self._shown]
        for name in (*BY_SAMPLED, "angle"):
            for row, i in zip(rows, owners, strict=True):
                columns.append(Column(name, tensors[i].name, neuron=int(row - tensors[i].first)))
        return Layout(tuple(columns))

    def _info(self, i: int, init_norm: float | None = None) -> TensorInfo:
        tensor = self._frame.tensors[i]
        role = self._roles.get(id(tensor.p)) or role_by_shape(tensor.name, tensor.p.ndim)
        neurons = self._frame.samples[i] if i in self._matrices else ()
        info: dict[str, Any] = {"dtype": str(tensor.p.dtype).removeprefix("torch."), "update_scale": tensor.scale}
        if init_norm is not None:
            info["init_norm"] = init_norm
        return TensorInfo(tensor.name, tuple(tensor.p.shape), role, tensor.group, neurons, info)

    def infos(self, norms: dict[str, float]) -> list[TensorInfo]:
        """What each tensor is.

        Args:
            norms: its norm when it was first seen, as far as that is known.
        """
        return [self._info(i, norms.get(t.name)) for i, t in enumerate(self._frame.tensors)]

    def cautious(self, steps: list[GroupState]) -> NDArray[np.bool_]:
        """For each tensor whether its decay is cautious."""
        return self._each("cautious", steps, bool)

    def _each(self, name: str, steps: list[GroupState], dtype: type = float) -> NDArray[Any]:
        """One number of each tensor's group; most are the same at every step."""
        values = [getattr(s, name) for s in steps]
        held = self._held.get(name)
        if held is None or held[0] != values:
            held = self._held[name] = values, np.array(values, dtype=dtype)[self._group]
        return held[1]

    def hyper(self, steps: list[GroupState]) -> Hyper:
        """The hyperparameters of each tensor in this step; no decay where there was no gradient."""
        dynamics = [s.dynamics for s in steps]
        if self._walks is None or self._walks.dynamics != dynamics:
            self._walks = Walks(dynamics, [(t.group, tuple(t.p.shape)) for t in self._frame.tensors])
        key = (steps, self._frame.has_grad.tobytes())
        square = self._walks.square(self._frame.ages)
        if any(d.move != "decay" for d in dynamics):  # where the move sets a direction's length there is no walk
            turns = np.array([[d.turns(1), d.turns(2)] for d in dynamics])[self._group, self._is_matrix]
            square = np.where(turns, np.nan, square)
        if self._last is not None and self._last[0] == key and self._last[1].square is square:
            return self._last[1]
        lost = np.array([[s.lost(1), s.lost(2)] for s in steps])[self._group, self._is_matrix]
        hyper = Hyper(
            lr=self._each("lr", steps),
            weight_decay=self._each("weight_decay", steps),
            lost=np.where(self._frame.has_grad, lost, 0.0),
            coupled=self._each("coupled", steps, bool),
            cautious=self._each("cautious", steps, bool),
            sign=1.0 - 2.0 * self._each("maximize", steps, bool),
            square=square,
            by_gradient=self._walks.by_gradient,
        )
        self._last = key, hyper
        return hyper

    def row(
        self,
        number: int,
        sums: RowSums,
        angles: Array,
        hyper: Hyper,
        presence: Presence,
        scale: Array,
        fixed: list[float],
    ) -> tuple[Array, dict[str, Array]]:
        """One row of the layout, and the quantities of each tensor, with ‖w‖ before the step as "norm_before".

        Args:
            number: of the step.
            sums: the sums.
            angles: those of the sampled rows.
            hyper: hyperparameters of each tensor.
            presence: for each tensor whether its optimizer stepped, and whether it had a gradient, and momentum.
            scale: for each tensor what its gradient was multiplied by.
            fixed: the global numbers after the balances and the gradient's norm, and those of the groups.
        """
        with np.errstate(all="ignore"):
            totals = _cleaned(sums.tensors(), presence, scale)
            per = formulas(totals, hyper)
            per["unchanged"] = np.where(self._low, totals["same"] / self._sizes, np.nan)
            angles = np.where(presence[0][self._owner], angles, np.nan)
            per["angle"] = self._angles(angles)
            per["norm_before"] = np.sqrt(totals["ww"])
            per["dead"] = np.full(len(self._counts), np.nan)
            parts: list[Array] = []
            balance = float("nan")
            if self._matrices:
                stepped, grad, momentum = (np.repeat(x, self._counts) for x in presence)
                rows = _cleaned(sums.rows(), (stepped, grad, momentum), np.repeat(scale, self._counts))
                rows = formulas(rows, hyper.spread(self._counts), only=BY_SAMPLED)
                balance = variation(rows["rotation"][self._in_matrix])
                per["dead"] = self._dead(number, rows["grad_norm"])
                parts += [self._quantiles(rows[name]).reshape(-1) for name in BY_NEURON]
                sampled = self._frame.sampled[self._shown]
                parts += [rows[name][sampled] for name in BY_SAMPLED]
                parts.append(angle_from(*angles[:, self._shown]))
            layers = variation(per["rotation"][self._ndim > 1])
            grads = totals["gg"][~np.isnan(totals["gg"])]
            total = np.sqrt(grads.sum()) if len(grads) else np.nan
        return np.concatenate([[balance, layers, total], fixed, *(per[q.name] for q in PER_TENSOR), *parts]), per

    def _dead(self, number: int, grad_norm: Array) -> Array:
        """The share of each matrix's neurons without a gradient in the last two thirds of the steps so far.

        A step that is taken in twice, or late, changes nothing: of each neuron the last step with a gradient is kept.
        """
        alive = np.full(len(grad_norm), number - 1.0) if self._alive is None else self._alive
        self._alive = alive = np.where(grad_norm == 0, alive, np.maximum(alive, number))
        share = np.add.reduceat(alive < number / 3, self._firsts, dtype=np.float64) / self._counts
        return np.where(self._ndim > 1, share, np.nan)

    def _angles(self, angles: Array) -> Array:
        """Angle to the start of each tensor, over its sampled rows together; NaN where none is sampled."""
        out = np.full(len(self._firsts), np.nan)
        if angles.shape[1]:
            owners, starts = np.unique(self._owner, return_index=True)
            out[owners] = angle_from(*(np.add.reduceat(part, starts) for part in angles))
        return out


def _cleaned(sums: dict[str, Array], presence: Presence, scale: Array) -> dict[str, Array]:
    """Sums with gradients unscaled, NaN where there was nothing, and infinite where gradients are not finite.

    NaN says "not measured", so that a gradient or momentum that is NaN itself is stored as infinite.
    """
    stepped, grad, momentum = presence
    gg = sums["gg"] / scale**2
    sums = sums | {
        "gg": np.where(grad, np.where(np.isfinite(gg), gg, np.inf), np.nan),
        "gw": np.where(grad, sums["gw"] / scale, np.nan),
        "mm": np.where(momentum, np.where(np.isfinite(sums["mm"]), sums["mm"], np.inf), np.nan),
        "gm": np.where(momentum, sums["gm"] / scale, np.nan),
    }
    return sums if stepped.all() else {name: np.where(stepped, x, np.nan) for name, x in sums.items()}
