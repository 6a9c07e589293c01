"""Schedules by memory: contributions equal or proportional to what was asked for, exactly."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise.schedules as sch
from equipoise import theory


def spread(c: np.ndarray) -> float:
    return float(c.max() / c.min() - 1)


@pytest.mark.parametrize(("peak", "wd", "T"), [(0.1, 0.1, 1000), (3e-4, 0.1, 20_000), (0.9, 1.0, 500)])
def test_equal_memory_makes_every_batch_count_the_same(peak: float, wd: float, T: int) -> None:
    """Eq. 16 is exact: one part in 1e-14 and a rounding error a step."""
    c = theory.memory(lr=sch.equal_memory(weight_decay=wd, peak=peak).values(T), weight_decay=wd).weights
    assert spread(c) < 1e-14 + T * 1.2e-16


def test_equal_memory_of_a_thousand_steps_to_1e_14() -> None:
    c = theory.memory(lr=sch.equal_memory(weight_decay=0.1, peak=0.1).values(1000), weight_decay=0.1).weights
    assert float(np.abs(c / c.mean() - 1).max()) < 1e-14


def test_equal_memory_is_the_uniform_design() -> None:
    T, wd, peak = 1000, 0.1, 0.05
    assert np.allclose(
        sch.equal_memory(weight_decay=wd, peak=peak).values(T),
        theory.design_lr(sch.uniform(T), weight_decay=wd, lr_first=peak),
        rtol=1e-13,
    )
    inverse = 1 / sch.equal_memory(weight_decay=wd, peak=peak).values(T)
    assert np.allclose(np.diff(inverse), wd, rtol=1e-9)


@given(peak=st.floats(1e-4, 1), product=st.floats(1e-4, 0.9), T=st.integers(2, 2000))
def test_tied_equal_memory(peak: float, product: float, T: int) -> None:
    lr, wd = sch.equal_memory_tied(T, weight_decay=product / peak, peak=peak)
    eta, lam = lr.values(), wd.values()
    assert lr.end == wd.end == T
    assert eta[0] == pytest.approx(peak)
    assert lam[0] == pytest.approx(product / peak)
    assert np.allclose(lam / eta, lam[0] / eta[0], rtol=1e-14)
    assert spread(theory.memory(lr=eta, weight_decay=lam).weights) < 1e-14 + T * 5e-16


@given(
    weights=st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=300),
    wd=st.floats(0, 2),
    lr_first=st.floats(1e-6, 0.4),
)
def test_inverse_design_round_trip(weights: list[float], wd: float, lr_first: float) -> None:
    lr = sch.from_weights(weights, weight_decay=wd, lr_first=lr_first)
    assert lr(1) == pytest.approx(lr_first, rel=1e-14)
    m = theory.memory(lr=lr.values(), weight_decay=wd)
    wanted = np.array(weights) / weights[-1]
    assert np.allclose(m.weights / m.weights[-1], wanted, rtol=1e-12)


@given(
    st.lists(st.floats(1e-5, 0.5), min_size=1, max_size=300),
    st.floats(0, 1.9),
)
def test_contributions_and_what_is_left_sum_to_one(lr: list[float], wd: float) -> None:
    """λ Σ c = 1 − P for any curve and constant λ."""
    curve = sch.warmup(sch.from_array(lr), 7)
    m = theory.memory(lr=curve.values(), weight_decay=wd)
    assert wd * m.weights.sum() == pytest.approx(1 - m.init_share, abs=1e-12)


def test_weight_decay_may_be_a_curve() -> None:
    wd = sch.linear(50, peak=0.5, final=0.1)
    weights = sch.curriculum([1, 4, 2], 50)
    lr = sch.from_weights(weights, weight_decay=wd, lr_first=0.1).values()
    c = theory.memory(lr=lr, weight_decay=wd.values(50)).weights
    assert np.allclose(c / c[0], weights, rtol=1e-12)


def test_profiles() -> None:
    assert sch.uniform(4).tolist() == [1.0] * 4
    recent = sch.recency(100, timescale=10)
    assert recent[-1] == 1.0
    assert recent[-11] == pytest.approx(np.exp(-1))
    assert sch.curriculum([3, 1, 2], 7).tolist() == [3, 3, 3, 1, 1, 2, 2]
    assert sch.curriculum([5], 2).tolist() == [5, 5]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sch.equal_memory(weight_decay=2, peak=0.5), r"peak · weight_decay = 1 at step 1 .* must be < 1"),
        (lambda: sch.equal_memory(weight_decay=-1, peak=0.5), "weight_decay = -1: must be a finite number ≥ 0"),
        (lambda: sch.equal_memory_tied(0, weight_decay=0.1, peak=0.5), "steps = 0: must be a whole number ≥ 1"),
        (lambda: sch.from_weights([1, 0], weight_decay=0.1, lr_first=0.5), r"weights\[1\] = 0.0: must be"),
        (lambda: sch.from_weights([1, 1], weight_decay=0.1, lr_first=0), "lr_first = 0: must be a finite number > 0"),
        (lambda: sch.recency(10, timescale=0), "timescale = 0: must be a finite number > 0"),
        (lambda: sch.recency(10**6, timescale=1), "timescale = 1: must be ≥ 1428.57"),
        (lambda: sch.curriculum([1, 2, 3], 2), "steps = 2: must be a whole number ≥ 3"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
