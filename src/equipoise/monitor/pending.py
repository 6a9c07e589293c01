"""A step that is being measured, or whose numbers are on their way from the device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.assemble import Assembler
from equipoise.monitor.decompose import GroupStep
from equipoise.monitor.measure import Frame
from equipoise.monitor.quantities import Hyper
from equipoise.monitor.ranks import reduce_all


@dataclass(frozen=True)
class Sent:
    """What has arrived of a step, the same on all processes.

    Attributes:
        numbers: the sums, as `Frame.flat` made them.
        scale: what gradients were multiplied by.
        skipped: whether the step changed nothing.
        failed: whether measuring failed on any process.
        account: the first process's `Cadence.account`.
    """

    numbers: NDArray[Any]
    scale: float
    skipped: bool
    failed: bool
    account: tuple[float, float, float]


@dataclass
class Step:
    """One measured step.

    Attributes:
        number: of the step.
        frame: its tensors.
        assembler: makes its row.
        groups: the numbers of each group.
        closure: whether gradients come inside the step.
        skips: how many steps the optimizer had skipped before.
        scale: what gradients are multiplied by; None for 1.
        failed: whether measuring it failed.
    """

    number: int
    frame: Frame
    assembler: Assembler
    groups: list[GroupStep]
    closure: bool
    skips: int
    scale: Any = None
    failed: bool = False
    _flat: Tensor | None = None
    _arrived: Any = None
    _hyper: Hyper | None = None
    _has: tuple[NDArray[np.bool_], NDArray[np.bool_]] | None = None
    _fixed: tuple[float, ...] = ()

    def send(self, optimizer: Any, first: bool, account: tuple[float, float, float], fixed: tuple[float, ...]) -> None:
        """Start moving the sums off the device, summed over all processes where parameters are sharded.

        Args:
            optimizer: has just stepped.
            first: whether this is the first process, whose word counts for what is not a sum.
            account: this process's `Cadence.account`.
            fixed: numbers of the row that are known already.
        """
        self._hyper = self.assembler.hyper(optimizer, self.groups)
        self._has, self._fixed = (self.frame.has_grad, self.frame.has_momentum), fixed
        skipped = float(int(getattr(optimizer, "skipped", 0)) > self.skips)
        infinite = getattr(optimizer, "found_inf", None)
        scale = 1.0 if self.scale is None else self.scale
        words = [scale, *account] if first else [0.0] * 4
        flat = self.frame.flat([skipped if infinite is None else infinite, float(self.failed), *words])
        if self.frame.sharded:
            reduce_all(flat)
        if flat.is_cuda:  # moved while training goes on, and waited for at the next step
            self._flat = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()
        else:
            self._flat = flat.cpu()

    def receive(self) -> Sent:
        """The numbers, waited for if they are not there yet."""
        assert self._flat is not None
        if self._arrived is not None:
            self._arrived.synchronize()
        numbers = self._flat.numpy()
        skipped, failed, scale, *account = numbers[self.frame.numbers :].tolist()
        return Sent(numbers, scale, skipped != 0.0, failed != 0.0, (account[0], account[1], account[2]))

    def row(self, sent: Sent) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        """The row of the step, and the quantities of each tensor.

        Args:
            sent: what has arrived.
        """
        assert self._hyper is not None
        assert self._has is not None
        hyper = self._hyper.still() if sent.skipped else self._hyper
        return self.assembler.row(sent.numbers, hyper, self._has, sent.scale, [float(sent.skipped), *self._fixed])
