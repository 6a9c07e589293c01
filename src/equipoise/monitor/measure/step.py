"""A measured step: what its optimizers do, its numbers on their way from the device, and what becomes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.finding import Finding
from equipoise.monitor.attach import own_findings
from equipoise.monitor.attach.ranks import reduce_all
from equipoise.monitor.measure.assemble import Assembler, Measured
from equipoise.monitor.measure.frame import Frame
from equipoise.monitor.measure.spectra import Taken
from equipoise.optim.dynamics_of import GroupState

LOST = 0.5
"""Share of weights that low precision may leave unchanged before it is a finding."""


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


@dataclass(eq=False)
class MeasuredStep:
    """One measured step.

    Attributes:
        number: of the step.
        frame: its tensors.
        assembler: makes its row.
        groups: the numbers of each group.
        optimizer_steps: what each optimizer that has stepped did.
        failed: whether measuring it failed, on any process once it is received.
        seconds: that watching took for it.
        spectral: of them for spectra.
        slow: what was taken for spectra, where it was their turn.
        account: the first process's `Cadence.account`.
        spectra: of how many tensors it wants spectra next.
        measured: what its row is made of, once it is received.
        when: the time of its row.
        row: one number for each column of the main layout, once it is made.
        per: each quantity of `quantities.PER_TENSOR`, a number for each tensor, and ‖w‖ before as "norm_before".
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
    account: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    spectra: int = 0
    measured: Measured | None = None
    row: NDArray[np.float64] | None = None
    per: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    when: float = 0.0
    _flat: Tensor | None = None
    _event: Any = None

    def send(self, optimizers: int, first: bool, words: tuple[float, ...], fixed: tuple[float, ...]) -> None:
        """The step is over: start moving its numbers off the device, summed over all processes if it is sharded.

        Args:
            optimizers: how many optimizers there are.
            first: whether this is the first process, whose word counts for what is not a sum.
            words: what it has to say: its `Cadence.account`, and how many spectra are measured next.
            fixed: numbers of the row that are known already.
        """
        frame, steps = self.frame, [self.optimizer_steps.get(k) for k in range(optimizers)]
        skipped = [0.0 if t is None else t.skipped for t in steps]
        scales = [1.0 if t is None or t.scale is None else t.scale for t in steps]
        names = tuple(frame.names)
        self.measured = Measured(
            self.number, self.groups, names, (frame.stepped, frame.has_grad, frame.has_momentum), frame.ages, fixed
        )
        if frame.little:
            if not self.failed:
                skips, factors = (np.array([float(x) for x in some]) for some in (skipped, scales))
                self.measured.arrived(skips, factors, frame.take_copies().sums)
            return
        error: Exception | None = None
        flat: Tensor | None = None
        try:
            if not self.failed:
                said = [*scales, *words] if first else [0.0] * (optimizers + len(words))
                flat = frame.flat([*skipped, 0.0, *said])
        except Exception as caught:
            error, self.failed = caught, True
        if flat is None:  # the others must not wait, and are told
            said = [1.0] * optimizers + list(words) if first else [0.0] * (optimizers + len(words))
            flat = frame.nothing([0.0] * optimizers + [1.0, *said])
        if frame.sharded:
            reduce_all(flat)
        if flat.is_cuda:  # moved while training goes on, and waited for at the next step
            self._flat = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._flat = flat.cpu()
        if error is not None:
            raise error

    @property
    def received(self) -> bool:
        """Whether the numbers are there, and nothing needs to be waited for."""
        return self._event is None or self._event.query()

    def receive(self) -> None:
        """Take in the numbers, waited for if they are not there yet."""
        if self._flat is None:
            return
        if self._event is not None:
            self._event.synchronize()
        assert self.measured is not None
        numbers = self._flat.numpy()
        tail = numbers[self.frame.numbers :].astype(np.float64)
        n = (len(tail) - 6) // 2
        *account, spectra = tail[2 * n + 1 :].tolist()
        self.account, self.spectra, self.failed = tuple(account), int(spectra), tail[n] != 0.0
        self.measured.arrived(tail[:n], tail[n + 1 : 2 * n + 1], partial(self.frame.unpack, numbers))

    @property
    def update_lost(self) -> Finding | None:
        """The finding that low precision swallows most of a step; None where it does not, or nothing is known yet."""
        if self.row is None or not self.frame.low or self.measured is None or self.measured.skipped.any():
            return None
        lost = np.nan_to_num(self.per["unchanged"]) * (self.per["grad_norm"] > 0)
        worst = int(np.argmax(lost))
        tensor = self.frame.tensors[worst]
        if lost[worst] <= LOST:
            return None
        return own_findings.update_lost(tensor.name, self.number, float(lost[worst]), str(tensor.p.dtype), LOST)
