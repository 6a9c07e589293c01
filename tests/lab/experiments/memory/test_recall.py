"""Recall of facts: what is known of them is found again."""

import numpy as np
import pytest

from equipoise.lab.experiments import Done
from equipoise.lab.experiments.memory.recall import Recall, thirds
from equipoise.lab.train.result import Result
from equipoise.lab.train.schedules import contributions
from equipoise.lab.train.trial import Trial

TRIAL = Trial(data="facts", lr=2e-3, weight_decay=1.5, steps=300, warmup=6, schedule="constant")


def recall(trial: Trial, decay: float) -> Recall:
    """Of a network that forgets as if this were its weight decay; 0.3 nats at most, 2 nats without memory."""
    c = contributions(trial.vary({"weight_decay": 0.0}), extra=decay).weights
    metrics = {"never_loss": 2.0, "never_accuracy": 0.25, "test_loss": 1.0}
    for a in range(0, 300, 20):
        gain = 0.3 * c[a : a + 20].mean() / c.max()
        metrics |= {f"{a + 1}-{a + 20}_loss": 2.0 - gain, f"{a + 1}-{a + 20}_accuracy": 0.25 + gain}
    return Recall.read(Done(Result(trial, "finished", metrics=metrics)))


@pytest.mark.parametrize("decay", [0.0, 1.5, 4.25, 11.0])
def test_the_rate_of_forgetting_is_found(decay: float) -> None:
    found = recall(TRIAL, decay)
    assert found.rate == pytest.approx(decay, abs=0.03)
    assert found.gain == pytest.approx(found.accuracy)
    assert found.windows[0] == (1, 20)
    assert found.middle[-1] == 290.5


def test_what_theory_expects_explains_what_follows_it() -> None:
    plain, more = recall(TRIAL, 1.5), recall(TRIAL, 6.0)
    assert plain.explained(plain.expected()) == pytest.approx(1)
    assert plain.correlation(plain.expected()) == pytest.approx(1)
    assert more.explained(more.expected()) < 0.8 < more.explained(more.expected(4.5))
    assert more.share[2] > plain.share[2] > 1 / 3
    assert thirds(np.array([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])).tolist() == pytest.approx([1 / 6, 1 / 3, 1 / 2])
