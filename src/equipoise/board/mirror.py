"""Runs at an address such as s3://bucket/runs: copied into a local directory again and again, and shown from there."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Self

from equipoise._extras import need
from equipoise.monitor.runs.directory import MOST
from equipoise.monitor.runs.experiment_summary import FIGURE, SUMMARY
from equipoise.monitor.runs.tags import TAGS
from equipoise.monitor.store.schema import FILE

EVERY, REST = 10.0, 4.0
"""Seconds between looks at an address, and at least so many times as long as a look took."""

WAL = f"{FILE}-wal"
PARTS = (FILE, TAGS, SUMMARY, FIGURE)
"""The files that are copied."""

LARGEST = 4 << 30
"""Bytes of a file that is copied; a larger one is left out."""

log = logging.getLogger("equipoise.board")


def is_address(directory: str) -> bool:
    """Whether runs are somewhere that needs fsspec.

    >>> is_address("s3://bucket/runs"), is_address("runs/a")
    (True, False)
    """
    return "://" in directory


class Mirror:
    """A local copy of the runs at an address, renewed in the background until it is closed.

    Args:
        address: as fsspec takes it.

    Raises:
        ValueError: nothing can be read there.
    """

    def __init__(self, address: str) -> None:
        fsspec: Any = need("fsspec", "remote")
        self._address = address
        self._marks: dict[str, Any] = {}
        self._ended = threading.Event()
        self._failed = False
        try:
            self._system, root = fsspec.core.url_to_fs(address)
            self._root = str(root).rstrip("/")
            if not self._system.isdir(self._root):
                raise FileNotFoundError("there is no such directory")
        except (ValueError, ImportError, OSError) as error:
            raise ValueError(
                f"directory = {address!r}: cannot be read ({error}); give the one that holds runs"
            ) from None
        self._place = tempfile.mkdtemp(prefix="equipoise-board-")
        self.path = Path(self._place)
        """Where the copies are."""
        self._thread = threading.Thread(target=self._work, name="equipoise-mirror", daemon=True)

    def __enter__(self) -> Self:
        try:
            self.refresh()
        except Exception as error:
            shutil.rmtree(self._place, ignore_errors=True)
            raise ValueError(f"directory = {self._address!r}: cannot be read ({error})") from None
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        shutil.rmtree(self._place, ignore_errors=True)

    def _work(self) -> None:
        wait = EVERY
        while not self._ended.wait(wait):
            began = time.monotonic()
            try:
                self.refresh()
                self._failed = False
            except Exception as error:  # of any file system: the next look may go well
                if not self._failed:
                    log.warning("%s: cannot be read now (%s)", self._address, error)
                self._failed = True
            wait = max(EVERY, REST * (time.monotonic() - began))

    def refresh(self) -> None:
        """Copy what is new or has changed, and remove what is gone."""
        self._system.invalidate_cache()
        found: dict[str, tuple[str, dict[str, Any]]] = {}
        for path, about in self._system.find(self._root, detail=True).items():
            name = str(path)[len(self._root) :].strip("/")
            parts = name.split("/")
            fits = parts[-1] in (*PARTS, WAL) and not {"", ".", ".."} & set(parts) and "\\" not in name
            if fits and (about.get("size") or 0) <= LARGEST and len(found) < len(PARTS) * MOST:
                found[name] = (str(path), about)
        for name, (path, about) in found.items():
            log_of = found.get(f"{name}-wal") if name.rpartition("/")[2] == FILE else None
            mark = repr((about, log_of))
            if name.endswith(WAL) or self._marks.get(name) == mark or self._ended.is_set():
                continue
            with contextlib.suppress(FileNotFoundError):  # gone since
                self._copy(name, path, log_of)
                self._marks[name] = mark
        for name in set(self._marks) - set(found):
            (self.path / name).unlink(missing_ok=True)
            del self._marks[name]

    def _copy(self, name: str, path: str, log_of: tuple[str, dict[str, Any]] | None) -> None:
        """Take a file over in one piece; a run with what is in its log."""
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{target.name}.part")
        self._system.get_file(path, str(part))
        if target.name == FILE:
            if log_of is not None:
                self._system.get_file(log_of[0], f"{part}-wal")
            _settle(part)
        os.replace(part, target)


def _settle(file: Path) -> None:
    """Bring what is in a run's log into the file, whose header then says that there is none, if SQLite can."""
    try:
        db = sqlite3.connect(file, isolation_level=None)
        try:
            db.execute("PRAGMA trusted_schema = OFF")
            db.execute("PRAGMA journal_mode = DELETE")
        finally:
            db.close()
    except sqlite3.Error:
        pass  # who reads it says what is wrong
    for end in ("-wal", "-shm"):
        file.with_name(file.name + end).unlink(missing_ok=True)
