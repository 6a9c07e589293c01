"""Attach to any training loop and store what every layer does: `watch`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor

from equipoise import _check
from equipoise.finding import Finding
from equipoise.monitor.attach.cadence import Cadence
from equipoise.monitor.attach.endings import STATUSES, Ending, status_of
from equipoise.monitor.attach.faults import Faults
from equipoise.monitor.attach.logged import Logged, named, whole
from equipoise.monitor.attach.messages import Messenger
from equipoise.monitor.attach.ranks import rank_of, same_everywhere
from equipoise.monitor.attach.registry import OptimizerRegistry, has_closure
from equipoise.monitor.attach.resume import earlier
from equipoise.monitor.attach.steps import Steps
from equipoise.monitor.forward.collector import ForwardPass
from equipoise.monitor.measure import quantities, singular_values
from equipoise.monitor.measure.measurer import Measurer
from equipoise.monitor.runs.recorded import START
from equipoise.monitor.sinks import Sink, sending
from equipoise.monitor.store.schema import checked_path
from equipoise.monitor.store.writer import RunWriter
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
            runs take more, so that they are covered to their end: 5 % of 400 steps of 12 ms, 12 to 17 % of 1 ms.
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
        first = last if resume is True else int(resume)
        if registry.sharded:
            first = same_everywhere(first)
        self._began = first
        self._cadence = Cadence(every, overhead, first, steps)
        spectra = None if spectra is None else _check.whole("spectra", spectra)
        neurons = _check.whole("neurons", neurons)
        self._measurer = Measurer(model, registry, neurons, spectra, rank == 0, norms)
        self._messenger = Messenger(path, rank == 0 and not quiet, sending.logger_of(sinks))
        self._faults = Faults(strict, self._messenger)
        self._sending = sending.Sending(
            sinks if rank == 0 else (), path, first, resume is not False, self._note, strict
        )
        self._writer: RunWriter | None = None
        if rank == 0:
            described = [*quantities.GLOBAL, *quantities.PER_TENSOR, *singular_values.QUANTITIES]
            self._writer = RunWriter(
                path, meta={"optimizer": registry.name, "torch": torch.__version__} | dict(meta or {}),
                quantities=described, resume=resume, strict=strict, warn=self._messenger.warn,
            )  # fmt: skip
        self._faults.tell(self._writer, self._sending)
        self._logged = Logged(self._writer, first + 1 if first else 0)
        self._steps = Steps(
            first, registry, self._cadence, self._measurer, self._writer, norms, self._faults, self._sending,
            self._logged, place if diagnose else None, overhead, strict,
        )  # fmt: skip
        others = registry.others(model)
        if others is not None:
            self._note(others)
        if first == 0 or finetune is not None:  # else the run goes on as what it was taken for
            self._steps.attempt(self._judge, model, finetune, steps)
        self._sending.open(self._writer)
        if forward and model is not None and self._writer is not None:
            self._steps.forward = ForwardPass(
                model, self._writer, self._steps.due_forward, self._cadence.spent, self._steps.fail, registry.sharded
            )
            self._sending.more = self._steps.forward.summary
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
            for name, x in given.items():
                if type(x) is not float:
                    given[name] = whole(x)
            self._logged.add(self._steps.number, given)
        except Exception as error:
            self._steps.fail(error)

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
        if alone or status != "finished":
            self._measurer.abandon()
        try:
            self._steps.end()
        except Exception as error:
            self._steps.fail(error)
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
        self._steps.attempt(self._steps.catch_up)
        return self._cadence.share

    @property
    def _share(self) -> float:
        """As `share`, where nothing was asked for that costs more."""
        return self._cadence.share if self._cadence.every is None else 0.0

    @property
    def step(self) -> int:
        """Number of the last step that was taken, or is being taken."""
        return self._steps.number

    @step.setter
    def step(self, number: int) -> None:
        self._steps.number = number

    # Around an optimizer's step

    def _before(self, owner: int, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._ending.went_on()
        self._steps.before(owner, has_closure(args, kwargs))

    def _after(self, owner: int, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._steps.after(owner)

    def _judge(self, model: torch.nn.Module | None, finetune: bool | None, steps: int | None) -> None:
        """Note whether the run is fine-tuning and how long it will be, before the first step."""
        if self._writer is not None:
            verdict = judge_optimizers(model, self._registry.each, finetune)
            said = {"said": verdict.said} if verdict.finetune else {}
            length = {} if steps is None else {"steps": steps}
            self._writer.meta(START, {"finetune": verdict.finetune, "frozen": verdict.frozen} | length | said)

    def _note(self, finding: Finding, error: Exception | None = None) -> None:
        self._faults.note(finding, self.step, error)
