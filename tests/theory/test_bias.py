"""Bias correction as a schedule against torch's Adam, finite differences, and the four first steps by hand."""

import math

import numpy as np
import pytest
import torch

from equipoise.theory import bias_factor, bias_slope, bias_turning_point, eps_factor, first_step

PAIRS = [(0.9, 0.999), (0.95, 0.95), (0.9, 0.95), (0.0, 0.99), (0.99, 0.9), (0.5, 0.0)]


@pytest.mark.parametrize("betas", PAIRS)
def test_factor_is_its_definition(betas: tuple[float, float]) -> None:
    for t in (1, 2, 7, 100, 5000):
        expected = math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)
        assert float(bias_factor(t, betas)) == pytest.approx(expected, rel=1e-12)


def test_published_figures() -> None:
    rho = bias_factor(np.arange(1, 3000))
    assert rho[0] == pytest.approx(0.316, abs=5e-4)
    assert int(rho.argmin()) + 1 == 12
    assert rho.min() == pytest.approx(0.152, abs=5e-4)
    assert abs(int(np.argmax(rho > 0.9)) + 1 - 1660) < 5


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.8, 0.99)])
def test_adam_without_correction_on_this_schedule_is_adam(betas: tuple[float, float]) -> None:
    """Exactly, ε included, against torch.optim.Adam in float64."""
    rng = np.random.default_rng(0)
    grads = rng.standard_normal((40, 6))
    lr, eps = 0.01, 1e-2
    p = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([p], lr=lr, betas=betas, eps=eps)
    w, m, v = np.zeros(6), np.zeros(6), np.zeros(6)
    for t, g in enumerate(grads, start=1):
        p.grad = torch.from_numpy(g)
        adam.step()
        m = betas[0] * m + (1 - betas[0]) * g
        v = betas[1] * v + (1 - betas[1]) * g * g
        w -= lr * bias_factor(t, betas) * m / (np.sqrt(v) + eps * eps_factor(t, betas))
        np.testing.assert_allclose(w, p.detach().numpy(), rtol=1e-12)


@pytest.mark.parametrize("betas", PAIRS)
def test_slope_is_the_derivative(betas: tuple[float, float]) -> None:
    t, h = np.array([1.5, 4.0, 30.0, 400.0]), 1e-5
    numeric = (bias_factor(t + h, betas) - bias_factor(t - h, betas)) / (2 * h)
    np.testing.assert_allclose(bias_slope(t, betas), numeric, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("betas", PAIRS)
def test_turning_point_is_the_minimum(betas: tuple[float, float]) -> None:
    t = np.linspace(1, 400, 400_000)
    rho = bias_factor(t, betas)
    lowest = float(t[rho.argmin()])
    turn = bias_turning_point(betas)
    if turn is None:
        assert lowest == 1.0 or rho.argmin() == rho.argmax() or rho[-1] <= rho.min() * (1 + 1e-12)
    else:
        assert turn == pytest.approx(lowest, abs=0.01)


@pytest.mark.parametrize("zero_init", [True, False])
@pytest.mark.parametrize("correct", [True, False])
def test_first_steps_by_hand(zero_init: bool, correct: bool) -> None:
    b1, b2, g = 0.9, 0.999, 0.37
    m = (1 - b1) * g + (0 if zero_init else b1 * g)
    v = (1 - b2) * g * g + (0 if zero_init else b2 * g * g)
    if correct:
        m, v = m / (1 - b1), v / (1 - b2)
    got = first_step((b1, b2), zero_init=zero_init, bias_correction=correct)
    assert got == pytest.approx(m / math.sqrt(v), rel=1e-12)


@pytest.mark.parametrize("t", [0, -3, math.nan, [1, 0]])
def test_steps_start_at_one(t: object) -> None:
    with pytest.raises(ValueError, match="must be > 0"):
        bias_factor(t)  # type: ignore[arg-type]


def test_bad_betas_are_named() -> None:
    with pytest.raises(ValueError, match=r"betas\[1\] = 1: must be a finite number in \[0, 1\)"):
        bias_factor(1, (0.9, 1))
