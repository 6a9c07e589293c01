"""Which parameters of a step go to a compiled kernel, how: large ones by themselves, small ones packed together."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.optim.compiled import SWITCHES, Kind, kernel, lanes, ones
from equipoise.optim.moves import Constrain, Move, Piece, RowMove, step_numbers, turns
from equipoise.optim.rules import Rule

SMALL = 2**16
"""Parameters of fewer weights are packed: a call would cost more than their step."""
PACK = 2**18
"""Weights in a pack at most: what the copies of a step take, 1 MB each of weights and gradients."""
AUTO_WEIGHTS, AUTO_STEP = 2**22, 10
"""`compile=None` compiles groups of so many weights, from this step on: where the seconds that it takes come back."""


def wanted(group: dict[str, Any], t: int) -> bool:
    """Whether a group's step shall be compiled: as it says, or if it is large and not on its first steps."""
    asked = group.get("compile")
    if asked is None:
        return t >= AUTO_STEP and sum(p.numel() for p in group["params"]) >= AUTO_WEIGHTS
    return bool(asked)


@dataclass(frozen=True)
class Item:
    """A parameter in a compiled step: tensors of this rank, as rows or flat."""

    piece: Piece
    g: Tensor
    layout: tuple[int, ...]
    """(R, C), or (N,) for a plain step."""


class Fast:
    """The compiled side of one optimizer: its kernels' kinds, its packs, and its numbers as tensors."""

    def __init__(self, rule: Rule, move: Move):
        self.rule, self.move = rule, move
        self._packs: dict[tuple[int, ...], Pack] = {}
        self._numbers: dict[str, tuple[float, Tensor]] = {}

    def step(
        self, pieces: list[Piece], grads: list[Tensor], t: int, group: dict[str, Any]
    ) -> tuple[list[Piece], list[Tensor]]:
        """Take the step of those parameters that can be compiled; return the others and their gradients."""
        if t == 1 and self.rule.starts(group):
            return pieces, grads
        left: list[int] = []
        sorts: dict[tuple[Any, ...], list[Item]] = {}
        for i, (piece, g) in enumerate(zip(pieces, grads, strict=True)):
            rows = self._rows(piece.w, group)
            item = None if rows is None else _item(piece, g, rows, self.rule.state)
            if item is None or rows is None:
                left.append(i)
                continue
            steps = 0
            if rows != "flat" and isinstance(self.move, RowMove):
                self.move.start(piece, group)
                steps = self.move.steps(piece.state)
            key = (rows, steps, item.piece.w.dtype, item.g.dtype, item.g.device)
            sorts.setdefault(key, []).append(item)
        for (rows, steps, *_), items in sorts.items():
            if not self._run(items, rows, t, steps, group):
                index = {id(item.piece) for item in items}
                left += [i for i, piece in enumerate(pieces) if id(piece) in index]
        left.sort()
        return [pieces[i] for i in left], [grads[i] for i in left]

    def _rows(self, w: Tensor, group: dict[str, Any]) -> str | None:
        """What a row of a parameter is to a kernel; None where there is no kernel for it."""
        parts = group.get("granularity")
        if self.rule.by_rows:
            if isinstance(self.move, RowMove) or w.ndim == 0:
                return None
            return "single" if parts == "tensor" or w.shape[0] == 1 else "neuron" if parts == "neuron" else None
        if not isinstance(self.move, RowMove) or not turns(w, group):
            return "flat"
        if group.get("reference") == "paper" or group.get("speeds") is not None or w.ndim < 2:
            return None
        if w.shape[0] < 2 or w.numel() < 2 * w.shape[0]:
            return None
        if parts in ("neuron", "tensor"):
            return parts
        return "part" if 1 < int(parts) <= w.shape[0] and w.shape[0] % int(parts) == 0 else None

    def _run(self, items: list[Item], rows: str, t: int, steps: int, group: dict[str, Any]) -> bool:
        """Run the kernel of that kind on all items, the small ones packed; False if there is none."""
        move = self.move
        mine: dict[str, float] | None = step_numbers(group)
        columns: tuple[str, ...] = ()
        if isinstance(move, RowMove) and rows != "flat":
            mine, columns = move.numbers(self.rule, t, steps, group), move.columns
            if mine is None:  # the weights stay where they are, to the bit
                return False
        elif isinstance(move, Constrain):
            mine = {"lr": float(group["lr"]), "lost": 0.0}
        numbers = {f"rule.{k}": v for k, v in self.rule.numbers(t, group).items()}
        numbers |= {f"move.{k}": v for k, v in mine.items()} | {"l2": float(group["l2"])}
        first = items[0]
        kind = Kind(
            rule=self.rule,
            move=move,
            switches=tuple((name, group[name]) for name in SWITCHES if name in group),
            l2=bool(group["l2"]),
            rows=rows,
            numbers=tuple(numbers),
            dtypes=(first.piece.w.dtype, first.g.dtype),
            device=first.g.device.type,
            same=tuple((type(x), tuple(sorted(vars(x).items()))) for x in (self.rule, move)),
        )
        run = kernel(kind, len(columns), loud=bool(group["compile"]))
        if run is None:
            return False
        values = [self._number(name, value) for name, value in numbers.items()]
        small = [i for i in items if len(items) > 1 and i.g.numel() < SMALL and rows in ("flat", "neuron")]
        packed = {id(i) for i in small}
        for pack in self._packed(small, columns):
            pack.fill()
            self._call(run, pack.w, pack.g, pack.averages, pack.columns, values)
            pack.empty()
        for item in items:
            if id(item) not in packed:
                state = item.piece.state
                averages = [_laid(_local(state[name]), item.layout) for name in self.rule.state]
                kept = [_local(state[name]) for name in columns]
                self._call(run, _laid(_local(item.piece.w), item.layout), item.g, averages, kept, values)
        if columns:
            torch._foreach_add_([item.piece.state["row_step"] for item in items], 1)
        if isinstance(move, Constrain):
            for item in items:
                move.hold(item.piece, t, group)
        return True

    @staticmethod
    def _call(run: Any, w: Tensor, g: Tensor, averages: list[Tensor], kept: list[Tensor], values: list[Tensor]) -> None:
        if w.ndim == 1:
            run(w, g, averages, values)
            return
        new = run(w, g, averages, kept, ones(w.shape[0], w.dtype, w.device), lanes(w.dtype, w.device), values)
        for old, column in zip(kept, new, strict=True):
            old.copy_(column)

    def _number(self, name: str, value: float) -> Tensor:
        """A number as a tensor, one for each name: a kernel would notice two names with the same tensor."""
        known = self._numbers.get(name)
        if known is None or known[0] != value:
            known = self._numbers[name] = (value, torch.tensor(value, dtype=torch.float64))
        return known[1]

    def _packed(self, items: list[Item], columns: tuple[str, ...]) -> list[Pack]:
        """The small parameters in packs of about one size, those of a pack with rows of one length."""
        widths: dict[tuple[int, ...], list[Item]] = {}
        for item in items:
            widths.setdefault(item.layout[1:], []).append(item)
        packs: list[Pack] = []
        for same in widths.values():
            chunk: list[Item] = []
            for item in same:
                if chunk and sum(i.g.numel() for i in chunk) + item.g.numel() > PACK:
                    packs.append(self._pack(chunk, columns))
                    chunk = []
                chunk.append(item)
            packs.append(self._pack(chunk, columns))
        return packs

    def _pack(self, items: list[Item], columns: tuple[str, ...]) -> Pack:
        key = tuple(id(item.piece.state) for item in items)
        pack = self._packs.get(key)
        if pack is None or not pack.holds(items):
            if len(self._packs) > 1000:
                self._packs.clear()
            pack = self._packs[key] = Pack(items, self.rule.state, columns)
        pack.items = items
        return pack


class Pack:
    """Small parameters side by side in one tensor, their averages for good, weights and gradients for a step."""

    def __init__(self, items: list[Item], names: Sequence[str], columns: Sequence[str]):
        self.items, self._names = items, (*names, *columns)
        like = _local(items[0].piece.w)
        wide = items[0].layout[1:]
        heights = [item.layout[0] for item in items]
        shape = (sum(heights), *wide)
        self.w = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.g = torch.empty(shape, dtype=items[0].g.dtype, device=like.device)
        self._w, self._g = list(self.w.split(heights)), list(self.g.split(heights))
        self._views: list[list[Tensor]] = []
        buffers = []
        for name in self._names:
            column = name in columns
            buffer = torch.empty((shape[0], 1) if column else shape, dtype=like.dtype, device=like.device)
            views = list(buffer.split(heights))
            for i, (item, view) in enumerate(zip(items, views, strict=True)):
                old = item.piece.state[name]
                view.copy_(old if column else _laid(old, item.layout))
                views[i] = view if column else view.view(old.shape)
                item.piece.state[name] = views[i]
            buffers.append(buffer)
            self._views.append(views)
        self.averages, self.columns = buffers[: len(names)], buffers[len(names) :]

    def holds(self, items: list[Item]) -> bool:
        """Whether the states of the items still lie here."""
        return all(
            item.piece.state[name] is view
            for name, views in zip(self._names, self._views, strict=True)
            for item, view in zip(items, views, strict=True)
        )

    def fill(self) -> None:
        """Copy weights and gradients in."""
        torch._foreach_copy_(self._w, [_laid(i.piece.w, i.layout) for i in self.items])
        torch._foreach_copy_(self._g, [i.g for i in self.items])

    def empty(self) -> None:
        """Copy the weights out."""
        torch._foreach_copy_([_laid(i.piece.w, i.layout) for i in self.items], self._w)


def _item(piece: Piece, g: Tensor, rows: str, names: Sequence[str]) -> Item | None:
    """A parameter as a kernel takes it, or None where its memory does not lie as one."""
    w = piece.w
    if hasattr(w, "placements") and not _own_rows(w, g, rows):
        return None
    here, g = _local(w), _local(g)
    if here.numel() == 0:
        return None
    layout = {"flat": (here.numel(),), "single": (1, here.numel())}.get(rows)
    if layout is None:
        layout = (here.shape[0], here.numel() // here.shape[0])
    tensors = [_local(piece.state[name]) for name in names]
    if not _dense(here) or any(x.stride() != here.stride() for x in tensors):
        return None
    if len(layout) == 2 and layout[0] > 1 and here.stride(0) != layout[1]:
        return None
    if g.stride() != here.stride():
        g = torch.empty_like(here, dtype=g.dtype).copy_(g)
    return Item(piece, _laid(g, layout), layout)


def _dense(x: Tensor) -> bool:
    return x.is_contiguous() or (x.ndim == 4 and x.is_contiguous(memory_format=torch.channels_last))


def _own_rows(w: Any, g: Any, rows: str) -> bool:
    """Whether each rank has all of what a kernel needs of a DTensor: its elements, or its rows."""
    if tuple(w.placements) != tuple(g.placements):
        return False
    if rows == "flat":
        return not any(p.is_partial() for p in w.placements)
    ranks = w.device_mesh.size()
    whole = all(p.is_replicate() or (p.is_shard(0) and type(p).__name__ == "Shard") for p in w.placements)
    return rows == "neuron" and whole and w.shape[0] >= 2 * ranks


def _laid(x: Tensor, layout: tuple[int, ...]) -> Tensor:
    """A dense tensor's memory as rows or flat, outside of autograd."""
    x = x.detach()
    if x.shape == layout:
        return x
    return x.view(layout) if x.is_contiguous() else x.as_strided(layout, (layout[1], 1) if len(layout) == 2 else (1,))


def _local(x: Any) -> Tensor:
    return x.to_local() if hasattr(x, "placements") else x
