"""Several runs on one page: how their settings and results differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.models import Range1d

from equipoise.board.gather import OF_GROUPS, OF_LAYERS, RunData
from equipoise.board.page import Section
from equipoise.board.pages.findings_view import as_json
from equipoise.board.pages.heatmap import heatmap
from equipoise.board.pages.layers import LABEL, lines_figure
from equipoise.board.pages.run_page import AGAINST, facts, loss_facts, run_sources, said, sentence
from equipoise.monitor.runs.final_loss import LABEL as LAST_SHARE
from equipoise.monitor.runs.final_loss import loss_text
from equipoise.monitor.runs.short_names import short_names

MOST = 12
"""Runs on one page."""

CARRIED = ("layers", "axis", "settings", "logged")


def compare_section(runs: Sequence[RunData], *, beside: Sequence[str] = ()) -> Section:
    """The section of a page.

    Args:
        runs: what was read of each run.
        beside: keys of the runs' own sections, where they are on the same page: their numbers are used then.
    """
    sources, names = compare_sources(runs, beside), [r.name for r in runs]
    return Section("compare", "compare", "Compare", sources, compare_figures, (len(runs),), {"names": names})


def compare_figures(key: str, runs: int) -> dict[str, Any]:
    """The figures of the page, empty.

    Args:
        key: of the section.
        runs: how many there are.
    """
    shared = Range1d(start=0, end=1, name=f"{key}-x")
    common: dict[str, Any] = {"x_range": shared, "dashed": True}
    figures = {
        "logged": lines_figure(key, "logged", "loss", shared, band=True),
        "schedule": lines_figure(key, "schedule", "learning rate", shared),
        "norm": lines_figure(key, "norm", "‖w‖", **common),
        "rotation": lines_figure(key, "rotation", "radians per step", **common),
        "effective": lines_figure(key, "effective", "", shared),
        "radial": lines_figure(key, "radial", "", shared),
    }
    level = Range1d(start=0, end=1, name=f"{key}-level")
    for i in range(runs):
        figures[f"side{i}"] = lines_figure(key, f"side{i}", "", shared, height=180, y_range=level)
        figures[f"heat{i}"] = heatmap(key, shared, f"heat{i}")
    return figures


def compare_sources(runs: Sequence[RunData], beside: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """The numbers of the page; only words where the numbers are `beside` it."""
    found: dict[str, dict[str, Any]] = {"notes": {"json": [as_json(notes(runs) | {"beside": list(beside)})]}}
    for i, run in enumerate(runs if not beside else ()):
        mine = run_sources(run)
        found |= {f"{i}-{name}": mine[name] for name in CARRIED}
    return found


def notes(runs: Sequence[RunData]) -> dict[str, Any]:
    """All that the page says in words."""
    return {
        "runs": [
            {
                "name": r.name,
                "status": r.status,
                "sentence": sentence(r),
                "tally": said(r) if r.last else "",
            }
            for r in runs
        ],
        "losses": losses(runs),
        "settings": settings(runs),
        "forecast": all(r.held_to_forecast for r in runs),
        "short": short_names((t.name for r in runs for t in r.tensors), LABEL),
        "chosen": most_apart(runs),
        "labels": OF_LAYERS | OF_GROUPS | AGAINST,
    }


def losses(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """How each run ended, by every measure that some run has, with the difference to the best of them."""
    finals = [run.final for run in runs]
    ends: dict[str, list[tuple[str, float, str] | None]] = {
        LAST_SHARE: [f and (f.name, f.mean, f"of {f.values:,} values") for f in finals],
        "last": [f and (f.name, f.last, f"at step {f.step:,}") for f in finals],
        "best": [run.best and (run.best.name, run.best.value, f"at step {run.best.step:,}") for run in runs],
    }
    found = []
    for how, of_runs in ends.items():
        there = [end for end in of_runs if end is not None]
        if there:
            names = {name for name, _, _ in there}
            name = names.pop() if len(names) == 1 else "validation loss" if how == "best" else "training loss"
            least = min((value for _, value, _ in there if math.isfinite(value)), default=math.nan)
            found.append({"name": f"{name}, {how}", "cells": [_loss(end, least) for end in of_runs]})
    return found


def _loss(end: tuple[str, float, str] | None, least: float) -> dict[str, Any]:
    if end is None:
        return {"text": "–", "gap": "", "title": "", "best": False}
    name, value, title = end
    gap = value - least
    return {
        "text": loss_text(value),
        "gap": f"+{loss_text(gap)}" if math.isfinite(gap) and gap > 0 else "",
        "title": f"{name}, {title}",
        "best": gap == 0,
    }


def settings(runs: Sequence[RunData]) -> list[dict[str, Any]]:
    """Settings of every run and what followed from them, losses apart, and which of them differ."""
    tables = [dict(fact for fact in facts(r) if fact not in loss_facts(r)) for r in runs]
    for table, run in zip(tables, runs, strict=True):
        table["findings"] = ", ".join(dict.fromkeys(f.code for f in run.findings)) or "none"
    rows = []
    for key in dict.fromkeys(k for t in tables for k in t):
        values = [t.get(key, "–") for t in tables]
        rows.append({"name": key, "values": values, "differs": len(set(values)) > 1})
    return sorted(rows, key=lambda row: not row["differs"])


def most_apart(runs: Sequence[RunData]) -> str | None:
    """The layer whose rotation differs most between the runs: the first to look at."""
    middle: dict[str, list[float]] = {}
    for run in runs:
        for t, line in zip(run.tensors, run.layers.values.get("rotation", ()), strict=False):
            late = line[len(line) // 2 :]
            late = late[np.isfinite(late) & (late > 0)]
            if len(t.shape) > 1 and len(late):
                middle.setdefault(t.name, []).append(float(np.log(np.median(late))))
    shared = {n: max(v) - min(v) for n, v in middle.items() if len(v) == len(runs)}
    return max(shared or dict.fromkeys(middle, 0.0), key=lambda n: shared.get(n, 0.0), default=None)
