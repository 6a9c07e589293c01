"""Compiled steps: one kernel for a rule and a move, for tensors of all shapes, from the text that runs eagerly too.

A kernel sees rows (R, C) or a flat vector, and its hyperparameters as 0-d tensors, so that neither shapes nor schedules
nor the step count make it compile again. It is compiled on the first step, with a message, on tensors made up for that.

How a row stays in the cache: Inductor runs all loops of a kernel inside one loop over rows if each has that loop
outermost and steps it by one. Two things would break that, and are kept away:

- loops over whole tensors are flattened: a column of ones keeps rows and columns apart;
- the algebra of a row is vectorised over rows: it is written out over a small block (`lanes`) for each row and reduced
  again, so that the loop over rows stays outermost.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from equipoise.optim.direct import Direct
from equipoise.optim.many import Traced
from equipoise.optim.moves import Move, plain_step
from equipoise.optim.rotate import RowMove
from equipoise.optim.rows import centred
from equipoise.optim.rules import Ratio, Rule

logger = logging.getLogger("equipoise")

THRESHOLDS = {"realize_reads_threshold": 8, "realize_acc_reads_threshold": 100}
"""The direction is kept for the second pass over a row, so that roots and quotients are taken once; all else that is
used twice is computed twice. The thresholds, in numbers of inputs, lie between the two."""


def _options() -> dict[str, Any]:
    """What Inductor is asked for, as far as this torch knows it; imported here, as it takes a second."""
    import torch._inductor.config as known

    options: dict[str, Any] = {name: value for name, value in THRESHOLDS.items() if hasattr(known, name)}
    return options | {"cpp.enable_floating_point_contract_flag": "fast"}


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
    device: str
    same: tuple[Any, ...] = ()
    """What makes two rules and two moves the same: types and attributes."""

    def __str__(self) -> str:
        names = (type(self.rule).__name__.removesuffix("Rule"), type(self.move).__name__)
        return f"{names[0]} × {names[1] if self.rows != 'flat' else 'Decay'}"


@lru_cache(maxsize=64)
def ones(rows: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A column of ones."""
    return torch.ones(rows, 1, dtype=dtype, device=device)


@lru_cache(maxsize=16)
def lanes(dtype: torch.dtype, device: torch.device) -> Tensor:
    """A small block of ones whose two dimensions do not lie one after the other in memory."""
    block = torch.ones(2, 9, dtype=dtype, device=device)[:, :8]
    torch._dynamo.mark_static(block)
    return block


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
    """The step as a function of tensors, to be compiled: of numbers, w, g, averages, and for rows ones, lanes, columns.

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
        (numbers, w, g, *old), (one, lane, *columns) = tensors[:averages], tensors[averages:]
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
            size = w.shape[1]
            if kind.rows != "neuron":
                size = size * (w.shape[0] // columns[0].shape[0])
                dots = tuple(x.reshape(columns[0].shape[0], -1).sum(1, keepdim=True) for x in dots)
            ww, dw, dd, *kept = (x[:, :, None].expand(-1, 2, 8) for x in (*dots, *columns))
            kept, keep, push = move.turn(ww * lane, dw, dd, tuple(kept), size, _own(named))
            *columns, keep, push = (x.amax((1, 2))[:, None] for x in (*kept, keep, push))
            if kind.rows != "neuron":
                keep, push = (x.expand(-1, w.shape[0] // x.shape[0]).reshape(-1, 1) for x in (keep, push))
            result = w * keep - torch.where(push == 0, 0.0, d * push)
        for x, y in zip([w, *old], [result, *(y.x for y in new)], strict=True):
            x.copy_(y)
        return columns

    step = flat if kind.rows == "flat" else by_rows
    # A code object of its own: the compiler counts recompilations for each.
    step.__code__ = step.__code__.replace(co_name=f"step_{len(_kernels)}")
    return step


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
    device = torch.device(kind.device)
    rows, width = HINT
    shape = {"flat": (rows * width,), "single": (1, rows * width)}.get(kind.rows, HINT)

    def zeros(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    example = [torch.ones(len(kind.numbers), dtype=dtype), zeros(*shape), zeros(*shape, dtype=low)]
    example += [zeros(*shape) for _ in kind.rule.state]
    if kind.rows != "flat":
        example += [ones(shape[0], dtype, device), lanes(dtype, device)]
        height = {"neuron": rows, "part": rows // 2}.get(kind.rows, 1)
        example += [zeros(height, 1) for _ in range(columns)]
    return Direct(_write(kind), example, _options())
