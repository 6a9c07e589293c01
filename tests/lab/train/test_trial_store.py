"""Trials as lines: what is kept says the same as the run, and nothing is trained twice, wherever it was trained."""

import json
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from tests import forked

from equipoise.lab.experiments import Experiment, Outcome, find
from equipoise.lab.experiments.shared.sweep import Turning, stat
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.train import run_experiment as conducting
from equipoise.lab.train.result import Result
from equipoise.lab.train.run_experiment import run_experiment
from equipoise.lab.train.trial import Trial
from equipoise.lab.train.trial_store import (
    STORED,
    TRIALS,
    TrialStore,
    config,
    keep_trials,
    pack,
    read_lines,
    stored_trials,
    unpack,
)

QUICK = Trial(lr=3e-3, steps=20, model_options={"width": 8}, watch={"every": 4, "neurons": 2, "spectra": 0})


class Own(Experiment):
    """A few seeds, and how they rotate."""

    name, source, about = "own", "me", "Does it rotate?"
    statements = {"turns": "me: it does", "never": "me: nobody knows"}  # noqa: RUF012

    def trials(self, preset: str) -> list[Trial]:
        return [QUICK.vary({"seed": seed}) for seed in range(3)]

    def measure(self, result, run):
        return {"turning": Turning.measure(run)}

    def analyse(self, done):
        turned = Stat.of([Turning.of(d).mean for d in done])
        open_ = Claim("never", "me", "accuracy", stat(done, "test_accuracy").mean, stat(done, "test_accuracy"), "above")
        return Outcome([{"rotation": turned}], [Claim("turns", "me", "rotation", 0.0, turned, "above"), open_])

    def draw(self, outcome, figure):
        figure.subplots()


def result(seed: int = 0, **changes) -> Result:
    given = {
        "metrics": {"train_loss": 0.1, "test_loss": 0.2},
        "tests": [(20, {"test_loss": 0.2})],
        "date": "2026-11-18",
    }
    return Result(QUICK.vary({"seed": seed}), "finished", 20, **{**given, **changes})


def test_a_line_says_what_was_stored(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / TRIALS)
    measured = {"steps": np.arange(3.0), "deep": {"table": np.ones((2, 3)) / 3}, "number": np.float64(0.1), "word": "a"}
    given = store.add(result(), measured, version=2)
    assert given.result == result(), "one test is what the metrics say"
    assert given.measured["number"] == 0.1
    assert given.measured["deep"]["table"].shape == (2, 3)
    np.testing.assert_allclose(given.measured["deep"]["table"], 1 / 3, rtol=1e-7)
    again = TrialStore(tmp_path / "other", [tmp_path / TRIALS])
    assert again.get(QUICK, 2).result == given.result  # type: ignore[union-attr]
    assert again.get(QUICK, 1) is None, "another version was measured otherwise"
    assert again.get(QUICK.vary({"seed": 1}), 2) is None
    (line,) = read_lines(tmp_path / TRIALS)
    assert line["config"] == {
        "lr": 3e-3, "steps": 20, "model_options.width": 8, "watch.every": 4, "watch.neurons": 2, "watch.spectra": 0,
    }  # fmt: skip
    assert len(json.dumps(line)) < 1500, "small enough to be committed"
    many = [(10, {"test_loss": 0.3}), (20, {"test_loss": 0.2})]
    assert store.add(result(tests=many), {}, 3).result.tests == many
    assert config(QUICK.vary({"schedule_options": {"curve": [0.1] * 200}}))["schedule_options.curve"][:7] == "sha256:"


def test_a_line_that_was_cut_off_is_none_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    file = tmp_path / TRIALS
    store = TrialStore(file)
    store.add(result(0), {}, 1)
    store.add(result(1), {}, 1)
    whole = file.read_text()
    file.write_text(whole[:-40])
    assert len(list(read_lines(file))) == 1
    file.write_text(whole.replace('"status"', '"state"', 1))
    with pytest.raises(ValueError, match=r"line 1 is no trial \(has no status\)"):
        TrialStore(file)
    assert not list(read_lines(tmp_path / "nowhere"))


def test_kept_trials_merge_sorted_by_key(tmp_path: Path) -> None:
    for number, numbers in enumerate(((0, 1), (1, 2))):
        store = TrialStore(tmp_path / f"{number}.jsonl")
        for seed in numbers:
            store.add(result(seed), {}, 1)
        keep_trials("own", tmp_path / f"{number}.jsonl", tmp_path)
    keys = [line["key"] for line in read_lines(stored_trials("own", tmp_path))]
    assert keys == sorted(QUICK.vary({"seed": seed}).key for seed in range(3))


def test_packing() -> None:
    value = {"a": [1, 2.5, "x", None, True], "b": {"c": np.array([1.5])}}
    again = unpack(json.loads(json.dumps(pack(value))))
    assert again["a"] == value["a"]
    assert again["b"]["c"].dtype == np.float64


def test_nothing_is_trained_twice_and_runs_are_not_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    here = conducting._here

    def counted(trials, *rest):
        trained.extend(t.seed for t in trials)
        return here(trials, *rest)

    monkeypatch.setattr(conducting, "_here", counted)
    first, _ = run_experiment(Own(), tmp_path / "a", seeds=3)
    assert trained == [0, 1, 2]
    second, done = run_experiment(Own(), tmp_path / "a", seeds=5)
    assert trained == [0, 1, 2, 3, 4], "only the new seeds: the claim was not decided"
    assert len(done) == 5
    elsewhere = tmp_path / "another machine"
    elsewhere.mkdir()
    (elsewhere / TRIALS).write_text((tmp_path / "a" / TRIALS).read_text())
    again, _ = run_experiment(Own(), elsewhere, seeds=5)
    assert len(trained) == 5
    assert again == second, "the same table and claims without any run"
    assert first.rows != second.rows
    assert not list(elsewhere.glob("*/run"))
    stored = json.loads((elsewhere / "outcome.json").read_text())
    assert (stored["seeds"], stored["ended"]) == (5, "seeds spent")
    monkeypatch.setattr(Own, "version", 2)
    run_experiment(Own(), tmp_path / "a", seeds=3)
    assert sorted(trained) == [0, 0, 1, 1, 2, 2, 3, 4], "measured anew; train gives the results that lie there"


def test_stored_trials_of_the_package_come_first(tmp_path: Path) -> None:
    """What was trained at `small` is read from the package: no training, and the same claims as are stored."""
    names = sorted(file.stem for file in (STORED / "trials").glob("*.jsonl"))
    assert names
    for name in names:
        stored = json.loads((STORED / f"{name}.json").read_text())

        def never(*_: object, **__: object) -> None:
            raise AssertionError("it is stored")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conducting, "_here", never)
            outcome, _ = run_experiment(find(name), tmp_path / name, preset=stored["preset"], seeds=stored["seeds"])
        made = [claim.to_dict() for claim in outcome.claims]
        assert [c["name"] for c in made] == [c["name"] for c in stored["claims"]]
        for mine, theirs in zip(made, stored["claims"], strict=True):
            assert mine["measured"]["mean"] == pytest.approx(theirs["measured"]["mean"], rel=1e-9, abs=1e-12), name
            assert mine["verdict"] == theirs["verdict"]


SCRIPT = """
from tests.lab.train.test_trial_store import Own
from equipoise.lab.train.run_experiment import run_experiment

if __name__ == "__main__":
    run_experiment(Own(), "lab", seeds=8, workers=2)
"""


def test_rounds_go_on_after_a_kill(tmp_path: Path) -> None:
    """Killed in the second round or later; the same call gives what an undisturbed one gives."""
    (tmp_path / "go.py").write_text(SCRIPT)
    process = forked.start("go.py", cwd=tmp_path)
    late = time.monotonic() + 300
    while len(list(tmp_path.glob("lab/*/result.json"))) < 4:
        assert process.poll() is None
        assert time.monotonic() < late
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    before = {p: p.stat().st_mtime_ns for p in tmp_path.glob("lab/*/result.json")}
    assert len(before) < 8
    again = forked.run("go.py", cwd=tmp_path)
    assert again.returncode == 0
    stored = json.loads((tmp_path / "lab" / "outcome.json").read_text())
    assert stored["seeds"] == 8
    assert len({line["key"] for line in read_lines(tmp_path / "lab" / TRIALS)}) == 8
    assert {p: p.stat().st_mtime_ns for p in before} == before, "what was done is not done again"


@pytest.mark.parametrize("file", sorted((STORED / "trials").glob("*.jsonl")), ids=lambda file: file.stem)
def test_stored_keys_are_those_that_their_configs_have_today(file: Path) -> None:
    """A field more, another default or another rounding would make every stored trial one that was never trained."""
    whole = [line for line in read_lines(file) if "sha256:" not in json.dumps(line["config"])]
    assert whole
    for line in whole[:: max(1, len(whole) // 20)]:
        assert Trial().vary(line["config"]).key == line["key"]
