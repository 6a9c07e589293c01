"""Step counts: tensors in the state, as in torch, whose values the host knows without reading them.

The host counts beside the tensors, so that a step also works where tensors have no numbers (FakeTensorMode). It reads a
count once when it does not know it, as after loading, and again when someone has changed the tensor in place.
"""

from __future__ import annotations

from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary


class _Values:
    """The counts in a tensor, and the version of the tensor that they are of; its views share that version."""

    __slots__ = ("counts", "version")

    def __init__(self, counts: list[int], version: int):
        self.counts, self.version = counts, version


_known: Any = WeakTensorKeyDictionary()
"""For each count that was made here: its `_Values`, and its place in them."""


def counts_of(values: list[int]) -> tuple[Tensor, list[Tensor], _Values]:
    """Counts as one tensor, its views, one for each, and what the host knows of them."""
    with torch.inference_mode(False):  # a tensor made in inference mode has no version
        tensor = torch.tensor(values, dtype=torch.float32, device="cpu")
        views = list(tensor.unbind())
    known = _Values(values, tensor._version)
    for i, view in enumerate(views):
        _known[view] = (known, i)
    return tensor, views, known


def count_of(value: int) -> Tensor:
    """One count, as a tensor."""
    return counts_of([value])[1][0]


def value_of(count: Any) -> int:
    """The value of a count: as the host knows it, or read."""
    found = _known.get(count) if isinstance(count, Tensor) else None
    if found is not None and count._version == found[0].version:
        return found[0].counts[found[1]]
    return int(count)


class Clock:
    """The counts that lie in the states under a name; each state has a view of its own, as torch has it.

    Counts of many parameters are one tensor, so that counting costs one operation and not one for each.

    >>> clock, states = Clock("step"), [{}, {}]
    >>> clock.tick(states), clock.tick(states[:1]), states[0]["step"]
    ([1, 1], [2], tensor(2.))
    """

    def __init__(self, name: str):
        self.name = name
        self._held: dict[tuple[int, ...], tuple[Tensor, list[Tensor], _Values, list[dict[str, Any]]]] = {}

    def tick(self, states: list[dict[str, Any]]) -> list[int]:
        """Count one more step of these states, and return where they are."""
        if not states:
            return []
        key = tuple(map(id, states))
        held = self._held.get(key)
        if held is None or not self._holds(held, states):
            tensor, views, known = counts_of([value_of(state.get(self.name, 0)) for state in states])
            for state, view in zip(states, views, strict=True):
                state[self.name] = view
            if len(self._held) >= 64:
                self._held.clear()
            held = self._held[key] = (tensor, views, known, states)  # the states are kept, so that no id comes again
        tensor, _, known, _ = held
        tensor.add_(1.0)
        known.counts = [count + 1 for count in known.counts]
        known.version = tensor._version
        return known.counts

    def agree(self, states: list[dict[str, Any]]) -> bool:
        """Whether the states have all counted the same number of steps."""
        held = self._held.get(tuple(map(id, states)))
        known = held is not None and self._holds(held, states)
        counts = held[2].counts if held is not None and known else [value_of(state[self.name]) for state in states]
        return len(set(counts)) <= 1

    def _holds(self, held: tuple[Tensor, list[Tensor], _Values, Any], states: list[dict[str, Any]]) -> bool:
        """Whether the states still have these counts, and nobody has changed them."""
        tensor, views, known, _ = held
        return tensor._version == known.version and all(map(is_, [state.get(self.name) for state in states], views))
