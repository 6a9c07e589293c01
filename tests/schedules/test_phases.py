"""Steps, restarts, one cycle, warmup–stable–decay: each against a loop in plain Python."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise.schedules as sch


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=6, unique=True).map(sorted),
    st.floats(0.1, 2),
    st.floats(0.01, 10),
)
def test_step_by_milestones(milestones: list[int], factor: float, peak: float) -> None:
    value, wanted = 0, []
    for t in range(1, 250):
        value = sum(m < t for m in milestones)
        wanted.append(peak * factor**value)
    assert np.allclose(sch.step(milestones=milestones, factor=factor, peak=peak).values(249), wanted, rtol=1e-13)


def test_step_every_is_milestones_at_its_multiples() -> None:
    every = sch.step(every=7, factor=0.5).values(50)
    assert np.array_equal(every, sch.step(milestones=range(7, 50, 7), factor=0.5).values(50))
    assert every[6] == 1.0
    assert every[7] == 0.5


@given(period=st.integers(1, 20), growth=st.integers(1, 3), factor=st.floats(0.3, 1.5), final=st.floats(0, 0.5))
def test_cosine_restarts_is_a_loop_over_cycles(period: int, growth: int, factor: float, final: float) -> None:
    T, wanted, length, peak = 200, [], period, 1.0
    while len(wanted) < T:
        wanted += [final + (peak - final) * 0.5 * (1 + math.cos(math.pi * s / length)) for s in range(1, length + 1)]
        length, peak = length * growth, peak * factor
    s = sch.cosine_restarts(period, growth=growth, factor=factor, final=final)
    assert np.allclose(s.values(T), wanted[:T], rtol=1e-10, atol=1e-15)
    assert s(period) == final


@given(T=st.integers(2, 500), share=st.floats(0, 0.99), start=st.floats(0, 2), final=st.floats(0, 2))
def test_one_cycle_goes_up_and_down(T: int, share: float, start: float, final: float) -> None:
    W = int(share * T)
    s = sch.one_cycle(T, warmup=W, start=start, final=final)
    for t in {1, max(W // 2, 1), max(W, 1), min(W + 1, T), (W + T + 1) // 2, T}:
        if t <= W:
            wanted = start + (1 - start) * 0.5 * (1 - math.cos(math.pi * t / W))
        else:
            wanted = final + (1 - final) * 0.5 * (1 + math.cos(math.pi * (t - W) / (T - W)))
        assert s(t) == pytest.approx(wanted, rel=1e-12, abs=1e-15)
    assert s(T) == final
    if W:
        assert s(W) == 1.0


def test_one_cycle_defaults() -> None:
    s = sch.one_cycle(1000, peak=0.1)
    assert s(300) == 0.1
    assert s(1000) == pytest.approx(0.1 / 25 / 1e4)
    assert s(1) == pytest.approx(0.1 / 25, rel=1e-3)
    linear = sch.one_cycle(10, warmup=4, start=0.2, final=0.0, anneal="linear").values()
    assert linear.tolist() == pytest.approx([0.4, 0.6, 0.8, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6, 0])


@pytest.mark.parametrize("tail", sch.TAILS)
@pytest.mark.parametrize(("warmup", "decay"), [(0, 0), (3, 0), (0, 4), (3, 4), (5, 5), (0, 10), (10, 0)])
def test_wsd_is_its_three_phases(tail: str, warmup: int, decay: int) -> None:
    T, peak, final = 10, 2.0, 0.5
    left = {
        "linear": lambda x: 1 - x,
        "1-sqrt": lambda x: 1 - math.sqrt(x),
        "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    }[tail]
    wanted = []
    for t in range(1, T + 1):
        if t <= warmup:
            wanted.append(peak * t / warmup)
        elif t <= T - decay:
            wanted.append(peak)
        else:
            wanted.append(final + (peak - final) * left((t - (T - decay)) / decay))
    s = sch.wsd(T, warmup=warmup, decay=decay, peak=peak, final=final, tail=tail)
    assert s.values() == pytest.approx(wanted, rel=1e-14)
    assert s(T) == (final if decay else peak)


def test_wsd_falls_over_a_fifth_by_default() -> None:
    s = sch.wsd(1000)
    assert s(800) == 1.0
    assert s(801) < 1.0


@given(T=st.integers(1, 300), share=st.floats(0, 0.999), peak=st.floats(1e-6, 10), ratio=st.floats(0, 1))
def test_warmup_cosine_and_linear(T: int, share: float, peak: float, ratio: float) -> None:
    W, final = int(share * T), ratio * peak
    cosine = sch.warmup_cosine(T, warmup=W, peak=peak, final=final)
    linear = sch.warmup_linear(T, warmup=W, peak=peak, final=final)
    assert cosine.end == linear.end == T
    assert cosine(T) == linear(T) == final
    for t in range(1, T + 1):
        x = 0 if t <= W else (t - W) / (T - W)
        up = peak * t / W if t <= W else None
        assert cosine(t) == pytest.approx(up or final + (peak - final) * 0.5 * (1 + math.cos(math.pi * x)), rel=1e-9)
        assert linear(t) == pytest.approx(up or final + (peak - final) * (1 - x), rel=1e-9)
    if W:
        assert cosine(W) == linear(W) == peak


def test_wsd_with_its_warmup_is_the_composition() -> None:
    composed = sch.warmup(sch.join(sch.constant(0.3), sch.linear(20, peak=0.3), at=[70]), 10)
    assert np.array_equal(sch.wsd(100, warmup=10, decay=20, peak=0.3).values(), composed.values())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sch.step(), r"milestones = \(\) and every = 0: must give one of the two"),
        (lambda: sch.step(milestones=[3], every=3), r"milestones = \(3,\) and every = 3: must give one of the two"),
        (lambda: sch.step(milestones=[3, 3]), r"milestones = \[3, 3\]: must rise from each to the next"),
        (lambda: sch.step(milestones=[0]), r"milestones\[0\] = 0: must be a whole number ≥ 1"),
        (lambda: sch.step(every=0), "every = 0: must be a whole number ≥ 1"),
        (lambda: sch.cosine_restarts(10, growth=0), "growth = 0: must be a whole number ≥ 1"),
        (lambda: sch.cosine_restarts(10, growth=1.5), "growth = 1.5: must be a whole number ≥ 1"),  # type: ignore[arg-type]
        (lambda: sch.one_cycle(10, warmup=10), r"warmup = 10: must be a whole number in \[0, 10\), as steps = 10"),
        (lambda: sch.one_cycle(10, anneal="cos"), "anneal = 'cos': must be one of cosine, linear"),
        (lambda: sch.wsd(10, tail="sqrt"), "tail = 'sqrt': must be one of 1-sqrt, cosine, linear"),
        (lambda: sch.wsd(10, warmup=6, decay=5), r"warmup \+ decay = 6 \+ 5: must be ≤ steps = 10"),
        (lambda: sch.warmup_cosine(10, warmup=10), r"warmup = 10: must be a whole number in \[0, 10\)"),
        (lambda: sch.warmup_linear(10, warmup=-1), "warmup = -1: must be a whole number ≥ 0"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], sch.Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_restarts_far_out_stay_exact() -> None:
    """Cycle boundaries are whole numbers, so that no rounding moves a restart at a billion steps."""
    s = sch.cosine_restarts(3, growth=2)
    ends = list(itertools.accumulate(3 * 2**i for i in range(29)))
    assert np.all(s(ends) == 0)
    assert np.all(s([e + 1 for e in ends[3:]]) > 0.99)
