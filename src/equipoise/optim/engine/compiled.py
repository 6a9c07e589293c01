"""Compiled steps: one kernel per rule and move, for tensors of all shapes, from the same source as eager steps.

A kernel sees rows (R, C) or a flat vector, and its hyperparameters as 0-d tensors, so that neither shapes nor schedules
nor the step count make it compile again. It is compiled on the first step, with a message, on tensors made up for that.
The step is traced by `make_fx` and given to Inductor as a graph: a call then costs 7 µs, where one of `torch.compile`
looks at every argument anew and costs 40, more than the step of a small matrix.

How a row stays in the cache: Inductor runs all loops of a kernel inside one loop over rows if each has that loop
outermost and steps it by one. Three things would break that, and are kept away:

- loops over whole tensors are flattened: a column of ones keeps rows and columns apart;
- the algebra of a row would be vectorised over rows: an int16 in it (`scalar`), which Inductor does not vectorise,
  keeps it to one row at a time;
- it would be repeated for every weight of the row: `as_strided` has its results written down first.
"""

from __future__ import annotations

import logging
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from equipoise.optim.engine.tensor_list import Traced
from equipoise.optim.moves import Move, plain_step
from equipoise.optim.rows import centred
from equipoise.optim.rules import Ratio, Rule
from equipoise.optim.sphere import RowMove

logger = logging.getLogger("equipoise")

KEPT, AGAIN = 8, 100
"""Inductor keeps a value of more inputs than this that is used twice, and computes one of fewer again. A direction has
more than eight. Within a row it is computed again, as the row is still in the cache and a kept one would be written to
memory; over a whole tensor it is kept, as its gradient and averages would have to be read again."""


def _options(kind: Kind) -> dict[str, Any]:
    """What Inductor is asked for, as far as this torch knows it; imported here, as it takes a second."""
    from torch._inductor import config as known

    reads = AGAIN if kind.rows == "neuron" else KEPT
    thresholds = {"realize_reads_threshold": reads, "realize_acc_reads_threshold": AGAIN}
    options: dict[str, Any] = {name: value for name, value in thresholds.items() if hasattr(known, name)}
    # Named, so that torch's cache does not give several threads the code for one.
    return options | {"cpp.enable_floating_point_contract_flag": "fast", "cpp.threads": kind.threads}


HINT = (1026, 2054)
"""The shape that a kernel is compiled on: large enough to be worth threads, and nothing special."""

SWITCHES = ("nesterov", "nested", "maximize", "decay", "center")
"""Options that choose between equations. Everything else that a rule or a move reads is a number."""


@dataclass(frozen=True)
class Kind:
    """What a kernel is compiled for: all that may not change without compiling another."""

    rule: Rule = field(compare=False)
    move: Move = field(compare=False)
    switches: tuple[tuple[str, Any], ...]
    l2: bool
    rows: str
    """What a row is: "flat" none, the step is plain; "neuron" a row; "part" some rows; "tensor" all rows; "single"
    the only one."""
    numbers: tuple[str, ...]
    dtypes: tuple[torch.dtype, torch.dtype]
    """Of the weights and of the gradients."""
    device: torch.device
    same: tuple[Any, ...] = ()
    """What makes two rules and two moves the same: types and attributes."""
    threads: int = field(default_factory=torch.get_num_threads)
    """Inductor writes a kernel for one thread, or for several."""

    def __str__(self) -> str:
        names = (type(self.rule).__name__.removesuffix("Rule"), type(self.move).__name__)
        return f"{names[0]} × {names[1] if self.rows != 'flat' else 'Decay'}"


@lru_cache(maxsize=64)
def ones(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A column of ones."""
    return torch.ones(rows, 1, dtype=dtype, device=device)


@lru_cache(maxsize=16)
def scalar(device: torch.device) -> Tensor:
    """The number one in a type that Inductor does not vectorise."""
    return torch.ones(1, dtype=torch.int16, device=device)


def _direction(
    kind: Kind, w: Tensor, g: Tensor, averages: list[Traced], numbers: dict[str, Tensor], one: Tensor | None = None
) -> Any:
    group = dict(kind.switches)
    if group.get("center") and kind.rows != "flat":
        g = centred(g)
    elif one is not None:
        g = g * one
    if group["maximize"]:
        g = -g
    if kind.l2:
        g = g + w * numbers["l2"]
    taken = {name.removeprefix("rule."): x for name, x in numbers.items() if name.startswith("rule.")}
    return kind.rule(Traced(g), tuple(averages), taken, group)


def _own(numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix("move."): x for name, x in numbers.items() if name.startswith("move.")}


def _write(kind: Kind) -> Callable[[list[Tensor]], list[Tensor]]:
    """The step as a function of numbers, w, g, averages, and for rows ones, scalar and columns, to be compiled.

    It changes w and the averages, and returns the new columns.
    """
    averages = 3 + len(kind.rule.state)

    def flat(tensors: list[Tensor]) -> list[Tensor]:
        numbers, w, g, *old = tensors
        named = dict(zip(kind.numbers, numbers.unbind(), strict=True))
        new, weight = [Traced(x) for x in old], Traced(w)
        u = _direction(kind, w, g.to(w.dtype), new, named)
        plain_step(weight, u, _own(named), dict(kind.switches))
        for x, y in zip([w, *old], [weight, *new], strict=True):
            x.copy_(y.x)
        return []

    def by_rows(tensors: list[Tensor]) -> list[Tensor]:
        (numbers, w, g, *old), (one, single, *columns) = tensors[:averages], tensors[averages:]
        move, group = kind.move, dict(kind.switches)
        named = dict(zip(kind.numbers, numbers.unbind(), strict=True))
        new = [Traced(x) for x in old]
        u = _direction(kind, w, g.to(w.dtype), new, named, one)
        if not isinstance(move, RowMove):
            weight = Traced(w)
            plain_step(weight, u, _own(named), group)
            result = weight.x
        else:
            d = (u.value() if isinstance(u, Ratio) else u).x
            dots, d = move.products(w, d, group), move.direction(d, group)
            parts = columns[0].shape[0]
            if kind.rows != "neuron":
                dots = tuple(x.reshape(parts, -1).sum(1, keepdim=True) for x in dots)
            ww, dw, dd = dots
            columns, keep, push = move.turn(ww * single, dw, dd, tuple(columns), _own(named))
            keep, push = (torch.as_strided(x, (parts, 1), (1, 1)) for x in (keep, push))
            if kind.rows != "neuron":
                keep, push = (x.expand(-1, w.shape[0] // x.shape[0]).reshape(-1, 1) for x in (keep, push))
            result = w * keep - torch.where(push == 0, 0.0, d * push)
        for x, y in zip([w, *old], [result, *(y.x for y in new)], strict=True):
            x.copy_(y)
        return list(columns)

    return flat if kind.rows == "flat" else by_rows


_kernels: dict[Kind, Callable[[list[Tensor]], list[Tensor]] | None] = {}
_warned: set[tuple[str, bool]] = set()


def kernel(kind: Kind, columns: int, loud: bool) -> Callable[[list[Tensor]], list[Tensor]] | None:
    """The compiled step of a kind, or None where it can't be compiled; the first call compiles.

    Args:
        kind: what is wanted.
        columns: how many columns the move keeps.
        loud: say it where it can't be compiled; whoever asked for it wants to know.
    """
    if kind not in _kernels:
        if torch._C._len_torch_dispatch_stack() > 0:  # somebody looks at every operation: not the time to compile
            return None
        logger.warning("compiling the step of %s: once, some 10 s; later runs take it from torch's cache", kind)
        start = time.perf_counter()
        try:
            _kernels[kind] = _compile(kind, columns)
            logger.warning("compiled in %.1f s", time.perf_counter() - start)
        except Exception as error:  # whatever a compiler may say: the step itself does not need one
            _kernels[kind] = None
            said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            if "InvalidCxxCompiler" in said or "No working C++ compiler" in said:
                said = "no C++ compiler was found; install g++ or clang, or name it in CXX"
            warn(str(kind), said, loud)
    return _kernels[kind]


def warn(name: str, why: str, loud: bool) -> None:
    """Say, once for each reason, that a step is not compiled.

    Args:
        name: of the kind of step.
        why: it is not.
        loud: as a warning; else to the log.
    """
    if (why, loud) in _warned:
        return
    _warned.add((why, loud))
    message = f"compile: the step of {name} is not compiled and runs as foreach, right but slower: {why}"
    if loud:
        warnings.warn(message, RuntimeWarning, stacklevel=2)
    else:
        logger.info(message)


def _compile(kind: Kind, columns: int) -> Callable[[list[Tensor]], list[Tensor]]:
    # Made up tensors, no two dimensions of the same size, so that no two are taken to be equal.
    dtype, low = kind.dtypes
    device = kind.device
    rows, width = HINT
    shape = {"flat": (rows * width,), "single": (1, rows * width)}.get(kind.rows, HINT)

    def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    example = [torch.ones(len(kind.numbers), dtype=dtype, device=device), zeros(*shape), zeros(*shape, dtype=low)]
    example += [zeros(*shape) for _ in kind.rule.state]
    if kind.rows != "flat":
        example += [ones(shape[0], dtype, device), scalar(device)]
        height = {"neuron": rows, "part": rows // 2}.get(kind.rows, 1)
        example += [zeros(height, 1) for _ in range(columns)]
    return inductor(_write(kind), example, _options(kind))


def inductor(
    function: Callable[[list[Tensor]], list[Tensor]], example: list[Tensor], options: dict[str, Any]
) -> Callable[[list[Tensor]], list[Tensor]]:
    """A function of a list of tensors, compiled by Inductor for all sizes but 0 and 1.

    Arguments must differ from the example's in sizes alone; the compiled code checks sizes and strides itself.

    Args:
        function: it may change its tensors in place, and returns a list of new ones.
        example: arguments, no two sizes of which are the same by chance. The second is as large as any.
        options: for Inductor.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    def listed(*tensors: Tensor) -> list[Tensor]:
        return function(list(tensors))

    with torch.no_grad():
        trace = make_fx(
            torch.func.functionalize(listed), tracing_mode="symbolic", decomposition_table=select_decomp_table()
        )
        graph = trace(*example)
        inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
        with config.patch(options), tracing(TracingContext(inputs[0].fake_mode)):
            compiled: Any = compile_fx_inner(graph, inputs)
        with _reused_temporary(compiled, tuple(example[1].shape)):
            compiled(list(example))
    return compiled


_workspaces = threading.local()


@contextmanager
def _reused_temporary(compiled: Any, large: tuple[int, ...]) -> Iterator[None]:
    """Let compiled code keep the memory of its one temporary of that many rows and columns, if it makes just one.

    Memory that is new at every call has to be given by the system, page by page: that would take as long as the step.
    """
    code = getattr(compiled, "current_callable", None)
    names = getattr(getattr(code, "__func__", code), "__globals__", {})
    allocate = names.get("empty_strided_cpu")
    if allocate is None or len(large) != 2:
        yield
        return
    made: list[tuple[int, ...]] = []

    def count(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        made.append(tuple(size))
        return allocate(size, stride, dtype)

    def keep(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        if len(size) != 2 or size[1] < 2:
            return allocate(size, stride, dtype)
        kept = _workspaces.__dict__.setdefault("tensors", {})
        need = size[0] * size[1]
        if dtype not in kept or kept[dtype].numel() < need:
            kept[dtype] = torch.empty(need, dtype=dtype)
        return kept[dtype].as_strided(size, stride)

    names["empty_strided_cpu"] = count
    try:
        yield
    finally:
        matrices = [size for size in made if len(size) == 2 and size[1] > 1]
        names["empty_strided_cpu"] = keep if matrices == [large] else allocate
