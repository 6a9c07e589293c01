"""What the fuzz tests draw: every public optimizer, its options good and bad, shapes, weights and gradients."""

from __future__ import annotations

import inspect
import os
import re
import traceback
from typing import Any

import hypothesis.strategies as st
import torch
from hypothesis import HealthCheck, settings
from torch import nn

import equipoise
from equipoise import optim

TIMES = float(os.environ.get("EQUIPOISE_DRILLS", "1"))
"""How many times as many cases; any number but 1 draws others each time."""


def cases(count: int) -> settings:
    """Settings of a fuzz test of about so many cases."""
    slow = (HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large)
    kept = (HealthCheck.large_base_example, HealthCheck.function_scoped_fixture)
    return settings(
        max_examples=max(1, int(count * TIMES)),
        derandomize=TIMES == 1,
        deadline=None,
        suppress_health_check=slow + kept,
    )


PUBLIC = [getattr(optim, name) for name in optim.__all__]
OPTIMIZERS = [
    thing
    for thing in PUBLIC
    if inspect.isclass(thing) and issubclass(thing, torch.optim.Optimizer) and thing is not optim.RuleOptimizer
]
OF_PARAMS = [make for make in OPTIMIZERS if next(iter(inspect.signature(make).parameters)) == "params"]
"""Optimizers of parameters; the others are put round optimizers."""

SHAPES: list[tuple[int, ...]] = [
    (), (1,), (7,), (0,), (1, 1), (1, 5), (5, 1), (3, 4), (4, 3), (7, 5), (0, 3), (3, 0), (2, 3, 4), (1, 1, 1),
    (4, 2, 3, 3), (3, 1, 1, 1), (6, 6),
]  # fmt: skip
DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.float16]
WEIGHTS = ["zero", "some zero", "noise", "constant", "tiny", "large"]
GRADIENTS = ["zero", "tiny", "subnormal", "noise", "huge", "mixed", "one", "one huge", "constant", "along"]

LR = st.sampled_from([0.0, 1e-300, 1e-30, 1e-8, 1e-3, 0.1, 1.0, 100.0, 1e6])
DECAY = st.sampled_from([0.0, 1e-12, 1e-3, 0.1, 1.0, 30.0])
SHARE = st.sampled_from([0.0, 1e-9, 0.5, 0.9, 0.999, 1 - 1e-9])
EPS = st.sampled_from([0.0, 1e-30, 1e-8, 1e-3, 1.0, 1e10])
BOOL = st.booleans()
MAYBE = st.sampled_from([None, True, False])
POLAR = st.sampled_from(
    [{}, {"steps": 1}, {"accuracy": 0.1}, {"method": "svd"}, {"method": "gram"}, {"coefficients": "muon"},
     {"degree": 3}, {"bound": "frobenius"}]
)  # fmt: skip
ADAM = st.fixed_dictionaries({}, optional={"lr": LR, "betas": st.tuples(SHARE, SHARE), "eps": EPS})

GOOD: dict[str, st.SearchStrategy[Any]] = {
    "lr": LR,
    "weight_decay": DECAY,
    "l2": DECAY,
    "decay": st.sampled_from(["lr", "independent", "corrected", "cautious"]),
    "lr_max": st.sampled_from([None, 1e-3, 0.1, 10.0]),
    "maximize": BOOL,
    "foreach": MAYBE,
    "compile": st.sampled_from([None, False]),
    "nonfinite": st.sampled_from(["ignore", "skip", "error"]),
    "momentum": SHARE,
    "alpha": SHARE,
    "track": SHARE,
    "nesterov": BOOL,
    "betas": st.tuples(SHARE, SHARE),
    "eps": EPS,
    "zero_init": BOOL,
    "bias_correction": BOOL,
    "nested": BOOL,
    "granularity": st.sampled_from(["neuron", "tensor", 1, 2, 3]),
    "center": BOOL,
    "angle": st.sampled_from([None, 0.0, 1e-12, 1e-3, 0.3, 1.5]),
    "method": st.sampled_from(["exact", "small_step"]),
    "reference": st.sampled_from([None, None, "paper"]),
    "norm": st.sampled_from([None, 1e-20, 1.0, 1e10]),
    "speeds": st.sampled_from([None, None, torch.ones(1), torch.tensor([0.0, 1.0, 50.0])]),
    "rotate": MAYBE,
    "bound": st.sampled_from(["inflection", "warm_start", 1e-20, 1e-3, 1e6]),
    "rate": st.sampled_from([0.0, 1e-3, 1.0, 1e6]),
    "warm_start": st.integers(1, 4),
    "scale": st.sampled_from(["original", "adam", "spectral", "none"]),
    "polar": POLAR,
    "adam": ADAM,
    "muon": MAYBE,
    "split": st.sampled_from([1, 1, 2, 3]),
    "flatten": BOOL,
    "role": st.sampled_from([None, "matrix", "conv", "embedding", "head", "gain", "bias"]),
    "sharpness": st.sampled_from([None, 1e-6, 1.0, 1e6]),
    "trust": st.sampled_from([0.0, 1e-3, 1.0]),
    "clip": st.sampled_from([None, 1e-3, 0.01, 1.0]),
    "beta2": SHARE,
    "row_eps": EPS,
    "floor": st.sampled_from([0.0, 1e-3, 0.35, 1e3]),
    "outward": st.sampled_from([0.0, 0.5, 1.0]),
    "inward": st.sampled_from([0.0, 0.5, 1.0]),
    "delta": st.sampled_from([0.0, 0.1, 1e3]),
    "wd_ratio": st.sampled_from([0.0, 0.1, 1.0]),
    "gain_rate": st.sampled_from([0.0, 0.1, 1e3]),
    "turn_decay": st.sampled_from([0.0, 1e-3, 1e3]),
    "turn_power": st.sampled_from([0.0, 1.0, 10.0]),
    "turn_warmup": st.integers(0, 3),
    "beta": SHARE,
    "layer_scale": st.sampled_from([1e-3, 1.0, 1e3]),
}
OF_STEEPEST = {"norm": st.sampled_from([None, "spectral", "sign", "rms", "linf", "l1", "l1.5", "row", "embedding"])}
"""Options that mean something else to one optimizer."""

WRONG: list[Any] = [
    "x", "0.1", b"1", (), [], [0.1], {}, {"a": 1}, object(), -1, -1e-9, float("nan"), float("inf"), -float("inf"),
    10**400, 2, 1j, torch.ones(2), torch.tensor([]), torch.tensor(float("nan")), torch.tensor(1j), (0.9,), (0.9, 1.0),
    (0.9, "x"), (0.9, float("nan")), (0.9, 0.9, 0.9), 1.5, "lr_", None, True, set(), range(3),
    lambda t: float("nan"), torch.float32,
]  # fmt: skip


def options_of(make: Any) -> set[str]:
    """The names of all options that an optimizer takes."""
    return set(inspect.signature(make).parameters) - {"params"}


def good(make: Any, name: str) -> st.SearchStrategy[Any]:
    return OF_STEEPEST.get(name, GOOD[name]) if make is optim.SteepestDescent else GOOD[name]


def good_options(make: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Any of the options, at values that each by itself may have."""
    return st.fixed_dictionaries({}, optional={name: good(make, name) for name in sorted(options_of(make))})


def filled(shape: tuple[int, ...], kind: str, w: torch.Tensor | None, seed: int) -> torch.Tensor:
    """Numbers of a kind, in float64."""
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    flat = torch.zeros(noise.numel(), dtype=torch.float64)
    flat[: min(1, len(flat))] = 1.0
    one = flat.reshape(shape)
    powers = 10.0 ** (torch.arange(noise.numel(), dtype=torch.float64) % 7 * 10 - 30).reshape(shape)
    made = {
        "zero": lambda: 0 * noise,
        "some zero": lambda: noise * (1 - one),
        "noise": lambda: noise,
        "constant": lambda: torch.full_like(noise, 0.3),
        "tiny": lambda: 1e-30 * noise,
        "subnormal": lambda: 1e-42 * noise,
        "large": lambda: 1e12 * noise,
        "huge": lambda: 1e30 * noise,
        "mixed": lambda: powers * noise,
        "one": lambda: one,
        "one huge": lambda: 1e30 * one,
        "along": lambda: noise if w is None else -w,
    }
    return made[kind]()


CASE = st.fixed_dictionaries(
    {
        "shapes": st.lists(st.sampled_from(SHAPES), min_size=1, max_size=2),
        "dtype": st.sampled_from(DTYPES),
        "weights": st.sampled_from(WEIGHTS),
        "gradients": st.lists(st.sampled_from(GRADIENTS), min_size=2, max_size=4),
        "seed": st.integers(0, 99),
    }
)
"""Parameters and the gradients of a few steps."""


def parameters(case: dict[str, Any], dtype: torch.dtype) -> list[nn.Parameter]:
    """The case's parameters, as that type holds them."""
    made = (filled(s, case["weights"], None, case["seed"] + i) for i, s in enumerate(case["shapes"]))
    return [nn.Parameter(held(x, case["dtype"]).to(dtype)) for x in made]


def held(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers as a type holds them: finite, and rounded."""
    most = torch.finfo(dtype).max
    return x.clamp(-most, most).to(dtype)


def give_gradients(params: list[nn.Parameter], case: dict[str, Any], t: int) -> None:
    for i, p in enumerate(params):
        g = filled(tuple(p.shape), case["gradients"][t], p.detach().double(), 100 + case["seed"] + 10 * t + i)
        p.grad = held(g, case["dtype"]).to(p.dtype)


def is_ours(error: BaseException) -> bool:
    """Whether an error is a ValueError that this library raised itself, saying what must be."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    inside = str(equipoise.__path__[0]) in last.filename
    return (
        isinstance(error, ValueError)
        and inside
        and bool(re.search(r"must|not supported|give |use |lower ", str(error)))
    )
