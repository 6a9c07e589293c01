"""The terminal shows the newest state of a run, the worst layers first, and ends with it."""

import io
import os
import pty
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from equipoise.finding import Finding
from equipoise.monitor import Column, Layout, Run, RunWriter, TensorInfo
from equipoise.monitor.runs.snapshot import SHOWN, SnapshotReader
from equipoise.monitor.runs.terminal import render, runs_in, show
from equipoise.monitor.store.schema import RunError

ROTATION = {"a.weight": 0.1, "b.attn.weight": 0.4, "c.attn.weight": 0.1, "d.weight": 0.01, "d.bias": 9.0}
TENSORS = [TensorInfo(name, (4,) if name.endswith("bias") else (4, 3)) for name in ROTATION]
WHOLE = ("balance_neurons", "balance_layers", "step_time", "watch_share", "lr/0", "lr/1", "weight_decay/0", "memory/0")
LAYOUT = Layout((*(Column(q) for q in WHOLE), *(Column(q, name) for q in SHOWN for name in ROTATION)))
LOG = Layout((Column("loss"), Column("accuracy")), kind="log", dtype="float64")
ODD = Finding("update-lost", "warning", "d.weight", "evidence", "expected", "advice", "source")


def row(step: int) -> list[float]:
    values = [0.5, 0.25, 0.002, 0.01, 0.1, 0.3, 0.01, 50.0]
    for quantity in SHOWN:
        values += [step * r if quantity == "rotation" else r for r in ROTATION.values()]
    return values


def write(writer: RunWriter, step: int) -> None:
    writer.append(step, row(step))
    writer.append(step, [1 / step, 0.5 if step == 2 else np.nan], kind="log")


def begin(path: Path) -> RunWriter:
    return RunWriter(path, tensors=TENSORS, layouts=[LAYOUT, LOG])


def made(path: Path, steps: int = 4) -> Path:
    with begin(path) as writer:
        for step in range(1, steps + 1):
            write(writer, step)
        writer.finding(ODD, 3)
    return path


def text(what: object, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(what)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_newest_numbers_and_the_worst_first(tmp_path: Path) -> None:
    with Run.open(made(tmp_path / "a")) as run:
        now = SnapshotReader(run).now()
    assert (now.status, now.step) == ("finished", 4)
    assert now.logged == {"loss": 0.25, "accuracy": 0.5}
    assert now.numbers["lr/1"] == pytest.approx(0.3)
    assert [layer.name for layer in now.layers] == ["d.weight", "b.attn.weight", "a.weight", "c.attn.weight"]
    assert [layer.ratio for layer in now.layers] == pytest.approx([0.1, 4.0, 1.0, 1.0])
    assert now.layers[1].values["rotation"] == pytest.approx(1.6)
    assert now.layers[1].history == pytest.approx((0.4, 0.8, 1.2, 1.6))
    assert now.others == 1
    assert [f.code for f in now.findings] == ["update-lost"]


def test_layers_sort_and_top(tmp_path: Path) -> None:
    with Run.open(made(tmp_path / "a")) as run:

        def names(top: int = 9, **options: Any) -> list[str]:
            return [layer.name for layer in SnapshotReader(run, **options).now(top).layers]

        assert names(layers="attn") == ["b.attn.weight", "c.attn.weight"]
        assert names(layers="*", sort="rotation")[0] == "d.bias"
        assert names(layers="d*", sort="name") == ["d.bias", "d.weight"]
        assert names(sort="model") == ["a.weight", "b.attn.weight", "c.attn.weight", "d.weight"]
        assert names(2) == ["d.weight", "b.attn.weight"]
        assert SnapshotReader(run).now(1).hidden == 3
        assert "no layer matches this name" in text(render(SnapshotReader(run, layers="none").now()))
        with pytest.raises(ValueError, match="--sort = 'size': must be one of"):
            SnapshotReader(run, sort="size")


def test_what_is_predicted_decides_who_is_worst(tmp_path: Path) -> None:
    with Run.open(made(tmp_path / "a", 1)) as run:
        plain = SnapshotReader(run).now()
        now = SnapshotReader(run, predict=lambda names: {"a.weight": 100.0, "b.attn.weight": 1.0}).now()
    assert [layer.name for layer in now.layers][:2] == ["a.weight", "d.weight"]
    assert now.layers[0].predicted == pytest.approx(100)
    assert now.layers[1].predicted is None
    assert "÷ predicted" in text(render(now))
    assert "÷ predicted" not in text(render(plain))


def test_it_is_readable_at_every_width(tmp_path: Path) -> None:
    with Run.open(made(tmp_path / "a")) as run:
        now = SnapshotReader(run).now()
    wide = text(render(now))
    for word in ("finished", "step 4", "loss 0.25", "2 ms per step", "watching 1.0%", "layers 0.25", "lr 0.1 to 0.3"):
        assert word in wide, word
    for word in (
        "λ_e",
        "C_err",
        "÷ median",
        "▃▅▆█",
        "1 other tensors",
        "update-lost",
        "→ advice",
        "4 of 4 steps · initialisation left",
    ):
        assert word in wide, word
    for width in (120, 80, 60):
        lines = text(render(now, width=width), width).splitlines()
        (line,) = [line for line in lines if line.startswith("b.attn ")]
        assert "4.00" in line
        assert "█" in line
    assert "angle" not in text(render(now, width=60), 60)


def test_following_sees_new_rows_new_layouts_and_a_run_that_goes_back(tmp_path: Path) -> None:
    with begin(tmp_path) as writer:
        write(writer, 1)
        assert writer.flush()
        with Run.open(tmp_path) as run:
            look = SnapshotReader(run)
            assert look.now().step == 1
            assert look.now().status == "running"
            for step in (2, 3):
                write(writer, step)
            assert writer.flush()
            assert look.now().logged == {"loss": pytest.approx(1 / 3), "accuracy": 0.5}
            writer.rewind(1)
            writer.layout(Layout((*LAYOUT.columns, Column("rotation", "new"))))
            writer.describe(tensors=[TensorInfo("new", (2, 2))])
            writer.append(2, [*row(2), 7.0])
            assert writer.flush()
            now = look.now()
            assert now.step == 2
            assert {layer.name: layer.values["rotation"] for layer in now.layers}["new"] == 7.0


def test_what_is_measured_less_often_than_logged_says_so(tmp_path: Path) -> None:
    with begin(tmp_path) as writer:
        write(writer, 1)
        for step in range(2, 20_000):  # more than a follower reads at once
            writer.append(step, [0.5, 0.5], kind="log")
    with Run.open(tmp_path) as run:
        now = SnapshotReader(run).now()
    assert (now.step, now.coverage.measured, now.coverage.last) == (19_999, 1, 1)
    assert now.layers[0].values["rotation"] == pytest.approx(0.01)
    assert "1 of 19,999 steps measured, up to step 1" in text(render(now), 300)


def test_a_run_without_rows(tmp_path: Path) -> None:
    with begin(tmp_path), Run.open(tmp_path) as run:
        now = SnapshotReader(run).now()
        assert now.step is None
        assert "nothing has been measured yet" in text(render(now))


def test_live_until_the_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.monitor.runs.terminal.EVERY", 0.05)
    writer = begin(tmp_path)
    write(writer, 1)
    assert writer.flush()

    def train() -> None:
        for step in range(2, 6):
            time.sleep(0.1)
            write(writer, step)
            writer.flush()
        writer.close()

    thread = threading.Thread(target=train)
    out = io.StringIO()
    with Run.open(tmp_path) as run:
        thread.start()
        show(SnapshotReader(run), Console(file=out, force_terminal=True, width=120, height=30))
    thread.join()
    shown = out.getvalue()
    assert shown.count("running") >= 3
    assert "step 3" in shown
    assert "step 5" in shown.rpartition("finished")[2]
    assert "running" not in shown.rpartition("finished")[2]


def test_ctrl_c_leaves_quietly(tmp_path: Path) -> None:
    with begin(tmp_path) as writer:
        write(writer, 1)
        assert writer.flush()
        master, terminal = pty.openpty()
        done = subprocess.Popen(
            [sys.executable, "-m", "equipoise.cli", "watch", tmp_path],
            stdout=terminal, stderr=terminal, stdin=terminal,
            # Tests that run in the background of a shell ignore Ctrl-C, and what they start would, too.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL) and None,
        )  # fmt: skip
        os.close(terminal)
        seen, end = b"", time.monotonic() + 300
        while b"step 1" not in seen and time.monotonic() < end:
            if select.select([master], [], [], 1)[0]:
                seen += os.read(master, 65536)
        assert b"running" in seen
        done.send_signal(signal.SIGINT)
        try:
            while True:
                seen += os.read(master, 65536)
        except OSError:  # the other end is closed
            pass
        assert done.wait(300) == 0
        assert b"Traceback" not in seen
        os.close(master)


def test_runs_of_a_directory_are_found(tmp_path: Path) -> None:
    made(tmp_path / "a")
    made(tmp_path / "deep" / "b", 2)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_bytes(b"nothing" * 1000)
    found = runs_in(tmp_path)
    assert {str(p.relative_to(tmp_path)) for p in found} == {"a", "deep/b", "broken"}


def test_what_is_no_run_is_said_kindly(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="there is no such run"):
        runs_in(tmp_path / "none")
    with pytest.raises(RunError, match="there is no run in it"):
        runs_in(tmp_path)


def test_the_forward_pass_is_a_line_of_its_extremes(tmp_path: Path) -> None:
    columns = [Column("output_max", "layers.0"), Column("output_max", "layers.1")]
    columns += [Column("attention_entropy", f"layers.{i}.attention") for i in range(2)]
    with begin(tmp_path) as writer:
        writer.layout(Layout(tuple(columns), kind="forward"))
        for step in range(1, 5):
            write(writer, step)
            writer.append(step, [step, 10 * step, 0.5, 0.25], kind="forward")
    with Run.open(tmp_path) as run:
        said = text(render(SnapshotReader(run).now(9)), 160)
    assert "forward pass" in said
    assert "largest output 40 (1)" in " ".join(said.split())
    assert "lowest entropy of attention 0.25 (1.attention)" in " ".join(said.split())
