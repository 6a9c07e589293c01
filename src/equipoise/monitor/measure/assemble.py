"""From the sums of measured steps to rows of the run: hyperparameters, formulas, quantiles, columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
"""For each tensor whether its optimizer stepped, and whether it had a gradient, and momentum."""


@dataclass(eq=False)
class Measured:
    """What the row of a step is made of.

    Attributes:
        number: of the step.
        groups: the numbers of each group.
        names: of the sums.
        presence: what there was of each tensor.
        ages: for each tensor which step of its averages this was.
        fixed: the global numbers after "skipped", and those of the groups.
        skipped: for each optimizer whether its step changed nothing.
        scales: for each optimizer what gradients were multiplied by.
        sums: gives the sums, by name and row, and those of the sampled rows, once they have arrived.
    """

    number: int
    groups: list[GroupState]
    names: tuple[str, ...]
    presence: Presence
    ages: Array
    fixed: tuple[float, ...]
    skipped: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, dtype=bool))
    scales: Array = field(default_factory=lambda: np.ones(0))
    sums: Callable[[], tuple[NDArray[Any], NDArray[Any]]] | None = None

    def arrived(self, skipped: Array, scales: Array, sums: Callable[[], tuple[NDArray[Any], NDArray[Any]]]) -> None:
        """Take in what comes from the device; arguments as the attributes."""
        self.skipped, self.scales, self.sums = skipped != 0.0, scales, sums


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

    def _hyper(self, step: Measured) -> Hyper:
        """The hyperparameters of each tensor in a step; no decay where there was no gradient, or nothing changed."""
        groups, grads = step.groups, step.presence[1]
        dynamics = [s.dynamics for s in groups]
        if self._walks is None or self._walks.dynamics != dynamics:
            self._walks = Walks(dynamics, [(t.group, tuple(t.p.shape)) for t in self._frame.tensors])
        square = self._walks.square(step.ages)
        decays = grads & ~step.skipped[self._frame.owner]
        key = (groups, decays.tobytes())
        if any(d.move != "decay" for d in dynamics):  # where the move sets a direction's length there is no walk
            turns = np.array([[d.turns(1), d.turns(2)] for d in dynamics])[self._group, self._is_matrix]
            square = np.where(turns, np.nan, square)
        if self._last is not None and self._last[0] == key and self._last[1].square is square:
            return self._last[1]
        lost = np.array([[s.lost(1), s.lost(2)] for s in groups])[self._group, self._is_matrix]
        hyper = Hyper(
            lr=self._each("lr", groups),
            weight_decay=self._each("weight_decay", groups),
            lost=np.where(decays, lost, 0.0),
            coupled=self._each("coupled", groups, bool),
            cautious=self._each("cautious", groups, bool),
            sign=1.0 - 2.0 * self._each("maximize", groups, bool),
            square=square,
            by_gradient=self._walks.by_gradient,
        )
        self._last = key, hyper
        return hyper

    def rows(self, steps: Sequence[Measured], sums: RowSums, angles: Array) -> tuple[Array, dict[str, Array]]:
        """Rows of the layout, and the quantities of each tensor by step, with ‖w‖ before it as "norm_before".

        Args:
            steps: one after the other.
            sums: their sums, by name, step and row.
            angles: those of the sampled rows.
        """
        owner = self._frame.owner
        presence = tuple(np.stack([step.presence[k] for step in steps]) for k in range(3))
        scale = np.stack([step.scales[owner] for step in steps])
        each = [self._hyper(step) for step in steps]
        hyper = each[0] if all(one is each[0] for one in each) else Hyper.together(each)
        head = np.array([[float(step.skipped.any()), *step.fixed] for step in steps])
        with np.errstate(all="ignore"):
            totals = _cleaned(sums.tensors(), presence, scale)
            per = formulas(totals, hyper)
            per["unchanged"] = np.where(self._low, totals["same"] / self._sizes, np.nan)
            angles = np.where(presence[0][:, self._owner], angles, np.nan)
            per["angle"] = self._angles(angles)
            per["norm_before"] = np.sqrt(totals["ww"])
            per["dead"] = np.full(scale.shape, np.nan)
            parts: list[Array] = []
            balance = np.full(len(steps), np.nan)
            if self._matrices:
                spread = tuple(np.repeat(x, self._counts, axis=-1) for x in presence)
                rows = _cleaned(sums.rows(), spread, np.repeat(scale, self._counts, axis=-1))
                rows = formulas(rows, hyper.spread(self._counts), only=BY_SAMPLED)
                balance = variation(rows["rotation"][:, self._in_matrix])
                per["dead"] = self._dead([step.number for step in steps], rows["grad_norm"])
                parts += [self._quantiles(rows[name]).reshape(len(steps), -1) for name in BY_NEURON]
                sampled = self._frame.sampled[self._shown]
                parts += [rows[name][:, sampled] for name in BY_SAMPLED]
                parts.append(angle_from(*angles[..., self._shown]))
            layers = variation(per["rotation"][:, self._ndim > 1])
            there = ~np.isnan(totals["gg"])
            total = np.where(there.any(1), np.sqrt(np.where(there, totals["gg"], 0.0).sum(1)), np.nan)
        lead = np.stack([balance, layers, total], axis=1)
        return np.concatenate([lead, head, *(per[q.name] for q in PER_TENSOR), *parts], axis=1), per

    def _dead(self, numbers: list[int], grad_norm: Array) -> Array:
        """The share of each matrix's neurons without a gradient in the last two thirds of the steps so far.

        A step that is taken in twice, or late, changes nothing: of each neuron the last step with a gradient is kept.
        """
        last = np.array(numbers, dtype=np.float64)[:, None]
        alive = np.where(grad_norm == 0, 0.0, last)
        np.maximum(alive[0], last[0] - 1 if self._alive is None else self._alive, out=alive[0])
        alive = np.maximum.accumulate(alive)
        self._alive = alive[-1]
        share = np.add.reduceat(alive < last / 3, self._firsts, axis=1, dtype=np.float64) / self._counts
        return np.where(self._ndim > 1, share, np.nan)

    def _angles(self, angles: Array) -> Array:
        """Angle to the start of each tensor, over its sampled rows together; NaN where none is sampled."""
        out = np.full((angles.shape[1], len(self._firsts)), np.nan)
        if angles.shape[2]:
            owners, starts = np.unique(self._owner, return_index=True)
            out[:, owners] = angle_from(*np.add.reduceat(angles, starts, axis=2))
        return out


def _cleaned(sums: dict[str, Array], presence: tuple[NDArray[np.bool_], ...], scale: Array) -> dict[str, Array]:
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
