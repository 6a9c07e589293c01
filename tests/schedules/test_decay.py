"""Decay kinds: conversion keeps the share that every step takes, and impossible ones are refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import equipoise.schedules as sch
from equipoise import theory
from equipoise.theory.directions import decay_share

rates = st.lists(st.floats(1e-8, 2), min_size=1, max_size=50)
KINDS = [kind for kind in theory.DECAYS if kind != "cautious"]
kinds = st.sampled_from(KINDS)


def share(kind: str, wd: np.ndarray | float, lr: np.ndarray, lr_max: float) -> np.ndarray:
    """What a step takes of the weights, by the definition of each kind."""
    return wd * {"lr": lr, "schedule": lr / lr_max, "independent": np.ones_like(lr), "corrected": lr**2 / lr_max}[kind]


@given(rates, st.floats(0, 10), kinds, kinds)
def test_conversion_keeps_the_product(lr: list[float], wd: float, source: str, to: str) -> None:
    eta = np.array(lr)
    converted = sch.convert_decay(wd, lr=eta, source=source, to=to)
    assert converted.shape == eta.shape
    assert np.allclose(share(to, converted, eta, eta.max()), share(source, wd, eta, eta.max()), rtol=1e-13)
    back = sch.convert_decay(converted, lr=eta, source=to, to=source)
    assert np.allclose(back, wd, rtol=1e-13)


@given(rates, kinds, st.floats(0.1, 10))
def test_scaling_the_lr_changes_only_the_kinds_that_follow_it(lr: list[float], kind: str, factor: float) -> None:
    eta = np.array(lr)
    before = eta * sch.convert_decay(0.1, lr=eta, source=kind)
    after = factor * eta * sch.convert_decay(0.1, lr=factor * eta, source=kind)
    assert np.allclose(after / before, factor if kind in ("lr", "corrected") else 1, rtol=1e-9)


def test_kinds_agree_with_theory() -> None:
    lr = sch.warmup_cosine(50, warmup=5, peak=0.3, final=0.01).values()
    for kind in KINDS:
        ours = theory.memory(lr=lr, weight_decay=sch.convert_decay(0.2, lr=lr, source=kind)).weights
        assert np.allclose(ours, theory.memory(lr=lr, weight_decay=0.2, decay=kind).weights, rtol=1e-12)
    with pytest.raises(ValueError, match="source = 'cautious': must be one of corrected"):
        sch.convert_decay(0.2, lr=lr, source="cautious")


def test_numbers_arrays_and_lr_max() -> None:
    assert sch.convert_decay(0.1, lr=0.01, source="independent").tolist() == pytest.approx([10.0])
    assert sch.convert_decay([0.1, 0.2], lr=0.01, source="schedule").tolist() == pytest.approx([10.0, 20.0])
    assert sch.convert_decay(0.1, lr=[0.01], source="corrected", lr_max=0.02).tolist() == pytest.approx([0.05])


def test_lr_zero_where_nothing_decays_is_fine() -> None:
    lr = [0.1, 0.0]
    assert sch.convert_decay(0.5, lr=lr, source="lr", to="corrected").tolist() == [0.5, 0.0]
    assert sch.convert_decay(0.5, lr=lr, source="schedule").tolist() == [5.0, 5.0]
    assert sch.convert_decay(0.5, lr=lr, source="corrected").tolist() == [0.5, 0.0]
    assert sch.convert_decay([0.5, 0.0], lr=lr, source="independent").tolist() == [5.0, 0.0]
    assert sch.convert_decay(0.5, lr=lr, to="independent").tolist() == [0.05, 0.0]
    assert sch.convert_decay(0.5, lr=[0.0, 0.0], source="corrected").tolist() == [0.0, 0.0]


def test_lr_zero_cannot_say_constant_decay() -> None:
    with pytest.raises(
        ValueError, match=r"lr = 0 at step 2 with weight_decay = 0.5 of kind 'independent': must be > 0"
    ):
        sch.convert_decay(0.5, lr=[0.1, 0.0], source="independent")
    curve = sch.torch_decay(0.5, lr=sch.cosine(100), kind="independent")
    assert curve(99) > 0
    with pytest.raises(ValueError, match="lr = 0 at step 100"):
        curve(100)


@given(kinds, st.integers(2, 80), st.floats(1e-4, 1))
def test_torch_decay_is_the_conversion(kind: str, T: int, peak: float) -> None:
    lr = sch.warmup_cosine(T, warmup=T // 3, peak=peak, final=peak / 10)
    wd = sch.linear(T, peak=0.2, final=0.1)
    top = None if kind in ("lr", "independent") else peak
    curve = sch.torch_decay(wd, lr=lr, kind=kind, lr_max=top)
    assert np.array_equal(curve.values(), sch.convert_decay(wd.values(), lr=lr.values(), source=kind, lr_max=top))
    assert curve.end == T


def test_torch_decay_takes_the_top_of_the_lr() -> None:
    lr = sch.warmup(sch.constant(0.1), 10)
    assert sch.torch_decay(1.0, lr=lr, kind="corrected") == sch.torch_decay(1.0, lr=lr, kind="corrected", lr_max=0.1)
    with pytest.raises(ValueError, match="no known largest value"):
        sch.torch_decay(1.0, lr=sch.cosine_restarts(10), kind="corrected")
    assert sch.torch_decay(1.0, lr=sch.cosine_restarts(10, final=0.1), kind="independent")(10) == 10.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"source": "cautious"}, "source = 'cautious': must be one of corrected, independent, lr, schedule"),
        ({"to": "x"}, "to = 'x': must be one of"),
        ({"lr_max": 0}, "lr_max = 0: must be a finite number > 0"),
        ({"lr": -1}, "lr = -1: must be a finite number ≥ 0"),
        ({"weight_decay": [1, 2, 3]}, r"weight_decay has 3 values: must be one number, or one for each of the 2 steps"),
    ],
)
def test_bad_arguments_are_named(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sch.convert_decay(**({"weight_decay": 0.1, "lr": [0.1, 0.2]} | arguments))


@given(rates, st.floats(0.01, 10), kinds, st.floats(1e-6, 2))
def test_conversion_keeps_what_steps_take_where_lr_is_above_its_largest(
    lr: list[float], wd: float, kind: str, top: float
) -> None:
    """Steps count lr as η_max there: decay by the schedule takes λ, and corrected decay ηλ."""
    eta = np.array(lr)
    taken = eta * sch.convert_decay(wd, lr=eta, source=kind, lr_max=top)
    assert np.allclose(taken, decay_share(eta, wd, decay=kind, lr_max=top), rtol=1e-12)
