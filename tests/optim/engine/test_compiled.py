"""Compiled steps: equal to the eager ones, compiled once, within their memory, and never needed."""

import copy
import functools
import logging
import math
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.optim.table import ALL, Row

import equipoise as eq
from equipoise.optim.engine import compiled, step_layout
from equipoise.optim.options import group_options

CXX = os.environ.get("CXX", "g++")
pytestmark = pytest.mark.skipif(shutil.which(CXX) is None, reason=f"needs a C++ compiler: {CXX} is not installed")

SHAPES = [(40, 30), (64, 48), (300, 257), (7,), (5, 3, 3, 3), (1, 9), (3, 1), (), (320, 400)]
"""Above and below the size from which a parameter is stepped alone, and those that rows do not suit."""

BY_STEP = functools.partial(eq.RotationalAdamW, angle="step")

DISTINCT = [
    row
    for row in ALL
    if row.name
    in (
        "SGDM nesterov L2", "RMSProp", "AdamW", "Adam zero_init=False bias_correction=True nested=True",
        "AdamW cautious", "SignSGDM", "Lion", "NormalizedGD", "NormalizedGD neuron",
        "RotationalSGDM", "RotationalAdamW",
        "RotationalAdamW centred", "RotationalAdamW tensor", "RotationalAdamW paper", "RotationalAdamL2",
        "RotationalAdamW step", "RotationalSGDM step",
        "RotationalLion", "RotationalSignSGDM", "HyperballAdamW", "AdamCPR", "LAMB", "LARS", "ClippedSGDM",
        "AdamP", "MDAdam",
    )
]  # fmt: skip


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A compiler of its own: what other tests compiled must not be counted here."""
    caplog.set_level(logging.WARNING, logger="equipoise")
    with warnings.catch_warnings():
        # torch imports setuptools' old modules while it compiles.
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        yield


def parameters(
    shapes: list[tuple[int, ...]] = SHAPES, dtype: torch.dtype = torch.float32, seed: int = 0
) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.nn.Parameter((torch.randn(s, generator=generator) * 0.5).to(dtype)) for s in shapes]


def run(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], steps: range = range(6)) -> None:
    for t in steps:
        generator = torch.Generator().manual_seed(100 + t)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(p.dtype)
        optimizer.step()


def assert_alike(a: torch.optim.Optimizer, b: torch.optim.Optimizer, rtol: float) -> None:
    """Weights and states, relative to the largest element of each tensor."""
    for p, q in zip(a.param_groups[0]["params"], b.param_groups[0]["params"], strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=rtol * float(p.detach().abs().max()))
        assert a.state[p].keys() == b.state[q].keys()
        for name, x in a.state[p].items():
            bound = rtol * float(x.abs().max()) if torch.isfinite(x).all() else 0.0
            torch.testing.assert_close(x, b.state[q][name], rtol=0, atol=bound, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("row", DISTINCT, ids=str)
def test_is_the_eager_step(row: Row) -> None:
    plain, fast_ = parameters(), parameters()
    eager, other = row.build(plain, compile=False), row.build(fast_, compile=True)
    run(eager, plain)
    run(other, fast_)
    assert_alike(eager, other, rtol=4e-6)


def test_every_class_is_in_the_table() -> None:
    assert {row.make for row in DISTINCT} >= {row.make for row in ALL} - {eq.Adam}


def test_float64_and_low_precision_are_the_eager_step_too() -> None:
    for dtype, rtol in ((torch.float64, 1e-14), (torch.bfloat16, 8e-3)):  # the latter: a weight rounded the other way
        plain, other = parameters(dtype=dtype), parameters(dtype=dtype)
        a = eq.AdamW(plain, lr=0.01, compile=False)
        b = eq.AdamW(other, lr=0.01, compile=True)
        run(a, plain)
        run(b, other)
        assert_alike(a, b, rtol)
        for p, q in zip(plain, other, strict=True):
            if dtype == torch.bfloat16:
                torch.testing.assert_close(a.state[p]["master"], b.state[q]["master"], rtol=1e-5, atol=1e-6)


def test_channels_last_and_strange_strides_are_the_eager_step() -> None:
    def odd() -> list[torch.nn.Parameter]:
        generator = torch.Generator().manual_seed(0)
        conv = torch.randn(64, 32, 6, 6, generator=generator).to(memory_format=torch.channels_last)
        turned = torch.randn(300, 400, generator=generator).t()
        return [torch.nn.Parameter(conv), torch.nn.Parameter(turned)]

    plain, other = odd(), odd()
    a, b = eq.RotationalAdamW(plain, lr=0.01, compile=False), eq.RotationalAdamW(other, lr=0.01, compile=True)
    run(a, plain)
    run(b, other)
    assert_alike(a, b, rtol=4e-6)


def test_one_compilation_for_a_thousand_scheduled_steps_and_a_resume() -> None:
    params = parameters([(64, 48), (33, 70), (300, 257), (320, 400)])
    optimizer = eq.RotationalAdamW(params, lr=0.01, weight_decay=0.1, compile=True)
    lr = eq.schedules.warmup_cosine(1000, peak=0.01, warmup=100)
    schedule = eq.schedules.Scheduler(optimizer, lr=lr, weight_decay=eq.schedules.linear(1000, peak=0.1, final=0.2))
    torch.compiler.reset()
    compiled._kernels.clear()
    for t in range(1000):
        for p in params:
            p.grad = torch.ones_like(p) if t % 2 else torch.full_like(p, -0.5)
        optimizer.step()
        schedule.step()
        if t == 500:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert len(compiled._kernels) == 1
    assert all(torch.isfinite(p).all() for p in params)


@pytest.mark.parametrize("make", [eq.AdamW, eq.RotationalAdamW, BY_STEP, eq.HyperballAdamW])
def test_what_the_loops_do_not_know_is_compiled_by_inductor(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Gradients in float16 for one, and all steps on other devices."""
    caplog.set_level(logging.INFO, logger="equipoise")
    compiled._kernels.clear()
    ours, other = (parameters([(300, 257), (320, 400)], torch.float16) for _ in range(2))
    run(make(ours, lr=0.01, weight_decay=0.1, compile=True), ours, range(3))
    run(make(other, lr=0.01, weight_decay=0.1, compile=False), other, range(3))
    assert "is compiled by Inductor: no loop for torch.float32 with gradients in torch.float16" in caplog.text
    for a, b in zip(ours, other, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-3, atol=1e-3)


def test_a_backward_that_needs_the_old_weights_is_refused() -> None:
    params = parameters([(320, 400)])
    optimizer = eq.RotationalAdamW(params, lr=0.01, weight_decay=0.1, compile=True)
    loss = params[0].square().sum()
    params[0].grad = torch.ones_like(params[0])
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_state_that_no_longer_lies_as_the_kernel_takes_it_is_stepped_eagerly() -> None:
    """Its type is changed under the same name; compiled code would read past its end."""
    ours, other = parameters([(320, 400)]), parameters([(320, 400)])
    one, two = (eq.AdamW(p, lr=0.01, compile=how) for p, how in ((ours, True), (other, False)))
    for optimizer, params in ((one, ours), (two, other)):
        run(optimizer, params, range(2))
    for optimizer, params in ((one, ours), (two, other)):
        state = optimizer.state[params[0]]
        state["exp_avg"] = state["exp_avg"].t().contiguous().t()
    for optimizer, params in ((one, ours), (two, other)):
        run(optimizer, params, range(2, 4))
    torch.testing.assert_close(ours[0], other[0])


@pytest.mark.parametrize("make", [eq.AdamW, eq.Lion, eq.RotationalAdamW, BY_STEP, eq.HyperballAdamW])
def test_a_step_makes_no_temporary_as_large_as_a_tensor(make: Any) -> None:
    """The largest sum of live allocations within a step, from torch's profiler."""
    params = parameters([(512, 640), (640, 512)])
    optimizer = make(params, lr=0.01, weight_decay=0.1, compile=True)
    run(optimizer, params, range(2))
    with torch.profiler.profile(profile_memory=True) as profile:
        optimizer.step()
    live = most = 0
    for event in profile.profiler.kineto_results.events():  # type: ignore[union-attr]
        if event.name() == "[memory]":
            live += event.nbytes()  # type: ignore[attr-defined]
            most = max(most, live)
    assert most < 4 * 512 * 640


def test_resume_from_packed_states_is_bit_identical() -> None:
    through, first = parameters(), parameters()
    run(eq.RotationalAdamW(through, lr=0.01, compile=True), through)
    optimizer = eq.RotationalAdamW(first, lr=0.01, compile=True)
    run(optimizer, first, range(3))
    saved = copy.deepcopy(optimizer.state_dict())
    later = [torch.nn.Parameter(p.detach().clone()) for p in first]
    second = eq.RotationalAdamW(later, lr=0.01, compile=True)
    second.load_state_dict(saved)
    run(second, later, range(3, 6))
    for p, q in zip(through, later, strict=True):
        torch.testing.assert_close(p, q, rtol=0, atol=0)


def test_parameters_that_come_and_go_are_the_eager_step() -> None:
    """Packs are made anew when gradients are missing, so that steps differ between parameters."""
    plain, other = parameters(), parameters()
    optimizers = [eq.RotationalAdamW(ps, lr=0.01, compile=c) for ps, c in ((plain, False), (other, True))]
    for optimizer, params in zip(optimizers, (plain, other), strict=True):
        for t in range(8):
            generator = torch.Generator().manual_seed(t)
            for i, p in enumerate(params):
                g = torch.randn(p.shape, generator=generator)
                p.grad = None if (t + i) % 4 == 0 else g
            optimizer.step()
    assert_alike(optimizers[0], optimizers[1], rtol=4e-6)


def test_zero_rows_grow_and_infinite_gradients_do_no_harm() -> None:
    results = []
    for compile_ in (False, True):
        params = parameters([(320, 400), (40, 30)])
        with torch.no_grad():
            params[0][3] = params[1][5] = 0.0
        optimizer = eq.RotationalAdamW(params, lr=0.05, weight_decay=0.1, compile=compile_)
        run(optimizer, params, range(4))
        for p in params:
            assert p.grad is not None
            p.grad[0] = float("inf")
        optimizer.step()
        results.append(optimizer)
    for p, q in zip(*(o.param_groups[0]["params"] for o in results), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)
        assert torch.isfinite(q[1:]).all()
        assert (q[3].norm() > 0).item()


def test_lr_zero_moves_nothing() -> None:
    params = parameters()
    start = [p.detach().clone() for p in params]
    optimizer = eq.RotationalAdamW(params, lr=0.0, weight_decay=0.1, compile=True)
    run(optimizer, params)
    for p, w in zip(params, start, strict=True):
        torch.testing.assert_close(p.detach(), w, rtol=0, atol=0)


def test_large_groups_are_compiled_by_themselves_after_some_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_options({"params": parameters([(4, 4)]), "compile": None})
    assert not step_layout.wanted(group, 1000)
    monkeypatch.setattr(step_layout, "AUTO_WEIGHTS", 16)
    assert step_layout.wanted(group, step_layout.AUTO_STEP)
    assert not step_layout.wanted(group, step_layout.AUTO_STEP - 1)
    assert not step_layout.wanted(group_options(group, compile=False), step_layout.AUTO_STEP)


def test_small_groups_are_compiled_when_it_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    group = group_options({"params": parameters([(4, 4)]), "compile": None})
    monkeypatch.setattr(step_layout, "AUTO_TOTAL", 16 * 40)
    assert [t for t in range(1, 60) if step_layout.wanted(group, t)] == list(range(40, 60))
    assert not step_layout.wanted(group_options(group, compile=False), 50)
    elsewhere = [torch.nn.Parameter(torch.zeros(4, 4, device="meta"))]
    assert not step_layout.wanted(group_options(group, params=elsewhere), 50)


@pytest.mark.parametrize("make", [eq.AdamW, eq.RotationalAdamW, BY_STEP, eq.HyperballAdamW])
def test_goes_on_compiled_as_it_began(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(300, 257), (40, 30), (40, 30), (7, 9), (50,)]
    monkeypatch.setattr(step_layout, "AUTO_TOTAL", 12 * sum(math.prod(s) for s in shapes))
    some, other = parameters(shapes), parameters(shapes)
    a, b = make(some, lr=0.01, weight_decay=0.1), make(other, lr=0.01, weight_decay=0.1, compile=False)
    steps = []
    run_ = step_layout.StepLayout._run

    def counted(layout: Any, batch: Any, pieces: Any, grads: Any, t: int, group: Any) -> bool:
        steps.append(t)
        return run_(layout, batch, pieces, grads, t, group)

    monkeypatch.setattr(step_layout.StepLayout, "_run", counted)
    run(a, some, range(15))
    run(b, other, range(15))
    assert set(steps) == {12, 13, 14, 15}
    for p, q in zip(some, other, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_is_not_tried_again_where_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(kind: compiled.Kind) -> Any:
        raise RuntimeError("no way")

    monkeypatch.setattr(compiled, "_kernels", {})
    monkeypatch.setattr(compiled, "_compile", failing)
    some, other = parameters([(300, 257), (7, 9)]), parameters([(300, 257), (7, 9)])
    a = eq.RotationalAdamW(some, compile=True)
    with pytest.warns(RuntimeWarning, match="no way"):
        run(a, some, range(1))
    assert all(layout._eager_only for layout in a._layouts.values())
    run(a, some, range(1, 4))
    run(eq.RotationalAdamW(other, compile=False), other, range(4))
    for p, q in zip(some, other, strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


def test_says_that_it_compiles(caplog: pytest.LogCaptureFixture) -> None:
    compiled._kernels.clear()
    params = parameters([(320, 400)])
    run(eq.AdamW(params, compile=True), params, range(2))
    said = [r.getMessage() for r in caplog.records if r.name == "equipoise"]
    assert len(said) == 2
    assert said[0].startswith("compiling the step of Adam × Decay: once")
    assert re.fullmatch(r"compiled in \d+\.\d s", said[1])


SCRIPT = """
import logging, torch, equipoise as eq
w = torch.nn.Parameter(torch.ones(40, 30))
for compile in (True, True, None):
    optimizer = eq.AdamW([w], lr=0.1, compile=compile)
    w.grad = torch.ones_like(w)
    optimizer.step()
print(float(w[0, 0]))
"""


def test_without_a_compiler_says_so_once_and_steps(tmp_path: Any) -> None:
    environment = os.environ | {"CXX": "no-such-compiler", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment, timeout=300, check=True
    )
    assert float(done.stdout) < 0.75
    warned = [line for line in done.stderr.splitlines() if "RuntimeWarning" in line]
    assert len(warned) == 1
    assert "runs as foreach" in warned[0]
    assert "no C++ compiler was found" in warned[0]


def test_works_in_a_compiled_training_step() -> None:
    nets = [torch.nn.Linear(30, 40) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [eq.RotationalAdamW(n.parameters(), lr=0.01, compile=n is nets[0]) for n in nets]

    def train(net: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()

    step = torch.compile(train, backend="eager")
    for t in range(4):
        x = torch.randn(8, 30, generator=torch.Generator().manual_seed(t))
        with torch._dynamo.config.patch(error_on_recompile=t > 1):
            step(nets[0], optimizers[0], x)
        train(nets[1], optimizers[1], x)
    for p, q in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-7)
    assert any(k for k in compiled._kernels.values())
