"""Compiled functions without the way in.

torch looks at every argument anew at each call, which costs more than the step of a small matrix. Here the way is
looked at once, while compiling, and later calls go to the compiled code itself. Its one large temporary, if it has one,
is room that is kept: memory that is new at every call has to be given by the system, page by page, which would take a
third of a step.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class Direct:
    """A function of tensors, compiled for all sizes on an example, whose calls reach the compiled code directly.

    That is right as long as calls differ from the example in sizes alone (none of them 0 or 1): the compiled code
    checks sizes and strides itself. Where the way can't be seen, calls take torch's.

    Args:
        function: of a list of tensors; it may change them in place, and returns a list of new ones.
        example: arguments, no two sizes of which are the same by chance. The second is as large as any.
        options: for Inductor.
    """

    def __init__(
        self, function: Callable[[list[Tensor]], list[Tensor]], example: Sequence[Tensor], options: dict[str, Any]
    ):
        from torch._inductor.compile_fx import compile_fx, compile_fx_inner

        seen = _Seen(tuple(example[1].shape))

        def inner(graph: Any, inputs: Any, **more: Any) -> Any:
            return seen.watch(compile_fx_inner(graph, inputs, **more))

        def backend(graph: Any, inputs: Any) -> Any:
            return compile_fx(graph, inputs, inner_compile=inner, config_patches=options)

        self._slow: Any = torch.compile(function, backend=backend, dynamic=True, fullgraph=True)
        with torch.no_grad():
            results = self._slow(list(example))
        self._code, self._order, self._outputs = seen.way(list(example), list(results))
        seen.active = False

    def __call__(self, arguments: list[Tensor]) -> list[Tensor]:
        """Call it on arguments like the example's.

        Args:
            arguments: as many, of the same types, laid out alike.
        """
        if self._code is None:
            return self._slow(arguments)
        outputs = self._code([arguments[i] if dim is None else arguments[i].shape[dim] for i, dim in self._order])
        return [outputs[i] for i in self._outputs]


class _Seen:
    """What goes in and out of the compiled code in the call that compiles it."""

    def __init__(self, large: tuple[int, ...]) -> None:
        self.active, self._large = True, large
        self._graph: Any = None
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._count = 0

    def watch(self, graph: Any) -> Any:
        self._graph = graph
        self._count += 1

        def call(inputs: list[Any]) -> Any:
            if not self.active:
                return graph(inputs)
            self._inputs = list(inputs)
            with _kept_room(getattr(graph, "current_callable", None), self._large):
                outputs = graph(inputs)
            self._outputs = list(outputs)
            return outputs

        call._boxed_call = True  # type: ignore[attr-defined]
        return call

    def way(
        self, example: list[Tensor], results: list[Tensor]
    ) -> tuple[Callable[[list[Any]], Any] | None, list[tuple[int, int | None]], list[int]]:
        """The compiled code, which argument or size each of its inputs is, and which of its outputs are the results."""
        nowhere = None, [], []
        code = getattr(self._graph, "current_callable", None)
        if self._count != 1 or code is None:
            return nowhere
        sizes = {size: (i, dim) for i, x in reversed(list(enumerate(example))) for dim, size in enumerate(x.shape)}
        tensors = {_place(x): (i, None) for i, x in enumerate(example)}
        order = [tensors.get(_place(x)) if torch.is_tensor(x) else sizes.get(x) for x in self._inputs]
        places = [_place(x) if torch.is_tensor(x) else None for x in self._outputs]
        outputs = [places.index(_place(x)) if _place(x) in places else None for x in results]
        if len(tensors) < len(example) or None in order or None in outputs:
            return nowhere
        return code, order, outputs  # type: ignore[return-value]


_room = threading.local()


@contextmanager
def _kept_room(code: Any, large: tuple[int, ...]) -> Iterator[None]:
    """Let the code have kept room for a temporary of that many dimensions and columns, if it makes just one."""
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
        kept = _room.__dict__.setdefault("tensors", {})
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


def _place(x: Tensor) -> tuple[Any, ...]:
    return x.data_ptr(), tuple(x.shape), tuple(x.stride())
