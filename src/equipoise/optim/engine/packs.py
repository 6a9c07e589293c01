"""Which parameters are stepped together: batches of one kind, packs of small parameters, and their memory layout."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter

from equipoise.optim.engine.clock import Clock
from equipoise.optim.moves import Piece


@dataclass(frozen=True)
class Batch:
    """Parameters that one kernel steps, by their places in the list of the step; rows None: no kernel does."""

    rows: str | None
    members: list[int]
    names: tuple[str, ...]
    columns: tuple[str, ...]
    packs: list[Pack]
    alone: list[int]

    def holds(self, pieces: list[Piece], clock: Clock) -> bool:
        """Whether the members are still at one step of the tracker, and the packs still hold their states."""
        if self.columns:
            states = [pieces[i].state for i in self.members]
            if any(self.columns[0] not in state for state in states):
                return False
            if not clock.agree(states):
                return False
        return all(pack.holds(pieces) for pack in self.packs)


@dataclass(frozen=True)
class KernelPlan:
    """Who goes to which kernel in a step with these weights."""

    weights: list[Tensor]
    """Kept, so that no other tensor can come to have the id of one of them."""
    kinds: list[tuple[Any, ...]]
    """Types and strides, which somebody may change under the same weight."""
    batches: list[Batch]

    def holds(self, pieces: list[Piece], grads: list[Tensor], clock: Clock) -> bool:
        """Whether this is still right for the states and gradients now."""
        return self.kinds == kinds_of_step(pieces, grads) and all(batch.holds(pieces, clock) for batch in self.batches)


def kinds_of_step(pieces: list[Piece], grads: list[Tensor]) -> list[tuple[Any, ...]]:
    """Types and strides of weights and gradients."""
    return [(piece.w.dtype, piece.w.stride(), g.dtype) for piece, g in zip(pieces, grads, strict=True)]


class Pack:
    """Small parameters side by side in one tensor: their averages for good, weights and gradients for a step."""

    def __init__(
        self,
        members: list[int],
        pieces: list[Piece],
        width: int,
        flat: bool,
        workspace: tuple[Tensor, Tensor],
        names: Sequence[str],
        columns: Sequence[str],
    ):
        self.members, self._names = members, (*names, *columns)
        self._states = [pieces[i].state for i in members]
        like = pieces[members[0]].w
        shapes = [pieces[i].w.shape for i in members]
        self.heights = heights = [shape.numel() // width for shape in shapes]
        shape = (sum(heights),) if flat else (sum(heights), width)
        count = sum(heights) * width
        self.w, self.g = (x[:count].view(shape) for x in workspace)
        self._w, self._g = (
            [x.view(s) for x, s in zip(y.split(heights), shapes, strict=True)] for y in (self.w, self.g)
        )
        same = len({s[1:] for s in shapes}) == 1 and all(shapes)
        self._joined = [x.view(-1, *shapes[0][1:]) for x in (self.w, self.g)] if same else None
        self._views: list[list[Tensor]] = []
        buffers = []
        for name in self._names:
            column = name in columns
            buffer = torch.empty((shape[0], 1) if column else shape, dtype=like.dtype, device=like.device)
            views = [view if column else view.view(s) for view, s in zip(buffer.split(heights), shapes, strict=True)]
            for i, view in zip(members, views, strict=True):
                pieces[i].state[name] = view.copy_(pieces[i].state[name])
            buffers.append(buffer)
            self._views.append(views)
        self.averages, self.columns = buffers[: len(names)], buffers[len(names) :]

    def holds(self, pieces: list[Piece]) -> bool:
        """Whether the states of the members still lie here."""
        states = [pieces[i].state for i in self.members]
        return all(
            all(map(is_, [state.get(name) for state in states], views))
            for name, views in zip(self._names, self._views, strict=True)
        )

    def leave(self) -> None:
        """Copy the states out that still lie here."""
        for name, views in zip(self._names, self._views, strict=True):
            for state, view in zip(self._states, views, strict=True):
                if state.get(name) is view:
                    state[name] = view.clone()

    def fill(self, pieces: list[Piece], grads: list[Tensor]) -> None:
        """Copy weights and gradients in."""
        w, g = [pieces[i].w for i in self.members], [grads[i] for i in self.members]
        if self._joined is None:
            torch._foreach_copy_(self._w, w)
            torch._foreach_copy_(self._g, g)
        else:  # twice as fast
            torch.cat(w, out=self._joined[0])
            torch.cat(g, out=self._joined[1])

    def empty(self, pieces: list[Piece]) -> None:
        """Copy the weights out."""
        torch._foreach_copy_([pieces[i].w for i in self.members], self._w)


def kernel_layout(w: Tensor, rows: str) -> tuple[int, ...]:
    """(R, C) as a kernel sees a parameter, or (N,) for a plain step."""
    if rows in ("flat", "single"):
        return (w.numel(),) if rows == "flat" else (1, w.numel())
    return w.shape[0], w.numel() // max(1, w.shape[0])


def lies(piece: Piece, g: Tensor, rows: str, names: Sequence[str]) -> bool:
    """Whether a parameter and its state lie in memory as a kernel takes them."""
    if hasattr(piece.w, "placements") and not own_rows(piece.w, g, rows):
        return False
    w = local(piece.w)
    if not dense(w) or not matches(piece, names, (), rows):
        return False
    layout = kernel_layout(w, rows)
    return len(layout) == 1 or layout[0] <= 1 or w.stride(0) == layout[1]


def matches(piece: Piece, names: Sequence[str], columns: Sequence[str], rows: str) -> bool:
    """Whether averages lie as the weight does, and columns are of its type: a kernel would not notice."""
    w, state = local(piece.w), piece.state
    for name in names:
        x = local(state[name])
        if x.dtype != w.dtype or x.stride() != w.stride() or x.shape != w.shape:
            return False
    for name in columns:
        x = local(state[name])
        if x.dtype != w.dtype or (rows == "neuron" and x.shape != (w.shape[0], 1)) or not x.is_contiguous():
            return False
    return True


def dense(x: Tensor) -> bool:
    """Whether a tensor fills its memory, rows first or channels last."""
    return x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last))


def own_rows(w: Any, g: Any, rows: str) -> bool:
    """Whether each rank has all of what a kernel needs of a DTensor: its elements, or its rows."""
    if tuple(w.placements) != tuple(g.placements):
        return False
    if rows == "flat":
        return not any(p.is_partial() for p in w.placements)
    ranks = w.device_mesh.size()
    whole = all(p.is_replicate() or (p.is_shard(0) and type(p).__name__ == "Shard") for p in w.placements)
    return rows == "neuron" and whole and w.shape[0] >= 2 * ranks


def laid(x: Tensor, layout: tuple[int, ...]) -> Tensor:
    """A dense tensor's memory as rows or flat, outside of autograd."""
    x = x.detach()
    if x.shape == layout:
        return x
    return x.view(layout) if x.is_contiguous() else x.as_strided(layout, (layout[1], 1) if len(layout) == 2 else (1,))


def local(x: Any) -> Tensor:
    """A DTensor's shard on this process; any other tensor as it is."""
    if type(x) is Tensor or type(x) is Parameter:  # to ask for an attribute that is not there takes longer
        return x
    return x.to_local() if hasattr(x, "placements") else x
