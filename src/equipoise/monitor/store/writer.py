"""Store what is measured, from inside a training loop: never slow it down, never break it."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from equipoise import _check
from equipoise.finding import Finding
from equipoise.monitor.attach.endings import STATUSES, Ending, status_of
from equipoise.monitor.store.layout import Layout, Quantity, TensorInfo, to_json
from equipoise.monitor.store.schema import FOREVER, RunError, checked_path
from equipoise.monitor.store.staging import RunFileWriter, trouble
from equipoise.monitor.store.worker import Trouble, Worker, log


class RunWriter:
    """Writes a run (rows of numbers, metadata, findings) in a background thread.

    Calls return at once. Nothing raises into training after construction, whatever happens to the disk: rows that
    cannot be stored are counted, and `findings` says so once. A forked or pickled copy writes nothing.

    Args:
        path: directory of the run; created if it does not exist.
        meta: metadata of the run, by name; anything that JSON can hold.
        tensors: the tensors that are watched.
        quantities: what is measured of them.
        layouts: what the numbers of a row mean, one layout for each kind of row.
        resume: True appends to an existing run; its rows from the first new step on are superseded. A step instead
            supersedes the rows after it at once. If there is no run, a new one starts.
        buffer: bytes of rows that may wait for the disk; up to three times as much is held for a moment.
        strict: raise failures, for tests.
        warn: called with a text when something fails, once; default: logging.

    Raises:
        RunError: there is a run and `resume` is not set, another process writes it, or it is damaged.

    >>> import tempfile
    >>> from equipoise.monitor import Column, Run
    >>> layout = Layout([Column("loss"), Column("norm", "w")])
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with RunWriter(directory, layouts=[layout]) as writer:
    ...         writer.append(1, [2.5, 0.1])
    ...     with Run.open(directory) as run:
    ...         run.series("norm", "w").values
    array([0.1], dtype=float32)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        meta: Mapping[str, Any] | None = None,
        tensors: Sequence[TensorInfo] = (),
        quantities: Sequence[Quantity] = (),
        layouts: Sequence[Layout] = (),
        resume: bool | int = False,
        buffer: int = 64 << 20,
        strict: bool = False,
        warn: Callable[[str], object] = log.warning,
    ) -> None:
        self.path = checked_path(path)
        if self.path.exists() and not self.path.is_dir():
            raise RunError(f"path = {str(path)!r}: is a file; must be a directory, or the name of one to make")
        if not isinstance(resume, bool):
            resume = _check.whole("resume", resume)
        limit = _check.whole("buffer", buffer, low=1)
        self._strict = strict
        self._pid = os.getpid()
        self._closed = False
        self._layouts: dict[str, Layout] = {}
        self._last: dict[str, int] = {}
        self._floor = -1 if isinstance(resume, bool) else resume
        self._resumed = False
        self._trouble = Trouble(self.path, warn=warn)
        self.clock = Clock()
        """Gives the time of a row."""
        self.refused: Finding | None = None
        """The first thing that was not stored because it made no sense."""
        self._worker: Worker | None = None
        self._ending: Ending | None = None
        try:
            file = RunFileWriter(self.path, resume)
        except (OSError, sqlite3.Error) as error:
            if strict:
                raise RunError(f"{self.path}: cannot be written ({error})") from None
            self._trouble.fail(error)
            return
        self._resumed = file.session.number > 1 and isinstance(resume, bool)
        self.clock = Clock(file.before)
        self._worker = Worker(file, self._trouble, limit)
        self._ending = Ending(self)
        self.describe(tensors=tensors, quantities=quantities)
        for key, value in (meta or {}).items():
            self.meta(key, value)
        for layout in layouts:
            self.layout(layout)

    # What training calls

    def append(
        self, step: int, row: ArrayLike | Callable[[], Any], *, kind: str = "main", time: float | None = None
    ) -> None:
        """Store the numbers of one step.

        Args:
            step: larger than the last one of this kind; see `rewind`.
            row: one number for each column of the kind's layout; NaN if it was not measured. A function that
                returns them is called by the writing thread; if it returns None, there is no row.
            kind: which layout.
            time: seconds since 1970; now if not given.
        """
        self.extend([step], [row], kind=kind, times=None if time is None else [time])

    def extend(
        self, steps: Sequence[int], rows: Sequence[ArrayLike | Callable[[], Any]] | NDArray[Any], *, kind: str = "main",
        times: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        """As `append`, of several steps at once, all or none.

        Args:
            steps: each larger than the one before.
            rows: one for each step.
            kind: which layout.
            times: one for each step; now if not given.
        """
        if self._hand_over(steps, rows, kind, times, RunFileWriter.row):
            self._last[kind] = steps[-1]

    def draft(self, step: int, row: ArrayLike, *, kind: str = "main") -> None:
        """Store the numbers of a step that may get more; the next `append` or `draft` of the kind replaces them.

        Args:
            step: larger than the last one of this kind that was appended.
            row: as for `append`.
            kind: which layout.
        """
        self._hand_over([step], [row], kind, None, RunFileWriter.draft)

    def _hand_over(
        self,
        steps: Sequence[int],
        rows: Sequence[ArrayLike | Callable[[], Any]] | NDArray[Any],
        kind: str,
        times: Sequence[float] | None,
        store: Callable[[RunFileWriter, str, int, float, bytes], None],
    ) -> bool:
        """Give rows to the thread that writes; whether they are taken."""
        worker = self._usable()
        if worker is None:
            if not self._closed and os.getpid() == self._pid:
                self._trouble.dropped += len(steps)
            return False
        try:
            layout = self._layouts.get(kind)
            if layout is None:
                raise ValueError(f"kind = {kind!r}: must have a layout before its first row; call layout() first")
            data: list[Any]
            if isinstance(rows, np.ndarray):
                data = layout.pack_rows(rows)
            else:
                data = [row if callable(row) else layout.pack(row) for row in rows]
            checked: list[int] = []
            for step in steps:
                checked.append(self._checked(step, kind, checked[-1] if checked else None))
            whens = [self.clock()] * len(steps) if times is None else [_check.number("time", time) for time in times]
        except (TypeError, ValueError) as error:
            self.refuse(error)
            return False

        def job(file: RunFileWriter) -> None:
            for step, when, row in zip(checked, whens, data, strict=True):
                made: Any = row() if callable(row) else row
                if made is not None:
                    store(file, kind, step, when, made if isinstance(made, bytes) else layout.pack(made))

        taken = worker.put(job, sum(8 * len(layout) if callable(x) else len(x) for x in data), len(data))
        if taken and self._resumed:  # no kind of rows may begin before this, or a step would be there twice
            self._resumed, self._floor = False, checked[0] - 1
        return taken

    def collect(self, source: Callable[[], object]) -> None:
        """Have the writing thread call a function before every commit, several times a second.

        Args:
            source: the function, which may append rows.
        """
        worker = self._usable()
        if worker is not None:
            worker.collect(source)

    def layout(self, layout: Layout) -> None:
        """From now on, rows of the layout's kind have these columns, for example after tensors were added."""
        worker = self._usable()
        if worker is not None:
            self._layouts[layout.kind] = layout
            worker.put(lambda file: file.layout(layout))

    def describe(self, *, tensors: Sequence[TensorInfo] = (), quantities: Sequence[Quantity] = ()) -> None:
        """Describe tensors and quantities; a later description of the same name replaces the earlier one."""
        for tensor in tensors:
            self._record("tensor", tensor.name, to_json(tensor))
        for quantity in quantities:
            self._record("quantity", quantity.name, to_json(quantity))

    def meta(self, key: str, value: Any) -> None:
        """Store metadata; a later value for the same key replaces the earlier one."""
        self._record("meta", key, value)

    def finding(self, finding: Finding, step: int | None = None) -> None:
        """Store a finding, and the step that it is about."""
        self._record("finding", finding.code, finding.to_dict(), step)

    def rewind(self, step: int) -> None:
        """Training went back to a step, for example after loading a checkpoint: later rows are superseded."""
        worker = self._usable()
        if worker is None:
            return
        try:
            step = _step(step)
        except ValueError as error:
            self.refuse(error)
            return
        self._last.clear()
        self._floor = step
        worker.put(lambda file: file.rewind(step))

    @property
    def findings(self) -> list[Finding]:
        """Problems with the writing itself; normally empty."""
        refused = [] if self.refused is None else [self.refused]
        return trouble(str(self.path), self._trouble.dropped, self._trouble.failure) + refused

    @property
    def seconds(self) -> float:
        """CPU time of the writing thread."""
        return 0.0 if self._worker is None else self._worker.seconds

    def flush(self, timeout: float = 60.0) -> bool:
        """Wait until everything appended is stored; False after the timeout, or if nothing can be written."""
        worker = self._usable()
        done = worker is not None and worker.flush(timeout)
        self._raise_if_strict()
        return done

    def close(self, status: str = "finished", timeout: float = 60.0) -> None:
        """Store what is waiting, record how the run ended, and release the file. More calls do nothing.

        Args:
            status: "finished", "interrupted" or "crashed".
            timeout: seconds to wait for the disk.
        """
        _check.choice("status", status, STATUSES)
        if self._closed or os.getpid() != self._pid:
            return
        self._closed = True
        if self._ending is not None:
            self._ending.over()
        if self._worker is not None:
            self._worker.close(status, timeout)
            self._raise_if_strict()

    def end(self, status: str) -> None:
        """Called when the process ends without a `close`; arguments as for `close`."""
        self.close(status)

    def __del__(self) -> None:
        if not vars(self).get("_closed", True):
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(status_of(error))

    def __reduce__(self) -> tuple[Any, ...]:
        # A model that carries hooks must stay copyable, and its copies must not write.
        return _inert, (str(self.path),)

    def _usable(self) -> Worker | None:
        """The worker, if this process is the one that writes, and still does."""
        if os.getpid() != self._pid:
            return None  # forked: the thread and the lock stayed behind
        self._raise_if_strict()
        return None if self._closed else self._worker

    def _raise_if_strict(self) -> None:
        error = self._trouble.error
        if self._strict and error is not None:
            self._trouble.error = None
            raise RunError(f"{self.path}: cannot be written ({error})") from error

    def _checked(self, step: int, kind: str, before: int | None) -> int:
        step = _step(step)
        last = self._last.get(kind, self._floor) if before is None else before
        if step <= last:
            raise ValueError(
                f"step = {step}: must be > {last}, the last one; if training went back, call rewind() first"
            )
        return step

    def refuse(self, error: Exception) -> None:
        """Report once, as a finding, that something is not stored; if strict, raise."""
        if self._strict:
            raise error
        if self.refused is None:
            self.refused = Finding(
                "row-refused", "warning", str(self.path), str(error),
                "numbers, rows that fit their layout, steps that increase",
                "fix the call; further ones like it are dropped silently", "docs/run.md",
            )  # fmt: skip
            self._trouble.warn(f"{self.path}: not stored: {error}")
            self.finding(self.refused)

    def _record(self, kind: str, key: str, value: Any, step: int | None = None) -> None:
        worker = self._usable()
        if worker is None:
            return
        try:
            text = json.dumps(value, default=_plain)
            name = str(key).encode("utf-8", "replace").decode()
            at = None if step is None else _step(step)
        except (TypeError, ValueError, RecursionError) as error:
            self.refuse(ValueError(f"{kind} {key!r}: must be JSON-serialisable ({error})"))
            return
        worker.put(lambda file: file.record(kind, name, text, at))


YEAR = 3.2e7
"""Seconds. A time so far ahead is damage, and no clock that was set back."""


class Clock:
    """Seconds since 1970 that only go on, also where somebody sets the computer's clock back.

    Args:
        after: the first time is not before this one.
    """

    def __init__(self, after: float = 0.0) -> None:
        now = time.time()
        self._offset = (after if now < after < now + YEAR else now) - _steady()

    def __call__(self) -> float:
        """The time now."""
        return self._offset + _steady()


def _steady() -> float:
    """Seconds on a clock that nobody sets; on Linux it goes on while the computer sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _step(value: Any) -> int:
    step = _check.whole("step", value)
    if step >= FOREVER:
        raise ValueError(f"step = {value!r}: must be a whole number < 2^62")
    return step


def _plain(value: Any) -> Any:
    """Arrays and tensors as numbers, and anything else as its text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _inert(path: str) -> RunWriter:
    """A writer that does nothing: what a copy of one becomes."""
    writer = object.__new__(RunWriter)
    vars(writer).update(
        path=Path(path), _pid=os.getpid(), _strict=False, _closed=True, _worker=None, _ending=None,
        _trouble=Trouble(Path(path)), refused=None,
    )  # fmt: skip
    return writer
