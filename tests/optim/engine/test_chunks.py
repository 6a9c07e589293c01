"""Eager steps of large tensors, chunk by chunk: the step tensor by tensor, and no temporary as large as a tensor."""

from typing import Any

import pytest
import torch
from tests.optim.engine.live_bytes import LiveBytes
from tests.optim.table import ALL, Row

import equipoise as eq
from equipoise.optim.engine import chunks
from equipoise.optim.rows import tensor_sum

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


@pytest.mark.parametrize("make", [eq.RotationalAdamW, eq.HyperballAdamW])
def test_rows_of_several_tensors_turn_together(make: type[torch.optim.Optimizer]) -> None:
    turned: list[int] = []

    class Counted(type(make([torch.nn.Parameter(torch.ones(2, 2))]).move)):  # type: ignore[attr-defined]
        def turn(self, ww: torch.Tensor, *rest: object) -> object:
            turned.append(len(ww))
            return super().turn(ww, *rest)

    optimizers = []
    for _ in range(2):
        params = [torch.nn.Parameter(p[0:].detach().clone()) for p in parameters()]
        optimizers.append((make(params, compile=False), params))  # type: ignore[call-arg]
    optimizers[0][0].move = Counted()  # type: ignore[attr-defined]
    for optimizer, params in optimizers:
        run(optimizer, params, 2)
    matrices = [s for s in SHAPES if len(s) > 1]
    rows = [1 if make is eq.HyperballAdamW else s[0] for s in matrices]
    assert turned == [sum(rows[:-1]), rows[-1]] * 2  # the last one's gradient lies otherwise, and is copied
    for p, q in zip(optimizers[0][1], optimizers[1][1], strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("angle", [None, "step"])
@pytest.mark.parametrize("most", [1, 20_000, 100_000])
def test_is_the_same_whatever_turns_together(most: int, angle: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    some, other = parameters(), parameters()
    run(eq.RotationalAdamW(some, compile=False, angle=angle), some)
    monkeypatch.setattr(chunks, "RUN", most)
    run(eq.RotationalAdamW(other, compile=False, angle=angle), other)
    for p, q in zip(some, other, strict=True):
        assert torch.equal(p, q) if angle is None else torch.allclose(p, q, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("heights", [[3, 3], [1, 5], [6]])
def test_a_tensors_sum_is_for_all_of_its_rows(heights: list[int]) -> None:
    column = torch.arange(6.0).unsqueeze(1)
    expected = torch.cat([torch.full((len(x), 1), float(x.sum())) for x in column.split(heights)])
    assert torch.equal(tensor_sum(column, heights), expected)


@pytest.mark.parametrize("make", [eq.AdamW, eq.Lion, eq.RotationalAdamW, eq.HyperballAdamW, eq.AdamCPR])
def test_makes_no_temporary_as_large_as_a_tensor(make: type[torch.optim.Optimizer]) -> None:
    params = [torch.nn.Parameter(torch.randn(512, 640)) for _ in range(3)]
    optimizer = make(params, compile=False)  # type: ignore[call-arg]
    run(optimizer, params, 2)
    with LiveBytes() as count:
        optimizer.step()
    assert count.peak < 512 * 640
