"""Blocks of memory in which tensors are measured: a large tensor in several, small ones together in one."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.monitor.measure.tensors import Watched

BLOCK = 1 << 18
"""Numbers in a block of a CPU's tensor: two of them and their product stay in the cache."""

BLOCK_SMALL = 1 << 17
"""Numbers in a block of small tensors, which are put together in memory of their own."""

BLOCK_GPU = 1 << 22

MIXED = 1 << 15
"""Numbers, zeros included, of a block of small tensors whose rows differ in length: few calls measure a tiny model."""


Range = tuple[int, int, int, int]
"""Number of a tensor, where the numbers begin and end, and how many rows they are."""


@dataclass(frozen=True)
class BlockPart:
    """Numbers `start` to `stop` of a parameter's local part, laid flat, as rows `at` to `at + rows` of a block."""

    tensor: int
    start: int
    stop: int
    at: int
    rows: int

    @property
    def width(self) -> int:
        """Numbers in a row."""
        return (self.stop - self.start) // self.rows


class Block:
    """Rows of equal width, of one large tensor or of many small ones, that are measured together.

    A mixed block has rows of several widths, the shorter ones with zeros at their end; it is measured in float64, and
    keeps its memory.

    Args:
        pieces: the rows.
        all_tensors: the tensors that they are of.
        first: the place of the block's first row among the rows of all blocks.
    """

    def __init__(self, pieces: list[BlockPart], all_tensors: list[Watched], first: int) -> None:
        self.pieces, self.first = pieces, first
        one = all_tensors[pieces[0].tensor].local
        self.owner = all_tensors[pieces[0].tensor].owner
        self.rows = pieces[-1].at + pieces[-1].rows
        self.width = max(p.width for p in pieces)
        self.mixed = any(p.width != self.width for p in pieces)
        self.dtype, self.device = one.dtype, one.device
        self.work = torch.float64 if one.dtype == torch.float64 or self.mixed else torch.float32
        self.where = slice(first, first + self.rows)
        # A piece of a large tensor in a working precision is measured where it lies.
        self.direct = len(pieces) == 1 and one.dtype == self.work and one.is_contiguous()
        self.tensors = np.array([p.tensor for p in pieces])
        self._indices = self.tensors.tolist()
        self.among = frozenset(self._indices)
        shapes = [tuple(all_tensors[p.tensor].local.shape) for p in pieces]
        whole = all(p.stop - p.start == math.prod(s) for p, s in zip(pieces, shapes, strict=True))
        # Vectors alone, or matrices of equal width alone, are put together without a view of each.
        alike = len(pieces) > 1 and whole and len({(len(s), s[1:]) for s in shapes}) == 1 and len(shapes[0]) in (1, 2)
        self._stacked = (-1, *shapes[0][1:]) if alike and not self.mixed else None
        self._shapes = shapes
        self._held: dict[int, tuple[Tensor, list[Tensor]]] = {}

    def empty(self, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for the block's rows."""
        return torch.empty(self.rows, self.width, dtype=dtype or self.work, device=self.device)

    def width_of(self, row: int) -> int:
        """Numbers in one row."""
        return next(p.width for p in self.pieces if row < p.at + p.rows)

    def hold(self, which: int) -> Tensor:
        """Memory of a mixed block, kept with the places of its tensors: 0 the copy, 1 to put together, 2 to work in."""
        if which not in self._held:
            memory = torch.zeros(self.rows, self.width, dtype=self.work, device=self.device)
            places = [
                memory[p.at : p.at + p.rows, : p.width].view(shape)
                for p, shape in zip(self.pieces, self._shapes, strict=True)
            ]
            self._held[which] = memory, places
        return self._held[which][0]

    def _gather_mixed(self, tensors: list[Tensor | None], full: bool, out: Tensor | None) -> Tensor:
        which = next((k for k, (memory, _) in self._held.items() if memory is out), 1)
        memory, places = self.hold(which), self._held[which][1]
        if full:
            torch._foreach_copy_(places, [tensors[i] for i in self._indices])  # type: ignore[misc]
            return memory
        into, taken, absent = [], [], []
        for place, i in zip(places, self._indices, strict=True):
            x = tensors[i]
            if x is None:
                absent.append(place)
            else:
                into.append(place)
                taken.append(x)
        if absent:
            torch._foreach_zero_(absent)
        if taken:
            torch._foreach_copy_(into, taken)
        return memory

    def gather(self, tensors: list[Tensor | None], full: bool, out: Tensor | None = None, copy: bool = False) -> Tensor:
        """The block's rows of some tensors: a view if they are one tensor's, else a copy; None counts as zeros.

        Args:
            tensors: for each watched tensor its weight, gradient or state, the local part.
            full: whether none of the block's is None.
            out: where a copy goes.
            copy: make one in any case.
        """
        if self.direct and not copy:
            piece = self.pieces[0]
            source = tensors[piece.tensor]
            if source is not None and source.dtype == self.work and source.is_contiguous():
                flat = source.view(-1)
                if piece.stop - piece.start != flat.numel():
                    flat = flat[piece.start : piece.stop]
                return flat.view(self.rows, self.width)
        if self.mixed:
            return self._gather_mixed(tensors, full, out)
        out = self.empty() if out is None else out
        if full and self._stacked:
            torch.cat([tensors[i] for i in self._indices], out=out.view(self._stacked))  # type: ignore[arg-type,misc]
            return out
        parts = []
        for piece in self.pieces:
            part = tensors[piece.tensor]
            if part is None:
                part = torch.zeros(piece.stop - piece.start, dtype=self.dtype, device=self.device)
            else:
                part = part.reshape(-1)[piece.start : piece.stop]
            parts.append(part.view(piece.rows, self.width))
        return torch.cat(parts, out=out) if len(parts) > 1 else out.copy_(parts[0])


def blocks_of(tensors: list[Watched], neurons: bool) -> list[Block]:
    """Blocks over the local numbers of all tensors.

    Args:
        tensors: the watched parameters.
        neurons: whether a row is a neuron; else it is a whole tensor, or as much of it as a block holds.
    """
    alike: dict[tuple[Any, ...], list[Range]] = {}
    for i, tensor in enumerate(tensors):
        part = tensor.local
        if not part.numel() or not tensor.counts:
            continue
        width = math.prod(part.shape[1:]) if part.ndim > 1 and neurons else part.numel()
        size = BLOCK if part.device.type == "cpu" else BLOCK_GPU
        large = part.numel() > size // 2
        # A row of a neuron is never cut, so that its sums are one number.
        long = max(1, size // width) * width if neurons else size
        rest = part.numel() % long if large and not neurons else 0
        key = (tensor.owner, part.device, part.dtype, width, part.ndim, i if large else -1)
        for start in range(0, part.numel(), long):
            stop = min(start + long, part.numel())
            tail = (stop - start == rest,) if rest else ()  # of another width than the others
            rows = (stop - start) // width if neurons else 1
            alike.setdefault((*key, *tail), []).append((i, start, stop, rows))
    blocks: list[Block] = []
    first = 0
    for tiny in _mixed(alike):
        pieces, at = [], 0
        for i, start, stop, rows in tiny:
            pieces.append(BlockPart(i, start, stop, at, rows))
            at += rows
        blocks.append(Block(pieces, tensors, first))
        first += at
    for (_, device, *_), ranges in alike.items():
        pieces = []
        at = count = 0
        most = BLOCK_SMALL if device.type == "cpu" else BLOCK_GPU
        for i, start, stop, rows in ranges:
            if pieces and count + stop - start > most:
                blocks.append(Block(pieces, tensors, first))
                first, pieces, at, count = first + at, [], 0, 0
            pieces.append(BlockPart(i, start, stop, at, rows))
            at, count = at + rows, count + stop - start
        blocks.append(Block(pieces, tensors, first))
        first += at
    return blocks


def _mixed(alike: dict[tuple[Any, ...], list[Range]]) -> list[list[Range]]:
    """Take out what is so little that rows of several widths are measured together, as one list for each block."""
    together: dict[tuple[Any, ...], list[tuple[int, int, tuple[Any, ...]]]] = {}
    for key, ranges in alike.items():
        _, device, dtype, width, _, large, *_ = key
        rows = sum(r[3] for r in ranges)
        exact = device.type == "cpu" and dtype in (torch.float32, torch.float64)
        if exact and large < 0 and rows * width <= MIXED:
            together.setdefault(key[:3], []).append((width, rows, key))
    found: list[list[tuple[Any, ...]]] = []
    for some in together.values():
        most, total = MIXED, 1
        for width, rows, key in sorted(some, key=lambda group: -group[0]):
            if (total + rows) * most > MIXED:  # begins a block, whose first rows are its longest
                found.append([])
                most, total = width, 0
            found[-1].append(key)
            total += rows
    return [[r for key in keys for r in alike.pop(key)] for keys in found if len({key[3] for key in keys}) > 1]
