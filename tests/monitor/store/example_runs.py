"""Runs to test with, and the slow obvious way to summarise their rows."""

from pathlib import Path
from typing import Any

import numpy as np

from equipoise.monitor import Column, Layout, Run, RunWriter

LAYOUT = Layout((Column("loss"), Column("norm", "a"), Column("norm", "b")))


def numbers(rows: int, columns: int = 3, seed: int = 0, missing: float = 0.3) -> np.ndarray:
    """Random rows with holes; the first column counts the steps."""
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, columns)).astype(np.float32)
    values[rng.random(values.shape) < missing] = np.nan
    values[:, 0] = np.arange(1, rows + 1)
    return values


def write(path: Path, values: np.ndarray, layout: Layout = LAYOUT, first: int = 1, **options: Any) -> None:
    """Rows at one step after another."""
    with RunWriter(path, layouts=[layout], strict=True, **options) as writer:
        for step, row in enumerate(values, start=first):
            writer.append(step, row)


def wide(columns: int) -> Layout:
    """More columns than a tile has."""
    return Layout(tuple(Column("norm", f"t{i}") for i in range(columns)))


def assert_summaries_are_right(run: Run, all_points: tuple[int, ...], tolerance: float = 2e-6) -> set[int]:
    """Every bucket of every wanted size, against the rows that it says it summarises; returns the levels seen."""
    whole = run.table(kind="main")
    levels = set()
    for points in all_points:
        table = run.table(kind="main", points=points)
        levels.add(table.level)
        covered = 0
        for i in range(len(table)):
            inside = (whole.steps >= table.first[i]) & (whole.steps <= table.last[i])
            rows = whole.values[inside]
            covered += len(rows)
            there = ~np.isnan(rows)
            np.testing.assert_array_equal(table.count[i], there.sum(0))
            for column in np.flatnonzero(there.any(0)):
                mine = rows[there[:, column], column].astype(np.float64)
                assert table.low[i, column] == mine.min()
                assert table.high[i, column] == mine.max()
                np.testing.assert_allclose(table.values[i, column], mine.mean(), rtol=tolerance, atol=tolerance)
            nothing = ~there.any(0)
            assert np.isnan(table.values[i, nothing]).all()
            assert np.isnan(table.low[i, nothing]).all()
        assert covered == len(whole)
        assert (table.first[1:] > table.last[:-1]).all()
    return levels
