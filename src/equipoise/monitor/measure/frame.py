"""One measured step: inner products of weights, gradients, momentum and change for every row, in a few passes.

Of a small model on the CPU all four are copied, and summed together (`copies`). Of others the weights are copied before
the step, block by block, and the copy becomes the change. Then all sums lie in one flat tensor, which is moved off the
device once.
"""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.attach.registry import OptimizerRegistry
from equipoise.monitor.measure.blocks import Block, blocks_of
from equipoise.monitor.measure.copies import GRADIENTS, MOMENTUM, NEW, WEIGHTS, CopiedStep, StepCopies
from equipoise.monitor.measure.optimizer_state import Sources
from equipoise.monitor.measure.sums import SUMS, RowSums
from equipoise.monitor.measure.tensors import Fingerprint, Watched, watched
from equipoise.monitor.measure.workspace import BlockBuffer, Workspace
from equipoise.optim.model.belonging import nothing_to_train

LITTLE = 4 << 20
"""Bytes of weights that are so few that a step is copied as a whole."""

Held = tuple[list[Tensor | None], list[Tensor | None]]
"""Gradient and momentum of each tensor; None where there is none."""


class Frame:
    """The tensors of some optimizers and how they are measured; made anew when their parameters change.

    Args:
        registry: the optimizers.
        names: name of each parameter by its id.
        neurons: how many neurons of each tensor to sample; their initial weights are kept. 0: sums are of tensors.
        starts: initial weights of rows by tensor name and row, kept over frames.
    """

    def __init__(
        self, registry: OptimizerRegistry, names: dict[int, str], neurons: int, starts: dict[tuple[str, int], Tensor]
    ) -> None:
        self.fingerprint = Fingerprint(registry)
        self.neurons = neurons > 0
        self.tensors = watched(registry, names, self.neurons)
        if not self.tensors:
            raise nothing_to_train(p for group in registry.param_groups for p in group["params"])
        self.rows = sum(t.rows for t in self.tensors)
        self._devices = list(dict.fromkeys(t.p.device for t in self.tensors)) or [torch.device("cpu")]
        self.sharded = any(hasattr(t.p, "placements") for t in self.tensors)
        kinds = {(t.p.device.type, t.p.dtype) for t in self.tensors}
        exact = kinds in ({("cpu", torch.float32)}, {("cpu", torch.float64)})
        size = sum(t.p.numel() * t.p.element_size() for t in self.tensors)
        self.little = exact and not self.sharded and size <= LITTLE
        """Whether steps are copied as a whole, and then summed."""
        self.blocks = blocks_of(self.tensors, self.neurons, whole=self.little)
        double = any(t.p.dtype == torch.float64 for t in self.tensors)
        self._dtype = torch.float64 if double else torch.float32
        self.owner = np.array([t.owner for t in self.tensors])
        self._span = [slice(*np.searchsorted(self.owner, (k, k + 1)).tolist()) for k in range(len(registry))]
        self._sources = [Sources(one, self.tensors[s]) for one, s in zip(registry.each, self._span, strict=True)]
        self.samples = [_sampled(t, neurons) for t in self.tensors]
        sampled = sorted(t.first + n for t, some in zip(self.tensors, self.samples, strict=True) for n in some)
        self._sample_at = {row: i for i, row in enumerate(sampled)}
        self.sampled = np.array(sampled, dtype=np.int64)
        self._firsts = np.array([t.first for t in self.tensors])
        self._order = self._make_order()
        self._pieces = self._make_pieces()
        self._initial = [self._start_of(block, starts) for block in self.blocks]
        self.low = any(t.low for t in self.tensors)
        """Whether any is of low precision."""
        self.names = self._needed(cautious=False)
        self._plain = [t.p for t in self.tensors]
        self._workspace: Workspace | None = None
        self._mine = [self._plain[s] for s in self._span]
        self._clear()

    def _needed(self, cautious: bool) -> list[str]:
        """The sums that are measured."""
        return [n for n in SUMS if (n not in ("cw", "cd") or cautious) and (n != "same" or self.low)]

    def _make_order(self) -> NDArray[np.int64]:
        """For each row of the blocks its place among all rows."""
        places = [np.zeros(0, dtype=np.int64)]
        for block in self.blocks:
            for piece in block.pieces:
                tensor = self.tensors[piece.tensor]
                start = piece.start // block.width if self.neurons else 0
                places.append(tensor.first + tensor.offset + start + np.arange(piece.rows))
        return np.concatenate(places)

    def _make_pieces(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the rows of one tensor begin among those of the blocks, and which tensor it is."""
        found = [(block.first + p.at, p.tensor) for block in self.blocks for p in block.pieces]
        return np.array([at for at, _ in found], dtype=np.int64), np.array([i for _, i in found], dtype=np.int64)

    def _start_of(self, block: Block, starts: dict[tuple[str, int], Tensor]) -> tuple[Tensor, Tensor, list[int]] | None:
        """Rows of a block that are sampled, their initial weights, and their places among the sampled."""
        if not len(self.sampled):
            return None
        rows, initial, places = [], [], []
        current: list[Tensor | None] = [t.local for t in self.tensors]
        whole = None
        for k, place in enumerate(self._order[block.where].tolist()):
            at = self._sample_at.get(place)
            if at is None:
                continue
            index = int(np.searchsorted(self._firsts, place, side="right")) - 1
            key = (self.tensors[index].name, place - self.tensors[index].first)
            if key not in starts or len(starts[key]) != block.width:
                whole = block.gather(current, full=True) if whole is None else whole
                starts[key] = whole[k].clone()
            rows.append(k)
            initial.append(starts[key].to(device=block.device, dtype=block.work))
            places.append(at)
        if not rows:
            return None
        return torch.tensor(rows, device=block.device), torch.stack(initial), places

    # The measured step

    def begin(self, cautious: bool) -> None:
        """A step of training begins; nothing of it is measured yet.

        Args:
            cautious: whether any tensor's decay is cautious.
        """
        if cautious and "cw" not in self.names:
            self.names = self._needed(cautious)
            self._workspace = None
        if not self.little:
            if self._workspace is None:
                self._workspace = Workspace(self.blocks, self.names, len(self.sampled), self._devices, self._dtype)
            self._workspace.clear()
        self._clear()

    def _clear(self) -> None:
        self.stepped, self.has_grad, self.has_momentum = np.zeros((3, len(self.tensors)), dtype=bool)
        self.ages = np.full(len(self.tensors), np.inf)

    def before(self, owner: int, taken: int, grads: bool) -> None:
        """Copy the weights of one optimizer, and measure them, and gradients where they are there already.

        Args:
            owner: number of the optimizer that is about to step.
            taken: how many steps it has taken since the watch began.
            grads: whether the gradients are those of this step; with a closure they come only in it.
        """
        self._steps(owner, taken)
        held = self._look_up(owner, self._sources[owner].grads(), momentum=True) if grads else None
        if not self.little:
            self._copy_and_measure(owner, self.weights(), held)
            return
        self._copy(owner, WEIGHTS, self._plain)
        if held is not None:
            self._copy(owner, GRADIENTS, held[0])
            self._copy(owner, MOMENTUM, held[1])

    def hold(self, owner: int) -> list[Tensor | None]:
        """Copy the weights of one optimizer that is about to step; gives its gradients. `held` may measure them later.

        Args:
            owner: number of the optimizer.
        """
        places, mine, here = self._made_copies.places[owner][WEIGHTS], self._mine[owner], torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)  # as `torch.no_grad`, which is slower than the copy
            torch._foreach_copy_(places, mine)
        finally:
            torch._C._set_grad_enabled(here)
        return [p.grad for p in mine]

    def held(self, owner: int, taken: int, grads: list[Tensor | None]) -> None:
        """As `before`, of what `hold` kept: the momentum that was there is gone.

        Args:
            owner: number of the optimizer.
            taken: how many steps it had taken before that one.
            grads: what `hold` gave.
        """
        self._steps(owner, taken)
        dense = self._sources[owner].dense(grads)
        self._copy(owner, GRADIENTS, self._look_up(owner, dense, momentum=False)[0])

    def _copy(self, owner: int, what: int, tensors: Sequence[Tensor | None]) -> None:
        """Copy something of one optimizer's tensors; nothing where there is none of it."""
        places, given = self._made_copies.places[owner][what], tensors[self._span[owner]]
        if what != WEIGHTS and any(x is None for x in given):
            both = [(place, x) for place, x in zip(places, given, strict=True) if x is not None]
            places, given = [place for place, _ in both], [x for _, x in both]
        if places:
            torch._foreach_copy_(places, given)  # type: ignore[arg-type]

    @cached_property
    def _made_copies(self) -> StepCopies:
        return StepCopies(self.tensors, self._span, self.blocks, self._initial, len(self.sampled))

    def take_copies(self) -> CopiedStep:
        """The step that was copied; its sums come later."""
        return self._made_copies.take(tuple(self.names))

    def _copy_and_measure(self, owner: int, weights: list[Tensor | None], held: Held | None) -> None:
        """One block after the other, all that is measured of it: what is read again is still in the cache."""
        assert self._workspace is not None
        for buffer in self._workspace.buffers(owner):
            w = buffer.working(buffer.block.gather(weights, True, buffer.make_copy(), copy=True))
            buffer.square("ww", w)
            if held is not None:
                self._measure_grad(buffer, w, *held)

    def _steps(self, owner: int, taken: int) -> None:
        """Take note that an optimizer takes part in the step."""
        self.stepped[self._span[owner]] = True
        self.ages[self._span[owner]] = self._sources[owner].ages(taken)

    def weights(self) -> list[Tensor | None]:
        """The local part of each parameter."""
        return [t.local for t in self.tensors] if self.sharded else self._plain  # type: ignore[return-value]

    def momenta(self) -> list[Tensor | None]:
        """The local part of each tensor's momentum as it is now; None where there is none."""
        return [m for source in self._sources for m in source.here()]

    def _look_up(self, owner: int, mine: list[Tensor | None], momentum: bool) -> Held:
        """Gradients and momentum of all tensors, as one optimizer has them."""
        span = self._span[owner]
        grads: list[Tensor | None] = [None] * len(self.tensors)
        averages = grads.copy()
        grads[span] = mine
        if momentum:
            averages[span] = self._sources[owner].averages()
        self.has_grad[span] = [g is not None for g in grads[span]]
        self.has_momentum[span] = [m is not None for m in averages[span]]
        self.has_momentum &= self.has_grad
        return grads, averages

    def _measure_grad(
        self, buffer: BlockBuffer, w: Tensor, grads: list[Tensor | None], averages: list[Tensor | None]
    ) -> None:
        block = buffer.block
        some, full = _any_all(self.has_grad[block.tensors])
        if not some:
            return
        g = block.gather(grads, full, buffer.gathered)
        buffer.square("gg", g)
        buffer.dot("gw", g, w)
        some, full = _any_all(self.has_momentum[block.tensors])
        if some:
            m = block.gather(averages, full, buffer.work)
            buffer.square("mm", m)
            buffer.dot("gm", g, m)

    def after(self, owner: int, grads: bool, cautious: NDArray[np.bool_], spectral: Collection[int] = ()) -> None:
        """Measure the change.

        Args:
            owner: number of the optimizer that has just stepped.
            grads: whether to measure the gradients now, as after a closure.
            cautious: for each tensor whether its decay is cautious.
            spectral: tensors whose copy becomes the change, for `change_of`.
        """
        held = self._look_up(owner, self._sources[owner].grads(), momentum=False) if grads else None
        if self.little:
            if held is not None:
                self._copy(owner, GRADIENTS, held[0])
            self._copy(owner, NEW, self._plain)
            return
        assert self._workspace is not None
        params = self.weights()
        for buffer, start in zip(self._workspace.all, self._initial, strict=True):
            block = buffer.block
            if block.owner != owner:
                continue
            if held is not None:
                self._measure_grad(buffer, buffer.working(buffer.copy), *held)
            new = block.gather(params, True, buffer.gathered)
            change = buffer.change(new, keep=not block.among.isdisjoint(spectral))
            buffer.square("dd", change)
            if cautious[block.tensors].any():
                change = change.clone()  # products overwrite it
                # Decay acted where u·w ≥ 0, and there it and the step pull the same way: Δ·w < 0.
                w = new - change
                w.mul_(change * w < 0)
                buffer.square("cw", w)
                buffer.dot("cd", change, w)
            buffer.dot("dw", new, change)
            if start is not None:
                buffer.angles(new, *start)

    def change_of(self, index: int) -> Tensor:
        """The change of one tensor's local part, as rows; after `after` was told to keep it, until `release`."""
        if self.little:
            new, weight = (self._made_copies.place(what, index) for what in (NEW, WEIGHTS))
            return new - weight
        assert self._workspace is not None
        parts = []
        for buffer in self._workspace.all:
            mine = (p for p in buffer.block.pieces if p.tensor == index)
            parts += [buffer.copy[p.at : p.at + p.rows, : p.width].reshape(-1) for p in mine]
        flat = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else self.tensors[index].local.new_empty(0)
        shape = self.tensors[index].local.shape
        return flat.view(shape[0] if shape else 1, -1) if flat.numel() else flat.view(0, 1)

    def let_go(self, owner: int) -> None:
        """Give the copy of one optimizer's weights back."""
        if self._workspace is not None:
            for buffer in self._workspace.buffers(owner):
                buffer.drop_copy()

    def release(self) -> None:
        """Give all memory back, but for the copies of small models."""
        if self._workspace is not None:
            self._workspace.close()
        self._workspace = None

    # The numbers

    def flat(self, extra: list[Tensor | float]) -> Tensor:
        """All sums in one flat tensor on its way to the CPU, with some more numbers at its end.

        Args:
            extra: numbers, or tensors of one number on any device.
        """
        assert self._workspace is not None
        return self._workspace.flat(extra, (self.rows, self._order) if self.sharded else None)

    def nothing(self, extra: list[float]) -> Tensor:
        """As `flat`, with zeros for the sums: the word of a process whose measuring failed."""
        tail = torch.tensor(extra, dtype=self._dtype)
        return torch.cat([torch.zeros(self.numbers, dtype=tail.dtype), tail]).to(self._devices[0])

    @property
    def numbers(self) -> int:
        """How many numbers `flat` has before the extra ones."""
        return self._size * len(self._devices)

    @property
    def _size(self) -> int:
        return len(self.names) * (self.rows if self.sharded else len(self._order)) + 3 * len(self.sampled)

    def unpack(self, flat: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """The sums, by name and row, and those of the sampled rows, out of the flat numbers.

        Args:
            flat: as `flat` made them; what is after them is left.
        """
        flat = flat[: self.numbers].reshape(-1, self._size)
        total = flat[0] if len(flat) == 1 else flat.sum(0)
        cut = self._size - 3 * len(self.sampled)
        return total[:cut].reshape(len(self.names), -1), total[cut:].reshape(3, len(self.sampled))

    def row_sums(self, values: NDArray[Any], names: list[str]) -> RowSums:
        """Sums that can be taken by tensor or by row.

        Args:
            values: by name, step and row.
            names: of the sums.
        """
        return RowSums(values, names, self._firsts, None if self.sharded else (self._order, *self._pieces))


def _any_all(x: NDArray[np.bool_]) -> tuple[bool, bool]:
    count = int(np.count_nonzero(x))
    return count > 0, count == len(x)


def _sampled(tensor: Watched, neurons: int) -> tuple[int, ...]:
    """Evenly spread neurons, always the same ones; a vector is one row, and sampled with the others."""
    if neurons == 0:
        return ()
    if tensor.rows == 1:
        return (0,)
    count = min(neurons, tensor.rows)
    return tuple(int((i + 0.5) * tensor.rows / count) for i in range(count))
