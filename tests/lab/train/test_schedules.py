"""Schedules of trials: what was asked for is what batches contribute, and what the optimizer gets."""

import numpy as np
import pytest

from equipoise.lab import models
from equipoise.lab.data import load
from equipoise.lab.train import optimizers
from equipoise.lab.train.schedules import contributions, shapes
from equipoise.lab.train.trial import Trial

PLAIN = Trial(
    lr=0.01, weight_decay=2.0, steps=90, warmup=10, optimizer_options={"betas": (0.0, 0.999)},
    model_options={"width": 8},
)  # fmt: skip


def by_hand(lr: np.ndarray, decay: np.ndarray) -> np.ndarray:
    """Every update pushed through all later steps."""
    weights = np.eye(len(lr))
    total = np.zeros(len(lr))
    for t, (eta, lam) in enumerate(zip(lr, decay, strict=True)):
        total = (1 - eta * lam) * total + eta * weights[t]
    return total


@pytest.mark.parametrize("schedule", ["equal_memory", "equal_memory_tied"])
def test_every_batch_counts_the_same(schedule: str) -> None:
    trial = PLAIN.vary({"schedule": schedule})
    lr, decay = shapes(trial)
    factor = np.ones(90) if decay is None else decay.values(90)
    c = by_hand(trial.lr * lr.values(90), trial.weight_decay * factor)
    assert c[10:] == pytest.approx(c[-1], rel=1e-9)
    assert contributions(trial).weights == pytest.approx(c, rel=1e-9)
    assert (decay is None) == (schedule == "equal_memory")


def test_a_curriculum_counts_as_its_parts() -> None:
    trial = PLAIN.vary({"schedule": "curriculum", "schedule_options": {"parts": (1, 3, 2, 1), "first": 0.5}})
    lr, _ = shapes(trial)
    assert lr(11) == pytest.approx(0.5)
    c = contributions(trial).weights[10:].reshape(4, 20)
    assert c / c[0, 0] == pytest.approx(np.repeat([[1.0], [3.0], [2.0], [1.0]], 20, 1), rel=1e-9)


def test_extra_forgetting_is_designed_for() -> None:
    trial = PLAIN.vary({"schedule": "equal_memory", "schedule_options": {"extra": 5.0}})
    c = contributions(trial, extra=5.0).weights
    assert c[10:] == pytest.approx(c[-1], rel=1e-9)
    assert contributions(trial).weights[10] > 1.5 * contributions(trial).weights[-1]


def test_the_optimizer_gets_lr_and_decay_and_gains_do_not_decay() -> None:
    trial = PLAIN.vary({"schedule": "equal_memory_tied"})
    model = models.make("mlp", load("digits"), 0, **trial.model_options)
    optimizer, schedule = optimizers.make(trial, model)
    lr, _ = shapes(trial)
    for t in range(1, 91):
        for group in optimizer.param_groups:
            decays = 0.0 if group["role"] in ("bias", "gain") else trial.weight_decay
            assert group["lr"] == pytest.approx(trial.lr * lr(t))
            assert group["weight_decay"] == pytest.approx(decays * lr(t))
        optimizer.step()
        schedule.step()


def test_wrong_options_are_named() -> None:
    with pytest.raises(ValueError, match="must have parts"):
        shapes(PLAIN.vary({"schedule": "curriculum"}))
    with pytest.raises(ValueError, match="parts"):
        shapes(PLAIN.vary({"schedule": "equal_memory_tied", "schedule_options": {"parts": (1, 2)}}))
    with pytest.raises(ValueError, match="warmup = 90: must be < steps = 90"):
        shapes(PLAIN.vary({"schedule": "equal_memory", "warmup": 90}))
