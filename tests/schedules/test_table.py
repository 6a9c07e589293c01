"""Curves from arrays and functions."""

import math
from collections.abc import Callable

import numpy as np
import pytest

import equipoise.schedules as sch


def test_from_array_is_a_copy_that_nobody_can_change() -> None:
    array = np.array([0.1, 0.2])
    s = sch.from_array(array)
    array[0] = 5
    assert s(1) == 0.1
    with pytest.raises(ValueError, match="read-only"):
        s.array[0] = 5  # type: ignore[attr-defined]


def test_from_array_holds_its_last_value() -> None:
    assert sch.from_array([1, 2, 3])([1, 3, 4, 10**9]).tolist() == [1, 3, 3, 3]


def test_from_function_reads_the_steps_from_one() -> None:
    seen: list[int] = []
    s = sch.from_function(lambda t: seen.append(t) or 1 / t, 4)
    assert seen == [1, 2, 3, 4]
    assert s.values().tolist() == [1, 1 / 2, 1 / 3, 1 / 4]
    assert sch.from_function(np.sqrt, 3, vectorized=True).values().tolist() == [1, math.sqrt(2), math.sqrt(3)]
    assert sch.from_function(sch.cosine(9), 9).values().tobytes() == sch.cosine(9).values().tobytes()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sch.from_array(3), r"array has shape \(\): must be one-dimensional"),
        (lambda: sch.from_array([[1]]), r"array has shape \(1, 1\): must be one-dimensional"),
        (lambda: sch.from_array([]), "array has 0 values"),
        (lambda: sch.from_array([1, math.nan]), r"array\[1\] = nan: must be a finite number ≥ 0"),
        (lambda: sch.from_array([1, -1]), r"array\[1\] = -1.0: must be a finite number ≥ 0"),
        (lambda: sch.from_array(["a"]), "must be a finite number"),
        (lambda: sch.from_function(abs, 0), "steps = 0: must be a whole number ≥ 1"),
        (lambda: sch.from_function(lambda t: 1.0, 3, vectorized=True), r"function gave an array of shape \(\)"),
    ],
)
def test_bad_arguments_are_named(make: Callable[[], sch.Schedule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
