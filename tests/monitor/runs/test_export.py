"""A run as frames and files, read back by the libraries that people use."""

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from tests import forked
from tests.monitor.store.example_runs import LAYOUT, numbers, write

from equipoise.monitor import Column, Layout, Run, RunError, RunWriter
from equipoise.monitor.runs import export as exporting


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Two lives, two layouts, two kinds, holes, a quantile and a neuron."""
    path = tmp_path / "run"
    write(path, numbers(40))
    late = Layout((*LAYOUT.columns, Column("rotation", "b", quantile=0.5), Column("rotation", "b", neuron=7)))
    slow = Layout((Column("spectral", "a"),), "slow", "float64")
    with RunWriter(path, layouts=[late, slow], resume=20, strict=True) as writer:
        for step in range(21, 61):
            writer.append(step, [step, np.nan, -step, 0.5, 1 / 3])
        writer.append(30, [1 / 3], kind="slow")
    return path


def expected(run: Run) -> dict[tuple[int, str], float]:
    """Every number by step and column, from what the series say."""
    numbers = {}
    for column in run.columns:
        series = run.series(column.quantity, column.tensor, quantile=column.quantile, neuron=column.neuron)
        numbers |= {(int(s), str(column)): float(v) for s, v in zip(*series, strict=True)}
    return numbers


def from_lines(lines: list[dict]) -> dict[tuple[int, str], float]:
    def given(value: object) -> bool:
        return value is not None and value == value and value != ""

    found = {}
    for line in lines:
        column = Column(
            line["quantity"],
            line["tensor"] if given(line["tensor"]) else None,
            float(line["quantile"]) if given(line["quantile"]) else None,
            int(line["neuron"]) if given(line["neuron"]) else None,
        )
        assert line["kind"] == ("slow" if column.quantity == "spectral" else "main")
        found[(int(line["step"]), str(column))] = float(line["value"])
    assert len(found) == len(lines)
    return found


@pytest.mark.parametrize("backend", [None, "pandas", "polars"])
def test_frames_hold_every_number(path: Path, backend: str | None) -> None:
    with Run.open(path) as run:
        frame = run.frame(backend=backend)
        lines = frame.to_dicts() if backend == "polars" else frame.to_dict("records")
        assert isinstance(frame, pl.DataFrame if backend == "polars" else pd.DataFrame)
        assert list(frame.columns) == list(exporting.FIELDS)
        assert from_lines(lines) == expected(run)
        part = run.frame("norm", ["b"], start=5, stop=25, backend=backend)
        assert len(part) == sum(5 <= s < 25 and c == "norm(b)" for s, c in expected(run))


def test_frames_of_nothing(tmp_path: Path) -> None:
    write(tmp_path, numbers(0))
    with Run.open(tmp_path) as run:
        for backend in ("pandas", "polars"):
            assert run.frame(backend=backend).shape == (0, len(exporting.FIELDS))
        with pytest.raises(RunError, match="quantity = 'nrm': was not measured; there are loss, norm"):
            run.frame("nrm")
        with pytest.raises(ValueError, match="backend = 'dask': must be one of pandas, polars"):
            run.frame(backend="dask")


def test_csv_and_parquet_hold_every_number(path: Path) -> None:
    with Run.open(path) as run:
        wanted = expected(run)
        target, lines = exporting.write(run, "csv")
        assert target == path.with_name("run.csv")
        assert lines == len(wanted)
        with target.open(newline="", encoding="utf-8") as file:
            read = from_lines(list(csv.DictReader(file)))
        assert read.keys() == wanted.keys()
        for key, value in wanted.items():  # the text of a float32 reads back as that float32
            assert read[key] == value if "spectral" in key[1] else np.float32(read[key]) == np.float32(value)
        target, _ = exporting.write(run, "parquet")
        frame = pd.read_parquet(target)
        assert from_lines(frame.to_dict("records")) == wanted
        assert str(frame["quantity"].dtype) == "category"


def test_pieces_make_the_same_table(path: Path) -> None:
    with Run.open(path) as run:
        pieces = list(exporting._chunks(run, lambda _: True, 0, None, size=10))
        whole = list(exporting._chunks(run, lambda _: True, 0, None))
    assert len(pieces) > 20 > len(whole)
    for name in ("steps", "values"):
        left, right = (np.concatenate([getattr(c, name).astype(float) for c in chunks]) for chunks in (pieces, whole))
        np.testing.assert_array_equal(left, right)


def cli(*arguments: object) -> subprocess.CompletedProcess[str]:
    return forked.equipoise(*arguments)


def test_the_command(path: Path, tmp_path: Path) -> None:
    done = cli("export", path, "-o", tmp_path / "out.parquet")
    assert done.returncode == 0, done.stderr
    assert "out.parquet" in done.stdout
    assert len(pd.read_parquet(tmp_path / "out.parquet")) == int(done.stdout.split()[0].replace(",", ""))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "'nowhere': holds no run.sqlite; give the directory of a run"),
        (["run", "--to", "xls"], "--to = 'xls': must be one of csv, parquet"),
        (["run", "-o", "no/such/file.csv"], "cannot be written (No such file or directory); give another file with -o"),
    ],
)
def test_wrong_input_is_one_line(path: Path, arguments: list[str], message: str) -> None:
    done = cli("export", *(path if argument == "run" else argument for argument in arguments))
    assert done.returncode == 2
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "hidden", "message"),
    [
        (["--to", "parquet"], "pyarrow", "pip install 'equipoise[parquet]'"),
        (None, "pandas polars", "neither pandas nor polars is installed; pip install 'equipoise[frame]'"),
    ],
)
def test_what_is_not_installed_is_named(path: Path, arguments: list[str] | None, hidden: str, message: str) -> None:
    """A process in which the library cannot be found."""
    hide = (
        "import importlib.util, sys; find = importlib.util.find_spec; hidden = sys.argv[1].split()\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in hidden else find(name, *rest)\n"
    )
    act = (
        "from equipoise.monitor import Run; Run.open(sys.argv[2]).frame()"
        if arguments is None
        else "from equipoise.cli import main; sys.argv = ['equipoise', 'export', *sys.argv[2:]]; main()"
    )
    command = [sys.executable, "-c", hide + act, hidden, str(path), *(arguments or [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert message in done.stderr


def test_damage_is_told(path: Path) -> None:
    file = path / "run.sqlite"
    data = bytearray(file.read_bytes())
    place = data.find(np.array([33], "<f4").tobytes())
    data[place] ^= 1
    file.write_bytes(data)
    done = cli("export", path)
    assert done.returncode == 0
    assert "1 rows fail their checksum" in done.stderr
