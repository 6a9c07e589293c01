"""The list on the live board: the runs under a directory, and the experiments that they are trials of."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import unquote

from equipoise.monitor.runs.directory import Directory, mark_of
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
            mark = mark_of(self.root / name / SUMMARY)
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
