"""Run a recursion over the steps of a run: plain Python for short runs, compiled by numba for long ones.

The recursions of `_recursions` are loaded a second time and compiled as they stand, so that every equation has one
text. numba is imported only when a run is long enough to pay for it, and everything works without it, slower.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
from types import ModuleType
from typing import Any

import numpy as np

from equipoise._check import Array
from equipoise.theory import _recursions

LONG = 20_000
"""Steps from which compiling (about half a second, cached on disk) beats a plain loop."""


def run_recursion(recursion: str, *inputs: Any, outputs: int, steps: int) -> tuple[Array, ...]:
    """Call a recursion with its inputs and that many fresh output arrays, and return those."""
    if steps >= LONG and (module := compiled()) is not None:
        arrays = tuple(np.empty(steps) for _ in range(outputs))
        getattr(module, recursion)(*inputs, *arrays)
        return arrays
    # Lists of floats are three times as fast as arrays in a plain loop.
    lists = [[0.0] * steps for _ in range(outputs)]
    plain = [x.tolist() if isinstance(x, np.ndarray) else x for x in inputs]
    getattr(_recursions, recursion)(*plain, *lists)
    return tuple(np.array(x) for x in lists)


@functools.cache
def compiled() -> ModuleType | None:
    """A second copy of `_recursions` whose functions are compiled, or None where numba is missing."""
    try:
        import numba
    except ImportError:
        return None
    spec = importlib.util.find_spec(_recursions.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, function in list(vars(module).items()):
        if inspect.isfunction(function):
            try:
                setattr(module, name, numba.njit(cache=True, error_model="numpy")(function))
            except RuntimeError:  # nowhere to write the cache: compile in every process
                setattr(module, name, numba.njit(error_model="numpy")(function))
    return module
