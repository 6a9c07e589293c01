"""The thread and queue of one sink. Training never waits for it and never sees its errors."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from equipoise.finding import Finding
from equipoise.monitor.sinks.base import Sink

BURST = 100
"""Steps that are sent at once, before `every_seconds` counts: a short run is sent whole."""

MOST = 256
"""Steps that may wait; then only the newest of each number are kept."""


class SinkThread:
    """Hands numbers to a sink in a thread of its own.

    While the sink is busy, or its `every_seconds` have not passed, numbers wait; of each name the newest one is kept.

    Args:
        name: for people.
        sink: the sink.
    """

    def __init__(self, name: str, sink: Sink) -> None:
        self.name = name
        self.error: Exception | None = None
        """What went wrong; nothing more is sent then."""
        self._sink = sink
        self._every = float(getattr(sink, "every_seconds", 0.0))
        self._after = int(getattr(sink, "after", 0))
        self._wake = threading.Condition()
        self._numbers: dict[int, dict[str, float]] = {}
        self._findings: list[tuple[int, Finding]] = []
        self._sends = 0
        self._last = -float("inf")
        self._status: str | None = None
        self._seconds = self._taken = 0.0
        self._busy = False
        self._thread = threading.Thread(target=self._work, name=f"equipoise-{name}", daemon=True)
        self._thread.start()

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """Put numbers; returns at once."""
        if self.error is not None or step <= self._after or not numbers:
            return
        with self._wake:
            if len(self._numbers) >= MOST or (self._every > 0 and self._sends >= BURST):
                self._forget(numbers)
            self._numbers.setdefault(step, {}).update(numbers)
            self._wake.notify_all()

    def finding(self, step: int, finding: Finding) -> None:
        """Put a finding; returns at once."""
        with self._wake:
            self._findings.append((step, finding))
            self._wake.notify_all()

    def settle(self, timeout: float = 10.0) -> bool:
        """Wait until the sink has all that was put, for tests; False if it does not come to that."""
        with self._wake:
            return self._wake.wait_for(lambda: not (self._numbers or self._findings or self._busy), timeout)

    def close(self, status: str, timeout: float) -> None:
        """Send what waits, close the sink, and end the thread."""
        with self._wake:
            self._status = status
            self._wake.notify_all()
        self._thread.join(timeout)
        if self._thread.is_alive() and self.error is None:
            self.error = TimeoutError(f"did not answer within {timeout:g} s")

    def take_seconds(self) -> float:
        """Seconds of the processor that the thread took since the last call."""
        new = self._seconds - self._taken
        self._taken += new
        return new

    @property
    def free(self) -> bool:
        """Whether the sink may be given something now."""
        return self._sends < BURST or time.monotonic() - self._last >= self._every

    def _forget(self, newer: Mapping[str, float]) -> None:
        """Leave out what waits of the same names."""
        for step in list(self._numbers):
            kept = {name: value for name, value in self._numbers[step].items() if name not in newer}
            if kept:
                self._numbers[step] = kept
            else:
                del self._numbers[step]

    def _take(self) -> tuple[dict[int, dict[str, float]], list[tuple[int, Finding]]]:
        """Wait until there is something to send, and take it."""
        with self._wake:
            while self._status is None and not self._findings and not (self._numbers and self.free):
                left = self._every - (time.monotonic() - self._last) if self._numbers else None
                self._wake.wait(None if left is None else max(left, 0.01))
            numbers: dict[int, dict[str, float]] = {}
            if self.free or self._status is not None:
                numbers, self._numbers = self._numbers, {}
            findings, self._findings = self._findings, []
            self._busy = True
            return numbers, findings

    def _work(self) -> None:
        closed = False
        while not closed:
            numbers, findings = self._take()
            with self._wake:
                closed = self._status is not None and not self._numbers and not self._findings
            start = time.thread_time()
            try:
                for step in sorted(numbers):
                    self._sink.send(step, numbers[step])
                    self._sends += 1
                    self._last = time.monotonic()
                for step, finding in findings:
                    self._sink.finding(step, finding)
            except Exception as error:
                self._fail(error)
            self._seconds += time.thread_time() - start
            closed = closed or self.error is not None
            with self._wake:
                self._busy = False
                self._wake.notify_all()
        self._end()

    def _end(self) -> None:
        """Close the sink; after a failure it is told as well, whatever it makes of it."""
        try:
            self._sink.close(self._status or "crashed")
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.error = self.error or error


def name_of(sink: Any) -> str:
    """What people call a sink."""
    return sink if isinstance(sink, str) else type(sink).__name__
