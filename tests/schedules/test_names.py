"""Schedules by name: each is the curve that its constructor makes, and mistakes are one line."""

from typing import Any

import numpy as np
import pytest

import equipoise.schedules as sch

EXTRA: dict[str, dict[str, Any]] = {
    "cosine_restarts": {"period": 30},
    "equal_memory": {"weight_decay": 0.1},
    "exponential": {"final": 0.01},
    "step": {"milestones": [40, 80]},
}

WANTED = {
    "constant": sch.warmup(sch.constant(0.5), 10),
    "cosine": sch.warmup_cosine(100, warmup=10, peak=0.5),
    "cosine_restarts": sch.warmup(sch.cosine_restarts(30, peak=0.5), 10),
    "equal_memory": sch.warmup(sch.equal_memory(weight_decay=0.1, peak=0.5), 10),
    "exponential": sch.warmup(sch.exponential(90, peak=0.5, final=0.01), 10),
    "inverse_sqrt": sch.warmup(sch.inverse_sqrt(10, peak=0.5), 10),
    "linear": sch.warmup_linear(100, warmup=10, peak=0.5),
    "one_cycle": sch.one_cycle(100, warmup=10, peak=0.5, final=0.0),
    "polynomial": sch.warmup(sch.polynomial(90, power=2, peak=0.5), 10),
    "step": sch.step(milestones=[40, 80], peak=0.5) * sch.warmup(sch.constant(), 10),
    "wsd": sch.wsd(100, warmup=10, peak=0.5),
}


def test_every_name_is_listed() -> None:
    assert list(sch.NAMES) == sorted(sch.NAMES)
    assert set(sch.NAMES) == set(WANTED)


@pytest.mark.parametrize("name", sch.NAMES)
def test_named_makes_the_curve(name: str) -> None:
    s = sch.named(name, steps=100, peak=0.5, warmup=10, **EXTRA.get(name, {}))
    assert s == WANTED[name]
    assert s.values(100).max() == pytest.approx(0.5, rel=0.01)
    assert s.end in (None, 100)


@pytest.mark.parametrize("name", sch.NAMES)
def test_named_without_warmup(name: str) -> None:
    s = sch.named(name, steps=50, **EXTRA.get(name, {}))
    assert len(s.values(50)) == 50
    assert np.all(s.values(29) > 0)


def test_final_is_the_value_of_the_last_step() -> None:
    for name in ("linear", "cosine", "polynomial", "exponential", "wsd", "one_cycle"):
        assert sch.named(name, steps=100, warmup=10, final=0.125)(100) == 0.125


def test_extras_reach_the_curve() -> None:
    assert sch.named("wsd", steps=100, decay=30, tail="1-sqrt") == sch.wsd(100, decay=30, tail="1-sqrt")
    assert sch.named("polynomial", steps=100, power=3) == sch.polynomial(100, power=3)
    assert sch.named("inverse_sqrt", steps=100, timescale=7) == sch.inverse_sqrt(7)
    assert sch.named("step", steps=100, every=7, factor=0.5) == sch.step(every=7, factor=0.5)
    assert sch.named("one_cycle", steps=100, start=0.5, anneal="linear") == sch.one_cycle(
        100, start=0.5, final=0.0, anneal="linear"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "cos", "steps": 9}, r"name = 'cos': must be one of constant, cosine, cosine_restarts, .*, wsd$"),
        ({"name": "cosine", "steps": 0}, "steps = 0: must be a whole number ≥ 1"),
        ({"name": "cosine", "steps": 9, "warmup": 9}, "warmup = 9: must be < steps = 9"),
        (
            {"name": "cosine", "steps": 9, "power": 2},
            "power = 2: must be left out, because 'cosine' takes nothing more",
        ),
        ({"name": "wsd", "steps": 9, "power": 2}, "power = 2: must be left out, because 'wsd' takes only decay, tail"),
        ({"name": "equal_memory", "steps": 9}, "weight_decay = None: must be given for 'equal_memory'"),
        ({"name": "cosine_restarts", "steps": 9}, "period = None: must be given for 'cosine_restarts'"),
        ({"name": "exponential", "steps": 9}, "final = 0.0: must be a finite number > 0"),
        ({"name": "constant", "steps": 9, "final": 0.1}, "final = 0.1: must be 0 for 'constant'"),
        ({"name": "constant", "steps": 9, "peak": "x"}, "peak = 'x': must be a finite number ≥ 0"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sch.named(**arguments)
