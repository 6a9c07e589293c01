"""Steps that never wait for their device, as far as a machine without one can show it."""

import importlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import forked
from tests.optim.engine.live_bytes import NoSync
from tests.optim.table import ALL, MATRIX, Row
from torch._subclasses.fake_tensor import FakeTensorMode

import equipoise as eq
from equipoise.optim import sphere
from equipoise.optim.engine import base, clock, rate

SHAPES = [(40, 30), (30, 40), (300, 257), (7,), (5, 3, 3, 3)]
BY_THEORY = "lr is a tensor on .*: must be a number or a tensor on the CPU where the rotation comes from lr"


def parameters(make: Callable[..., torch.Tensor] = torch.randn, **options: Any) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    return [torch.nn.Parameter(make(s, **options)) for s in SHAPES]


def run(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], steps: int = 3) -> torch.optim.Optimizer:
    for t in range(steps):
        for i, p in enumerate(params):
            p.grad = (p.detach() + i).sin_() + t
        optimizer.step()
    return optimizer


def by_theory(row: Row) -> bool:
    return row.name.startswith("Rotational") and "angle" not in row.options


# Where tensors have no numbers, whatever would read one, as a copy to the host does, raises.


@pytest.mark.parametrize("row", ALL + MATRIX, ids=str)
def test_steps_on_meta(row: Row) -> None:
    params = parameters(torch.empty, device="meta")
    optimizer = run(row.build(params), params)
    assert all(p.device.type == "meta" for group in optimizer.param_groups for p in group["params"])


@pytest.mark.parametrize("row", ALL + MATRIX, ids=str)
def test_steps_under_fake_tensor_mode_and_goes_on_from_a_state(row: Row) -> None:
    with FakeTensorMode():
        params = parameters(torch.empty)
        optimizer = run(row.build(params), params)
        again = row.build(params)
        if not row.name.endswith("sharpness"):  # torch copies an lr that is a tensor, and these have no copies
            again.load_state_dict(optimizer.state_dict())
            run(again, params, 1)
            assert {clock.value_of(again.state[p]["step"]) for p in params} == {4}


def test_reading_one_would_raise() -> None:
    with pytest.raises(RuntimeError, match="meta"):
        float(torch.empty((), device="meta"))


def test_an_accelerator_that_is_not_there() -> None:
    """Nothing lies on the wrong device, is read, or is copied to the host, with lr of any kind; see `pretend`."""
    registration = importlib.import_module("torch.utils.backend_registration")
    if not hasattr(registration, "_setup_privateuseone_for_python_backend"):
        pytest.skip("needs a newer torch")
    script = Path(__file__).with_name("pretended_device.py")
    done = forked.run(script, check=True)
    failed = [tuple(case) for case in json.loads(done.stdout)]
    refused = {row.name for row in ALL + MATRIX if by_theory(row)} | {"Rotational"}
    assert {(name, lr) for name, lr, _ in failed} == {(name, "device") for name in refused}
    assert all("must be a number or a tensor on the CPU where the rotation comes from" in said for *_, said in failed)


# On the CPU a mode refuses what would wait for a device; an lr that is a tensor is taken for one that lies on it.


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rate, base, sphere):
        monkeypatch.setattr(module, "readable", lambda x: not torch.is_tensor(x))


@pytest.mark.usefixtures("unreadable")
@pytest.mark.parametrize("row", ALL + MATRIX, ids=str)
@pytest.mark.parametrize("compile_", [False, True])
@pytest.mark.parametrize("tensor", [False, True])
def test_no_step_waits(row: Row, compile_: bool, tensor: bool) -> None:
    """And an lr that is not read gives the step of the same number."""
    if compile_ and shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")
    given: dict[str, Any] = {} if not tensor else {"lr": torch.tensor(row.options.get("lr", 1e-3))}
    if tensor and by_theory(row):
        with pytest.raises(ValueError, match=BY_THEORY):
            row.build(parameters(), **given)
        given["angle"] = 0.01
    made = []
    for options in (given, given | {"lr": float(given["lr"])} if tensor else {}):
        params = parameters()
        optimizer = row.build(params, compile=compile_, **options)
        if compile_:
            run(optimizer, params, 2)  # no mode may see how it compiles
        with NoSync():
            run(optimizer, params)
        made.append(params)
    for p, q in zip(*made, strict=True):
        assert (p - q).norm() < 1e-4 * q.norm()  # cautious decay turns rounding into steps, seldom


def test_a_tensor_on_the_cpu_is_an_lr_like_any_other() -> None:
    made = []
    for lr in (0.02, torch.tensor(0.02)):
        params = parameters()
        run(eq.RotationalAdamW(params, lr=lr), params)
        made.append(params)
    for p, q in zip(*made, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


@pytest.mark.usefixtures("unreadable")
def test_what_an_lr_on_a_device_must_be() -> None:
    with pytest.raises(ValueError, match=r"lr is a tensor of shape \(2,\): must be one number"):
        eq.AdamW(parameters(), lr=torch.ones(2))
    with pytest.raises(ValueError, match="lr_max = None: must be given where lr is a tensor on a device"):
        eq.AdamW(parameters(), lr=torch.tensor(0.1), decay="corrected")
    params = parameters()
    optimizer = eq.RotationalAdamW(params, lr=0.1)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.1)
    with pytest.raises(ValueError, match=BY_THEORY):
        run(optimizer, params)


# Counts


def test_counts_are_read_where_they_are_not_known() -> None:
    params = parameters()
    optimizer = run(eq.AdamW(params), params)
    for p in params:
        optimizer.state[p]["step"].fill_(7.0)  # by someone else
    run(optimizer, params, 1)
    assert [float(optimizer.state[p]["step"]) for p in params] == [8.0] * len(params)
    optimizer.state[params[0]]["step"] = torch.tensor(1.0)
    run(optimizer, params, 1)
    assert [clock.value_of(optimizer.state[p]["step"]) for p in params] == [2, 9, 9, 9, 9]
    assert [int(optimizer.state[p]["step"]) for p in params] == [2, 9, 9, 9, 9]


def test_counts_are_forgotten_with_their_tensors() -> None:
    before = len(clock._known)
    params = parameters()
    optimizer = run(eq.RotationalAdamW(params), params)
    assert len(clock._known) > before
    del optimizer
    assert len(clock._known) == before
