"""The file of a run: its tables, their version, checksums, and the lock that keeps a second writer out.

docs/run.md describes all of it for people who read a run without this library.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import sqlite3
import time
import zlib
from functools import cache
from pathlib import Path
from typing import Any

VERSION = 1
"""Version of the tables, in `PRAGMA user_version`. A reader refuses a newer one."""

APPLICATION = 0x45515053
"""`PRAGMA application_id`, the letters EQPS: how a run is told from any other SQLite file."""

FOREVER = 2**62
"""A step after every step."""

SECONDS, RATE = 10.0, 20e6
"""A job on a file takes no longer than so many seconds, and one more for so many bytes of the file: a file may be made
so that reading it has no end."""

FILE = "run.sqlite"
LOCK = "run.lock"

TABLES = """
CREATE TABLE lives (
    life INTEGER PRIMARY KEY,  -- 1, 2, …: one for every time that writing began, or went back
    from_step INTEGER,         -- rows of earlier lives after this step are superseded; NULL: none is
    started REAL, heartbeat REAL,
    status TEXT,               -- running, finished, interrupted or crashed
    host TEXT, pid INTEGER,
    dropped INTEGER,           -- rows that were measured and not stored
    failure TEXT               -- the first error of the file system, or empty
);
CREATE TABLE records (
    id INTEGER PRIMARY KEY, life INTEGER, kind TEXT, key TEXT, step INTEGER, time REAL,
    value TEXT,                -- JSON
    crc INTEGER
);
CREATE TABLE rows (
    id INTEGER PRIMARY KEY, segment INTEGER, step INTEGER, time REAL,
    data BLOB,                 -- one number a column of the segment's layout
    crc INTEGER
);
CREATE INDEX rows_by_step ON rows (segment, step);
CREATE TABLE buckets (
    id INTEGER PRIMARY KEY, segment INTEGER, level INTEGER, tile INTEGER,
    seq INTEGER, rows INTEGER, -- the rows seq … seq + rows − 1 of the segment
    first INTEGER, last INTEGER, time REAL,
    data BLOB,                 -- min, mean, max, count of every column of the tile
    crc INTEGER
);
CREATE INDEX buckets_by_step ON buckets (segment, level, tile, first);
"""

LATER = """
CREATE TABLE IF NOT EXISTS drafts (
    segment INTEGER PRIMARY KEY,
    step INTEGER, time REAL,   -- after the last row of the segment
    data BLOB,                 -- as in rows
    crc INTEGER
);
CREATE TABLE IF NOT EXISTS copies (
    id INTEGER PRIMARY KEY, life INTEGER, kind TEXT, key TEXT, step INTEGER, time REAL,
    value TEXT,
    crc INTEGER
);
"""
"""The row of a step that may still get more numbers, and every record once more, in other pages of the file: without
their layouts rows mean nothing. Older files have no such tables."""


def checked_path(path: Any) -> Path:
    """The path of a directory, refused where it is none."""
    try:
        return Path(path)
    except TypeError:
        raise RunError(f"path = {path!r}: must be the name of a directory") from None


class RunError(ValueError):
    """A run cannot be opened, or does not have what was asked for; the message says what to do."""


def checksum(data: bytes, *columns: Any) -> int:
    """CRC-32 of a blob, continued over the JSON of the other columns, so that a flipped bit in any of them shows.

    >>> checksum(b"equipoise", 1, 2.5, None)
    3064502490
    """
    for c in columns:
        if type(c) is not int and not (type(c) is float and math.isfinite(c)):
            text = json.dumps(columns)
            break
    else:
        text = repr(list(columns))  # the same, and faster
    return zlib.crc32(text.encode(), zlib.crc32(data))


def intact(crc: Any, data: Any, *columns: Any) -> bool:
    """Whether a line is as it was written; damage may have changed types, too."""
    try:
        return checksum(data, *columns) == crc
    except (TypeError, ValueError):
        return False


def deadline(path: Path) -> float:
    """When a job on a file that begins now is given up, by `time.monotonic`."""
    return time.monotonic() + SECONDS + path.stat().st_blocks * 512 / RATE


def host() -> str:
    """This machine, and on Linux its space of process ids: where a process id has the same meaning."""
    try:
        return f"{socket.gethostname()}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()


def alive(name: str, pid: int) -> bool | None:
    """Whether a process sessions; None where it cannot be told, as on another machine."""
    if name != host():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is there and belongs to somebody else
    return not _zombie(pid)


def _zombie(pid: int) -> bool:
    """Dead, and not yet collected by its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (OSError, IndexError):
        return False


def check_plain(path: Path) -> None:
    """Refuse what SQLite would wait for without end, such as a pipe in the place of a journal.

    Raises:
        sqlite3.DatabaseError: something beside the file, or it itself, is there and is no file.
    """
    for side in ("", "-journal", "-wal", "-shm"):
        part = path.with_name(path.name + side)
        if part.exists() and not part.is_file():
            raise sqlite3.DatabaseError(f"{part.name} is no file")


def connect(path: Path) -> sqlite3.Connection:
    """A connection that writes, in WAL mode: readers never wait, and what is committed survives kill -9."""
    check_plain(path)
    db = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    try:
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        db.close()
        raise
    return db


def create(db: sqlite3.Connection) -> None:
    """Make the tables, all or none."""
    db.executescript(
        f"BEGIN; {TABLES}{LATER} PRAGMA user_version = {VERSION}; PRAGMA application_id = {APPLICATION}; COMMIT;"
    )
    # Into the main file at once, so that a run without its WAL file is still a run.
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def check_version(db: sqlite3.Connection, path: Path) -> None:
    """Refuse files that are no runs, and runs of a newer version."""
    (application,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        raise RunError(f"{path}: is an SQLite file but not a run of equipoise; give the directory of a run")
    if version > VERSION:
        raise RunError(
            f"{path}: has schema version {version}, and this equipoise reads up to {VERSION}; upgrade equipoise"
        )


def check_tables(db: sqlite3.Connection) -> set[str]:
    """The names of the tables, if all are plain ones, made as here.

    A file may hold anything under their names: views that compute without end, columns made when read.

    Raises:
        sqlite3.DatabaseError: one is another.
    """
    known, found = _known(), set()
    for kind, name, table, text in db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master"):
        if name in known or table in known or kind not in ("table", "index"):
            if known.get(name) != (kind, table, _plain(text)):
                raise sqlite3.DatabaseError(f"{kind} {name!r} is not one of a run")
            found.add(name)
    return found


@cache
def _known() -> dict[str, tuple[str, str, str]]:
    db = sqlite3.connect(":memory:")
    db.executescript(TABLES + LATER)
    lines = db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
    db.close()
    return {name: (kind, table, _plain(text)) for kind, name, table, text in lines}


def _plain(text: Any) -> str:
    """The text that made a table, without comments."""
    return " ".join(re.sub(r"--[^\n]*", " ", str(text)).split())


def lock(directory: Path) -> sqlite3.Connection | None:
    """Hold the run for writing, or None if somebody does.

    The lock is SQLite's own on an empty file: the system frees it when the process dies, however it dies, and a forked
    child does not inherit it (an flock would live on in the workers of a DataLoader).
    """
    check_plain(directory / LOCK)
    held = sqlite3.connect(directory / LOCK, timeout=0, isolation_level=None, check_same_thread=False)
    try:
        held.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        held.close()
        if "locked" in str(error):
            return None
        raise
    return held
