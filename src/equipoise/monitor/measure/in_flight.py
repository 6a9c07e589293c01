"""A step that is being measured, or whose numbers are on their way from the device."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.attach.ranks import reduce_all
from equipoise.monitor.measure.assemble import Assembler, Presence
from equipoise.monitor.measure.frame import Frame
from equipoise.monitor.measure.quantities import Hyper
from equipoise.monitor.measure.spectra import Taken
from equipoise.monitor.measure.sums import RowSums
from equipoise.optim.dynamics_of import GroupState


@dataclass(frozen=True)
class ReceivedSums:
    """What has arrived of a step, the same on all processes.

    Attributes:
        sums: the sums.
        angles: those of the sampled rows.
        scales: for each optimizer what gradients were multiplied by.
        skipped: for each optimizer whether its step changed nothing.
        failed: whether measuring failed on any process.
        account: the first process's `Cadence.account`.
        spectra: of how many tensors it wants spectra next.
    """

    sums: RowSums
    angles: NDArray[np.float64]
    scales: NDArray[np.float64]
    skipped: NDArray[np.bool_]
    failed: bool
    account: tuple[float, float, float, float]
    spectra: int


@dataclass
class OptimizerStep:
    """What one optimizer does in a step.

    Attributes:
        closure: whether gradients come inside the step.
        skips: how many steps the optimizer had skipped before.
        scale: what gradients are multiplied by; None for 1.
        skipped: whether it changed nothing; a tensor where the device knows.
        ended: whether its step came to an end.
    """

    closure: bool
    skips: int
    scale: Any = None
    skipped: Any = 0.0
    ended: bool = False

    @staticmethod
    def begin(optimizer: Any, closure: bool) -> OptimizerStep:
        """What is known before.

        Args:
            optimizer: about to step.
            closure: whether it was given a closure.
        """
        scale = None if closure else getattr(optimizer, "grad_scale", None)
        return OptimizerStep(closure, int(getattr(optimizer, "skipped", 0)), scale)

    def end(self, optimizer: Any) -> None:
        """Take note of what is known after; GradScaler takes its word back soon."""
        self.ended = True
        infinite = getattr(optimizer, "found_inf", None)
        self.skipped = float(int(getattr(optimizer, "skipped", 0)) > self.skips) if infinite is None else infinite

    @property
    def skipped_for_sure(self) -> bool:
        """Whether it changed nothing, as far as is known without waiting for a device."""
        away = isinstance(self.skipped, Tensor) and self.skipped.device.type != "cpu"
        return not away and bool(self.skipped)


@dataclass
class StepInFlight:
    """One measured step.

    Attributes:
        number: of the step.
        frame: its tensors.
        assembler: makes its row.
        groups: the numbers of each group.
        turns: what each optimizer that has stepped did.
        failed: whether measuring it failed.
        seconds: that watching took for it.
        spectral: of them for spectra.
        slow: what was taken for spectra, where it was their turn.
    """

    number: int
    frame: Frame
    assembler: Assembler
    groups: list[GroupState]
    optimizer_steps: dict[int, OptimizerStep]
    failed: bool = False
    seconds: float = 0.0
    spectral: float = 0.0
    slow: list[Taken] = field(default_factory=list)
    _flat: Tensor | None = None
    _event: Any = None
    _hyper: Hyper | None = None
    _fixed: tuple[float, ...] = ()
    _presence: Presence | None = None
    _optimizers: int = 1

    def pack(
        self, hyper: Hyper, optimizers: int, first: bool, words: tuple[float, ...], fixed: tuple[float, ...]
    ) -> Tensor:
        """All numbers of the step in one flat tensor.

        Args:
            hyper: hyperparameters of each tensor.
            optimizers: how many optimizers there are.
            first: whether this is the first process, whose word counts for what is not a sum.
            words: what it has to say: its `Cadence.account`, and how many spectra are measured next.
            fixed: numbers of the row that are known already.
        """
        self._hyper, self._fixed = hyper, fixed
        frame = self.frame
        self._presence = frame.stepped, frame.has_grad, frame.has_momentum
        steps = [self.optimizer_steps.get(k) for k in range(optimizers)]
        skipped = [0.0 if t is None else t.skipped for t in steps]
        scales = [1.0 if t is None or t.scale is None else t.scale for t in steps]
        said = [*scales, *words] if first else [0.0] * (optimizers + len(words))
        return frame.flat([*skipped, float(self.failed), *said])

    def nothing(self, optimizers: int, first: bool, words: tuple[float, ...]) -> Tensor:
        """As `pack`, for a step whose measuring failed here; arguments as there."""
        said = [1.0] * optimizers + list(words) if first else [0.0] * (optimizers + len(words))
        return self.frame.nothing([0.0] * optimizers + [1.0, *said])

    def send(self, flat: Tensor, optimizers: int) -> None:
        """Start moving the numbers off the device, summed over all processes where parameters are sharded.

        Args:
            flat: the numbers.
            optimizers: how many optimizers there are.
        """
        self._optimizers = optimizers
        if self.frame.sharded:
            reduce_all(flat)
        if flat.is_cuda:  # moved while training goes on, and waited for at the next step
            self._flat = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._flat = flat.cpu()

    @property
    def received(self) -> bool:
        """Whether the numbers are there, and nothing needs to be waited for."""
        return self._event is None or self._event.query()

    def receive(self) -> ReceivedSums:
        """The numbers, waited for if they are not there yet."""
        assert self._flat is not None
        if self._event is not None:
            self._event.synchronize()
        numbers, n = self._flat.numpy(), self._optimizers
        tail = numbers[self.frame.numbers :].astype(np.float64)
        *account, spectra = tail[2 * n + 1 :].tolist()
        scales, skipped = tail[n + 1 : 2 * n + 1], tail[:n] != 0.0
        sums = self.frame.unpack(numbers)
        return ReceivedSums(*sums, scales, skipped, tail[n] != 0.0, tuple(account), int(spectra))

    def row(self, received: ReceivedSums) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """The row of the step, and the quantities of each tensor.

        Args:
            received: the numbers.
        """
        assert self._hyper is not None
        assert self._presence is not None
        skipped = bool(received.skipped.any())
        hyper = self._hyper.still(received.skipped[self.frame.owner]) if skipped else self._hyper
        fixed = [float(skipped), *self._fixed]
        scales = received.scales[self.frame.owner]
        return self.assembler.row(self.number, received.sums, received.angles, hyper, self._presence, scales, fixed)
