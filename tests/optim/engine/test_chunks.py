"""Eager steps of large tensors, chunk by chunk: the step tensor by tensor, and no temporary as large as a tensor."""

import pytest
import torch
from tests.optim.engine.live_bytes import LiveBytes
from tests.optim.table import ALL, Row

import equipoise as eq
from equipoise.optim.engine import chunks

SHAPES = [(300, 257), (70, 1000), (2, 70_000), (70_001,), (40, 30), (64, 32, 6, 6)]
"""Of more than a chunk, with rows of more than one, and of no whole number of them; one that is not chunked."""


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNK", 2**13)


def parameters() -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    made = [torch.randn(s) for s in SHAPES]
    made[0][3] = 0.0
    made[-1] = made[-1].to(memory_format=torch.channels_last)
    return [torch.nn.Parameter(x) for x in made]


def run(optimizer: torch.optim.Optimizer, params: list[torch.nn.Parameter], steps: int = 4) -> None:
    for t in range(steps):
        generator = torch.Generator().manual_seed(t)
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize("row", ALL, ids=str)
def test_is_the_step_tensor_by_tensor(row: Row) -> None:
    some, other = parameters(), parameters()
    a, b = row.build(some, compile=False), row.build(other, foreach=False, compile=False)
    run(a, some)
    run(b, other)
    for p, q in zip(some, other, strict=True):
        assert (p - q).norm() <= 2e-6 * q.norm()
        assert a.state[p].keys() == b.state[q].keys()
        for name, x in a.state[p].items():
            y = b.state[q][name]
            assert x.shape == y.shape, name
            assert torch.equal(x, y) or (x - y).norm() <= 1e-5 * y.norm(), name


def test_what_is_not_finite_moves_nothing() -> None:
    params = parameters()
    optimizer = eq.RotationalAdamW(params, lr=0.01, compile=False)
    run(optimizer, params, 2)
    before = params[0].detach().clone()
    assert params[0].grad is not None
    params[0].grad[7, 5], params[0].grad[8, 0] = float("nan"), float("inf")
    optimizer.step()
    changed = (params[0] - before).norm(dim=1) > 1e-4
    assert not changed[[7, 8]].any()
    assert changed[9:].all()


@pytest.mark.parametrize("make", [eq.AdamW, eq.Lion, eq.RotationalAdamW, eq.HyperballAdamW, eq.AdamCPR])
def test_makes_no_temporary_as_large_as_a_tensor(make: type[torch.optim.Optimizer]) -> None:
    params = [torch.nn.Parameter(torch.randn(512, 640)) for _ in range(3)]
    optimizer = make(params, compile=False)  # type: ignore[call-arg]
    run(optimizer, params, 2)
    with LiveBytes() as count:
        optimizer.step()
    assert count.peak < 512 * 640
