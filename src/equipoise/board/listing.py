"""The runs under a directory: which there are, and how each is. Nothing outside of the directory is ever opened."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.monitor.layout import Column
from equipoise.monitor.run import Run
from equipoise.monitor.schema import FILE, RunError

DEPTH = 8
"""How deep runs are looked for."""

MOST = 5000
"""Runs that are listed."""

SPARK = 40


class Runs:
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
        self._known: dict[str, tuple[Any, dict[str, Any]]] = {}

    def path(self, name: str) -> Path:
        """The directory of a run.

        Raises:
            RunError: there is no such run under the root, also where a link would lead out of it.
        """
        missing = RunError(f"run = {name!r}: there is no such run here; go back to the list")
        try:
            path = (self.root / name).resolve()
            parts = [(path / part).resolve() for part in (FILE, f"{FILE}-wal", f"{FILE}-shm")]
            if self._inside(path) and parts[0].is_file() and all(self._inside(part) for part in parts):
                return path
        except (OSError, ValueError, RuntimeError):  # loops of links, names that no file can have
            pass
        raise missing

    def _inside(self, path: Path) -> bool:
        return path == self.root or self.root in path.parents

    def names(self) -> list[str]:
        """Every run, by its path from the root; "." where the root is one."""
        found = []
        for folder, folders, files in os.walk(self.root, followlinks=False):
            here = Path(folder)
            if len(here.relative_to(self.root).parts) >= DEPTH:
                folders.clear()
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            if FILE in files:
                name = here.relative_to(self.root).as_posix()
                try:
                    self.path(name)
                except RunError:
                    continue
                found.append(name)
                if len(found) >= MOST:
                    break
        return found

    def table(self, seconds: float = 0.5) -> list[dict[str, Any]]:
        """A line for each run; those that there was no time for have only a name, and come with later calls.

        Args:
            seconds: how long runs may be opened.
        """
        end = time.monotonic() + seconds
        now, lines = time.time(), []
        for name in self.names():
            path = self.root / name
            mark = signature(path)
            old = self._known.get(name)
            fresh = old is not None and old[0] == mark and old[1].get("status") != "running"
            if not fresh and (time.monotonic() < end or not lines):
                old = (mark, describe(path))
                self._known[name] = old
            line = {"name": name, "changed": mark[0], "age": max(0.0, now - mark[0])}
            lines.append(line | (old[1] if old is not None else {}))
        return lines


def signature(path: Path) -> tuple[Any, ...]:
    """Changes when a run's file does; begins with the time of the last change."""
    found: list[Any] = []
    for name in (FILE, f"{FILE}-wal"):
        try:
            stat = (path / name).stat()
            found.append((stat.st_mtime, stat.st_size))
        except OSError:
            found.append((0.0, 0))
    return (max(t for t, _ in found), *found)


def describe(path: Path) -> dict[str, Any]:
    """What the list says of a run; of one that cannot be read, why."""
    try:
        with Run.open(path) as run:
            return _describe(run)
    except Exception as error:  # whatever is wrong with one run, the others must be listed
        return {"status": "broken", "error": str(error).replace(f"{path}{os.sep}", "")}


def _describe(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"status": run.status}
    if "optimizer" in run.meta:
        found["optimizer"] = str(run.meta["optimizer"])
    columns = set(run.columns)
    loss = Column("loss") if Column("loss") in columns else None
    any_column = loss or next((c for c in columns if c.quantity in ("rotation", "norm")), None)
    if any_column is not None:
        series = run.table([any_column], kind="log" if loss is not None and "log" in run.kinds else "main", points=64)
        found["steps"] = int(series.last[-1]) if len(series) else 0
        if loss is not None and len(series):
            values = series.values[:, 0].astype(float)
            values = values[np.isfinite(values)]
            if len(values):
                found |= {
                    "loss": float(values[-1]),
                    "spark": [float(v) for v in values[:: max(1, len(values) // SPARK)]],
                }
    counts: dict[str, int] = {}
    for finding in run.findings:  # what is stored: to diagnose every run takes too long for a list
        counts[finding.severity] = counts.get(finding.severity, 0) + 1
    return found | {"findings": counts}
