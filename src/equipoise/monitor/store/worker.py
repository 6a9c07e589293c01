"""The thread that stores a run, and the bounded queue between it and training."""

from __future__ import annotations

import logging
import sqlite3
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from equipoise.monitor.store.staging import BEAT, FileGoneError, RunFileWriter

INTERVAL = 0.3
"""Seconds between commits: kill -9 loses the rows of less than half a second."""

PATIENCE = 0.05
"""Seconds that a full buffer may hold up training, once for each time that it fills."""

SAID = 2.0
"""Seconds that the end waits for the disk without a word."""

log = logging.getLogger("equipoise.monitor")


@dataclass
class Trouble:
    """What went wrong so far.

    Attributes:
        where: the run.
        dropped: rows that are not stored.
        failure: the first error.
        error: the last error that nobody was told.
        warn: where to say it.
    """

    where: Path
    dropped: int = 0
    failure: str = ""
    error: Exception | None = None
    warn: Callable[[str], object] = log.warning

    def fail(self, error: Exception) -> None:
        """Keep an error, and log the first."""
        self.error = error
        if not self.failure:
            self.failure = f"{type(error).__name__}: {error}"
            self.warn(f"{self.where}: the run cannot be written, training goes on: {error}")


class Worker:
    """Does jobs on a run's file in a thread of its own, and commits them together.

    Args:
        file: the run's file, open; nobody else may use it from now on.
        trouble: where to say what goes wrong.
        limit: bytes that may wait.
    """

    def __init__(self, file: RunFileWriter, trouble: Trouble, limit: int) -> None:
        self._trouble, self._limit = trouble, limit
        self._wake = threading.Condition()
        self._queue: list[Callable[[RunFileWriter], object]] = []
        self._bytes = self._put = self._done = self._failed = 0
        self._hurry = self._stalled = self._closing = self._publish = False
        self._status = "finished"
        self._sources: list[Callable[[], object]] = []
        self.seconds = 0.0
        """CPU time that the thread has taken."""
        self._thread = threading.Thread(target=self._work, args=(file,), name="equipoise-run-writer", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """How much waits."""
        return self._bytes

    def put(self, job: Callable[[RunFileWriter], object], size: int = 0, rows: int = 1) -> bool:
        """Hand over a job; False if it is left out, as there is no room for the bytes of its rows."""
        with self._wake:
            if size and not self._wait_for_space(size):
                self._trouble.dropped += rows
                return False
            self._bytes += size
            self._queue.append(job)
            self._put += 1
            if self._bytes > self._limit // 2:
                self._now()
            return True

    def collect(self, source: Callable[[], object]) -> None:
        """Have the thread call something before every commit, which may put jobs.

        Args:
            source: what to call.
        """
        self._sources.append(source)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was put is stored; not longer than until storing it has failed."""
        with self._wake:
            wanted, self._publish = self._put, True
            self._now()
            self._wake.wait_for(lambda: max(self._done, self._failed) >= wanted, timeout)
            return self._done >= wanted

    def close(self, status: str, timeout: float) -> None:
        """Store what waits, and end the thread."""
        with self._wake:
            self._status, self._closing = status, True
            self._wake.notify_all()
        if threading.current_thread() is self._thread:
            return  # collected as garbage in the thread itself, which ends by itself
        self._thread.join(min(SAID, timeout))
        if self._thread.is_alive() and timeout > SAID:
            where = self._trouble.where
            self._trouble.warn(f"{where}: the disk has not answered for {SAID:g} s, waiting {timeout:g} s")
            self._thread.join(timeout - SAID)
        if self._thread.is_alive():
            self._trouble.fail(TimeoutError(f"the disk did not answer within {timeout:g} s"))

    def _now(self) -> None:
        if not self._hurry:
            self._hurry = True
            self._wake.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._bytes or self._bytes + size <= self._limit

    def _wait_for_space(self, size: int) -> bool:
        """Wait a little for space; not again until there was some."""
        if not self._fits(size) and not self._stalled:
            self._now()
            if not self._wake.wait_for(lambda: self._fits(size), PATIENCE):
                self._stalled = True
                if not self._trouble.dropped:
                    self._trouble.warn(f"{self._trouble.where}: the disk is slower than training; rows are left out")
        return self._fits(size)

    def _work(self, file: RunFileWriter) -> None:
        closing = False
        while not closing:
            with self._wake:
                self._wake.wait_for(lambda: self._hurry or self._closing, INTERVAL)
                closing, publish = self._closing, self._publish
                self._publish = False
            done = self._empty(file)
            for source in self._sources:
                self._do(source)
            self._store(file, done + self._empty(file), closing, publish)
            self.seconds = time.thread_time()

    def _empty(self, file: RunFileWriter) -> int:
        """Do all jobs that wait; returns how many."""
        with self._wake:
            jobs, self._queue = self._queue, []
            self._bytes, self._hurry, self._stalled = 0, False, False
            self._wake.notify_all()
        for job in jobs:
            self._do(job, file)
        return len(jobs)

    def _do(self, job: Callable[..., object], *args: RunFileWriter) -> None:
        try:
            job(*args)
        except Exception as error:  # a bug of ours must not end the thread: it would look as if all was well
            log.exception("%s", self._trouble.where)
            self._trouble.fail(error)

    def _store(self, file: RunFileWriter, jobs: int, closing: bool, publish: bool) -> None:
        """Commit; on failure keep rows for another try while they fit into the buffer."""
        file.note(self._trouble.dropped, self._trouble.failure)
        try:
            if closing:
                file.close(self._status)
            elif publish or jobs or file.staged_bytes or time.monotonic() - file.committed > BEAT:
                file.commit(publish)
        except (OSError, sqlite3.Error) as error:
            self._trouble.fail(error)
            gone = file.give_up_stored() if isinstance(error, FileGoneError) else 0
            if closing or gone or file.staged_bytes > self._limit:
                gone += file.drop_rows()
            with self._wake:
                self._trouble.dropped += gone
                self._failed = self._put - len(self._queue)
                self._wake.notify_all()
            return
        with self._wake:
            self._done = self._put - len(self._queue)
            self._wake.notify_all()
