"""On a real Ray of two workers: what processes give, though a worker is killed in the middle."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("ray", reason="Ray is not installed: pip install 'equipoise[ray]'")

from equipoise.board.listing import Runs
from equipoise.lab.train import on_ray, processes
from equipoise.lab.train.result import Result
from equipoise.lab.train.run_experiment import run_experiment
from equipoise.lab.train.sweep import Sweep
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run

BASE = Trial(lr=3e-3, steps=400, model_options={"width": 8})


def ancestors(pid: int) -> list[int]:
    found = []
    while pid > 1:
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
        found.append(pid)
    return found


def working() -> list[int]:
    """Ray's workers of this process that train."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(b"ray::train_there"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return [pid for pid in found if os.getpid() in ancestors(pid)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")  # Ray's own
def test_ray_gives_what_processes_give_though_a_worker_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    sweep = Sweep(BASE, grid={"lr": [1e-3, 1e-2]}, seeds=2)
    killed: list[int] = []

    def kill() -> None:
        while not list((tmp_path / "ray").glob("*/run")) or not (pids := working()):
            time.sleep(0.02)
        os.kill(pids[0], signal.SIGKILL)
        killed.append(pids[0])

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    outcome, done = run_experiment(sweep, tmp_path / "ray", workers=2, on="ray")
    assert killed, "a worker was killed in the middle"
    assert [d.result.status for d in done] == ["finished"] * 4, [d.result.error for d in done]
    assert len(outcome.rows) == 2
    local = processes.run_trials(sweep.trials(), tmp_path / "processes", workers=2)
    assert [d.result.weights for d in done] == [r.weights for r in local]
    for one in done:
        with Run.open(tmp_path / "ray" / one.trial.key / "run") as run:
            assert len(run.series("train_loss").values) == 20
    assert not (tmp_path / "ray" / on_ray.TOKEN).exists()
    assert Runs(tmp_path / "ray").names() == sorted(f"{d.trial.key}/run" for d in done), "as the board lists them"


def test_what_a_node_without_the_directory_trained_is_sent(tmp_path: Path) -> None:
    trial = BASE.vary({"steps": 20})
    result, packed = on_ray.train_there(trial.to_json(), str(tmp_path / "elsewhere"), "token", 1, None)
    assert packed is not None
    assert not (tmp_path / "elsewhere").exists()
    on_ray.unpack(packed, tmp_path / "here" / trial.key)
    assert Result.read(tmp_path / "here" / trial.key) == result
    with Run.open(tmp_path / "here" / trial.key / "run") as run:
        assert len(run.series("train_loss").values) == 1
