"""Compiled steps: one kernel per rule and move, for tensors of all shapes, from the same source as eager steps.

A kernel sees rows (R, C) or a flat vector, and its hyperparameters as numbers in a tensor, so that neither shapes nor
schedules nor the step count make it compile again. It is compiled on the first step, with a message. `make_fx` traces
the step. On the CPU its graph becomes C++ loops (`loops`), elsewhere, and where it has an operation that the loops do
not know, Inductor compiles it.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
import warnings
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import mul
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx import GraphModule

from equipoise.optim.engine.loops import COLUMN, MATRIX, Loops, UnsupportedError
from equipoise.optim.engine.packs import laid
from equipoise.optim.engine.tensor_list import Traced
from equipoise.optim.moves import Move, plain_step
from equipoise.optim.options import group_options
from equipoise.optim.rows import centred
from equipoise.optim.rules import Ratio, Rule
from equipoise.optim.sphere import RowMove

logger = logging.getLogger("equipoise")

HINT = (1026, 2054)
"""The shape that a step is traced on: no two of its sizes are the same by chance."""

FLAGS = ("-ftree-loop-vectorize", "-fno-math-errno", "-ffp-contract=fast")
"""For the compiler, after those of Inductor for its own kernels. Finite or not is still told, sums keep their order."""

TYPES = {torch.float32: "float", torch.float64: "double", torch.bfloat16: "uint16_t"}

SWITCHES = ("nesterov", "nested", "maximize", "decay", "center")
"""Options that choose between equations. Everything else that a rule or a move reads is a number."""

SHARED = 2**15
"""Weights from which on it is worth waking threads."""


class Calls(NamedTuple):
    """Tensors to step: in each list one entry for each of them. Numbers and gradients stay as they are."""

    numbers: list[Tensor]
    layouts: list[tuple[int, ...]]
    """(rows, columns), or (size,) for a plain step, as which the matrices' memory is seen."""
    matrices: list[list[Tensor]]
    """A list of the weights, one of the gradients, one of each average: dense, with the strides of their weights."""
    columns: list[list[Tensor]]


Kernel = Callable[[Calls], bool]
"""Steps several tensors; False if some do not lie as they should, and none was stepped."""


@dataclass(frozen=True)
class Kind:
    """What a kernel is compiled for: all that may not change without compiling another."""

    rule: Rule = field(compare=False)
    move: Move = field(compare=False)
    switches: tuple[tuple[str, Any], ...]
    l2: bool
    rows: str
    """What a row is: "flat" none, the step is plain; "row" one of several; "whole" all of the tensor."""
    numbers: tuple[str, ...]
    dtypes: tuple[torch.dtype, torch.dtype]
    """Of the weights and of the gradients."""
    device: torch.device
    columns: int
    """How many numbers the move keeps of a row."""
    same: tuple[Any, ...] = ()
    """What makes two rules and two moves the same: types and attributes."""

    def __str__(self) -> str:
        names = (type(self.rule).__name__.removesuffix("Rule"), type(self.move).__name__)
        return f"{names[0]} × {names[1] if self.rows != 'flat' else 'Decay'}"


def _step(kind: Kind) -> Callable[..., list[Tensor]]:
    """The step, to be traced."""
    group, move = group_options(dict(kind.switches)), kind.move

    def step(numbers: Tensor, w: Tensor, g: Tensor, *others: Tensor) -> list[Tensor]:
        named = dict(zip(kind.numbers, numbers.unbind(), strict=True))
        old, columns = others[: len(kind.rule.state)], others[len(kind.rule.state) :]
        averages, weight, new = [Traced(x) for x in old], Traced(w), []
        g = g.to(w.dtype)
        if group.get("center") and kind.rows != "flat":
            g = centred(g)
        if group["maximize"]:
            g = -g
        if kind.l2:
            g = g + w * named["l2"]
        u = kind.rule(Traced(g), tuple(averages), _part("rule.", named), group)
        if not isinstance(move, RowMove) or kind.rows == "flat":
            plain_step(weight, u, _part("move.", named), group)
        else:
            d = (u.value() if isinstance(u, Ratio) else u).x
            products, d = move.products(w, d, group), move.direction(d, group)
            new, keep, push = move.turn(*products, tuple(columns), _part("move.", named))
            weight.x = w * keep - torch.where(push == 0, 0.0, d * push)
        for x, y in zip([w, *old, *columns], [weight.x, *(y.x for y in averages), *new], strict=True):
            x.copy_(y)
        return []

    return step


def _part(prefix: str, numbers: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in numbers.items() if name.startswith(prefix)}


_kernels: dict[Kind, Kernel | None] = {}
_warned: set[tuple[str, bool]] = set()


def kernel(kind: Kind, loud: bool) -> Kernel | None:
    """The compiled step of a kind, or None where it can't be compiled; the first call compiles.

    Args:
        kind: what is wanted.
        loud: say it where it can't be compiled; whoever asked for it wants to know.
    """
    if kind not in _kernels:
        if torch._C._len_torch_dispatch_stack() > 0:  # somebody looks at every operation: not the time to compile
            return None
        logger.warning("compiling the step of %s: once, some seconds; later runs take it from torch's cache", kind)
        start = time.perf_counter()
        try:
            _kernels[kind] = _compile(kind)
            logger.warning("compiled in %.1f s", time.perf_counter() - start)
        except Exception as error:  # whatever a compiler may say: the step itself does not need one
            _kernels[kind] = None
            said = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
            if "InvalidCxxCompiler" in said or "No working C++ compiler" in said:
                said = "no C++ compiler was found; install g++ or clang, or name it in CXX"
            warn(str(kind), said, loud)
    return _kernels[kind]


def hopeless(kind: Kind) -> bool:
    """Whether it was tried to compile a kind, in vain."""
    return kind in _kernels and _kernels[kind] is None


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


def _compile(kind: Kind) -> Kernel:
    dtype, low = kind.dtypes
    rows, width = HINT
    shape = {"flat": (rows * width,), "whole": (1, rows * width)}.get(kind.rows, HINT)

    def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=kind.device)

    example = [zeros(len(kind.numbers)), zeros(*shape), zeros(*shape, dtype=low)]
    example += [zeros(*shape) for _ in kind.rule.state]
    example += [zeros(shape[0], 1) for _ in range(kind.columns)]
    graph = _traced(_step(kind), example)
    if kind.device.type == "cpu":
        try:
            return CpuKernel(graph, kind)
        except UnsupportedError as why:
            logger.info("the step of %s is compiled by Inductor: %s", kind, why)
    return _inductor(graph)


def _traced(function: Callable[..., list[Tensor]], example: list[Tensor]) -> GraphModule:
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    decompositions = select_decomp_table()
    trace = make_fx(torch.func.functionalize(function), tracing_mode="symbolic", decomposition_table=decompositions)
    with torch.no_grad():
        return trace(*example)


def _inductor(graph: GraphModule) -> Kernel:
    """A graph, compiled by Inductor for all sizes but 0 and 1, which it checks itself."""
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx_inner

    inputs = [node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder"]
    with torch.no_grad(), tracing(TracingContext(inputs[0].fake_mode)):
        compiled: Any = compile_fx_inner(graph, inputs)

    def run(calls: Calls) -> bool:
        for i, (numbers, layout) in enumerate(zip(calls.numbers, calls.layouts, strict=True)):
            compiled([numbers, *[laid(x[i], layout) for x in calls.matrices], *[x[i] for x in calls.columns]])
        return True

    return run


class CpuKernel:
    """The loops of a graph, compiled.

    Args:
        graph: of the step.
        kind: of the step.
    """

    def __init__(self, graph: GraphModule, kind: Kind):
        from torch._inductor.codecache import CppCodeCache

        dtype, low = kind.dtypes
        if dtype not in TYPES or low not in TYPES:
            raise UnsupportedError(f"no loop for {dtype} with gradients in {low}")
        self._dtypes = [dtype, low] + [dtype for _ in kind.rule.state]
        levels = [MATRIX for _ in self._dtypes] + [COLUMN] * kind.columns
        loops = Loops(graph.graph, levels, kind.rows != "row")
        self._buffers, self._shared = len(loops.buffers), loops.shared
        types = [TYPES[x] for x in self._dtypes] + [TYPES[dtype]] * kind.columns
        library = CppCodeCache.load(loops.source(types), extra_flags=FLAGS)
        self._call = library.step
        self._call.argtypes, self._call.restype = [ctypes.c_void_p], None

    def __call__(self, calls: Calls) -> bool:
        """Take the steps; if one can't be taken, none is."""
        heights = [x[0] if len(x) == 2 else 1 for x in calls.layouts]
        widths = [x[-1] for x in calls.layouts]
        sizes = list(map(mul, heights, widths))
        if not self._fit(heights, sizes, calls):
            return False
        count, room = len(widths), max(sizes if self._shared else widths)
        threads = torch.get_num_threads() if sum(sizes) >= SHARED else 1
        workspace = _workspace(self._buffers * room * (1 if self._shared else threads), self._dtypes[0])
        lists = [heights, widths]
        lists += [[x.data_ptr() for x in tensors] for tensors in (calls.numbers, *calls.matrices, *calls.columns)]
        arguments = array("q", [count, threads, room, workspace.data_ptr()]) + array("q", bytes(8 * count * len(lists)))
        for i, values in enumerate(lists):
            arguments[4 + i :: len(lists)] = array("q", values)
        self._call(arguments.buffer_info()[0])
        return True

    def _fit(self, heights: list[int], sizes: list[int], calls: Calls) -> bool:
        """Whether memory is as the code takes it to be; it would not notice."""
        strides = [x.stride() for x in calls.matrices[0]]
        for tensors, dtype in zip(calls.matrices, self._dtypes, strict=True):
            if [x.stride() for x in tensors] != strides or [x.numel() for x in tensors] != sizes:
                return False
            if [x.dtype for x in tensors].count(dtype) != len(sizes):
                return False
        for tensors in calls.columns:
            if [x.numel() for x in tensors] != heights or not all(x.is_contiguous() for x in tensors):
                return False
            if [x.dtype for x in tensors].count(self._dtypes[0]) != len(sizes):
                return False
        return True


_workspaces = threading.local()


def _workspace(size: int, dtype: torch.dtype) -> Tensor:
    """Memory for buffers, kept: new pages at every step would take as long as the step."""
    kept: dict[Any, Tensor] = _workspaces.__dict__
    if dtype not in kept or kept[dtype].numel() < size:
        kept[dtype] = torch.empty(size, dtype=dtype)
    return kept[dtype]
