"""Baselines without a network: measured once, by the data alone, and beside every table about images and texts."""

from pathlib import Path

import pytest

from equipoise.lab.data import load
from equipoise.lab.data.baselines import bigram
from equipoise.lab.experiments import catalogue, find
from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.report.page import section
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads import WORKLOADS, floors

TEXT, IMAGES = {"unigram", "bigram"}, {"frequency", "linear"}


def test_they_are_measured_once_and_not_of_what_a_seed_makes(tmp_path: Path) -> None:
    short = Trial(data="phonemes", data_options={"size": 400})
    told: list[str] = []
    trials = [short, short.vary({"lr": 0.5}), Trial(data="digits")]
    found = floors.measure(tmp_path, told.append, trials=trials)
    assert found == floors.measure(tmp_path, told.append, trials=trials)
    assert told == [floors.data_key(short)]
    assert found == floors.read(tmp_path)
    assert found[told[0]]["bigram"] == pytest.approx(bigram(load("phonemes", size=400))["test_loss"], rel=1e-5)


def test_all_that_workloads_and_medium_experiments_are_about_is_stored() -> None:
    trials = [t for name in catalogue() for t in find(name).trials("medium")]
    stored = floors.read()
    for trial in (*(w.trial for w in WORKLOADS.values()), *trials):
        if trial.data in floors.NATURAL:
            assert stored[floors.data_key(trial)].keys() in (TEXT, IMAGES), trial.data


def test_a_page_has_them_beside_its_table() -> None:
    trial = next(t for t in find("betas").trials("medium") if t.model == "gpt")
    done = Done(Result(trial, "finished", trial.steps, {}, 1.0, date="2026-11-19"))
    text = section(Outcome([{"a": 1}]), [done, done], "betas", "medium")
    assert text.count("| bigram | enwik8 | 2.7") == text.count("| unigram | enwik8 | 3.") == 1
