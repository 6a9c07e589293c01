"""Buckets against brute force, at every level, with holes, kills, rewinds and late columns."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.monitor.store.example_runs import LAYOUT, assert_summaries_are_right, numbers, wide, write

from equipoise.monitor import Column, Layout, Run, RunWriter
from equipoise.monitor.store import pyramid

POINTS = (5000, 300, 80, 20, 6, 2, 1)


@pytest.mark.parametrize("rows", [1, 15, 16, 17, 63, 64, 700, 1100])
def test_every_level_equals_brute_force(tmp_path: Path, rows: int) -> None:
    write(tmp_path / "run", numbers(rows))
    with Run.open(tmp_path / "run") as run:
        levels = assert_summaries_are_right(run, POINTS)
        assert len(levels) > 1 or rows == 1
        # A level has the buckets that it should have, and one for what is left over.
        for points in POINTS:
            table = run.table(points=points)
            assert len(table) == -(-rows // pyramid.span(table.level)) <= points


@pytest.mark.parametrize("rows", [1, 90, 91, 1003, 1440, 1441, 5760, 5761, 6000])
def test_neighbours_put_together(tmp_path: Path, rows: int) -> None:
    values = numbers(rows)
    write(tmp_path / "run", values)
    with Run.open(tmp_path / "run") as run:
        table = run.table(points=90, fine=16 * 90)
    assert len(table) == min(rows, 90)
    assert (table.level == 0) == (len(table) == rows)
    assert table.first[0] == 1
    assert table.last[-1] == rows
    np.testing.assert_array_equal(table.first[1:], table.last[:-1] + 1)
    for i in range(len(table)):
        part = values[table.first[i] - 1 : table.last[i]]
        count = (~np.isnan(part)).sum(0)
        np.testing.assert_array_equal(table.count[i], count)
        there = count > 0
        np.testing.assert_allclose(table.values[i, there], np.nanmean(part[:, there], 0), rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(table.low[i, there], np.nanmin(part[:, there], 0))
        np.testing.assert_array_equal(table.high[i, there], np.nanmax(part[:, there], 0))


def test_rows_wider_than_a_tile(tmp_path: Path) -> None:
    values = numbers(200, 2 * pyramid.TILE + 3)
    write(tmp_path / "run", values, wide(values.shape[1]))
    with Run.open(tmp_path / "run") as run:
        assert_summaries_are_right(run, (50, 5))
        last = run.series("norm", f"t{2 * pyramid.TILE + 2}", points=5)
        assert last.count.sum() == (~np.isnan(values[:, -1])).sum()


def test_double_precision_is_kept(tmp_path: Path) -> None:
    layout = Layout((Column("loss"),), dtype="float64")
    values = 1 + 1e-12 * np.arange(100.0)[:, None]
    write(tmp_path / "run", values, layout)
    with Run.open(tmp_path / "run") as run:
        np.testing.assert_array_equal(run.series("loss").values, values[:, 0])
        assert_summaries_are_right(run, (10, 2), tolerance=1e-15)


def test_infinities_are_numbers(tmp_path: Path) -> None:
    values = np.ones((32, 3))
    values[3, 1] = np.inf
    values[20, 1] = -np.inf
    write(tmp_path / "run", values)
    with Run.open(tmp_path / "run") as run:
        series = run.series("norm", "a", points=2)
        np.testing.assert_array_equal(series.values, [np.inf, -np.inf])
        assert series.high[0] == np.inf
        assert run.series("norm", "a", points=1).count.sum() == 32


def test_a_column_that_comes_late(tmp_path: Path) -> None:
    more = Layout((*LAYOUT.columns, Column("norm", "c")))
    with RunWriter(tmp_path / "run", layouts=[LAYOUT], strict=True) as writer:
        for step in range(1, 101):
            writer.append(step, [step, 1, 2])
        writer.layout(more)
        for step in range(101, 301):
            writer.append(step, [step, 1, 2, 3])
    with Run.open(tmp_path / "run") as run:
        assert_summaries_are_right(run, POINTS)
        np.testing.assert_array_equal(run.series("loss").values, np.arange(1, 301))
        late = run.series("norm", "c", points=4)
        assert late.first[0] == 101
        assert late.count.sum() == 200
        assert run.table(points=3).columns == more.columns


def test_ranges_of_steps(tmp_path: Path) -> None:
    write(tmp_path / "run", numbers(3000, missing=0))
    with Run.open(tmp_path / "run") as run:
        for points in (2000, 100, 10):
            part = run.series("loss", start=517, stop=2203, points=points)
            assert part.first[0] == 517
            assert part.last[-1] == 2202
            assert part.count.sum() == 2203 - 517
            np.testing.assert_allclose((part.values * part.count).sum() / part.count.sum(), (517 + 2202) / 2, rtol=1e-6)
            assert len(part) <= points + 2  # whole buckets, and what is left at both ends


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(1, 150), st.integers(0, 120)), min_size=1, max_size=5))
def test_going_back_any_number_of_times(
    tmp_path_factory: pytest.TempPathFactory, sessions: list[tuple[int, int]]
) -> None:
    """Each life appends some rows and then goes back by some steps: the newest life wins at every step."""
    path = tmp_path_factory.mktemp("lives") / "run"
    expected: dict[int, int] = {}
    at = 0
    with RunWriter(path, layouts=[LAYOUT], strict=True) as writer:
        for session, (rows, back) in enumerate(sessions):
            if session:
                writer.rewind(at)
            for step in range(at + 1, at + rows + 1):
                writer.append(step, [step, session, np.nan])
            expected = {s: v for s, v in expected.items() if s <= at}
            expected |= dict.fromkeys(range(at + 1, at + rows + 1), session)
            at = max(0, at + rows - back)
    with Run.open(path) as run:
        series = run.series("norm", "a")
        assert dict(zip(series.steps.tolist(), series.values.tolist(), strict=True)) == expected
        np.testing.assert_array_equal(run.steps, sorted(expected))
        assert_summaries_are_right(run, (100, 10, 1))
