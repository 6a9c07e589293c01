"""Runs on networks: where a library that is loaded first makes locks and shared memory fail, and on a real NFS server.

`python .ci/nfs.py` starts a server in user space, mounts its export twice, as two machines would, and runs these tests.
"""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from tests.monitor.store.example_runs import LAYOUT, numbers, write

from equipoise.board.listing import Runs
from equipoise.monitor import Run, RunError, RunWriter
from equipoise.monitor.store import network, schema

MOUNTS = "EQUIPOISE_NFS"
"""This variable has two directories, which are mounts of one export."""

WRITE = """
import sys, time
from tests.monitor.store.example_runs import LAYOUT
from equipoise.monitor import RunWriter
from equipoise.monitor.store import network
network.EVERY = 3600.0
path, rows, end = sys.argv[1:]
writer = RunWriter(path, layouts=[LAYOUT], resume=True, strict=True)
first = 1 + int(sys.stdin.readline())
for step in range(first, first + int(rows)):
    writer.append(step, [step, 1, 2])
assert writer.flush()
print("flushed", flush=True)
sys.stdin.readline()
if end == "close":
    writer.close()
    print("closed", writer.findings, flush=True)
else:
    for step in range(first + int(rows), first + int(rows) + 10):
        writer.append(step, [step, 1, 2])
    time.sleep(1)
    print("stored", flush=True)
    time.sleep(600)
"""

READ = """
import json, sys
from equipoise.monitor.runs.directory import Directory
print(json.dumps([line.values | {"error": line.error} for line in Directory(sys.argv[1]).lines()], default=str))
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and Linux")
    made = tmp_path_factory.mktemp("shim") / "no_locks.so"
    source = Path(__file__).with_name("no_locks.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", made, source, "-ldl"], check=True)
    return made


class Cluster:
    """A directory that several machines share, and processes that work there.

    Args:
        top: where files of the test's own go.
        runs: the directory as those who write see it.
        seen: and as others see it.
        more: variables of the processes.
    """

    def __init__(self, top: Path, runs: Path, seen: Path, more: dict[str, str]) -> None:
        self.runs, self.seen, self.local = runs, seen, top / "local"
        self.runs.mkdir()
        self.local.mkdir()
        here = str(Path(__file__).parents[3])
        path = os.pathsep.join([here, os.path.join(here, "src"), os.environ.get("PYTHONPATH", "")])
        self.env = os.environ | {network.LOCAL: str(self.local), "PYTHONPATH": path} | more

    def start(self, code: str, *words: str) -> subprocess.Popen[str]:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([sys.executable, "-c", code, *words], env=self.env, **pipes)  # type: ignore[call-overload]

    def writer(self, name: str, after: int, rows: int, end: str) -> subprocess.Popen[str]:
        process = self.start(WRITE, str(self.runs / name), str(rows), end)
        assert process.stdin is not None
        process.stdin.write(f"{after}\n")
        process.stdin.flush()
        assert told(process) == "flushed"
        return process


def told(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise AssertionError(process.communicate(timeout=300)[1])
    return line


def go_on(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return told(process)


@pytest.fixture(params=["shim", "nfs"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Cluster:
    if request.param == "shim":
        runs = tmp_path / "runs"
        more = {"LD_PRELOAD": str(request.getfixturevalue("shim")), "NO_LOCKS": str(runs)}
        return Cluster(tmp_path, runs, runs, more)
    if MOUNTS not in os.environ:
        pytest.skip("needs an NFS server: python .ci/nfs.py")
    first, second = (Path(x) / f"{tmp_path.parent.name}-{tmp_path.name}" for x in os.environ[MOUNTS].split(os.pathsep))
    return Cluster(tmp_path, first, second, {})


def test_sqlite_fails_there(cluster: Cluster) -> None:
    """Where a file cannot be locked, at once; on NFS for who reads on another machine: it has old rows."""
    if cluster.seen != cluster.runs:
        with sqlite3.connect(cluster.runs / "a.sqlite", isolation_level=None) as writer:
            writer.execute("PRAGMA journal_mode = WAL")
            writer.executescript("CREATE TABLE a (b); INSERT INTO a VALUES (1)")
            with sqlite3.connect(cluster.seen / "a.sqlite") as reader:
                assert reader.execute("SELECT * FROM a").fetchall() == [(1,)]
                writer.execute("INSERT INTO a VALUES (2)")
                assert reader.execute("SELECT * FROM a").fetchall() == [(1,)]
        reader.close()
        writer.close()
        return
    code = "import sqlite3, sys; sqlite3.connect(sys.argv[1]).execute('CREATE TABLE a (b)')"
    for place, works in ((cluster.runs, False), (cluster.local, True)):
        process = cluster.start(code, str(place / "a.sqlite"))
        err = process.communicate(timeout=300)[1]
        assert (process.returncode == 0) == works, err


def test_runs_of_several_writers_are_listed_while_they_are_written(cluster: Cluster) -> None:
    writers = [cluster.writer(name, 0, 500, "close") for name in ("a", "b/c")]
    try:
        for name in ("a", "b/c"):
            assert sorted(os.listdir(cluster.runs / name)) == [network.OWNER, schema.FILE]
        reader = cluster.start(READ, str(cluster.seen))
        out, err = reader.communicate(timeout=300)
        assert not err
        lines = json.loads(out)
        assert [(line["name"], line["status"], line["error"]) for line in lines] == [
            ("a", "running", ""), ("b/c", "running", ""),
        ]  # fmt: skip
        with Run.open(cluster.seen / "a") as run:  # stays open while another copy takes its place
            assert len(run.steps) == 500
            for writer in writers:
                assert go_on(writer) == "closed []"
                writer.communicate(timeout=300)
            assert run.status == "finished"
            assert run.check() == []
        assert os.listdir(cluster.seen / "a") == [schema.FILE]
        assert os.listdir(cluster.local) == []
    finally:
        for writer in writers:
            writer.kill()
            writer.communicate()


def test_a_killed_writer_goes_on_with_what_it_had_on_its_disk(cluster: Cluster) -> None:
    first = cluster.writer("a", 0, 100, "hang")
    try:
        assert go_on(first) == "stored"
    finally:
        first.send_signal(signal.SIGKILL)
        first.communicate()
    with Run.open(cluster.seen / "a") as run:
        assert len(run.steps) == 100, "the last copy"
        assert run.status == "unclosed"
    second = cluster.writer("a", 110, 5, "close")
    assert go_on(second) == "closed []"
    second.communicate()
    with Run.open(cluster.seen / "a") as run:
        assert run.steps.tolist() == list(range(1, 116)), "the ten that had not been copied are there, too"
        assert run.check() == []


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Copies on any file system."""
    monkeypatch.setenv(network.CHOICE, "copy")
    monkeypatch.setenv(network.LOCAL, str(tmp_path / "local"))
    return tmp_path / "run"


def test_a_copy_is_the_run(copied: Path) -> None:
    values = numbers(3000, missing=0)
    write(copied, values[:2000])
    write(copied, values[2000:], first=2001, resume=True)
    with pytest.raises(RunError, match="already holds a run"):
        RunWriter(copied)
    with Run.open(copied) as run:
        np.testing.assert_array_equal(run.table().values, values)
        assert run.check() == []
        assert run.table(points=20).level > 0
    assert os.listdir(copied) == [schema.FILE]
    assert os.listdir(copied.parent / "local") == []
    assert [line.values["status"] for line in Runs(copied.parent).lines()] == ["finished"]
    with sqlite3.connect(copied / schema.FILE) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    db.close()


def test_copies_come_by_themselves(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "EVERY", 0.0)
    with RunWriter(copied, layouts=[LAYOUT], strict=True) as writer, Run.open(copied) as run:
        assert len(run.steps) == 0
        writer.append(1, [1, 2, 3])
        for last in range(600, -1, -1):
            if len(run.steps):
                break
            assert last
            time.sleep(0.1)
        assert run.status == "running"


def test_only_one_writes(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        RunWriter(copied, layouts=[LAYOUT], strict=True),
        pytest.raises(RunError, match=f"is being written by process {os.getpid()} on"),
    ):
        RunWriter(copied, resume=True)
    RunWriter(copied, resume=True, strict=True).close()
    (copied / network.OWNER).write_text(json.dumps({"host": "elsewhere/1", "pid": 1}))
    with pytest.raises(RunError, match=r"by process 1 on elsewhere; .*remove run\.owner if it has ended"):
        RunWriter(copied, resume=True)
    old = time.time() - 2 * network.SILENT
    os.utime(copied / network.OWNER, (old, old))
    RunWriter(copied, resume=True, strict=True).close()
    monkeypatch.setenv(network.CHOICE, "x")
    with pytest.raises(RunError, match="EQUIPOISE_STORE = 'x': must be direct or copy"):
        RunWriter(copied, resume=True)


def test_where_copying_fails_training_goes_on_and_the_run_stays_on_the_local_disk(copied: Path, tmp_path: Path) -> None:
    said: list[str] = []
    writer = RunWriter(copied, layouts=[LAYOUT], warn=said.append)
    writer.append(1, [1, 2, 3])
    assert writer.flush()
    shutil.rmtree(copied)
    writer.append(2, [1, 2, 3])
    assert not writer.flush()
    writer.close()
    (finding,) = writer.findings
    assert finding.code == "run-not-written"
    assert len(said) == 1
    (kept,) = (tmp_path / "local").iterdir()
    with Run.open(kept) as run:
        assert run.steps.tolist() == [1, 2]


def test_a_disk_that_does_not_answer_is_waited_for_aloud(copied: Path) -> None:
    """As a server that hangs: whoever opens the file waits for ever."""
    said: list[str] = []
    writer = RunWriter(copied, layouts=[LAYOUT], warn=said.append)
    writer.append(1, [1, 2, 3])
    assert writer.flush()
    part = copied / f".{schema.FILE}.{os.getpid()}"
    os.mkfifo(part)
    writer.close(timeout=2.5)
    assert said[0].endswith("the disk has not answered for 2 s, waiting 2.5 s")
    (finding,) = writer.findings
    assert "the disk did not answer within 2.5 s" in finding.evidence
    with part.open("rb") as end:  # so that the thread goes on
        end.read()


@pytest.mark.parametrize(
    ("kind", "copy"),
    [
        ("nfs", True), ("nfs4", True), ("lustre", True), ("cifs", True), ("fuse.s3fs", True), ("fuse.sshfs", True),
        ("fuse.gcsfuse", True), ("beegfs", True), ("ext4", False), ("xfs", False), ("overlay", False), ("tmpfs", False),
        ("fuse.fuse-overlayfs", False), ("fuseblk", False), ("zfs", False), ("btrfs", False), ("", False),
    ],
)  # fmt: skip
def test_file_systems_of_networks(kind: str, copy: bool) -> None:
    assert (network.REMOTE.fullmatch(kind) is not None) == copy


def test_the_file_system_of_a_path_is_as_the_system_says(tmp_path: Path) -> None:
    if shutil.which("stat") is None or not Path("/proc/self/mountinfo").exists():
        pytest.skip("needs Linux")
    assert network.file_system(Path("/proc/self")) == "proc"
    assert not network.needs_copy(tmp_path)
