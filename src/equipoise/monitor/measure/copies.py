"""Small models: steps are copied into rows of equal width, so that few calls sum all of several steps."""

# pyright: reportAttributeAccessIssue=false
# (torch has the inverse of flattening many tensors under a private name alone)

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.measure.blocks import Block
from equipoise.monitor.measure.tensors import Watched

WIDE = 4096
"""Numbers of a row that are summed in their own precision at most."""

ROOM, MOST = 4 << 20, 4
"""Bytes of copies that wait for their sums, and steps."""

WEIGHTS, GRADIENTS, MOMENTUM, NEW = range(4)
"""What is copied of a step: weights, gradients and momentum before it, and the weights after it."""

PAIRS = {
    "ww": (WEIGHTS, WEIGHTS), "gg": (GRADIENTS, GRADIENTS), "mm": (MOMENTUM, MOMENTUM), "dd": (NEW, NEW),
    "gw": (GRADIENTS, WEIGHTS), "gm": (GRADIENTS, MOMENTUM), "dw": (NEW, WEIGHTS),
}  # fmt: skip
"""The inner products, of the change in place of the new weights."""

Start = tuple[Tensor, Tensor, list[int]] | None
Sums = tuple[NDArray[np.float64], NDArray[np.float64]]
"""The inner products, by name and row of the blocks, and those of the sampled rows."""


class CopiedStep:
    """A step that was copied.

    Args:
        copies: has it.
        slot: where it lies among them.
        names: which of `sums.SUMS` are wanted.
    """

    def __init__(self, copies: StepCopies, slot: int, names: tuple[str, ...]) -> None:
        self._copies, self.slot, self.names = copies, slot, names
        self.found: Sums | None = None

    def sums(self) -> Sums:
        """Its sums, together with those of all steps that wait."""
        if self.found is None:
            self._copies.solve()
        assert self.found is not None
        return self.found


class StepCopies:
    """The copies of one step, and of some before it until they are summed, in this thread or another.

    Args:
        tensors: what is copied, all of one precision, on the CPU.
        spans: which of them each optimizer has.
        blocks: whole tensors, by the width of their rows.
        starts: of each block the rows that are sampled, their initial weights, and their places among all that are.
        sampled: how many rows are sampled.
    """

    def __init__(
        self, tensors: Sequence[Watched], spans: Sequence[slice], blocks: Sequence[Block], starts: Sequence[Start],
        sampled: int,
    ) -> None:  # fmt: skip
        dtype = tensors[0].p.dtype
        self._slots = max(1, min(MOST, ROOM // (4 * sum(b.rows * b.width for b in blocks) * dtype.itemsize)))
        self._slot = 0
        self._waiting: list[CopiedStep] = []
        self._lock = threading.Lock()
        self._count, self._sampled = sum(b.rows for b in blocks), sampled
        self._rows: list[tuple[slice, Tensor, Start]] = []  # by what, slot, row and number
        slots: list[list[dict[int, Tensor]]] = [[{} for _ in range(4)] for _ in range(self._slots)]
        for block, start in zip(blocks, starts, strict=True):
            order = block.tensors.tolist()
            like = [tensors[i].p.detach() for i in order]
            shape = (4, self._slots, block.rows, block.width)
            memory = torch.from_numpy(np.zeros(shape, like[0].numpy().dtype))  # torch.zeros fills it at once
            for slot, lines in enumerate(slots):
                for what, line in enumerate(lines):
                    views = torch._utils._unflatten_dense_tensors(memory[what, slot].view(-1), like)
                    line.update(zip(order, views, strict=True))
            self._rows.append((block.where, memory, start))
        self._spans = spans
        self._places = [
            [[[line[i] for i in range(len(tensors))[span]] for line in lines] for span in spans] for lines in slots
        ]

    @property
    def places(self) -> list[list[list[Tensor]]]:
        """Where `WEIGHTS`, `GRADIENTS`, `MOMENTUM` and `NEW` of each optimizer's tensors are copied to in the step."""
        return self._places[self._slot]

    def place(self, what: int, index: int) -> Tensor:
        """Where something of a tensor is copied to in the step."""
        owner = next(k for k, span in enumerate(self._spans) if span.start <= index < span.stop)
        return self.places[owner][what][index - self._spans[owner].start]

    def take(self, names: tuple[str, ...]) -> CopiedStep:
        """All of the step is copied: it waits for its sums, and the next one goes elsewhere.

        Args:
            names: which of `sums.SUMS` are wanted.
        """
        with self._lock:
            if self._waiting and self._waiting[0].names != names:
                self._solve()
            step = CopiedStep(self, self._slot, names)
            self._waiting.append(step)
            if len(self._waiting) == self._slots:
                self._solve()
            self._slot = (self._slot + 1) % self._slots
        return step

    @torch.no_grad()
    def solve(self) -> None:
        """Sum all steps that wait."""
        with self._lock:
            self._solve()

    def _solve(self) -> None:
        waiting, self._waiting = self._waiting, []
        while waiting:
            first = waiting[0].slot
            run = [step for k, step in enumerate(waiting) if step.slot == first + k]  # up to the last slot
            del waiting[: len(run)]
            values, samples = self._sums(slice(first, first + len(run)), run[0].names)
            for k, step in enumerate(run):
                step.found = values[:, k], samples[:, k]

    def _sums(self, slots: slice, names: tuple[str, ...]) -> Sums:
        """The sums of the steps in some slots, by name, step and row; the change takes the place of new weights."""
        count = slots.stop - slots.start
        values, samples = np.zeros((len(names), count, self._count)), np.zeros((3, count, self._sampled))
        lines, pairs = [names.index(name) for name in PAIRS], [4 * a + b for a, b in PAIRS.values()]
        for where, memory, start in self._rows:
            part = memory[:, slots]
            if start is not None:
                rows, initial, places = start
                found = _angles(part[NEW].index_select(1, rows), initial)
                if not np.isfinite(found.numpy()).all():
                    found = _angles(part[NEW].index_select(1, rows).double(), initial.double())
                samples[..., places] = found
            change = part[NEW].sub_(part[WEIGHTS])
            x = part.flatten(1, 2).transpose(0, 1)  # by step and row together, what, and number
            found = _products(x if x.shape[2] <= WIDE else x.double(), count)[pairs]
            if not np.isfinite(found).all():  # squares of numbers beyond 1e19 leave float32
                found = _products(x.double(), count)[pairs]
            values[lines, :, where] = found
            if "cw" in names:
                # Decay acted where u·w ≥ 0, and there it and the step pull the same way: Δ·w < 0.
                w = part[WEIGHTS]
                w.mul_(change * w < 0)
                values[names.index("cw"), :, where] = w.square().sum(2)
                values[names.index("cd"), :, where] = (w * change).sum(2)
        values[names.index("dw")] += values[names.index("dd")]  # Δ·w′
        return values, samples


def _products(x: Tensor, steps: int) -> NDArray[np.float64]:
    """The inner products of what was copied, by pair, step and row."""
    return torch.bmm(x, x.transpose(1, 2)).numpy().reshape(steps, -1, 16).transpose(2, 0, 1)


def _angles(new: Tensor, initial: Tensor) -> Tensor:
    """‖w₀‖², ‖D‖² and ⟨D,w₀⟩ of some rows by step, with D the way from the initial weights."""
    way, dot = new - initial, torch.linalg.vecdot
    return torch.stack([dot(initial, initial).expand(way.shape[:2]), dot(way, way), dot(way, initial)])
