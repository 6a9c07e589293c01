"""What holds for every schedule: scalar = array, repr and dict round trips, hashing, holding the last value, plots."""

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise.schedules as sch
from equipoise.schedules.base import Schedule, as_schedule

T = 1200


def test_every_kind_of_curve_is_among_the_examples(examples: dict[str, Schedule]) -> None:
    def kinds(s: Schedule) -> set[str]:
        parts = [v for f in dataclasses.fields(s) for v in np.atleast_1d(getattr(s, f.name)) if isinstance(v, Schedule)]
        return {s.name}.union(*(kinds(p) for p in parts)) if parts else {s.name}

    assert set(Schedule.kinds) == set().union(*(kinds(s) for s in examples.values()))


def test_a_step_alone_has_the_bits_of_the_step_in_the_array(schedule: Schedule) -> None:
    whole = schedule.values(T)
    assert whole.dtype == np.float64
    assert whole.shape == (T,)
    alone = [schedule(t) for t in range(1, T + 1)]
    assert all(type(v) is float for v in alone)
    assert whole.tobytes() == np.array(alone).tobytes()


@pytest.mark.parametrize("length", [1, 2, 3, 7, 8, 9, 63, 65])
def test_the_bits_do_not_depend_on_the_length_or_order_of_the_array(schedule: Schedule, length: int) -> None:
    whole = schedule.values(T)
    rng = np.random.default_rng(length)
    t = rng.integers(1, T + 1, length)
    assert schedule(t).tobytes() == whole[t - 1].tobytes()
    assert schedule(np.arange(1, T + 1)[::-length])[0] == whole[-1]
    assert schedule(t.reshape(1, -1)).shape == (1, length)


def test_repr_round_trips(schedule: Schedule) -> None:
    again = eval(repr(schedule), dict(vars(sch)))
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert repr(again) == repr(schedule)
    assert again.fingerprint() == schedule.fingerprint()
    assert again.values(T).tobytes() == schedule.values(T).tobytes()


def test_dict_round_trips_through_json(schedule: Schedule) -> None:
    again = Schedule.from_dict(json.loads(json.dumps(schedule.to_dict())))
    assert again == schedule
    assert again.values(T).tobytes() == schedule.values(T).tobytes()


def test_all_examples_differ(examples: dict[str, Schedule]) -> None:
    assert len(set(examples.values())) == len(examples)
    assert len({s.fingerprint() for s in examples.values()}) == len(examples)


def test_the_last_value_is_held(schedule: Schedule) -> None:
    if schedule.end is None:
        with pytest.raises(ValueError, match="has no end"):
            schedule.values()
        return
    assert len(schedule.values()) == schedule.end
    assert np.all(schedule(np.arange(schedule.end, schedule.end + 50)) == schedule(schedule.end))


def test_top_is_the_largest_value(examples: dict[str, Schedule]) -> None:
    unknown = {"cosine_restarts", "growing_restarts", "add"}
    for name, s in examples.items():
        if name in unknown:
            with pytest.raises(ValueError, match="no known largest value"):
                _ = s.top
        else:
            assert s.top == s.values(5000).max(), name


def test_schedules_are_frozen(schedule: Schedule) -> None:
    field = dataclasses.fields(schedule)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(schedule, field, getattr(schedule, field))


@pytest.mark.parametrize("t", [0, -1, 1.5, np.nan, np.inf, "a", [1, 0]])
def test_steps_that_are_none_are_refused(t: object) -> None:
    with pytest.raises(ValueError, match=r"t = .*: must be a whole number ≥ 1"):
        sch.linear(10)(t)  # type: ignore[call-overload]


def test_values_needs_a_length() -> None:
    with pytest.raises(ValueError, match=r"steps = None: must be a whole number ≥ 1, because constant\(\) has no end"):
        sch.constant().values()
    with pytest.raises(ValueError, match="steps = 0: must be a whole number ≥ 1"):
        sch.linear(3).values(0)


def test_equality_is_of_kind_and_values() -> None:
    assert sch.linear(10) == sch.linear(10, peak=1)
    assert sch.linear(10) != sch.cosine(10)
    assert sch.from_array([1.0, 2.0]) != sch.from_array([1.0, 2.5])
    assert sch.from_array([0.0]) == sch.from_array([-0.0])
    assert hash(sch.from_array([0.0])) == hash(sch.from_array([-0.0]))


@given(st.lists(st.floats(0, 1e300), min_size=1, max_size=30))
def test_arrays_survive_repr_to_the_last_bit(values: list[float]) -> None:
    again = eval(repr(sch.from_array(values)), dict(vars(sch)))
    assert again.values().tobytes() == (np.array(values) + 0.0).tobytes()


def test_str_cuts_long_arrays_short_and_keeps_them_apart() -> None:
    a = sch.warmup(sch.from_array(np.linspace(1, 0.5, 100_000)), 10)
    b = sch.warmup(sch.from_array(np.linspace(1, 0.5, 100_000) + np.eye(1, 100_000, 500)[0] * 1e-15), 10)
    assert len(str(a)) < 120
    assert "100000 values, 1 … 0.5" in str(a)
    assert a.fingerprint() != b.fingerprint()
    assert str(a) != str(b)


def test_fingerprints_are_the_same_in_every_process() -> None:
    code = (
        "from equipoise.schedules import *; print((2 * cosine(10)).fingerprint(), from_array([.1] * 9).fingerprint())"
    )
    seeds = ("1", "2")
    out = {
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in seeds
    }
    assert out == {f"{(2 * sch.cosine(10)).fingerprint()} {sch.from_array([0.1] * 9).fingerprint()}\n"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"name": "cosin"}, "must be a mapping with name one of add, clip"),
        ([1, 2], "must be a mapping"),
        ({"name": "cosine", "steps": 3, "stepz": 4}, "data has stepz: cosine takes only final, peak, steps"),
        ({"name": "cosine", "steps": 0}, "steps = 0: must be a whole number ≥ 1"),
    ],
)
def test_bad_dicts_are_refused(data: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule.from_dict(data)  # type: ignore[arg-type]


def test_as_schedule_takes_numbers_and_arrays() -> None:
    assert as_schedule("lr", 0.1) == sch.constant(0.1)
    assert as_schedule("lr", [0.1, 0.2]) == sch.from_array([0.1, 0.2])
    assert as_schedule("lr", s := sch.linear(3)) is s
    with pytest.raises(ValueError, match=r"lr = -1: must be a finite number ≥ 0"):
        as_schedule("lr", -1)
    with pytest.raises(ValueError, match=r"lr\[1\] = -2.0: must be a finite number ≥ 0"):
        as_schedule("lr", [1, -2])


def test_plot_draws_the_values() -> None:
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    s = sch.warmup_cosine(100, warmup=10)
    axes = s.plot(label="lr")
    x, y = axes.lines[0].get_data()
    assert np.array_equal(x, np.arange(1, 101))
    assert np.array_equal(y, s.values())
    assert axes.get_legend() is not None
    assert sch.constant().plot(50, ax=axes) is axes
    assert len(axes.lines) == 2
    with pytest.raises(ValueError, match="steps = None"):
        sch.constant().plot()
    pyplot.close("all")


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"matplotlib is not installed: pip install 'equipoise\[plot\]'"):
        sch.linear(3).plot()


def test_a_million_steps_take_a_blink(examples: dict[str, Schedule]) -> None:
    for name, s in examples.items():
        assert s.values(1_000_000)[-1] >= 0, name
