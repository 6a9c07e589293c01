"""The runs under a directory and their status. Nothing outside the directory is ever opened."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from equipoise.monitor.runs.lines import RunRow, row_of
from equipoise.monitor.runs.tags import TAGS
from equipoise.monitor.store.schema import FILE, RunError

PARTS = (FILE, f"{FILE}-wal", f"{FILE}-shm")
"""The files of a run."""

DEPTH = 8
"""How deep runs are looked for."""

MOST = 5000
"""Runs that are listed."""


def spelled(name: str) -> str:
    r"""A name of a file as text: bytes that are none are written out.

    >>> spelled(os.fsdecode(b"caf\xe9"))
    'caf\\udce9'
    """
    return name.encode("utf-8", "backslashreplace").decode()


def unspelled(name: str) -> str:
    """The inverse of `spelled`."""
    return re.sub(r"\\udc([89a-f][0-9a-f])", lambda found: chr(0xDC00 + int(found[1], 16)), name)


class Directory:
    """The runs under a directory.

    Args:
        root: the directory.

    Raises:
        ValueError: it is not a directory.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise ValueError(f"directory = {str(root)!r}: must be a directory; give the one that holds runs")
        self._known: dict[str, tuple[Any, RunRow]] = {}

    def path(self, name: str) -> Path:
        """The directory of a run.

        Raises:
            RunError: there is no such run under the root, also where a link would lead out of it.
        """
        missing = RunError(f"run = {name!r}: there is no such run here; go back to the list")
        try:
            path = self.place(name).resolve()
            parts = [(path / part).resolve() for part in PARTS]
            if self.inside(path) and parts[0].is_file() and all(self.inside(part) for part in parts):
                return path
        except (OSError, ValueError, RuntimeError):  # loops of links, names that no file can have
            pass
        raise missing

    def place(self, name: str) -> Path:
        """The path of what has this name in lists."""
        plain = self.root / name
        return plain if plain.exists() else self.root / unspelled(name)

    def inside(self, path: Path) -> bool:
        """Whether a path without links is under the root."""
        return path == self.root or self.root in path.parents

    def names(self) -> list[str]:
        """Every run, by its path from the root; "." where the root is one."""
        return self.walk()[0]

    def walk(self, also: str | None = None) -> tuple[list[str], list[str]]:
        """Every run, and every folder that has another file.

        Args:
            also: name of that file.
        """
        runs: list[str] = []
        others: list[str] = []
        for folder, folders, files in os.walk(self.root, followlinks=False):
            name = spelled(os.path.relpath(folder, self.root).replace(os.sep, "/"))
            if name.count("/") + (name != ".") >= DEPTH:
                folders.clear()
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            if also in files and len(others) < MOST:
                others.append(name)
            if FILE in files and self._holds(name, folder):
                runs.append(name)
                if len(runs) >= MOST:
                    break
        return runs, others

    def _holds(self, name: str, folder: str) -> bool:
        """Whether a folder that was reached without links holds a run that may be opened."""
        if not any(os.path.islink(os.path.join(folder, part)) for part in PARTS):
            return os.path.isfile(os.path.join(folder, FILE))
        try:
            self.path(name)
        except RunError:
            return False
        return True

    def lines(self, seconds: float = float("inf"), names: Sequence[str] | None = None) -> list[RunRow]:
        """A line for each run; those that there was no time for have a name alone, and come with later calls.

        Args:
            seconds: how long runs may be opened.
            names: of the runs. Default: all.
        """
        end = time.monotonic() + seconds
        found: list[RunRow] = []
        for name in self.names() if names is None else names:
            path = self.place(name)
            mark = signature(path)
            old = self._known.get(name)
            fresh = old is not None and old[0] == mark and old[1].values.get("status") != "running"
            if not fresh and (time.monotonic() < end or not found):
                old = (mark, row_of(path))
                self._known[name] = old
            line = old[1] if old is not None else RunRow()
            found.append(replace(line, values={"name": name, "changed": mark[0]} | line.values))
        return found


def signature(path: Path) -> tuple[Any, ...]:
    """Changes when a run's file or tags do; begins with the time of the run's last change."""
    found = [mark_of(path / name) for name in (FILE, f"{FILE}-wal")]
    return (max(t for t, _ in found), *found, mark_of(path / TAGS))


def mark_of(file: Path) -> tuple[float, int]:
    """When a file was changed, and its size; nothing where it is empty or missing."""
    try:
        stat = file.stat()
    except OSError:
        return 0.0, 0
    # An empty log beside a file is left by who reads it.
    return (stat.st_mtime, stat.st_size) if stat.st_size else (0.0, 0)
