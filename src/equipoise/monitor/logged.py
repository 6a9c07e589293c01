"""Numbers that a training loop logs itself: kept as they come, stored together later, so that nothing waits."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.monitor.layout import LOG, Column, Layout, Quantity
from equipoise.monitor.quantities import GLOBAL, PER_TENSOR
from equipoise.monitor.tables import to_log
from equipoise.monitor.writer import RunWriter

MEASURED = {q.name for q in (*GLOBAL, *PER_TENSOR)}

MOST = 256
"""Steps that may wait before they are stored in any case."""

SOON, LATER = 0.2, 2.0
"""Seconds that numbers may wait: those on the CPU, and those on a device, which must be waited for."""


class Logged:
    """Collects logged numbers by step, and writes them as rows of kind "log".

    Args:
        writer: where to; None collects nothing.
        first: the first step of a run that goes on; what is logged before it is stored with it.
    """

    def __init__(self, writer: RunWriter | None, first: int = 0) -> None:
        self._writer, self._first = writer, first
        self._names: list[str] = []
        self._waiting: dict[int, dict[str, Any]] = {}
        self._flushed = time.monotonic()
        self._away = False
        self._newest: dict[str, tuple[int, float]] = {}

    def add(self, step: int, numbers: dict[str, Any]) -> None:
        """Keep the numbers of a step; a name said again at the same step replaces the earlier one.

        Args:
            step: the step.
            numbers: by name, a number or a tensor of one element.
        """
        if self._writer is None:
            return
        kept: dict[str, Any] = {}
        for name, value in numbers.items():
            if isinstance(value, Tensor):
                if value.numel() != 1:
                    shape = tuple(value.shape)
                    self._writer.refuse(ValueError(f"{name} has shape {shape}: must be a number, or have one element"))
                    continue
                if value.device.type == "cpu":
                    kept[name] = value.item()
                    continue
                kept[name] = value.detach().clone().reshape(())
                self._away = True
            else:
                try:
                    kept[name] = float(value)
                except (TypeError, ValueError):
                    wanted = "must be a number, or a tensor with one element"
                    self._writer.refuse(ValueError(f"{name} = {value!r}: {wanted}"))
        if not kept:
            return
        step = max(step, self._first)
        long = LATER if self._away else SOON
        if step not in self._waiting and (len(self._waiting) >= MOST or time.monotonic() - self._flushed > long):
            self.flush(step)
        self._waiting.setdefault(step, {}).update(kept)

    def flush(self, before: int | None = None) -> None:
        """Store the numbers that wait; tensors of one device are moved together.

        Args:
            before: only those of steps before this one.
        """
        self._flushed = time.monotonic()
        steps = [s for s in self._waiting if before is None or s < before]
        if self._writer is None or not steps:
            return
        rows = {s: self._waiting.pop(s) for s in steps}
        devices: dict[Any, list[tuple[int, str, Tensor]]] = {}
        for s, row in rows.items():
            for name, value in row.items():
                if isinstance(value, Tensor):
                    devices.setdefault(value.device, []).append(
                        (s, name, value.double() if _wide(value) else value.float())
                    )
        for found in devices.values():
            values = torch.stack([value.double() if _wide(found[0][2]) else value for _, _, value in found]).tolist()
            for (s, name, _), value in zip(found, values, strict=True):
                rows[s][name] = value
        new = [name for row in rows.values() for name in row if name not in self._names]
        if new:
            self._names += dict.fromkeys(new)
            # A name such as grad_norm is that of a measured quantity, too, whose description stays.
            said = [n for n in dict.fromkeys(new) if n not in MEASURED]
            self._writer.describe(quantities=[Quantity(n, "", "global", "logged by the loop") for n in said])
            self._writer.layout(Layout(tuple(Column(n) for n in self._names), kind=LOG, dtype="float64"))
        for s, row in sorted(rows.items()):
            self._newest |= {name: (s, float(value)) for name, value in row.items()}
            values = [to_log(float(row[n])) if n in row else math.nan for n in self._names]
            self._writer.append(s, np.array(values), kind=LOG)

    def take(self) -> dict[int, dict[str, float]]:
        """The newest number of each name that was stored since the last call, by step, for sinks."""
        out: dict[int, dict[str, float]] = {}
        for name, (step, value) in self._newest.items():
            out.setdefault(step, {})[name] = value
        self._newest.clear()
        return out


def _wide(x: Tensor) -> bool:
    return x.dtype == torch.float64


def whole(value: Any) -> Any:
    """A DTensor made whole, which all processes take part in; anything else as it is."""
    if type(value) in (Tensor, float, int) or not hasattr(value, "full_tensor"):
        return value
    return value.full_tensor()
