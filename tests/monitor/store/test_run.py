"""What goes in comes out: series, metadata, findings, status, following, and errors that say what to do."""

import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.monitor.store.example_runs import LAYOUT, numbers, write

import equipoise as eq
from equipoise.monitor import Column, Layout, Quantity, Run, RunError, RunWriter, TensorInfo, make_layout
from equipoise.monitor.store import schema
from equipoise.planner import Finding

FINDING = Finding(
    "lr-zero", "error", "group 0", "lr is 0", "lr > 0", "set an lr", "docs", change={"lr": 1e-3}, paid="the loss fell"
)


def test_all_comes_back(tmp_path: Path) -> None:
    tensors = [TensorInfo("w", (4, 3), "matrix", 1, (0, 3), {"init": 0.02}), TensorInfo("b", (4,))]
    quantities = [Quantity("loss", per="global"), Quantity("norm"), Quantity("rotation", "radian", "neuron", "Angle.")]
    layout = make_layout(quantities, tensors, quantiles=(0.1, 0.5))
    slow = Layout((Column("spectral", "w"),), "slow", "float64")
    assert len(layout) == 1 + 2 + 2 * 2 + 2
    meta = {"lr": 1e-3, "betas": [0.9, 0.999], "name": "Übung", "path": tmp_path, "seed": np.int64(3), "w": np.ones(2)}
    with RunWriter(
        tmp_path / "run", meta=meta, tensors=tensors, quantities=quantities, layouts=[layout, slow], strict=True
    ) as writer:
        writer.meta("lr", 2e-3)
        writer.finding(FINDING, step=7)
        for step in range(10, 110, 10):
            writer.append(step, np.arange(len(layout)) + step, time=1e9 + step)
        writer.append(50, [1 / 3], kind="slow")
    with eq.Run.open(tmp_path / "run") as run:
        plain = {"path": str(tmp_path), "seed": 3, "w": [1.0, 1.0]}
        assert run.meta == {"lr": 2e-3, "betas": [0.9, 0.999], "name": "Übung"} | plain
        assert list(run.tensors.values()) == tensors
        assert list(run.quantities.values()) == quantities
        assert run.kinds == ["main", "slow"]
        assert run.columns == (*layout.columns, *slow.columns)
        assert run.findings == [FINDING]
        assert run.timeline == [(7, FINDING)]
        assert run.status == "finished"
        assert "10 steps" in repr(run)
        steps, values = run.series("rotation", "w", neuron=3)
        np.testing.assert_array_equal(steps, np.arange(10, 110, 10))
        index = layout.columns.index(Column("rotation", "w", neuron=3))
        np.testing.assert_array_equal(values, steps + index)
        np.testing.assert_array_equal(run.series("loss").times, 1e9 + steps)
        assert run.series("spectral", "w").values.tolist() == [1 / 3]
        np.testing.assert_array_equal(run.series("loss", start=20, stop=40).steps, [20, 30])
        assert run.check() == []


def test_status(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", layouts=[LAYOUT], strict=True)
    with Run.open(tmp_path / "run") as run:
        assert run.status == "running"
        writer.close()
        assert run.status == "empty"
        with pytest.raises(ZeroDivisionError), RunWriter(tmp_path / "run", layouts=[LAYOUT], resume=True):
            _ = 1 / 0
        assert run.status == "crashed"
        write(tmp_path / "run", numbers(3), resume=True)
        assert run.status == "finished"


def test_a_stale_heartbeat_on_another_machine_is_an_end_without_closing(tmp_path: Path) -> None:
    write(tmp_path / "run", numbers(3))
    with sqlite3.connect(tmp_path / "run" / schema.FILE) as db:
        db.execute("UPDATE lives SET status = 'running', host = 'elsewhere'")
    db.close()
    with Run.open(tmp_path / "run") as run:
        assert run.status == "running"  # a fresh sign of life, and nobody here can look for the process
        with sqlite3.connect(tmp_path / "run" / schema.FILE) as db:
            db.execute("UPDATE lives SET heartbeat = heartbeat - 60")
        db.close()
        assert run.status == "unclosed"
        with sqlite3.connect(tmp_path / "run" / schema.FILE) as db:
            db.execute("UPDATE lives SET host = ?, pid = ?", (schema.host(), os.getpid()))
        db.close()
        assert run.status == "running"  # the process is there, and may be busy
        with sqlite3.connect(tmp_path / "run" / schema.FILE) as db:
            db.execute("UPDATE lives SET heartbeat = heartbeat - 600")
        db.close()
        assert run.status == "unclosed"


def test_follow_gives_each_row_once(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", layouts=[LAYOUT, Layout((Column("x"),), "slow")], strict=True)
    with Run.open(tmp_path / "run") as run:
        follower = run.follow()
        assert follower.read() == []
        for step in (1, 2, 3):
            writer.append(step, [step, 0, 0])
            writer.append(step, [step], kind="slow")
        assert writer.flush()
        (rows,) = follower.read()
        np.testing.assert_array_equal(rows.steps, [1, 2, 3])
        np.testing.assert_array_equal(rows.values[:, 0], [1, 2, 3])
        assert rows.rewound is None
        assert follower.read() == []
        writer.rewind(1)
        writer.append(2, [20, 0, 0])
        writer.layout(Layout((*LAYOUT.columns, Column("y"))))
        writer.append(3, [30, 0, 0, 5])
        assert writer.flush()
        first, second = follower.read()
        assert (first.rewound, first.values[0, 0]) == (1, 20)
        assert (second.rewound, second.values[0, 3]) == (None, 5)
        many = run.follow()
        taken = [rows.steps.tolist() for _ in range(10) for rows in many.read(limit=2)]
        assert taken == [[1], [2], [3]]  # the superseded 2 and 3 are not shown to who comes later
        writer.close()


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    write(tmp_path / "run", numbers(3))
    code = (
        "import sys; import equipoise as eq; run = eq.Run.open(sys.argv[1]); assert len(run.series('loss')) == 3; "
        "run.close(); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "run")], check=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.series("nrm", "a"), r"nrm\(a\): was not measured; quantities are loss, norm"),
        (lambda run: run.series("norm", "c"), r"norm\(c\): was not measured; there are norm\(a\), norm\(b\)"),
        (lambda run: run.series("norm", "a", neuron=1), r"norm\(a, neuron 1\): was not measured; there are norm\(a\)"),
        (lambda run: run.series("loss", kind="slow"), r"kind = 'slow': the run has main"),
        (lambda run: run.series("loss", points=0), r"points = 0: must be a whole number ≥ 1"),
        (lambda run: run.series("loss", start=-1), r"start = -1: must be a whole number ≥ 0"),
        (lambda run: run.table([]), r"columns: must be one or more"),
        (lambda run: Run.open(run.path / "nowhere"), r"nowhere': holds no run.sqlite; give the directory of a run"),
        (lambda run: Run.open(run.path / "run.sqlite"), r"run.sqlite': is not a directory"),
    ],
)
def test_errors_say_what_to_do(tmp_path: Path, call, message: str) -> None:
    write(tmp_path / "run", numbers(3))
    with Run.open(tmp_path / "run") as run, pytest.raises(ValueError, match=message):
        call(run)


def test_a_column_in_two_kinds_needs_the_kind(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", layouts=[LAYOUT, Layout((Column("loss"),), "slow")], strict=True) as writer:
        writer.append(1, [1, 2, 3])
        writer.append(1, [10], kind="slow")
    with Run.open(tmp_path / "run") as run:
        with pytest.raises(RunError, match="kind = None: must be given, because loss is in main, slow"):
            run.series("loss")
        assert run.series("loss", kind="slow").values == [10]


def test_a_layout_without_rows_is_an_empty_table(tmp_path: Path) -> None:
    write(tmp_path / "run", numbers(0))
    with Run.open(tmp_path / "run") as run:
        assert len(run.series("loss", points=10)) == len(run.steps) == 0
        assert run.status == "empty"


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "run", numbers(3))
    with sqlite3.connect(tmp_path / "run" / schema.FILE) as db:
        db.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    db.close()
    for attempt in (Run.open, lambda path: RunWriter(path, resume=True)):
        with pytest.raises(RunError, match="has schema version 2, and this equipoise reads up to 1; upgrade equipoise"):
            attempt(tmp_path / "run")


def test_another_sqlite_file_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / schema.FILE) as db:
        db.execute("CREATE TABLE t (x)")
    db.close()
    with pytest.raises(RunError, match="not a run of equipoise"):
        Run.open(tmp_path)


def test_a_closed_run_says_so(tmp_path: Path) -> None:
    write(tmp_path / "run", numbers(3))
    run = Run.open(tmp_path / "run")
    run.close()
    with pytest.raises(RunError, match="was closed"):
        run.series("loss")


def test_threads_share_a_run(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    write(tmp_path / "run", numbers(500))
    with Run.open(tmp_path / "run") as run, ThreadPoolExecutor(4) as pool:
        lengths = list(pool.map(lambda points: len(run.series("loss", points=points)), [500, 100, 10, 1] * 5))
    assert lengths == [500, 32, 8, 1] * 5


@pytest.mark.skipif(os.name != "posix", reason="needs users")
def test_a_read_only_directory_can_be_read(tmp_path: Path) -> None:
    """As a user who may not write there: after a clean end, and with a WAL file that a killed process left."""
    path = tmp_path / "run"
    code = (
        "import os, sys; from equipoise.monitor import Run\n"
        "os.getuid() == 0 and (os.setgroups([]), os.setuid(65534))\n"
        "run = Run.open(sys.argv[1]); print(len(run.series('loss')), len(run.findings)); run.close()"
    )
    write(path, numbers(5))
    leave = (
        "import os, sys, numpy as np; from equipoise.monitor import RunWriter\n"
        "from tests.monitor.store.example_runs import LAYOUT\n"
        "writer = RunWriter(sys.argv[1], layouts=[LAYOUT], resume=True)\n"
        "writer.append(6, np.ones(3)); writer.flush(); os.kill(os.getpid(), 9)"
    )
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    for expected in ("5 0", "6 0"):
        path.chmod(0o555)
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=False)
        path.chmod(0o755)
        assert (done.stdout.strip(), done.stderr) == (expected, "")
        assert subprocess.run([sys.executable, "-c", leave, str(path)], check=False).returncode == -9
        (path / "run.sqlite-shm").unlink()
