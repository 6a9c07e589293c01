"""The forecast of a whole run against simulated walks, the norm budget and the angle against brute force."""

import math
from typing import Any

import numpy as np
import pytest
from tests.theory.simulated_walks import simulate
from tests.theory.walk_cases import Case

from equipoise.theory import Dynamics, _scan, forecast, memory, norm_budget, rotation_angle, stationary


def warmup_cosine(steps: int, warmup: int, peak: float) -> np.ndarray:
    t = np.arange(1, steps + 1)
    tail = 0.1 + 0.45 * (1 + np.cos(np.pi * (t - warmup) / (steps - warmup)))
    return peak * np.where(t <= warmup, t / warmup, tail)


RUNS = [
    *(Case(o, r, beta2=0.999, rows=48) for o in ("adamw", "adam_nested", "sgdm") for r in (9e-4, 5e-2)),
    *(Case(o, r, rows=48) for o in ("rmsprop", "signsgdm", "lion", "ngd") for r in (9e-4, 5e-2)),
    Case("adamw", 5e-3, 0.95, 0.95, rows=48),
    Case("adamw", 5e-3, 0.0, 0.999, rows=48),
    Case("sgdm", 5e-3, coupled=False, rows=48),
    Case("sgdm", 5e-3, nesterov=True, rows=48),
    Case("adamw", 5e-3, decay="corrected", rows=48),
    Case("lion", 5e-3, decay="independent", rows=48),
    Case("adamw", 5e-3, decay="cautious", rows=48),
    Case("adam_l2", 9e-4, beta2=0.999, rows=64),
    Case("adam_l2", 5e-3, beta2=0.999, rows=64),
    Case("muon", 5e-3, nesterov=True, shape=(16, 32), rows=24),
]


@pytest.mark.parametrize("start", [0.25, 3.0], ids=["from below", "from above"])
@pytest.mark.parametrize("case", RUNS, ids=str)
def test_warmup_and_cosine_from_a_wrong_norm(case: Case, start: float) -> None:
    """Norm and rotation within 3 % at every step past the first 20 (Muon: of a short run, its steps are dear)."""
    steps = 400 if case.optimizer == "muon" else 1000
    lr = warmup_cosine(steps, steps // 10, case.lr)
    kwargs = case.arguments()
    init = start * stationary(case.optimizer, lr=case.lr, **kwargs).norm
    f = forecast(case.optimizer, lr=lr, init_norm=init, **kwargs)
    corrected = case.optimizer != "rmsprop"
    walk = simulate(case.optimizer, lr=lr, init_norm=init, rows=case.rows, bias_correction=corrected, seed=2, **kwargs)
    assert np.abs(f.norm / walk.norm - 1)[20:].max() < 0.03
    assert np.abs(f.rotation / walk.rotation - 1)[20:].max() < 0.03
    if not case.is_coupled:
        assert np.abs(f.update / walk.update - 1)[20:].max() < 0.04


@pytest.mark.parametrize("start", [0.01, 0.05, 0.3])
@pytest.mark.parametrize("rate", [5e-4, 1e-2])
@pytest.mark.parametrize(
    ("optimizer", "betas"), [("lion", (0.9, 0.99)), ("lion", (0.95, 0.98)), ("signsgdm", (0.9, 0.9))]
)
def test_cautious_signs_from_far_below(optimizer: str, betas: tuple[float, float], rate: float, start: float) -> None:
    """Norm within 5 % and rotation within 12 % at every step: signs stay for long, and |w| is alike for all weights."""
    steps, kwargs = 500, {"weight_decay": 0.5, "betas": betas, "decay": "cautious"}
    init = start * stationary(optimizer, lr=2 * rate, size=512, **kwargs).norm
    f = forecast(optimizer, lr=2 * rate, steps=steps, size=512, init_norm=init, **kwargs)
    walk = simulate(optimizer, lr=np.full(steps, 2 * rate), shape=(512,), init_norm=init, rows=12, seed=4, **kwargs)
    assert np.abs(f.norm / walk.norm - 1).max() < 0.05
    over = np.convolve(walk.rotation, np.ones(5), "valid") / np.convolve(f.rotation, np.ones(5), "valid")
    assert np.abs(over - 1).max() < 0.12


@pytest.mark.parametrize("corrected", [True, False])
@pytest.mark.parametrize("beta2", [0.95, 0.999])
def test_averages_that_begin_with_the_first_gradient(beta2: float, corrected: bool) -> None:
    """Within 4 % at every step: v is for long what one gradient happened to be."""
    lr, wd, steps, beta1, rng = 0.01, 0.5, 300, 0.9, np.random.default_rng(0)
    w = rng.standard_normal((8, 4096)) * 0.1
    known = Dynamics("adamw", betas=(beta1, beta2), bias_correction=corrected, zero_init=False)
    f = known.forecast(4096, lr=lr, weight_decay=wd, steps=steps, init_norm=6.4)
    m = v = 0.0
    for t in range(1, steps + 1):
        norm = np.linalg.norm(w, axis=1, keepdims=True)
        g = rng.standard_normal(w.shape) / 64 / norm
        m, v = (g, g * g) if t == 1 else (beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g)
        u = m / np.sqrt(v) * (math.sqrt(1 - beta2**t) / (1 - beta1**t) if corrected else 1.0)
        w, old = (1 - lr * wd) * w - lr * u, w
        now = np.linalg.norm(w, axis=1)
        theta = np.arccos((w * old).sum(1) / now / norm[:, 0]).mean()
        assert math.sqrt((now**2).mean()) == pytest.approx(f.norm[t - 1], rel=0.02)
        assert theta == pytest.approx(f.rotation[t - 1], rel=0.04)
        assert lr * math.sqrt((u * u).sum(1).mean()) == pytest.approx(f.update[t - 1], rel=0.04)


@pytest.mark.parametrize("optimizer", ["adamw", "adam_nested", "adam_l2", "rmsprop", "sgdm", "signsgdm", "lion", "ngd"])
@pytest.mark.parametrize("rate", [1e-3, 5e-2])
def test_a_long_forecast_ends_in_the_stationary_state(optimizer: str, rate: float) -> None:
    kwargs = Case(optimizer, rate, beta2=0.95).arguments()
    s = stationary(optimizer, lr=rate / 0.1, **kwargs)
    f = forecast(optimizer, lr=rate / 0.1, steps=int(15 / rate) + 300, init_norm=2 * s.norm, **kwargs)
    tolerance = 0.01 if optimizer == "adam_l2" else 2e-3
    assert f.norm[-1] == pytest.approx(s.norm, rel=tolerance)
    assert f.rotation[-1] == pytest.approx(s.rotation, rel=2 * tolerance)
    assert f.update[-1] == pytest.approx(s.update, rel=2 * tolerance)


def test_without_decay_and_momentum_the_norm_grows_by_pythagoras() -> None:
    f = forecast("ngd", lr=0.1, weight_decay=0.0, steps=50, init_norm=2.0)
    np.testing.assert_allclose(f.norm**2, 4 + np.arange(1, 51) * 0.01, rtol=1e-13)


def test_tiny_rotations_keep_their_digits() -> None:
    f = forecast("ngd", lr=1e-12, weight_decay=0.0, steps=3, init_norm=1.0)
    np.testing.assert_allclose(f.rotation, 1e-12, rtol=1e-12)


def test_radial_part_acts_as_decay_and_scale_as_size() -> None:
    base: dict[str, Any] = {"lr": 1e-2, "steps": 3000, "size": 512, "init_norm": 3.0, "betas": (0.9, 0.95)}
    radial = forecast("adamw", weight_decay=0.1, radial=0.05, **base)
    more = forecast("adamw", weight_decay=0.15, **base)
    np.testing.assert_allclose(radial.norm, more.norm, rtol=1e-12)
    for optimizer in ("adamw", "lion"):
        half = forecast(optimizer, weight_decay=0.1, scale=0.5, **base)
        smaller = forecast(optimizer, weight_decay=0.1, **{**base, "size": 256})
        np.testing.assert_allclose(half.norm[-1], smaller.norm[-1], rtol=1e-6)


def test_effective_lr_and_memory_belong_to_the_run() -> None:
    f = forecast("adamw", lr=[0.1, 0.2, 0.3], weight_decay=0.1, size=4, init_norm=2.0)
    before = [2.0, f.norm[0], f.norm[1]]
    np.testing.assert_allclose(f.effective_lr, f.update / before)
    m = memory(lr=[0.1, 0.2, 0.3], weight_decay=0.1)
    np.testing.assert_array_equal(f.memory.weights, m.weights)


def arguments_of(optimizer: str, decay: str) -> dict:
    return {"weight_decay": 0.1, "size": 64, "init_norm": 2.0, "decay": decay, "betas": (0.9, 0.99)}


@pytest.mark.parametrize(
    ("optimizer", "decay"),
    [("adamw", "lr"), ("adamw", "cautious"), ("adam_l2", "lr"), ("sgdm", "lr"), ("lion", "lr"), ("lion", "cautious")],
)
def test_compiled_and_plain_recursions_agree(optimizer: str, decay: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    lr = warmup_cosine(3000, 100, 1e-2)
    plain = forecast(optimizer, lr=lr, **arguments_of(optimizer, decay))
    monkeypatch.setattr(_scan, "LONG", 0)
    compiled = forecast(optimizer, lr=lr, **arguments_of(optimizer, decay))
    for name in ("norm", "rotation", "update"):
        np.testing.assert_allclose(getattr(compiled, name), getattr(plain, name), rtol=1e-11)


def test_works_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    lr = warmup_cosine(500, 50, 1e-2)
    usual = forecast("adamw", lr=lr, **arguments_of("adamw", "lr"))
    monkeypatch.setitem(__import__("sys").modules, "numba", None)
    monkeypatch.setattr(_scan, "LONG", 0)
    _scan.compiled.cache_clear()
    try:
        assert _scan.compiled() is None
        np.testing.assert_array_equal(forecast("adamw", lr=lr, **arguments_of("adamw", "lr")).norm, usual.norm)
    finally:
        _scan.compiled.cache_clear()


def test_norm_budget_sums_to_the_change() -> None:
    rng = np.random.default_rng(0)
    w, u = rng.standard_normal((2, 50))
    eta, a = 0.3, 0.8
    new = a * w - eta * u
    parts = norm_budget(
        norm=float(np.linalg.norm(w)), update_norm=float(np.linalg.norm(u)), inner=float(w @ u), lr=eta, kept=a
    )
    assert sum(parts) == pytest.approx(float(new @ new - w @ w), rel=1e-12)


@pytest.mark.parametrize("angle", [1e-6, 1e-4, 1e-2, 1.0, 2.5])
def test_rotation_angle_in_single_precision(angle: float) -> None:
    """Within 1e-3 down to 1e-6 rad from float32 weights, where an arc cosine of float32 has no digit left."""
    rng = np.random.default_rng(1)
    w, x = rng.standard_normal((2, 4096))
    x -= w * (x @ w) / (w @ w)
    x *= np.linalg.norm(w) / np.linalg.norm(x)
    change = ((math.cos(angle) - 1) * w + math.sin(angle) * x).astype(np.float32)
    w32 = w.astype(np.float32)
    norm = np.linalg.norm(w32)
    got = rotation_angle(norm=norm, change_norm=np.linalg.norm(change), radial=np.dot(change, w32) / norm)
    assert float(got) == pytest.approx(angle, rel=1e-3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"lr": [0.1, 0.2]}, "lr has 2 values: must be one number, or one for each of the 3 steps"),
        ({"lr": [[0.1] * 3]}, "lr has shape"),
        ({"lr": [0.1, math.nan, 0.1]}, r"lr\[1\] = nan: must be a finite number ≥ 0"),
        ({"lr": [0.1, 0.1, -0.1]}, r"lr\[2\] = -0.1"),
        ({"weight_decay": [0.1, 0.1, 20.0]}, "lr · weight_decay = 2 at step 3"),
        ({"steps": None}, "steps = None: must be a whole number ≥ 1 when lr and weight_decay are single numbers"),
        ({"steps": 0}, "steps = 0: must be a whole number ≥ 1"),
        ({"steps": 2.5}, "steps = 2.5: must be a whole number ≥ 1"),
        ({"init_norm": 0.0}, "init_norm = 0.0: must be a finite number > 0"),
        ({"scale": -1}, "scale = -1: must be a finite number ≥ 0"),
    ],
)
def test_bad_input_is_named(change: dict, message: str) -> None:
    good = {"lr": 0.1, "weight_decay": 0.1, "steps": 3, "size": 8, "init_norm": 1.0}
    with pytest.raises(ValueError, match=message):
        forecast("adamw", **(good | change))
