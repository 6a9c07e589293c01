"""Memory against brute force and autograd; inverse design round trips; [memory-article]'s Eq. 16 and 17."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from equipoise.theory import (
    design_average,
    design_lr,
    design_lr_tied,
    design_weight_decay,
    ema_weights,
    memory,
    travel_bound,
    unroll,
)

T = 1000


def schedules(seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rng.uniform(1e-3, 0.1, T), rng.uniform(0, 0.5, T)


@pytest.mark.parametrize(("beta", "correct"), [(0.0, False), (0.9, False), (0.9, True), (0.95, True)])
def test_contributions_are_the_gradients_of_the_recursion(beta: float, correct: bool) -> None:
    """Autograd through w ← aw − ηm̂ in float64 gives every contribution; agreement to 1e-12."""
    lr, wd = schedules(0)
    g = torch.zeros(T, dtype=torch.float64, requires_grad=True)
    w0 = torch.ones((), dtype=torch.float64, requires_grad=True)
    w, m = w0, torch.zeros((), dtype=torch.float64)
    for t in range(T):
        m = beta * m + (1 - beta) * g[t]
        w = (1 - lr[t] * wd[t]) * w - lr[t] * (m / (1 - beta ** (t + 1)) if correct else m)
    by_g, by_w0 = torch.autograd.grad(w, (g, w0))
    got = memory(lr=lr, weight_decay=wd, momentum=beta, bias_correction=correct)
    np.testing.assert_allclose(got.weights, -by_g.numpy(), rtol=1e-12)
    assert got.init_share == pytest.approx(by_w0.item(), rel=1e-12)


@pytest.mark.parametrize("decay", ["lr", "independent", "corrected"])
def test_brute_force_products(decay: str) -> None:
    lr, wd = schedules(1)
    a = {"lr": 1 - lr * wd, "independent": 1 - wd, "corrected": 1 - wd * lr**2 / lr.max()}[decay]
    got = memory(lr=lr, weight_decay=wd, decay=decay)
    brute = np.array([lr[j] * math.prod(a[j + 1 :]) for j in range(T)])
    np.testing.assert_allclose(got.weights, brute, rtol=1e-12)
    assert got.init_share == pytest.approx(math.prod(a), rel=1e-12)
    assert got.effective_steps == pytest.approx(brute.sum() ** 2 / (brute**2).sum(), rel=1e-12)


def test_no_overflow_in_long_runs() -> None:
    m = memory(lr=0.5, weight_decay=1.0, steps=100_000)
    assert np.isfinite(m.weights).all()
    assert m.weights.sum() == pytest.approx(1.0)
    assert m.init_share == 0.0


@given(
    arrays(np.float64, 40, elements=st.floats(1e-4, 0.9)),
    st.floats(1e-3, 1.0),
)
def test_sum_rule(lr: np.ndarray, wd: float) -> None:
    m = memory(lr=lr, weight_decay=wd)
    assert wd * m.weights.sum() == pytest.approx(1 - m.init_share, rel=1e-9, abs=1e-12)


def test_figures() -> None:
    m = memory(lr=3e-3, weight_decay=0.1, steps=1000)
    assert m.init_share == pytest.approx(0.7407848779, abs=5e-11)
    t = np.arange(1, 1001)
    lr = 0.01 * np.where(t <= 100, t / 100, 0.1 + 0.45 * (1 + np.cos(np.pi * (t - 100) / 900)))
    m = memory(lr=lr, weight_decay=1.0)
    assert m.init_share == pytest.approx(0.004209359, abs=5e-10)
    assert m.effective_steps == pytest.approx(689.97, abs=5e-3)


def test_period_counts_decay_and_not_the_peak() -> None:
    assert memory(lr=1e-3, weight_decay=0.1, steps=30_000).period == pytest.approx(1e4)
    assert memory(lr=1e-3, weight_decay=0.1, steps=10).period == pytest.approx(1e4)
    assert memory(lr=1e-3, weight_decay=0.0, steps=10).period == math.inf
    lr = np.concatenate([np.full(500, 0.1), np.full(100, 0.001)])
    m = memory(lr=lr, weight_decay=0.1)
    assert m.period == pytest.approx(100 + (1 - 100 * 1e-4) / 0.01)
    assert m.period_to(0.5) == pytest.approx(100 + (math.log(2) - 100 * 1e-4) / 0.01)


def test_ages_parts_and_epochs() -> None:
    m = memory(lr=0.1, weight_decay=0.2, steps=250)
    c = m.weights
    assert m.parts(10).sum() == pytest.approx(1)
    np.testing.assert_allclose(m.parts(5), c.reshape(5, 50).sum(1) / c.sum())
    np.testing.assert_allclose(m.per_epoch(100), [c[:100].sum(), c[100:200].sum(), c[200:].sum()] / c.sum())
    np.testing.assert_allclose(
        m.per_batch(100), (c[:100] + c[100:200] + np.pad(c[200:], (0, 50))) / c.sum(), rtol=1e-12
    )
    half = float(m.age_quantile(0.5))
    newest = c[::-1] / c.sum()
    assert newest[: math.floor(half)].sum() <= 0.5 <= newest[: math.ceil(half)].sum()
    assert m.mean_age == pytest.approx((np.arange(1, 251) * newest).sum())
    with pytest.raises(ValueError, match=r"quantile = 1\.5"):
        m.age_quantile(1.5)


def test_bias_correction_raises_the_first_gradients_and_momentum_lowers_the_last() -> None:
    m = memory(lr=1e-3, weight_decay=0.0, steps=1000, momentum=0.9, bias_correction=True)
    middle = np.median(m.weights)
    assert m.weights.max() / middle == pytest.approx(3, rel=0.15)
    assert m.weights[-1] / middle == pytest.approx(0.1, rel=1e-6)


def test_eq_16_has_equal_contributions() -> None:
    lr = design_lr(np.ones(T), weight_decay=0.3, lr_first=0.1)
    np.testing.assert_allclose(1 / lr, 10 + 0.3 * np.arange(T), rtol=1e-14)
    c = memory(lr=lr, weight_decay=0.3).weights
    assert np.abs(c / c[0] - 1).max() < 1e-14


def test_eq_17_exactly_and_as_printed() -> None:
    lr, wd = design_lr_tied(np.ones(T), lr_first=0.1, weight_decay_first=0.1)
    np.testing.assert_allclose(wd / lr, 1.0)
    c = memory(lr=lr, weight_decay=wd).weights
    assert np.abs(c / c[0] - 1).max() < 1e-13
    alpha = 1.0
    np.testing.assert_allclose(lr[1:], (-1 + np.sqrt(1 + 4 * alpha * lr[:-1] ** 2)) / (2 * alpha * lr[:-1]), rtol=1e-9)
    printed = 0.1 / np.sqrt(2 * 0.01 * np.arange(T) + 1)
    spread = memory(lr=printed, weight_decay=printed).weights
    assert 1e-3 < spread.max() / spread.min() - 1 < 4e-3


profiles = arrays(np.float64, 30, elements=st.floats(0.1, 10.0))


@given(profiles, arrays(np.float64, 30, elements=st.floats(0, 0.9)), st.floats(1e-3, 1.0))
def test_lr_by_design_has_the_wanted_memory(weights: np.ndarray, wd: np.ndarray, first: float) -> None:
    c = memory(lr=design_lr(weights, weight_decay=wd, lr_first=first), weight_decay=wd).weights
    np.testing.assert_allclose(c / c[0], weights / weights[0], rtol=1e-11)


@given(profiles, st.floats(0.01, 0.9))
def test_tied_design_has_the_wanted_memory(weights: np.ndarray, first: float) -> None:
    lr, wd = design_lr_tied(weights, lr_first=first, weight_decay_first=0.5)
    c = memory(lr=lr, weight_decay=wd).weights
    np.testing.assert_allclose(c / c[0], weights / weights[0], rtol=1e-11)


@given(profiles)
def test_weight_decay_by_design_has_the_wanted_memory(weights: np.ndarray) -> None:
    rising = np.sort(weights)
    wd = design_weight_decay(rising, lr=0.5)
    assert (wd >= 0).all()
    c = memory(lr=0.5, weight_decay=wd).weights
    np.testing.assert_allclose(c / c[0], rising / rising[0], rtol=1e-11)


def test_impossible_design_is_explained() -> None:
    with pytest.raises(ValueError, match=r"at step 3: .*< 0; the ratio weights/lr must not fall: raise weights\[2\]"):
        design_weight_decay([1.0, 2.0, 1.0], lr=0.1)
    suggested = design_weight_decay([1.0, 2.0, 2.0], lr=0.1)
    assert suggested[2] == 0


def test_unrolled_weights_are_the_recursion() -> None:
    rng = np.random.default_rng(3)
    s, w0 = rng.standard_normal((50, 4)), rng.standard_normal(4)
    lr, wd = rng.uniform(0, 0.5, 50), rng.uniform(0, 1, 50)
    w = w0.copy()
    for t in range(50):
        w = (1 - lr[t] * wd[t]) * w - lr[t] * s[t]
    np.testing.assert_allclose(unroll(w0, s, lr=lr, weight_decay=wd), w, rtol=1e-12, atol=1e-14)
    bound = travel_bound(float(np.linalg.norm(w0)), np.linalg.norm(s, axis=1), lr=lr, weight_decay=wd)
    assert np.linalg.norm(w - w0) <= bound


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: memory(lr=0.0, weight_decay=0.1, steps=3), "lr = 0 at every step"),
        (lambda: memory(lr=0.1, weight_decay=0.1), "steps = None"),
        (lambda: memory(lr=[], weight_decay=0.1), "steps|lr has 0 values"),
        (lambda: memory(lr=1.0, weight_decay=1.0, steps=2), "lr · weight_decay = 1 at step 1"),
        (lambda: memory(lr=1.0, weight_decay=0.1, steps=2, momentum=1.0), "momentum = 1.0"),
        (lambda: design_lr([1.0, 0.0], weight_decay=0.1, lr_first=0.1), r"weights\[1\] = 0.0: must be .* > 0"),
        (lambda: design_lr([1.0, 1.0], weight_decay=[0.1], lr_first=0.1), "weight_decay has 1 values"),
        (lambda: design_lr([1.0, 1.0], weight_decay=0.1, lr_first=0), "lr_first = 0: must be a finite number > 0"),
        (lambda: design_weight_decay([1.0, 1.0], lr=0.0), "lr = 0.0: must be a finite number > 0"),
        (lambda: memory(lr=0.1, weight_decay=0.1, steps=5).parts(0), "count = 0"),
        (lambda: memory(lr=0.1, weight_decay=0.1, steps=5).per_epoch(0), "steps_per_epoch = 0"),
        (lambda: memory(lr=0.1, weight_decay=0.1, steps=5).period_to(1.0), "fraction = 1.0"),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("beta", [0.0, 0.9])
@pytest.mark.parametrize("steps", [50, 25_000])
def test_contributions_to_an_average_are_those_of_the_recursion(beta: float, steps: int) -> None:
    """By the recursion itself with one update of 1 at a time, or, in a long run, by some of them."""
    rng = np.random.default_rng(3)
    lr, wd, b = rng.uniform(1e-3, 0.1, steps), rng.uniform(0, 0.5, steps), rng.uniform(0, 1, steps)
    b *= 0.9 / b.sum()
    got = memory(lr=lr, weight_decay=wd, momentum=beta, average=b)

    def averaged(j: int | None) -> float:
        w, m, total = float(j is None), 0.0, 0.1 * (j is None)
        for t in range(steps):
            m = beta * m + (1 - beta) * (t == j)
            w = (1 - lr[t] * wd[t]) * w - lr[t] * m
            total += b[t] * w
        return total

    for j in (0, 1, steps // 2, steps - 1):
        assert got.weights[j] == pytest.approx(-averaged(j), rel=1e-10)
    assert got.init_share == pytest.approx(averaged(None), rel=1e-10)


def test_the_last_weights_alone_are_an_average() -> None:
    lr, wd = schedules(4)
    last = np.zeros(T)
    last[-1] = 1
    one, other = memory(lr=lr, weight_decay=wd), memory(lr=lr, weight_decay=wd, average=last)
    np.testing.assert_allclose(other.weights, one.weights, rtol=1e-12)
    assert other.init_share == pytest.approx(one.init_share, rel=1e-12)


def test_ema_weights_are_those_of_torchs_average() -> None:
    """torch's AveragedModel with its EMA, fed with weights of which one is 1."""
    for j in range(6):
        layer = torch.nn.Linear(1, 1, bias=False).double()
        update = get_ema_multi_avg_fn(0.8)
        average = AveragedModel(layer, multi_avg_fn=update)
        for t in range(6):
            with torch.no_grad():
                layer.weight.fill_(float(t == j))
            average.update_parameters(layer)
        assert ema_weights(6, beta=0.8)[j] == pytest.approx(average.module.get_parameter("weight").item(), rel=1e-12)
    assert ema_weights(6, beta=0.8).sum() == pytest.approx(1)
    assert ema_weights(3, beta=0.0).tolist() == [0, 0, 1]


@pytest.mark.parametrize("wd", [0.0, 0.3])
def test_an_average_takes_the_place_of_a_falling_lr(wd: float) -> None:
    """The average of a run with a constant lr is what a falling one ends at, for the same updates."""
    rng, steps, eta = np.random.default_rng(5), 200, 0.1
    u = rng.normal(size=(steps, 3))
    falling = memory(lr=eta * np.linspace(1, 0.01, steps), weight_decay=wd).weights
    b = design_average(falling, lr=eta, weight_decay=wd)
    assert b.min() >= 0
    got = memory(lr=eta, weight_decay=wd, average=b)
    np.testing.assert_allclose(got.share, falling / falling.sum(), rtol=1e-9)
    w, mean = np.ones(3), np.zeros(3)
    for t in range(steps):
        w = (1 - eta * wd) * w - eta * u[t]
        mean += b[t] * w
    np.testing.assert_allclose(mean, got.init_share - got.weights @ u, rtol=1e-9)


def test_an_average_cannot_make_late_steps_count_more() -> None:
    lr = np.full(4, 0.1)
    wanted = memory(lr=lr, weight_decay=0.5).weights * [1, 1, 1.2, 1.2]
    with pytest.raises(ValueError, match=r"rise too fast for an average at step 3: .* must be at most") as told:
        design_average(wanted, lr=lr, weight_decay=0.5)
    most = float(str(told.value).split("must be at most ")[1].split(",")[0])
    wanted[2:] *= most / wanted[2] * (1 - 1e-9)
    assert design_average(wanted, lr=lr, weight_decay=0.5).min() >= 0


@pytest.mark.parametrize(
    ("average", "message"), [([0.5, 0.6], "sums to 1.1"), ([0.0, 0.0], "average = 0"), ([1.0], "average")]
)
def test_averages_that_are_none(average: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        memory(lr=[0.1, 0.1], weight_decay=0.1, average=average)
