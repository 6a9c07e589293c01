"""Look for NaN and infinity between measured steps: one reduction over gradients or weights, never waited for."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.finding import Finding
from equipoise.monitor.attach.registry import OptimizerRegistry, groups_in
from equipoise.monitor.measure.tensors import Watched, local

APART = 8
"""Steps between two looks: at the gradients and at the weights in turn, so at each of them every 16th step."""

NOT_FINITE = "not-finite"
"""The code of the finding."""


@dataclass
class FiniteCheck:
    """One look, whose answer may still be on its way from the device.

    Attributes:
        step: at which.
        what: "gradient" or "weights".
        names: of the tensors.
        largest: the largest number of each tensor, on the host once `ready`.
        event: says when.
    """

    step: int
    what: str
    names: list[str]
    largest: Tensor
    event: Any = None

    @property
    def ready(self) -> bool:
        """Whether the answer is there, and nothing needs to be waited for."""
        return self.event is None or self.event.query()


class FiniteWatch:
    """Looks at the tensors of some optimizers every few steps.

    Args:
        registry: the optimizers.
    """

    def __init__(self, registry: OptimizerRegistry) -> None:
        self._registry = registry
        self._waiting: list[FiniteCheck] = []
        self._next, self._weights = 0, False

    def due(self, step: int) -> bool:
        """Whether it is time for a look, or one has been answered."""
        return step >= self._next or (bool(self._waiting) and self._waiting[0].ready)

    def look(self, step: int, tensors: list[Watched]) -> Finding | None:
        """Begin a look if it is time for one, and say what those before it found.

        Args:
            step: that is about to be taken.
            tensors: that are trained.
        """
        if step >= self._next:
            self._next = step + APART
            self._weights = not self._weights
            self._begin(step, "weights" if self._weights else "gradient", tensors)
        return self._answered(wait=False)

    def last(self, step: int, tensors: list[Watched]) -> Finding | None:
        """Look at the weights at the end of a run, and wait for the answer.

        Args:
            step: the last one.
            tensors: that were trained.
        """
        self._begin(step, "weights", tensors)
        return self._answered(wait=True)

    def _begin(self, step: int, what: str, tensors: list[Watched]) -> None:
        """Take the largest number of each tensor, and start moving it off the device."""
        skips = [_skips(one) for one in self._registry.each]
        held: dict[torch.device, list[tuple[str, Tensor]]] = {}
        for tensor in tensors:
            x = tensor.p if what == "weights" else None if skips[tensor.owner] else tensor.p.grad
            if x is None or x.is_sparse:
                continue
            here = local(x)
            if here.numel():
                held.setdefault(here.device, []).append((tensor.name, here))
        for device, found in held.items():
            with torch.no_grad():
                norms = torch._foreach_norm([x for _, x in found], float("inf"))
                alike = len({n.dtype for n in norms}) == 1
                largest = torch.stack(norms if alike else [n.float() for n in norms])
            event = None
            if device.type == "cuda":
                pinned = torch.empty(largest.shape, dtype=largest.dtype, pin_memory=True)
                largest = pinned.copy_(largest, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            self._waiting.append(FiniteCheck(step, what, [name for name, _ in found], largest, event))

    def _answered(self, wait: bool) -> Finding | None:
        """What the looks that are answered have found, the first of it."""
        while self._waiting and (wait or self._waiting[0].ready):
            look = self._waiting.pop(0)
            if look.event is not None:
                look.event.synchronize()
            largest = look.largest.cpu()
            exact = largest.dtype in (torch.float32, torch.float64)
            bad = np.flatnonzero(~np.isfinite((largest if exact else largest.float()).numpy())).tolist()
            if bad:
                return not_finite(look.step, look.what, [look.names[i] for i in bad], len(look.names))
        return None


def _skips(optimizer: Any) -> bool:
    """Whether steps with such gradients are left out: by a GradScaler with a fused optimizer, or by one of ours."""
    asked = (group.get("nonfinite", "ignore") != "ignore" for group in groups_in(optimizer))
    return getattr(optimizer, "found_inf", None) is not None or any(asked)


def not_finite(step: int, what: str, names: list[str], tensors: int) -> Finding:
    """Gradients or weights are NaN or infinite.

    Args:
        step: when it was seen.
        what: "gradient", "momentum" or "weights".
        names: of the tensors, the first one first.
        tensors: how many there are in all.
    """
    everywhere = len(names) == tensors and tensors > 1
    few = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    verb = "are" if what == "weights" else "is"
    return Finding(
        NOT_FINITE,
        "error",
        "all tensors" if everywhere else names[0],
        f"at step {step:,} the {what} {verb} NaN or infinite"
        + (": of all tensors at once, so the loss itself was" if everywhere else f", of {few}"),
        "finite gradients, momentum and weights",
        "look at the batch and the loss of that step; clip gradients, lower lr, or skip such steps"
        + ("; with every=1 the layer where it starts is named" if everywhere else ""),
        "one NaN reaches all weights within a step or two",
    )


def seen_at(finding: Finding) -> int:
    """The step that a finding of `not_finite` tells.

    >>> seen_at(not_finite(1234, "weights", ["a"], 2))
    1234
    """
    found = re.match(r"at step ([\d,]+) ", finding.evidence)
    assert found is not None
    return int(found[1].replace(",", ""))
