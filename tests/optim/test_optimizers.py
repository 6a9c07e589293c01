"""Every optimizer × what a good torch optimizer does, from one table."""

import copy
import io
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tests.optim.table import ALL, CONTROLLED, MATRIX, PLAIN, Row

from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.moves import Decay
from equipoise.optim.options import GroupOptions
from equipoise.optim.rules import Rule
from equipoise.theory import Dynamics

SHAPES = ((5, 6), (4, 3, 2), (7,))


def parameters(dtype: torch.dtype = torch.float64) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(1)
    return [torch.nn.Parameter(torch.randn(s, generator=generator, dtype=torch.float64).to(dtype)) for s in SHAPES]


def gradients(step: int, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 + step)
    return [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in SHAPES]


def run(
    optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], steps: range = range(12)
) -> list[torch.Tensor]:
    for t in steps:
        for p, g in zip(params, gradients(t, params[0].dtype), strict=True):
            p.grad = g
        optimizer.step()
    return [p.detach().clone() for p in params]


def assert_same(a: list[torch.Tensor], b: list[torch.Tensor], *, rtol: float = 0.0, atol: float = 0.0) -> None:
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, rtol=rtol, atol=atol)


@pytest.mark.parametrize("row", [r for r in PLAIN if r.reference], ids=str)
def test_is_its_equation(row: Row) -> None:
    """Against the paper's algorithm written literally in numpy, in float64."""
    assert row.reference is not None
    params = parameters()
    start = [p.detach().numpy().copy() for p in params]
    got = run(row.build(params), params)
    options = dict(row.options)
    if row.make.__name__ in ("Adam", "AdamW"):
        options.setdefault("weight_decay", 0.0)
    for i, w in enumerate(start):
        expected = row.reference(w, np.array([gradients(t)[i].numpy() for t in range(12)]), **options)
        np.testing.assert_allclose(got[i].numpy(), expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("row", [r for r in PLAIN if r.twin], ids=str)
def test_is_torchs(row: Row) -> None:
    assert row.twin is not None
    ours, theirs = parameters(), parameters()
    assert_same(run(row.build(ours), ours), run(row.twin(theirs), theirs), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("row", ALL + MATRIX, ids=str)
def test_loop_is_foreach(row: Row) -> None:
    loop, together = parameters(), parameters()
    a, b = run(row.build(loop, foreach=False), loop), run(row.build(together, foreach=True), together)
    assert_same(a, b, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("row", ALL + MATRIX, ids=str)
def test_resume_is_bit_identical(row: Row, dtype: torch.dtype) -> None:
    """Through a file read with weights_only=True, into a new optimizer over copied weights."""
    through = parameters(dtype)
    whole = run(row.build(through), through)
    first = parameters(dtype)
    optimizer = row.build(first)
    run(optimizer, first, range(5))
    file = io.BytesIO()
    torch.save({"weights": [p.detach() for p in first], "state": optimizer.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    second = parameters(dtype)
    later = row.build(second)
    with torch.no_grad():
        for p, w in zip(second, saved["weights"], strict=True):
            p.copy_(w)
    later.load_state_dict(saved["state"])
    assert_same(run(later, second, range(5, 12)), whole)


@pytest.mark.parametrize("row", ALL + MATRIX, ids=str)
def test_copies_and_pickles_go_on_alike(row: Row) -> None:
    params = parameters(torch.float32)
    optimizer = row.build(params)
    run(optimizer, params, range(3))
    twins = (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer)))
    expected = run(optimizer, params, range(3, 6))
    for twin in twins:
        theirs = [p for group in twin.param_groups for p in group["params"]]
        assert theirs[0] is not params[0]
        assert_same(run(twin, theirs, range(3, 6)), expected)


@pytest.mark.parametrize("row", ALL + MATRIX, ids=str)
def test_maximize_is_the_negative_gradient(row: Row) -> None:
    if row.options.get("l2"):
        pytest.skip("L2 is added to the gradient after its sign is turned")
    up, down = parameters(), parameters()
    a = run(row.build(up, maximize=True), up)
    optimizer = row.build(down)
    for t in range(12):
        for p, g in zip(down, gradients(t), strict=True):
            p.grad = -g
        optimizer.step()
    assert_same(a, [p.detach() for p in down], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("row", ALL, ids=str)
def test_low_precision_follows_float32(row: Row, dtype: torch.dtype) -> None:
    """State is float32, and weights are the float32 run's rounded: no drift from rounding twelve times."""
    if row.options.get("center"):
        pytest.skip("the float32 twin would be centred more exactly")
    low = parameters(dtype)
    optimizer = row.build(low)
    full = [torch.nn.Parameter(p.detach().float()) for p in low]
    exact = row.build(full)
    for t in range(12):
        for p, q, g in zip(low, full, gradients(t, dtype), strict=True):
            p.grad, q.grad = g, g.float()
        optimizer.step()
        exact.step()
    for p, q in zip(low, full, strict=True):
        assert p.dtype == dtype
        torch.testing.assert_close(p.detach().float(), q.detach(), rtol=2 * torch.finfo(dtype).eps, atol=1e-5)
        for name, value in optimizer.state[p].items():
            assert value.dtype == torch.float32, name


@pytest.mark.parametrize("row", ALL, ids=str)
def test_odd_tensors(row: Row) -> None:
    """Non-contiguous, channels-last, empty, zero and constant rows, gradients that are None or zero: never NaN."""
    base = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))
    image = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    rows = torch.ones(4, 6)
    rows[0] = 0.0
    params = [
        torch.nn.Parameter(base.clone().t()),
        torch.nn.Parameter(image.to(memory_format=torch.channels_last)),
        torch.nn.Parameter(torch.empty(0, 3)),
        torch.nn.Parameter(rows),
        torch.nn.Parameter(torch.randn(3, 3)),
        torch.nn.Parameter(torch.tensor(1.5)),
    ]
    optimizer = row.build(params)
    untouched = params[4].detach().clone()
    for t in range(6):
        generator = torch.Generator().manual_seed(t)
        for i, p in enumerate(params):
            p.grad = None if i == 4 else torch.randn(p.shape, generator=generator)
        if t == 3:
            params[0].grad = torch.zeros_like(params[0])
        optimizer.step()
    torch.testing.assert_close(params[4].detach(), untouched)
    for p in params:
        assert torch.isfinite(p).all()
    grown = float(params[3][0].detach().abs().sum()) > 0
    assert grown is (row.options.get("reference") != "paper"), "a zero row can grow; the paper's has no norm to keep"


@pytest.mark.parametrize("row", ALL, ids=str)
def test_lr_zero_moves_nothing(row: Row) -> None:
    if row.options.get("decay") == "independent":
        pytest.skip("independent decay does not know lr")
    params = parameters()
    optimizer = row.build(params)
    before = [p.detach().clone() for p in params]
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    after = run(optimizer, params)
    if row.options.get("reference") == "paper":
        assert_same(after, before, rtol=1e-12, atol=1e-14)
    else:
        assert_same(after, before)


@pytest.mark.parametrize("row", ALL, ids=str)
def test_not_finite_gradients(row: Row) -> None:
    """Weights and state untouched, with a clear error or a counted skip."""
    params = parameters(torch.float32)
    optimizer: Any = row.build(params, nonfinite="error")
    run(optimizer, params, range(2))
    before = [p.detach().clone() for p in params]
    state = copy.deepcopy(optimizer.state_dict())
    for p in params:
        p.grad = torch.ones_like(p)
    params[1].grad[0, 0, 0] = torch.nan  # type: ignore[index]
    with pytest.raises(ValueError, match="gradients of 1 of 3 parameters are not finite"):
        optimizer.step()
    for group in optimizer.param_groups:
        group["nonfinite"] = "skip"
    optimizer.step()
    assert optimizer.skipped == 1
    assert_same([p.detach() for p in params], before)
    after = optimizer.state_dict()
    for i, kept in state["state"].items():
        for name, value in kept.items():
            torch.testing.assert_close(after["state"][i][name], value, rtol=0, atol=0)


@pytest.mark.parametrize("row", ALL, ids=str)
def test_groups_closures_and_tensor_lr(row: Row) -> None:
    params = parameters()
    optimizer = row.build([{"params": params[:1], "lr": 0.5}, {"params": params[1:]}])
    assert [g["lr"] for g in optimizer.param_groups] == [0.5, row.options["lr"]]
    extra = torch.nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    optimizer.add_param_group({"params": [extra]})
    extra.grad = torch.ones_like(extra)
    before = extra.detach().clone()

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = ((extra - 1) ** 2).sum()
        loss.backward()
        return loss

    loss: Any = optimizer.step(closure)  # type: ignore[arg-type]
    assert loss.item() == pytest.approx(((before - 1) ** 2).sum().item())
    assert not torch.equal(extra.detach(), before)
    a, b = parameters(), parameters()
    assert_same(run(row.build(a, lr=torch.tensor(0.25)), a), run(row.build(b, lr=0.25), b))


@pytest.mark.parametrize("row", ALL, ids=str)
def test_hooks_fire_and_late_parameters_keep_their_own_step(row: Row) -> None:
    params = parameters()
    optimizer = row.build(params)
    seen: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: seen.append("pre"))
    optimizer.register_step_post_hook(lambda *_: seen.append("post"))
    for t in range(4):
        for i, (p, g) in enumerate(zip(params, gradients(t), strict=True)):
            p.grad = g if i != 1 or t >= 2 else None
        optimizer.step()
    assert seen == ["pre", "post"] * 4
    assert [int(optimizer.state[p]["step"]) for p in params] == [4, 2, 4]
    alone = [parameters()[1]]
    twin = row.build(alone)
    for t in (2, 3):
        alone[0].grad = gradients(t)[1]
        twin.step()
    assert_same([params[1].detach()], [alone[0].detach()], rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("row", ALL, ids=str)
def test_refusals(row: Row) -> None:
    p = torch.nn.Parameter(torch.ones(3, 3))
    with pytest.raises(ValueError, match="lr = -1: must be a finite number ≥ 0"):
        row.build([p], lr=-1)
    with pytest.raises(TypeError, match="unexpected keyword argument 'turbo'"):
        row.build([p], turbo=1)
    with pytest.raises(ValueError, match="complex64: must be floating point"):
        row.build([torch.nn.Parameter(torch.ones(2, 2, dtype=torch.complex64))])
    p.grad = torch.ones(3, 3).to_sparse()
    with pytest.raises(ValueError, match="gradient is sparse"):
        row.build([p]).step()


@pytest.mark.parametrize("row", CONTROLLED, ids=str)
def test_norms_are_kept(row: Row) -> None:
    if row.make.__name__ == "AdamCPR" or row.options.get("angle") == "step":
        pytest.skip("holds a bound, or has the norms of the plain step")
    params = parameters()
    optimizer = row.build(params)
    before = [p.detach().clone() for p in params]
    after = run(optimizer, params)
    whole = row.options.get("granularity") == "tensor" or row.make.__name__ == "HyperballAdamW"
    for old, new in zip(before[:2], after[:2], strict=True):
        start = 0 if whole else 1
        a, b = (x.flatten(start).norm(dim=-1) for x in (old, new))
        torch.testing.assert_close(a, b, rtol=1e-10, atol=0)
        assert not torch.allclose(old, new)


def test_a_rule_that_starts_from_the_first_gradient_must_say_how() -> None:
    class Late(Rule):
        state = ("average",)

        def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
            return {}

        def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
            return averages[0]

        def dynamics(self, group: GroupOptions) -> Dynamics:
            return Dynamics("sgdm")

        def starts(self, group: GroupOptions) -> bool:
            return True

    weight = torch.ones(3, requires_grad=True)
    optimizer = RuleOptimizer([weight], {"lr": 0.1}, rule=Late(), move=Decay())
    weight.grad = torch.ones(3)
    with pytest.raises(NotImplementedError, match=r"Late: starts\(\) is true, so start\(\) must say from what"):
        optimizer.step()
