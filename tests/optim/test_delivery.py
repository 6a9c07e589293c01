"""Every rotational class turns rows by what was asked, however their gradients go."""

import numpy as np
import pytest
from tests.optim.histories import ANGLE, CLASSES, COLUMNS, HISTORIES, ROWS, STEPS, delivered, extremes

from equipoise import optim

JUMPY = ("Rotational(NAdam)", "Rotational(Adagrad)")
"""Little or nothing of earlier gradients is in a step: a gradient that is by chance a tenth of others turns by less."""


@pytest.mark.parametrize("name", CLASSES)
def test_rotation_is_within_3_percent_at_every_step(name: str) -> None:
    for title, found in delivered(CLASSES[name], HISTORIES).items():
        low, high, _ = extremes(found, HISTORIES[title])
        least = 0.75 if name in JUMPY and title.startswith("interpolated") else 0.97
        assert least < low <= high < 1.03, f"{title}: {low:.3f} to {high:.3f}"


def test_the_papers_tracker_does_not_pass() -> None:
    """What the test above would say of Algorithm 1, whose average of 100 steps lags behind."""

    def paper(params: list) -> optim.RotationalSGDM:
        return optim.RotationalSGDM(params, lr=1e-3, angle=ANGLE, reference="paper")

    some = {name: HISTORIES[name] for name in ("grows, e in 20", "shrinks, e in 20", "silent 101–200")}
    grown, shrunk, silent = (extremes(x, some[n]) for n, x in delivered(paper, some).items())
    assert grown[1] > 1.3
    assert shrunk[0] < 0.01
    assert silent[1] > 1.1


@pytest.mark.parametrize("name", ["RotationalSGDM", "RotationalAdamW", "Rotational(NAdam)"])
def test_what_is_left_of_old_gradients_is_not_made_as_large_as_a_gradient(name: str) -> None:
    found = delivered(CLASSES[name], {"silent": HISTORIES["silent 101–200"]})["silent"]
    silence = found[100:200]
    assert silence[-30:].max() < 0.5
    assert (np.diff(silence) < 1e-9).all()


def test_histories_are_long_and_wide_enough() -> None:
    assert STEPS > 300
    assert ROWS * COLUMNS >= 1024
