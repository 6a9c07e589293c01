"""Read a run, while it is written or long after. Needs numpy, and not torch."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from equipoise import _check, _viewer
from equipoise.finding import Finding
from equipoise.monitor.store import pyramid, reading, rescue, schema
from equipoise.monitor.store.archive import Archive, Record
from equipoise.monitor.store.follow import Follower
from equipoise.monitor.store.layout import LOG, SCHEDULE, Column, Quantity, TensorInfo
from equipoise.monitor.store.schema import FOREVER, checked_path
from equipoise.monitor.store.tables import Coverage, Series, Table, from_log

if TYPE_CHECKING:
    from equipoise.monitor.diagnose.compare import Comparison
    from equipoise.monitor.diagnose.diagnosis import Diagnosis
    from equipoise.monitor.diagnose.events import Event
    from equipoise.monitor.runs.final_loss import Best, Final
    from equipoise.planner.setting import Setting

STALE = 30.0
"""Seconds without a sign of life after which a run counts as ended without closing."""

STALE_HERE = 600.0
"""The same where its process is there: it may be stopped, or busy; after this time the process is another one."""

SHOWN = "FROM rows WHERE segment = ? AND step <= ? AND typeof(step) = 'integer'"
"""The rows of a segment up to a step; damage may have changed the type of a step."""


class Run:
    """A stored run: its measurements, metadata, findings and status. Open one with `Run.open`.

    You can read a run while it is being written: every call sees the newest state.
    """

    def __init__(self, archive: Archive) -> None:
        if not isinstance(archive, Archive):
            raise ValueError(f"Run({archive!r}): a run is opened with Run.open({archive!r})")
        self._archive = archive
        self.path = archive.directory

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Run:
        """Open the run in a directory.

        Raises:
            RunError: there is none, it is of a newer version, or nothing of it can be read. Damage that leaves
                something to read is a finding instead.
        """
        return Run(Archive(checked_path(path)))

    def close(self) -> None:
        """Close the file."""
        self._archive.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.status}, {len(self.steps)} steps)"

    # What is known about it

    @property
    def meta(self) -> dict[str, Any]:
        """Metadata that the writer stored."""
        return {key: record.value for key, record in self._of_kind("meta").items()}

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """The watched tensors, by name."""
        return {key: TensorInfo(name=key, **record.value) for key, record in self._of_kind("tensor").items()}

    @property
    def quantities(self) -> dict[str, Quantity]:
        """What was measured, by name."""
        return {key: Quantity(name=key, **record.value) for key, record in self._of_kind("quantity").items()}

    @property
    def kinds(self) -> list[str]:
        """The kinds of rows."""
        return list(self._of_kind("layout"))

    @property
    def columns(self) -> tuple[Column, ...]:
        """Every column of every kind and layout."""
        self._archive.read(lambda db: None)
        return self._archive.columns

    @property
    def logged(self) -> list[str]:
        """The names of what the loop logged, such as the loss; of what a run without logged rows has of the whole."""
        self._archive.read(lambda db: None)
        layouts = self._archive.known_layouts()
        mine = [layout for layout in layouts if layout.kind == LOG] or [x for x in layouts if x.kind == "main"]
        return list(dict.fromkeys(c.quantity for layout in mine for c in layout.columns if c.tensor is None))

    @property
    def status(self) -> str:
        """Whether it is "running", or how it ended.

        "finished": it was closed, or the program ended normally. "interrupted": by Ctrl-C. "crashed": by an
        exception, or an exit code that is not 0. "unclosed": it ended without a word, as by kill -9: its process is
        gone, or it gave no sign of life for half a minute (ten minutes while there is a process of its number on this
        machine). "empty": finished without a row.
        """
        rows = self._archive.read(lambda db: db.execute("SELECT 1 FROM rows LIMIT 1").fetchone())
        if not self._archive.sessions:
            return "unclosed"
        session = self._archive.sessions[max(self._archive.sessions)]
        if session.status != "running":
            return "empty" if session.status == "finished" and not rows else session.status
        alive = schema.alive(session.host, session.pid)
        silent = time.time() - session.heartbeat
        return "unclosed" if alive is False or silent > (STALE_HERE if alive else STALE) else "running"

    @property
    def started(self) -> float:
        """When it was first written, in seconds since 1970; 0 if that is lost."""
        self._archive.read(lambda db: None)
        begun = [session.started for session in self._archive.sessions.values() if isinstance(session.started, float)]
        return min(begun, default=0.0)

    @property
    def findings(self) -> list[Finding]:
        """Findings of the writer, and problems with the file that reading has shown so far."""
        return [finding for _, finding in self.timeline] + self._archive.findings()

    @property
    def timeline(self) -> list[tuple[int | None, Finding]]:
        """Findings of the writer, each with its step, without those that a later session supersedes."""
        self._archive.read(lambda db: None)
        records = [r for r in self._archive.records.values() if r.kind == "finding"]
        shown = [r for r in records if r.step is None or r.step <= self._archive.cutoff(r.session)]
        return [(r.step, Finding(**r.value)) for r in shown]

    def check(self) -> list[Finding]:
        """Read everything and compare every checksum; returns the findings about the file. Takes as long as reading."""

        def job(db: sqlite3.Connection) -> None:
            for (line,) in db.execute("PRAGMA integrity_check").fetchall():
                if line != "ok":
                    raise sqlite3.DatabaseError(line.splitlines()[-1])
            archive, numbers = self._archive, 0
            for (number,) in db.execute("SELECT id FROM rows ORDER BY id"):
                if number - numbers > rescue.GAP:  # one damaged number, not so many lost rows
                    archive.bad("rows", number)
                    break
                for missing in range(numbers + 1, number):
                    archive.bad("rows", missing)
                numbers = number
            for segment in archive.segments.values():
                for _ in reading.raw_rows(archive, db, segment, 0, FOREVER):
                    pass

        self._archive.read(job)
        return self._archive.findings()

    # What was measured

    @property
    def steps(self) -> NDArray[np.int64]:
        """Every step with something measured or logged, in order."""
        return self._steps(lambda kind: kind != SCHEDULE)

    @property
    def measured(self) -> NDArray[np.int64]:
        """Every measured step, in order."""
        return self._steps(lambda kind: kind == "main")

    def _steps(self, which: Callable[[str], bool]) -> NDArray[np.int64]:
        def job(db: sqlite3.Connection) -> NDArray[np.int64]:
            found: list[int] = []
            for segment in self._archive.segments.values():
                if not which(segment.layout.kind):
                    continue
                end = self._archive.cutoff(segment.session)
                found += [s for (s,) in db.execute(f"SELECT step {SHOWN}", (segment.number, end))]
                found += [d[0] for d in [self._archive.drafts.get(segment.number)] if d is not None and d[0] <= end]
            return np.unique(np.array(found, np.int64))

        return self._archive.read(job)

    @property
    def coverage(self) -> Coverage:
        """How many steps were taken and measured, and the last measured step."""

        def job(db: sqlite3.Connection) -> Coverage:
            archive = self._archive
            measured = last = taken = 0
            for segment in archive.segments.values():
                sql = f"SELECT count(*), max(step) {SHOWN}"
                count, end = db.execute(sql, (segment.number, archive.cutoff(segment.session))).fetchone()
                if count and segment.layout.kind == "main":
                    measured, last = measured + count, max(last, end)
                draft = archive.drafts.get(segment.number)
                logged = draft[0] if draft is not None and draft[0] <= archive.cutoff(segment.session) else 0
                taken = max(taken, end or 0, logged)
            begins = [session.from_step or 0 for _, session in sorted(archive.sessions.items())]
            taken = max([taken, *begins[-1:]])  # one that goes on from a step took those before
            start = begins[0] if 1 in archive.sessions else 0
            return Coverage(measured, max(0, taken - start), last, start)

        return self._archive.read(job)

    def series(
        self,
        quantity: str,
        tensor: str | None = None,
        *,
        quantile: float | None = None,
        neuron: int | None = None,
        kind: str | None = None,
        start: int = 0,
        stop: int | None = None,
        points: int | None = None,
    ) -> Series:
        """One quantity over the steps where it was measured.

        Args:
            quantity: its name.
            tensor: name of the tensor; None for a quantity of the whole run.
            quantile: which quantile over neurons.
            neuron: which sampled neuron.
            kind: which kind of rows, if several have it.
            start: first step.
            stop: step to stop before; None for no end.
            points: return at most about this many summaries of several steps (`values` is the mean, `low` and `high`
                the extremes). The time does not depend on the length of the run. None: every step.
        """
        for name, value in (("quantity", quantity), ("tensor", tensor or "")):
            if not isinstance(value, str):
                raise ValueError(f"{name} = {value!r}: must be a name")
        column = Column(quantity, tensor, quantile, neuron)
        table = self.table([column], kind=kind, start=start, stop=stop, points=points)
        there = table.count[:, 0] > 0
        arrays = {n: getattr(table, n)[there] for n in ("steps", "first", "last", "times")}
        squeezed = {n: getattr(table, n)[there, 0] for n in ("values", "low", "high", "count")}
        return Series(columns=table.columns, level=table.level, **arrays, **squeezed)

    def table(
        self,
        columns: Sequence[Column] | None = None,
        *,
        kind: str | None = None,
        start: int = 0,
        stop: int | None = None,
        points: int | None = None,
        fine: int | None = None,
    ) -> Table:
        """Several columns of one kind at once, a column of the arrays for each.

        Args:
            columns: which; None for all of the kind.
            kind: which kind of rows; None for the one that has the columns.
            start: first step.
            stop: step to stop before; None for no end.
            points: as in `series`. There may be 16 times fewer.
            fine: read up to this many summaries and merge neighbours, so that there are as many as `points` if there
                are enough rows; 16 times `points` is enough for any run.
        """
        start = _check.whole("start", start)
        last = FOREVER if stop is None else _check.whole("stop", stop) - 1
        if points is not None:
            points = _check.whole("points", points, low=1)
        if fine is not None:
            fine = _check.whole("fine", fine, low=1)

        def job(db: sqlite3.Connection) -> Table:
            segments, wanted = reading.choose(self._archive, columns, kind)
            ends = {s: min(last, self._archive.cutoff(s.session)) for s in segments}
            rows = sum(reading.count_rows(db, s, start, ends[s]) for s in segments)
            level = reading.level_for(rows, points, fine)
            parts = [
                reading.View(self._archive, db, s, wanted).summarise(level, start, ends[s])
                for s in segments
                if any(column in s.layout.places for column in wanted)
            ]
            found = pyramid.join(parts) if parts else _nothing(len(wanted))
            if (found.first[1:] < found.first[:-1]).any():
                found = found.take(np.argsort(found.first, kind="stable"))
            if fine is not None and points is not None and len(found) > points:
                found, level = pyramid.thin(found, points), max(level, 1)
            middle = (found.first + found.last) // 2
            mean, low, high = found.mean, found.low, found.high
            if segments and segments[0].layout.kind == LOG:
                mean, low, high = from_log(high, mean), from_log(low), from_log(high)
            return Table(
                tuple(wanted), middle, found.first, found.last, found.time, mean, low, high, found.count, level
            )

        return self._archive.read(job)

    def follow(self, kind: str = "main") -> Follower:
        """An object that reads new rows, again and again, at the cost of the new rows only."""
        return Follower(self._archive, kind)

    # What it means

    @property
    def final(self) -> Final | None:
        """The final training loss: the mean of its last 5 %, and its last value; None if none was logged."""
        from equipoise.monitor.runs.final_loss import final

        return final(self)

    @property
    def best(self) -> Best | None:
        """The best validation loss, such as `val_loss` or `eval_loss`, and its step; None if none was logged."""
        from equipoise.monitor.runs.final_loss import best

        return best(self)

    @property
    def setting(self) -> Setting:
        """The run as a planner's setting: its groups, tensors, lr and weight decay of the steps taken so far.

        `planner.plan_setting(run.setting)` gives the forecasts that `compare` uses. Batch and data size are those in
        `meta` ("batch_size", "dataset_size", "tokens_per_sample", "parameters").

        Raises:
            ValueError: no step was measured, or the run does not know its optimizer.
        """
        from equipoise.monitor.diagnose.setting_of import setting_of

        return setting_of(self)

    def compare(self, tensor: str, *, neuron: int | None = None, points: int | None = 500) -> Comparison:
        """Compare a tensor, or one of its sampled neurons, with its forecast, and attribute the gap.

        Args:
            tensor: name of the tensor.
            neuron: a sampled neuron instead of the whole tensor.
            points: about how many points at most; None for every measured step.
        """
        from equipoise.monitor.diagnose.compare import compare

        return compare(self, tensor, neuron=neuron, points=points)

    def events(self, step: int | None = None) -> list[Event]:
        """What left its usual course before the loss did, by layer, the first one first.

        Args:
            step: where something was seen to be wrong. Default: where the logged loss left its course; no events if
                it never did.
        """
        from equipoise.monitor.diagnose.events import events

        return events(self, None if step is None else _check.whole("step", step, low=1))

    def diagnose(self) -> Diagnosis:
        """What is wrong with the run, where, why, and what to do: stored findings, and those that its rows show now.

        Returns a list of findings with `coverage`. If it is empty, printing it says how much was measured.
        """
        from equipoise.monitor.diagnose.diagnosis import diagnose

        return diagnose(self)

    def frame(
        self,
        quantity: str | Sequence[str] | None = None,
        tensor: str | Sequence[str] | None = None,
        *,
        start: int = 0,
        stop: int | None = None,
        backend: str | None = None,
    ) -> Any:
        """A tidy data frame with one row per number: step, time, quantity, tensor, quantile, neuron, value.

        Args:
            quantity: only this one, or these.
            tensor: only this one, or these.
            start: first step.
            stop: step to stop before; None for no end.
            backend: "pandas" or "polars"; None: whichever is installed.
        """
        from equipoise.monitor.runs.export import frame

        return frame(self, quantity=quantity, tensor=tensor, start=start, stop=stop, backend=backend)

    def show(self) -> None:
        """Show the run: as a page in a notebook, as text elsewhere."""
        _viewer.show(self)

    def _of_kind(self, kind: str) -> dict[str, Record]:
        self._archive.read(lambda db: None)
        return self._archive.of_kind(kind)


def _nothing(columns: int) -> pyramid.Buckets:
    return pyramid.of_rows([], [], np.empty((0, columns), np.float32))
