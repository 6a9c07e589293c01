"""The list on the live board: the runs under a directory, and the outcomes of experiments."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from equipoise.monitor.runs.directory import Directory, mark_of
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

OUTCOME, FIGURE = "outcome.json", "figure.svg"
"""What `equipoise lab run` leaves in an experiment's folder."""

LARGEST = 20_000_000
"""Bytes of an outcome or a figure that are read."""

ROWS = 500
"""Runs that a page lists at once, where nobody asks for more."""

SECONDS = 0.5
"""How long runs may be opened before an answer."""


class Runs(Directory):
    """The runs and the outcomes of experiments under a directory.

    Args:
        root: the directory.

    Raises:
        ValueError: it is not a directory.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        super().__init__(root)
        self._outcomes: dict[str, tuple[Any, dict[str, Any]]] = {}

    def answer(self, asked: Mapping[str, str]) -> dict[str, Any]:
        """What the page of runs shows.

        Args:
            asked: `columns` with commas between, each percent-encoded; `sort` and `filter` as in `select_runs.select`;
                `most`, how many.
        """
        names, outcomes = self.walk(OUTCOME)
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
            mark = mark_of(self.root / name / OUTCOME)
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
            if not (self.inside(file) and file.is_file() and self.inside(figure)):
                raise RunError(f"outcome = {name!r}: there is no such experiment here; go back to the list")
            return read_outcome(file, figure)
        except RunError:
            raise
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"outcome = {name!r}: cannot be read ({type(error).__name__})") from None


def _row(line: RunRow, columns: Sequence[str]) -> dict[str, Any]:
    """A run as the page takes it: texts, and of some columns what they are drawn from."""
    now = time.time()
    parts: dict[str, Any] = {"tags": line.values.get("tags", []), "findings": dict(line.counts), "curve": line.curve}
    cells = [parts[c] if c in parts else value_text(line, c, now) for c in columns]
    return {"name": line.values["name"], "error": line.error, "cells": cells}


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
    trials = [
        {"key": (key := str(t["key"])), "status": str(t["status"]), "here": (file.parent / key / "run").is_dir()}
        for t in stored["trials"]
    ]
    picture = figure.read_bytes() if figure.is_file() else b""
    return words | tables | {"verdicts": verdicts, "trials": trials, "ends": str(shown["ends"]), "figure": picture}
