"""Files that lie: whatever is under the names of a run's tables, it is not run, and what is whole is read."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from bokeh.document import Document
from tests.fuzz.test_files import command
from tests.monitor.store.example_runs import LAYOUT, numbers, write

import equipoise as eq
from equipoise.board.listing import Runs
from equipoise.board.live import run_page
from equipoise.monitor import Column, Layout, Run, RunError, RunWriter, TensorInfo
from equipoise.monitor.runs.directory import Directory
from equipoise.monitor.store import schema

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id, 1, x, 1.0, x'00', 0 FROM n"
LARGE = "SELECT 1 AS id, 1 AS segment, 1 AS step, 1.0 AS time, hex(zeroblob(400000000)) AS data, 0 AS crc"
LIES = {
    "endless view": f"DROP TABLE rows; CREATE VIEW rows(id, segment, step, time, data, crc) AS {ENDLESS}",
    "large view": f"DROP TABLE rows; CREATE VIEW rows AS {LARGE}",
    "records that are a view": f"DROP TABLE records; CREATE VIEW records AS {ENDLESS}",
    "generated column": "ALTER TABLE rows ADD COLUMN more TEXT AS (hex(zeroblob(400000000)))",
    "index of an expression": "CREATE INDEX more ON rows (hex(zeroblob(data)))",
    "trigger": "CREATE TRIGGER more AFTER INSERT ON rows BEGIN SELECT hex(zeroblob(1000000000)); END",
    "lives that are virtual": "DROP TABLE lives; CREATE VIRTUAL TABLE lives USING fts5(life)",
}


def lying(path: Path, how: str) -> None:
    write(path, numbers(200, missing=0))
    db = sqlite3.connect(path / schema.FILE)
    db.executescript(how)
    db.close()


@pytest.mark.parametrize("how", LIES)
def test_a_file_that_lies_is_not_believed(how: str, tmp_path: Path) -> None:
    lying(tmp_path / "bad", LIES[how])
    write(tmp_path / "good", numbers(20))
    began = time.process_time()
    lines = {line.values["name"]: line for line in Directory(tmp_path).lines()}
    assert time.process_time() - began < 5
    assert lines["good"].values["status"] == "finished"
    bad = lines["bad"]
    assert bad.error or bad.values["findings"] == ["run-damaged"]
    try:
        run = Run.open(tmp_path / "bad")
    except RunError:
        assert "is damaged" in bad.error
        return
    with run:  # what is in tables and whole is there all the same
        assert len(run.steps) in (0, 200)
        assert "is not one of a run" in run.check()[0].evidence


OPEN = """
import sys
from equipoise.monitor import Run
from equipoise.monitor.runs.directory import Directory
(line,) = Directory(sys.argv[1]).lines()
with Run.open(sys.argv[1] + "/a") as run:
    print(len(run.steps), line.error or line.values["findings"])
"""


@pytest.mark.parametrize("side", ["-journal", "-wal", "-shm"])
def test_a_pipe_beside_a_run_is_not_waited_for(side: str, tmp_path: Path) -> None:
    """SQLite opens a journal to read it, and what opens a pipe waits until somebody writes, whatever signals come."""
    write(tmp_path / "a", numbers(200, missing=0))
    os.mkfifo(tmp_path / "a" / f"{schema.FILE}{side}")
    words = [sys.executable, "-c", OPEN, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.split() == ["200", "['run-damaged']"], done.stderr
    with pytest.raises(RunError, match=f"{side} is no file"):
        RunWriter(tmp_path / "a", resume=True, strict=True)


def test_a_pipe_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "a" / schema.FILE)
    words = [sys.executable, "-c", "import sys, equipoise; equipoise.Run.open(sys.argv[1])", str(tmp_path / "a")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert f"holds no {schema.FILE}" in done.stderr


def test_pages_that_point_at_each_other_have_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree of twenty levels, each of which is one page named four hundred times: 400^20 lines."""
    monkeypatch.setattr(schema, "SECONDS", 0.5)
    write(tmp_path, numbers(3000, missing=0))
    file = tmp_path / schema.FILE
    with sqlite3.connect(file) as db:
        (root,) = db.execute("SELECT rootpage FROM sqlite_master WHERE name = 'rows'").fetchone()
    db.close()
    data, size = bytearray(file.read_bytes()), 4096
    pages = [root, *(len(data) // size + 1 + i for i in range(18))]
    for page, child in zip(pages, [*pages[1:], 2], strict=True):
        cells = b"".join(child.to_bytes(4, "big") + bytes([0x81, 0]) for _ in range(400))
        places = b"".join((size - len(cells) + 6 * i).to_bytes(2, "big") for i in range(400))
        head = b"\x05" + bytes(2) + (400).to_bytes(2, "big") + bytes(3) + child.to_bytes(4, "big") + places
        body = head + bytes(size - len(head) - len(cells)) + cells
        data[(page - 1) * size : page * size] = body
    file.write_bytes(data)
    with contextlib.suppress(RunError), Run.open(tmp_path) as run:
        run.table()
        run.check()


@pytest.mark.parametrize("share", [0.8, 0.5, 0.3])
def test_a_file_that_was_cut_off_keeps_its_whole_rows(tmp_path: Path, share: float) -> None:
    values = numbers(3000, missing=0)
    write(tmp_path, values)
    file = tmp_path / schema.FILE
    data = file.read_bytes()
    file.write_bytes(data[: int(share * len(data))])
    with Run.open(tmp_path) as run:
        assert run.status != "empty"
        table = run.table()
        np.testing.assert_array_equal(table.values, values[table.steps - 1])
        assert len(table) > 0.5 * share * 3000
        (finding,) = run.findings
        assert f"{len(table)} are left" in finding.evidence
        if share == 0.8:
            assert "at least 0 rows" not in finding.evidence


def test_any_one_page_may_be_lost(tmp_path: Path) -> None:
    """Zeroed, one page after another: the first has the schema, others the roots of tables, layouts, and rows."""
    values = numbers(3000, missing=0)
    write(tmp_path / "whole", values)
    data = (tmp_path / "whole" / schema.FILE).read_bytes()
    least = len(values)
    for page in range(len(data) // 4096):
        broken = tmp_path / str(page)
        broken.mkdir()
        changed = bytearray(data)
        changed[page * 4096 : (page + 1) * 4096] = bytes(4096)
        (broken / schema.FILE).write_bytes(changed)
        with Run.open(broken) as run:
            table = run.table()
            np.testing.assert_array_equal(table.values, values[table.steps - 1])
            least = min(least, len(table))
            run.check()
            lost = len(values) - len(table)
            assert not lost or [f.code for f in run.findings] == ["run-damaged"]
    assert least > 0.9 * len(values)
    assert os.listdir(tmp_path / "0") == [schema.FILE]


NAME = "a\x1b]0;X\x07\u202ename"


def test_names_of_any_bytes_and_letters_are_shown_and_harmless(tmp_path: Path) -> None:
    """A directory that is not UTF-8, a layer that sets the terminal's title, a cell that is a formula."""
    odd = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    layout = Layout((Column("loss"), Column("norm", NAME), Column("norm", "=1+1"), Column("norm", "half \ud800")))
    tensors = [TensorInfo(name, (4, 4)) for name in (NAME, "=1+1")]
    for path in (odd, tmp_path / "b"):
        with RunWriter(path, layouts=[layout], tensors=tensors, meta={"tags": [NAME]}, strict=True) as writer:
            for step in range(1, 20):
                writer.append(step, [1.0, 2.0, 3.0, 4.0])
    runs = Runs(tmp_path)
    assert runs.names() == ["b", "caf\\udce9"]
    assert runs.path("caf\\udce9") == odd
    rows = {row["name"]: row["cells"] for row in runs.answer({})["rows"]}
    assert set(rows) == {"b", "caf\\udce9"}
    json.dumps(rows, ensure_ascii=False).encode()
    said = []
    for words in (
        ["runs", str(tmp_path)], ["watch", "--once", "--layers", "*", str(odd)], ["watch", str(tmp_path)],
        ["report", str(odd), "-o", str(tmp_path / "a.html")], ["export", str(odd), "-o", str(tmp_path / "a.csv")],
        ["tag", str(odd)], ["watch", f"{tmp_path}/{NAME}"],
    ):  # fmt: skip
        code, out, err = command(*words)
        said.append(out + err)
        assert code == (2 if words[-1].endswith(NAME) else 0), (words, err)
    for text in said:
        assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "a\\x1b]0;X\\x07" in "".join(said)
    assert "'=1+1" in (tmp_path / "a.csv").read_text()
    document = Document()
    run_page(runs, {"run": [b"caf\\udce9"]})(document)
    assert document.title == "caf\\udce9"


def test_a_run_that_is_removed_has_lost_all_its_rows(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "run", layouts=[LAYOUT])
    for step in range(1, 4001):
        writer.append(step, [1.0, 2.0, 3.0])
        if step == 2000:
            assert writer.flush()
            shutil.rmtree(tmp_path / "run")
    writer.close()
    (finding,) = writer.findings
    assert "run.sqlite was removed; 4000 measured rows are not stored" in finding.evidence


def test_watch_says_what_is_not_stored_and_does_not_wait_for_it(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = eq.watch(model, optimizer, tmp_path / "run", every=1, quiet=True)
    shutil.rmtree(tmp_path / "run")
    for _ in range(10):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    began = time.monotonic()
    watch.close()
    assert time.monotonic() - began < 30, "a flush that waits for what has failed takes 60 s"
    assert [f.code for f in watch.findings].count("run-not-written") == 1
