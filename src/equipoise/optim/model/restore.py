"""Run a model without side effects: weights, gradients, buffers, modes and random states are restored."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn


@contextmanager
def kept(model: nn.Module) -> Iterator[Callable[[], None]]:
    """Put the model back as it was, bit by bit, at the end. Gives a function that puts back all but the parameters.

    Args:
        model: the model. Its parameters have no gradient inside.
    """
    params = [(p, p.detach().clone(), p.grad) for p in model.parameters()]
    modules = [(m, m.training, dict(m._buffers)) for m in model.modules()]
    buffers = [(b, b.detach().clone()) for _, _, own in modules for b in own.values() if b is not None]
    states = _random_states()

    # Written through .data, so that a graph which somebody else still holds does not see a change.
    def rewind() -> None:
        for module, training, own in modules:
            module.training = training
            module._buffers.clear()
            module._buffers.update(own)
        for buffer, value in buffers:
            buffer.data.copy_(value)
        _set_random_states(states)

    for p, _, _ in params:
        p.grad = None  # the old gradient is kept aside whole, so nothing can add to it
    try:
        yield rewind
    finally:
        rewind()
        for p, value, grad in params:
            p.data.copy_(value)
            p.grad = grad


def _random_states() -> dict[str, Any]:
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    return {"torch": torch.get_rng_state(), "cuda": cuda, "numpy": np.random.get_state(), "python": random.getstate()}  # noqa: NPY002


def _set_random_states(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None:
        torch.cuda.set_rng_state_all(states["cuda"])
    np.random.set_state(states["numpy"])  # noqa: NPY002
    random.setstate(states["python"])
