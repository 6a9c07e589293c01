"""Check for NaN and infinity between measured steps: one reduction over weights and momentum, without waiting."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.finding import Finding
from equipoise.monitor.attach.registry import OptimizerRegistry, groups_in
from equipoise.monitor.measure.frame import Frame
from equipoise.monitor.measure.tensors import local

APART = 16
"""Steps between two looks."""

NOT_FINITE = "not-finite"
"""The code of the finding."""


@dataclass
class FiniteCheck:
    """One look, whose answer may still be on its way from the device.

    Attributes:
        step: at which.
        seen: of each tensor that was looked at, what it is ("weights", "momentum" or "gradient") and its name.
        told: a number of each of them that is finite if the tensor is, on the host once `ready`.
        event: says when.
    """

    step: int
    seen: list[tuple[str, str]]
    told: Tensor
    event: Any = None

    @property
    def ready(self) -> bool:
        """Whether the answer is there, and nothing needs to be waited for."""
        return self.event is None or self.event.query()


class FiniteWatch:
    """Looks at the tensors of some optimizers every few steps.

    A gradient that is not finite leaves a momentum that is not, for good, so that momentum tells of every step since
    the last look. Gradients are looked at where there is no momentum.

    Args:
        registry: the optimizers.
    """

    def __init__(self, registry: OptimizerRegistry) -> None:
        self._registry = registry
        self._waiting: list[FiniteCheck] = []
        self._next = 0

    @property
    def next(self) -> int:
        """The step of the next look; 0 while one waits for its answer."""
        return 0 if self._waiting else self._next

    def look(self, step: int, frame: Frame) -> Finding | None:
        """Begin a look if it is time for one, and say what those before it found.

        Args:
            step: that is about to be taken.
            frame: the tensors that are trained.
        """
        if step >= self._next:
            self._next = step + APART
            self._begin(step, frame, gradients=True)
        return self._answered(wait=False)

    def last(self, step: int, frame: Frame) -> Finding | None:
        """Look at weights and momentum at the end of a run, and wait for the answer.

        Args:
            step: the last one.
            frame: the tensors that were trained.
        """
        self._begin(step, frame, gradients=False)
        return self._answered(wait=True)

    @torch.no_grad()
    def _begin(self, step: int, frame: Frame, gradients: bool) -> None:
        """Reduce each tensor to a number that tells, and start moving it off the device."""
        skips = [not gradients or _skips(one) for one in self._registry.each]
        weights, momenta = frame.weights(), frame.momenta()
        grads = [
            None if m is not None or skips[tensor.owner] else _gradient(tensor.p)
            for tensor, m in zip(frame.tensors, momenta, strict=True)
        ]
        if frame.little and _all_finite([x for x in (*weights, *momenta, *grads) if x is not None]):
            return
        held: dict[torch.device, tuple[list[tuple[str, str]], list[Tensor]]] = {}
        for tensor, *three in zip(frame.tensors, weights, momenta, grads, strict=True):
            for what, x in zip(("weights", "momentum", "gradient"), three, strict=True):
                if x is not None and x.numel():
                    seen, found = held.setdefault(x.device, ([], []))
                    seen.append((what, tensor.name))
                    found.append(x)
        for device, (seen, found) in held.items():
            told, event = _told(found), None
            if device.type == "cuda":
                pinned = torch.empty(told.shape, dtype=told.dtype, pin_memory=True)
                told = pinned.copy_(told, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
            self._waiting.append(FiniteCheck(step, seen, told, event))

    def _answered(self, wait: bool) -> Finding | None:
        """What the looks that are answered have found, the first of it."""
        while self._waiting and (wait or self._waiting[0].ready):
            look = self._waiting.pop(0)
            if look.event is not None:
                look.event.synchronize()
            finite = np.isfinite(look.told.cpu().numpy())
            if finite.all():
                continue
            bad = [one for one, fine in zip(look.seen, finite.tolist(), strict=True) if not fine]
            what = next(w for w in ("weights", "momentum", "gradient") if any(w == one for one, _ in bad))
            of_it = sum(w == what for w, _ in look.seen)
            return not_finite(look.step, what, [name for w, name in bad if w == what], of_it)
        return None


def _gradient(p: Tensor) -> Tensor | None:
    return None if p.grad is None or p.grad.is_sparse else local(p.grad)


def _all_finite(tensors: list[Tensor]) -> bool:
    """Whether all is well with tensors on the CPU; False also where numbers are so large that it cannot be told."""
    return bool(np.isfinite(torch.stack(torch._foreach_norm(tensors)).numpy()).all())


def _told(tensors: list[Tensor]) -> Tensor:
    """A number of each tensor of one device that is finite if, and only if, all of its numbers are."""
    if tensors[0].device.type != "cpu":
        return torch.stack([n.float() for n in torch._foreach_norm(tensors, float("inf"))])
    # A CPU takes the 2-norm ten times as fast as the largest number. Where it overflowed, each number is looked at.
    sums = torch.stack([n.float() for n in torch._foreach_norm(tensors)])
    for i in np.flatnonzero(~np.isfinite(sums.numpy())).tolist():
        sums[i] = 0.0 if tensors[i].isfinite().all() else math.nan
    return sums


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
        + (", in all tensors at once, so the loss itself was" if everywhere else f" in {few}"),
        "finite gradients, momentum and weights",
        "check the batch and the loss of that step; clip gradients, lower lr, or skip such steps"
        + ("; every=1 names the layer where it starts" if everywhere else ""),
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
