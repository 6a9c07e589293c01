"""One schedule of every kind, plain and composed, for the tests that hold for all of them."""

import math

import numpy as np
import pytest

import equipoise.schedules as sch

LR, WD = sch.equal_memory_tied(300, weight_decay=0.1, peak=0.1)

EXAMPLES: dict[str, sch.Schedule] = {
    "constant": sch.constant(0.3),
    "linear": sch.linear(700, peak=0.3, final=0.01),
    "rising": sch.linear(700, peak=0.85, final=0.95),
    "polynomial": sch.polynomial(700, power=1.7, peak=0.3, final=0.02),
    "exponential": sch.exponential(700, final=0.001, peak=0.7),
    "cosine": sch.cosine(700, peak=0.3, final=0.03),
    "inverse_sqrt": sch.inverse_sqrt(50, peak=0.3),
    "step": sch.step(milestones=[10, 300, 301], factor=0.3, peak=0.7),
    "every": sch.step(every=37, factor=0.9),
    "cosine_restarts": sch.cosine_restarts(60, peak=0.7, final=0.1),
    "growing_restarts": sch.cosine_restarts(13, growth=3, factor=0.7),
    "one_cycle": sch.one_cycle(700, peak=0.3),
    "one_cycle_linear": sch.one_cycle(700, warmup=100, peak=0.1, anneal="linear"),
    "one_cycle_momentum": sch.one_cycle(700, start=0.95, peak=0.85, final=0.95),
    "wsd": sch.wsd(700, warmup=70, decay=100, peak=0.3, final=0.003),
    "wsd_sqrt": sch.wsd(700, warmup=70, peak=0.3, tail="1-sqrt"),
    "wsd_cosine": sch.wsd(700, peak=0.3, tail="cosine"),
    "warmup_cosine": sch.warmup_cosine(700, warmup=33, peak=1 / 3, final=1 / 30),
    "warmup_linear": sch.warmup_linear(700, warmup=33, peak=math.pi / 10),
    "equal_memory": sch.equal_memory(weight_decay=0.1, peak=0.7),
    "tied_lr": LR,
    "tied_weight_decay": WD,
    "from_weights": sch.from_weights(sch.recency(200, timescale=30), weight_decay=0.1, lr_first=1e-4),
    "short_array": sch.from_array([0.1, 1 / 3, 0.2]),
    "long_array": sch.from_array(np.random.default_rng(0).uniform(0, 0.9, 300)),
    "from_function": sch.from_function(lambda t: 1 / (1 + t), 100),
    "scale": sch.linear(300) / 3,
    "product": 0.3 * sch.cosine(700) * sch.warmup(sch.constant(), 100),
    "add": sch.cosine_restarts(100, peak=0.1) + sch.linear(500, peak=0.2) + 0.01,
    "clip": sch.clip(sch.exponential(300, final=0.001), low=0.1, high=0.9),
    "clip_low": sch.clip(sch.inverse_sqrt(10), low=0.3),
    "join": sch.join(sch.linear(100, peak=0.1, final=0.5), sch.constant(0.5), sch.cosine(300, peak=0.5), at=[100, 300]),
    "nested": sch.warmup(
        sch.join(2 * sch.step(every=9, factor=0.5), sch.from_array([0.1] * 20), at=[77]), 50, start=0.01
    ),
    "torch_decay": sch.torch_decay(sch.linear(200, peak=0.1), lr=sch.warmup(sch.cosine(600), 50), kind="corrected"),
    "torch_decay_independent": sch.torch_decay(0.001, lr=sch.cosine(300, final=0.1), kind="independent"),
}


@pytest.fixture(params=list(EXAMPLES), name="schedule")
def schedule_of_every_kind(request: pytest.FixtureRequest) -> sch.Schedule:
    return EXAMPLES[request.param]


@pytest.fixture(name="examples")
def all_examples() -> dict[str, sch.Schedule]:
    return dict(EXAMPLES)
