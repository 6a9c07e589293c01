"""One measured step: inner products of weights, gradients, momentum and change for every row, in a few passes.

Before the step the weights are copied, block by block; after it the copy becomes the change. All sums lie in one flat
tensor, which is moved off the device once.
"""

# pyright: reportPrivateImportUsage=false

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.sums import SUMS, RowSums
from equipoise.monitor.tensors import Block, Watched, blocks_of, fingerprint, like, local, watched
from equipoise.planner.live import stepping

MOMENTUM = ("exp_avg", "momentum_buffer")


class Frame:
    """The tensors of an optimizer and how they are measured; made anew when its parameters change.

    Args:
        optimizer: whose parameters.
        names: name of each parameter by its id.
        neurons: how many neurons of each tensor to sample; their initial weights are kept.
        starts: initial weights of rows by tensor name and row, kept over frames.
    """

    def __init__(
        self, optimizer: Any, names: dict[int, str], neurons: int, starts: dict[tuple[str, int], Tensor]
    ) -> None:
        self.key = fingerprint(optimizer)
        self.tensors = watched(optimizer, names)
        if not self.tensors:
            raise ValueError("optimizer: must have at least one parameter that is trained")
        self.rows = sum(t.rows for t in self.tensors)
        self.blocks = blocks_of(self.tensors)
        self.sharded = any(hasattr(t.p, "placements") for t in self.tensors)
        self.samples = [_sampled(t, neurons) for t in self.tensors]
        self._places = [[t.first + n for n in some] for t, some in zip(self.tensors, self.samples, strict=True)]
        sampled = sorted(row for rows in self._places for row in rows)
        self._sample_at = {row: i for i, row in enumerate(sampled)}
        self.sampled = np.array(sampled, dtype=np.int64)
        self._order = self._make_order()
        self._initial = [self._start_of(block, starts) for block in self.blocks]
        double = any(b.work == torch.float64 for b in self.blocks)
        self._dtype = torch.float64 if double else torch.float32
        self._devices = list(dict.fromkeys(b.device for b in self.blocks)) or [torch.device("cpu")]
        self._copies: list[Tensor] | None = None
        self._names = [n for n in SUMS if n not in ("cw", "cd") and (n != "same" or any(t.low for t in self.tensors))]
        self._plain = [t.p for t in self.tensors]
        self._states: tuple[Any, list[Any]] = (None, [])
        self._clear()
        self.has_grad = self.has_momentum = np.zeros(len(self.tensors), dtype=bool)

    def fits(self, optimizer: Any) -> bool:
        """Whether the optimizer's parameters are still the same."""
        return self.key == fingerprint(optimizer)

    def _make_order(self) -> NDArray[np.int64]:
        """For each row of the blocks its place among all rows."""
        places = [np.zeros(0, dtype=np.int64)]
        for block in self.blocks:
            for piece in block.pieces:
                tensor = self.tensors[piece.tensor]
                places.append(tensor.first + tensor.offset + np.arange(piece.start, piece.stop))
        return np.concatenate(places)

    def _start_of(self, block: Block, starts: dict[tuple[str, int], Tensor]) -> tuple[Tensor, Tensor, list[int]] | None:
        """Rows of a block that are sampled, their initial weights, and their places among the sampled."""
        rows, initial, places = [], [], []
        current: list[Tensor | None] = [t.local for t in self.tensors]
        whole = None
        for k, place in enumerate(self._order[block.where]):
            at = self._sample_at.get(int(place))
            if at is None:
                continue
            index = int(np.searchsorted([t.first for t in self.tensors], place, side="right")) - 1
            key = (self.tensors[index].name, int(place) - self.tensors[index].first)
            if key not in starts or len(starts[key]) != block.width:
                whole = block.gather(current) if whole is None else whole
                starts[key] = whole[k].clone()
            rows.append(k)
            initial.append(starts[key].to(device=block.device, dtype=block.work))
            places.append(at)
        if not rows:
            return None
        return torch.tensor(rows, device=block.device), torch.stack(initial), places

    # The measured step

    def before(self, optimizer: Any, grads: bool, cautious: bool) -> None:
        """Copy the weights, and measure them, and gradients where they are there already.

        Args:
            optimizer: about to step.
            grads: whether the gradients are those of this step; with a closure they come only in it.
            cautious: whether any tensor's decay is cautious.
        """
        if cautious and "cw" not in self._names:
            self._names += ["cw", "cd"]
        self._clear()
        if self._copies is None:
            self._copies = [block.empty(block.dtype) for block in self.blocks]
        params = self._params()
        for block, copy in zip(self.blocks, self._copies, strict=True):
            block.gather(params, out=copy)
            w = copy if copy.dtype == block.work else copy.to(block.work)
            self._put(block, "ww", _square(w))
        if grads:
            self._measure_grads(optimizer, momentum=True)

    def _params(self) -> list[Tensor | None]:
        """The local part of each parameter."""
        return [t.local for t in self.tensors] if self.sharded else list(self._plain)

    def _clear(self) -> None:
        self._k = {name: i for i, name in enumerate(self._names)}
        self._sums = {d: torch.zeros(len(self._names), self._total, dtype=self._dtype, device=d) for d in self._devices}
        self._angles = {d: torch.zeros(3, len(self.sampled), dtype=self._dtype, device=d) for d in self._devices}

    @property
    def _total(self) -> int:
        return len(self._order)

    def _put(self, block: Block, name: str, value: Tensor) -> None:
        self._sums[block.device][self._k[name], block.where] = value

    def _measure_grads(self, optimizer: Any, momentum: bool) -> None:
        grads = [_dense(p) for p in self._plain]
        averages: list[Tensor | None] = self._averages(optimizer) if momentum else [None] * len(grads)
        self.has_grad = np.array([g is not None for g in grads])
        self.has_momentum = np.array([m is not None for m in averages]) & self.has_grad
        assert self._copies is not None
        for block, copy in zip(self.blocks, self._copies, strict=True):
            if not self.has_grad[block.tensors].any():
                continue
            g = block.gather(grads)
            w = copy if copy.dtype == block.work else copy.to(block.work)
            self._put(block, "gg", _square(g))
            self._put(block, "gw", _dot(g, w))
            if self.has_momentum[block.tensors].any():
                m = block.gather(averages)
                self._put(block, "mm", _square(m))
                self._put(block, "gm", _dot(g, m))

    def _averages(self, optimizer: Any) -> list[Tensor | None]:
        """The momentum of each tensor before the step, None where there is none; states are not touched."""
        owners = list(dict.fromkeys((optimizer, stepping(optimizer))))
        found: list[Tensor | None] = [None] * len(self.tensors)
        for owner in owners:
            states = self._states[1]
            if self._states[0] is not owner.state or None in states:
                # owner.state[p] would make a state where there is none. Loading replaces owner.state as a whole.
                states = [owner.state.get(t.p) for t in self.tensors]
                self._states = owner.state, states
            for i, state in enumerate(states):
                for name in MOMENTUM if state else ():
                    m = state.get(name)
                    if m is not None and m.shape == self._plain[i].shape:
                        found[i] = m if type(m) is Tensor else local(like(m, self._plain[i]))
        return found

    def after(self, optimizer: Any, grads: bool, cautious: NDArray[np.bool_]) -> None:
        """Turn the copy into the change, and measure it.

        Args:
            optimizer: has just stepped.
            grads: whether to measure the gradients now, as after a closure.
            cautious: for each tensor whether its decay is cautious.
        """
        if grads:
            self._measure_grads(optimizer, momentum=False)
        params = self._params()
        assert self._copies is not None
        for block, copy, start in zip(self.blocks, self._copies, self._initial, strict=True):
            new = block.gather(params)
            low = copy.dtype != block.work
            change = new - copy if low else torch.sub(new, copy, out=copy)
            if low:
                copy.copy_(change)  # rounded; spectra alone read it
                self._put(block, "same", (change == 0).sum(1).to(self._dtype))
            self._put(block, "dd", _square(change))
            self._put(block, "dw", _dot(change, new))
            if cautious[block.tensors].any():
                # Decay acted where u·w ≥ 0, and there it and the step pull the same way: Δ·w < 0.
                w = new - change
                w.mul_(change * w < 0)
                self._put(block, "cw", _square(w))
                self._put(block, "cd", _dot(change, w))
            if start is not None:
                rows, initial, places = start
                far = new.index_select(0, rows) - initial
                angles = self._angles[block.device]
                angles[:, places] = torch.stack([_square(initial), _square(far), _dot(far, initial)]).to(self._dtype)

    def change_of(self, index: int) -> Tensor:
        """The change of one tensor that is whole on this process, as rows; only between `after` and `release`."""
        assert self._copies is not None
        parts = []
        for block, copy in zip(self.blocks, self._copies, strict=True):
            parts += [copy[p.at : p.at + p.stop - p.start] for p in block.pieces if p.tensor == index]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def release(self) -> None:
        """Give the copy of the weights back."""
        self._copies = None

    def flat(self, extra: list[Tensor | float]) -> Tensor:
        """All sums in one flat tensor on its way to the CPU, with some more numbers at its end.

        Args:
            extra: numbers, or tensors of one number on any device.
        """
        device = self._devices[0]
        tail = [
            x.detach().to(device=device, dtype=self._dtype).reshape(1)
            if isinstance(x, Tensor)
            else torch.full((1,), x, dtype=self._dtype, device=device)
            for x in extra
        ]
        parts = []
        for d in self._devices:
            sums, angles = self._sums[d], self._angles[d]
            if self.sharded:
                order = torch.from_numpy(self._order).to(d)
                sums = torch.zeros(len(sums), self.rows, dtype=sums.dtype, device=d).index_add_(1, order, sums)
            parts += [sums.reshape(-1).to(device), angles.reshape(-1).to(device)]
        self._sent = list(self._names)
        return torch.cat([*parts, *tail])

    def unpack(self, flat: NDArray[Any]) -> tuple[RowSums, NDArray[np.float64]]:
        """The sums, and those of the sampled rows, out of the flat numbers.

        Args:
            flat: as `flat` made them; what is after them is left.
        """
        count = self.rows if self.sharded else self._total
        size = len(self._sent) * count + 3 * len(self.sampled)
        flat = flat[: size * len(self._devices)].reshape(len(self._devices), size)
        total = flat[0] if len(flat) == 1 else flat.sum(0)
        sums, angles = total[: len(self._sent) * count].reshape(-1, count), total[len(self._sent) * count :]
        firsts = np.array([t.first for t in self.tensors])
        pieces = None if self.sharded else (self._order, *self.pieces)
        return RowSums(sums, self._sent, firsts, pieces), angles.astype(np.float64).reshape(3, len(self.sampled))

    @property
    def numbers(self) -> int:
        """How many numbers `flat` has before the extra ones."""
        count = self.rows if self.sharded else self._total
        return (len(self._sent) * count + 3 * len(self.sampled)) * len(self._devices)

    @cached_property
    def pieces(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where the rows of one tensor begin among those of the blocks, and which tensor it is."""
        found = [(block.first + p.at, p.tensor) for block in self.blocks for p in block.pieces]
        starts, tensors = zip(*found, strict=True)
        return np.array(starts), np.array(tensors)


def _square(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=1).square_()


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return torch.linalg.vecdot(a, b)


def _dense(p: Tensor) -> Tensor | None:
    """A parameter's gradient here; None where there is none, or a sparse one."""
    g = p.grad
    if g is None or g.is_sparse:
        return None
    return g if type(g) is Tensor else local(like(g, p))


def state_of(optimizer: Any, p: Tensor) -> dict[str, Any]:
    """A parameter's state, empty where there is none; that of a wrapper and what is in it together."""
    return dict(optimizer.state.get(p) or {}) | dict(stepping(optimizer).state.get(p) or {})


def _sampled(tensor: Watched, neurons: int) -> tuple[int, ...]:
    """Evenly spread neurons, always the same ones; a vector is one row, and sampled with the others."""
    if neurons == 0:
        return ()
    if tensor.rows == 1:
        return (0,)
    count = min(neurons, tensor.rows)
    return tuple(int((i + 0.5) * tensor.rows / count) for i in range(count))
