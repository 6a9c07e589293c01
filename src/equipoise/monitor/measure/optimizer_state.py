"""Find the gradients, the momentum and the age of an optimizer's averages, without touching its state."""

from __future__ import annotations

from operator import is_
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.measure.tensors import Watched, like, local
from equipoise.optim.dynamics_of import stepping

MOMENTUM = ("exp_avg", "momentum_buffer", "momentum", "mom", "mu", "state1")
"""What optimizers call their average of gradients: torch's and ours the first two, others the rest."""


class Sources:
    """Looks up what belongs to the parameters of one optimizer; lookups are kept while its states stay the same.

    Args:
        optimizer: whose.
        tensors: those of its parameters that are watched.
    """

    def __init__(self, optimizer: Any, tensors: list[Watched]) -> None:
        self._optimizer = optimizer
        self._params = [t.p for t in tensors]
        self._seen: tuple[Any, ...] = ()
        self._states: list[dict[str, Any]] = []
        self._held: list[Any] = []
        self._keys: list[tuple[dict[str, Any], str]] = []
        self._at: list[int] = []
        self._born = np.full(len(tensors), np.nan)
        """How many steps the optimizer had taken when a tensor's averages began; -inf where nobody knows."""
        self._unborn = np.ones(len(tensors), dtype=bool)
        self._counted = False

    def grads(self) -> list[Tensor | None]:
        """Each parameter's gradient here; None where there is none, or a sparse one."""
        return self.dense([p.grad for p in self._params])

    def dense(self, found: list[Tensor | None]) -> list[Tensor | None]:
        """Gradients, one for each parameter, as `grads` gives them."""
        return [
            g if type(g) is Tensor and not g.is_sparse else _dense(g, p)
            for g, p in zip(found, self._params, strict=True)
        ]

    def here(self) -> list[Tensor | None]:
        """The part of each momentum that is on this process, as it lies; no other process takes part."""
        self._look()
        found: list[Tensor | None] = [None] * len(self._params)
        for i, m in zip(self._at, self._held, strict=True):
            found[i] = m if type(m) is Tensor else local(m)
        return found

    def averages(self) -> list[Tensor | None]:
        """The momentum of each tensor before the step, None where there is none; `ages` looks for it."""
        found: list[Tensor | None] = [None] * len(self._params)
        for i, m in zip(self._at, self._held, strict=True):
            found[i] = m if type(m) is Tensor else local(like(m, self._params[i]))
        return found

    def ages(self, taken: int) -> NDArray[np.float64]:
        """Which step of its averages the coming one is, of each tensor: 1 for the first; inf where nobody knows.

        Args:
            taken: how many steps the optimizer has taken since the watch began, without the coming one.
        """
        self._look()
        if not self._counted:
            self._count(taken)
            self._counted = True
        self._born[self._unborn] = taken
        return taken + 1 - self._born

    def _look(self) -> None:
        """Find states and momentum again if states came, went or were loaded."""
        held = stepping(self._optimizer).state
        same = len(self._seen) == 2 and self._seen[0] is held
        if same and self._seen[1] == (len(held), sum(map(len, self._states))):
            now = [state.get(key) for state, key in self._keys]
            if all(map(is_, now, self._held)):
                return
        elif not same:
            self._born[:] = np.nan  # loading a checkpoint replaces the states as a whole
        # owner.state[p] would make a state where there is none.
        states = [held.get(p) or None for p in self._params]
        self._states = [s for s in states if s is not None]
        self._unborn = np.array([not s for s in states], dtype=bool)
        self._at, self._keys, self._held = [], [], []
        for i, (p, state) in enumerate(zip(self._params, states, strict=True)):
            name = _momentum(state, p) if state else None
            if state and name:
                self._at.append(i)
                self._keys.append((state, name))
                self._held.append(state[name])
        self._seen = (held, (len(held), sum(map(len, self._states))))
        self._counted = False

    def _count(self, taken: int) -> None:
        """Read the optimizer's own counts of steps, where it has them; those on a device in one transfer."""
        known: dict[int, Any] = {}
        held = stepping(self._optimizer).state
        for i, p in enumerate(self._params):
            state = held.get(p)
            if state and "step" in state:
                known[i] = state["step"]
            elif state and np.isnan(self._born[i]):
                self._born[i] = -np.inf
        away = [i for i, t in known.items() if isinstance(t, Tensor) and t.device.type != "cpu"]
        moved = torch.stack([known[i].reshape(()).float() for i in away]).tolist() if away else []
        known |= dict(zip(away, moved, strict=True))
        for i, steps in known.items():
            self._born[i] = taken - float(steps)


def state_of(optimizer: Any, p: Tensor) -> dict[str, Any]:
    """A parameter's state in the optimizer that computes the step, empty where there is none."""
    return dict(stepping(optimizer).state.get(p) or {})


def momentum_of(state: dict[str, Any], p: Tensor) -> Any:
    """The momentum in a parameter's state; None where there is none."""
    name = _momentum(state, p)
    return None if name is None else state[name]


def _momentum(state: dict[str, Any], p: Tensor) -> str | None:
    for name in MOMENTUM:
        m = state.get(name)
        if isinstance(m, Tensor) and m.shape == p.shape and m.is_floating_point():
            return name
    return None


def _dense(g: Any, p: Tensor) -> Tensor | None:
    if g is None or g.is_sparse:
        return None
    return local(like(g, p))
