"""Attach to any training loop and store what every layer does: `watch`."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from equipoise.monitor import attach, notes, quantities, sending, spectrum
from equipoise.monitor.assemble import Assembler
from equipoise.monitor.cadence import Cadence
from equipoise.monitor.decompose import GroupStep, group_step
from equipoise.monitor.logged import Logged
from equipoise.monitor.measure import Frame
from equipoise.monitor.pending import Step
from equipoise.monitor.ranks import rank_of, same_everywhere
from equipoise.monitor.sinks import Sink
from equipoise.monitor.tensors import names_of
from equipoise.monitor.writer import RunWriter
from equipoise.planner.finding import Finding
from equipoise.theory import _check

log = logging.getLogger("equipoise.monitor")

GIVE_UP = 3
"""After so many failures nothing more is measured."""

LOST = 0.5
"""Share of weights that low precision may leave unchanged before it is a finding."""


def watch(
    model: torch.nn.Module | None,
    optimizer: Any,
    path: str | os.PathLike[str],
    *,
    every: int | None = None,
    overhead: float = 0.01,
    neurons: int = 2,
    spectra: int | None = None,
    resume: bool | int = False,
    meta: Mapping[str, Any] | None = None,
    sinks: Sequence[Sink | str] = (),
    strict: bool = False,
) -> Watch:
    """Measure what every step does to every layer, and store it as a run.

    Nothing about training changes, to the last bit. On measured steps one copy of the parameters is held.

    Args:
        model: names the parameters; may be compiled, or wrapped by DDP or FSDP2. None: they are called by number.
        optimizer: any torch optimizer, or accelerate's.
        path: directory of the run.
        every: measure each k-th step, and the first. Default: steps 1, 2, 4, …, 64, then as many as `overhead`
            pays for.
        overhead: share of the training time that watching may take; where `every` is given, that spectra may take.
        neurons: how many neurons of each tensor to follow one by one; 0 leaves out quantiles over neurons, too.
        spectra: measure singular values at each k-th measured step; 0 never. Default: tensors in turn, as many as
            `overhead` pays for.
        resume: go on with a run that is there: True from its last step, a number from that step.
        meta: what to remember about the run, anything that JSON can hold.
        sinks: where to send a summary as well: "tensorboard", "wandb", "mlflow", "trackio", "logging", or objects as
            in `equipoise.monitor.sinks`.
        strict: raise what goes wrong instead of noting it, for tests.

    Returns:
        A `Watch`, to be closed, or used as a context.

    >>> import tempfile
    >>> from equipoise.monitor import Run
    >>> model = torch.nn.Linear(4, 3)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with watch(model, optimizer, directory, every=1) as seen:
    ...         for _ in range(3):
    ...             loss = model(torch.ones(2, 4)).square().mean()
    ...             loss.backward()
    ...             optimizer.step()
    ...             seen.log(loss=loss)
    ...     with Run.open(directory) as run:
    ...         len(run.series("rotation", "weight"))
    3
    """
    return Watch(model, optimizer, path, every, overhead, neurons, spectra, resume, meta, sinks, strict)


class Watch:
    """An attached watch; made by `watch`, which explains its arguments."""

    def __init__(
        self,
        model: torch.nn.Module | None,
        optimizer: Any,
        path: str | os.PathLike[str],
        every: int | None,
        overhead: float,
        neurons: int,
        spectra: int | None,
        resume: bool | int,
        meta: Mapping[str, Any] | None,
        sinks: Sequence[Sink | str],
        strict: bool,
    ) -> None:
        sinks = sending.checked(sinks)
        self._optimizer = attach.hooked(optimizer)
        self._neurons = _check.whole("neurons", neurons)
        self._spectra_every = None if spectra is None else _check.whole("spectra", spectra)
        self._strict = strict
        self._model = model
        self.findings: list[Finding] = []
        """What went wrong with the watching itself, and what it saw that should be known at once."""
        self._starts: dict[tuple[str, int], Tensor] = {}
        self._frame = self._new_frame()
        self._rank, _ = rank_of()
        self.step = attach.last_step(path) if resume is True else int(resume)
        if self._frame.sharded:
            self.step = same_everywhere(self.step)
        """Number of the last step that was taken."""
        self._cadence = Cadence(every, overhead, self.step)
        self._sending = sending.Sending(
            sinks if self._rank == 0 else (), path, self.step, resume is not False, self._note, strict
        )
        self._writer: RunWriter | None = None
        if self._rank == 0:
            described = [*quantities.GLOBAL, *quantities.PER_TENSOR, *spectrum.QUANTITIES]
            self._writer = RunWriter(
                path, meta={"optimizer": type(self._optimizer).__name__, "torch": torch.__version__} | dict(meta or {}),
                quantities=described, resume=resume, strict=strict,
            )  # fmt: skip
        self._logged = Logged(self._writer)
        self._sending.open(self._writer)
        self._memories: list[quantities.MemorySoFar] = []
        self._assembler: Assembler | None = None
        self._spectra: spectrum.Spectra | None = None
        self._open: Step | None = None
        self._waiting: Step | None = None
        self._measured = self._failures = 0
        self._own = 0.0
        self._tick: float | None = None
        self._closed = False
        self._handles = [
            self._optimizer.register_step_pre_hook(torch.compiler.disable(self._before)),
            self._optimizer.register_step_post_hook(torch.compiler.disable(self._after)),
        ]

    # What a user calls

    def log(self, **numbers: float | Tensor) -> None:
        """Store numbers such as the loss with the last step; call it after `optimizer.step()`.

        A tensor is kept as it is, and moved off its device later, so that nothing waits for it.

        Args:
            numbers: by name: a number, or a tensor with one element.
        """
        if self._writer is None or self._closed:
            return
        try:
            self._logged.add(self.step, numbers)
        except Exception as error:
            self._fail(error)

    def close(self, status: str = "finished") -> None:
        """Store what waits, say how the run ended, and let go of the optimizer. More calls do nothing.

        Args:
            status: "finished" or "crashed".
        """
        if self._closed:
            return
        for handle in self._handles:
            handle.remove()
        try:
            self._finish()
            self._logged.flush()
        except Exception as error:
            self._fail(error)
        finally:
            self._closed = True
            self._frame.release()
            try:
                self._sending.close(status, self._logged)
            finally:
                if self._writer is not None:
                    self._writer.close(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close("finished" if kind is None else "crashed")

    @property
    def share(self) -> float:
        """The time that watching took so far, as a share of training's."""
        return self._cadence.share

    # Hooks

    @torch.no_grad()
    def _before(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        start = time.perf_counter()
        if self._tick is not None:
            self._cadence.trained_for(max(0.0, start - self._tick - self._own))
        self._tick, self._own = start, 0.0
        try:
            self._finish()
            self.step += 1
            due = self._failures < GIVE_UP and self._cadence.due(self.step) and self._takes_part
            groups = (
                [group_step(optimizer, g) for g in optimizer.param_groups] if due or attach.cheap(optimizer) else []
            )
            self._remember(optimizer, groups)
            if due:
                self._begin(optimizer, groups, attach.has_closure(args, kwargs))
        except Exception as error:
            self._fail(error)
        self._own += time.perf_counter() - start
        if self._open is None:
            self._cadence.also(self._own)

    @torch.no_grad()
    def _after(self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._open is None:
            return
        start = time.perf_counter()
        step, self._open = self._open, None
        spectral = 0.0
        try:
            if not step.failed:
                step.frame.after(optimizer, step.closure, step.assembler.cautious(step.groups))
                spectral = self._measure_spectra(optimizer, step)
        except Exception as error:
            step.failed = True
            self._fail(error)
        try:
            self._send(optimizer, step)
        except Exception as error:
            self._fail(error)
        if not (self._cadence.every == 1 and self._failures == 0):  # kept where the next step needs it again
            step.frame.release()
        self._own += time.perf_counter() - start
        self._cadence.watched_for(self._own, spectral)

    @property
    def _takes_part(self) -> bool:
        return self._rank == 0 or self._frame.sharded

    @torch.no_grad()
    def _new_frame(self) -> Frame:
        return Frame(self._optimizer, names_of(self._model), self._neurons, self._starts)

    def _remember(self, optimizer: Any, groups: list[GroupStep]) -> None:
        """Count a step in each group's memory."""
        self._memories += [quantities.MemorySoFar() for _ in range(len(self._memories), len(groups))]
        for memory, step, group in zip(self._memories, groups, optimizer.param_groups, strict=False):
            # L2 in SGD's gradient is magnified by momentum as the gradient is.
            kept = 1.0 - float(group.get("momentum") or 0.0) if step.coupled else 1.0
            memory.step(step.lr, step.lr * step.weight_decay / kept if step.coupled else step.lost)

    def _begin(self, optimizer: Any, groups: list[GroupStep], closure: bool) -> None:
        if not self._frame.fits(optimizer):
            self._frame, self._assembler = self._new_frame(), None
        if self._assembler is None:
            self._assembler = Assembler(self._frame, len(groups), self._neurons > 0)
            self._spectra = None if self._frame.sharded else spectrum.Spectra(self._frame)
            if self._writer is not None:
                self._writer.describe(tensors=self._assembler.infos, quantities=attach.of_groups(optimizer))
                self._writer.layout(self._assembler.layout)
                if self._spectra is not None:
                    self._writer.layout(self._spectra.layout)
        step = Step(
            self.step, self._frame, self._assembler, groups, closure, int(getattr(optimizer, "skipped", 0)),
            scale=None if closure else getattr(optimizer, "grad_scale", None),
        )  # fmt: skip
        self._open = step
        self._frame.before(optimizer, grads=not closure, cautious=any(g.cautious for g in groups))

    def _measure_spectra(self, optimizer: Any, step: Step) -> float:
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
        if self._writer is not None:
            self._writer.append(step.number, row, kind="slow")
        seconds = time.perf_counter() - start
        spectra.learn(chosen, seconds)
        return seconds

    def _send(self, optimizer: Any, step: Step) -> None:
        """Start moving the sums off the device."""
        groups = [[s.lr for s in step.groups], [s.weight_decay for s in step.groups]]
        groups += [[m.effective_steps for m in self._memories], [m.init_share for m in self._memories]]
        fixed = (self._cadence.step_time, self._cadence.share, *(x for part in groups for x in part))
        step.send(optimizer, self._rank == 0, self._cadence.account, fixed)
        self._waiting = step

    def _finish(self) -> None:
        """Make a row of the step whose numbers wait, and choose the next step to measure."""
        step, self._waiting = self._waiting, None
        if step is None:
            return
        sent = step.receive()
        self._cadence.plan(step.number, sent.account if step.frame.sharded else None)
        if step.frame.sharded and sent.failed:
            self._failures += 1  # counted by all processes alike, so that all give up together
        if sent.failed or self._writer is None:
            return
        row, per = step.row(sent)
        self._writer.append(step.number, row)
        self._logged.flush()
        self._sending.measured(step.number, step.assembler, row, per, self._logged)
        self._cadence.also(self._sending.take_seconds())
        if not sent.skipped and not self._noted("update-lost"):
            lost = np.nan_to_num(per["unchanged"]) * (per["grad_norm"] > 0)
            worst = int(np.argmax(lost))
            tensor = step.frame.tensors[worst]
            if lost[worst] > LOST:
                self._note(notes.update_lost(tensor.name, step.number, float(lost[worst]), str(tensor.p.dtype), LOST))

    def _note(self, finding: Finding) -> None:
        self.findings.append(finding)
        if self._writer is not None:
            self._writer.finding(finding, self.step)
        self._sending.finding(self.step, finding)

    def _noted(self, code: str) -> bool:
        return any(f.code == code for f in self.findings)

    def _fail(self, error: Exception) -> None:
        """Note a failure once; training goes on."""
        if self._strict:
            raise error
        if self._open is not None:
            self._open.failed = True  # it goes on where other processes wait for its sums
            if not self._frame.sharded:
                self._open = None
        if not self._frame.sharded:
            self._failures += 1
        if self._noted("watch-failed"):
            return
        log.warning("watching failed at step %d and goes on without it: %r", self.step, error, exc_info=error)
        self._note(notes.watch_failed(self.step, error, GIVE_UP))
