"""Small models: a step is copied into rows of equal width, so that few calls sum all of it."""

# pyright: reportAttributeAccessIssue=false
# (torch has the inverse of flattening many tensors under a private name alone)

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.measure.blocks import Block
from equipoise.monitor.measure.tensors import Watched

WIDE = 4096
"""Numbers of a row that are summed in their own precision at most."""

WEIGHTS, GRADIENTS, MOMENTUM, NEW = range(4)
"""What is copied of a step: weights, gradients and momentum before it, and the weights after it."""

PAIRS = {
    "ww": (WEIGHTS, WEIGHTS), "gg": (GRADIENTS, GRADIENTS), "mm": (MOMENTUM, MOMENTUM), "dd": (NEW, NEW),
    "gw": (GRADIENTS, WEIGHTS), "gm": (GRADIENTS, MOMENTUM), "dw": (NEW, WEIGHTS),
}  # fmt: skip
"""The inner products, of the change in place of the new weights."""

Start = tuple[Tensor, Tensor, list[int]] | None


class StepCopies:
    """The copies of a step.

    Args:
        tensors: what is copied, all of one precision, on the CPU.
        blocks: whole tensors, by the width of their rows.
        starts: of each block the rows that are sampled, their initial weights, and their places among all that are.
        sampled: how many rows are sampled.
    """

    def __init__(
        self, tensors: Sequence[Watched], blocks: Sequence[Block], starts: Sequence[Start], sampled: int
    ) -> None:
        order = [i for block in blocks for i in block.tensors.tolist()]
        like = [tensors[i].p.detach() for i in order]
        memory = torch.zeros(4, sum(p.numel() for p in like), dtype=like[0].dtype)
        self.places: list[list[Tensor]] = []
        """Where `WEIGHTS`, `GRADIENTS`, `MOMENTUM` and `NEW` of each tensor are copied to."""
        for line in memory:
            views = torch._utils._unflatten_dense_tensors(line, like)
            self.places.append([view for _, view in sorted(zip(order, views, strict=True), key=lambda pair: pair[0])])
        self._memory, self._count, self._sampled, at = memory, sum(b.rows for b in blocks), sampled, 0
        self._rows: list[tuple[slice, Tensor]] = []
        self._starts: list[tuple[NDArray[Any], NDArray[Any], NDArray[Any], list[int]]] = []
        for block, start in zip(blocks, starts, strict=True):
            part = memory[:, at : at + block.rows * block.width].unflatten(-1, (block.rows, block.width))
            self._rows.append((block.where, part.transpose(0, 1)))  # by row, what, and number
            if start is not None:
                self._starts.append((part[NEW].numpy(), start[0].numpy(), start[1].numpy(), start[2]))
            at += block.rows * block.width

    def sums(self, names: list[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The inner products, by name and row of the blocks, and those of the sampled rows.

        The change takes the place of the copied weights after the step.

        Args:
            names: which of `sums.SUMS`.
        """
        values, samples = np.zeros((len(names), self._count)), np.zeros((3, self._sampled))
        for new, rows, initial, places in self._starts:
            way = new[rows] - initial
            for k, (a, b) in enumerate(((initial, initial), (way, way), (way, initial))):
                samples[k, places] = np.einsum("ij,ij->i", a, b, dtype=np.float64)
        lines, pairs = [names.index(name) for name in PAIRS], [4 * a + b for a, b in PAIRS.values()]
        w, new = self._memory[WEIGHTS], self._memory[NEW]
        change = torch.sub(new, w, out=new)
        for where, of_row in self._rows:
            found = _products(of_row if of_row.shape[2] <= WIDE else of_row.double())[pairs]
            if not np.isfinite(found).all():  # squares of numbers beyond 1e19 leave float32
                found = _products(of_row.double())[pairs]
            values[lines, where] = found
        values[names.index("dw")] += values[names.index("dd")]  # Δ·w′
        if "cw" in names:
            # Decay acted where u·w ≥ 0, and there it and the step pull the same way: Δ·w < 0.
            w.mul_(change * w < 0)
            for where, of_row in self._rows:
                values[names.index("cw"), where] = of_row[:, WEIGHTS].square().sum(1)
                values[names.index("cd"), where] = (of_row[:, WEIGHTS] * of_row[:, NEW]).sum(1)
        return values, samples


def _products(x: Tensor) -> NDArray[np.float64]:
    """The inner products of what was copied, by pair and row."""
    return torch.bmm(x, x.transpose(1, 2)).numpy().reshape(-1, 16).T
