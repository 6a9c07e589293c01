"""Blocks of memory in which tensors are measured: a large tensor in several, small ones together in one."""

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
        self.width = pieces[0].width
        self.dtype, self.device = one.dtype, one.device
        self.work = torch.float64 if one.dtype == torch.float64 else torch.float32
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
        self._stacked = (-1, *shapes[0][1:]) if alike else None

    def empty(self, dtype: torch.dtype | None = None) -> Tensor:
        """Memory for the block's rows."""
        return torch.empty(self.rows, self.width, dtype=dtype or self.work, device=self.device)

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


def blocks_of(tensors: list[Watched], neurons: bool, whole: bool = False) -> list[Block]:
    """Blocks over the local numbers of all tensors.

    Args:
        tensors: the watched parameters.
        neurons: whether a row is a neuron; else it is a whole tensor, or as much of it as a block holds.
        whole: never cut a tensor, and put all rows of a width and an optimizer into one block.
    """
    alike: dict[tuple[Any, ...], list[Range]] = {}
    for i, tensor in enumerate(tensors):
        part = tensor.local
        if not part.numel() or not tensor.counts:
            continue
        width = math.prod(part.shape[1:]) if part.ndim > 1 and neurons else part.numel()
        size = 2 * part.numel() if whole else BLOCK if part.device.type == "cpu" else BLOCK_GPU
        large = part.numel() > size // 2
        # A row of a neuron is never cut, so that its sums are one number.
        long = max(1, size // width) * width if neurons else size
        rest = part.numel() % long if large and not neurons else 0
        key = (tensor.owner, part.device, part.dtype, width, 0 if whole else part.ndim, i if large else -1)
        for start in range(0, part.numel(), long):
            stop = min(start + long, part.numel())
            tail = (stop - start == rest,) if rest else ()  # of another width than the others
            rows = (stop - start) // width if neurons else 1
            alike.setdefault((*key, *tail), []).append((i, start, stop, rows))
    blocks: list[Block] = []
    first = 0
    for (_, device, *_), ranges in alike.items():
        pieces = []
        at = count = 0
        most = BLOCK_SMALL if device.type == "cpu" else BLOCK_GPU
        for i, start, stop, rows in ranges:
            if pieces and count + stop - start > most and not whole:
                blocks.append(Block(pieces, tensors, first))
                first, pieces, at, count = first + at, [], 0, 0
            pieces.append(BlockPart(i, start, stop, at, rows))
            at, count = at + rows, count + stop - start
        blocks.append(Block(pieces, tensors, first))
        first += at
    return blocks
