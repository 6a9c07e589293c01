"""The runs under a directory: which there are, and how each is. Nothing outside of the directory is ever opened."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.monitor.final import loss_text
from equipoise.monitor.layout import LOG, Column
from equipoise.monitor.run import Run
from equipoise.monitor.schema import FILE, RunError

DEPTH = 8
"""How deep runs are looked for."""

MOST = 5000
"""Runs that are listed."""

SPARK = 40
OUTCOME, FIGURE = "outcome.json", "figure.svg"
"""What `equipoise lab run` leaves in an experiment's folder."""

LARGEST = 20_000_000
"""Bytes of an outcome or a figure that are read."""


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
        self._outcomes: dict[str, tuple[Any, dict[str, Any]]] = {}

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
        return self.walk()[0]

    def walk(self) -> tuple[list[str], list[str]]:
        """Every run, and every outcome of an experiment."""
        runs: list[str] = []
        outcomes: list[str] = []
        for folder, folders, files in os.walk(self.root, followlinks=False):
            here = Path(folder)
            if len(here.relative_to(self.root).parts) >= DEPTH:
                folders.clear()
            folders[:] = sorted(f for f in folders if not f.startswith("."))
            name = here.relative_to(self.root).as_posix()
            if OUTCOME in files and len(outcomes) < MOST:
                outcomes.append(name)
            if FILE in files:
                try:
                    self.path(name)
                except RunError:
                    continue
                runs.append(name)
                if len(runs) >= MOST:
                    break
        return runs, outcomes

    def outcomes(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """A line for each experiment: its name, preset, date, and how many claims came out how."""
        lines = []
        for name in names:
            mark = _mark(self.root / name / OUTCOME)
            if self._outcomes.get(name, (None,))[0] != mark:
                self._outcomes[name] = (mark, self._line(name))
            lines.append(self._outcomes[name][1])
        return lines

    def _line(self, name: str) -> dict[str, Any]:
        try:
            outcome = self.outcome(name)
        except RunError as error:
            return {"name": name, "error": str(error)}
        return {"name": name} | {k: outcome[k] for k in ("experiment", "preset", "date", "verdicts")}

    def outcome(self, name: str) -> dict[str, Any]:
        """What is stored of an experiment, and its figure.

        Raises:
            RunError: there is none under the root, or it cannot be read.
        """
        try:
            folder = (self.root / name).resolve()
            file, figure = ((folder / part).resolve() for part in (OUTCOME, FIGURE))
            if not (self._inside(file) and file.is_file() and self._inside(figure)):
                raise RunError(f"outcome = {name!r}: there is no such experiment here; go back to the list")
            return read_outcome(file, figure)
        except RunError:
            raise
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"outcome = {name!r}: cannot be read ({type(error).__name__})") from None

    def table(self, seconds: float = 0.5, names: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """A line for each run; those that there was no time for have only a name, and come with later calls.

        Args:
            seconds: how long runs may be opened.
            names: of the runs. Default: all.
        """
        end = time.monotonic() + seconds
        now, lines = time.time(), []
        for name in self.names() if names is None else names:
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


def read_outcome(file: Path, figure: Path) -> dict[str, Any]:
    """What a page shows of an outcome: words alone, the figure as it is."""
    if max(file.stat().st_size, figure.stat().st_size if figure.is_file() else 0) > LARGEST:
        raise ValueError("too large")
    stored = json.loads(file.read_text(encoding="utf-8"))
    shown = stored["shown"]
    tables = {part: [{str(k): str(v) for k, v in row.items()} for row in shown[part]] for part in ("rows", "claims")}
    verdicts: dict[str, int] = {}
    for row in tables["claims"]:
        verdicts[row["verdict"]] = verdicts.get(row["verdict"], 0) + 1
    words = {key: str(stored[key]) for key in ("experiment", "source", "preset", "date")}
    trials = [{"key": str(t["key"]), "status": str(t["status"])} for t in stored["trials"]]
    picture = figure.read_bytes() if figure.is_file() else b""
    return words | tables | {"verdicts": verdicts, "trials": trials, "ends": str(shown["ends"]), "figure": picture}


def signature(path: Path) -> tuple[Any, ...]:
    """Changes when a run's file does; begins with the time of the last change."""
    found = [_mark(path / name) for name in (FILE, f"{FILE}-wal")]
    return (max(t for t, _ in found), *found)


def _mark(file: Path) -> tuple[float, int]:
    try:
        stat = file.stat()
    except OSError:
        return 0.0, 0
    # An empty log beside a file is left by who reads it.
    return (stat.st_mtime, stat.st_size) if stat.st_size else (0.0, 0)


def describe(path: Path) -> dict[str, Any]:
    """What the list says of a run; of one that cannot be read, why."""
    try:
        with Run.open(path) as run:
            return _describe(run)
    except Exception as error:  # whatever is wrong with one run, the others must be listed
        return {"status": "broken", "error": str(error).replace(f"{path}{os.sep}", "")}


def _as_said(key: str, x: float) -> dict[str, Any]:
    """A number to sort by, which JSON has only of finite ones, and the text to show."""
    return {key: x if math.isfinite(x) else None, f"{key}_text": loss_text(x)}


def _describe(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"status": run.status}
    if "optimizer" in run.meta:
        found["optimizer"] = str(run.meta["optimizer"])
    columns = set(run.columns)
    final, best = run.final, run.best
    loss = Column(final.name) if final is not None else None
    any_column = loss or next((c for c in columns if c.quantity in ("rotation", "norm")), None)
    if any_column is not None:
        series = run.table([any_column], kind=LOG if loss is not None and LOG in run.kinds else "main", points=64)
        found["steps"] = int(series.last[-1]) if len(series) else 0
        if loss is not None:
            values = series.values[:, 0].astype(float)
            values = values[np.isfinite(values)]
            found["spark"] = [float(v) for v in values[:: max(1, len(values) // SPARK)]]
    if final is not None:
        found |= {"loss_name": final.name} | _as_said("loss", final.mean) | _as_said("last", final.last)
    if best is not None:
        found |= {"best_name": best.name, "best_step": best.step} | _as_said("best", best.value)
    counts: dict[str, int] = {}
    for finding in run.findings:  # what is stored: to diagnose every run takes too long for a list
        counts[finding.severity] = counts.get(finding.severity, 0) + 1
    return found | {"findings": counts}
