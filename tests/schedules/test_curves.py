"""The plain curves against their formulas in plain Python, and their ends to the bit."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise.schedules as sch
from equipoise import theory

steps = st.integers(1, 2000)
positive = st.floats(1e-6, 1e3)


def formula(name: str, t: int, T: int, peak: float, final: float, power: float) -> float:
    x = min(t / T, 1)
    match name:
        case "linear":
            return final + (peak - final) * (1 - x)
        case "polynomial":
            return final + (peak - final) * (1 - x) ** power
        case "cosine":
            return final + (peak - final) * 0.5 * (1 + math.cos(math.pi * x))
        case _:
            return math.exp((1 - x) * math.log(peak) + x * math.log(final))


MAKERS: dict[str, Callable[..., sch.Schedule]] = {
    "linear": lambda T, peak, final, power: sch.linear(T, peak=peak, final=final),
    "polynomial": lambda T, peak, final, power: sch.polynomial(T, power=power, peak=peak, final=final),
    "cosine": lambda T, peak, final, power: sch.cosine(T, peak=peak, final=final),
    "exponential": lambda T, peak, final, power: sch.exponential(T, peak=peak, final=final),
}


@pytest.mark.parametrize("name", list(MAKERS))
@given(T=steps, peak=positive, final=positive, power=st.floats(0.1, 5), t=st.integers(1, 3000))
def test_curve_is_its_formula(name: str, T: int, peak: float, final: float, power: float, t: int) -> None:
    s = MAKERS[name](T, peak, final, power)
    assert s(t) == pytest.approx(formula(name, t, T, peak, final, power), rel=1e-9)
    assert s.end == T


@pytest.mark.parametrize("name", list(MAKERS))
@given(T=steps, peak=positive, final=positive)
def test_ends_are_exact(name: str, T: int, peak: float, final: float) -> None:
    s = MAKERS[name](T, peak, final, 1.5)
    assert s(T) == final
    assert s(T + 1000) == final
    assert sch.warmup(s, 7)(7) == peak


@given(T=steps, peak=positive)
def test_equal_ends_make_a_constant(T: int, peak: float) -> None:
    for name in ("linear", "polynomial", "cosine"):
        assert np.all(MAKERS[name](T, peak, peak, 1.5).values() == peak)


def test_first_step_is_not_zero_and_not_the_peak() -> None:
    assert sch.linear(10)(1) == 0.9
    assert 0 < sch.warmup_cosine(100, warmup=10)(1) == 0.1


def test_constant() -> None:
    assert sch.constant().values(5).tolist() == [1.0] * 5
    assert sch.constant(0.1).end is None
    assert sch.constant(3).top == 3.0


@given(timescale=st.floats(0.5, 1e4), peak=positive, t=st.integers(1, 10**6))
def test_inverse_sqrt(timescale: float, peak: float, t: int) -> None:
    assert sch.inverse_sqrt(timescale, peak=peak)(t) == pytest.approx(
        peak / math.sqrt(1 + t / timescale), rel=1e-12
    )  # fmt: skip


def test_inverse_sqrt_after_its_warmup_is_the_transformers() -> None:
    """Noam's min(t/W, √(W/t))."""
    W = 40
    t = np.arange(1, 500)
    assert np.allclose(sch.warmup(sch.inverse_sqrt(W), W)(t), np.minimum(t / W, np.sqrt(W / t)), rtol=1e-14)


def test_warmup_and_cosine_have_the_memory_of_the_reference() -> None:
    """Warmup 100 + cosine to 10 % over 1000 steps at peak .01, weight decay 1."""
    lr = sch.warmup_cosine(1000, warmup=100, peak=0.01, final=0.001).values()
    m = theory.memory(lr=lr, weight_decay=1.0)
    assert m.init_share == pytest.approx(0.004209359, abs=5e-10)
    assert m.effective_steps == pytest.approx(689.97, abs=5e-3)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sch.linear(0), "steps = 0: must be a whole number ≥ 1"),
        (lambda: sch.linear(2.5), "steps = 2.5: must be a whole number ≥ 1"),  # type: ignore[arg-type]
        (lambda: sch.cosine(5, peak=-1), "peak = -1: must be a finite number ≥ 0"),
        (lambda: sch.cosine(5, final=math.nan), "final = nan: must be a finite number ≥ 0"),
        (lambda: sch.polynomial(5, power=0), "power = 0: must be a finite number > 0"),
        (lambda: sch.exponential(5, final=0), "final = 0: must be a finite number > 0"),
        (lambda: sch.exponential(5, final=1, peak=0), "peak = 0: must be a finite number > 0"),
        (lambda: sch.inverse_sqrt(0), "timescale = 0: must be a finite number > 0"),
        (lambda: sch.constant("a"), "peak = 'a': must be a finite number ≥ 0"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_are_named(make: Callable[[], sch.Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
