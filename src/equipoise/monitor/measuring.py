"""Measure one step after the other: what is copied before it, summed after it, and turned into a row by the next."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor import attach, quantities, spectrum
from equipoise.monitor.assemble import Assembler
from equipoise.monitor.cadence import Cadence
from equipoise.monitor.decompose import GroupStep
from equipoise.monitor.faults import Faults
from equipoise.monitor.measure import Frame
from equipoise.monitor.pending import Step
from equipoise.monitor.recorded import META, UNTRAINED, record, untrained
from equipoise.monitor.tensors import names_of
from equipoise.monitor.writer import RunWriter


@dataclass(frozen=True)
class Arrived:
    """A measured step whose numbers are there.

    Attributes:
        number: of the step.
        row: one number for each column of the main layout.
        per: each quantity of `quantities.PER_TENSOR`, a number for each tensor.
        frame: the tensors.
        skipped: whether the step changed nothing.
    """

    number: int
    row: NDArray[np.float64]
    per: dict[str, NDArray[np.float64]]
    frame: Frame
    skipped: bool


class Measuring:
    """The step that is being measured, and the one before it whose numbers wait.

    Args:
        model: names the parameters.
        optimizer: whose steps.
        neurons: how many neurons of each tensor to sample.
        spectra: measure singular values at each k-th measured step; None as many as the cadence pays for.
        cadence: what the time is told to.
        first: whether this is the process that writes.
    """

    def __init__(
        self, model: torch.nn.Module | None, optimizer: Any, neurons: int, spectra: int | None, cadence: Cadence,
        first: bool,
    ) -> None:  # fmt: skip
        self._model, self._neurons, self._spectra_every = model, neurons, spectra
        self._cadence, self._first = cadence, first
        self.starts: dict[tuple[str, int], Tensor] = {}
        """Initial weights of the sampled neurons."""
        self.frame = self._new_frame(optimizer)
        self.open: Step | None = None
        """The step that is being taken, if it is measured."""
        self._memories: list[quantities.MemorySoFar] = []
        self._assembler: Assembler | None = None
        self._spectra: spectrum.Spectra | None = None
        self._waiting: Step | None = None
        self._measured = 0

    @torch.no_grad()
    def _new_frame(self, optimizer: Any) -> Frame:
        return Frame(optimizer, names_of(self._model), self._neurons, self.starts)

    @property
    def takes_part(self) -> bool:
        """Whether this process measures at all: the first one, or where parameters are sharded all of them."""
        return self._first or self.frame.sharded

    def remember(self, optimizer: Any, groups: list[GroupStep]) -> None:
        """Count a step in each group's memory."""
        self._memories += [quantities.MemorySoFar() for _ in range(len(self._memories), len(groups))]
        for memory, step, group in zip(self._memories, groups, optimizer.param_groups, strict=False):
            # L2 in SGD's gradient is magnified by momentum as the gradient is.
            kept = 1.0 - float(group.get("momentum") or 0.0) if step.coupled else 1.0
            memory.step(step.lr, step.lr * step.weight_decay / kept if step.coupled else step.lost)

    def begin(
        self, number: int, optimizer: Any, groups: list[GroupStep], closure: bool, writer: RunWriter | None
    ) -> None:
        """Measure what is there before a step.

        Args:
            number: of the step.
            optimizer: about to step.
            groups: what its groups say.
            closure: whether gradients come inside the step.
            writer: is told what the numbers will mean.
        """
        if not self.frame.fits(optimizer):
            self.frame, self._assembler = self._new_frame(optimizer), None
        if self._assembler is None:
            self._assembler = Assembler(self.frame, len(groups), self._neurons > 0)
            self._spectra = None if self.frame.sharded else spectrum.Spectra(self.frame)
            if writer is not None:
                writer.describe(tensors=self._assembler.infos, quantities=attach.of_groups(optimizer))
                writer.layout(self._assembler.layout)
                writer.meta(META, record(optimizer))
                writer.meta(UNTRAINED, untrained(names_of(self._model), self._model, optimizer))
                if self._spectra is not None:
                    writer.layout(self._spectra.layout)
        self.open = Step(
            number, self.frame, self._assembler, groups, closure, int(getattr(optimizer, "skipped", 0)),
            scale=None if closure else getattr(optimizer, "grad_scale", None),
        )  # fmt: skip
        self.frame.before(optimizer, grads=not closure, cautious=any(g.cautious for g in groups))

    def spectra(self, optimizer: Any, step: Step, writer: RunWriter | None) -> float:
        """Measure singular values where it is their turn; seconds that it took."""
        self._measured += 1
        spectra = self._spectra
        if spectra is None:
            return 0.0
        chosen = spectra.due(self._spectra_every, self._measured, self._cadence.credit)
        if not chosen:
            return 0.0
        start = time.perf_counter()
        row = spectra.row(optimizer, chosen, step.groups)
        if writer is not None:
            writer.append(step.number, row, kind="slow")
        seconds = time.perf_counter() - start
        spectra.learn(chosen, seconds)
        return seconds

    def send(self, optimizer: Any, step: Step) -> None:
        """Start moving the sums off the device."""
        groups = [[s.lr for s in step.groups], [s.weight_decay for s in step.groups]]
        groups += [[m.effective_steps for m in self._memories], [m.init_share for m in self._memories]]
        fixed = (self._cadence.step_time, self._cadence.share, *(x for part in groups for x in part))
        step.send(optimizer, self._first, self._cadence.account, fixed)
        self._waiting = step

    def receive(self, faults: Faults) -> Arrived | None:
        """The step whose numbers wait, where this process writes it; the next step to measure is chosen by it."""
        step, self._waiting = self._waiting, None
        if step is None:
            return None
        sent = step.receive()
        self._cadence.plan(step.number, sent.account if step.frame.sharded else None)
        if step.frame.sharded and sent.failed:
            faults.count += 1  # counted by all processes alike, so that all give up together
        if sent.failed or not self._first:
            return None
        row, per = step.row(sent)
        return Arrived(step.number, row, per, step.frame, sent.skipped)

    def failed(self, faults: Faults) -> None:
        """Measuring failed here: leave the step, but where other processes wait for its sums."""
        if self.open is not None:
            self.open.failed = True
            if not self.frame.sharded:
                self.open = None
        if not self.frame.sharded:
            faults.count += 1
