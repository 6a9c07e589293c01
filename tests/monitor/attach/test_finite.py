"""What is not finite is noticed within 16 steps, at any cadence, and at the end."""

from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.monitor.attach.finite import seen_at


def trained(path: Path, steps: int, spoil: dict[int, Any], make: Any = None, **options: Any) -> list[Any]:
    """Train a small network, spoil its weights or its gradients before a step, and give what watch says."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    make = make or (lambda p: torch.optim.AdamW(p, lr=1e-3))
    optimizer = make(model.parameters())
    watch = eq.watch(model, optimizer, path, **options)
    for step in range(1, steps + 1):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().mean().backward()
        if step in spoil:
            with torch.no_grad():
                spoil[step](model)
        optimizer.step()
        if watch.findings and "seen" not in vars(watch):
            vars(watch)["seen"] = step
    watch.close()
    return [(f.code, f.severity, f.where, vars(watch).get("seen")) for f in watch.findings if f.code == "not-finite"]


def bad_grad(model: Any) -> None:
    model[2].weight.grad[0, 0] = float("nan")


def bad_weight(model: Any) -> None:
    model[0].bias[1] = float("inf")


@pytest.mark.parametrize("first", range(150, 167))
def test_a_gradient_that_is_nan(tmp_path: Path, first: int) -> None:
    """Of AdamW: the weights are NaN after it, and so is everything else."""
    ((code, severity, _, seen),) = trained(tmp_path, 200, {first: bad_grad}, every=1000)
    assert (code, severity) == ("not-finite", "error")
    assert seen - first <= 16


@pytest.mark.parametrize("first", range(90, 107))
def test_a_weight_that_is_infinite_is_named(tmp_path: Path, first: int) -> None:
    """Behind a tanh its gradient is 0: the loss and every gradient stay finite."""
    ((_, _, where, seen),) = trained(tmp_path, 130, {first: bad_weight}, every=1000)
    assert where == "0.bias"
    assert seen - first <= 16


@pytest.mark.parametrize("first", range(90, 107))
def test_one_gradient_of_a_rule_whose_weights_stay_finite(tmp_path: Path, first: int) -> None:
    """Lion takes signs: weights, loss and later gradients stay finite, and one weight stands still for good."""
    ((_, _, where, seen),) = trained(tmp_path, 130, {first: bad_grad}, lambda p: eq.Lion(p, lr=1e-3), every=1000)
    assert where == "2.weight"
    assert seen - first <= 16


@pytest.mark.parametrize("first", [97, 98, 113])
def test_without_momentum_gradients_are_looked_at(tmp_path: Path, first: int) -> None:
    """The gradient is bad in every step from then on, and never reaches the weights."""

    class Still(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            pass

    spoil = dict.fromkeys(range(first, 131), bad_grad)
    ((_, _, where, seen),) = trained(tmp_path, 130, spoil, Still, every=1000)
    assert where == "2.weight"
    assert seen - first <= 16


def test_at_the_default_and_at_the_end(tmp_path: Path) -> None:
    assert [f[2] for f in trained(tmp_path / "default", 400, {150: bad_grad})]
    ((_, _, where, seen),) = trained(tmp_path / "end", 9, {9: bad_weight}, every=1000)
    assert (where, seen) == ("0.bias", None), "found when the run was closed"


def test_steps_that_are_left_out_are_no_fault(tmp_path: Path) -> None:
    spoil = dict.fromkeys(range(1, 60, 4), bad_grad)
    assert not trained(tmp_path / "skip", 60, spoil, lambda p: eq.AdamW(p, lr=1e-3, nonfinite="skip"), every=1000)
    assert not trained(tmp_path / "off", 60, {20: bad_grad}, every=1000, diagnose=False)
    assert not trained(tmp_path / "well", 100, {})


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_large_numbers_are_finite(tmp_path: Path, dtype: torch.dtype) -> None:
    """Their sum is not; one number that is not finite among them is found nevertheless."""
    huge = torch.finfo(dtype).max
    p = torch.nn.Parameter(torch.full((8, 8), huge, dtype=dtype))
    optimizer = torch.optim.SGD([p], lr=0.0)
    for value in (huge, float("inf")):
        p.data[3, 3] = value
        with eq.watch(None, optimizer, tmp_path / f"{value}", every=1000) as watch:
            for _ in range(3):
                p.grad = torch.zeros_like(p)
                optimizer.step()
        assert [f.code for f in watch.findings if f.code == "not-finite"] == ["not-finite"] * (value > huge)


def test_diagnose_says_the_first_step_that_is_known(tmp_path: Path) -> None:
    """Never a later one than was said while the run went on; an earlier one where a measured row has it. Never two."""
    for every, first in ((50, 150), (50, 153), (1, 150), (1, 153)):
        path = tmp_path / f"{every}-{first}"
        trained(path, 200, {first: bad_grad}, every=every)
        with eq.Run.open(path) as run:
            (stored,) = [f for f in run.findings if f.code == "not-finite"]
            (told,) = [f for f in run.diagnose() if f.code == "not-finite"]
            assert first <= seen_at(told) <= seen_at(stored)
            assert seen_at(told) == first if every == 1 else told == stored or seen_at(told) < seen_at(stored)
