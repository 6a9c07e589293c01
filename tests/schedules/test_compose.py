"""Composition: warmup, join, scale, product, sum, clip, and any tree of them against itself evaluated by hand."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise.schedules as sch

T = 60
leaf = st.one_of(
    st.builds(sch.constant, st.floats(0, 2)),
    st.builds(lambda n, p, f: sch.linear(n, peak=p, final=f), st.integers(1, 50), st.floats(0, 2), st.floats(0, 2)),
    st.builds(lambda n, p: sch.cosine(n, peak=p), st.integers(1, 50), st.floats(0, 2)),
    st.builds(lambda n, f: sch.step(every=n, factor=f), st.integers(1, 20), st.floats(0.1, 1)),
    st.builds(sch.from_array, st.lists(st.floats(0, 2), min_size=1, max_size=20)),
    st.builds(lambda n: sch.inverse_sqrt(n), st.integers(1, 50)),
)
tree = st.recursive(
    leaf,
    lambda s: st.one_of(
        st.builds(sch.warmup, s, st.integers(0, 20)),
        st.builds(sch.scale, s, st.floats(0, 3)),
        st.builds(sch.product, s, s),
        st.builds(sch.add, s, s),
        st.builds(lambda a, low, more: sch.clip(a, low, low + more), s, st.floats(0, 1), st.floats(0, 1)),
        st.builds(lambda a, b, n: sch.join(a, b, at=[n]), s, s, st.integers(1, 40)),
    ),
    max_leaves=6,
)


@given(tree)
def test_any_tree_round_trips_and_steps_as_its_array(s: sch.Schedule) -> None:
    again = eval(repr(s), dict(vars(sch)))
    assert again == s
    assert sch.Schedule.from_dict(s.to_dict()) == s
    values = s.values(T)
    assert values.tobytes() == np.array([again(t) for t in range(1, T + 1)]).tobytes()
    assert np.all(values >= 0)


@given(tree, st.floats(0, 3))
def test_scale_is_a_number_times_the_values(s: sch.Schedule, factor: float) -> None:
    assert np.array_equal((s * factor).values(T), factor * s.values(T))
    assert s * factor == factor * s == sch.scale(s, factor)


@given(tree, tree)
def test_product_and_sum_are_of_the_values(a: sch.Schedule, b: sch.Schedule) -> None:
    assert np.array_equal((a * b).values(T), a.values(T) * b.values(T))
    assert np.array_equal((a + b).values(T), a.values(T) + b.values(T))


@given(tree, st.integers(1, 30))
def test_warmup_shifts_the_curve(s: sch.Schedule, W: int) -> None:
    values = sch.warmup(s, W).values(T + W)
    assert np.array_equal(values[W:], s.values(T))
    goal = values[W - 1]
    assert np.allclose(values[:W], goal * np.arange(1, W + 1) / W, rtol=1e-14)


@given(tree, tree, tree, st.integers(1, 20), st.integers(1, 20))
def test_join_puts_each_curve_after_the_other(
    a: sch.Schedule, b: sch.Schedule, c: sch.Schedule, i: int, j: int
) -> None:
    values = sch.join(a, b, c, at=[i, i + j]).values(T)
    assert np.array_equal(values, np.concatenate([a.values(i), b.values(j), c.values(T - i - j)]))


@given(tree)
def test_top_where_known_is_never_exceeded(s: sch.Schedule) -> None:
    try:
        top = s.top
    except ValueError:
        return
    assert top == s.values(1000).max()


def test_end_is_that_of_the_whole() -> None:
    assert sch.warmup(sch.cosine(90), 10).end == 100
    assert sch.warmup(sch.constant(), 10).end is None
    assert sch.join(sch.constant(), sch.cosine(90), at=[10]).end == 100
    assert sch.join(sch.cosine(90), sch.constant(), at=[10]).end is None
    assert (sch.cosine(90) * sch.warmup(sch.constant(), 10)).end == 90
    assert (2 * sch.cosine(90)).end == sch.clip(sch.cosine(90), 0.1).end == 90
    assert (sch.cosine(90) + sch.linear(100)).end == 100


def test_operators() -> None:
    s = sch.linear(4)
    assert (s / 2).values().tolist() == [0.375, 0.25, 0.125, 0.0]
    assert (s + 1).values().tolist() == (1 + s).values().tolist() == [1.75, 1.5, 1.25, 1.0]
    assert np.float64(2) * s == 2 * s
    for bad in ("a", None, True, [1]):
        with pytest.raises(TypeError):
            s * bad  # type: ignore[operator]
        with pytest.raises(TypeError):
            s + bad  # type: ignore[operator]
    with pytest.raises(ValueError, match="divisor = 0: must be a finite number > 0"):
        _ = s / 0


def test_warmup_of_nothing_is_the_curve() -> None:
    s = sch.cosine(10)
    assert sch.warmup(s, 0) is s


def test_warmup_from_a_start_value() -> None:
    assert sch.warmup(sch.constant(1.0), 4, start=0.2).values(5).tolist() == pytest.approx([0.4, 0.6, 0.8, 1, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sch.warmup(3, 3), "schedule = 3: must be a Schedule"),  # type: ignore[arg-type]
        (lambda: sch.warmup(sch.constant(), -1), "steps = -1: must be a whole number ≥ 0"),
        (lambda: sch.scale(sch.constant(), -1), "factor = -1: must be a finite number ≥ 0"),
        (lambda: sch.clip(sch.constant(), 2, 1), "low = 2.0: must be ≤ high = 1.0"),
        (lambda: sch.join(at=[]), r"schedules = \(\): must be one Schedule or more"),
        (lambda: sch.join(sch.constant(), at=[3]), "at has 1 steps: must have 0, one between two schedules"),
        (lambda: sch.join(sch.constant(), sch.constant(), sch.constant(), at=[3, 2]), r"at = \[3, 2\]: must rise"),
        (lambda: sch.join(sch.constant(), 1, at=[3]), r"schedules\[1\] = 1: must be a Schedule"),  # type: ignore[arg-type]
        (lambda: sch.product(), r"schedules = \(\): must be one Schedule or more"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], sch.Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
