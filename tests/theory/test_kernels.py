"""The autocorrelations behind the walk, against Monte Carlo estimates of their definitions."""

import numpy as np
import pytest
from tests.theory.simulated_walks import Direction, polar

from equipoise.theory.directions import autocorrelation, direction
from equipoise.theory.kernels import Filter, adam_factors, matrix_sign_kernel, mean_square_ratio, sign_kernel


@pytest.mark.parametrize(
    ("optimizer", "betas"),
    [
        ("adamw", (0.9, 0.95)),
        ("adamw", (0.95, 0.9)),
        ("adamw", (0.9, 0.999)),
        ("adam_nested", (0.9, 0.95)),
        ("rmsprop", (0.9, 0.9)),
        ("signsgdm", (0.9, 0.999)),
        ("lion", (0.9, 0.98)),
    ],
)
def test_autocorrelation_is_that_of_the_direction(optimizer: str, betas: tuple[float, float]) -> None:
    """R(k) from a long run of the optimizer itself on white noise, in float64."""
    rng = np.random.default_rng(0)
    width, burn, steps, lags = 4000, int(6 / (1 - betas[1])), 1500, 30
    run = Direction(optimizer, beta1=betas[0], beta2=betas[1], nesterov=False, bias_correction=True)
    past = [run(rng.standard_normal(width)) for _ in range(burn + steps)][burn:]
    u = np.array(past)
    measured = np.array([np.mean(u[: steps - k] * u[k:]) for k in range(lags)])
    R = autocorrelation(direction(optimizer, size=1, betas=betas))
    expected = np.zeros(lags)
    expected[: len(R)] = R[:lags]
    np.testing.assert_allclose(measured, expected, atol=0.01 * measured[0])


@pytest.mark.parametrize("beta2", [0.8, 0.95, 0.99])
def test_mean_square_ratio(beta2: float) -> None:
    rng = np.random.default_rng(1)
    depth = int(30 / (1 - beta2))
    w = (1 - beta2) * beta2 ** np.arange(depth)
    ratios = []
    for _ in range(40):
        z2 = rng.standard_normal((500, depth)) ** 2
        ratios.append(np.mean(z2[:, [0, 1, 5, 30]] / (z2 @ w)[:, None], axis=0))
    spread = np.std(ratios, axis=0) / np.sqrt(len(ratios))
    got = mean_square_ratio(beta2, (0.0, 1.0, 5.0, 30.0))
    assert (np.abs(got - np.mean(ratios, axis=0)) < 4 * spread).all()


def test_long_averages_cost_little_and_change_little() -> None:
    """At a few hundred ages and lags, against the plain double sum."""
    beta1, beta2, lags = 0.99, 0.95, 400
    depth = 1500
    ratio = mean_square_ratio(beta2, tuple(float(i) for i in range(depth + lags)))
    weight = (1 - beta1**2) * beta1 ** (2.0 * np.arange(depth))
    plain = [
        (weight * np.sqrt(ratio[:depth] * ratio[k : k + depth])).sum()
        * np.exp(-(1 - beta2) / (1 + beta2) * (1 - beta2**k) / 2)
        for k in range(lags)
    ]
    np.testing.assert_allclose(adam_factors(beta1, beta2, lags), plain, rtol=1e-4)
    assert np.isfinite(adam_factors(0.99999, 0.999999, 1_000_000)).all()


def test_endless_averages_are_refused() -> None:
    with pytest.raises(ValueError, match=r"averaging factor = 0\.9999999: must be"):
        autocorrelation(direction("adamw", size=8, betas=(0.9999999, 0.999)))


@pytest.mark.parametrize("shape", [(64, 64), (6, 6), (40, 80), (100, 20)])
def test_matrix_sign_kernel_against_singular_values(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    f, _ = matrix_sign_kernel(*shape)
    samples = 6000 // min(shape) ** 2 + 8
    X, Y = rng.standard_normal((2, samples, *shape))
    U = polar(X)
    for rho in (0.5, 0.9, 0.97):
        V = polar(rho * X + np.sqrt(1 - rho**2) * Y)
        each = np.sum(U * V, axis=(1, 2)) / min(shape)
        spread = each.std() / np.sqrt(samples)
        assert abs(float(f(np.array(rho))) - each.mean()) < 0.008 + 3 * spread


def test_expansions_are_their_functions() -> None:
    rho = np.linspace(0, 0.995, 500)
    for kernel in (sign_kernel(), matrix_sign_kernel(48, 96)[0]):
        np.testing.assert_allclose(rho[:, None] ** kernel.powers @ kernel.weights, kernel(rho), atol=4e-4)


@pytest.mark.parametrize(
    ("taps", "impulse"),
    [
        (Filter.momentum(0.9), 0.1 * 0.9 ** np.arange(400.0)),
        (Filter.momentum(0.9, ema=False), 0.9 ** np.arange(400.0)),
        (Filter.momentum(0.9, nesterov=True), np.r_[0.1 * 1.9, 0.1 * 0.9 ** np.arange(2.0, 401.0)]),
        (Filter.lion(0.9, 0.95), np.r_[0.1, 0.9 * 0.05 * 0.95 ** np.arange(0.0, 399.0)]),
    ],
)
def test_filters_are_their_impulse_responses(taps: Filter, impulse: np.ndarray) -> None:
    auto = np.array([impulse[: len(impulse) - k] @ impulse[k:] for k in range(20)])
    assert taps.power == pytest.approx(auto[0], rel=1e-9)
    assert taps.gain == pytest.approx(impulse.sum(), rel=1e-6)
    np.testing.assert_allclose(taps.correlation(20), auto / auto[0], rtol=1e-6)
