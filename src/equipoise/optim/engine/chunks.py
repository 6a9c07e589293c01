"""Eager steps of large tensors on the CPU, a chunk at a time.

A step makes a handful of temporaries. As large as the tensor, they are new pages of memory at every step, which the
system has to give, and take several times as long as the arithmetic. A chunk's stay in the cache and are used again.
"""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise.optim.moves import Move, direction, directions, plain_step
from equipoise.optim.rules import Rule
from equipoise.optim.sphere import RowMove

CHUNK = 2**18
"""Weights that are stepped at a time: 1 MB, so that what a step makes of them stays in a core's cache."""


class Chunks:
    """One tensor's step, chunk by chunk; of rows as long as a chunk or longer, row by row.

    Args:
        rule: gradient → direction.
        move: (weight, direction) → weight.
        t: number of the step.
        group: its options.
    """

    def __init__(self, rule: Rule, move: Move, t: int, group: dict[str, Any]):
        self._rule, self._move, self._t = rule, move, t
        self._group = group | {"granularity": "neuron"} if isinstance(move, RowMove) else group

    def _direction(self, w: Tensor, g: Tensor, averages: list[Tensor]) -> Any:
        g = self._move.prepare(g.to(w.dtype), w, self._group)
        return direction(g, w, tuple(averages), rule=self._rule, t=self._t, group=self._group)

    def flat(self, w: Tensor, g: Tensor, averages: list[Tensor], numbers: dict[str, Any]) -> None:
        """The plain step of flat tensors."""
        for w_, g_, *some in zip(*(x.split(CHUNK) for x in (w, g, *averages)), strict=True):
            plain_step(w_, self._direction(w_, g_, some), numbers, self._group)

    def neurons(
        self, w: Tensor, g: Tensor, averages: list[Tensor], columns: list[Tensor], numbers: dict[str, Any]
    ) -> None:
        """The step of a matrix whose rows turn, each by itself."""
        move = self._move
        assert isinstance(move, RowMove)
        height, kept = max(1, CHUNK // w.shape[1]), len(averages)
        for w_, g_, *some in zip(*(x.split(height) for x in (w, g, *averages, *columns)), strict=True):
            d = directions(self._direction(w_, g_, some[:kept]), 1)[0]
            new, _ = move.rows(w_, d, tuple(some[kept:]), numbers, self._group, w_)
            torch._foreach_copy_(some[kept:], list(new))

    def whole(
        self,
        w: Tensor,
        g: Tensor,
        averages: list[Tensor],
        columns: list[Tensor],
        numbers: dict[str, Any],
        workspace: Tensor,
    ) -> None:
        """The step of a flat tensor that turns as one row: its sums first; the workspace keeps its direction."""
        move = self._move
        assert isinstance(move, RowMove)
        d, found = workspace[: w.numel()], []
        parts = list(zip(*(x.split(CHUNK) for x in (d, w, g, *averages)), strict=True))
        for d_, w_, g_, *some in parts:
            d_.copy_(directions(self._direction(w_, g_, some), 1)[0])
            found.append(torch.stack(move.products(w_.unsqueeze(0), d_.unsqueeze(0), self._group)))
        ww, dw, dd = torch.stack(found).sum(0)
        new, keep, push = move.turn(ww, dw, dd, tuple(columns), move.sized(numbers, w.numel()))
        for d_, w_, *_ in parts:
            w_.mul_(keep[0]).addcmul_(d_.nan_to_num_(0.0, 0.0, 0.0), push[0], value=-1)
        torch._foreach_copy_(columns, list(new))
