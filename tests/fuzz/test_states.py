"""Saved states that somebody has changed: refused in words before anything is loaded, or steps that stay finite.

More cases: EQUIPOISE_DRILLS=50 pytest tests/fuzz/test_states.py, as for the optimizers.
"""

import copy
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from tests.fuzz import draw
from tests.fuzz.draw import cases
from torch import nn

import equipoise as eq

NAN = float("nan")
MAKES: dict[str, Any] = {
    "AdamW": lambda p: eq.AdamW(p, lr=1e-3),
    "SGDM": lambda p: eq.SGDM(p, lr=1e-3),
    "RMSProp": lambda p: eq.RMSProp(p, lr=1e-3),
    "Lion": lambda p: eq.Lion(p, lr=1e-3),
    "Muon": lambda p: eq.Muon(p, lr=1e-3),
    "RotationalAdamW": lambda p: eq.RotationalAdamW(p, lr=1e-3, weight_decay=0.1),
    "paper": lambda p: eq.RotationalAdamW(p, lr=1e-3, weight_decay=0.1, reference="paper"),
    "NorMuon": lambda p: eq.NorMuon(p, lr=1e-3),
    "AdamP": lambda p: eq.AdamP(p, lr=1e-3),
    "Nero": lambda p: eq.Nero(p, lr=1e-3),
    "MDAdam": lambda p: eq.MDAdam(p, lr=1e-3),
    "AngularMuown": lambda p: eq.AngularMuown(p, lr=1e-3),
    "AdamCPR": lambda p: eq.AdamCPR(p, lr=1e-3),
    "Rotational": lambda p: eq.Rotational(eq.AdamW(p, lr=1e-3, weight_decay=0.1)),
    "Switch": lambda p: eq.Switch(eq.AdamW(p, lr=1e-3), eq.SGDM(p, lr=1e-3), at=2),
}
PLAIN = [name for name in MAKES if name not in ("Rotational", "Switch")]


def parameters() -> list[nn.Parameter]:
    noise = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=noise)) for shape in ((4, 3), (5,))]


def step(params: list[nn.Parameter], optimizer: Any) -> None:
    for p in params:
        p.grad = torch.linspace(-1, 1, p.numel()).reshape(p.shape)
    optimizer.step()


def saved(name: str) -> dict[str, Any]:
    """The state after two steps."""
    params = parameters()
    optimizer = MAKES[name](params)
    for _ in range(2):
        step(params, optimizer)
    return copy.deepcopy(optimizer.state_dict())


STATES = {name: saved(name) for name in MAKES}


def loaded(name: str, state: Any) -> str:
    """Load a state and take a step; what it was refused with. Before a refusal nothing has changed."""
    params = parameters()
    optimizer = MAKES[name](params)
    before = copy.deepcopy(optimizer.state_dict())
    try:
        optimizer.load_state_dict(state)
    except Exception as error:
        if not draw.is_ours(error) and "loaded state dict" not in str(error):  # which torch says of other groups
            raise
        assert str(optimizer.state_dict()) == str(before)
        return str(error)
    step(params, optimizer)
    assert all(bool(p.isfinite().all()) for p in params)
    return ""


WRONG = [
    ("AdamW", "l2", NAN), ("AdamW", "lr", NAN), ("AdamW", "lr", -1.0), ("AdamW", "betas", (2, 3)),
    ("AdamW", "eps", -1.0), ("AdamW", "decay", "x"), ("AdamW", "weight_decay", 1e400), ("AdamW", "maximize", "x"),
    ("RMSProp", "alpha", -1), ("SGDM", "momentum", 5), ("RotationalAdamW", "track", 1.0),
    ("RotationalAdamW", "granularity", 7), ("AdamCPR", "rate", NAN), ("Muon", "weight_decay", -1),
    ("Rotational", "l2", NAN), ("Switch", "lr", NAN),
]  # fmt: skip


@pytest.mark.parametrize(("name", "option", "value"), WRONG)
def test_an_option_that_makes_no_sense_is_refused_with_its_name(name: str, option: str, value: Any) -> None:
    state = copy.deepcopy(STATES[name])
    state["param_groups"][0][option] = value
    assert option in loaded(name, state)


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("value", [NAN, -1.0, 2.5, "x", None, torch.tensor(NAN), torch.ones(2), torch.tensor(1j)])
def test_a_count_that_is_none_is_refused(name: str, value: Any) -> None:
    state = copy.deepcopy(STATES[name])
    state["state"][0]["step"] = value
    assert "step = " in loaded(name, state)


ODD: list[Any] = [None, 3, "x", [], {}, [1], {"params": 3}, torch.ones(2), NAN]


@st.composite
def changed(draw_: Any) -> tuple[str, Any]:
    """The name of an optimizer, and a state of it with a value or two changed."""
    name = draw_(st.sampled_from(sorted(MAKES)))
    state = copy.deepcopy(STATES[name])
    for _ in range(draw_(st.integers(1, 2))):
        how = draw_(st.sampled_from(["option", "option", "option", "state", "state", "shape", "drop", "top"]))
        groups = state.get("param_groups") if isinstance(state, dict) else None
        if not isinstance(groups, list) or not groups or not isinstance(state.get("state"), dict):
            break
        group = groups[0]
        one = state["state"].get(0)
        if how == "option" and isinstance(group, dict) and group:
            group[draw_(st.sampled_from(sorted(group)))] = copy.copy(draw_(st.sampled_from(draw.WRONG)))
        elif how == "drop" and isinstance(group, dict) and group:
            group.pop(draw_(st.sampled_from(sorted(group))), None)
        elif how in ("state", "shape") and isinstance(one, dict) and one:
            key = draw_(st.sampled_from(sorted(one)))
            one[key] = (
                torch.ones(draw_(st.sampled_from(draw.SHAPES))) if how == "shape" else draw_(st.sampled_from(ODD))
            )
        elif how == "top":
            place = draw_(st.sampled_from(["state", "param_groups", "one", "group", "all"]))
            value = copy.copy(draw_(st.sampled_from(ODD)))
            if place == "all":
                state = value
            elif place == "one":
                state["state"][0] = value
            elif place == "group":
                groups[0] = value
            elif place in state:
                state[place] = value
    return name, state


def test_states_that_somebody_changed() -> None:
    refused: list[bool] = []

    @cases(400)
    @given(case=changed())
    def fuzz(case: tuple[str, Any]) -> None:
        refused.append(bool(loaded(*case)))

    fuzz()
    assert 0.2 < sum(refused) / len(refused) < 0.98
