"""Rotational twins: what turns, by how much, and that all the rest is the plain optimizer's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.optim import references
from torch import Tensor, nn

import equipoise as eq
from equipoise import theory
from equipoise.optim import add_gains, fold
from equipoise.schedules import cosine
from equipoise.theory import rotation_angle


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(10, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3)
    )
    return model.double()


def loss(model: nn.Module) -> Tensor:
    return nn.functional.cross_entropy(model(torch.arange(10)), torch.arange(10) % 3)


FORECAST = {"angle": "forecast", "steps": 9}

LIKES: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-2, weight_decay=0.1, betas=(0.8, 0.95)),
    "ours": lambda m: eq.AdamW(eq.param_groups(m), lr=1e-2, weight_decay=0.1),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2),
    "Adam L2": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=0.1),
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=1e-2, momentum=0.8, weight_decay=0.1, nesterov=True),
    "Lion": lambda m: eq.Lion(eq.param_groups(m), lr=1e-2, weight_decay=0.1),
    "SignSGDM": lambda m: eq.SignSGDM(m.parameters(), lr=1e-2, weight_decay=0.1),
    "Muon": lambda m: eq.Muon(eq.param_groups(m), lr=1e-2, weight_decay=0.1),
}


@pytest.mark.parametrize("angle", ["step", "forecast"])
@pytest.mark.parametrize("name", LIKES)
def test_what_does_not_turn_takes_the_plain_step(name: str, angle: Any) -> None:
    plain, turned = network(), network()
    like = LIKES[name](plain)
    more: dict[str, Any] = {"steps": 9, "grad_norm": 0.1} if angle == "forecast" else {}
    twin = eq.rotational(turned, LIKES[name](turned), angle=angle, **more)
    for _ in range(3):
        for model, optimizer in ((plain, like), (turned, twin)):
            for p in model.parameters():
                p.grad = torch.sin(torch.arange(p.numel(), dtype=p.dtype)).reshape(p.shape)
            optimizer.step()
    start = network().state_dict()
    for key, value in plain.state_dict().items():
        if key in ("1.weight", "3.weight"):
            got, was = turned.state_dict()[key], start[key]
            if angle == "forecast":
                torch.testing.assert_close(got.norm(dim=1), was.norm(dim=1))
            assert not torch.allclose(got, was)
            assert not torch.equal(got, value)
        else:
            torch.testing.assert_close(turned.state_dict()[key], value, msg=key)


def angles(twin: torch.optim.Optimizer, w: Tensor, model: nn.Module, steps: int) -> np.ndarray:
    found = []
    for _ in range(steps):
        old = w.detach().clone()
        loss(model).backward()
        twin.step()
        twin.zero_grad()
        moved = w.detach() - old
        norm = old.norm(dim=1)
        radial = (moved * old).sum(1) / norm
        theta = rotation_angle(norm=norm.numpy(), change_norm=moved.norm(dim=1).numpy(), radial=radial.numpy())
        found.append(theta.mean())
    return np.array(found)


@pytest.mark.parametrize("decay", [0.0, 0.5])
def test_it_turns_as_theory_forecasts_for_the_plain_optimizer(decay: float) -> None:
    model, steps = network(), 60
    w: Any = model[3].weight
    rms = float(w.detach().square().mean().sqrt())
    like = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=decay)
    twin = eq.rotational(model, like, angle="forecast", steps=steps, schedule=cosine(steps))
    forecast = theory.forecast(
        "adamw", lr=1e-2 * cosine(steps).values(steps), weight_decay=decay, steps=steps, size=16, init_norm=4 * rms
    )
    found = angles(twin, w, model, steps)
    np.testing.assert_allclose(found, forecast.rotation, rtol=0.03, atol=1e-12)


def moved(model: nn.Module, optimizer: torch.optim.Optimizer, w: Tensor) -> tuple[Tensor, Tensor]:
    """The squares of the parts of a step across the rows, and the norms of the rows after it."""
    old = w.detach().clone()
    loss(model).backward()
    optimizer.step()
    head = old / old.norm(dim=1, keepdim=True)
    new = w.detach()
    along = (new * head).sum(1, keepdim=True)
    return torch.atan2((new - along * head).norm(dim=1), along[:, 0]), new.norm(dim=1)


@pytest.mark.parametrize("name", LIKES)
def test_it_turns_all_rows_as_far_as_the_plain_step_turns_their_tensor(name: str) -> None:
    """From the same state, a plain step and the twin's: the same norms, and the twin's angles are all the plain RMS."""
    plain, turned = network(), network()
    for _ in range(3):
        like = LIKES[name](plain)
        theirs, norms = moved(plain, like, plain[3].weight)  # type: ignore[arg-type]
        twin = eq.rotational(turned, LIKES[name](turned))
        ours, same = moved(turned, twin, turned[3].weight)  # type: ignore[arg-type]
        torch.testing.assert_close(same, norms)
        torch.testing.assert_close(ours, ours[:1].expand_as(ours), rtol=1e-6, atol=0)
        across, along = (norms * theirs.sin()).norm(), (norms * theirs.cos()).norm()
        torch.testing.assert_close(ours[0], torch.atan2(across, along), rtol=1e-6, atol=0)
        assert float(theirs.std() / theirs.mean()) > 1e-3
        turned.load_state_dict(plain.state_dict())
        plain.zero_grad()
        turned.zero_grad()


def test_by_its_own_step_it_is_the_literal_algorithm() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(6, 10, generator=generator, dtype=torch.float64)
    grads = torch.randn(30, 6, 10, generator=generator, dtype=torch.float64)
    grads[10:, 2] *= 1e-3  # a row that falls silent
    options: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.3}
    direction = references.adam_direction((0.8, 0.95), 1e-8)
    expected = references.even_rows(start.numpy(), grads.numpy(), direction=direction, **options)
    for wrapped in (False, True):
        w = nn.Parameter(start.clone())
        options |= {"betas": (0.8, 0.95), "eps": 1e-8}
        made: torch.optim.Optimizer = (
            eq.Rotational(torch.optim.AdamW([w], **options), angle="step")
            if wrapped
            else eq.RotationalAdamW([w], angle="step", **options)
        )
        for g in grads:
            w.grad = g.clone()
            made.step()
        np.testing.assert_allclose(w.detach().numpy(), expected, rtol=1e-9, atol=1e-12)


def test_rows_of_zeros_grow_as_by_the_plain_step() -> None:
    w, plain = (nn.Parameter(torch.cat([torch.ones(2, 4), torch.zeros(1, 4)])) for _ in range(2))
    twin, like = eq.RotationalAdamW([w], lr=0.1, weight_decay=0.0, angle="step"), torch.optim.AdamW([plain], lr=0.1)
    for group in like.param_groups:
        group["weight_decay"] = 0.0
    g = torch.linspace(-1, 1, 12).reshape(3, 4)
    for p, optimizer in ((w, twin), (plain, like)):
        p.grad = g.clone()
        optimizer.step()
    torch.testing.assert_close(w[2], plain[2])
    assert float(w[2].detach().norm()) > 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"angle": "own"}, "angle = 'own': must be a number"),
        ({"angle": "step", "norm": 1.0}, "norm = 1.0: must be None"),
        ({"angle": "step", "reference": "paper"}, "reference = 'paper': must be None"),
        ({"angle": "step", "decay": "cautious"}, "decay = 'cautious': must be another"),
    ],
)
def test_what_does_not_go_with_the_step_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eq.RotationalAdamW([nn.Parameter(torch.eye(3))], **options)


def test_it_turns_at_the_equilibrium_of_the_lr_of_the_day() -> None:
    model = network()
    like = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    twin = eq.rotational(model, like, angle="equilibrium")
    w: Any = model[3].weight
    first = angles(twin, w, model, 1)[0]
    for group in twin.param_groups:
        group["lr"] /= 4
    for lr, got in ((1e-2, first), (2.5e-3, angles(twin, w, model, 1)[0])):
        assert got == pytest.approx(theory.stationary("adamw", lr=lr, weight_decay=0.1, size=16).rotation, rel=0.01)


def test_a_resumed_run_follows_the_forecast_from_its_own_start() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        like = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
        return eq.rotational(model, like, angle="forecast", steps=40, schedule=cosine(40))

    whole = network()
    w: Any = whole[3].weight
    one = make(whole)
    expected = angles(one, w, whole, 20)[10:]
    first = network()
    before = make(first)
    angles(before, first[3].weight, first, 10)  # type: ignore[arg-type]
    second = network(1)
    with torch.no_grad():
        second[3].weight.mul_(5)  # type: ignore[operator]  # a forecast from here would be another
    after = make(second)
    second.load_state_dict(first.state_dict())
    after.load_state_dict(before.state_dict())
    np.testing.assert_allclose(angles(after, second[3].weight, second, 10), expected, rtol=1e-9)  # type: ignore[arg-type]


def test_gains_start_at_one_and_are_folded_away() -> None:
    model = network()
    before = loss(model).item()
    like = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    twin = eq.rotational(model, like, gains=True)
    assert loss(model).item() == pytest.approx(before)
    gains = [g for g in twin.param_groups if any(n.endswith("gain") for n in g["param_names"])]
    assert [(g["weight_decay"], g["rotate"], len(g["params"])) for g in gains] == [(0.0, False, 2)]
    for _ in range(10):
        loss(model).backward()
        twin.step()
        twin.zero_grad()
    trained = loss(model).item()
    fold(model)
    assert set(model.state_dict()) == set(network().state_dict())
    assert loss(model).item() == pytest.approx(trained)
    assert trained < before


def test_tensors_of_zeros_take_the_plain_step() -> None:
    model = network()
    nn.init.zeros_(model[3].weight)  # type: ignore[arg-type]
    twin = eq.rotational(model, torch.optim.AdamW(model.parameters(), weight_decay=0.1))
    turning = [name for g in twin.param_groups if g["rotate"] for name in g["param_names"]]
    assert turning == ["1.weight"]


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (lambda m: torch.optim.AdamW(m.parameters(), weight_decay=0.0), {"angle": "equilibrium"}, "leave out angle"),
        (lambda m: torch.optim.AdamW(m.parameters()), {"angle": "own"}, "angle = 'own': must be"),
        (lambda m: torch.optim.AdamW(m.parameters()), {"schedule": cosine(9)}, "schedule: must be left out"),
        (lambda m: torch.optim.AdamW(m.parameters()), {"steps": 9}, "steps: must be left out"),
        (lambda m: torch.optim.AdamW(m.parameters()), FORECAST | {"schedule": "cosine"}, "must be a Schedule"),
        (lambda m: torch.optim.AdamW(m.parameters()), FORECAST | {"steps": 0}, "steps = 0"),
        (lambda m: torch.optim.AdamW(m.parameters()), FORECAST | {"steps": None}, "steps = None"),
        (lambda m: torch.optim.AdamW(m.parameters()), {"rotate": ["heads"]}, "rotate = 'heads'"),
        (lambda m: torch.optim.SGD(m.parameters(), weight_decay=0.1), FORECAST, "grad_norm = None"),
        (lambda m: torch.optim.Adagrad(m.parameters()), {}, "like = Adagrad"),
        (lambda m: eq.RotationalAdamW(m.parameters()), {}, "like = RotationalAdamW"),
        (lambda m: eq.AdamW(m.parameters(), decay="cautious"), {}, "decay = 'cautious'"),
        (lambda m: torch.optim.AdamW(network().parameters()), {}, "of the model's parameters"),
    ],
)
def test_bad_arguments_are_named(make: Any, options: dict[str, Any], message: str) -> None:
    model = network()
    with pytest.raises(ValueError, match=message):
        eq.rotational(model, make(model), **options)
    assert set(model.state_dict()) == set(network().state_dict())
    add_gains(model)  # nothing was left behind
