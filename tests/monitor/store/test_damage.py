"""What no program can choose: kill -9, torn and flipped files, full disks. Real processes and real files."""

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.monitor.store.example_runs import LAYOUT, assert_summaries_are_right, numbers, wide, write

from equipoise.monitor import Run, RunError, RunWriter
from equipoise.monitor.store import schema

HERE = Path(__file__).parent
KILLS = 20


def python(code: str, *arguments: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


def test_twenty_kills(tmp_path: Path) -> None:
    path = tmp_path / "run"
    command = [sys.executable, str(HERE / "killed_writers.py"), str(path), str(KILLS), "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sessions = {number: json.loads(line) for number, line in enumerate(done.stdout.splitlines(), start=1)}
    assert len(sessions) == KILLS
    assert all(session["signal"] == 9 for session in sessions.values())
    db = sqlite3.connect(path / schema.FILE)
    # By what rows say themselves: a writer that was killed before it began has no line in the file.
    stored = {int(np.frombuffer(data, "<f4")[1]) for (data,) in db.execute("SELECT data FROM rows")}
    db.close()
    with Run.open(path) as run:
        assert run.status == "unclosed"
        assert run.check() == []
        table = run.table()
        steps, by = table.steps.tolist(), table.values[:, 1].astype(int).tolist()
        assert len(set(steps)) == len(steps)
        np.testing.assert_array_equal(table.values[:, 0], steps)
        np.testing.assert_array_equal(table.values[:, 2], table.values[:, 0] * table.values[:, 1])
        shown = dict(zip(steps, by, strict=True))
        kept = 0
        for number, session in sessions.items():
            for step, age in session["told"]:
                later = [n for n in sessions if n > number and n in stored and sessions[n]["begin"] <= step]
                if age > 0.5 and not later:
                    assert shown.get(step) == number
                    kept += 1
                if shown.get(step) is not None and later:
                    assert shown[step] > number
        assert kept > 100, "how many there are depends on the machine; some must be"
        # Each life left buckets half full; what is drawn is right all the same.
        assert len(assert_summaries_are_right(run, (1000, 100, 10, 1))) >= 3
    last = max(shown)
    write(path, numbers(40), first=last + 1, resume=True)
    with Run.open(path) as run:
        assert run.status == "finished"
        np.testing.assert_array_equal(np.sort(run.steps), sorted({*shown, *range(last + 1, last + 41)}))


def damaged_copies(
    tmp_path: Path, columns: int, rows: int, how: Callable[[bytearray, random.Random], bytearray], tries: int
) -> Iterator[tuple[Path, np.ndarray]]:
    """The same run with its file damaged in another way each time, and what it held."""
    values = numbers(rows, columns, missing=0)
    write(tmp_path / "whole", values, wide(columns))
    whole = (tmp_path / "whole" / schema.FILE).read_bytes()
    chance = random.Random(columns)
    for n in range(tries):
        path = tmp_path / str(n)
        path.mkdir()
        (path / schema.FILE).write_bytes(how(bytearray(whole), chance))
        yield path, values


def read_what_is_left(path: Path, values: np.ndarray) -> tuple[int, list[str]]:
    """Rows that can be read, each exactly as written, and the codes of the findings; −1 where nothing can be."""
    try:
        run = Run.open(path)
    except RunError:
        return -1, []
    with run:
        try:
            drawn = run.table(points=10)
            assert np.isin(drawn.count[:, 0], np.arange(len(values) + 1)).all()
            table = run.table()
        except RunError:  # its layout is lost, and with it the meaning of all rows
            return -1, [f.code for f in run.check()]
        np.testing.assert_array_equal(table.values, values[table.steps - 1])
        assert run.meta == {}
        assert run.status in ("finished", "unclosed", "empty")
        run.check()
        return len(table), [f.code for f in run.findings]


@pytest.mark.parametrize(("columns", "rows"), [(3, 3000), (2000, 60)])
def test_truncated_anywhere(tmp_path: Path, columns: int, rows: int) -> None:
    left = []
    for path, values in damaged_copies(tmp_path, columns, rows, lambda b, r: b[: r.randrange(len(b))], 12):
        count, codes = read_what_is_left(path, values)
        assert count < 0 or codes == ["run-damaged"]
        left.append(count)
        with pytest.raises(RunError, match="damaged"):
            RunWriter(path, resume=True)
    assert max(left) > rows // 3
    assert sum(count >= 0 for count in left) >= 6


@pytest.mark.parametrize(("columns", "rows"), [(3, 3000), (2000, 60)])
def test_flipped_bits_anywhere(tmp_path: Path, columns: int, rows: int) -> None:
    def flip(data: bytearray, chance: random.Random) -> bytearray:
        for _ in range(chance.choice((1, 4, 16))):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return data

    left = []
    for path, values in damaged_copies(tmp_path, columns, rows, flip, 25):
        count, codes = read_what_is_left(path, values)
        # Flips may also hit what nobody reads: free space, or the pages of a bucket.
        assert count in (-1, rows) or "run-damaged" in codes
        left.append(count)
    assert sum(count > rows // 2 for count in left) >= 15
    assert min(left) < rows


def test_a_damaged_page_in_the_middle_loses_only_itself(tmp_path: Path) -> None:
    write(tmp_path, numbers(4000, missing=0))
    db = sqlite3.connect(tmp_path / schema.FILE)
    (size,) = db.execute("PRAGMA page_size").fetchone()
    try:
        (page,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'rows'").fetchone()
    finally:
        db.close()
    file = tmp_path / schema.FILE
    data = bytearray(file.read_bytes())
    # A leaf of the table of rows: pages behind its root that hold the blobs of the middle rows.
    middle = data.find(np.array([2000], "<f4").tobytes()) // size
    assert middle > page
    data[middle * size : (middle + 1) * size] = os.urandom(size)
    file.write_bytes(data)
    with Run.open(tmp_path) as run:
        steps = run.series("loss").steps
        assert {1, 4000} <= set(steps.tolist())
        assert 3800 < len(steps) < 4000
        (finding,) = run.findings
        assert finding.code == "run-damaged"
        assert f"at least {4000 - len(steps)} rows are lost" in finding.evidence


def test_a_run_without_its_wal_file(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "run", layouts=[LAYOUT], strict=True) as writer:
        writer.append(1, [1, 2, 3])
        assert writer.flush()
        shutil.copytree(tmp_path / "run", tmp_path / "copy")
    (tmp_path / "copy" / "run.sqlite-shm").unlink()
    wal = tmp_path / "copy" / "run.sqlite-wal"
    data = wal.read_bytes()
    wal.write_bytes(data[: len(data) - 100])  # torn: the last commit is not there
    with Run.open(tmp_path / "copy") as run:
        assert len(run.steps) <= 1
    wal.unlink()
    with Run.open(tmp_path / "copy") as run:
        assert len(run.steps) == 0
        assert run.findings == []


@pytest.mark.parametrize("content", [b"", b"not a database", os.urandom(100_000)], ids=["empty", "text", "noise"])
def test_garbage_is_not_a_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / schema.FILE).write_bytes(content)
    with pytest.raises(RunError, match=r"run\.sqlite"):
        Run.open(tmp_path)


def test_a_full_disk_is_one_finding_and_training_goes_on(tmp_path: Path) -> None:
    """No file may grow past a limit: what SQLite then sees is a disk that takes no more."""
    code = """
import json, resource, sys, logging, numpy as np
logging.basicConfig(level=logging.WARNING)
from tests.monitor.store.example_runs import wide
from equipoise.monitor import RunWriter
writer = RunWriter(sys.argv[1], layouts=[wide(500)], buffer=200_000)
most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, most))
for step in range(1, 1801):
    writer.append(step, np.full(500, step))
    if step % 100 == 0:
        writer.flush(0.02)
    if step == 1500:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        before = len(writer.findings)
        writer.flush(5)
assert writer.flush(5)
writer.close()
print(json.dumps([before, [f.code for f in writer.findings], [f.evidence for f in writer.findings]]))
"""
    done = python(code, tmp_path / "run")
    assert done.returncode == 0, done.stderr
    before, codes, evidence = json.loads(done.stdout)
    assert before == 1
    assert codes == ["run-not-written"]
    assert done.stderr.count("WARNING") == 1
    with Run.open(tmp_path / "run") as run:
        assert run.status == "finished"
        series = run.series("norm", "t3")
        np.testing.assert_array_equal(series.steps, series.values)
        # Room came back: all rows from then on are there.
        assert set(range(1501, 1801)) <= set(series.steps.tolist())
        lost = 1800 - len(series)
        assert 0 < lost < 1800
        assert f"{lost} measured rows are not stored" in evidence[0]
        assert [f.evidence for f in run.check()] == evidence
        assert_summaries_are_right(run, (100, 10))


def test_a_directory_that_cannot_be_written(tmp_path: Path) -> None:
    code = """
import os, sys, logging
logging.basicConfig(level=logging.WARNING)
from tests.monitor.store.example_runs import LAYOUT
from equipoise.monitor import RunError, RunWriter
os.getuid() == 0 and (os.setgroups([]), os.setuid(65534))
with RunWriter(sys.argv[1], layouts=[LAYOUT], meta={"a": 1}) as writer:
    for step in range(1, 6):
        writer.append(step, [1, 2, 3])
    writer.rewind(2)
    assert not writer.flush()
(finding,) = writer.findings
print(finding.code, finding.evidence)
try:
    RunWriter(sys.argv[1], strict=True)
except RunError as error:
    print(error)
"""
    (tmp_path / "shut").mkdir(mode=0o555)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        folder.chmod(0o755)
    done = python(code, tmp_path / "shut" / "run")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("run-not-written PermissionError")
    assert "5 measured rows are not stored" in first
    assert "cannot be written" in second
    assert done.stderr.count("WARNING") == 1


def test_two_readers_while_writing(tmp_path: Path) -> None:
    """Each reader, a process of its own, sees rows grow, in order and intact, until the run is finished."""
    code = """
import sys, time, numpy as np
from equipoise.monitor import Run
with Run.open(sys.argv[1]) as run:
    print("ready", flush=True)
    seen, sizes, follower = [], set(), run.follow()
    while True:
        status = run.status
        for rows in follower.read():
            assert (rows.values[:, 0] == rows.steps).all()
            seen += rows.steps.tolist()
        series = run.series("loss", points=50)
        assert series.count.sum() >= len(seen)
        sizes.add(len(seen))
        if status != "running":
            break
        time.sleep(0.02)
    assert not run.findings
    assert seen == list(range(1, len(seen) + 1))
    print(len(seen), len(sizes), status)
"""
    with RunWriter(tmp_path / "run", layouts=[LAYOUT], strict=True) as writer:
        assert writer.flush()  # else a reader may be there before the layout is
        command = [sys.executable, "-c", code, str(tmp_path / "run")]
        readers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        for reader in readers:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
        for step in range(1, 1501):
            writer.append(step, [step, 2, 3])
            if step % 100 == 0:
                writer.flush()
                time.sleep(0.05)
    for reader in readers:
        out, _ = reader.communicate(timeout=300)
        assert reader.returncode == 0
        rows, sizes, status = out.split()
        assert (rows, status) == ("1500", "finished")
        assert int(sizes) > 2


def test_a_damaged_row_number_is_one_damage(tmp_path: Path) -> None:
    """A flipped bit may make it enormous: not a reason to count billions of rows that never were."""
    write(tmp_path, numbers(20))
    with sqlite3.connect(tmp_path / schema.FILE) as db:
        db.execute("UPDATE rows SET id = 4000000000000 WHERE id = 15")
    db.close()
    with Run.open(tmp_path) as run:
        assert [f.code for f in run.check()] == ["run-damaged"]
