"""The writer in a training loop: it never waits, never raises, never writes twice, and lets go."""

import copy
import logging
import multiprocessing
import os
import pickle
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.monitor.store.example_runs import LAYOUT, numbers, write

from equipoise.monitor import Column, Layout, Run, RunError, RunWriter
from equipoise.monitor.store import schema
from equipoise.monitor.store.worker import INTERVAL, PATIENCE
from equipoise.planner import Finding


def test_an_existing_run_needs_resume(tmp_path: Path) -> None:
    write(tmp_path, numbers(5))
    with pytest.raises(RunError, match=r"already holds a run \(last step 5\); pass resume=True to append"):
        RunWriter(tmp_path)
    write(tmp_path, numbers(2), first=6, resume=True)
    with Run.open(tmp_path) as run:
        np.testing.assert_array_equal(run.steps, np.arange(1, 8))


def test_resume_where_there_is_none_begins_one(tmp_path: Path) -> None:
    write(tmp_path / "deep" / "run", numbers(2), resume=True)
    with Run.open(tmp_path / "deep" / "run") as run:
        assert len(run.steps) == 2


def test_resume_supersedes_from_the_first_new_step(tmp_path: Path) -> None:
    write(tmp_path, np.ones((10, 3)))
    RunWriter(tmp_path, resume=True).close()  # without a row it supersedes nothing
    write(tmp_path, 2 * np.ones((3, 3)), first=5, resume=True)
    with Run.open(tmp_path) as run:
        np.testing.assert_array_equal(run.series("loss").values, [1] * 4 + [2] * 3)
    db = sqlite3.connect(tmp_path / schema.FILE)
    assert db.execute("SELECT count(*) FROM rows").fetchone() == (13,)  # nothing was deleted
    db.close()


def test_resume_at_a_step_supersedes_at_once(tmp_path: Path) -> None:
    finding = Finding("lr-zero", "error", "group 0", "lr is 0", "lr > 0", "set an lr", "docs")
    with RunWriter(tmp_path, layouts=[LAYOUT], strict=True) as writer:
        for step in range(1, 11):
            writer.append(step, [1, 1, 1])
        writer.finding(finding, step=3)
        writer.finding(finding, step=8)
    with (
        RunWriter(tmp_path, layouts=[LAYOUT], resume=4, strict=True) as writer,
        pytest.raises(ValueError, match=r"step = 4: must be > 4, the last one; if training went back, call rewind"),
    ):
        writer.append(4, [1, 1, 1])
    with Run.open(tmp_path) as run:
        np.testing.assert_array_equal(run.steps, [1, 2, 3, 4])
        assert run.timeline == [(3, finding)]


def test_resume_begins_at_one_step_for_all_kinds(tmp_path: Path) -> None:
    layouts = [LAYOUT, Layout((Column("x"),), "slow")]
    with RunWriter(tmp_path, layouts=layouts, strict=True) as writer:
        for step in range(1, 11):
            writer.append(step, [1, 1, 1])
            writer.append(step, [1], kind="slow")
    with RunWriter(tmp_path, layouts=layouts, resume=True, strict=True) as writer:
        writer.append(8, [2, 2, 2])
        with pytest.raises(ValueError, match="step = 7: must be > 7"):
            writer.append(7, [2], kind="slow")
        writer.append(8, [2], kind="slow")
    with Run.open(tmp_path) as run:
        np.testing.assert_array_equal(run.series("x").values, [1] * 7 + [2])


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    code = "import sys; from equipoise.monitor import RunWriter; RunWriter(sys.argv[1], resume=True)"
    with RunWriter(tmp_path, layouts=[LAYOUT]):
        with pytest.raises(RunError, match=r"is being written by this process .*; close that writer, or choose"):
            RunWriter(tmp_path, resume=True)
        other = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
        assert "is being written by process" in other.stderr
    RunWriter(tmp_path, resume=True).close()


def test_a_file_is_not_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="is a file; must be a directory"):
        RunWriter(tmp_path / "file")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, [1, 2]), r"row has shape \(2,\): must be \(3,\), by layout 'main'"),
        ((1, [1, 2, "x"]), "could not convert string"),
        ((0.5, [1, 2, 3]), "step = 0.5: must be a whole number ≥ 0"),
        ((7, [1, 2, 3]), "step = 7: must be > 7, the last one"),
        ((10**30, [1, 2, 3]), "must be a whole number < 2"),
    ],
)
def test_a_wrong_row_is_one_finding(tmp_path: Path, arguments, message: str, caplog: pytest.LogCaptureFixture) -> None:
    with RunWriter(tmp_path / "strict", layouts=[LAYOUT], strict=True) as strict:
        strict.append(7, [1, 2, 3])
        with pytest.raises(ValueError, match=message):
            strict.append(*arguments)
    caplog.set_level(logging.WARNING)
    with RunWriter(tmp_path / "run", layouts=[LAYOUT]) as writer:
        writer.append(7, [1, 2, 3])
        for _ in range(3):
            writer.append(*arguments)
        writer.append(8, [1, 2, 3])
    codes = [finding.code for finding in writer.findings]
    assert codes == ["row-refused"]
    assert len(caplog.records) == 1
    with Run.open(tmp_path / "run") as run:
        np.testing.assert_array_equal(run.steps, [7, 8])
        assert [finding.code for finding in run.findings] == codes


def test_rows_of_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    with (
        RunWriter(tmp_path, strict=True) as writer,
        pytest.raises(ValueError, match="kind = 'main': must have a layout"),
    ):
        writer.append(1, [1])


def test_meta_that_json_cannot_hold(tmp_path: Path) -> None:
    loop: list[object] = []
    loop.append(loop)
    with (
        RunWriter(tmp_path, strict=True) as writer,
        pytest.raises(ValueError, match="meta 'x': must be JSON-serialisable"),
    ):
        writer.meta("x", loop)


def test_the_row_may_be_reused(tmp_path: Path) -> None:
    row = np.zeros(3, np.float32)
    with RunWriter(tmp_path, layouts=[LAYOUT], strict=True) as writer:
        for step in range(1, 50):
            row[:] = step
            writer.append(step, row)
    with Run.open(tmp_path) as run:
        np.testing.assert_array_equal(run.series("norm", "b").values, np.arange(1, 50))


def test_a_stalled_disk_holds_training_up_once_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program locks the file; the buffer fills; rows are counted and left out; then all goes on."""
    caplog.set_level(logging.WARNING)
    layout = Layout(tuple(Column("norm", f"t{i}") for i in range(1000)))
    writer = RunWriter(tmp_path, layouts=[layout], buffer=100_000)
    assert writer.flush()
    other = sqlite3.connect(tmp_path / schema.FILE, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    worker = writer._worker
    assert worker is not None
    in_vain, wait_for = [], worker._wake.wait_for

    def counted(free: Callable[[], bool], timeout: float | None = None) -> bool:
        found = wait_for(free, timeout)
        if timeout == PATIENCE and not found:
            in_vain.append(timeout)
        return found

    monkeypatch.setattr(worker._wake, "wait_for", counted)
    for step in range(1, 401):
        writer.append(step, np.full(1000, step))
        assert worker.waiting_bytes <= 100_000
    assert len(in_vain) == 1
    other.execute("ROLLBACK")
    other.close()
    assert writer.flush()
    for step in range(401, 411):
        writer.append(step, np.full(1000, step))
    writer.close()
    (finding,) = writer.findings
    assert finding.code == "rows-dropped"
    assert len(caplog.records) == 1
    with Run.open(tmp_path) as run:
        series = run.series("norm", "t9")
        assert set(range(401, 411)) <= set(series.steps.tolist())
        assert f"{410 - len(series)} measured rows are not stored" in finding.evidence
        assert 0 < len(series) < 400
        assert run.check() == [finding]


def test_commits_come_by_themselves(tmp_path: Path) -> None:
    """Nobody flushes; what a kill may lose is what came since the last commit."""
    assert INTERVAL < 0.5
    with RunWriter(tmp_path, layouts=[LAYOUT], strict=True) as writer, Run.open(tmp_path) as run:
        for step in range(1, 4):
            writer.append(step, [1, 2, 3])
            end = time.monotonic() + 300
            while len(run.steps) < step and time.monotonic() < end:
                time.sleep(0.005)
            assert len(run.steps) == step


def test_a_removed_directory_is_noticed(tmp_path: Path) -> None:
    import shutil

    writer = RunWriter(tmp_path / "run", layouts=[LAYOUT])
    writer.append(1, [1, 2, 3])
    assert writer.flush()
    shutil.rmtree(tmp_path / "run")
    end = time.monotonic() + 300
    while not writer.findings and time.monotonic() < end:
        time.sleep(0.05)
    writer.close()
    assert [f.code for f in writer.findings] == ["run-not-written"]


def _in_child(writer: RunWriter) -> None:
    writer.append(2, [9, 9, 9])
    writer.meta("child", True)
    assert writer.flush() is False
    writer.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_worker_does_not_write(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, layouts=[LAYOUT], strict=True)
    writer.append(1, [1, 2, 3])
    worker = multiprocessing.get_context("fork").Process(target=_in_child, args=(writer,))
    worker.start()
    worker.join(300)
    assert worker.exitcode == 0
    writer.append(2, [4, 5, 6])
    writer.close()
    with Run.open(tmp_path) as run:
        np.testing.assert_array_equal(run.series("loss").values, [1, 4])
        assert run.meta == {}
        assert run.status == "finished"


def test_a_surviving_worker_does_not_hold_the_run(tmp_path: Path) -> None:
    """A DataLoader's worker may outlive its killed parent; the run can be resumed all the same."""
    code = """
import os, sys, time
from tests.monitor.store.example_runs import LAYOUT
from equipoise.monitor import RunWriter
writer = RunWriter(sys.argv[1], layouts=[LAYOUT])
writer.append(1, [1, 2, 3])
writer.flush()
child = os.fork()
if child == 0:
    time.sleep(60)
print(child, flush=True)
os.kill(os.getpid(), 9)
"""
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        child = int(parent.stdout.readline())
    assert parent.wait(300) == -9
    try:
        write(tmp_path, numbers(2), first=2, resume=True)
    finally:
        os.kill(child, 9)
    with Run.open(tmp_path) as run:
        assert len(run.steps) == 3


def test_copies_do_not_write(tmp_path: Path) -> None:
    with RunWriter(tmp_path, layouts=[LAYOUT], strict=True) as writer:
        for other in (copy.deepcopy(writer), pickle.loads(pickle.dumps(writer))):
            other.append(1, [1, 2, 3])
            other.rewind(0)
            other.layout(LAYOUT)
            assert other.findings == []
            other.close()
        writer.append(1, [4, 5, 6])
    with Run.open(tmp_path) as run:
        np.testing.assert_array_equal(run.series("loss").values, [4])


@pytest.mark.parametrize(("ending", "status"), [("", "finished"), ("raise SystemError", "crashed")])
def test_the_end_of_the_program_closes(tmp_path: Path, ending: str, status: str) -> None:
    code = (
        "import sys; from equipoise.monitor import *\n"
        "writer = RunWriter(sys.argv[1], layouts=[Layout([Column('loss')])]); writer.append(1, [1])\n" + ending
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=False)
    with Run.open(tmp_path) as run:
        assert len(run.steps) == 1
        assert run.status == status


def test_close_ends_the_thread_and_is_final(tmp_path: Path) -> None:
    before = threading.active_count()
    writer = RunWriter(tmp_path, layouts=[LAYOUT], strict=True)
    assert threading.active_count() == before + 1
    writer.close()
    writer.close("crashed")
    writer.append(1, [1, 2, 3])
    assert threading.active_count() == before
    assert {p.name for p in tmp_path.iterdir()} == {schema.FILE, schema.LOCK}
    with pytest.raises(ValueError, match="status = 'done': must be one of crashed, finished, interrupted"):
        RunWriter(tmp_path / "b").close("done")


def test_times_go_on_where_the_clock_is_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an hour while the run is written, and by another before it goes on."""
    real, back = time.time, [0.0]
    monkeypatch.setattr(time, "time", lambda: real() - back[0])
    for first in (1, 11):
        with RunWriter(tmp_path, layouts=[LAYOUT], resume=True, strict=True) as writer:
            writer.flush()  # the run has begun before its clock is set back
            for step in range(first, first + 10):
                writer.append(step, [1, 1, 1])
                back[0] += 360.0
    with Run.open(tmp_path) as run:
        times = run.table().times
        assert len(times) == 20
        assert (np.diff(times) >= 0).all()
        assert 0 <= times[-1] - run.started < 3600
