"""The way of a step, from top to bottom: before the optimizer, after it, its numbers, its row.

A step that is not measured goes through `before`, `_pass` and `after`, and waits in the backlog. One that is measured:

1. `before`, `_attend`, `_begin`: `measurer.begin` and `.before` copy or sum what is there before the optimizer steps.
2. `after`: `measurer.after` does so with what is there then.
3. `_send`: `measurer.send` starts moving the sums off the device.
4. `_receive`: they are there (on a device at the next step); `cadence.plan` chooses the next step, `rows.put` hands
   them over. The thread that writes makes rows of them, in `measure.rows`, and stores them.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from equipoise.finding import Finding
from equipoise.monitor.attach.backlog import Backlog, Said
from equipoise.monitor.attach.cadence import Cadence
from equipoise.monitor.attach.faults import Faults
from equipoise.monitor.attach.finite import FiniteWatch
from equipoise.monitor.attach.logged import Logged
from equipoise.monitor.attach.registry import OptimizerRegistry
from equipoise.monitor.attach.review import Reviewing
from equipoise.monitor.forward.collector import ForwardPass
from equipoise.monitor.measure.frame import Frame
from equipoise.monitor.measure.measurer import Measurer, TogetherError
from equipoise.monitor.measure.rows import RowMaker
from equipoise.monitor.sinks.sending import Sending
from equipoise.monitor.store.schedule_changes import ChangePointWriter
from equipoise.monitor.store.writer import RunWriter


class Steps:
    """Takes each step of training on its way.

    Args:
        number: of the last step that was taken.
        registry: the optimizers.
        cadence: says which steps are measured.
        measurer: measures them.
        writer: stores them; None on processes that write nothing.
        norms: norms of tensors when they were first seen.
        faults: what goes wrong.
        sending: the sinks.
        logged: what the loop logs.
        review: directory of the run, if it is to be reviewed while it is written.
        overhead: share of the training time that reviews may take.
        strict: raise what goes wrong in the thread that writes.
    """

    def __init__(
        self, number: int, registry: OptimizerRegistry, cadence: Cadence, measurer: Measurer, writer: RunWriter | None,
        norms: dict[str, float], faults: Faults, sending: Sending, logged: Logged, review: Path | None,
        overhead: float, strict: bool,
    ) -> None:  # fmt: skip
        self.number = number
        """Of the last step that was taken, or is being taken."""
        self._registry, self._cadence, self._measurer, self._writer = registry, cadence, measurer, writer
        self._faults, self._sending, self._logged = faults, sending, logged
        self._backlog, self._late = Backlog(registry), faults.late
        self._attend_from = 0
        """No step before this one needs more than to be passed by."""
        self._holds = False
        self._change_points = ChangePointWriter(writer)
        self._rows = None if writer is None else RowMaker(writer, norms, None if strict else faults.late.append)
        review = None if writer is None else review
        self._finite = None if review is None else FiniteWatch(registry)
        self._reviewing = Reviewing(review, overhead)
        self.forward: ForwardPass | None = None
        """What looks at forward passes, if that was asked for."""

    # Before an optimizer steps

    def before(self, owner: int, closure: bool) -> None:
        """An optimizer is about to step.

        Args:
            owner: its number.
            closure: whether gradients come inside the step.
        """
        start = time.perf_counter()
        try:
            new = self._registry.begins(owner)
            number = self.number + new
            if number < self._attend_from and not self._late:
                self._pass(number, owner, new, closure, start)
            else:
                self._attend(number, owner, new, closure, start)
        except Exception as error:
            self.fail(error)
            self._count(start)

    def _pass(self, number: int, owner: int, new: bool, closure: bool, start: float) -> None:
        """A step that is not measured: it is taken in later, and may be the last one."""
        self.number = number
        if self._holds:
            self._measurer.keep(owner, new, closure)
            if self._cadence.tries:
                self._cadence.kept(time.perf_counter() - start)
        if self._backlog.add(number, owner, new, start):
            self.catch_up()
        self._cadence.watched += time.perf_counter() - start

    def _attend(self, number: int, owner: int, new: bool, closure: bool, start: float) -> None:
        """A step that may be measured, or comes after one, or it is time for a look at what is not finite."""
        if new and self._finite is not None and number >= self._finite.next:
            self._look(self._finite.look, number)
        idle = not (self._measurer.busy or self._sending.busy or self._late)
        if idle and not (new and self._due(number)):
            self._plan_ahead()
            return self._pass(number, owner, new, closure, start)
        with torch.no_grad():
            self._begin(owner, new, closure, start)
        self._count(start)
        return None

    def _plan_ahead(self) -> None:
        """Nothing is left to do of the steps before: decide which ones are passed by."""
        measures = not self._faults.too_many and self._measurer.takes_part
        following = self._cadence.following(self.number) if measures else sys.maxsize
        look = sys.maxsize if self._finite is None else self._finite.next
        self._attend_from = min(following, look)

    def _due(self, step: int) -> bool:
        return self._cadence.due(step) and not self._faults.too_many and self._measurer.takes_part

    def catch_up(self) -> None:
        """Take in the steps that were not measured."""
        passed = self._backlog.take()
        if not passed:
            return
        self._hold_or_not()
        for one in passed:
            if one.new:
                for start in one.starts:
                    self._cadence.begins(start)
            self._take_settings(one.step, one.owner, one.said, len(one.starts))
        self._send_on()

    def _take_settings(self, step: int, owner: int, said: Said, times: int = 1) -> None:
        """Count a step of an optimizer, or several alike, and what its groups said."""
        self._measurer.count(owner, said.states, said.first, said.total, times)
        self._change_points.take(step, said.first, said.states, said.total, times)

    def _send_on(self) -> None:
        """Give sinks what they wait for."""
        self._sending.go(self._logged)
        self._cadence.also(self._sending.take_seconds())

    def _begin(self, owner: int, new: bool, closure: bool, start: float) -> None:
        """A step that is measured, or the first after one."""
        self.catch_up()
        measurer = self._measurer
        due = self._new_step(start) if new else measurer.open is not None
        said = self._backlog.read(owner, wait=due)
        self._take_settings(self.number, owner, said)
        if due and new:
            measurer.begin(self._cadence.measures(self.number), owner, self._writer, self._cadence.credit)
            if self.forward is not None and measurer.open is not None:
                measurer.open.seconds += self.forward.store(self.number)
        if due:
            measurer.before(owner, closure, said.states)

    def _new_step(self, start: float) -> bool:
        """End the step before, and begin the next; whether it is measured."""
        self._cadence.begins(start)
        self._send()  # where not all optimizers stepped
        self.number += 1
        self._receive()
        self._send_on()
        return self._due(self.number)

    # After it has stepped

    def after(self, owner: int) -> None:
        """An optimizer has stepped.

        Args:
            owner: its number.
        """
        if self._measurer.open is None:
            self._measurer.stepped(owner)
            return
        start = time.perf_counter()
        with torch.no_grad():
            self.attempt(self._measurer.after, owner, self._keeps)
            self._count(start)
            if self._registry.complete:
                self._send()

    def _send(self) -> None:
        """The step that is being measured is over: its numbers leave the device."""
        step, start = self._measurer.open, time.perf_counter()
        if step is None:
            return
        self.attempt(self._measurer.send, self._cadence, self._keeps)
        self._hold_or_not()
        sent = time.perf_counter()
        self._cadence.watched_for(step.seconds + self._cadence.spent(sent - start), step.spectral)
        if self._measurer.ready:  # on a device the numbers come during the next step
            self.attempt(self._receive)
            self._count(sent)

    def _receive(self) -> None:
        """The numbers of a step are there: choose the next one to measure, and hand them to the thread that writes."""
        for error in self._faults.came_late():
            self.fail(error)
        step, cadence = self._measurer.receive(), self._cadence
        if step is None:
            return
        cadence.plan(step.number, step.account if step.frame.sharded else None)
        if not step.failed:
            cadence.spectral += self._measurer.solve_spectra(step, self._writer)
        elif step.frame.sharded:  # counted by all processes alike, so that all give up together
            self._faults.together(step.number)
        if step.failed or self._writer is None or self._rows is None:
            return
        cadence.beside(self._writer.seconds)
        self._rows.put(step, now=step.frame.low)
        self._sending.hold(step, self._rows)
        self._reviewing.measured(cadence.trained, len(step.frame.tensors))
        found, seconds = self._reviewing.take()
        self._say(found)
        cadence.also(seconds)
        self._faults.note_once("update-lost", lambda: step.update_lost, self.number)

    @property
    def _keeps(self) -> bool:
        """Whether the memory of a step is kept: the next one needs it again, or it is little."""
        return (self._cadence.every == 1 or self._measurer.frame.little) and self._faults.count == 0

    def _hold_or_not(self) -> None:
        """Decide whether to keep what steps need to be measured afterwards: where that costs next to nothing."""
        wanted = self._cadence.keeps and not self._faults.count and self._measurer.takes_part
        self._holds = wanted and self._measurer.can_keep
        if not self._holds:
            self._measurer.forget()

    def _count(self, start: float) -> None:
        """Count the time since then as watching's own."""
        seconds = self._cadence.spent(time.perf_counter() - start)
        step = self._measurer.open
        if step is not None:
            step.seconds += seconds
        else:
            self._cadence.also(seconds)

    # After the last step

    def end(self) -> None:
        """Measure the last step, and store all that waits."""
        if self.forward is not None:
            self._say(self.forward.finish())
        self.catch_up()
        self._send()
        self._receive()
        with torch.no_grad():
            if self._measurer.last(self.number):
                self._cadence.measures(self.number)
            self._send()
        self._receive()
        if self._rows is not None:
            self._rows.make()
        self._logged.flush()
        self._change_points.flush()
        if self._writer is not None:
            self._writer.flush()
        self._receive()  # what has failed in the thread that writes
        if self._finite is not None:
            self._look(self._finite.last, self.number)
        self._say(self._reviewing.finish())

    # Beside the way

    def due_forward(self) -> int | None:
        """The step that a forward pass now is of, if it is measured."""
        waits = self._measurer.busy and self._cadence.every is None  # which step is next is not known yet
        return self.number + 1 if not waits and self._due(self.number + 1) else None

    def _look(self, look: Callable[[int, Frame], Finding | None], step: int) -> None:
        """Look for what is not finite, until something is found."""
        found = look(step, self._measurer.frame)
        if found is not None:
            self._finite = None
            self._say([found], step)

    def _say(self, found: list[Finding], step: int | None = None) -> None:
        """Note findings whose code is new: a run's worst layer may change, its story does not."""
        for finding in found:
            if not self._faults.noted(finding.code):
                self._faults.note(finding, self.number if step is None else step)

    def attempt(self, job: Callable[..., object], *args: Any) -> None:
        """Do something; if it fails, training goes on."""
        try:
            job(*args)
        except Exception as error:
            self.fail(error)

    def fail(self, error: Exception) -> None:
        """Note a failure; after too many nothing more is measured."""
        self._faults.fail(error, self.number)
        if self._measurer.failed() or isinstance(error, TogetherError):
            self._faults.count += 1
