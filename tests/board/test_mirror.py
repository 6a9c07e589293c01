"""Runs at addresses of fsspec: in memory, and in a local directory as if it were far away."""

import json
import urllib.request
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from tests.board.board_process import board
from tests.cli.test_cli import run as command
from tests.monitor.store.example_runs import LAYOUT, numbers, write

from equipoise.board import serve
from equipoise.board.listing import Runs
from equipoise.board.mirror import Mirror
from equipoise.monitor import Run, RunWriter
from equipoise.monitor.store.schema import FILE


@pytest.fixture
def memory() -> Any:
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    return system


def lines(mirror: Mirror) -> dict[str, Any]:
    return {str(line.values["name"]): line.error or line.values["status"] for line in Runs(mirror.path).lines()}


def test_runs_in_memory_are_mirrored(memory: Any, tmp_path: Path) -> None:
    values = numbers(300, missing=0)
    write(tmp_path / "a", values[:200])
    for name in ("a", "deep/b"):
        memory.put_file(str(tmp_path / "a" / FILE), f"/runs/{name}/{FILE}")
    memory.pipe_file("/runs/a/tags.json", b'["good"]')
    memory.pipe_file("/runs/bad/run.sqlite", b"no run")
    memory.pipe_file("/runs/a/secret.txt", b"not copied")
    with Mirror("memory://runs") as mirror:
        found = lines(mirror)
        assert {"a", "bad", "deep/b"} == set(found)
        assert found["a"] == found["deep/b"] == "finished"
        assert found["bad"] not in ("finished", "running")
        assert sorted(p.name for p in (mirror.path / "a").iterdir()) == [FILE, "tags.json"]
        with Run.open(mirror.path / "a") as run:
            assert len(run.steps) == 200
            write(tmp_path / "a", values[200:], first=201, resume=True)
            memory.put_file(str(tmp_path / "a" / FILE), f"/runs/a/{FILE}")
            memory.rm("/runs/deep/b/run.sqlite")
            mirror.refresh()
            np.testing.assert_array_equal(run.table().values, values)  # one that stays open sees the new copy
        assert set(lines(mirror)) == {"a", "bad"}
    assert not mirror.path.exists()


def test_a_run_that_is_written_is_mirrored_with_its_log(tmp_path: Path) -> None:
    with RunWriter(tmp_path / "runs" / "a", layouts=[LAYOUT], strict=True) as writer:
        writer.append(1, [1, 2, 3])
        assert writer.flush()
        with Mirror(f"file://{tmp_path}/runs") as mirror:
            assert lines(mirror) == {"a": "running"}
            with Run.open(mirror.path / "a") as run:
                assert run.steps.tolist() == [1]
                writer.append(2, [1, 2, 3])
                assert writer.flush()
                mirror.refresh()
                assert run.steps.tolist() == [1, 2]


def test_a_board_of_an_address(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "a", numbers(20))
    with board(f"file://{tmp_path}/runs") as url, urllib.request.urlopen(f"{url}/api/runs", timeout=300) as answer:  # type: ignore[arg-type]
        (row,) = json.load(answer)["rows"]
    assert row["name"] == "a"


def test_addresses_that_cannot_be_read_are_said_in_a_line(memory: Any) -> None:
    for address in ("memory://nothing", "no-such-protocol://x"):
        with pytest.raises(ValueError, match=f"directory = '{address}': cannot be read"):
            serve(address, port=0)
    done = command("board", "no-such-protocol://x")
    assert done.returncode == 2
    assert done.stderr.startswith("equipoise: directory = 'no-such-protocol://x': cannot be read")
    assert len(done.stderr.strip().splitlines()) == 1
