"""Open a run's file for reading, and rescue what can be read of a damaged one."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from pathlib import Path
from typing import Any

from equipoise.monitor.store import schema
from equipoise.monitor.store.leaves import cells
from equipoise.monitor.store.schema import RunError

LONGEST = 1 << 27
"""Bytes of a text or blob that SQLite may make or read."""

GAP = 1_000_000
"""Rows in one piece that may be missing; a larger step in their numbers is a damaged number."""


def open_read(directory: Path) -> sqlite3.Connection:
    """A connection that only reads.

    Raises:
        RunError: there is no run.
        sqlite3.Error: there is a file, and it cannot be read.
    """
    path = directory / schema.FILE
    if not path.is_file():
        what = "is not a directory" if directory.exists() and not directory.is_dir() else f"holds no {schema.FILE}"
        raise RunError(f"path = {str(directory)!r}: {what}; give the directory of a run")
    schema.check_plain(path)
    if is_copy(path):
        return _connect(path, "immutable=1")
    db = _connect(path, "mode=ro")
    try:
        db.execute("SELECT count(*) FROM sqlite_master")
        return db
    except sqlite3.OperationalError as error:
        db.close()
        if "open" not in str(error) and "readonly" not in str(error):
            raise
    except UnicodeDecodeError as error:  # SQLite quotes the damaged bytes in its message
        db.close()
        raise sqlite3.DatabaseError("the table of contents is damaged") from error
    except BaseException:
        db.close()
        raise
    # The directory is read-only, so that SQLite cannot make the index of a WAL file.
    wal = path.with_name(path.name + "-wal")
    if not wal.exists() or wal.stat().st_size == 0:
        return _connect(path, "immutable=1")
    with tempfile.TemporaryDirectory() as copy:
        for part in (path, wal):
            shutil.copy(part, copy)
        source = _connect(Path(copy) / path.name, "mode=rw")
        try:
            target = _temporary()
            source.backup(target)
        finally:
            source.close()
    return target


def is_copy(path: Path) -> bool:
    """Whether a run's file is a whole copy, which nobody changes: another takes its place (see `network`).

    A file that is written in place says in its header that it has a write-ahead log.
    """
    if not path.is_file():
        return False
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return False
    return head[18:20] == b"\x01\x01" and not path.with_name(f"{path.name}-wal").exists()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{mode}"
    return _readable(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5, check_same_thread=False))


def _temporary() -> sqlite3.Connection:
    """An unnamed database that SQLite keeps in memory while it is small, and in a file of its own when it is not."""
    return _readable(sqlite3.connect("", isolation_level=None, check_same_thread=False))


def _readable(db: sqlite3.Connection) -> sqlite3.Connection:
    # Damaged text must reach its checksum and not stop the reading.
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    db.execute("PRAGMA trusted_schema = OFF")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST)
    return db


def rescue(directory: Path, error: Exception) -> tuple[sqlite3.Connection, str]:
    """Copy every whole line, wherever it lies in the file, into a temporary database.

    Args:
        directory: where the run is.
        error: what SQLite said of it.

    Returns:
        The copy, and how many rows are known to be lost.

    Raises:
        RunError: nothing can be read.
    """
    path = directory / schema.FILE
    target = _temporary()
    target.executescript(schema.TABLES + schema.LATER)
    named = found = 0
    try:
        target.execute("BEGIN")
        for number, columns in cells(path, schema.deadline(path)):
            if number is None:  # of the index of rows, each with the number of its row; the number has no checksum
                named = max(named, *(n for n in columns[2:3] if isinstance(n, int) and len(columns) == 3), 0)
                continue
            table = _table_of(number, columns)
            if table is not None:
                marks = ",".join("?" * len(columns))
                target.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (number, *columns[1:]))
                found += table in ("rows", "records")
        target.execute("COMMIT")
    except OSError as failure:
        target.close()
        raise RunError(f"{path}: cannot be read ({failure.strerror})") from None
    if not found:
        target.close()
        raise RunError(f"{path}: is damaged and nothing can be read of it ({error}); restore it from a copy")
    last, count = target.execute("SELECT max(id), count(*) FROM rows").fetchone()
    last = max(last or 0, named if named < GAP + (last or 0) else 0)
    return target, f"at least {last - count} rows are lost, and {count} are left"


REAL = {"rows": (3,), "records": (5,), "lives": (2, 3), "buckets": (8,), "drafts": (2,)}
"""Columns that are no whole numbers: SQLite keeps 2.0 as 2."""


def _table_of(number: int, columns: list[Any]) -> str | None:
    """The table that a line is of, by its columns and checksum; None where it is of none, or damaged."""
    table = {5: "drafts", 6: "rows", 8: "records", 9: "lives", 11: "buckets"}.get(len(columns))
    if table is None:
        return None
    for i in REAL[table]:
        if isinstance(columns[i], int):
            columns[i] = float(columns[i])
    *about, data, crc = columns
    match table:
        case "lives":  # without a checksum; whoever reads it looks at each column
            whole = isinstance(columns[4], str)
        case "records":
            whole = schema.intact(crc, b"", number, *columns[1:-1])
        case "drafts":
            whole = schema.intact(crc, data, number, *about[1:])
        case _:
            whole = schema.intact(crc, data, *about[1:])
    return table if whole else None
