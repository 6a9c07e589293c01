"""What claims need to be tested, by hand."""

import math
from typing import Any

import pytest

from equipoise.lab.experiments import Done
from equipoise.lab.experiments.shared.checks import (
    as_many,
    baseline,
    fair,
    inside,
    learnt,
    on_validation,
    relaxed,
)
from equipoise.lab.experiments.shared.sweep import best, by_setting, seeds
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial

BIGRAM = {"name": "bigram", "loss": 2.0}


def trials(lr: float, loss: float, *, known: Any = None, **metrics: float) -> list[Done]:
    """Two seeds with these numbers."""
    given = {"test_loss": loss, **metrics}
    measured = {"baseline": BIGRAM if known is None else known}
    return [Done(Result(trial, "finished", metrics=given), measured) for trial in seeds([Trial(lr=lr)], 2)]


def test_learnt_is_by_the_better_of_what_is_compared() -> None:
    assert learnt(trials(0.1, 3.0), trials(0.2, 1.9)).passed
    poor = learnt(trials(0.1, 3.0), trials(0.2, 2.1))
    assert not poor.passed
    assert poor.reason == "test loss below the bigram's: 2.1, needs at most 2"
    assert not learnt(trials(0.1, 1.0, known={})).passed, "nothing is known of the data"
    assert not learnt([]).passed
    diverged = [Done(Result(Trial(), "diverged"), {})]
    assert not learnt(diverged).passed


def test_baselines_by_the_kind_of_data() -> None:
    text = baseline(Trial(data="text", data_options={"size": 20_000, "length": 32}))
    assert text["name"] == "bigram"
    assert 2.5 < text["loss"] < 4
    digits = baseline(Trial(data="digits"))
    assert digits == {"name": "frequency", "loss": pytest.approx(math.log(10), abs=0.05)}
    assert baseline(Trial(data="noise", data_options={"inputs": 4, "outputs": 4})) == {}
    assert baseline(Trial(data="cifar", data_options={"path": "nowhere"})) == {}, "data of another machine"


def test_a_best_lr_at_an_end_of_the_grid() -> None:
    sweep = by_setting([d for lr in (0.1, 0.2, 0.4) for d in trials(lr, lr)], ["lr"])
    assert inside(sweep[0.2,], sweep, "SGD").passed
    for lr in (0.1, 0.4):
        assert not inside(sweep[lr,], sweep, "SGD").passed
    assert inside(sweep[0.1,], sweep, "SGD").reason == "best lr of SGD inside the grid: 0.1, needs between 0.1 and 0.4"
    assert not inside([], sweep, "SGD").passed
    assert not inside([], {}, "SGD").passed


def test_the_reference_has_as_many_settings() -> None:
    assert as_many(3, 3, of="the baseline").passed
    assert not as_many(1, 4, of="the baseline").passed


def test_settings_are_chosen_on_the_validation_part_where_there_is_one() -> None:
    good, lucky = trials(0.1, 1.0, validation_loss=0.5), trials(0.2, 0.9, validation_loss=0.6)
    settings = by_setting([*good, *lucky], ["lr"])
    assert best(settings, "test_loss", lowest=True) == (0.1,)
    assert on_validation([*good, *lucky], "test_loss").passed
    without = by_setting([*trials(0.1, 1.0), *lucky], ["lr"])
    assert best(without, "test_loss", lowest=True) == (0.2,), "not all have one"
    assert not on_validation([*trials(0.1, 1.0), *lucky], "test_loss").passed


def test_a_fair_comparison() -> None:
    grid = {lr: trials(lr, 1 + abs(lr - 0.2), validation_loss=1.0) for lr in (0.1, 0.2, 0.4)}
    sweep = {(lr,): own for lr, own in grid.items()}
    fine = fair("test_loss", "a", {"a": (grid[0.2], sweep), "b": (grid[0.2], sweep)})
    assert len(fine) == 5
    assert all(check.passed for check in fine)
    few = fair("test_loss", "a", {"a": (grid[0.2], {(0.2,): grid[0.2]}), "b": (grid[0.2], sweep)})
    assert [check.name for check in few if not check.passed] == [
        "best lr of a inside the grid", "settings that a could choose from",
    ]  # fmt: skip
    trained = fair("train_loss", "a", {"a": (grid[0.2], sweep), "b": (grid[0.2], sweep)})
    assert "chosen on the validation part" not in [check.name for check in trained]


def test_initial_norms_are_forgotten() -> None:
    trial = Trial(lr=0.01, weight_decay=0.1, steps=2000)
    check = relaxed(trial, 0.5)
    assert check.measured == pytest.approx(math.exp(-2))
    assert check.passed
    assert not relaxed(trial.vary({"steps": 1000}), 0.5).passed
    assert relaxed(trial.vary({"steps": 200}), 0.5, momentum=0.9).measured == pytest.approx(math.exp(-4))
