"""Sweeps: what is tried, that processes give what one process gives, and that no death stops them."""

import json
import multiprocessing as mp
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from tests import forked
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.lab.train import processes
from equipoise.lab.train.run_experiment import run_experiment, write_figure
from equipoise.lab.train.sweep import Range, Sweep, gather, tabulate, varied
from equipoise.lab.train.trial import Trial

QUICK = Trial(lr=3e-3, steps=20, model_options={"width": 8})


def test_a_grid_and_draws() -> None:
    sweep = Sweep(QUICK, grid={"lr": [0.1, 0.2], "model_options.width": [4, 8]}, seeds=3)
    trials = sweep.trials()
    assert [(t.lr, t.model_options["width"], t.seed) for t in trials] == [
        (lr, width, seed) for lr in (0.1, 0.2) for width in (4, 8) for seed in (0, 1, 2)
    ]
    assert len({t.key for t in trials}) == 12
    ranges = {"weight_decay": Range(1e-3, 1.0), "warmup": Range(0, 5, "int"), "final": Range(0, 0.5, "uniform")}
    few, many = (Sweep(QUICK, ranges=ranges, draws=n, seeds=1).trials() for n in (50, 400))
    assert many[:50] == few, "more draws only add"
    assert Sweep(QUICK, ranges=ranges, draws=50, seeds=1, dice=1).trials() != few
    assert {t.warmup for t in many} == {0, 1, 2, 3, 4, 5}
    assert all(1e-3 <= t.weight_decay <= 1 and 0 <= t.final <= 0.5 for t in many)
    below = sum(t.weight_decay < 10**-1.5 for t in many)
    assert 160 < below < 240, "half of them in the lower half of the logarithm"
    assert varied(many) == ["weight_decay", "warmup", "final"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "must have a field in one of the two"),
        ({"grid": {"lr": []}}, "must have a value"),
        ({"grid": {"seed": [1]}}, "seed: must not be swept over"),
        ({"grid": {"lr": [1]}, "ranges": {"lr": Range(1, 2)}}, "lr: must be in the grid or be drawn, not both"),
    ],
)
def test_what_is_wrong_with_a_sweep(given: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sweep(QUICK, **given)
    with pytest.raises(ValueError, match="must be KIND:LOW:HIGH"):
        Range.read("log:1")
    with pytest.raises(ValueError, match=r"low = 0\.0: must be"):
        Range.read("log:0:1")
    with pytest.raises(ValueError, match="field = 'rate': must be one of"):
        Sweep(QUICK, grid={"rate": [1]}).trials()


def test_processes_give_what_one_gives_and_nothing_stops_the_rest(tmp_path: Path) -> None:
    base = QUICK.vary({"optimizer": "sgdm"})
    sweep = Sweep(base, grid={"lr": [0.01, 1e30], "model_options.depth": [1, -1]}, seeds=2, metric="test_accuracy")
    here, _ = run_experiment(sweep, tmp_path / "here")
    killed: list[int] = []

    def kill(number: int, count: int, trial: Trial, step: int) -> None:
        if not killed and trial.lr < 1 and trial.model_options["depth"] == 1:
            killed.append(step)
            for child in mp.active_children():
                os.kill(child.pid or 0, signal.SIGKILL)

    there, done = run_experiment(sweep, tmp_path / "there", workers=2, report=kill)
    assert killed
    assert there.rows == here.rows
    ends = {(r["lr"], r["model_options.depth"]): (r["finished"], r["diverged"], r["failed"]) for r in there.rows}
    assert ends == {(0.01, 1): (2, 0, 0), (1e30, 1): (0, 2, 0), (0.01, -1): (0, 0, 2), (1e30, -1): (0, 0, 2)}
    assert list(there.rows[0].values())[:2] == [0.01, 1], "the best first"
    assert tabulate([d.result for d in gather(tmp_path / "there")]).curves["metric"] == "test_loss"
    assert len(gather(tmp_path / "there")) == 8
    assert any("depth = -1" in d.result.error for d in done)
    figure = Figure()
    sweep.draw(there, figure)
    assert [
        [np.asarray(line.get_xdata())[0] for line in axis.lines if line.get_marker() == "x"] for axis in figure.axes
    ] == [
        [r["lr"] for r in there.rows if not r["finished"]],
        [r["model_options.depth"] for r in there.rows if not r["finished"]],
    ]
    write_figure(sweep, there, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_ends_with_1_where_a_trial_failed(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("steps = 20\n[model_options]\nwidth = 8\n")
    given = ["lab", "sweep", str(tmp_path / "base.toml"), "--seeds", "1", "--workers", "1", "-o", str(tmp_path / "out")]
    result = CliRunner().invoke(app, [*given, "--grid", "model_options.depth=1,-1"])
    assert result.exit_code == 1
    assert result.stderr.count("failed: ") == 1
    assert "depth = -1" in result.stderr
    assert "finished" in result.stdout, "the table is there all the same"
    assert CliRunner().invoke(app, [*given, "--grid", "model_options.depth=1"]).exit_code == 0


def test_a_trial_that_kills_its_process_is_given_up(tmp_path: Path) -> None:
    seen: set[int] = set()

    def kill(number: int, count: int, trial: Trial, step: int) -> None:
        for child in mp.active_children():
            seen.add(child.pid or 0)
            os.kill(child.pid or 0, signal.SIGKILL)

    # Longer than its killer needs to hear of it.
    (result,) = processes.run_trials([QUICK.vary({"steps": 20_000})], tmp_path, workers=1, report=kill)
    assert result.status == "failed"
    assert result.error == "its process died 3 times, at last with exit code -9"
    assert len(seen) == 3, "none is started for nothing"


def test_a_sweep_that_is_stopped_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("steps = 1000000\n[model_options]\nwidth = 8\n")
    # A shell's background ignores Ctrl-C, and so does what it starts.
    heed = "from signal import *; signal(SIGINT, default_int_handler); from equipoise.cli import main; main()"
    command = [sys.executable, "-c", heed, "lab", "sweep", "base.toml", "--grid", "lr=1e-3", "--seeds", "1"]
    sweep = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        late = time.monotonic() + 600
        while not list(tmp_path.glob("lab/sweep-base/*/run")):
            assert sweep.poll() is None
            assert time.monotonic() < late
            time.sleep(0.05)
        os.killpg(sweep.pid, signal.SIGINT)  # as a terminal does: workers get it, too
        _, said = sweep.communicate(timeout=300)
    finally:
        sweep.kill()
        sweep.communicate()
    assert sweep.returncode == 130
    assert (
        said.splitlines()[-1]
        == "equipoise: stopped; run the same command to continue with the trials in lab/sweep-base"
    )


def test_a_killed_sweep_goes_on(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text("steps = 800\nlr = 3e-3\n[model_options]\nwidth = 8\n")
    cli = ("-m", "equipoise.cli", "lab")
    command = (*cli, "sweep", "base.toml", "--grid", "lr=1e-3,1e-2", "--seeds", 2, "--workers", 2, "--json")
    folder = tmp_path / "lab" / "sweep-base"
    first = forked.start(*command, cwd=tmp_path)
    while not (early := list(folder.glob("*/result.json"))):
        assert first.poll() is None
        time.sleep(0.02)
    first.kill()
    first.wait()
    assert len(early) < 4, "it was killed in the middle"
    table = forked.run(*cli, "table", folder, cwd=tmp_path)
    assert table.returncode == 0, table.stderr
    assert "finished" in table.stdout
    stamps = {p: p.stat().st_mtime_ns for p in folder.glob("*/result.json")}
    again = forked.run(*command, cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert [row["finished"] for row in json.loads(again.stdout)["rows"]] == [2, 2]
    assert {p: p.stat().st_mtime_ns for p in stamps} == stamps, "what is done is not done again"
