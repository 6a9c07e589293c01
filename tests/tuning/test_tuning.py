"""Searches: what is drawn, what stops, fails, hangs, is killed and goes on, and what errors say."""

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from equipoise.planner import Setting, Tensor, suggest_setting
from equipoise.tuning import Around, Ranges, Trial, Tuned, tune

optuna = pytest.importorskip("optuna")


def quiet(line: str) -> None:
    pass


def around(**more: object) -> Around:
    fields = {"steps": 1000, "tensors": (Tensor(shape=(64, 64), init_rms=0.1),), "batch_size": 8, "dataset_size": 8000}
    return Around(suggest_setting(Setting.make(**(fields | more))))  # type: ignore[arg-type]


def bowl(trial: Trial) -> float:
    shrink = trial.lr * trial.weight_decay * 1000
    return math.log(trial.lr / 2e-3) ** 2 + 0.1 * math.log(shrink / 1.0) ** 2


def test_a_search_begins_with_the_suggestion() -> None:
    space, seen = around(), list[dict[str, float]]()

    def train(trial: Trial) -> float:
        seen.append(dict(trial.values))
        return bowl(trial)

    tune(train, space=space, trials=3, seed=0, tell=quiet)
    assert seen[0] == pytest.approx(
        {"lr": space.suggestion.lr, "weight_decay": space.suggestion.weight_decay}, rel=0.02
    )
    assert len({s["lr"] for s in seen}) == 3


def test_coordinates_are_lr_and_decay_in_other_words() -> None:
    space = around()
    for step, memory in ((0.01, 0.5), (0.1, 20.0)):
        values = space.values({"step": step, "memory": memory})
        assert values["lr"] / space.suggestion.lr == pytest.approx(step / 0.04)
        assert values["lr"] * values["weight_decay"] * 1000 == pytest.approx(1 / memory)


def test_a_search_finds_the_bottom_and_its_study_is_optunas(tmp_path: Path) -> None:
    found = tune(bowl, space=around(), trials=40, seed=1, store=tmp_path / "a.db", tell=quiet)
    assert found.loss < 0.3
    assert found.best["lr"] == pytest.approx(2e-3, rel=0.8)
    study = optuna.load_study(study_name="tune", storage=f"sqlite:///{tmp_path / 'a.db'}")
    assert len(study.trials) == 40
    assert study.best_value == found.loss


def test_raising_and_nan_are_failed_trials_with_their_message() -> None:
    def train(trial: Trial) -> float:
        if trial.number == 1:
            raise RuntimeError("out of memory")
        if trial.number == 2:
            return float("nan")
        if trial.number == 3:
            trial.report(7, float("inf"))
        if trial.number == 4:
            return "low"  # type: ignore[return-value]
        return trial.x

    found = tune(train, space={"x": (1.0, 2.0)}, trials=7, seed=0, tell=quiet)
    assert set(found.failed) == {1, 2, 3, 4}
    assert found.failed[1] == "RuntimeError: out of memory"
    assert found.failed[2] == "the loss is nan at the end"
    assert found.failed[3] == "the loss is inf at step 7"
    assert "train returned 'low'" in found.failed[4]
    assert 1 <= found.loss <= 2


def test_a_hopeless_trial_is_stopped() -> None:
    done = list[int]()

    def train(trial: Trial) -> float:
        level = 1.0 if trial.number < 5 else 9.0
        for step in range(10):
            trial.report(step, level + trial.x)
        done.append(trial.number)
        return level + trial.x

    found = tune(train, space={"x": (0.0, 0.1)}, trials=7, seed=0, tell=quiet)
    assert {5, 6} <= set(found.stopped)
    assert not {5, 6} & set(done)
    assert "median" in found.stopped[5]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_trial_that_hangs_or_dies_is_killed() -> None:
    def train(trial: Trial) -> float:
        trial.report(0, 1.0)
        if trial.number == 0:
            time.sleep(600)
        if trial.number == 1:
            os._exit(3)
        if trial.number == 2:
            raise KeyError("data")
        return trial.x

    found = tune(train, space={"x": (1.0, 2.0)}, trials=4, seed=0, timeout=5, tell=quiet)
    assert found.failed[0] == "TimeoutError: no end after 5 s"
    assert "exit code 3" in found.failed[1]
    assert "KeyError" in found.failed[2]
    assert found.trials[3].state.name == "COMPLETE"


SCRIPT = """
import time
from pathlib import Path
space = {"x": (1.0, 2.0), "kind": ["a", "b"]}
def train(trial):
    with Path("begun").open("a") as file:
        file.write(f"{trial.x!r}\\n")
    if len(Path("begun").read_text().split()) == 3 and not Path("again").exists():
        time.sleep(600)
    return trial.x
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_command_goes_on_after_it_was_killed(tmp_path: Path, how: signal.Signals) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [
        Path(sys.executable).with_name("equipoise"),
        "tune",
        "train.py",
        "--trials",
        "6",
        "--seed",
        "0",
        "--json",
    ]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    begun = tmp_path / "begun"
    while not begun.exists() or len(begun.read_text().split()) < 3:
        assert running.poll() is None, running.communicate()
        time.sleep(0.1)
    running.send_signal(how)
    running.communicate()
    assert running.returncode != 0
    (tmp_path / "again").write_text("")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["trials"] == 6
    xs = begun.read_text().split()
    assert xs[2] == xs[3], "what was running is drawn again"
    assert found["best"]["loss"] == min(float(x) for x in xs)


def test_trials_that_others_run_are_left_to_them(tmp_path: Path) -> None:
    """Another process of this machine, and another machine; then the same process when it is gone."""
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    store = tmp_path / "a.db"
    study = optuna.create_study(study_name="tune", storage=f"sqlite:///{store}")
    for owner in (f"{socket.gethostname()}:{other.pid}", "far-away:1"):
        drawn = study.ask({"x": optuna.distributions.FloatDistribution(1.0, 2.0)})
        drawn.set_user_attr("owner", owner)
    found = tune(lambda t: t.x, space={"x": (1.0, 2.0)}, trials=1, seed=0, store=store, tell=quiet)
    assert [t.state.name for t in found.study.trials] == ["RUNNING", "RUNNING", "COMPLETE"]
    other.communicate(b"\n")
    found = tune(lambda t: t.x, space={"x": (1.0, 2.0)}, trials=3, seed=0, store=store, tell=quiet)
    assert [t.state.name for t in found.study.trials] == ["FAIL", "RUNNING", "COMPLETE", "COMPLETE"]
    assert found.study.trials[3].params == found.study.trials[0].params


def test_a_journal_is_a_store_too(tmp_path: Path) -> None:
    for total in (2, 5):
        found = tune(lambda t: t.x, space={"x": (1.0, 2.0)}, trials=total, seed=0, store=tmp_path / "a.log", tell=quiet)
        assert len(found.trials) == total


def test_lines_say_how_far_it_is() -> None:
    lines = list[str]()
    tune(lambda t: t.x, space={"x": (1.0, 2.0)}, trials=2, seed=0, tell=lines.append)
    assert [line.split(":")[0] for line in lines] == ["1/2", "2/2"]
    assert "best" in lines[-1]


@pytest.mark.parametrize(
    ("space", "said"),
    [
        (3, "must be a suggestion of eq.suggest, or ranges by name"),
        ({}, "or ranges by name"),
        ({"lr": (1.0, 0.1)}, r"space\['lr'\] = \(1.0, 0.1\): must be \(low, high\)"),
        ({"lr": (0.1, float("nan"))}, "must be"),
        ({"a b": (0.1, 1.0)}, "must be a name"),
        ({"norm": []}, "or a list of choices"),
    ],
)
def test_wrong_spaces(space: object, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        tune(lambda t: 0.0, space=space, tell=quiet)


def test_other_errors_say_what_is_allowed(tmp_path: Path) -> None:
    space = {"x": (1.0, 2.0)}
    with pytest.raises(ValueError, match="must be a function"):
        tune(3, space=space)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"must end in \.db or \.log"):
        tune(lambda t: 0.0, space=space, store=tmp_path / "a.csv")
    with pytest.raises(ValueError, match="trials = 0"):
        tune(lambda t: 0.0, space=space, trials=0)
    tune(lambda t: t.x, space=space, trials=1, store=tmp_path / "a.db", tell=quiet)
    with pytest.raises(ValueError, match="has a study of x, and space is of y"):
        tune(lambda t: t.y, space={"y": (1.0, 2.0)}, trials=2, store=tmp_path / "a.db", tell=quiet)
    failed: Tuned = tune(lambda t: t.z, space=space, trials=1, tell=quiet)
    assert failed.loss == math.inf
    with pytest.raises(ValueError, match="no trial has finished: AttributeError: z: must be one of x"):
        _ = failed.best


def test_small_ranges_are_drawn_evenly_and_wide_ones_by_factors() -> None:
    space = Ranges({"lr": (1e-4, 1e-1), "momentum": (0.8, 0.99), "share": (0.0, 1.0)})
    assert [space.log(name) for name in space.axes] == [True, False, False]
