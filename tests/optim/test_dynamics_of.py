"""What of a parameter is a matrix: the step, the plan and the watch agree, on stacks and split parameters, too."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise import theory
from equipoise.optim.dynamics_of import dynamics_of

CASES: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "matrix": ((64, 96), {}),
    "stack of experts": ((8, 16, 32), {}),
    "stack, spectral": ((8, 16, 32), {"scale": "spectral"}),
    "stack, tall, adam": ((4, 32, 16), {"scale": "adam"}),
    "fused QKV": ((192, 64), {"split": 3}),
    "flattened": ((64, 6, 16), {"flatten": True}),
    "convolution": ((16, 4, 3, 3), {}),
}


@pytest.mark.parametrize("key", CASES)
def test_plan_and_watch_know_the_matrices_that_the_step_moves(tmp_path: Path, key: str) -> None:
    """A random walk of 300 steps: update, norm and rotation as planned, within 3 %, and c_err 1."""
    shape, own = CASES[key]
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(shape) * 0.1)
    group: dict[str, Any] = {"params": [w], **{k: v for k, v in own.items() if k in ("split", "flatten")}}
    scale = own.get("scale", "original")
    optimizer = eq.Muon([group], lr=0.02, weight_decay=0.5, scale=scale, polar={"steps": 8})
    plan = eq.plan(None, optimizer, steps=300)
    forecast = plan.tensors[0].forecast
    assert forecast is not None
    with eq.watch(None, optimizer, tmp_path, every=5, spectra=0, strict=True) as watch:
        for _ in range(300):
            w.grad = torch.randn(shape)
            optimizer.step()
    name = "group 0, parameter 0"
    with eq.Run.open(tmp_path) as run:
        late = slice(-20, None)
        for quantity in ("update", "norm", "rotation"):
            series = run.series(quantity, name)
            wanted = getattr(forecast, quantity)[series.steps - 1]
            assert series.values[late].mean() == pytest.approx(wanted[late].mean(), rel=0.03), quantity
        assert run.series("c_err", name).values[late].mean() == pytest.approx(1.0, rel=0.03)
        compared = run.compare(name)
        assert compared.plain.norm[late].mean() == pytest.approx(run.series("norm", name).values[late].mean(), rel=0.03)
    assert [f.code for f in watch.findings if f.severity != "info"] == []


@pytest.mark.parametrize("key", CASES)
def test_the_update_is_as_long_as_the_layout_says(key: str) -> None:
    """By the first step itself, in float64."""
    shape, own = CASES[key]
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.zeros(shape, dtype=torch.float64))
    group: dict[str, Any] = {"params": [w], **{k: v for k, v in own.items() if k in ("split", "flatten")}}
    optimizer = eq.Muon([group], lr=1.0, weight_decay=0.0, scale=own.get("scale", "original"), polar={"steps": 12})
    w.grad = torch.randn_like(w)
    optimizer.step()
    layout = dynamics_of(optimizer, optimizer.param_groups[0]).layout(shape)
    assert layout is not None
    count, rows, columns, scale = layout
    assert count * rows * columns == math.prod(shape)
    assert float(w.detach().norm()) == pytest.approx(scale * math.sqrt(count * min(rows, columns)), rel=1e-2)


def test_a_stack_settles_as_its_matrices_do() -> None:
    options: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.95}
    one = theory.stationary("muon", shape=(8, 12), **options)
    stack = theory.stationary("muon", shape=(4, 8, 12), **options)
    assert (stack.norm, stack.update) == pytest.approx((2 * one.norm, 2 * one.update))
    assert stack.rotation == pytest.approx(one.rotation)


def test_torch_muon_is_read() -> None:
    w = torch.nn.Parameter(torch.randn(24, 6))
    for rule, scale in ((None, 2.0), ("original", 2.0), ("match_rms_adamw", 0.2 * math.sqrt(24))):
        optimizer = torch.optim.Muon([w], adjust_lr_fn=rule)
        found = dynamics_of(optimizer, optimizer.param_groups[0])
        assert found.layout((24, 6)) == (1, 24, 6, pytest.approx(scale))


class Unheard(torch.optim.Optimizer):
    """w ← w − lr·g·|g|, which no theory here knows."""

    def __init__(self, params: Any, lr: float = 0.1, weight_decay: float = 0.0, betas: tuple[float, ...] = (0.5, 1.0)):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": (None, 1e-3)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad * p.grad.abs())


def test_a_hand_written_optimizer_is_planned_and_watched_and_said_to_be_unknown(tmp_path: Path) -> None:
    model = torch.nn.Linear(16, 8)
    optimizer = Unheard(model.parameters())
    plan = eq.plan(model, optimizer, steps=60)
    assert any("Unheard is not known to the theory" in note for note in plan.setting.assumptions)
    assert not plan.setting.groups[0].dynamics.known
    generator, before = torch.Generator().manual_seed(0), model.weight.detach()
    with eq.watch(model, optimizer, tmp_path, every=1, strict=True, quiet=True, spectra=0):
        for _ in range(60):
            before = model.weight.detach().clone()
            for p in model.parameters():
                p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
    with eq.Run.open(tmp_path) as run:
        change = float((model.weight.detach() - before).norm())
        assert run.series("change", "weight").values[-1] == pytest.approx(change, rel=1e-4)
        assert len(run.series("c_err", "weight").values) == 0
        assert not run.compare("weight").known


class Slower(Unheard):
    """Holds another optimizer and does something of its own to its steps."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        super().__init__(optimizer.param_groups)
        self.optimizer = optimizer


def test_a_holder_that_is_not_known_is_not_taken_for_what_it_holds() -> None:
    w = torch.nn.Parameter(torch.eye(3))
    optimizer = torch.optim.AdamW([w])
    assert dynamics_of(optimizer, optimizer.param_groups[0]).known
    found = dynamics_of(Slower(optimizer), optimizer.param_groups[0])
    assert (found.optimizer, found.known) == ("adamw", False)
