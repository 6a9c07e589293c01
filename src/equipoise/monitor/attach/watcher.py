"""Attach to any training loop and store what every layer does: `watch`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from equipoise import _check
from equipoise.finding import Finding
from equipoise.monitor.attach.backlog import Backlog
from equipoise.monitor.attach.cadence import Cadence
from equipoise.monitor.attach.endings import STATUSES, Ending, status_of
from equipoise.monitor.attach.faults import Faults
from equipoise.monitor.attach.finite import FiniteWatch
from equipoise.monitor.attach.logged import Logged, named, whole
from equipoise.monitor.attach.messages import Messenger
from equipoise.monitor.attach.ranks import rank_of, same_everywhere
from equipoise.monitor.attach.registry import OptimizerRegistry, cheap, groups_in, has_closure
from equipoise.monitor.attach.resume import earlier
from equipoise.monitor.attach.review import Reviewing
from equipoise.monitor.forward.collector import ForwardPass
from equipoise.monitor.measure import quantities, singular_values
from equipoise.monitor.measure.frame import Frame
from equipoise.monitor.measure.measurer import Measurer, TogetherError
from equipoise.monitor.measure.rows import RowMaker
from equipoise.monitor.runs.recorded import START
from equipoise.monitor.sinks import Sink, sending
from equipoise.monitor.store.schedule_changes import ChangePointWriter
from equipoise.monitor.store.schema import checked_path
from equipoise.monitor.store.writer import RunWriter
from equipoise.optim.dynamics_of import GroupState, group_state
from equipoise.planner.live import judge_optimizers
from equipoise.planner.setting import told


def watch(
    model: torch.nn.Module | None,
    optimizer: Any,
    path: str | os.PathLike[str],
    *,
    every: int | None = None,
    overhead: float = 0.01,
    steps: int | None = None,
    neurons: int = 2,
    spectra: int | None = None,
    forward: bool = False,
    resume: bool | int = False,
    finetune: bool | None = None,
    meta: Mapping[str, Any] | None = None,
    sinks: Sequence[Sink | str] = (),
    diagnose: bool = True,
    quiet: bool = False,
    strict: bool = False,
) -> Watch:
    """Measure what every step does to every layer, and store it as a run.

    Training does not change by a bit. On measured steps one copy of the parameters is held.

    Args:
        model: names the parameters; may be compiled, or wrapped by DDP or FSDP2. None: parameters are numbered.
        optimizer: any torch optimizer, or accelerate's; or a list, such as Muon for matrices and AdamW for the rest.
        path: directory of the run.
        every: measure the first and every k-th step. Default: enough steps to cover the whole run (about 30 of 400),
            then as many as fit into `overhead`.
        overhead: share of the training time that watching may take; if `every` is given, that spectra may take. Short
            runs take more, so that they are covered to their end: a third where a step takes less than 1 ms.
        steps: the last step of the run, if known. It and the step before are measured. Without it, the last measured
            step is near the end.
        neurons: how many neurons of each tensor to follow individually; 0 also leaves out quantiles over neurons.
        spectra: measure singular values at every k-th measured step; 0: never. Default: tensors in turn, as many as
            fit into `overhead`.
        forward: also measure the forward pass of measured steps: outputs of blocks, dead units, attention, experts.
        resume: continue an existing run: True from its last step, a number from that step.
        finetune: whether the weights are pretrained. Findings then report the distance from the start, not
            equilibrium. Default: decided by the weights, as in `eq.plan`, and stored in the run.
        meta: anything to store with the run that JSON can hold. `run.setting` takes "batch_size", "dataset_size",
            "tokens_per_sample" and "parameters" from it.
        sinks: where else to send a summary: "tensorboard", "wandb", "mlflow", "trackio", "logging", or objects as
            in `equipoise.monitor.sinks`.
        diagnose: review the measurements from time to time and at the end, and store findings.
        quiet: print nothing. Default: warnings, errors and how the run ended are logged by "equipoise", and printed in
            a terminal if logging does not show them there.
        strict: raise failures instead of recording them, for tests.

    Returns:
        A `Watch`; close it, or use it as a context manager.

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
    return Watch(
        model, optimizer, path, every, overhead, steps, neurons, spectra, forward, resume, finetune, meta, sinks,
        diagnose, quiet, strict,
    )  # fmt: skip


class Watch:
    """An attached watch; made by `watch`, which explains its arguments."""

    def __init__(
        self, model: torch.nn.Module | None, optimizer: Any, path: str | os.PathLike[str], every: int | None,
        overhead: float, steps: int | None, neurons: int, spectra: int | None, forward: bool, resume: bool | int,
        finetune: bool | None, meta: Mapping[str, Any] | None, sinks: Sequence[Sink | str], diagnose: bool,
        quiet: bool, strict: bool,
    ) -> None:  # fmt: skip
        if model is not None and not isinstance(model, torch.nn.Module):
            raise ValueError(f"model = {_check.shown(model)}: must be a torch.nn.Module, or None")
        place = checked_path(path)
        if not isinstance(resume, bool):
            resume = _check.whole("resume", resume)
        told(finetune)
        sinks = sending.make_sinks(sinks)
        registry = self._registry = OptimizerRegistry(optimizer)
        registry.check(model)
        rank, _ = rank_of()
        last, norms = (0, {}) if resume is False else earlier(path)
        self.step = last if resume is True else int(resume)
        """Number of the last step that was taken, or is being taken."""
        if registry.sharded:
            self.step = same_everywhere(self.step)
        self._began = self.step
        self._cadence = Cadence(every, overhead, self.step, steps)
        spectra = None if spectra is None else _check.whole("spectra", spectra)
        neurons = _check.whole("neurons", neurons)
        self._measurer = Measurer(model, registry, neurons, spectra, self._cadence, rank == 0, norms)
        self._messenger = Messenger(path, rank == 0 and not quiet, sending.logger_of(sinks))
        self._faults = Faults(strict, self._messenger)
        self._sending = sending.Sending(
            sinks if rank == 0 else (), path, self.step, resume is not False, self._note, strict
        )
        self._writer: RunWriter | None = None
        if rank == 0:
            described = [*quantities.GLOBAL, *quantities.PER_TENSOR, *singular_values.QUANTITIES]
            self._writer = RunWriter(
                path, meta={"optimizer": registry.name, "torch": torch.__version__} | dict(meta or {}),
                quantities=described, resume=resume, strict=strict, warn=self._messenger.warn,
            )  # fmt: skip
        self._faults.tell(self._writer, self._sending)
        failed = None if strict else self._faults.later
        self._rows = None if self._writer is None else RowMaker(self._writer, norms, failed)
        others = registry.others(model)
        if others is not None:
            self._note(others)
        if self.step == 0 or finetune is not None:  # else the run goes on as what it was taken for
            self._try(self._judge, model, finetune, steps)
        self._sending.open(self._writer)
        self._logged = Logged(self._writer, self.step + 1 if self.step else 0)
        self._change_points = ChangePointWriter(self._writer)
        self._backlog = Backlog(registry)
        self._holds = False
        self._finite = FiniteWatch(registry) if diagnose and self._writer is not None else None
        self._reviewing = Reviewing(place if diagnose and self._writer is not None else None, overhead)
        self._forward: ForwardPass | None = None
        if forward and model is not None and self._writer is not None:
            self._forward = ForwardPass(
                model, self._writer, self._due_forward, self._cadence.spent, self._fail, registry.sharded
            )
            self._sending.more = self._forward.summary
        self._closed = False
        self._ending = Ending(self)
        self._handles: list[Any] = []
        for k, one in enumerate(registry.each):
            before, after = partial(self._before, k), partial(self._after, k)
            self._handles.append(one.register_step_pre_hook(torch.compiler.disable(before)))
            self._handles.append(one.register_step_post_hook(torch.compiler.disable(after)))

    # What a user calls

    def log(self, numbers: Mapping[str, float | Tensor] | None = None, /, **more: float | Tensor) -> None:
        """Store numbers such as the loss with the last step; call it after `optimizer.step()`.

        `log(loss=loss)`, `log({"loss": loss})`, or both. A tensor is copied from its device in the background, so that
        nothing waits for it.

        Args:
            numbers: by name: a number, or a tensor with one element.
            more: the same, as keywords.
        """
        given = named(numbers, more)
        if self._closed:
            return
        self._ending.went_on()
        try:  # all processes must take part in making a tensor whole
            whole_ones = {name: x if type(x) is float else whole(x) for name, x in given.items()}
            self._logged.add(self.step, whole_ones)
        except Exception as error:
            self._fail(error)

    def close(self, status: str | None = None) -> None:
        """Store what is waiting, record how the run ended, and detach from the optimizer. More calls do nothing.

        A watch that is not closed is closed when the program ends, or when it is garbage-collected.

        Args:
            status: "finished", "interrupted" or "crashed". Default: by the exception that is being handled, as in a
                `finally` or `except`; "finished" if there is none.
        """
        if status is not None:
            _check.choice("status", status, STATUSES)
        if not self._closed and self._ending.here:
            self._close(self._ending.status() if status is None else status, alone=False)

    def end(self, status: str) -> None:
        """Called when the process ends without a `close`; arguments as for `close`."""
        self._close(status, alone=True)

    def __del__(self) -> None:
        if not vars(self).get("_closed", True) and self._ending.here:
            self._close(self._ending.status(), alone=True)

    def _close(self, status: str, alone: bool) -> None:
        """Close; alone where other processes may be somewhere else, so that nothing may wait for them."""
        self._ending.over()
        for handle in self._handles:
            handle.remove()
        if self._forward is not None:
            self._say(self._forward.finish())
        if alone or status != "finished":
            self._measurer.abandon()
        try:
            self._catch_up()
            self._send()
            self._finish()
            self._measure_last()
            self._make_rows()
            self._logged.flush()
            self._change_points.flush()
            if self._writer is not None:
                self._writer.flush()
            self._finish()  # what has failed in the thread that writes
            if self._finite is not None:
                self._look(self._finite.last, self.step)
            self._say(self._reviewing.finish())
        except Exception as error:
            self._fail(error)
        finally:
            self._closed = True
            self._measurer.frame.release()
            try:
                self._sending.close(status, self._logged)
            finally:
                if self._writer is not None:
                    self._writer.close(status)
                    self._messenger.end(
                        status, self._began, self.step, self.findings, self._share, self._cadence.seconds
                    )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(status_of(error))

    @property
    def findings(self) -> list[Finding]:
        """Problems with watching itself, and findings that should be known at once."""
        return [*self._faults.findings, *([] if self._writer is None else self._writer.findings)]

    @property
    def share(self) -> float:
        """The time that watching has taken so far, relative to the training time."""
        self._try(self._catch_up)
        return self._cadence.share

    @property
    def _share(self) -> float:
        """As `share`, where nothing was asked for that costs more."""
        return self._cadence.share if self._cadence.every is None else 0.0

    # Hooks

    def _before(self, owner: int, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        start = time.perf_counter()
        self._ending.went_on()
        try:
            new = self._registry.begins(owner)
            if new and self._finite is not None and self._finite.due(self.step + 1):
                self._look(self._finite.look, self.step + 1)
            if self._idle and not (new and self._due(self.step + 1)):
                self.step += new
                if self._holds:
                    self._measurer.keep(owner, new, has_closure(args, kwargs))
                    self._cadence.kept(time.perf_counter() - start)
                if self._backlog.add(self.step, owner, new, start):
                    self._catch_up()
                self._cadence.watched += time.perf_counter() - start
                return
            with torch.no_grad():
                self._begin(owner, new, start, has_closure(args, kwargs))
        except Exception as error:
            self._fail(error)
        self._count(start)

    def _after(self, owner: int, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._measurer.open is None:
            self._measurer.stepped(owner)
            return
        start = time.perf_counter()
        with torch.no_grad():
            self._try(self._measurer.after, owner, self._keeps)
            self._count(start)
            if self._registry.complete:
                self._send()

    def _hold_or_not(self) -> None:
        """Decide whether to keep what steps need to be measured afterwards: where that costs next to nothing."""
        wanted = self._cadence.keeps and not self._faults.count and self._measurer.takes_part
        self._holds = wanted and self._measurer.can_keep
        if not self._holds:
            self._measurer.forget()

    @torch.no_grad()
    def _measure_last(self) -> None:
        """Measure the last step from what was kept of it."""
        self._measurer.last(self.step)
        self._send()
        self._finish()

    def _judge(self, model: torch.nn.Module | None, finetune: bool | None, steps: int | None) -> None:
        """Note whether the run is fine-tuning and how long it will be, before the first step."""
        if self._writer is not None:
            verdict = judge_optimizers(model, self._registry.each, finetune)
            said = {"said": verdict.said} if verdict.finetune else {}
            length = {} if steps is None else {"steps": steps}
            self._writer.meta(START, {"finetune": verdict.finetune, "frozen": verdict.frozen} | length | said)

    @property
    def _idle(self) -> bool:
        """Whether there is nothing to do of the steps before."""
        return not (self._measurer.busy or self._sending.busy or self._faults.late)

    def _look(self, look: Callable[[int, Frame], Finding | None], step: int) -> None:
        """Look for what is not finite, until something is found."""
        found = look(step, self._measurer.frame)
        if found is not None:
            self._finite = None
            self._say([found], step)

    def _due(self, step: int) -> bool:
        return self._cadence.due(step) and not self._faults.too_many and self._measurer.takes_part

    def _due_forward(self) -> int | None:
        """The step that a forward pass now is of, if it is measured."""
        waits = self._measurer.busy and self._cadence.every is None  # which step is next is not known yet
        return self.step + 1 if not waits and self._due(self.step + 1) else None

    def _begin(self, owner: int, new: bool, start: float, closure: bool) -> None:
        """An optimizer is about to step, in a step that is measured or is the first after one."""
        self._catch_up()
        measurer, registry = self._measurer, self._registry
        due = self._new_step(start) if new else measurer.open is not None
        optimizer = registry.each[owner]
        mine = groups_in(optimizer)
        groups = [group_state(optimizer, g) for g in mine] if due or cheap(mine) else []
        first, total = registry.groups_of(owner).start, len(registry.param_groups)
        measurer.count(owner, groups, first, total)
        self._change_points.take(self.step, first, groups, total)
        if due and new:
            measurer.begin(self._cadence.measures(self.step), self._writer)
            if self._forward is not None and measurer.open is not None:
                measurer.open.seconds += self._forward.store(self.step)
        if due:
            measurer.before(owner, closure, groups)

    def _catch_up(self) -> None:
        """Take in the steps that were not measured."""
        kept = self._backlog.take()
        if not kept:
            return
        self._hold_or_not()
        before: dict[int, tuple[Any, list[GroupState]]] = {}
        cadence, measurer, change_points = self._cadence, self._measurer, self._change_points
        for passed in kept:
            if passed.new:
                cadence.begins(passed.start)
            said, groups = before.get(passed.owner, (None, []))
            if passed.groups is not said:
                optimizer = self._registry.each[passed.owner]
                groups = [group_state(optimizer, g) for g in passed.groups or ()]
                before[passed.owner] = passed.groups, groups
            measurer.count(passed.owner, groups, passed.first, passed.total)
            change_points.take(passed.step, passed.first, groups, passed.total)
        self._sending.go(self._logged)
        self._cadence.also(self._sending.take_seconds())

    def _new_step(self, start: float) -> bool:
        """End the step before, and begin the next; whether it is measured."""
        self._cadence.begins(start)
        self._send()  # where not all optimizers stepped
        self.step += 1
        self._finish()
        self._sending.go(self._logged)
        self._cadence.also(self._sending.take_seconds())
        return self._due(self.step)

    def _send(self) -> None:
        """Send the step that is being measured on its way."""
        step, start = self._measurer.open, time.perf_counter()
        if step is None:
            return
        self._try(self._measurer.send, self._keeps)
        self._hold_or_not()
        sent = time.perf_counter()
        self._cadence.watched_for(step.seconds + self._cadence.spent(sent - start), step.spectral)
        if self._measurer.ready:  # on a device the numbers come during the next step
            self._try(self._finish)
            self._count(sent)

    @property
    def _keeps(self) -> bool:
        """Whether the memory of a step is kept: the next one needs it again, or it is little."""
        return (self._cadence.every == 1 or self._measurer.frame.little) and self._faults.count == 0

    def _count(self, start: float) -> None:
        """Count the time since then as watching's own."""
        seconds = self._cadence.spent(time.perf_counter() - start)
        step = self._measurer.open
        if step is not None:
            step.seconds += seconds
        else:
            self._cadence.also(seconds)

    def _finish(self) -> None:
        """Store the step whose numbers wait."""
        for error in self._faults.came_late():
            self._fail(error)
        measured = self._measurer.receive(self._writer)
        if measured is None:
            return
        if measured.failed and measured.frame.sharded:  # counted by all processes alike, so that all give up together
            self._faults.together(measured.number)
        if measured.failed or self._writer is None or self._rows is None:
            return
        self._cadence.beside(self._writer.seconds)
        self._rows.put(measured, now=measured.frame.low)
        self._sending.hold(measured, self._rows)
        self._reviewing.measured(self._cadence.trained, len(measured.frame.tensors))
        found, seconds = self._reviewing.take()
        self._say(found)
        self._cadence.also(seconds)
        self._faults.note_once("update-lost", lambda: measured.update_lost, self.step)

    def _make_rows(self) -> None:
        """Make the rows of what was measured so far."""
        if self._rows is not None:
            self._rows.make()

    def _say(self, found: list[Finding], step: int | None = None) -> None:
        """Note findings whose code is new: a run's worst layer may change, its story does not."""
        for finding in found:
            if not self._faults.noted(finding.code):
                self._faults.note(finding, self.step if step is None else step)

    def _note(self, finding: Finding, error: Exception | None = None) -> None:
        self._faults.note(finding, self.step, error)

    def _try(self, job: Callable[..., object], *args: Any) -> None:
        try:
            job(*args)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self._faults.fail(error, self.step)
        if self._measurer.failed() or isinstance(error, TogetherError):
            self._faults.count += 1
