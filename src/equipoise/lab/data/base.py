"""Data as tensors in memory, and batches that are a pure function of the seed and the step.

The t-th batch of a seed is the same whoever asks and when, so that a resumed trial needs no state of a loader.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from equipoise import _check
from equipoise.lab.data.augment import CropFlip

Batch = tuple[Tensor, Tensor]
Batches = Callable[[int], Batch]
"""Step (1, 2, …) → batch."""

CHUNK = 4_000_000
"""Bytes of batches that are made at one go: between the steps of training the processor forgets how to make one."""

TASKS = ("classes", "pairs", "regression", "tokens", "walk")
"""What is to be learnt: a class; a sequence from another; numbers; the next token; nothing, as in a random walk."""

VALIDATION = "validation"
"""The probe that settings are chosen by."""


def seeded(*parts: int | str) -> torch.Generator:
    """A generator whose numbers depend on all parts, and on nothing else.

    >>> a, b = (torch.rand(1, generator=seeded(7, "order", epoch)) for epoch in (0, 1))
    >>> bool(a == b), bool(a == torch.rand(1, generator=seeded(7, "order", 0)))
    (False, True)
    """
    digest = hashlib.sha256("/".join(map(str, parts)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))


class BatchSource(ABC):
    """Where batches come from."""

    @abstractmethod
    def batches(self, size: int, seed: int) -> Batches:
        """The batches of a seed, by step."""

    @abstractmethod
    def to(self, device: torch.device | str) -> BatchSource:
        """The same on a device."""

    @abstractmethod
    def digest(self) -> bytes:
        """SHA-256 of the content."""


@final
@dataclass(frozen=True, eq=False)
class Split(BatchSource):
    """Samples and what is to be learnt of them; whole numbers may be stored small, and come as int64.

    Batches are those of one permutation an epoch; the samples that fill no batch are left out of the epoch. Images may
    be bytes, and come as floats of mean 0 and standard deviation 1 where `scale` has both of the bytes' channels.
    `augment` changes the images of batches, anew at every step, and not those that `take` gives.
    """

    x: Tensor
    y: Tensor
    scale: tuple[Tensor, Tensor] | None = None
    augment: CropFlip | None = None

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y):
            raise ValueError(f"x has {len(self.x)} samples and y {len(self.y)}: must be as many")

    def __len__(self) -> int:
        return len(self.x)

    def take(self, index: Tensor | slice) -> Batch:
        """The samples at these places."""
        if isinstance(index, slice):
            return self._scaled(self.x[index]), _wide(self.y[index])
        return self._scaled(self.x.index_select(0, index)), _wide(self.y.index_select(0, index))

    def _scaled(self, x: Tensor) -> Tensor:
        if self.scale is None:
            return _wide(x)
        mean, std = self.scale
        return x.float().sub_(mean).div_(std)

    def batches(self, size: int, seed: int) -> Batches:
        """The batches of a seed, by step."""
        _check.whole("batch_size", size, low=1)
        if size > len(self):
            raise ValueError(f"batch_size = {size}: must be ≤ {len(self)}, the number of samples")
        per_epoch = len(self) // size
        each = max(1, sum(t.nbytes // len(self) * size for t in (self.x, self.y)))
        known, order, ready = -1, torch.empty(0, dtype=torch.long), dict[int, Batch]()

        def make(step: int) -> None:
            nonlocal known, order
            epoch, place = divmod(step - 1, per_epoch)
            if epoch != known:
                order = torch.randperm(len(self), generator=seeded(seed, "order", epoch)).to(self.x.device)
                known = epoch
            count = max(1, CHUNK // each)
            first = place - place % count  # the same part of the same chunk whoever asks: alignment may change rounding
            chosen, step = order[first * size : min(first + count, per_epoch) * size], step - place + first
            x, y = self.x.index_select(0, chosen), _wide(self.y.index_select(0, chosen))
            if self.augment is not None:
                parts = enumerate(x.split(size), step)
                x = torch.cat([self.augment(part, seeded(seed, "augment", s)) for s, part in parts])
            ready.clear()
            ready.update(enumerate(zip(self._scaled(x).split(size), y.split(size), strict=True), step))

        def batch(step: int) -> Batch:
            if step not in ready:
                make(step)
            return ready[step]

        return batch

    def to(self, device: torch.device | str) -> Split:
        """The same on a device."""
        scale = None if self.scale is None else (self.scale[0].to(device), self.scale[1].to(device))
        return Split(self.x.to(device), self.y.to(device), scale, self.augment)

    def digest(self) -> bytes:
        """SHA-256 of types, shapes and content, and of what changes it."""
        content = hashlib.sha256(b"" if self.augment is None else repr(self.augment).encode())
        for part in (self.x, self.y):
            content.update(f"{part.dtype}{tuple(part.shape)}".encode())
            content.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return content.digest()


@final
@dataclass(frozen=True)
class Noise(BatchSource):
    """Standard normal inputs; output gradients of deviation scale/(outputs·batch).  [kosson2024] appendix J."""

    inputs: int
    outputs: int
    scale: float = 1.0
    device: torch.device | str = "cpu"

    def batches(self, size: int, seed: int) -> Batches:
        """The batches of a seed, by step."""
        _check.whole("batch_size", size, low=1)

        def batch(step: int) -> Batch:
            g = seeded(seed, "noise", step)
            x = torch.randn(size, self.inputs, generator=g)
            y = torch.randn(size, self.outputs, generator=g) * (self.scale / (self.outputs * size))
            return x.to(self.device), y.to(self.device)

        return batch

    def to(self, device: torch.device | str) -> Noise:
        """The same on a device; the numbers do not depend on it."""
        return Noise(self.inputs, self.outputs, self.scale, device)

    def digest(self) -> bytes:
        """SHA-256 of what it is made by."""
        return hashlib.sha256(f"noise/{self.inputs}/{self.outputs}/{self.scale}".encode()).digest()


@final
@dataclass(frozen=True, eq=False)
class Data:
    """A task to learn.

    Attributes:
        name: what it is called.
        task: one of `TASKS`.
        train: what is trained on.
        test: what is tested on; None for a random walk.
        outputs: classes, tokens, or numbers to predict.
        info: what a model or a reader may want to know besides, as `length` or `vocabulary`.
        probes: samples that are tested on apart, by name; a test calls their metrics `NAME_loss` and so on. Those named
            `VALIDATION` are what settings are chosen by: neither trained on nor the test.
        smoothing: what share of each label is spread over all classes, in training alone.
    """

    name: str
    task: str
    train: BatchSource
    test: Split | None
    outputs: int
    info: Mapping[str, Any] = field(default_factory=dict)
    probes: Mapping[str, Split] = field(default_factory=dict)
    smoothing: float = 0.0

    def __post_init__(self) -> None:
        _check.choice("task", self.task, TASKS)
        _check.number("smoothing", self.smoothing, low=0, high=1, open_high=True)
        if self.smoothing and self.task in ("regression", "walk"):
            raise ValueError(
                f"smoothing = {self.smoothing}: must be 0 for the task {self.task!r}, which has no classes"
            )

    @property
    def validation(self) -> Split | None:
        """The samples that settings are chosen by, if they are set apart."""
        return self.probes.get(VALIDATION)

    def to(self, device: torch.device | str) -> Data:
        """The same on a device."""
        test = None if self.test is None else self.test.to(device)
        probes = {name: probe.to(device) for name, probe in self.probes.items()}
        return replace(self, train=self.train.to(device), test=test, probes=probes)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 of all of it, in hex."""
        parts = [self.train.digest(), b"" if self.test is None else self.test.digest()]
        parts += [probe.digest() for _, probe in sorted(self.probes.items())]
        return hashlib.sha256(b"".join(parts)).hexdigest()


def images(
    name: str, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], classes: int, *, validation: int = 0,
    crop: int = 0, flip: bool = False, **info: Any,
) -> Data:  # fmt: skip
    """Images as bytes [samples, channels, height, width], scaled by what is measured on those trained on.

    Args:
        name: of the data.
        train: images and classes to train on.
        test: images and classes to test on.
        classes: how many.
        validation: how many of those to train on are set apart instead, always the same ones.
        crop: train on random crops of images with a border of so many pixels.
        flip: train on images that are mirrored left to right, or not, by chance.
        **info: what to remember besides.
    """
    if _check.whole("validation", validation) >= len(train[0]):
        raise ValueError(f"validation = {validation}: must be < {len(train[0])}, the number of samples to train on")
    order = torch.randperm(len(train[0]), generator=seeded("validation"))
    held, kept = order[:validation], order[validation:].sort().values
    apart = (train[0][held], train[1][held])
    if validation:
        train = (train[0][kept], train[1][kept])
    # From counts of the 256 values: exact, and without a copy as floats.
    counts = torch.stack([torch.bincount(c.flatten(), minlength=256) for c in train[0].unbind(1)]).double()
    values = torch.arange(256, dtype=torch.float64)
    mean = counts @ values / counts.sum(1)
    std = (counts @ values.square() / counts.sum(1) - mean.square()).sqrt()
    scale = (mean.float().view(-1, 1, 1), std.float().clamp_min(1e-6).view(-1, 1, 1))
    augment = CropFlip(crop, flip) if crop or flip else None
    probes = {VALIDATION: Split(*apart, scale)} if validation else {}
    return Data(name, "classes", Split(*train, scale, augment), Split(*test, scale), classes, info, probes)


def split(name: str, task: str, x: Tensor, y: Tensor, *, test: float, seed: int, outputs: int, **info: Any) -> Data:
    """Set a share of the samples apart for the test, chosen by the seed."""
    share = _check.number("test", test, low=0, high=1, open_low=True, open_high=True)
    order = torch.randperm(len(x), generator=seeded(seed, "split"))
    held = round(share * len(x))
    first, rest = order[:held], order[held:]
    return Data(name, task, Split(x[rest], y[rest]), Split(x[first], y[first]), outputs, info)


def _wide(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.long()
