"""The multi-power law against a sum written out in float64, and fits against laws that made the curves."""

import math

import numpy as np
import pytest

from equipoise.theory import LossLaw, fit_loss

LAW = LossLaw(2.0, 0.5, 0.6, 30.0, 10.0, 0.5, 0.5)
T = 1000
STEPS = np.arange(1, T + 1)
CONSTANT = np.full(T, 0.01)
LINEAR = 0.01 * (1 - (STEPS - 1) / T)
COSINE = 0.005 * (1 + np.cos(np.pi * STEPS / T)) * np.minimum(1, STEPS / 50)
WSD = np.where(STEPS <= 700, 0.01, 0.01 * (T + 1 - STEPS) / 300)
TWO_STEPS = np.where(STEPS <= 500, 0.01, np.where(STEPS <= 800, 0.003, 0.001))
SCHEDULES = {"constant": CONSTANT, "linear": LINEAR, "cosine": COSINE, "wsd": WSD, "two steps": TWO_STEPS}


def written_out(law: LossLaw, lr: np.ndarray, t: int) -> float:
    """[luo2025], one term after the other; steps count from 1."""
    rates = [math.nan, *map(float, lr)]
    top = 1 + int(np.argmax(lr))
    gained = 0.0
    for k in range(top + 1, t + 1):
        acted = sum(rates[i] for i in range(k, t + 1))
        x = law.reach * rates[k] ** -law.lr_power * acted if rates[k] > 0 else 0.0
        gained += (rates[k - 1] - rates[k]) * (1 - (1 + x) ** -law.gain_power)
    return law.least + law.scale * sum(rates[1 : t + 1]) ** -law.power - law.gain * gained


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_law_is_the_sum_written_out(name: str) -> None:
    lr = SCHEDULES[name]
    at = [1, 60, 501, 720, T]
    assert LAW.loss(lr, at) == pytest.approx([written_out(LAW, lr, t) for t in at], rel=1e-12)
    to_zero = np.concatenate((lr[:-1], [0.0]))
    assert float(LAW.loss(to_zero)[0]) == pytest.approx(written_out(LAW, to_zero, T), rel=1e-12)


def noisy(lr: np.ndarray, noise: float, seed: int) -> np.ndarray:
    return LAW.loss(lr, STEPS) * np.exp(noise * np.random.default_rng(seed).standard_normal(T))


@pytest.mark.parametrize(("noise", "off"), [(0.0, 0.004), (0.03, 0.01)])
def test_a_fit_forecasts_schedules_that_it_has_not_seen(noise: float, off: float) -> None:
    law = fit_loss(
        [(SCHEDULES[n], noisy(SCHEDULES[n], noise, i)) for i, n in enumerate(("constant", "linear", "cosine"))]
    )
    assert law.misfit < 0.003 + noise / 2
    for name in ("wsd", "two steps"):
        truth = written_out(LAW, SCHEDULES[name], T)
        forecast, error = law.forecast(SCHEDULES[name])
        assert forecast == pytest.approx(truth, rel=off)
        assert 0 < error < 0.1 * truth
    assert len(law.left_out) == len(law.others) == 3


def test_numbers_come_back_in_the_units_of_the_curves() -> None:
    law = fit_loss([(lr, LAW.loss(lr, STEPS)) for lr in SCHEDULES.values()])
    assert (law.least, law.power) == pytest.approx((LAW.least, LAW.power), rel=0.02)
    assert law.scale == pytest.approx(LAW.scale, rel=0.05)
    assert law.gain == pytest.approx(LAW.gain, rel=0.2)


def test_losses_may_be_measured_now_and_then() -> None:
    some = np.where(STEPS % 20 == 0, 1.0, np.nan)
    full = fit_loss([(lr, LAW.loss(lr, STEPS)) for lr in (CONSTANT, LINEAR)])
    few = fit_loss([(lr, LAW.loss(lr, STEPS) * some) for lr in (CONSTANT, LINEAR)])
    assert few.forecast(WSD)[0] == pytest.approx(full.forecast(WSD)[0], rel=0.003)
    assert len(full.left_out) == 1  # a constant lr alone says nothing of falls


@pytest.mark.parametrize(
    ("curves", "said"),
    [
        ([(LINEAR, LINEAR)], "at least two"),
        ([(CONSTANT, CONSTANT)] * 2, "whose lr falls"),
        ([(LINEAR, LINEAR + 1), (LINEAR, np.ones(3))], r"losses of curves\[1\]: must be 1000"),
        ([(LINEAR, LINEAR + 1), (-LINEAR, LINEAR)], r"lr of curves\[1\]"),
        ([(LINEAR, LINEAR + 1), (LINEAR, np.full(T, np.nan))], "at least 5 places"),
    ],
)
def test_what_cannot_be_fitted_is_said(curves: list[tuple[np.ndarray, np.ndarray]], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fit_loss(curves)


def test_steps_beyond_the_run_are_refused() -> None:
    with pytest.raises(ValueError, match="1 to 1000"):
        LAW.loss(LINEAR, [0])
