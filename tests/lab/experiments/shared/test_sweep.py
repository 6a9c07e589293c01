"""What sweeps share, by hand."""

import numpy as np
import pytest

from equipoise.lab.data import load
from equipoise.lab.experiments import Done
from equipoise.lab.experiments.shared.sweep import Turning, best, by_setting, gap, seeds
from equipoise.lab.models import gpt, seq2seq
from equipoise.lab.train.optimizers import make
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.theory import stationary


def done(lr: float, values: list[float | None]) -> list[Done]:
    """One trial a seed; None has diverged."""
    found = []
    for trial, value in zip(seeds([Trial(lr=lr)], len(values)), values, strict=True):
        metrics = {} if value is None else {"test_accuracy": value}
        found.append(Done(Result(trial, "diverged" if value is None else "finished", metrics=metrics)))
    return found


def test_the_best_setting_is_one_where_every_seed_finished() -> None:
    low, mid, high = done(0.1, [0.5, 0.7]), done(0.2, [0.8, 0.6]), done(0.3, [0.99, None])
    settings = by_setting([*reversed(low), *mid, *high], ["lr"])
    assert [d.trial.seed for d in settings[0.1,]] == [0, 1]
    assert best(settings, "test_accuracy") == (0.2,)
    assert best(settings, "test_accuracy", lowest=True) == (0.1,)
    assert best({(0.3,): high}, "test_accuracy") is None
    both = gap(mid, low, "test_accuracy")  # 0.3 and -0.1, by seed
    assert both.mean == pytest.approx(0.1)
    assert both.std == pytest.approx(0.4 / 2**0.5)
    assert gap(high, mid, "test_accuracy").count == 1


def test_spread_of_rotation() -> None:
    steps = np.array([1.0, 5.0, 10.0])
    layers = {"a": np.array([9.0, 9.0, 1.0]), "b": np.array([9.0, 9.0, 3.0])}
    neurons = {"a": np.array([1.0, 3.0]), "b": np.array([2.0, 2.0])}
    turning = Turning(steps, layers, neurons, lrs=np.array([0.0, 0.0, 0.1]))
    assert turning.mean == 2.0
    assert turning.over_layers == 0.5  # of 1 and 3
    assert turning.over_neurons == 0.25  # 0.5 and 0
    trial = Trial(optimizer="rotational_adamw", lr=0.1, weight_decay=0.1)
    wanted = stationary("adamw", lr=0.1, weight_decay=0.1, size=1).rotation
    assert turning.over_theory(trial) == pytest.approx(2.0 / wanted), "at the lr of the late steps"


def test_roles_have_options_and_transformers_gains() -> None:
    trial = Trial(
        optimizer="rotational_adamw", lr=0.1, weight_decay=0.1, optimizer_options={"roles": {"gain": {"lr": 0.0}}}
    )
    data = load("text", size=2000, length=16)
    plain, gained = gpt(data), gpt(data, gains=True)
    linear = sum(name.endswith(".weight") and p.ndim == 2 for name, p in plain.named_parameters()) - 2  # embeddings
    assert sum(name.endswith("gain") for name, _ in gained.named_parameters()) == linear
    optimizer, _ = make(trial, gained)
    assert {g["lr"] for g in optimizer.param_groups if g["role"] == "gain"} == {0.0}
    assert {g["lr"] for g in optimizer.param_groups if g["role"] != "gain"} == {0.1}
    pairs = load("phonemes", size=200)
    assert any(name.endswith("gain") for name, _ in seq2seq(pairs, gains=True).named_parameters())
