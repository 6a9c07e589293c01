"""Eager steps of large tensors on the CPU, a chunk at a time.

A step makes a handful of temporaries. As large as the tensor, they are new pages of memory at every step, which the
system has to give, and take several times as long as the arithmetic. A chunk's stay in the cache and are used again.

What turns rows is some eighty operations on one number a row, which for small tensors cost more than all else. So it
is done once for many chunks, of several tensors.
"""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from equipoise.optim.moves import Move, direction, plain_step
from equipoise.optim.options import GroupOptions, group_options
from equipoise.optim.rules import Ratio, Rule
from equipoise.optim.sphere import RowMove

CHUNK = 2**18
"""Weights that are stepped at a time: 1 MB, so that what a step makes of them stays in a core's cache."""


RUN = 2**20
"""Weights whose directions are kept until their rows turn, at most; one tensor that is a row may have more."""


@dataclass(frozen=True)
class Rows:
    """Rows that turn: some of a matrix in one chunk, or a tensor that is one row in several."""

    chunks: list[tuple[Tensor, ...]]
    """w, g and averages, as matrices."""
    columns: list[Tensor]
    shape: tuple[int, int]
    tensor: int
    """Which tensor they are of."""


class Chunks:
    """The step of large tensors, chunk by chunk.

    Args:
        rule: gradient → direction.
        move: (weight, direction) → weight.
        t: number of the step.
        group: its options.
    """

    def __init__(self, rule: Rule, move: Move, t: int, group: GroupOptions):
        self._rule, self._move, self._t = rule, move, t
        self._by_tensor = isinstance(move, RowMove) and move.by_tensor(group)
        self._group = group_options(group, granularity="neuron") if isinstance(move, RowMove) else group

    def _direction(self, w: Tensor, g: Tensor, averages: tuple[Tensor, ...]) -> Any:
        g = self._move.prepare(g.to(w.dtype), w, self._group)
        return direction(g, w, averages, rule=self._rule, t=self._t, group=self._group)

    def flat(self, w: Tensor, g: Tensor, averages: list[Tensor], numbers: dict[str, Any]) -> None:
        """The plain step of flat tensors."""
        for w_, g_, *some in zip(*(x.split(CHUNK) for x in (w, g, *averages)), strict=True):
            plain_step(w_, self._direction(w_, g_, tuple(some)), numbers, self._group)

    def turn(self, rows: list[Rows], numbers: dict[str, float], workspace: Tensor) -> None:
        """The step of rows that turn.

        Args:
            rows: all of one type.
            numbers: of the move.
            workspace: keeps directions; as large as `needed` says.
        """
        for run in runs(rows, self._by_tensor):
            self._turn(run, numbers, workspace)

    def _turn(self, run: list[Rows], numbers: dict[str, float], workspace: Tensor) -> None:
        move, place = self._move, 0
        assert isinstance(move, RowMove)
        kept: list[list[Tensor]] = []
        found: list[list[Tensor]] = []
        for some in run:
            kept.append([])
            sums: list[tuple[Tensor, ...]] = []
            for w, g, *averages in some.chunks:
                d = self._kept(self._direction(w, g, tuple(averages)), averages, workspace[place : place + w.numel()])
                place += w.numel()
                kept[-1].append(d)
                sums.append(move.products(w, d, self._group))
            found.append([_added(list(x)) for x in zip(*sums, strict=True)])
        heights = [some.shape[0] for some in run]
        ww, dw, dd = (_joined(list(x)) for x in zip(*found, strict=True))
        columns = [_joined(list(x)) for x in zip(*(some.columns for some in run), strict=True)]
        sized = _numbers_of([some.shape for some in run], move, numbers, dd)
        if self._by_tensor:
            of = Counter[int]()
            for some in run:
                of[some.tensor] += some.shape[0]
            sized["heights"] = list(of.values())
        new, keep, push = move.turn(ww, dw, dd, tuple(columns), sized)
        for some, ds, k, p in zip(run, kept, keep.split(heights), push.split(heights), strict=True):
            for (w, _, *averages), d in zip(some.chunks, ds, strict=True):
                d = move.direction(d, self._group)
                clean = d.nan_to_num if any(d is x for x in averages) else d.nan_to_num_
                # What is not finite moves nothing; to look first would wait for the device.
                w.mul_(k).addcmul_(clean(0.0, 0.0, 0.0), p, value=-1)
        olds = [x for i in range(len(columns)) for x in (some.columns[i] for some in run)]
        torch._foreach_copy_(olds, [x for column in new for x in column.split(heights)])

    @staticmethod
    def _kept(u: Any, averages: list[Tensor], place: Tensor) -> Tensor:
        """A direction where it stays until rows turn: in its place, or in the average that it is."""
        if isinstance(u, Ratio):
            d = torch.div(u.top, u.bottom, out=place.view_as(u.top))
            return d if isinstance(u.scale, float) and u.scale == 1.0 else d.mul_(u.scale)
        return u if any(u is x for x in averages) else place.view_as(u).copy_(u)


def rows_of(w: Tensor, g: Tensor, averages: list[Tensor], columns: list[Tensor], tensor: int) -> list[Rows]:
    """A matrix by chunks of its rows; if it has one row, this row by chunks.

    Args:
        w: the weights, as rows.
        g: their gradient, likewise.
        averages: likewise.
        columns: the numbers that the move keeps of each row.
        tensor: its number.
    """
    height, width = w.shape
    matrices = (w, g, *averages)
    if height == 1:
        return [Rows(list(zip(*(x.split(CHUNK, 1) for x in matrices), strict=True)), columns, (1, width), tensor)]
    many = max(1, CHUNK // width)
    parts = zip(*(x.split(many) for x in (*matrices, *columns)), strict=True)
    last = len(matrices)
    return [Rows([part[:last]], list(part[last:]), (part[0].shape[0], width), tensor) for part in parts]


def runs(rows: list[Rows], whole: bool) -> Iterator[list[Rows]]:
    """Rows that turn together; all of a tensor if `whole`."""
    run: list[Rows] = []
    size = 0
    for some in rows:
        size += _size([some])
        if run and size > RUN and not (whole and run[-1].tensor == some.tensor):
            yield run
            run, size = [], _size([some])
        run.append(some)
    if run:
        yield run


def needed(rows: list[Rows], whole: bool) -> int:
    """How many weights the workspace must have room for."""
    return max(_size(run) for run in runs(rows, whole))


def _size(run: list[Rows]) -> int:
    return sum(some.shape[0] * some.shape[1] for some in run)


def _added(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _numbers_of(
    shapes: list[tuple[int, int]], move: RowMove, numbers: dict[str, float], like: Tensor
) -> dict[str, Any]:
    """The move's numbers for rows of these shapes; as a column where they are not the same for all."""
    by_width = {width: move.sized(numbers, width) for _, width in shapes}
    first = by_width[shapes[0][1]]
    if len(by_width) == 1:
        return first
    heights = torch.tensor([height for height, _ in shapes])
    made: dict[str, Any] = {}
    for name, value in first.items():
        values = [by_width[width][name] for _, width in shapes]
        same = all(x is value or x == value for x in values)
        made[name] = value if same else like.new_tensor(values).repeat_interleave(heights).unsqueeze(1)
    return made
