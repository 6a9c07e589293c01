"""Create the sinks of a watch, send numbers and findings to each, and record failures."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise import _check
from equipoise._extras import require
from equipoise.finding import Finding
from equipoise.monitor.attach import own_findings
from equipoise.monitor.attach.logged import Logged
from equipoise.monitor.measure.rows import RowMaker
from equipoise.monitor.measure.step import MeasuredStep
from equipoise.monitor.sinks import BY_NAME, Alerts, Place, Sink
from equipoise.monitor.sinks.logs import Logs
from equipoise.monitor.sinks.sink_thread import SinkThread, name_of
from equipoise.monitor.sinks.summary import StepSummary
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.schema import FILE
from equipoise.monitor.store.writer import RunWriter

PATIENCE = 30.0
"""Seconds that the end of a run waits for a sink."""


def make_sinks(sinks: Sequence[Sink | str]) -> list[Sink | str]:
    """The sinks, if all are known and can be made.

    Raises:
        ValueError: one is no sink.
        ImportError: its library is not installed.
    """
    if isinstance(sinks, str):
        raise ValueError(f"sinks = {sinks!r}: must be a list, such as [{sinks!r}]")
    for sink in sinks:
        if isinstance(sink, str):
            _check.choice("sinks", sink, BY_NAME)
            if sink != "logging":
                require(sink, sink)
        elif isinstance(sink, type) or not isinstance(sink, Sink):
            names = ", ".join(sorted(BY_NAME))
            raise ValueError(f"sinks = {sink!r}: must be one of {names}, or an object with send, finding and close")
    return list(sinks)


def logger_of(sinks: Sequence[Sink | str]) -> logging.Logger | None:
    """The logger that one of the sinks sends findings to, if any does."""
    made = [Logs() if sink == "logging" else sink for sink in sinks]
    return next((sink.logger for sink in made if isinstance(sink, Logs)), None)


class Sending:
    """The sinks of one watch.

    Args:
        sinks: checked ones; none on processes that do not write.
        path: directory of the run.
        step: the last step before the new ones.
        resume: whether the run goes on.
        note: stores a finding about a sink, and is given the exception behind it.
        strict: raise what goes wrong.
    """

    def __init__(
        self,
        sinks: Sequence[Sink | str],
        path: str | os.PathLike[str],
        step: int,
        resume: bool,
        note: Callable[[Finding, Exception], None],
        strict: bool = False,
    ) -> None:
        self._note, self._strict = note, strict
        self._asked = list(sinks)
        self._step = step
        self._path = Path(path)
        self._last, self._known = _before(path) if sinks and resume else (0, {})
        self._threads: list[SinkThread] = []
        self._held: tuple[MeasuredStep, RowMaker] | None = None
        self._summary = StepSummary()
        self.more: Callable[[], tuple[int, dict[str, float]] | None] = lambda: None
        """Gives other numbers that are to be sent, and their step."""

    def open(self, writer: RunWriter | None) -> None:
        """Make the sinks, and remember in the run what each wants to know when it goes on."""
        memory: dict[str, Any] = {}
        for asked in self._asked:
            sink: Any = asked
            try:
                if isinstance(asked, str):
                    sink = BY_NAME[asked].of(Place(self._path, self._step, self._last, self._known.get(asked, {})))
                    memory[asked] = sink.memory
                elif isinstance(sink, Alerts):
                    sink.run = os.fspath(self._path)
            except Exception as error:
                self._failed(name_of(asked), error)
                continue
            self._threads.append(SinkThread(name_of(asked), sink))
        if writer is not None and memory:
            writer.meta("sinks", {**self._known, **memory})

    def hold(self, measured: MeasuredStep, rows: RowMaker) -> None:
        """Keep what was measured at a step, until what the loop logs of it is there.

        Args:
            measured: the step.
            rows: makes its row, if that has not been done.
        """
        self._held = (measured, rows) if self._threads else None

    @property
    def busy(self) -> bool:
        """Whether something is held."""
        return self._held is not None

    def go(self, logged: Logged) -> None:
        """Send what is held, and what the loop logged since the last time; the next step begins.

        Args:
            logged: what the loop logged.
        """
        if self._held is not None and any(thread.free for thread in self._threads):
            self._send(logged)
        self._look()

    def finding(self, step: int, finding: Finding) -> None:
        """Send a finding."""
        for thread in self._threads:
            if thread.error is None:
                thread.finding(step, finding)

    def close(self, status: str, logged: Logged) -> None:
        """Send what waits, and let go of the sinks."""
        if self._threads:
            self._send(logged)
        for thread in self._threads:
            thread.close(status, PATIENCE)
        self._look()

    def take_seconds(self) -> float:
        """Seconds of the processor that the sinks' threads took since the last call."""
        return sum(thread.take_seconds() for thread in self._threads)

    def _send(self, logged: Logged) -> None:
        """Hand over the newest measured step, and the newest of what was logged."""
        steps: dict[int, dict[str, float]] = {}
        if self._held is not None:
            (one, rows), self._held = self._held, None
            rows.make()
            made = one.assembler
            if one.row is not None:  # else it has failed
                steps[one.number] = self._summary.numbers(made.infos({}), one.per, made.layout.columns, one.row)
        more = self.more()
        if more is not None:
            steps.setdefault(more[0], {}).update(more[1])
        logged.flush()
        for number, numbers in logged.take().items():
            steps.setdefault(number, {}).update({f"equipoise/log/{name}": value for name, value in numbers.items()})
        for number in sorted(steps):
            for thread in self._threads:
                thread.send(number, steps[number])

    def _look(self) -> None:
        """Note the sinks that failed, each once, and go on without them."""
        failed = [thread for thread in self._threads if thread.error is not None]
        self._threads = [thread for thread in self._threads if thread.error is None]
        for thread in failed:
            assert thread.error is not None
            self._failed(thread.name, thread.error)

    def _failed(self, name: str, error: Exception) -> None:
        if self._strict:
            raise error
        self._note(own_findings.sink_failed(name, error), error)


def _before(path: str | os.PathLike[str]) -> tuple[int, Mapping[str, Any]]:
    """The last step of the run that is there, and what its sinks said of themselves."""
    if not os.path.exists(os.path.join(path, FILE)):
        return 0, {}
    with Run.open(path) as run:
        known, last = run.meta.get("sinks"), int(max(run.steps, default=0))
    return last, known if isinstance(known, dict) else {}
