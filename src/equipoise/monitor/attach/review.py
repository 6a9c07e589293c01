"""Review a run in a background thread while it is written, and again at its end."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from equipoise._malloc import give_back
from equipoise.finding import Finding
from equipoise.monitor.attach.own_findings import not_reviewed
from equipoise.monitor.diagnose.diagnosis import review
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.schema import RunError

FIRST = 32
"""Measured steps before the first look; the next ones come when twice as many have been measured."""

EARLY = 0.05
"""Share of the training time that the first look may take: what is wrong from the start is said before the end."""

USUAL = 1.5e-3
"""Seconds of the processor that a look takes for each tensor, until one has been timed."""


AT_END, LEAST = 0.02, 5.0
"""Share of the training time, and seconds of the processor if that is more, that the look at the end may take."""


class Reviewing:
    """Reviews a run now and then: seldom enough to cost little.

    Args:
        path: directory of the run; None reviews nothing.
        overhead: share of the training time that reviews may take.
    """

    def __init__(self, path: Path | None, overhead: float) -> None:
        self._path, self._overhead = path, overhead
        self._rows, self._next = 0, FIRST
        self._thread: threading.Thread | None = None
        self._found: list[Finding] = []
        self._error: Exception | None = None
        self._cost: float | None = None
        self._spent = self._trained = 0.0
        self._tensors = 0
        self._lock = threading.Lock()

    def measured(self, trained: float, tensors: int) -> None:
        """A step was measured: it may be time for a look.

        Args:
            trained: seconds of training so far.
            tensors: how many there are.
        """
        self._rows += 1
        self._trained, self._tensors = trained, tensors
        cost = USUAL * tensors if self._cost is None else self._cost
        busy = self._thread is not None and self._thread.is_alive()
        share = self._overhead if self._cost is not None else max(self._overhead, EARLY)
        if self._path is None or self._rows < self._next or busy or cost > share * trained:
            return
        self._next = 2 * self._rows
        self._thread = threading.Thread(target=self._look, name="equipoise-review", daemon=True)
        self._thread.start()

    def take(self) -> tuple[list[Finding], float]:
        """What was found since the last call, and the seconds of the processor that it took.

        Raises:
            Exception: what went wrong while looking.
        """
        with self._lock:
            found, self._found = self._found, []
            spent, self._spent = self._spent, 0.0
            error, self._error = self._error, None
        if error is not None:
            self._path = None  # it would fail again
            raise error
        return found, spent

    def finish(self) -> list[Finding]:
        """Look once more, at the whole run; what was found. If that would take too long, say so instead."""
        if self._thread is not None:
            self._thread.join()
        expected = max(self._cost or 0.0, USUAL * self._tensors)
        if self._path is not None and expected > max(LEAST, AT_END * self._trained):
            return [*self.take()[0], not_reviewed(self._path, self._tensors, expected)]
        if self._path is not None:
            self._look(ended=True)
        return self.take()[0]

    def _look(self, ended: bool = False) -> None:
        start = time.thread_time()
        found: list[Finding] = []
        error: Exception | None = None
        assert self._path is not None
        try:
            with Run.open(self._path) as run:
                found = review(run, ended)
        except RunError:  # nothing can be read, as on a full disk: the writer says so itself
            pass
        except Exception as caught:
            error = caught
        give_back()  # of a long run tens of MB
        with self._lock:
            self._found += found
            self._error = error
            self._cost = time.thread_time() - start
            self._spent += self._cost
