"""Step counts of many parameters as one tensor, so that counting costs one operation and not one for each."""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import Tensor


class Clock:
    """The counts that lie in the states under a name; each state has a view of its own, as torch has it.

    >>> clock, states = Clock("step"), [{}, {}]
    >>> clock.tick(states), clock.tick(states[:1]), states[0]["step"]
    ([1, 1], [2], tensor(2.))
    """

    def __init__(self, name: str):
        self.name = name
        self._held: dict[tuple[int, ...], tuple[Tensor, list[Tensor], list[dict[str, Any]]]] = {}

    def tick(self, states: list[dict[str, Any]]) -> list[int]:
        """Count one more step of these states, and return where they are."""
        if not states:
            return []
        key = tuple(map(id, states))
        held = self._held.get(key)
        name = self.name
        if held is None or not all(map(is_, [state.get(name) for state in states], held[1])):
            counts = torch.tensor([float(state.get(name, 0.0)) for state in states], dtype=torch.float32)
            views = list(counts.unbind())
            for state, view in zip(states, views, strict=True):
                state[name] = view
            if len(self._held) >= 64:
                self._held.clear()
            held = self._held[key] = (counts, views, states)  # the states are kept, so that no id comes again
        held[0].add_(1.0)
        return [int(count) for count in held[0].tolist()]

    def agree(self, states: list[dict[str, Any]]) -> bool:
        """Whether the states have all counted the same number of steps."""
        held = self._held.get(tuple(map(id, states)))
        if held is None or not all(map(is_, [state.get(self.name) for state in states], held[1])):
            return len({float(state[self.name]) for state in states}) <= 1
        return bool((held[0] == held[0][0]).all())
