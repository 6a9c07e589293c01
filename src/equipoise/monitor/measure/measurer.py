"""Measure steps: copy weights before a step, compute sums after it, and make a row of them at the next."""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch import Tensor

from equipoise.monitor.attach.cadence import Cadence
from equipoise.monitor.attach.ranks import all_well
from equipoise.monitor.attach.registry import OptimizerRegistry, groups_in
from equipoise.monitor.measure import quantities
from equipoise.monitor.measure.assemble import Assembler
from equipoise.monitor.measure.frame import Frame
from equipoise.monitor.measure.spectra import Spectra
from equipoise.monitor.measure.step import MeasuredStep, OptimizerStep
from equipoise.monitor.measure.tensors import names_of, roles_of
from equipoise.monitor.runs.recorded import META, UNTRAINED, record, untrained
from equipoise.monitor.store.writer import RunWriter
from equipoise.optim.dynamics_of import GroupState, group_state


class TogetherError(RuntimeError):
    """Measuring failed on one process, and all of them know."""


class HeldStep(NamedTuple):
    """What is kept of an optimizer's step that is not measured, until its next one.

    Attributes:
        optimizer_step: what it does.
        grads: the gradients that it stepped with.
        versions: how often each of them had been changed.
    """

    optimizer_step: OptimizerStep
    grads: list[Tensor | None]
    versions: list[int]


class Measurer:
    """The step that is being measured, and the one before it whose numbers wait.

    Args:
        model: names the parameters.
        registry: the optimizers.
        neurons: how many neurons of each tensor to sample.
        spectra: measure singular values at each k-th measured step; None as many as there are seconds for.
        first: whether this is the process that writes.
        norms: norms of tensors when they were first seen, of an earlier part of the run.
    """

    def __init__(
        self,
        model: torch.nn.Module | None,
        registry: OptimizerRegistry,
        neurons: int,
        spectra: int | None,
        first: bool,
        norms: dict[str, float],
    ) -> None:
        self._model, self._registry, self._neurons, self._spectra_every = model, registry, neurons, spectra
        self._first, self._norms = first, norms
        self.starts: dict[tuple[str, int], Tensor] = {}
        """Initial weights of the sampled neurons."""
        self.frame = self._new_frame()
        self.open: MeasuredStep | None = None
        """The step that is being taken, if it is measured."""
        self._taken = [0] * len(registry)
        self._memories: list[quantities.MemorySoFar] = []
        self._assembler: Assembler | None = None
        self._spectra: Spectra | None = None
        self._chosen: list[int] = []
        self._afforded = 0
        self._waiting: MeasuredStep | None = None
        self._kept: dict[int, HeldStep] = {}
        self._groups: dict[int, GroupState] = {}
        self._measured = 0

    @torch.no_grad()
    def _new_frame(self) -> Frame:
        return Frame(self._registry, names_of(self._model), self._neurons, self.starts)

    @property
    def takes_part(self) -> bool:
        """Whether this process measures at all: the first one, or where parameters are sharded all of them."""
        return self._first or self.frame.sharded

    def count(self, owner: int, groups: list[GroupState], first: int, total: int, times: int = 1) -> None:
        """Count a step of one optimizer, and in each of its groups' memories where they could be read.

        Args:
            owner: number of the optimizer.
            groups: the numbers of its groups; empty where they were not read.
            first: number of the first of them among all.
            total: how many there are in all.
            times: how many such steps.
        """
        self._taken[owner] += times
        self._memories += [quantities.MemorySoFar() for _ in range(total - len(self._memories))]
        for i, step in enumerate(groups, first):
            lost = step.decays
            for _ in range(times):
                self._memories[i].step(step.lr, lost)
            self._groups[i] = step

    # The step, in its order

    def begin(self, number: int, owner: int, writer: RunWriter | None, credit: float) -> None:
        """A step of training begins that is measured.

        Args:
            number: of the step.
            owner: number of the optimizer that begins it, and has been counted.
            writer: is told what the numbers will mean.
            credit: seconds that spectra may take.
        """
        self._measured += 1
        self._kept.clear()  # it was of the step before
        registry = self._registry
        fits = self.frame.fingerprint.fits(registry, number)
        if self._assembler is None or self._spectra is None or not fits:
            assembler, spectra = self._renew(fits, writer)
        else:
            assembler, spectra = self._assembler, self._spectra
        afforded = self._afforded if self.frame.sharded else self._affords(spectra, credit)
        self._chosen = spectra.due(self._spectra_every, self._measured, afforded)
        known = registry.groups_of(owner)
        groups = [
            self._groups[i] if i in known and i in self._groups else group_state(one, group)
            for i, (one, group) in enumerate((one, group) for one in registry.each for group in groups_in(one))
        ]
        self.open = MeasuredStep(number, self.frame, assembler, groups, {})
        self.frame.begin(cautious=any(g.cautious for g in groups))

    def _affords(self, spectra: Spectra, credit: float) -> int:
        """How many tensors' spectra the seconds go for; they are asked where nothing else decides."""
        return spectra.affords(credit) if self._spectra_every is None else 0

    def _renew(self, fits: bool, writer: RunWriter | None) -> tuple[Assembler, Spectra]:
        """Look at the parameters again, and say what they are."""
        error: Exception | None = None
        try:
            if not fits:
                self._assembler = None
                self.frame = self._new_frame()
            assembler = Assembler(self.frame, len(self._registry.param_groups), roles_of(self._model))
            spectra = Spectra(self.frame, self._first)
        except Exception as caught:
            error, assembler, spectra = caught, None, None
        if self.frame.sharded and not all_well(error is None):
            raise TogetherError("looking at the parameters failed on a process") from error
        if error is not None or assembler is None or spectra is None:
            raise error or RuntimeError("no parameters")
        self._assembler, self._spectra = assembler, spectra
        if writer is not None:
            writer.describe(tensors=assembler.infos(self._norms), quantities=self._registry.quantities)
            writer.layout(assembler.layout)
            writer.layout(spectra.layout)
            writer.meta(META, record(self._registry.each))
            writer.meta(UNTRAINED, untrained(names_of(self._model), self._model, self._registry.param_groups))
        return assembler, spectra

    def before(self, owner: int, closure: bool, groups: list[GroupState]) -> None:
        """Measure what is there before an optimizer steps.

        Args:
            owner: number of the optimizer.
            closure: whether gradients come inside the step.
            groups: what its groups say.
        """
        step = self.open
        assert step is not None
        step.optimizer_steps[owner] = OptimizerStep.begin(self._registry.each[owner], closure)
        where = self._registry.groups_of(owner)
        step.groups[where.start : where.stop] = groups
        if not step.failed:
            self.frame.before(owner, self._taken[owner] - 1, grads=not closure)

    # The last step, if it is not one of those

    @property
    def can_keep(self) -> bool:
        """Whether what a step needs to be measured later may be kept: the weights are little, and all here."""
        return self.frame.little and self._assembler is not None

    def keep(self, owner: int, new: bool, closure: bool) -> None:
        """Keep what is needed to measure a step afterwards, should it be the last one.

        Args:
            owner: number of the optimizer that is about to step.
            new: whether a step of training begins with it.
            closure: whether gradients come inside the step.
        """
        if new:
            self._kept.clear()
        if not closure:
            grads = self.frame.hold(owner)
            versions = [0 if g is None else g._version for g in grads]
            self._kept[owner] = HeldStep(OptimizerStep.begin(self._registry.each[owner], closure), grads, versions)

    def forget(self) -> None:
        """Let go of what was kept."""
        self._kept.clear()

    def stepped(self, owner: int) -> None:
        """An optimizer whose step is not measured has taken it."""
        kept = self._kept.get(owner)
        if kept is not None:
            kept.optimizer_step.end(self._registry.each[owner])

    def last(self, number: int) -> bool:
        """Training has ended: measure its last step from what was kept of it; whether all of that is as it was.

        Args:
            number: of the step.
        """
        kept, self._kept = self._kept, {}
        whole = self._registry.stepped == kept.keys() and all(k.optimizer_step.ended for k in kept.values())
        same = all(g is None or g._version == v for k in kept.values() for g, v in zip(*k[1:], strict=True))
        self.frame.fingerprint.forget()
        if not (kept and whole and same and self.frame.fingerprint.fits(self._registry, number)) or self.busy:
            return False
        groups = [self._groups[i] for i in range(len(self._registry.param_groups))]
        assert self._assembler is not None
        self._chosen = []
        self.open = step = MeasuredStep(
            number, self.frame, self._assembler, groups, {k: v.optimizer_step for k, v in kept.items()}
        )
        self.frame.begin(cautious=any(g.cautious for g in groups))
        for owner, one in kept.items():
            self.frame.held(owner, self._taken[owner] - 1, one.grads)
            self.frame.after(owner, False, step.assembler.cautious(groups))
        return True

    def after(self, owner: int, keep: bool) -> None:
        """Measure what an optimizer's step has done.

        Args:
            owner: number of the optimizer.
            keep: whether to keep the copy of its weights, as the next step needs it again.
        """
        step = self.open
        assert step is not None
        optimizer_step = step.optimizer_steps[owner]
        optimizer_step.end(self._registry.each[owner])
        try:
            if not step.failed:
                step.frame.after(owner, optimizer_step.closure, step.assembler.cautious(step.groups), self._chosen)
        except Exception:
            step.failed = True
            raise
        finally:
            try:
                if step.frame.sharded or not step.failed:
                    self._measure_spectra(owner, step)
            finally:
                if not keep:
                    step.frame.let_go(owner)

    def _measure_spectra(self, owner: int, step: MeasuredStep) -> None:
        """Measure singular values where it is their turn; all processes do their part where tensors are sharded."""
        chosen = [i for i in self._chosen if step.frame.tensors[i].owner == owner]
        if (
            not chosen
            or self._spectra is None
            or (not step.frame.sharded and step.optimizer_steps[owner].skipped_for_sure)
        ):
            return
        start = time.perf_counter()
        held = sum(taken.size for taken in step.slow)
        step.slow += self._spectra.measure(self._registry, chosen, step.groups, step.failed, held)
        step.spectral += time.perf_counter() - start

    def send(self, cadence: Cadence, keep: bool) -> None:
        """Start moving the sums off the device; the step is over.

        Args:
            cadence: has the times that are stored with it.
            keep: whether to keep its memory, as the next step needs it again.
        """
        step, self.open = self.open, None
        assert step is not None
        ended = all(one.ended for one in step.optimizer_steps.values())
        step.failed |= not ended  # something raised inside a step
        memories = self._memories
        afforded = self._affords(self._spectra, cadence.credit) if self._spectra and step.frame.sharded else 0
        fixed = [cadence.step_time, cadence.share]
        fixed += [s.lr for s in step.groups] + [s.weight_decay for s in step.groups]
        fixed += [m.effective_steps for m in memories] + [m.init_share for m in memories]
        self._waiting = step
        try:
            step.send(len(self._registry), self._first, (*cadence.account, float(afforded)), tuple(fixed))
        finally:
            if not keep:
                step.frame.release()

    @property
    def busy(self) -> bool:
        """Whether a step is being measured, or the numbers of one wait."""
        return self.open is not None or self._waiting is not None

    @property
    def ready(self) -> bool:
        """Whether numbers have arrived that nobody has received."""
        return self._waiting is not None and self._waiting.received

    def receive(self) -> MeasuredStep | None:
        """The step whose numbers waited; None if there is none."""
        step, self._waiting = self._waiting, None
        if step is not None:
            step.receive()
            self._afforded = step.spectra
        return step

    def solve_spectra(self, step: MeasuredStep, writer: RunWriter | None) -> float:
        """Make a row of what was taken for spectra, now that it has arrived; the seconds that this took.

        Args:
            step: received, and not failed.
            writer: stores the row.
        """
        if self._spectra is None or not step.slow:
            return 0.0
        start = time.perf_counter()
        row = self._spectra.row(step.slow)
        seconds = time.perf_counter() - start
        self._spectra.learn([taken.index for taken in step.slow], step.spectral + seconds)
        if writer is not None:
            writer.append(step.number, row, kind="slow")
        return seconds

    def abandon(self) -> None:
        """Training ends inside a step: where sums are taken over all processes, the others are somewhere else."""
        if self.frame.sharded:
            self.open = None

    def failed(self) -> bool:
        """Measuring failed here: leave the step, but where other processes wait; whether it is left."""
        if self.frame.sharded:
            if self.open is not None:
                self.open.failed = True
            return False
        self.open = None
        self.frame.fingerprint.forget()  # the parameters may have changed unseen
        return True
