"""Random options, shapes and gradients through every public optimizer: finite stays finite, and errors are words.

What is promised: with finite weights, gradients and options that the optimizer takes, no weight becomes NaN or infinite
as long as the same steps in float64 stay a thousand times below the largest number of the parameter's type. Options
that make no sense, alone or together, are refused by a ValueError that says what must be.

More cases: EQUIPOISE_DRILLS=50 pytest tests/fuzz/test_optimizers.py, fifty times as many and others each time.
"""

from typing import Any

import pytest
import torch
from hypothesis import assume, event, given
from hypothesis import strategies as st
from tests.fuzz import draw
from tests.fuzz.draw import cases
from torch import nn

import equipoise as eq
from equipoise import optim

WRAPPERS = [optim.Rotational, optim.Switch]
every_optimizer = pytest.mark.parametrize("make", draw.OF_PARAMS, ids=lambda make: make.__name__)


def stepped(build: Any, case: dict[str, Any]) -> bool:
    """Take the case's steps, and the same in float64; whether they were taken and not refused."""
    outcomes = []
    for dtype in (torch.float64, case["dtype"]):
        params = draw.parameters(case, dtype)
        try:
            optimizer = build(params)
            for t in range(len(case["gradients"])):
                draw.give_gradients(params, case, t)
                optimizer.step()
                if dtype == torch.float64:
                    assert all(bool(p.isfinite().all()) for p in params), (dtype, t)
                    outcomes.append(max((float(p.detach().abs().max()) for p in params if p.numel()), default=0.0))
                elif outcomes[t] > torch.finfo(dtype).max / 1e3:
                    event("too large for the type")
                    break
                else:
                    assert all(bool(p.isfinite().all()) for p in params), (dtype, t)
        except Exception as error:
            if not draw.is_ours(error):
                raise
            event("refused")
            return False
    return True


def test_every_public_optimizer_is_fuzzed() -> None:
    assert {*draw.OF_PARAMS, *WRAPPERS} == set(draw.OPTIMIZERS)
    assert len(draw.OF_PARAMS) >= 17
    for make in draw.OF_PARAMS:
        unknown = draw.options_of(make) - set(draw.GOOD)
        assert not unknown, f"say in draw.GOOD what {', '.join(unknown)} of {make.__name__} may be"


@every_optimizer
def test_finite_stays_finite(make: Any) -> None:
    taken: list[bool] = []

    @cases(100)
    @given(options=draw.good_options(make), case=draw.CASE)
    def fuzz(options: dict[str, Any], case: dict[str, Any]) -> None:
        # A momentum over a v of 0 and no ε is infinite by its definition.
        assume(options.get("eps") != 0 or options.get("betas", (0, 1))[1] != 0)
        taken.append(stepped(lambda params: make(params, **options), case))

    fuzz()
    assert sum(taken) > len(taken) / 5, "most cases were refused"


@pytest.mark.evidence
@every_optimizer
def test_finite_stays_finite_in_a_compiled_step(make: Any) -> None:
    """Options that are numbers: each of the others would be compiled anew."""
    numbers = draw.options_of(make) & {"lr", "weight_decay", "angle", "momentum", "eps"}
    options = st.fixed_dictionaries({}, optional={name: draw.good(make, name) for name in sorted(numbers)})
    taken: list[bool] = []

    @cases(120)
    @given(options=options, case=draw.CASE)
    def fuzz(options: dict[str, Any], case: dict[str, Any]) -> None:
        taken.append(stepped(lambda params: make(params, compile=True, **options), case))

    fuzz()
    assert sum(taken) > len(taken) / 2, "most cases were refused"


@every_optimizer
def test_nonsense_is_refused_in_words(make: Any) -> None:
    """One option wrong; where it happens to have a meaning, the steps are finite."""

    @cases(100)
    @given(name=st.sampled_from(sorted(draw.options_of(make))), value=st.sampled_from(draw.WRONG), case=draw.CASE)
    def fuzz(name: str, value: Any, case: dict[str, Any]) -> None:
        assume(name != "compile" or value is not True)  # takes seconds, and is no nonsense
        stepped(lambda params: make(params, **{name: value}), case)

    fuzz()


INNER = [
    torch.optim.SGD,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RMSprop,
    eq.AdamW,
    eq.SGDM,
    eq.Lion,
    eq.Muon,
]
inner = st.tuples(st.sampled_from(INNER), draw.LR, draw.DECAY)
WIDE = draw.CASE.filter(lambda case: case["dtype"] != torch.float16)
"""Torch's own optimizers keep their state in float16 and lose it."""


@cases(300)
@given(
    inner=inner,
    case=WIDE,
    options=st.fixed_dictionaries(
        {}, optional={name: draw.GOOD[name] for name in ("angle", "granularity", "center", "track", "method")}
    ),
)
def test_any_optimizer_rotated(inner: Any, case: dict[str, Any], options: dict[str, Any]) -> None:
    make, lr, weight_decay = inner
    stepped(lambda p: optim.Rotational(make(p, lr=lr, weight_decay=weight_decay), **options), case)


@cases(150)
@given(first=inner, second=inner, at=st.integers(0, 3), blend=st.integers(0, 3), case=WIDE)
def test_a_switch_between_any_two(first: Any, second: Any, at: int, blend: int, case: dict[str, Any]) -> None:
    def build(params: list[nn.Parameter]) -> Any:
        made = [make(params, lr=lr, weight_decay=wd) for make, lr, wd in (first, second)]
        return optim.Switch(made[0], made[1], at, blend=blend)

    stepped(build, case)


@cases(150)
@given(
    name=st.sampled_from(["angle", "granularity", "center", "track", "method", "optimizer", "at", "blend", "first"]),
    value=st.sampled_from(draw.WRONG),
    case=WIDE,
)
def test_nonsense_is_refused_round_optimizers(name: str, value: Any, case: dict[str, Any]) -> None:
    def build(params: list[nn.Parameter]) -> Any:
        inside: Any = torch.optim.AdamW(params, lr=1e-3, weight_decay=0.1)
        if name in ("at", "blend", "first"):
            return optim.Switch(**({"first": inside, "second": inside, "at": 1} | {name: value}))
        return optim.Rotational(**({"optimizer": inside} | {name: value}))

    stepped(build, case)


@cases(150)
@given(
    params=st.one_of(
        st.sampled_from(
            [None, 3, "w", [], [1], ["w"], torch.ones(2), [torch.ones(2, dtype=torch.long)], {"params": []}]
        ),
        st.sampled_from([[torch.ones(2, dtype=torch.complex64)], [{"lr": 1}], [{"params": 3}], [{}], [[]], [None]]),
    ),
    make=st.sampled_from(draw.OF_PARAMS),
)
def test_parameters_that_are_none(params: Any, make: Any) -> None:
    try:
        made = make(params)
    except Exception as error:
        if not draw.is_ours(error):
            raise
    else:
        made.step()
