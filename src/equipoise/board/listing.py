"""The list on the live board: the runs under a directory, and the experiments that they are trials of."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote

from equipoise.monitor.runs.directory import Directory, mark_of, signature
from equipoise.monitor.runs.experiment_summary import FIGURE, LARGEST, SUMMARY, ExperimentSummary
from equipoise.monitor.runs.lines import RunRow
from equipoise.monitor.runs.select_runs import (
    COLUMNS,
    SHOWN,
    SORT,
    columns_of,
    is_number,
    known_columns,
    select,
    unknown,
    value_text,
)
from equipoise.monitor.store.schema import RunError

ROWS = 500
"""Runs that a page lists at once, where nobody asks for more."""

SECONDS = 0.5
"""How long runs may be opened before an answer."""


HELD, FRESH = 8, 4.0
"""Pages that are kept for those who ask for the same; of a run that is written, for so many times as long as reading it
took."""

T = TypeVar("T")


class Runs(Directory):
    """The runs and the experiments under a directory.

    Args:
        root: the directory.

    Raises:
        ValueError: it is not a directory.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self._outcomes: dict[str, tuple[Any, dict[str, Any]]] = {}
        self._recent: dict[tuple[Path, ...], tuple[float, Any, Any]] = {}

    def recent(self, paths: Sequence[Path], make: Callable[[], T]) -> T:
        """What was made of some runs a moment ago, if they have not changed since, or anew.

        Args:
            paths: of the runs.
            make: makes it.
        """
        key, mark = tuple(paths), [signature(p) for p in paths]
        at, old, made = self._recent.pop(key, (0.0, None, None))
        if old != mark and time.monotonic() > at:
            began = time.monotonic()
            made = make()
            at, old = time.monotonic() + FRESH * (time.monotonic() - began), mark
        self._recent[key] = (at, old, made)
        while len(self._recent) > HELD:
            del self._recent[next(iter(self._recent))]
        return made

    def answer(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """What the page of runs shows.

        Args:
            asked: `columns` with commas between, each percent-encoded; `sort` and `filter` as in `select_runs.select`;
                `most`, how many.
        """
        names, outcomes = self.walk(SUMMARY)
        lines = self.lines(SECONDS, names)
        columns = columns_of(unquote(c) for c in asked.get("columns", "").split(","))
        sort, words, wrong = asked.get("sort") or SORT, asked.get("filter", "")[:1000], ""
        try:
            found = select(lines, sort=sort, filter=words)
        except ValueError as error:
            found, wrong = select(lines, sort=sort), str(error)
        unread = sum(not line.read for line in lines)
        most = int(asked["most"]) if asked.get("most", "").isdecimal() else ROWS
        return {
            "columns": [{"name": c, "says": COLUMNS.get(c, ""), "number": is_number(found, c)} for c in columns],
            "rows": [_row(line, columns) for line in found[:most]],
            "known": [asdict(k) for k in known_columns(lines)],
            "shown": list(SHOWN),
            "sort": sort,
            "total": len(lines),
            "fits": len(found),
            "running": sum(line.values.get("status") == "running" for line in lines),
            "unread": unread,
            "wrong": wrong or ("" if unread else unknown(lines, columns, sort, words)),
            "outcomes": self.outcomes(outcomes),
        }

    def outcomes(self, names: Sequence[str]) -> list[dict[str, Any]]:
        """A line for each experiment: its name, preset, date, and how many claims came out how."""
        lines = []
        for name in names:
            mark = mark_of(self.place(name) / SUMMARY)
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
            folder = self.place(name).resolve()
            file, figure = ((folder / part).resolve() for part in (SUMMARY, FIGURE))
            if not (self.inside(file) and file.is_file() and self.inside(figure)):
                raise RunError(f"outcome = {name!r}: there is no such experiment here; go back to the list")
            found = ExperimentSummary.read(file)
            picture = figure.read_bytes() if figure.is_file() and figure.stat().st_size <= LARGEST else b""
            trials = [{"key": k, "status": status, "here": (folder / k / "run").is_dir()} for k, status in found.trials]
            return vars(found) | {"verdicts": found.verdicts, "trials": trials, "figure": picture}
        except RunError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise RunError(f"outcome = {name!r}: cannot be read ({type(error).__name__})") from None


def _row(line: RunRow, columns: Sequence[str]) -> dict[str, Any]:
    """A run as the page takes it: texts, and of some columns what they are drawn from."""
    now = time.time()
    parts: dict[str, Any] = {"tags": line.values.get("tags", []), "findings": dict(line.counts), "curve": line.curve}
    cells = [parts[c] if c in parts else value_text(line, c, now) for c in columns]
    return {"name": line.values["name"], "error": line.error, "cells": cells}
