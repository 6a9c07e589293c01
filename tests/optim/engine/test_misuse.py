"""What people do to models and optimizers between steps: compiled or not, the step is right or says what is wrong."""

import io
import os
import shutil
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.optim import Decay, Move, Rotate, Rule, RuleOptimizer
from equipoise.optim.engine import compiled
from equipoise.optim.moves import Piece, directions
from equipoise.optim.options import GroupOptions
from equipoise.theory import Dynamics

needs_compiler = pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="needs a C++ compiler")
both = pytest.mark.parametrize("compile_", [False, pytest.param(True, marks=needs_compiler)])
W: dict[str, Any] = {"lr": 1e-2, "weight_decay": 0.1}


def gradient(p: torch.Tensor, t: int) -> torch.Tensor:
    return torch.randn(p.shape, generator=torch.Generator().manual_seed(t)).to(p.dtype)


@both
@pytest.mark.parametrize("make", [eq.AdamW, eq.RotationalAdamW])
def test_a_model_that_changes_its_type(make: Any, compile_: bool) -> None:
    """The state is of another type then: the step is taken or refused, and never reads the wrong bytes."""
    model = nn.Linear(300, 300, bias=False)
    optimizer = make(model.parameters(), compile=compile_, **W)
    refused = 0
    for t in range(4):
        if t == 2:
            model.double()
        model.weight.grad = gradient(model.weight, t)
        try:
            optimizer.step()
        except RuntimeError:
            refused += 1
    assert refused in (0, 2)
    assert torch.isfinite(model.weight).all()
    assert model.weight.norm() < 200


@both
def test_autocast_does_not_reach_the_step(compile_: bool) -> None:
    torch.manual_seed(0)
    start = torch.randn(300, 300)
    weights = []
    for around in (True, False):
        p = nn.Parameter(start.clone())
        with torch.autocast("cpu", torch.bfloat16, enabled=around):
            optimizer = eq.RotationalAdamW([p], compile=compile_, center=True, **W)
            for t in range(3):
                p.grad = gradient(p, t)
                optimizer.step()
        assert optimizer.state[p]["row_norm"].dtype == torch.float32
        weights.append(p.detach())
    assert torch.equal(*weights)


@needs_compiler
@pytest.mark.parametrize("granularity", ["neuron", "tensor", 4])
def test_centring_is_the_same_compiled_at_every_granularity(granularity: Any) -> None:
    weights = []
    for compile_ in (True, False):
        torch.manual_seed(0)
        p = nn.Parameter(torch.randn(300, 300))
        optimizer = eq.RotationalAdamW([p], center=True, granularity=granularity, compile=compile_, **W)
        for t in range(4):
            p.grad = gradient(p, t)
            optimizer.step()
        weights.append(p.detach())
    torch.testing.assert_close(*weights, rtol=0, atol=2e-5)


@needs_compiler
@pytest.mark.parametrize("make", [eq.AdamW, eq.RotationalAdamW])
def test_a_model_that_changes_its_layout(make: Any) -> None:
    weights = []
    for compile_ in (True, False):
        torch.manual_seed(0)
        model = nn.Conv2d(16, 64, 3, bias=False)
        optimizer = make(model.parameters(), compile=compile_, **W)
        for t in range(4):
            if t == 2:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            model.weight.grad = gradient(model.weight, t)
            optimizer.step()
        weights.append(model.weight.detach().contiguous())
    torch.testing.assert_close(*weights, rtol=0, atol=1e-6)


def test_load_hooks_are_heeded() -> None:
    first = [nn.Parameter(torch.randn(4, 4)) for _ in range(2)]
    a = eq.AdamW(first)
    for t, p in enumerate(first):
        p.grad = gradient(p, t)
    a.step()
    second = [nn.Parameter(torch.zeros(4, 4)) for _ in range(2)]
    b = eq.AdamW(second)
    calls = []

    def swapped(_: Any, saved: dict[str, Any]) -> dict[str, Any]:
        calls.append(1)
        return saved | {"state": {0: saved["state"][1], 1: saved["state"][0]}}

    b.register_load_state_dict_pre_hook(swapped)
    b.load_state_dict(a.state_dict())
    assert torch.equal(b.state[second[0]]["exp_avg"], a.state[first[1]]["exp_avg"])
    b.load_state_dict(a.state_dict())
    assert len(calls) == 2


def test_a_torch_checkpoint_goes_under_an_angle_schedule() -> None:
    p = nn.Parameter(torch.randn(8, 16))
    p.grad = gradient(p, 0)
    theirs = torch.optim.AdamW([p])
    theirs.step()
    ours = eq.RotationalAdamW([p], angle=lambda t: 0.01 * t, **W)
    ours.load_state_dict(theirs.state_dict())
    ours.step()
    assert ours.param_groups[0]["angle"] == pytest.approx(0.02)


@both
def test_cleared_states_start_afresh(compile_: bool) -> None:
    p, q = (nn.Parameter(torch.ones(40, 30)) for _ in range(2))
    optimizer, fresh = eq.AdamW([p], compile=compile_), eq.AdamW([q], compile=compile_)
    p.grad = gradient(p, 0)
    optimizer.step()
    for state in optimizer.state.values():
        state.clear()
    with torch.no_grad():
        p.fill_(1.0)
    p.grad = q.grad = gradient(p, 1)
    optimizer.step()
    fresh.step()
    torch.testing.assert_close(p, q, rtol=0, atol=0)


class Listed(Rule):
    """Momentum, with attributes that cannot be hashed and one that changes."""

    state = ("m",)

    def __init__(self) -> None:
        self.milestones = [1, 2]
        self.last = 0

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        self.last = t
        return {"b": 0.9}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        return averages[0].mul_(numbers["b"]).add_(g)

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return Dynamics("sgdm")


@needs_compiler
def test_a_rule_of_ones_own_compiles_once_whatever_its_attributes() -> None:
    p = nn.Parameter(torch.ones(300, 300))
    optimizer = RuleOptimizer([p], W | {"compile": True}, rule=Listed(), move=Decay())
    before = len(compiled._kernels)
    for t in range(3):
        p.grad = gradient(p, t)
        optimizer.step()
    assert len(compiled._kernels) == before + 1


def test_groups_need_not_mention_compile() -> None:
    p = nn.Parameter(torch.ones(2048, 2049))
    optimizer = RuleOptimizer([p], W, rule=Listed(), move=Decay())
    for _ in range(12):  # past the step from which large groups are compiled
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert torch.isfinite(p).all()


def test_a_rule_of_ones_own_needs_no_options_but_its_own() -> None:
    w = torch.ones(2, 3)
    for move in (Decay(), Rotate()):
        p = nn.Parameter(w.clone())
        optimizer = RuleOptimizer([p], {"lr": 0.1, "weight_decay": 0.5}, rule=Listed(), move=move)
        p.grad = torch.tensor([[1.0, 0, 0], [0, 1, 0]])
        optimizer.step()
        expected = w * (1 - 0.1 * 0.5) - 0.1 * p.grad
        kept = torch.linalg.vector_norm(p.detach(), dim=1) / 3**0.5
        assert torch.allclose(p, expected) if isinstance(move, Decay) else torch.allclose(kept, torch.ones(2))
        assert not torch.equal(p, w)
        assert not optimizer.param_groups[0]["maximize"]


class Backwards(Move):
    """w ← w + ηu."""

    def __call__(self, pieces: list[Piece], u: Any, *, rule: Rule, t: int, group: GroupOptions) -> None:
        for piece, direction in zip(pieces, directions(u, len(pieces)), strict=True):
            piece.w.add_(direction, alpha=float(group["lr"]))


@both
def test_a_move_of_ones_own_is_not_taken_for_decay_when_compiled(compile_: bool) -> None:
    p = nn.Parameter(torch.ones(300, 300))
    optimizer = RuleOptimizer([p], W | {"compile": compile_}, rule=Listed(), move=Backwards())
    p.grad = torch.ones_like(p)
    optimizer.step()
    assert torch.allclose(p, torch.full_like(p, 1 + W["lr"]))


@needs_compiler
def test_packs_do_not_pile_up() -> None:
    """Parameters that are frozen one after the other leave no packs behind, in memory or in a file."""
    params = [nn.Parameter(torch.randn(32, 32)) for _ in range(60)]
    optimizer = eq.RotationalAdamW(params, compile=True, **W)
    for i in range(59):
        for j, p in enumerate(params):
            p.grad = gradient(p, i) if j >= i else None
        optimizer.step()
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    needed = 60 * (2 * 32 * 32 + 2 * 32) * 4
    assert file.tell() < 2 * needed


@needs_compiler
def test_an_average_without_memory_is_the_gradient() -> None:
    p = nn.Parameter(torch.zeros(100))
    optimizer = eq.SignSGDM([p], lr=1.0, momentum=0.0, compile=True)
    for g in (1.0, 1e-8):
        p.grad = torch.full_like(p, g)
        optimizer.step()
    assert p[0].item() == -2.0


@both
def test_norms_are_taken_at_the_first_step_that_moves(compile_: bool) -> None:
    p = nn.Parameter(torch.eye(4))
    optimizer = eq.RotationalAdamW([p], lr=0.0, weight_decay=0.1, compile=compile_)
    p.grad = torch.ones(4, 4)
    optimizer.step()
    p.data.mul_(10)
    optimizer.param_groups[0]["lr"] = 1e-2
    optimizer.step()
    assert p[0].norm().item() == pytest.approx(10.0, rel=1e-4)


@both
def test_another_granularity_begins_anew(compile_: bool) -> None:
    p = nn.Parameter(torch.randn(16, 8))
    optimizer = eq.RotationalAdamW([p], granularity=4, compile=compile_, **W)
    for t, parts in enumerate((4, 8, "neuron", "tensor")):
        optimizer.param_groups[0]["granularity"] = parts
        p.grad = gradient(p, t)
        optimizer.step()
        assert len(optimizer.state[p]["row_norm"]) == {"neuron": 16, "tensor": 1}.get(str(parts), parts)


def test_compile_and_foreach_are_checked() -> None:
    with pytest.raises(ValueError, match="compile = 'no': must be True, False or None"):
        eq.AdamW([nn.Parameter(torch.ones(2))], compile="no")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="foreach = 3"):
        eq.AdamW([nn.Parameter(torch.ones(2))], foreach=3)  # type: ignore[arg-type]


def test_the_wrapper_heeds_its_groups() -> None:
    w = nn.Parameter(torch.randn(8, 8))
    start = w.detach().clone()
    inner = torch.optim.AdamW([{"params": [w], "angle": 0.3, "weight_decay": 0.0}], lr=1e-2)
    optimizer = eq.Rotational(inner)
    w.grad = gradient(w, 0)
    optimizer.step()
    angle = nn.functional.cosine_similarity(start, w.detach()).arccos().mean().item()
    assert angle == pytest.approx(0.3, rel=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"granularity": "row"}, "granularity"), ({"granularity": 3}, "must divide"), ({"angle": 5.0}, "angle")],
)
def test_the_wrapper_checks_its_arguments(options: dict[str, Any], message: str) -> None:
    w = nn.Parameter(torch.randn(8, 8))
    given: dict[str, Any] = {"angle": 0.1} | options
    with pytest.raises(ValueError, match=message):
        eq.Rotational(torch.optim.NAdam([w], lr=1e-3), **given)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("size", [1e-38, 1e-25, 1e-18, 1.0, 1e18, 1e25])
def test_normalized_steps_have_their_length_whatever_the_gradients(size: float, compiled: bool) -> None:
    """Squares of small numbers are zero in float32, and those of large ones infinite."""
    w = torch.zeros(8, 16, requires_grad=True)
    optimizer = eq.optim.NormalizedGD([w], lr=0.5, compile=compiled)
    w.grad = size * torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    optimizer.step()
    assert w.norm().item() == pytest.approx(0.5, rel=1e-4)
    w.grad = torch.zeros(8, 16)
    before = w.detach().clone()
    optimizer.step()
    assert torch.equal(w, before), "no gradient, no step"
