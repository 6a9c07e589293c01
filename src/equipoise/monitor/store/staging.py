"""Write a run's file: stage rows, commit them together, and keep them for another try if that fails.

Used by one thread, that of `RunWriter`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from equipoise.finding import Finding
from equipoise.monitor.store import network, pyramid, schema
from equipoise.monitor.store.layout import Layout
from equipoise.monitor.store.schema import RunError, checksum

BEAT = 1.0
"""Seconds between signs of life when there is nothing to store."""


class FileGoneError(OSError):
    """The file was removed or replaced: what was stored in it is lost, too."""


@dataclass
class Session:
    """One stretch of writing; a line of the table `lives`."""

    number: int
    from_step: int | None
    started: float
    heartbeat: float
    status: str
    host: str
    pid: int
    dropped: int = 0
    failure: str = ""

    def line(self) -> tuple[Any, ...]:
        """As a line of the table."""
        return tuple(vars(self).values())


@dataclass
class _Segment:
    """Rows of one session and one layout."""

    number: int
    layout: Layout
    builder: pyramid.Builder = field(default_factory=pyramid.Builder)
    rows: int = 0


class RunFileWriter:
    """The open file of a run that is being written.

    Args:
        directory: where the run is; made if it is not there.
        resume: whether a run that is there is continued; a step: rows after it are superseded at once.

    Raises:
        RunError: somebody writes there, there is a run and `resume` is not set, or it is damaged.
        OSError | sqlite3.Error: the file system does not let us.
    """

    def __init__(self, directory: Path, resume: bool | int) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._copies = network.Copies(directory) if network.needs_copy(directory) else None
        self._place = directory if self._copies is None else self._copies.local
        held = schema.lock(self._place)
        if held is None:
            raise RunError(
                f"{directory}: is being written{_by_whom(directory)}; close that writer, or choose another directory"
            )
        self._lock = held
        try:
            self._db = self._open(self._place / schema.FILE, resume, directory)
        except BaseException:
            held.close()
            if self._copies is not None:
                self._copies.close(whole=False)
            raise
        self._segments: dict[str, _Segment] = {}
        self._layouts: dict[str, tuple[list[int], Layout]] = {}
        self._records: list[tuple[Any, ...]] = []
        self._rows: list[tuple[Any, ...]] = []
        self._buckets: list[tuple[Any, ...]] = []
        self._drafts: dict[str, tuple[Any, ...] | None] = {}
        self._drafted: dict[str, int] = {}
        self._ended: list[Session] = []
        self._looked = 0.0
        self._dropped_before = self._stored = 0
        self.staged_bytes = 0
        self.committed = 0.0
        self.before = 0.0
        """The time of the last row of earlier sessions."""
        try:
            highest = [self._db.execute(f"SELECT max(id) FROM {table}").fetchone()[0] for table in ("records", "rows")]
            self._record, self._row = (n or 0 for n in highest)
            earlier = self._db.execute("SELECT max(life) FROM lives").fetchone()[0] or 0
            (self.before,) = self._db.execute("SELECT time FROM rows ORDER BY id DESC LIMIT 1").fetchone() or (0.0,)
            self._inode = os.stat(self._place / schema.FILE).st_ino
            self.session = self._new_session(earlier + 1, None if isinstance(resume, bool) else resume)
            self.commit()
        except sqlite3.DatabaseError as error:
            self._leave()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise RunError(_damaged(directory, error)) from None
        except BaseException:
            self._leave()
            raise

    @staticmethod
    def _open(path: Path, resume: bool | int, home: Path) -> sqlite3.Connection:
        there = path.exists() and path.stat().st_size > 0
        try:
            db = schema.connect(path)
        except sqlite3.OperationalError:
            raise
        except sqlite3.DatabaseError as error:
            raise RunError(_damaged(home, error)) from None
        try:
            # A process that was killed while it made the run leaves a file without tables: as good as none.
            if not there or db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
                schema.create(db)
            else:
                schema.check_version(db, path)
                db.executescript(schema.LATER)
                if resume is False:
                    last = db.execute("SELECT max(step) FROM rows").fetchone()[0]
                    raise RunError(
                        f"{home}: already holds a run (last step {last}); pass resume=True to append to it, "
                        "or choose another directory"
                    )
        except sqlite3.DatabaseError as error:
            db.close()
            if isinstance(error, sqlite3.OperationalError):
                raise
            raise RunError(_damaged(home, error)) from None
        except BaseException:
            db.close()
            raise
        return db

    @staticmethod
    def _new_session(number: int, from_step: int | None) -> Session:
        now = time.time()
        return Session(number, from_step, now, now, "running", schema.host(), os.getpid())

    def record(self, kind: str, key: str, value: str, step: int | None = None) -> int:
        """Stage a record; returns its number."""
        self._record += 1
        columns = (self._record, self.session.number, kind, key, step, time.time(), value)
        self._records.append((*columns, checksum(b"", *columns)))
        return self._record

    def layout(self, layout: Layout) -> None:
        """Rows of the layout's kind have this layout from now on."""
        text = json.dumps(layout.to_dict())
        numbers = [self.record("layout", layout.kind, text)]
        self._layouts[layout.kind] = (numbers, layout)
        self._segments.pop(layout.kind, None)

    def rewind(self, step: int) -> None:
        """Begin a new session, which supersedes all rows after a step."""
        self.session.status = "finished"
        self._ended.append(self.session)
        self._dropped_before += self.session.dropped
        self.session = self._new_session(self.session.number + 1, step)
        self._segments.clear()
        self._drafted.clear()  # that of the session before stays

    def row(self, kind: str, step: int, when: float, data: bytes) -> None:
        """Stage a row, and the buckets that it completes."""
        segment = self._segment(kind, step)
        self._drafts[kind] = None
        self._row += 1
        columns = (segment.number, step, when)
        self._rows.append((self._row, *columns, data, checksum(data, *columns)))
        self.staged_bytes += len(data) + 200
        segment.rows += 1
        dtype = segment.layout.stored
        for level, bucket in segment.builder.add(step, when, data, dtype):
            about = (int(bucket.seq[0]), int(bucket.rows[0]), int(bucket.first[0]), int(bucket.last[0]), when)
            for tile, start in enumerate(pyramid.tiles(len(segment.layout))):
                place = (segment.number, level, tile, *about)
                blob = pyramid.encode(bucket, start, dtype)
                self._buckets.append((*place, blob, checksum(blob, *place)))
                self.staged_bytes += len(blob) + 200

    def draft(self, kind: str, step: int, when: float, data: bytes) -> None:
        """Stage the row of a step that may get more numbers; the next row or draft of its kind replaces it."""
        columns = (self._segment(kind, step).number, step, when)
        self._drafts[kind] = (*columns, data, checksum(data, *columns))

    def _segment(self, kind: str, step: int) -> _Segment:
        """Where rows of a kind go, from this step on."""
        if self.session.from_step is None and self.session.number > 1:
            self.session.from_step = step - 1  # resumed here, as the first row says
        segment = self._segments.get(kind)
        if segment is None:
            numbers, layout = self._layouts[kind]
            value = json.dumps({"life": self.session.number, "layouts": numbers})
            segment = self._segments[kind] = _Segment(self.record("segment", kind, value), layout)
        return segment

    def note(self, dropped: int, failure: str) -> None:
        """What went wrong so far; stored with the next commit."""
        self.session.dropped, self.session.failure = dropped - self._dropped_before, failure

    def commit(self, publish: bool = False) -> None:
        """Store all that is staged, or raise and keep it staged.

        Args:
            publish: copy it at once, where the run is on a network.
        """
        now = time.time()
        if now - self._looked > BEAT:
            self._looked = now
            self._still_there()
        publish = self._copies is not None and (publish or self._copies.due())
        self.session.heartbeat = now + (self._copies.ahead if self._copies is not None else 0.0)
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            sessions = [session.line() for session in (*self._ended, self.session)]
            db.executemany("INSERT OR REPLACE INTO lives VALUES (?,?,?,?,?,?,?,?,?)", sessions)
            for table in ("records", "copies"):
                db.executemany(f"INSERT INTO {table} VALUES (?,?,?,?,?,?,?,?)", self._records)
            db.executemany("INSERT INTO rows VALUES (?,?,?,?,?,?)", self._rows)
            db.executemany("INSERT INTO buckets VALUES (NULL,?,?,?,?,?,?,?,?,?,?)", self._buckets)
            for kind, draft in self._drafts.items():
                if kind in self._drafted:
                    db.execute("DELETE FROM drafts WHERE segment = ?", (self._drafted[kind],))
                if draft is not None:
                    db.execute("INSERT OR REPLACE INTO drafts VALUES (?,?,?,?,?)", draft)
            db.execute("COMMIT")
        except BaseException:
            if db.in_transaction:
                db.rollback()
            raise
        self._ended, self._records = [], []
        for kind, draft in self._drafts.items():
            self._drafted.pop(kind, None)
            if draft is not None:
                self._drafted[kind] = draft[0]
        self._drafts = {}
        self._stored += len(self._rows)
        self._forget()
        self.committed = time.monotonic()
        if publish and self._copies is not None:
            self._copies.publish(db)

    def _still_there(self) -> None:
        """SQLite goes on writing into a file that was removed, and nobody would ever find it."""
        try:
            inode = os.stat(self._place / schema.FILE).st_ino
        except FileNotFoundError:
            raise FileGoneError(f"{schema.FILE} was removed") from None
        if inode != self._inode:
            raise FileGoneError(f"{schema.FILE} was replaced by another file")

    def give_up_stored(self) -> int:
        """Count the rows that were stored in a file that is gone as lost; returns how many."""
        lost, self._stored = self._stored, 0
        return lost

    def drop_rows(self) -> int:
        """Give up the staged rows; returns how many. Records stay staged: later rows need their layouts."""
        lost = {}
        for row in self._rows:
            lost[row[1]] = lost.get(row[1], 0) + 1
        for segment in self._segments.values():
            segment.rows -= lost.get(segment.number, 0)
            segment.builder.restart(segment.rows)
        dropped = len(self._rows)
        self._row -= dropped  # numbers have no gaps, so that a gap shows a lost row
        self._forget()
        return dropped

    def _forget(self) -> None:
        self._rows, self._buckets, self.staged_bytes = [], [], 0

    def close(self, status: str) -> None:
        """Say how it ended, and let go of the file; raises if that cannot be stored."""
        self.session.status = status
        self._looked = 0.0
        whole = False
        try:
            self.commit(publish=True)
            whole = True
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except (OSError, sqlite3.Error) as error:
            if self._copies is None:
                raise
            raise OSError(f"{error}; {self._copies.local} has the run") from error
        finally:
            self._leave(whole)

    def _leave(self, whole: bool = False) -> None:
        self._db.close()
        self._lock.close()
        if self._copies is not None:
            self._copies.close(whole)


def trouble(where: str, dropped: int, failure: str) -> list[Finding]:
    """What went wrong with the writing, as one finding at most."""
    lost = f"{dropped} measured rows are not stored"
    if failure:
        return [
            Finding(
                "run-not-written", "warning", where, f"{failure}; {lost}", "every measured row stored",
                "make room on the disk or choose a directory that can be written; training is not affected",
                "docs/run.md",
            )
        ]  # fmt: skip
    if dropped:
        return [
            Finding(
                "rows-dropped", "warning", where, f"the disk was slower than training: {lost}",
                "every measured row stored",
                "measure less often, fewer neurons, or write to a faster disk; training is not affected", "docs/run.md",
            )
        ]  # fmt: skip
    return []


def _damaged(directory: Path, error: Exception) -> str:
    return (
        f"{directory}: the run is damaged ({error}) and cannot be appended to; write to a new directory "
        "(Run.open reads what is left of this one)"
    )


def _by_whom(directory: Path) -> str:
    """Who writes there, as far as the file says."""
    try:
        db = sqlite3.connect(f"{(directory / schema.FILE).absolute().as_uri()}?mode=ro", uri=True)
    except sqlite3.Error:
        return ""
    try:
        host, pid = db.execute("SELECT host, pid FROM lives ORDER BY life DESC LIMIT 1").fetchone()
        if (host, pid) == (schema.host(), os.getpid()):
            return " by this process (close() of the watch or writer ends that)"
        return f" by process {pid} on {host.partition('/')[0]}"
    except (sqlite3.Error, TypeError):
        return ""
    finally:
        db.close()
