"""Distributed checkpoints (DCP) hold all of an optimizer's state, and what goes on from one is what went on."""

# pyright: reportPrivateImportUsage=false
# (torch exports save and load without saying so)

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from tests.optim.table import CONTROLLED, MATRIX, PLAIN, Row
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict, set_optimizer_state_dict

from equipoise import optim

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")  # one process is meant


def network(dtype: torch.dtype) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 4)).to(dtype)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    for step in steps:
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()).dtype)
        optimizer.zero_grad()
        (model(x) - 1).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("row", [r for r in PLAIN + CONTROLLED + MATRIX if "zero_init" not in r.name], ids=str)
def test_goes_on_to_the_bit(row: Row, dtype: torch.dtype, tmp_path: Path) -> None:
    goes_on_to_the_bit(lambda model: row.build(model.parameters()), dtype, tmp_path)


AT_LR_0: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW, independent": lambda params: optim.AdamW(params, lr=0.01, weight_decay=0.01, decay="independent"),
    "Muon, independent": lambda params: optim.Muon(params, lr=0.01, weight_decay=0.01, decay="independent"),
    "AdamCPR": lambda params: optim.AdamCPR(params, lr=0.01, bound=1e-3),
    "RotationalAdamW": lambda params: optim.RotationalAdamW(params, lr=0.01, angle=0.02, norm=0.7),
}
"""What moves weights in a step of lr 0, too."""


@pytest.mark.parametrize("name", AT_LR_0)
def test_loading_moves_no_weight(name: str, tmp_path: Path) -> None:
    """Torch steps an optimizer without state, at lr 0, so that there is one to load into."""
    model = network(torch.float32)
    train(model, AT_LR_0[name](model.parameters()), range(3))
    model.zero_grad()  # torch takes no such step where there are gradients
    before = copy.deepcopy(model.state_dict())
    get_optimizer_state_dict(model, AT_LR_0[name](model.parameters()))
    torch.testing.assert_close(model.state_dict(), before, rtol=0, atol=0)
    goes_on_to_the_bit(lambda model: AT_LR_0[name](model.parameters()), torch.float32, tmp_path)


def test_a_first_step_of_lr_0_with_a_gradient_is_a_step() -> None:
    model = network(torch.float32)
    before = model[0].weight.detach().clone()  # type: ignore[index]
    train(model, optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.01, decay="independent"), range(1))
    torch.testing.assert_close(model[0].weight.detach(), 0.99 * before)  # type: ignore[index]


def test_a_state_of_torchs_muon_is_muons() -> None:
    torch.manual_seed(0)
    ours, theirs = (torch.nn.Linear(6, 8, bias=False) for _ in range(2))
    ours.load_state_dict(theirs.state_dict())
    peer = torch.optim.Muon(theirs.parameters(), lr=0.01, weight_decay=0.1)
    same = {"coefficients": "muon", "steps": 5, "bound": "frobenius", "dtype": torch.bfloat16}
    optimizer = optim.Muon(ours.parameters(), lr=0.5, polar=same)
    train(theirs, peer, range(3))
    ours.load_state_dict(theirs.state_dict())
    optimizer.load_state_dict(peer.state_dict())
    assert [g["muon"] for g in optimizer.param_groups] == [True]
    assert [g["lr"] for g in optimizer.param_groups] == [0.01]
    train(theirs, peer, range(3, 4))
    train(ours, optimizer, range(3, 4))
    torch.testing.assert_close(ours.weight, theirs.weight, rtol=1e-3, atol=1e-3)


WRAPPED: dict[str, Callable[[Any], optim.Rotational]] = {
    "AdamW": lambda params: optim.Rotational(torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)),
    "SGD": lambda params: optim.Rotational(torch.optim.SGD(params, lr=0.01, momentum=0.9), angle=0.02),
    "NAdam": lambda params: optim.Rotational(torch.optim.NAdam(params, lr=0.01), angle=lambda t: 0.01 * t),
    "Lion": lambda params: optim.Rotational(optim.Lion(params, lr=0.01, weight_decay=0.1)),
}
"""The angle of the third follows the step, which must be known after loading."""


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", WRAPPED)
def test_a_wrapped_optimizer_goes_on_to_the_bit(name: str, flat: bool, tmp_path: Path) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    goes_on_to_the_bit(lambda model: WRAPPED[name](model.parameters()), torch.float32, tmp_path, options)


def test_looking_at_the_state_of_a_wrapped_optimizer_takes_no_step() -> None:
    """Torch steps an optimizer that looks empty, so that there is a state to load into."""
    model = network(torch.float32)
    inner = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    train(model, inner, range(3))
    inner.zero_grad()
    before = copy.deepcopy(inner.state_dict()["state"])
    get_optimizer_state_dict(model, optim.Rotational(inner))
    torch.testing.assert_close(inner.state_dict()["state"], before, rtol=0, atol=0)


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("make", [optim.AdamW, optim.Muon, optim.SteepestDescent])
def test_named_parameters_go_on_to_the_bit(make: Any, flat: bool, tmp_path: Path) -> None:
    """Each split group has the names of its own."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    goes_on_to_the_bit(lambda model: make(model.named_parameters(), lr=0.01), torch.float32, tmp_path, options)


SWITCHES: dict[str, Callable[[Any], optim.Switch]] = {
    "AdamW, SGD": lambda p: optim.Switch(optim.AdamW(p), torch.optim.SGD(p, lr=0.01, momentum=0.9), at=2, blend=3),
    "not yet": lambda p: optim.Switch(optim.RotationalAdamW(p, lr=0.01), torch.optim.AdamW(p, lr=0.01), at=6),
    "long ago": lambda p: optim.Switch(torch.optim.SGD(p, lr=0.1), optim.AdamCPR(p, lr=0.01, bound=0.1), at=1),
    "groups": lambda p: optim.Switch(optim.Muon(p), torch.optim.AdamW(p), at=3, blend=2),
    "Rotational": lambda p: optim.Switch(
        torch.optim.NAdam(p), optim.Rotational(torch.optim.NAdam(p, lr=0.01), angle=lambda t: 0.01 * t), at=6
    ),
}


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_goes_on_to_the_bit(name: str, flat: bool, tmp_path: Path) -> None:
    """Also where one of the two has not begun, here or there."""
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    goes_on_to_the_bit(lambda model: SWITCHES[name](list(model.parameters())), torch.float32, tmp_path, options)


def goes_on_to_the_bit(
    build: Callable[[torch.nn.Module], torch.optim.Optimizer],
    dtype: torch.dtype,
    tmp_path: Path,
    options: StateDictOptions | None = None,
) -> None:
    model = network(dtype)
    optimizer = build(model)
    train(model, optimizer, range(4))
    averages = get_optimizer_state_dict(model, optimizer, options=options)
    dcp.save({"model": model, "optimizer": averages}, checkpoint_id=tmp_path / "a")
    after = copy.deepcopy(model.state_dict())
    train(model, optimizer, range(4, 8))

    other = network(dtype)
    again = build(other)
    averages = get_optimizer_state_dict(other, again, options=options)  # what is not here is not loaded
    dcp.load({"model": other, "optimizer": averages}, checkpoint_id=tmp_path / "a")
    set_optimizer_state_dict(other, again, averages, options=options)
    assert all(torch.equal(v, after[k]) for k, v in other.state_dict().items())
    train(other, again, range(4, 8))
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name
