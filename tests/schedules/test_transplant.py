"""Effective steps carried over: round trips, the exact law against theory, and the reverse through the forecast."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise as eq
import equipoise.schedules as sch
from equipoise import theory

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("adamw", {}),
    ("adamw", {"betas": (0.95, 0.95)}),
    ("adam_nested", {}),
    ("rmsprop", {}),
    ("sgdm", {"momentum": 0.9}),
    ("sgdm", {"momentum": 0.99, "coupled": False}),
    ("sgdm", {"momentum": 0.9, "nesterov": True}),
    ("lion", {"betas": (0.9, 0.99)}),
    ("signsgdm", {"momentum": 0.9}),
    ("muon", {"momentum": 0.95, "shape": (32, 64)}),
    ("ngd", {}),
]


@pytest.mark.parametrize("method", ["exact", "small_step"])
@pytest.mark.parametrize(("optimizer", "setting"), SETTINGS)
def test_the_law_is_that_of_theory(optimizer: str, setting: dict[str, Any], method: str) -> None:
    lr = np.concatenate([np.logspace(-4, -1, 13), [0.3, 0.5, 0.7, 0.9, 0.99]])
    size = {} if "shape" in setting else {"size": 256}
    wanted = [
        theory.stationary(optimizer, lr=x, weight_decay=1.0, method=method, **size, **setting).rotation for x in lr
    ]
    got = sch.variant_rotation(lr, weight_decay=1.0, optimizer=optimizer, method=method, **setting)
    assert np.allclose(got, wanted, rtol=1e-10)


@pytest.mark.parametrize("method", ["exact", "small_step"])
@pytest.mark.parametrize(("optimizer", "setting"), SETTINGS)
def test_rotational_lr_and_rotation_are_inverse(optimizer: str, setting: dict[str, Any], method: str) -> None:
    wd = sch.linear(100, peak=0.5, final=0.1)
    lr = np.concatenate([np.logspace(-9, -1, 80), np.linspace(0.11, 1.9, 18), [0.0, 1e-300]])
    rotation = sch.variant_rotation(lr, weight_decay=wd, optimizer=optimizer, method=method, **setting)
    back = sch.rotational_lr(rotation, weight_decay=wd, optimizer=optimizer, method=method, **setting)
    assert np.allclose(back.values(), lr, rtol=1e-9, atol=0)
    assert back.end == 100


@given(eta=st.floats(1e-6, 0.5), wd=st.floats(1e-3, 1.9), beta=st.floats(0, 0.999))
def test_small_step_is_the_closed_form(eta: float, wd: float, beta: float) -> None:
    """η_r = √(2ηλ(1−β1)/(1+β1)), solved for η."""
    rotation = math.sqrt(2 * eta * wd * (1 - beta) / (1 + beta))
    s = sch.rotational_lr([rotation], weight_decay=wd, betas=(beta, 0.999), method="small_step")
    assert s(1) == pytest.approx(eta, rel=1e-12)


def test_the_variant_of_a_forecast_turns_as_the_forecast() -> None:
    lr = sch.warmup_cosine(3000, warmup=100, peak=3e-3, final=3e-4)
    f = theory.forecast("adamw", lr=lr.values(), weight_decay=0.1, size=512, init_norm=1.0)
    variant = sch.rotational_lr(f, weight_decay=0.1)
    assert np.allclose(sch.variant_rotation(variant, weight_decay=0.1), f.rotation, rtol=1e-10)
    ratio = variant.values() / lr.values()
    # Weights smaller than at equilibrium turn faster, so the variant needs more at first, and the same once settled.
    assert ratio[200] > 1.5
    assert abs(ratio[1500] - 1) < 0.35


def test_at_equilibrium_nothing_changes() -> None:
    state = theory.stationary("adamw", lr=1e-2, weight_decay=0.1, size=512)
    f = theory.forecast("adamw", lr=1e-2, weight_decay=0.1, steps=4000, size=512, init_norm=state.norm)
    variant = sch.rotational_lr(f, weight_decay=0.1).values()
    assert np.allclose(variant[2000:], 1e-2, rtol=1e-3)


@pytest.mark.parametrize(
    ("optimizer", "setting"),
    [
        ("adamw", {"size": 512}),
        ("adamw", {"size": 512, "betas": (0.8, 0.95)}),
        ("adamw", {"size": 64, "decay": "corrected", "lr_max": 3e-3}),
        ("adam_l2", {"size": 64}),
        ("sgdm", {"momentum": 0.9}),
        ("sgdm", {"momentum": 0.9, "coupled": False}),
        ("lion", {"size": 512, "betas": (0.9, 0.99)}),
        ("ngd", {}),
        ("muon", {"shape": (32, 32), "momentum": 0.9}),
    ],
)
def test_baseline_lr_finds_the_lr_behind_a_forecast(optimizer: str, setting: dict[str, Any]) -> None:
    lr = sch.warmup_cosine(400, warmup=40, peak=3e-3, final=3e-4).values()
    f = theory.forecast(optimizer, lr=lr, weight_decay=1.0, init_norm=1.0, **setting)
    found = sch.baseline_lr(f, weight_decay=1.0, init_norm=1.0, optimizer=optimizer, **setting)
    assert np.allclose(found.values(), lr, rtol=1e-8)


@settings(max_examples=20)
@given(
    values=st.lists(st.floats(1e-4, 1e-2), min_size=2, max_size=60),
    wd=st.floats(0, 5),
    norm=st.floats(0.3, 10),
)
def test_baseline_lr_finds_any_lr(values: list[float], wd: float, norm: float) -> None:
    f = theory.forecast("adamw", lr=values, weight_decay=wd, size=64, init_norm=norm)
    found = sch.baseline_lr(f.rotation, weight_decay=wd, size=64, init_norm=norm)
    assert np.allclose(found.values(), values, rtol=1e-7)


def test_there_and_back_between_variant_and_baseline() -> None:
    """The baseline lr that turns as a variant without warmup does begins with a warmup of its own."""
    lr = sch.cosine(2000, peak=1e-2, final=1e-3)
    wanted = sch.variant_rotation(lr, weight_decay=0.1)
    baseline = sch.baseline_lr(wanted, weight_decay=0.1, size=512, init_norm=0.5)
    f = theory.forecast("adamw", lr=baseline.values(), weight_decay=0.1, size=512, init_norm=0.5)
    assert np.allclose(f.rotation, wanted, rtol=1e-9)
    assert np.allclose(sch.rotational_lr(f, weight_decay=0.1).values(), lr.values(), rtol=1e-7)
    assert baseline(1) < 0.3 * lr(1)


def test_steps_that_stand_still_have_lr_zero() -> None:
    rotation = np.array([0.01, 0.0, 0.01])
    assert sch.rotational_lr(rotation, weight_decay=0.1)(2) == 0.0
    assert sch.baseline_lr(rotation, weight_decay=0.1, size=64, init_norm=1.0)(2) == 0.0


def test_a_million_steps_there_and_back() -> None:
    lr = sch.warmup_cosine(1_000_000, warmup=1000, peak=1e-3, final=1e-4)
    rotation = sch.variant_rotation(lr, weight_decay=0.1)
    back = sch.rotational_lr(rotation, weight_decay=0.1)
    assert np.allclose(back.values(), lr.values(), rtol=1e-9)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sch.rotational_lr([0.9], weight_decay=0.1), r"rotation\[0\] = 0.9: must be ≤ 0.4505.*cap it with"),
        (lambda: sch.rotational_lr([-0.1], weight_decay=0.1), r"rotation\[0\] = -0.1: must be a finite number ≥ 0"),
        (lambda: sch.rotational_lr([4.0], weight_decay=0.1), r"rotation\[0\] = 4: must be < π"),
        (lambda: sch.rotational_lr(0.1, weight_decay=0.1), "rotation: must be a Forecast, or a one-dimensional array"),
        (lambda: sch.rotational_lr([0.1], weight_decay=0.0), "weight_decay = 0.0: must be a finite number > 0"),
        (lambda: sch.rotational_lr([0.1], weight_decay=1, optimizer="adam_l2"), "'adam_l2': its rotation depends"),
        (lambda: sch.rotational_lr([0.1], weight_decay=1, method="fast"), "method = 'fast': must be one of"),
        (lambda: sch.variant_rotation(2.0, weight_decay=1, steps=3), r"lr · weight_decay = 2 at step 1"),
        (lambda: sch.variant_rotation(0.1, weight_decay=1), "steps = None: must be a whole number"),
        (
            lambda: sch.baseline_lr([0.01, 1.7], weight_decay=0.9, size=64, init_norm=1.0),
            r"rotation\[1\] = 1.7: no lr of adamw with weight_decay = 0.9 was found",
        ),
    ],
)
def test_bad_arguments_are_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def trained(w: torch.Tensor, lr: Any, wd: Any, steps: int, **options: Any) -> torch.Tensor:
    """SGD on a loss that does not depend on the scale of w."""
    aim = torch.linspace(-1, 2, len(w), dtype=torch.float64)
    p = torch.nn.Parameter(w.clone())
    optimizer = torch.optim.SGD([p], lr=1.0, **options)
    for t in range(steps):
        optimizer.param_groups[0] |= {"lr": float(lr[t]), "weight_decay": float(wd[t])}
        optimizer.zero_grad()
        ((p / p.norm() - aim) ** 3).sum().backward()
        optimizer.step()
    return p.detach()


START = torch.tensor([1.0, -0.5, 0.3, 2.0, -1.0], dtype=torch.float64)


def test_a_growing_lr_does_what_weight_decay_does() -> None:
    rng, steps = np.random.default_rng(0), 200
    lr, wd = rng.uniform(5e-4, 2e-3, steps), rng.uniform(0, 20, steps)  # beyond, steps are unstable
    decayed = trained(START, lr, wd, steps)
    grown = sch.growing_lr(lr, weight_decay=wd)
    alone = trained(START, grown.values(), np.zeros(steps), steps)
    np.testing.assert_allclose((decayed / decayed.norm()).numpy(), (alone / alone.norm()).numpy(), rtol=1e-9)
    left = math.prod(1 - lr * wd)
    assert float(decayed.norm() / alone.norm()) == pytest.approx(left, rel=1e-9)
    assert left < 0.2
    assert float((decayed / decayed.norm() - START / START.norm()).norm()) > 0.1


def test_a_growing_lr_with_momentum() -> None:
    """Exact from a momentum that fits the start, and near it from zero, as the theorem says."""
    steps, lr, wd, mu = 150, 0.02, 0.3, 0.8
    decayed = trained(START, [lr] * steps, [wd] * steps, steps, momentum=mu)
    grown = sch.growing_lr(lr, weight_decay=wd, steps=steps, momentum=mu).values()
    assert np.allclose(grown[1:] / grown[:-1], grown[1] / grown[0])
    root = (grown[0] / grown[1]) ** 0.5

    p = torch.nn.Parameter(START.clone())
    optimizer = torch.optim.SGD([p], lr=1.0, momentum=mu)
    optimizer.state[p]["momentum_buffer"] = -(1 - root) / (root * lr) * START
    aim = torch.linspace(-1, 2, len(START), dtype=torch.float64)
    for rate in grown:
        optimizer.param_groups[0]["lr"] = float(rate)
        optimizer.zero_grad()
        ((p / p.norm() - aim) ** 3).sum().backward()
        optimizer.step()
    alone = p.detach()
    np.testing.assert_allclose((decayed / decayed.norm()).numpy(), (alone / alone.norm()).numpy(), rtol=1e-9)
    assert float(decayed.norm() / alone.norm()) == pytest.approx(root**steps, rel=1e-9)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lr": 0.1, "weight_decay": 0.1}, "steps = None"),
        ({"lr": 0.1, "weight_decay": 10.0, "steps": 3}, "must be < 1"),
        ({"lr": [0.1, 0.2], "weight_decay": 0.1, "momentum": 0.9}, "must be constant"),
        ({"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "steps": 3}, "must be at most"),
        ({"lr": 0.5, "weight_decay": 1.9, "steps": 900}, "steps = 900: must be fewer"),
    ],
)
def test_what_cannot_grow_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sch.growing_lr(**arguments)


RULES: dict[str, Any] = {
    "sgdm": lambda p, **o: torch.optim.SGD(p, momentum=0.8, **o),
    "adam_l2": lambda p, **o: torch.optim.Adam(p, eps=0.0, **o),
    "adamw": lambda p, **o: torch.optim.AdamW(p, eps=0.0, **o),
    "lion": lambda p, **o: eq.Lion(p, **o),
    "muon": lambda p, **o: eq.Muon(p, polar={"method": "svd"}, **o),
}


@pytest.mark.parametrize("optimizer", RULES)
def test_rescaled_layers_are_the_same_network_all_along(optimizer: str) -> None:
    """[kosson2024] Eq. 93: rW₁ and W₂/r with a ReLU between them, at the lrs and decays of their sizes."""
    make = RULES[optimizer]
    factor, lr, wd, steps = 3.0, sch.cosine(20, peak=0.02, final=0.002), 0.3, 20
    generator = torch.Generator().manual_seed(0)
    shapes = ((16, 4), (16, 3), (5, 4), (3, 5))
    x, y, first, second = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in shapes)

    def trained(by: float) -> torch.Tensor:
        layers = [torch.nn.Parameter(first * by), torch.nn.Parameter(second / by)]
        curves = [sch.rescaled(lr, weight_decay=wd, factor=r, optimizer=optimizer) for r in (by, 1 / by)]
        optimizers = [make([w], lr=1.0, weight_decay=0.0) for w in layers]
        said = []
        for t in range(1, steps + 1):
            for one, (rate, decay) in zip(optimizers, curves, strict=True):
                one.param_groups[0] |= {"lr": rate(t), "weight_decay": decay(t)}
                one.zero_grad()
            out = (x @ layers[0].T).relu() @ layers[1].T
            (out - y).square().mean().backward()
            said.append(out.detach())
            for one in optimizers:
                one.step()
        return torch.stack(said)

    plain = trained(1.0)
    torch.testing.assert_close(trained(factor), plain, rtol=1e-7, atol=1e-9)
    assert float((plain[-1] - plain[0]).abs().max()) > 0.1


def test_what_cannot_be_rescaled_is_refused() -> None:
    with pytest.raises(ValueError, match="factor = 0"):
        sch.rescaled(0.1, weight_decay=0.1, factor=0)
    with pytest.raises(ValueError, match="optimizer = 'sgdx'"):
        sch.rescaled(0.1, weight_decay=0.1, factor=2, optimizer="sgdx")
