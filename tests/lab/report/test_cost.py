"""What is left to train, and how long it takes, from trials that are stored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.lab.experiments import Done, Experiment, Outcome
from equipoise.lab.report.cost import cost, hours, measured, pace
from equipoise.lab.statistics.rounds import reseeded
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.lab.train.trial_store import TrialStore, keep_trials


class Two(Experiment):
    """Two settings of one network, and one of another."""

    name, source, about = "two", "a test", "What is left?"
    statements = {"a": "a test: nothing"}  # noqa: RUF012

    def trials(self, preset: str) -> list[Trial]:
        base = Trial(data="digits", model="mlp", steps=100)
        found = [base.vary({"lr": lr}) for lr in (0.1, 0.2)]
        found += [base.vary({"model": "resnet"})] if preset == "full" else []
        return [t.vary({"seed": seed}) for t in found for seed in range(3)]

    def analyse(self, done: Sequence[Done]) -> Outcome:
        return Outcome([])

    def draw(self, outcome: Outcome, figure: Any) -> None:
        figure.subplots()


def run_command(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def store(folder: Path, trials: Sequence[Trial], seconds: Sequence[float], version: int = 1) -> None:
    kept = TrialStore(folder / "trials.jsonl")
    for trial, spent in zip(trials, seconds, strict=True):
        kept.add(Result(trial, "finished", trial.steps, {"test_loss": 1.0}, spent), {}, version)
    keep_trials("two", folder / "trials.jsonl", folder)
    pace.cache_clear()


def test_what_is_left_by_hand(tmp_path: Path) -> None:
    """Six trials, two stored: the fastest took 0.02 s a step, and four of 100 steps are left; then nine seeds more."""
    store(tmp_path, Two().trials("medium")[:2], [2.0, 8.0])
    found = cost(Two(), "medium", tmp_path)
    assert (found.trials, found.stored, found.seeds) == (6, 2, 12)
    assert found.seconds == pytest.approx(4 * 100 * 0.02)
    assert found.budget == pytest.approx((4 + 2 * 9) * 100 * 0.02)
    store(tmp_path, [*Two().trials("medium"), *reseeded(Two().trials("medium"), range(3, 12))], [2.0] * 24)
    assert (cost(Two(), "medium", tmp_path).seconds, cost(Two(), "medium", tmp_path).budget) == (0.0, 0.0)


def test_networks_that_are_not_stored_are_not_guessed(tmp_path: Path) -> None:
    store(tmp_path, Two().trials("medium"), [2.0] * 6)
    found = cost(Two(), "full", tmp_path)
    assert found.seconds is None
    assert hours(found.seconds) == "not known"
    known = cost(Two(), "full", tmp_path, measure=True)
    assert known.seconds is not None
    assert known.seconds > 0
    assert measured(Two().trials("full")[-1].vary({"model_options.width": 8})) > 0


def test_trials_of_another_version_of_what_is_measured_are_left(tmp_path: Path) -> None:
    store(tmp_path, Two().trials("medium"), [2.0] * 6, version=7)
    assert cost(Two(), "medium", tmp_path).stored == 0


def test_the_commands(tmp_path: Path) -> None:
    said = run_command("lab", "run", "random-walk", "--preset", "medium", "--dry-run", "--json")
    assert json.loads(said)["trials"] == 27
    assert "random-walk" in run_command("lab", "list")
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    run_command("lab", "cost", str(page))
    text = page.read_text()
    assert text.startswith("# Page\n\n<!-- begin: cost -->\n| experiment | trials |")
    assert "| random-walk | 27 | 27 | 0 |" in text
