"""The memory of a measured step (a copy of the weights, a work buffer, the sums), and what is computed in it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.measure.blocks import Block
from equipoise.monitor.measure.sums import SQUARES


class BlockBuffer:
    """The memory that one block is measured in.

    Args:
        block: the block.
        workspace: what it shares with the others.
    """

    def __init__(self, block: Block, workspace: Workspace) -> None:
        self.block, self._workspace = block, workspace
        self._copy: Tensor | None = None
        self._one = block.rows == 1
        lines = workspace.sums[block.device]
        # Where sums are of the precision that is worked in, they are written in place.
        self._slots = {n: lines[i, block.where] for i, n in enumerate(workspace.names)}
        self._exact = lines.dtype == block.work
        self._points = {n: s.view(()) for n, s in self._slots.items()} if self._one else {}

    @property
    def copy(self) -> Tensor:
        """The copy of the weights, or what has become of it."""
        assert self._copy is not None
        return self._copy

    def make_copy(self) -> Tensor:
        """Memory for the copy."""
        if self._copy is None:
            self._copy = self.block.empty(self.block.dtype)
        return self._copy

    def drop_copy(self) -> None:
        """Give it back."""
        self._copy = None

    @property
    def gathered(self) -> Tensor | None:
        """Memory to gather small tensors in; None for a block that is measured where it lies."""
        return None if self.block.direct else self._workspace.scratch(self.block, 0)

    @property
    def work(self) -> Tensor:
        """Memory to calculate in: whoever fills it has read what was there."""
        return self._workspace.scratch(self.block, 1)

    def working(self, x: Tensor) -> Tensor:
        """The numbers in the precision that is worked in."""
        return x if x.dtype == self.block.work else x.to(self.block.work)

    def change(self, new: Tensor, keep: bool) -> Tensor:
        """The change.

        Args:
            new: the weights after the step.
            keep: put it in place of the copy, where spectra read it; of low precision it is rounded there.
        """
        if self.copy.dtype == self.block.work:
            # `work` stays in the cache, the copy would have to be written back to memory.
            return torch.sub(new, self.copy, out=self.copy if keep else self.work)
        change = torch.sub(new, self.copy, out=self.work)
        if keep:
            self.copy.copy_(change)
        self._slots["same"].copy_((change == 0).sum(1))
        return change

    def square(self, name: str, x: Tensor) -> None:
        """Store ‖x‖ of each row, which `Workspace.flat` squares."""
        if self._one and self._exact:  # vector_norm takes one row with one thread
            flat = x.view(-1)
            torch.dot(flat, flat, out=self._points[name]).sqrt_()
        elif self._exact:
            torch.linalg.vector_norm(x, dim=1, out=self._slots[name])
        else:
            self._slots[name].copy_(torch.linalg.vector_norm(x, dim=1))

    def dot(self, name: str, a: Tensor, b: Tensor) -> None:
        """Store a·b of each row; b is overwritten if it is in `work`."""
        if self._one and self._exact:
            torch.dot(a.view(-1), b.view(-1), out=self._points[name])
        elif self._exact:
            torch.sum(torch.mul(a, b, out=self.work), 1, out=self._slots[name])
        else:
            self._slots[name].copy_(torch.linalg.vecdot(a, b))

    def angles(self, new: Tensor, rows: Tensor, initial: Tensor, places: list[int]) -> None:
        """Store ‖w₀‖², ‖D‖² and ⟨D,w₀⟩ of some rows, with D the way from the initial weights.

        Args:
            new: the weights now.
            rows: which of them.
            initial: w₀ of these.
            places: where they are among all that are sampled.
        """
        far = new.index_select(0, rows) - initial
        dot = torch.linalg.vecdot
        found = torch.stack([dot(initial, initial), dot(far, far), dot(far, initial)])
        line = self._workspace.samples[self.block.device]
        line[:, places] = found.to(line.dtype)


class Workspace:
    """The buffers of all blocks, and the sums.

    Args:
        blocks: the blocks.
        names: of the sums.
        sampled: how many rows are followed one by one.
        devices: where tensors lie, also those of which this process has nothing: all processes send as much.
        dtype: of the sums.
    """

    def __init__(
        self, blocks: list[Block], names: list[str], sampled: int, devices: list[torch.device], dtype: torch.dtype
    ) -> None:
        self.names = names
        rows = sum(b.rows for b in blocks)
        self._devices = devices
        self.sums = {d: torch.zeros(len(names), rows, dtype=dtype, device=d) for d in self._devices}
        self.samples = {d: torch.zeros(3, sampled, dtype=dtype, device=d) for d in self._devices}
        self._scratch: dict[tuple[Any, ...], Tensor] = {}
        self._views: dict[tuple[int, int], Tensor] = {}
        self._largest: dict[tuple[Any, ...], int] = {}
        for block in blocks:
            for which in (0, 1)[block.direct :]:
                key = (block.device, block.work, which)
                self._largest[key] = max(self._largest.get(key, 0), block.rows * block.width)
        self.all = [BlockBuffer(block, self) for block in blocks]
        self._by_owner: dict[int, list[BlockBuffer]] = {}
        for buffer in self.all:
            self._by_owner.setdefault(buffer.block.owner, []).append(buffer)

    def buffers(self, owner: int) -> list[BlockBuffer]:
        """The buffers of one optimizer's tensors."""
        return self._by_owner.get(owner, [])

    def close(self) -> None:
        """Let go of all memory at once, without the garbage collector: buffers and workspace refer to each other."""
        self.all, self._by_owner = [], {}

    def clear(self) -> None:
        """Set the sums to 0."""
        for x in (*self.sums.values(), *self.samples.values()):
            x.zero_()

    def scratch(self, block: Block, which: int) -> Tensor:
        """Scratch memory, the same for all blocks: 0 to gather small tensors in, 1 to calculate in."""
        view = self._views.get((block.first, which))
        if view is None:
            key = (block.device, block.work, which)
            flat = self._scratch.get(key)
            if flat is None:
                flat = self._scratch[key] = torch.empty(self._largest[key], dtype=block.work, device=block.device)
            view = flat[: block.rows * block.width].view(block.rows, block.width)
            self._views[block.first, which] = view
        return view

    def flat(self, extra: list[Tensor | float], spread: tuple[int, NDArray[np.int64]] | None) -> Tensor:
        """All sums in one flat tensor, with some more numbers at its end.

        Args:
            extra: numbers, or tensors of one number on any device.
            spread: where sums are to be put in order: the number of rows, and the place of each row among them.
        """
        device = self._devices[0]
        dtype = self.sums[device].dtype
        parts = []
        squares = sum(name in SQUARES for name in self.names)  # the first ones
        for d in self._devices:
            sums, samples = self.sums[d], self.samples[d]
            sums[:squares].square_()
            if spread is not None:
                order = torch.from_numpy(spread[1]).to(d)
                sums = torch.zeros(len(sums), spread[0], dtype=dtype, device=d).index_add_(1, order, sums)
            parts += [sums.reshape(-1).to(device), samples.reshape(-1).to(device)]
        tail = torch.tensor([0.0 if isinstance(x, Tensor) else x for x in extra], dtype=dtype)
        parts.append(tail.to(device, non_blocking=True))
        flat = torch.cat(parts)
        for i, x in enumerate(extra):
            if isinstance(x, Tensor):
                flat[len(flat) - len(extra) + i] = x.detach().to(device=device, dtype=dtype).reshape(())
        return flat
