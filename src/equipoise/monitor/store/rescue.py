"""Open a run's file for reading, and rescue what can be read of a damaged one."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from equipoise.monitor.store import schema
from equipoise.monitor.store.schema import RunError

KEYS = {"lives": "life", "records": "id", "rows": "id", "buckets": "id", "drafts": "segment"}
"""The tables, and the column that numbers their lines."""

PROBES = 50_000
"""Lines to try one by one behind a damaged place before the rest of a table is given up."""

BLIND_PROBES = 5_000
"""The same where the end of the table cannot be read either, as in a file that was cut off."""


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


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?{mode}"
    return _readable(sqlite3.connect(uri, uri=True, isolation_level=None, timeout=5, check_same_thread=False))


def _temporary() -> sqlite3.Connection:
    """An unnamed database that SQLite keeps in memory while it is small, and in a file of its own when it is not."""
    return _readable(sqlite3.connect("", isolation_level=None, check_same_thread=False))


def _readable(db: sqlite3.Connection) -> sqlite3.Connection:
    # Damaged text must reach its checksum and not stop the reading.
    db.text_factory = lambda raw: raw.decode("utf-8", "replace")
    return db


def rescue(directory: Path, error: Exception) -> tuple[sqlite3.Connection, int]:
    """Copy every line that can still be read into a temporary database.

    Args:
        directory: where the run is.
        error: what SQLite said of it.

    Returns:
        The copy, and how many measured rows are known to be lost.

    Raises:
        RunError: nothing can be read.
    """
    path = directory / schema.FILE
    target = _temporary()
    target.executescript(schema.TABLES + schema.DRAFTS)
    source = _connect(path, "mode=ro")
    try:
        # Without this SQLite reads nothing of a file that is shorter than its header says.
        source.execute("PRAGMA writable_schema = ON")
        found = 0
        for table, key in KEYS.items():
            for line in _lines(source, table, key):
                marks = ",".join("?" * len(line))
                # INSERT fails where a damaged number is there twice or is no number: such a line is worth nothing.
                try:
                    target.execute(f"INSERT INTO {table} VALUES ({marks})", line)
                    found += table == "rows" or table == "records"
                except sqlite3.Error:
                    continue
        if not found:
            target.close()
            raise RunError(f"{path}: is damaged and nothing can be read of it ({error}); restore it from a copy")
    except (sqlite3.Error, UnicodeError):
        target.close()
        raise RunError(f"{path}: is damaged or is not a run ({error}); restore it from a copy") from None
    finally:
        source.close()
    highest, count = target.execute("SELECT max(id), count(*) FROM rows").fetchone()
    return target, (highest or 0) - count


def _lines(db: sqlite3.Connection, table: str, key: str) -> Iterator[tuple[Any, ...]]:
    """All lines of a table that can be read, in order, round damaged places."""
    at = 0
    while True:
        try:
            for line in db.execute(f"SELECT * FROM {table} WHERE {key} > ? ORDER BY {key}", (at,)):
                if not isinstance(line[0], int) or line[0] <= at:
                    raise sqlite3.DatabaseError("numbers do not rise")
                at = line[0]
                yield line
            return
        except sqlite3.DatabaseError:
            line = _next(db, table, key, at)
        if line is None:
            return
        at = line[0]
        yield line


def _next(db: sqlite3.Connection, table: str, key: str, at: int) -> tuple[Any, ...] | None:
    """The next line behind a damaged place, found by trying number after number."""
    try:
        (end,) = db.execute(f"SELECT max({key}) FROM {table}").fetchone()
    except sqlite3.DatabaseError as error:
        if "no such" in str(error) or "not a database" in str(error):
            return None  # not a damaged place: there is no table at all
        end = None
    if not isinstance(end, int):
        end = at + BLIND_PROBES
    for number in range(at + 1, min(end, at + PROBES) + 1):
        try:
            line = db.execute(f"SELECT * FROM {table} WHERE {key} = ?", (number,)).fetchone()
        except sqlite3.DatabaseError:
            continue
        if line is not None and line[0] == number:
            return line
    return None
