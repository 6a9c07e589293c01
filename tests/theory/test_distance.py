"""Distance from the start against simulated walks and steady gradients, in float64."""

import numpy as np
import pytest
from tests.theory.simulated_walks import Direction

from equipoise.theory import distance, forecast, steady_update, travel_bound

OPTIMIZERS = {
    "adamw": (0.9, 0.99),
    "lion": (0.9, 0.99),
    "signsgdm": (0.9, 0.99),
    "rmsprop": (0.0, 0.99),
    "sgdm": (0.9, 0.99),
    "ngd": (0.0, 0.99),
}


def walk(name: str, *, lr: np.ndarray, wd: float, size: int, start: float, steady: bool, rows: int = 8) -> np.ndarray:
    """RMS over rows of ‖w_t − w_0‖ at each step; gradients are fresh noise orthogonal to w, or never change."""
    rng = np.random.default_rng(0)
    first = rng.standard_normal((rows, size))
    first *= start / np.linalg.norm(first, axis=1, keepdims=True)
    w, same = first.copy(), rng.standard_normal((rows, size))
    direction = Direction(name, beta1=OPTIMIZERS[name][0], beta2=OPTIMIZERS[name][1], nesterov=False,
                          bias_correction=steady or name != "rmsprop")  # fmt: skip
    found = []
    for eta in lr:
        g = same if steady else rng.standard_normal((rows, size))
        norm = np.linalg.norm(w, axis=1, keepdims=True)
        if not steady:
            g = g - (g * w).sum(1, keepdims=True) / norm**2 * w
        w = (1 - eta * wd) * w - eta * direction(g / np.sqrt(size) / (1.0 if steady else norm))
        found.append(np.sqrt(np.mean(np.sum((w - first) ** 2, 1))))
    return np.array(found)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("wd", [0.0, 0.5])
def test_distance_is_that_of_a_simulated_walk(name: str, wd: float) -> None:
    size, start = 256, 2.0
    lr = np.linspace(1.0, 0.1, 300) * {"sgdm": 0.02, "ngd": 0.02}.get(name, 3e-3)
    seen = walk(name, lr=lr, wd=wd, size=size, start=start, steady=False)
    f = forecast(name, lr=lr, weight_decay=wd, size=size, init_norm=start, betas=OPTIMIZERS[name],
                 coupled=False if name == "sgdm" else None)  # fmt: skip
    np.testing.assert_allclose(distance(f)[99::100], seen[99::100], rtol=0.04)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steady_gradients_go_as_far_as_the_bound_says(name: str) -> None:
    size, start = 64, 2.0
    lr = np.full(400, 1e-3)
    seen = walk(name, lr=lr, wd=0.02, size=size, start=start, steady=True)[-1]
    long = steady_update(name, size=size, betas=OPTIMIZERS[name])
    bound = travel_bound(start, np.full(len(lr), long), lr=lr, weight_decay=0.02)
    assert 0.9 < seen / bound < 1.02


def test_what_decay_takes_is_kept_apart_where_momentum_magnifies_it() -> None:
    """Coupled L2 with zero gradients moves w by 1 − P of what momentum makes of it."""
    w, m, lr, wd, alpha = 1.0, 0.0, 0.01, 0.01, 0.9
    for _ in range(3000):
        m = alpha * m + wd * w
        w -= lr * m
    f = forecast("sgdm", lr=lr, weight_decay=wd, steps=3000, size=4, init_norm=1.0, momentum=alpha, grad_norm=1e-9)
    kept = np.full(3000, np.exp(-lr * wd / (1 - alpha)))
    assert distance(f, kept=kept)[-1] == pytest.approx(1 - w, rel=0.02)
