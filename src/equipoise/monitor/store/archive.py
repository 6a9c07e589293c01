"""Read a run's file: its records and sessions, kept up to date, without damaged parts."""

from __future__ import annotations

import json
import math
import re
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from equipoise.finding import SEVERITIES, Finding
from equipoise.monitor.attach.endings import STATUSES
from equipoise.monitor.store import rescue, schema
from equipoise.monitor.store.layout import Column, Layout, Quantity, TensorInfo
from equipoise.monitor.store.schema import FOREVER, RunError, intact
from equipoise.monitor.store.staging import Session, trouble

T = TypeVar("T")
STATUS = ("running", *STATUSES)
STEPS = 20_000
"""Instructions of SQLite between looks at the clock."""

COLUMNS = "life, from_step, started, heartbeat, status, host, pid, dropped, failure"
"""Of the table `lives`, in the order of a `Session`."""


HALVES = re.compile(r"(\\ud[89ab]..\\ud[c-f]..)|\\ud[89a-f]..", re.IGNORECASE)
"""Letters of two halves in JSON, and halves alone, which no page or terminal can write."""


def _whole(found: re.Match[str]) -> str:
    return found[1] or "\\ufffd"


@dataclass(frozen=True, eq=False)
class Segment:
    """Rows of one session and one layout."""

    number: int
    session: int
    layout: Layout


@dataclass(frozen=True)
class Record:
    """Something said about the run: a word of metadata, a tensor, a quantity, a layout, a segment or a finding."""

    session: int
    kind: str
    key: str
    step: int | None
    time: float
    value: Any


def understood(record: Record) -> Any:
    """What a record says, as an object; an error where it says nothing: intact lines may be of another writer."""
    value, key = record.value, record.key
    whole = isinstance(record.session, int) and isinstance(key, str) and isinstance(record.step, int | None)
    if not whole or not isinstance(record.time, int | float):
        raise TypeError
    match record.kind:
        case "tensor":
            info = TensorInfo(name=key, **value)
            if not (isinstance(info.role, str) and isinstance(info.group, int) and isinstance(info.info, dict)):
                raise TypeError
            return info
        case "quantity":
            return Quantity(name=key, **value)
        case "layout":
            return Layout.from_dict(value)
        case "segment":
            return [hash(number) for number in value["layouts"]]
        case "finding":
            finding, change = Finding(**value), value.get("change", {})
            texts = [said for name, said in value.items() if name != "change"]
            if finding.severity not in SEVERITIES or not all(isinstance(said, str) for said in texts):
                raise TypeError
            if not isinstance(change, dict) or not all(isinstance(x, int | float | str) for x in change.values()):
                raise TypeError
            return finding
    return None


def _which(file: Path) -> tuple[int, int, int] | None:
    """Changes when another file takes the place of this one; None where there is none."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class Archive:
    """A run's file, open for reading; `read` is the only way to it.

    Args:
        directory: where the run is.

    Raises:
        RunError: there is no run, it is of a newer version, or nothing can be read of it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.records: dict[int, Record] = {}
        self.segments: dict[int, Segment] = {}
        self.sessions: dict[int, Session] = {}
        self._cutoffs: dict[int, int] = {}
        self._bad: dict[str, set[Any]] = {}
        self._lost: str = ""
        self._rescued = False
        self.layouts: dict[int, Layout] = {}
        self.columns: tuple[Column, ...] = ()
        """Every column of every layout."""
        self.drafts: dict[int, tuple[int, float, bytes]] = {}
        """By segment: step, time and data of the row that was not final when the file was last written."""
        self._texts: dict[str, Layout] = {}  # every session says the same layout again
        self._seen = 0
        self._version: int | None = None
        self._tables: set[str] = set()
        self._copied: tuple[int, int, int] | None = None
        """Which copy is open, where the file is one that another may replace."""
        self._guard = threading.RLock()
        try:
            self._db = self._open()
            schema.check_version(self._db, directory / schema.FILE)
        except sqlite3.Error as error:
            self._rescue(error, first=True)
        try:
            self.read(lambda db: None)
        except BaseException:
            self._db.close()
            raise

    def read(self, job: Callable[[sqlite3.Connection], T]) -> T:
        """Run a job on one consistent state of the file, again on what could be rescued if the file is damaged."""
        with self._guard:
            self._look_again()
            try:
                return self._attempt(job)
            except UnicodeError as error:  # damage in the names of tables and columns
                self._rescue(error)
            except sqlite3.ProgrammingError:
                raise RunError(f"{self.directory}: the run was closed; open it again") from None
            except sqlite3.Error as error:
                if "interrupted" in str(error):
                    raise RunError(f"{self.directory}: takes too long to read for its size: is damaged") from None
                if "locked" in str(error):
                    raise RunError(f"{self.directory}: is locked by another program ({error}); try again") from None
                if self._rescued:
                    raise RunError(f"{self.directory}: is damaged and cannot be read ({error})") from None
                if not self._look_again():  # on NFS a file that was replaced can be read no more
                    self._rescue(error)
            return self._attempt(job)

    def _open(self) -> sqlite3.Connection:
        file = self.directory / schema.FILE
        self._copied = _which(file) if rescue.is_copy(file) else None
        return rescue.open_read(self.directory)

    def _look_again(self) -> bool:
        """Open the copy that has taken the place of the one that is open; whether there is one."""
        if self._copied is None or self._rescued or _which(self.directory / schema.FILE) in (None, self._copied):
            return False
        self._db.close()
        self._db = self._open()
        self._forget()
        return True

    def _forget(self) -> None:
        self._version, self._seen = None, 0
        self.records, self.segments, self.layouts, self._texts, self.columns = {}, {}, {}, {}, ()

    def _attempt(self, job: Callable[[sqlite3.Connection], T]) -> T:
        db, file = self._db, self.directory / schema.FILE
        end = schema.deadline(file) if file.exists() else math.inf
        db.set_progress_handler(lambda: monotonic() > end, STEPS)
        (version,) = db.execute("PRAGMA data_version").fetchone()
        db.execute("BEGIN")
        try:
            if version != self._version:
                self._tables = schema.check_tables(db)
                self._refresh(db)
                self._version = version
            return job(db)
        finally:
            if db.in_transaction:
                db.rollback()

    def close(self) -> None:
        """Close the file."""
        with self._guard:
            self._db.close()

    def _rescue(self, error: Exception, first: bool = False) -> None:
        if not first:
            self._db.close()
        self._db, lost = rescue.rescue(self.directory, error)
        self._rescued = True
        self._forget()
        self._lost = f"SQLite says {str(error)!r}; {lost}"

    def _refresh(self, db: sqlite3.Connection) -> None:
        """Take in what was written since the last time."""
        lines = db.execute("SELECT * FROM records WHERE id > ? ORDER BY id", (self._seen,)).fetchall()
        for number, *columns, crc in lines:
            self._seen = number
            if not intact(crc, b"", number, *columns):
                self.bad("records", number)
                columns = self._copy_of(db, number)
                if columns is None:
                    continue
            session, kind, key, step, when, value = columns
            try:
                record = Record(session, kind, key, step, when, json.loads(HALVES.sub(_whole, value)))
                known = self._texts.get(value) or understood(record)
            except (TypeError, ValueError, LookupError, AttributeError, RecursionError):  # written by something else
                self.bad("records", number)
                continue
            self.records[number] = record
            if isinstance(known, Layout):
                self.layouts[number] = known
                if value not in self._texts:
                    self._texts[value] = known
                    self.columns = tuple(dict.fromkeys((*self.columns, *known.columns)))
            elif kind == "segment":
                layout = next((self.layouts[n] for n in record.value["layouts"] if n in self.layouts), None)
                if layout is None:
                    self.bad("segments", number)
                else:
                    self.segments[number] = Segment(number, session, layout)
        self.sessions = {}
        for line in db.execute(f"SELECT {COLUMNS} FROM lives ORDER BY life").fetchall():
            session = Session(*line)
            whole = isinstance(session.from_step, int | None) and isinstance(session.pid, int)
            numbers = isinstance(session.heartbeat, float) and isinstance(session.dropped, int)
            words = isinstance(session.host, str) and isinstance(session.failure, str | None)
            if whole and numbers and words and session.status in STATUS:
                self.sessions[session.number] = session
            else:
                self.bad("lives", session.number)
        self._cut(db)
        self.drafts = self._read_drafts(db)

    def _copy_of(self, db: sqlite3.Connection, number: int) -> list[Any] | None:
        """The columns of a damaged record, where its copy is whole."""
        if "copies" not in self._tables:
            return None
        for _, *columns, crc in db.execute("SELECT * FROM copies WHERE id = ?", (number,)):
            return columns if intact(crc, b"", number, *columns) else None
        return None

    def _read_drafts(self, db: sqlite3.Connection) -> dict[int, tuple[int, float, bytes]]:
        if "drafts" not in self._tables:
            return {}
        lines = db.execute("SELECT segment, step, time, data, crc FROM drafts").fetchall()
        found = {}
        for segment, step, time, data, crc in lines:
            if intact(crc, data, segment, step, time):
                found[segment] = (step, time, data)
            else:
                self.bad("drafts", segment)
        return found

    def _cut(self, db: sqlite3.Connection) -> None:
        """The last step of each session that no later session supersedes."""
        begins = {n: session.from_step for n, session in self.sessions.items()}
        for segment in self.segments.values():
            if segment.session not in begins:  # the line of this session is damaged: its rows say where it began
                self.bad("lives", segment.session)
                mine = [s.number for s in self.segments.values() if s.session == segment.session]
                marks = ",".join("?" * len(mine))
                (first,) = db.execute(f"SELECT min(step) FROM rows WHERE segment IN ({marks})", mine).fetchone()
                begins[segment.session] = None if first is None else first - 1
        self._cutoffs, last = {}, FOREVER
        for session in sorted(begins, reverse=True):
            self._cutoffs[session] = last
            begin = begins[session]
            if begin is not None and session > 1:
                last = min(last, begin)

    def cutoff(self, session: int) -> int:
        """The last step of a session that is shown."""
        return self._cutoffs.get(session, FOREVER)

    def known_layouts(self) -> list[Layout]:
        """Every layout once."""
        return list(self._texts.values())

    def of_kind(self, kind: str) -> dict[str, Record]:
        """The last word on every key."""
        return {record.key: record for record in self.records.values() if record.kind == kind}

    def bad(self, table: str, where: Any) -> None:
        """Note a line that fails its checksum."""
        self._bad.setdefault(table, set()).add(where)

    def findings(self) -> list[Finding]:
        """What is wrong with the file, and what went wrong when it was written."""
        evidence = [self._lost] if self._lost else []
        for table, where in self._bad.items():
            some = ", ".join(str(w) for w in sorted(where, key=str)[:3])
            more = ", …" if len(where) > 3 else ""
            evidence.append(f"{len(where)} {table} fail their checksum or are missing (number {some}{more})")
        found = []
        if evidence:
            found.append(
                Finding(
                    "run-damaged", "warning", str(self.directory), "; ".join(evidence), "an undamaged file",
                    "the rest is shown; restore the file from a copy if you have one, and check the disk",
                    "docs/run.md",
                )
            )  # fmt: skip
        sessions = self.sessions.values()
        failure = next((session.failure for session in sessions if session.failure), "")
        return found + trouble(str(self.directory), sum(session.dropped for session in sessions), failure)
