"""Choose which tensors have their spectrum measured next, and collect their weight, change and momentum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from equipoise.monitor.attach.ranks import gathered, reduce_all
from equipoise.monitor.attach.registry import OptimizerRegistry
from equipoise.monitor.measure.frame import Frame
from equipoise.monitor.measure.optimizer_state import momentum_of, state_of
from equipoise.monitor.measure.singular_values import NAMES, gram, gram_singular_values, spectrum_facts
from equipoise.monitor.measure.tensors import Watched, like, local
from equipoise.monitor.store.layout import Column, Layout
from equipoise.optim.dynamics_of import GroupState

LARGEST = 2048
"""Matrices whose smaller side is longer than this have no spectrum measured."""
ROOM = 2**28
"""Bytes of Gram matrices that may be on their way; where all tensors are measured at once, they are waited for then."""


class Spectra:
    """Takes the tensors of a frame in turn, as many at a time as it is given seconds for.

    Where parameters are sharded, one tensor after the other is gathered, and the first process measures it.

    Args:
        frame: the tensors.
        first: whether this is the first process.
    """

    def __init__(self, frame: Frame, first: bool) -> None:
        self._frame, self._first = frame, first
        self._turn = 0
        self._rate = 3e-9
        """Seconds for one multiplication of the Gram matrices; learned."""
        columns = [Column(q, t.name) for t in frame.tensors for q in NAMES]
        self.layout = Layout(tuple(columns), kind="slow")

    @property
    def count(self) -> int:
        """How many tensors there are."""
        return len(self._frame.tensors)

    def cost(self, index: int) -> float:
        """Seconds that a tensor is expected to take."""
        p = self._frame.tensors[index].p
        shape, size = p.shape, p.numel()
        return self._rate * size * (min(shape[0], size // shape[0]) if self._fits(p) else 1) + 1e-4

    def affords(self, credit: float) -> int:
        """How many tensors, from the one whose turn it is, the seconds go for."""
        for k in range(self.count):
            credit -= self.cost((self._turn + k) % self.count)
            if credit < 0:
                return k
        return self.count

    def due(self, every: int | None, measured: int, afforded: int) -> list[int]:
        """The tensors that are measured now.

        Args:
            every: all of them at each k-th measured step, 0 never, None as many as are afforded.
            measured: how many steps have been measured, with this one.
            afforded: how many.
        """
        if every is None:
            start, self._turn = self._turn, (self._turn + afforded) % self.count
            return [(start + k) % self.count for k in range(afforded)]
        return list(range(self.count)) if every and (measured - 1) % every == 0 else []

    def learn(self, indices: list[int], seconds: float) -> None:
        """Take in how long some tensors took."""
        expected = sum(self.cost(i) for i in indices)
        if expected > 0:
            self._rate *= min(4.0, max(0.25, seconds / expected))

    @staticmethod
    def _fits(p: Tensor) -> bool:
        return p.ndim > 1 and min(p.shape[0], p.numel() // p.shape[0]) <= LARGEST

    def measure(
        self, registry: OptimizerRegistry, indices: list[int], steps: list[GroupState], failed: bool, held: int = 0
    ) -> list[Taken]:
        """Take what the spectra of some tensors need, now that it is there; nobody waits for a device.

        Args:
            registry: the optimizers; those of the tensors have just stepped.
            indices: the tensors.
            steps: the numbers of each group in this step.
            failed: whether measuring failed on this process: it only does its part for the others then.
            held: bytes of what is on its way already.
        """
        error: Exception | None = None
        made: list[Taken] = []
        for i in indices:
            tensor = self._frame.tensors[i]
            if not hasattr(tensor.p, "placements") and not self._first:
                continue  # a parameter that every process has whole
            eps: Tensor | None = None
            here: tuple[Tensor, ...] = ()
            # What fails here must not keep the others waiting: they get zeros, and the error is raised at the end.
            try:
                if not failed:
                    eps, here = self._eps(tensor, registry, steps[tensor.group].dynamics.eps), self._here(i, registry)
            except Exception as caught:
                error, failed = caught, True
            eps = _shared_eps(eps, tensor)
            parts = self._whole(tensor, here)
            try:
                if self._first and not failed:
                    made.append(Taken(i, _leaving(eps), _grams(parts, steps[tensor.group], tensor.p.ndim)))
                    held += made[-1].size
                    if _there(made[-1].eps):  # nothing to wait for, and no reason to keep it
                        made[-1].solve()
                    elif held > ROOM:
                        held = 0
                        torch.cuda.synchronize()
                        for taken in made:
                            taken.solve()
            except Exception as caught:
                error, failed = caught, True
        if error is not None:
            raise error
        return made

    def row(self, taken: Sequence[Taken]) -> NDArray[np.float64]:
        """A row of the layout, from what has arrived.

        Args:
            taken: what `measure` took.
        """
        row = np.full(self.count * len(NAMES), np.nan)
        for one in taken:
            for name, value in one.solve().items():
                row[one.index * len(NAMES) + NAMES.index(name)] = value
        return row

    def _here(self, index: int, registry: OptimizerRegistry) -> tuple[Tensor, ...]:
        """Weight, change and momentum of a tensor on this process; nothing where its spectrum is not measured."""
        tensor = self._frame.tensors[index]
        if not self._fits(tensor.p):
            return ()
        weight = _working(tensor.local)
        change = torch.zeros_like(weight)
        if tensor.counts and weight.numel():
            change = self._frame.change_of(index).reshape(weight.shape).to(weight.dtype)
        momentum = momentum_of(state_of(registry.each[tensor.owner], tensor.p), tensor.p)
        more = () if momentum is None else (local(like(momentum, tensor.p)).to(weight.dtype),)
        return weight, change, *more

    def _whole(self, tensor: Watched, here: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The same of the whole tensor; every process takes part three times, whatever it has."""
        if not hasattr(tensor.p, "placements") or not self._fits(tensor.p):
            return here
        nothing = torch.zeros_like(_working(tensor.local))
        padded = (*here, *[nothing] * (3 - len(here)))
        return tuple(gathered(x, tensor.p) for x in padded)[: len(here)]

    def _eps(self, tensor: Watched, registry: OptimizerRegistry, eps: float) -> Tensor | None:
        """How many weights have √v̂ < ε on this process, and of how many; nothing without second moments."""
        state = state_of(registry.each[tensor.owner], tensor.p)
        v, t = state.get("exp_avg_sq"), state.get("step")
        betas = registry.param_groups[tensor.group].get("betas")
        if not isinstance(v, Tensor) or t is None or betas is None or v.shape != tensor.p.shape:
            return None
        v = local(v)
        if not tensor.counts:
            return torch.zeros(2, dtype=torch.float64, device=v.device)
        t = t.double() if isinstance(t, Tensor) else t  # a tensor on a device is not read
        below = (v.to(torch.float64) < eps * eps * (1.0 - float(betas[1]) ** t)).sum().double()
        return torch.stack([below, torch.full_like(below, v.numel())])


@dataclass
class Taken:
    """What a tensor's spectra need: on its way from the device until `solve`, which is called when it has arrived."""

    index: int
    eps: Tensor
    grams: dict[str, Tensor]
    _found: dict[str, float] | None = None

    @property
    def size(self) -> int:
        """Bytes on the way."""
        return sum(x.nbytes for x in self.grams.values())

    def solve(self) -> dict[str, float]:
        """The numbers, by name; the Gram matrices are let go of."""
        if self._found is None:
            below, of = self.eps.tolist()
            found = {"eps_share": below / of if of else math.nan}
            for key, squared in self.grams.items():
                found |= spectrum_facts(key, gram_singular_values(squared))
            self._found, self.grams = found, {}
        return self._found


def _working(x: Tensor) -> Tensor:
    return x.detach().to(x.dtype if x.dtype == torch.float64 else torch.float32)


def _grams(parts: tuple[Tensor, ...], step: GroupState, ndim: int) -> dict[str, Tensor]:
    """Gram matrices of weight, update and momentum, on their way to the CPU."""
    if not parts:
        return {}
    weight, change, *momentum = parts
    # U = Δ + d(w′ − Δ), as w′ is the weight after the step; cautious decay is left in.
    lost = 0.0 if step.cautious else step.lost(ndim)
    made = {"weight": _leaving(gram(weight)), "update": _leaving(gram(change, (lost, weight), (-lost, change)))}
    return made | ({"momentum": _leaving(gram(momentum[0]))} if momentum else {})


def _leaving(x: Tensor) -> Tensor:
    """A tensor on its way to the CPU: whoever reads it waits for the step's numbers first, which come after it."""
    return torch.empty(x.shape, dtype=x.dtype, pin_memory=True).copy_(x, non_blocking=True) if x.is_cuda else x.cpu()


def _there(x: Tensor) -> bool:
    """Whether what was `_leaving` has been on the CPU all the time."""
    return not x.is_pinned()


def _shared_eps(found: Tensor | None, tensor: Watched) -> Tensor:
    """How many weights eps dominates, and of how many, over all processes."""
    both = torch.zeros(2, dtype=torch.float64, device=tensor.local.device) if found is None else found
    if hasattr(tensor.p, "placements"):
        reduce_all(both)
    return both
