"""Sweeps that are stopped, killed and gone on with: nothing is trained twice, and nothing that has ended is lost."""

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests import forked
from tests.lab.workloads.synthetic_workloads import WORKLOAD, bowl, ended
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.lab.train import processes
from equipoise.lab.train.result import Report, Result
from equipoise.lab.train.run_trial import run_trial
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads import WORKLOADS, Workload, run, store
from equipoise.lab.workloads.sweep import SHRINKS, grid

TINY = Workload(
    "tiny", "choosing", "text", "seconds",
    Trial(
        data="text", data_options={"size": 40_000, "length": 16, "validation": True}, model="gpt",
        model_options={"depth": 1, "width": 8, "heads": 1}, batch_size=4, steps=20, warmup=2, schedule="cosine",
    ),
    (1e-3, 3e-3), 2000, 3000, 1.0,
)  # fmt: skip

KILLED = """
import sys
from pathlib import Path
from tests.lab.workloads.test_run import TINY
from equipoise.lab.workloads import WORKLOADS, run
WORKLOADS.clear()
WORKLOADS["tiny"] = TINY
run.sweep(["tiny"], Path(sys.argv[1]) / "trials", folder=Path(sys.argv[1]) / "stored")
"""


@pytest.fixture(autouse=True)
def only_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(WORKLOADS):
        monkeypatch.delitem(WORKLOADS, name)
    monkeypatch.setitem(WORKLOADS, "tiny", TINY)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    keys: list[str] = []

    def once(trial: Trial, *args: object, **options: object) -> Result:
        keys.append(trial.key)
        return run_trial(trial, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(run, "run_trial", once)
    return keys


def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys, told = counted(monkeypatch), []
    for _ in range(2):
        failed = run.sweep(
            ["tiny"], tmp_path / "trials", folder=tmp_path / "stored", limit=2,
            tell=lambda one, step, done, left: told.append((one.trial.key, step, left)),
        )  # fmt: skip
        assert failed == []
    assert keys == [t.key for t in grid(TINY, TINY.lrs, SHRINKS)[:4]]
    known = store.read(TINY, tmp_path / "stored")
    assert sorted(known) == sorted(keys)
    assert all(o.validation != o.test and o.seconds > 0 for o in known.values())
    assert list((tmp_path / "trials").iterdir()) == [], "trials that are stored are removed"
    assert [step for key, step, _ in told if key == keys[0]][-1] == 20
    assert told[-1][2] < told[0][2]
    (one,) = run.status(["tiny"], {"tiny": known})
    assert (one.stored, one.open, one.stage) == (4, 2, "coarse")


def test_a_kill_loses_the_running_trial_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = forked.start("-c", KILLED, tmp_path)
    file = tmp_path / "stored" / "tiny.jsonl"
    try:
        until = time.monotonic() + 600
        while not file.exists():
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
    before = store.read(TINY, tmp_path / "stored")
    assert before
    keys = counted(monkeypatch)
    run.sweep(["tiny"], tmp_path / "trials", folder=tmp_path / "stored", limit=1)
    assert len(keys) == 1
    assert keys[0] not in before
    after = store.read(TINY, tmp_path / "stored")
    assert after.items() >= before.items()


def test_several_at_a_time_are_stored_as_they_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def team(trials: list[Trial], place: Path, *, workers: int, report: Report, ended: Any) -> None:
        asked.append(workers)
        for number, trial in enumerate(trials, 1):
            report(number, len(trials), trial, 10)
            ended(run_trial(trial, place, {}))
            assert trial.key in store.read(TINY, tmp_path / "stored"), "at once, not with the last"

    monkeypatch.setattr(processes, "run_trials", team)
    told = []
    run.sweep(
        ["tiny"], tmp_path / "trials", folder=tmp_path / "stored", jobs=2, limit=2,
        tell=lambda one, step, done, left: told.append((step, done, left)),
    )  # fmt: skip
    assert asked == [2]
    assert len(store.read(TINY, tmp_path / "stored")) == 2
    assert told == [(10, 0.5, 5.5), (10, 1.0, 5.0)]


def test_what_fails_is_told_and_not_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Workload("tiny", "choosing", "text", "", TINY.trial.vary({"model": "resnet"}), (1e-3,), 2000, 3000)
    monkeypatch.setitem(WORKLOADS, "tiny", broken)
    failed = run.sweep(["tiny"], tmp_path / "trials", folder=tmp_path / "stored")
    assert len(failed) == len(SHRINKS)
    assert store.read(broken, tmp_path / "stored") == {}


def test_the_file_is_the_same_in_whatever_order_trials_end(tmp_path: Path) -> None:
    some = [ended(t, bowl(3e-3, 0.3)(t)) for t in grid(WORKLOAD, WORKLOAD.lrs, SHRINKS)]
    some.append(ended(WORKLOAD.at(1.0, 0.0), float("inf")))
    for one in some:
        store.add(WORKLOAD, [one], tmp_path / "a")
    store.add(WORKLOAD, reversed(some), tmp_path / "b")
    a, b = ((tmp_path / name / "synthetic.jsonl").read_bytes() for name in "ab")
    assert a == b
    assert store.read(WORKLOAD, tmp_path / "a") == {one.trial.key: one for one in some}
    assert len(a) < 300 * len(some)


def test_a_changed_workload_does_not_take_the_trials_of_the_old_one(tmp_path: Path) -> None:
    store.add(WORKLOAD, [ended(WORKLOAD.trial, 2.0)], tmp_path)
    file = tmp_path / "synthetic.jsonl"
    fields = json.loads(file.read_text())
    file.write_text(json.dumps(fields | {"changes": {"lr": 5.0}}) + "\n")
    with pytest.raises(ValueError, match=r"synthetic\.jsonl, line 1: has the key .* the workload was changed"):
        store.read(WORKLOAD, tmp_path)
    file.write_text("{}\n")
    with pytest.raises(ValueError, match=r"synthetic\.jsonl, line 1: is no stored trial"):
        store.read(WORKLOAD, tmp_path)


def test_data_without_validation_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a part for validation"):
        store.outcome(Result(Trial(), "finished", metrics={"test_loss": 1.0}))


def test_commands(tmp_path: Path) -> None:
    options = ["--stored", str(tmp_path / "stored")]
    done = CliRunner().invoke(
        app, ["lab", "workloads", "sweep", "tiny", "--limit", "1", "-o", str(tmp_path / "trials"), *options]
    )
    assert done.exit_code == 0, done.output
    listed = CliRunner().invoke(app, ["lab", "workloads", "--json", *options])
    row = next(iter(json.loads(listed.stdout)))
    assert (row["stored"], row["open"], row["next"]) == (1, 5, "coarse")
    page = tmp_path / "payoff.md"
    assert CliRunner().invoke(app, ["lab", "workloads", "payoff", str(page), *options]).exit_code == 0
    assert "1 stored trials of 1 workloads" in page.read_text()
    wrong = CliRunner().invoke(app, ["lab", "workloads", "sweep", "none"])
    assert wrong.exit_code != 0
