"""C++ loops of graphs, held to torch's own results on the same functions."""

import ctypes
import math
import os
import shutil
from array import array
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._inductor.codecache import CppCodeCache

from equipoise.optim.engine.compiled import FLAGS, _traced
from equipoise.optim.engine.loops import COLUMN, MATRIX, Loops, UnsupportedError

CXX = os.environ.get("CXX", "g++")
needs_compiler = pytest.mark.skipif(shutil.which(CXX) is None, reason=f"needs a C++ compiler: {CXX} is not installed")

Function = Callable[..., list[Tensor]]


def adam_row(n: Tensor, w: Tensor, g: Tensor, m: Tensor, v: Tensor, k: Tensor) -> list[Tensor]:
    """The shape of a rotational step: averages, a direction, its products with w, then w."""
    a, b = n.unbind()
    new, square = m + (g - m) * a, v * b + g * g * (1 - b)
    d = new / (square.sqrt() + 1e-8)
    dw = (d * w).sum(1, keepdim=True)
    norm = torch.linalg.vector_norm(d, dim=1, keepdim=True).clamp_min(1e-30)
    results = (w - d / norm * torch.where(dw > 0, k, 0.5), new, square, k * norm)
    for x, y in zip((w, m, v, k), results, strict=True):
        x.copy_(y)
    return []


def sums_of_sums(n: Tensor, w: Tensor, g: Tensor, m: Tensor, v: Tensor, k: Tensor) -> list[Tensor]:
    """Three loops; the old m is needed in the last, although its new value is known in the first."""
    a, _ = n.unbind()
    off = g - g[:, :1]
    centred = off - off.sum(1, keepdim=True) / g.shape[1]
    peak = (centred.abs() + v.sign()).amax(1, keepdim=True)
    scaled = centred / peak
    size = (scaled * scaled).sum(1, keepdim=True)
    results = (w * size + m, g * a, scaled + torch.maximum(w, m), k.neg() + peak)
    for x, y in zip((w, m, v, k), results, strict=True):
        x.copy_(y)
    return []


def reloads(n: Tensor, w: Tensor, g: Tensor, m: Tensor, v: Tensor, k: Tensor) -> list[Tensor]:
    """The direction is the new average: it is loaded again from where it was written."""
    a, b = n.unbind()
    new = m * a + g
    norm = (new * new).sum(1, keepdim=True).sqrt()
    for x, y in zip((w, m, v, k), (w * b - new / norm, new, v.clamp_min(0.1), norm), strict=True):
        x.copy_(y)
    return []


def swap(n: Tensor, w: Tensor, g: Tensor, m: Tensor, v: Tensor, k: Tensor) -> list[Tensor]:
    """Arguments that become each other, and one that becomes a number's worth of the gradient."""
    a, _ = n.unbind()
    old, other = w.clone(), m.clone()
    w.copy_(other)
    m.copy_(old)
    v.copy_(g * a)
    k.copy_(k * a)
    return []


def over_rows(n: Tensor, w: Tensor, g: Tensor, m: Tensor, v: Tensor, k: Tensor) -> list[Tensor]:
    """Sums over all rows, twice: three stages, with a direction and columns that wait for the last."""
    a, b = n.unbind()
    new = m * a + g
    d = new / (v.sqrt() + b)
    size = (d * d).sum(1, keepdim=True)
    longest = torch.hypot(size, k)
    first = longest.sum()
    push = torch.where(size > a, longest / first, k)
    second = (push * push).sum() * first.sqrt()
    results = (w - d * (push / second), new, v + size, (k + a) * second)
    for x, y in zip((w, m, v, k), results, strict=True):
        x.copy_(y)
    return []


def tensors(shape: tuple[int, int], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, dtype=dtype, generator=generator) for _ in range(4)]
    made[3].abs_()
    column = torch.rand(shape[0], 1, dtype=dtype, generator=generator)
    return [torch.tensor([0.1, 0.9], dtype=dtype), *made, column]


def loops_of(function: Function, whole: bool, shape: tuple[int, int] = (6, 10)) -> Loops:
    graph = _traced(function, tensors((1, shape[1]) if whole else shape, torch.float64)).graph
    return Loops(graph, [MATRIX] * 4 + [COLUMN], whole)


def stepped(loops: Loops, arguments: list[list[Tensor]], threads: int) -> None:
    kind = {torch.float32: "float", torch.float64: "double"}[arguments[0][0].dtype]
    step = CppCodeCache.load(loops.source([kind] * 5), extra_flags=FLAGS).step
    step.argtypes, step.restype = [ctypes.c_void_p], None
    size = max(x[1].numel() if loops.shared else x[1].shape[1] for x in arguments)
    room = torch.empty(max(1, len(loops.buffers)) * size * threads, dtype=arguments[0][0].dtype)
    table = [y for x in arguments for y in (*x[1].shape, *(t.data_ptr() for t in x))]
    call = array("q", [len(arguments), threads, size, room.data_ptr(), *table])
    step(call.buffer_info()[0])


@needs_compiler
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("function", [adam_row, sums_of_sums, reloads, swap, over_rows])
def test_loops_give_what_torch_gives(function: Function, whole: bool, threads: int) -> None:
    """Two tensors in one call; rows of more than one block, and of fewer weights than a vector has."""
    shapes = [(1, 9000), (1, 7)] if whole else [(5, 9000), (33, 7)]
    ours, torchs = ([tensors(s, torch.float64) for s in shapes] for _ in range(2))
    stepped(loops_of(function, whole), ours, threads)
    for x in torchs:
        function(*x)
    for x, y in zip(ours, torchs, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)


def test_a_row_is_read_from_memory_once() -> None:
    """The direction alone is kept, for a row; averages are written in the first loop and not read again."""
    loops = loops_of(adam_row, whole=False)
    assert len(loops.loops) == 2
    w, _, m, v, _ = loops.inputs
    first, second = loops.loops
    assert (set(first.written), second.written) == ({m, v}, [w])
    assert [x.op for x in loops.buffers] == ["div"]
    assert not {m, v} & set(second.names)


def test_rows_are_gone_through_again_for_each_sum_over_them() -> None:
    assert [len(loops_of(f, whole=False).stages) for f in (adam_row, over_rows)] == [1, 3]
    assert len(loops_of(over_rows, whole=True).stages) == 1  # there is one row


def test_a_new_average_that_is_the_direction_takes_no_buffer() -> None:
    assert not loops_of(reloads, whole=False).buffers


@needs_compiler
@pytest.mark.parametrize("whole", [False, True])
def test_what_is_not_finite_is_as_in_torch(whole: bool) -> None:
    shapes = [(1, 40) if whole else (4, 40)]
    ours, torchs = ([tensors(s, torch.float32) for s in shapes] for _ in range(2))
    for x in (*ours, *torchs):
        x[2][0, 3], x[4][-1, 5] = math.nan, math.inf
    stepped(loops_of(adam_row, whole), ours, 2)
    adam_row(*torchs[0])
    torch.testing.assert_close(ours[0], torchs[0], equal_nan=True)


@needs_compiler
def test_sums_of_long_rows_keep_their_digits() -> None:
    """10⁷ weights of 1 ± 10⁻³: a float32 that takes them in one by one stops growing at 1.7·10⁷ of squares."""
    x = tensors((1, 10_000_000), torch.float32)
    x[2].copy_(1 + x[2].clamp(-1, 1) * 1e-3)
    x[3].zero_()
    right = x[2].double().square().sum().sqrt()
    stepped(loops_of(reloads, whole=True), [x], 2)
    assert float(x[5]) == pytest.approx(float(right), rel=1e-6)


def test_what_loops_do_not_know_is_said() -> None:
    def step(n: Tensor, w: Tensor, g: Tensor, m: Tensor, v: Tensor, k: Tensor) -> list[Tensor]:
        w.copy_(g.erf())
        return []

    with pytest.raises(UnsupportedError, match="erf"):
        loops_of(step, whole=False)
