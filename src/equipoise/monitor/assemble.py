"""From the sums of a measured step to a row of the run: hyperparameters, formulas, quantiles, columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor.decompose import GroupStep, Walk, walks
from equipoise.monitor.layout import Column, Layout, TensorInfo
from equipoise.monitor.measure import Frame
from equipoise.monitor.quantities import (
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

Array = NDArray[np.float64]


class Assembler:
    """Makes rows for one frame.

    Args:
        frame: the tensors.
        groups: how many groups the optimizer has.
        neurons: whether to give quantiles and sampled neurons.
    """

    def __init__(self, frame: Frame, groups: int, neurons: bool) -> None:
        self._frame = frame
        tensors = frame.tensors
        self._group = np.array([t.group for t in tensors])
        self._ndim = np.array([t.p.ndim for t in tensors])
        self._sizes = np.array([t.p.numel() for t in tensors])
        self._low = np.array([t.low for t in tensors])
        self._firsts = np.array([t.first for t in tensors])
        self._counts = np.array([t.rows for t in tensors])
        self._matrices = [i for i, t in enumerate(tensors) if t.p.ndim > 1] if neurons else []
        self._quantiles = Quantiles(
            [tensors[i].first for i in self._matrices], [tensors[i].rows for i in self._matrices]
        )
        self._in_matrix = np.repeat(self._ndim > 1, self._counts)
        shown = {tensors[i].first + n for i in self._matrices for n in frame.samples[i]}
        self._shown = np.array([row in shown for row in frame.sampled], dtype=bool)
        self._owner = np.searchsorted(self._firsts, frame.sampled, side="right") - 1
        self._walks: tuple[Any, list[Walk]] = (None, [])
        self.layout = self._layout(groups)
        self.infos = [self._info(i) for i in range(len(tensors))]

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

    def _info(self, i: int) -> TensorInfo:
        tensor = self._frame.tensors[i]
        role = "matrix" if tensor.p.ndim > 1 else "bias" if tensor.name.endswith("bias") else "gain"
        neurons = self._frame.samples[i] if i in self._matrices else ()
        dtype = str(tensor.p.dtype).removeprefix("torch.")
        return TensorInfo(tensor.name, tuple(tensor.p.shape), role, tensor.group, neurons, {"dtype": dtype})

    def cautious(self, steps: list[GroupStep]) -> NDArray[np.bool_]:
        """For each tensor whether its decay is cautious."""
        return np.array([s.cautious for s in steps])[self._group]

    def _expected(self, optimizer: Any) -> list[Walk]:
        """Random walks' directions, looked up again when averaging factors change."""
        key = [
            [(k, g[k]) for k in ("betas", "momentum", "nesterov", "alpha") if k in g] for g in optimizer.param_groups
        ]
        if self._walks[0] != key:
            shapes = [(t.group, tuple(t.p.shape), t.scale) for t in self._frame.tensors]
            self._walks = key, walks(optimizer, shapes)
        return self._walks[1]

    def hyper(self, optimizer: Any, steps: list[GroupStep]) -> Hyper:
        """The hyperparameters of each tensor in this step; no decay where there was no gradient."""
        expected = self._expected(optimizer)
        lost = np.array([[s.lost_of(1), s.lost_of(2)] for s in steps])[self._group, (self._ndim > 1).astype(int)]

        def each(name: str, dtype: type = float) -> NDArray[Any]:
            return np.array([getattr(s, name) for s in steps], dtype=dtype)[self._group]

        return Hyper(
            lr=each("lr"),
            weight_decay=each("weight_decay"),
            lost=np.where(self._frame.has_grad, lost, 0.0),
            coupled=each("coupled", bool),
            cautious=each("cautious", bool),
            sign=np.where(each("maximize", bool), -1.0, 1.0),
            square=np.array([w.square for w in expected]),
            by_gradient=np.array([w.by_gradient for w in expected]),
            sgd_like=np.array([w.sgd_like for w in expected]),
        )

    def row(
        self,
        flat: NDArray[Any],
        hyper: Hyper,
        has: tuple[NDArray[np.bool_], NDArray[np.bool_]],
        scale: float,
        fixed: list[float],
    ) -> tuple[Array, dict[str, Array]]:
        """One row of the layout, and the quantities of each tensor.

        Args:
            flat: the sums, as `Frame.flat` made them.
            hyper: hyperparameters of each tensor.
            has: for each tensor whether it had a gradient, and momentum.
            scale: what gradients were multiplied by.
            fixed: the global numbers after the two balances, and those of the groups.
        """
        with np.errstate(all="ignore"):
            sums, angles = self._frame.unpack(flat)
            totals = _cleaned(sums.tensors(), *has, scale)
            per = formulas(totals, hyper)
            per["unchanged"] = np.where(self._low, totals["same"] / self._sizes, np.nan)
            per["angle"] = self._angles(angles)
            parts = [np.concatenate([per[q.name] for q in PER_TENSOR])]
            balance = float("nan")
            if self._matrices:
                grad, momentum = (np.repeat(part, self._counts) for part in has)
                rows = _cleaned(sums.rows(), grad, momentum, scale)
                rows = formulas(rows, hyper.spread(self._counts), only=BY_SAMPLED)
                balance = variation(rows["rotation"][self._in_matrix])
                parts += [self._quantiles(rows[name]).reshape(-1) for name in BY_NEURON]
                sampled = self._frame.sampled[self._shown]
                parts += [rows[name][sampled] for name in BY_SAMPLED]
                parts.append(angle_from(*angles[:, self._shown]))
            layers = variation(per["rotation"][self._ndim > 1])
        return np.concatenate([[balance, layers], fixed, *parts]), per

    def _angles(self, angles: Array) -> Array:
        """Angle to the start of each tensor, over its sampled rows together; NaN where none is sampled."""
        out = np.full(len(self._firsts), np.nan)
        if angles.shape[1]:
            owners, starts = np.unique(self._owner, return_index=True)
            out[owners] = angle_from(*(np.add.reduceat(part, starts) for part in angles))
        return out


def _cleaned(
    sums: dict[str, Array], grad: NDArray[np.bool_], momentum: NDArray[np.bool_], scale: float
) -> dict[str, Array]:
    """Sums with gradients unscaled, NaN where there was none, and infinite where they are not finite.

    NaN says "not measured", so that a gradient that is NaN itself is stored as infinite.
    """
    gg = sums["gg"] / scale**2
    return sums | {
        "gg": np.where(grad, np.where(np.isfinite(gg), gg, np.inf), np.nan),
        "gw": np.where(grad, sums["gw"] / scale, np.nan),
        "mm": np.where(momentum, sums["mm"], np.nan),
        "gm": np.where(momentum, sums["gm"] / scale, np.nan),
    }
