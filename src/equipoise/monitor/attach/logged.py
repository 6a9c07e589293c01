"""Numbers that a training loop logs: buffered, then stored together, so that training never waits."""

from __future__ import annotations

import math
import re
import threading
from collections import deque
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.monitor.measure.quantities import GLOBAL, PER_GROUP, PER_TENSOR
from equipoise.monitor.store.layout import LOG, Column, Layout, Quantity
from equipoise.monitor.store.tables import to_log
from equipoise.monitor.store.writer import RunWriter

MEASURED = {q.name for q in (*GLOBAL, *PER_TENSOR)}

OWN = re.compile("|".join([*(re.escape(q.name) for q in GLOBAL), *(rf"{re.escape(q.name)}/\d+" for q in PER_GROUP)]))
"""Names of what is measured of the whole run, which would be there twice."""

MOST = 4096
"""Steps that may wait for the thread that writes."""


class _Away:
    """A number on a device, on its way from there.

    Args:
        value: a tensor of one element.
    """

    def __init__(self, value: Tensor) -> None:
        value = value.detach().reshape(())
        self._event: Any = None
        if value.is_cuda:  # copied while training goes on; the event says when it is there
            self._value = torch.empty((), dtype=value.dtype, pin_memory=True).copy_(value, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._value = value.clone()

    @property
    def arrived(self) -> bool:
        """Whether it can be read without waiting for other work of the device."""
        return self._event is None or self._event.query()

    def read(self) -> float:
        """The number, waited for if it is not there yet."""
        if self._event is not None:
            self._event.synchronize()
        return float(self._value.item())


class Logged:
    """Collects logged numbers by step, and writes them as rows of kind "log".

    The thread that writes takes what is there several times a second. The newest step may get more numbers: until the
    next one begins it is stored as a draft.

    Args:
        writer: where to; None collects nothing.
        first: the first step of a run that goes on; what is logged before it is stored with it.
    """

    def __init__(self, writer: RunWriter | None, first: int = 0) -> None:
        self._writer, self._first = writer, first
        self._names: list[str] = []
        self._allowed: set[str] = set()
        self._given: deque[tuple[int, dict[str, Any]]] = deque()
        self._waiting: dict[int, dict[str, Any]] = {}
        self._changed = False
        self._newest: dict[str, tuple[int, float]] = {}
        self._lock = threading.RLock()
        if writer is not None:
            writer.collect(self._take_what_is_there)

    def add(self, step: int, numbers: dict[str, Any]) -> None:
        """Keep the numbers of a step; a name said again at the same step replaces the earlier one.

        Args:
            step: the step.
            numbers: by name, a number or a tensor of one element.
        """
        if self._writer is None:
            return
        kept = numbers
        for name, value in numbers.items():
            if type(value) is not float or name not in self._allowed:
                kept = self._checked(numbers)
                break
        if kept:
            self._given.append((max(step, self._first), kept))
            if len(self._given) > MOST:  # the thread that writes is busy, or there is none
                self._take_what_is_there()

    def _checked(self, numbers: dict[str, Any]) -> dict[str, Any]:
        """Those of the numbers that are some, as floats, or on their way to become one."""
        assert self._writer is not None
        kept: dict[str, Any] = {}
        for name, value in numbers.items():
            try:
                if name not in self._allowed:
                    _check_name(name, value)
                    self._allowed.add(name)
                kept[name] = value if type(value) is float else _number(name, value)
            except ValueError as error:
                self._writer.refuse(error)
        return kept

    def flush(self) -> None:
        """Store all numbers that wait, and wait for those that are on their way from a device."""
        with self._lock:
            self._collect()
            steps = sorted(self._waiting)
            self._store([self._waiting.pop(step) for step in steps], steps)

    def _collect(self) -> None:
        """Put together what was given of each step."""
        while self._given:
            step, numbers = self._given.popleft()
            self._waiting.setdefault(step, {}).update(numbers)
            self._changed = True

    def _take_what_is_there(self) -> None:
        """Store the steps whose numbers have arrived, in their order, the newest one as a draft."""
        with self._lock:
            self._collect()
            steps = sorted(self._waiting)
            away = (k for k, step in enumerate(steps) if not _arrived(self._waiting[step]))
            there = next(away, len(steps))
            done = steps[: min(there, len(steps) - 1)]
            self._store([self._waiting.pop(step) for step in done], done)
            if self._changed and there == len(steps) > 0:
                self._changed = False
                self._store([self._waiting[steps[-1]]], steps[-1:], draft=True)

    def _store(self, rows: list[dict[str, Any]], steps: list[int], draft: bool = False) -> None:
        """Store the numbers of some steps; those that have the same names together."""
        if self._writer is None:
            return
        for row in rows:
            self._read(row)
        for _, some in groupby(zip(steps, rows, strict=True), key=lambda pair: pair[1].keys() - set(self._names)):
            pairs = [pair for pair in some if pair[1]]
            if not pairs:
                continue
            self._name(pairs[0][1])
            numbers = np.array([[to_log(row[n]) if n in row else math.nan for n in self._names] for _, row in pairs])
            if draft:
                self._writer.draft(pairs[0][0], numbers[0], kind=LOG)
                continue
            for step, row in pairs:
                self._newest |= {name: (step, value) for name, value in row.items()}
            self._writer.extend([step for step, _ in pairs], numbers, kind=LOG)

    def _read(self, row: dict[str, Any]) -> None:
        """Read what came from a device."""
        assert self._writer is not None
        for name, value in list(row.items()):
            if isinstance(value, _Away):
                try:
                    row[name] = value.read()
                except Exception as error:  # of a device that has failed
                    del row[name]
                    self._writer.refuse(ValueError(f"{name}: cannot be read from its device ({error})"))

    def _name(self, row: dict[str, Any]) -> None:
        """Say what the numbers of a row are, where some are new."""
        assert self._writer is not None
        new = [name for name in row if name not in self._names]
        if new:
            self._names += new
            # A name such as grad_norm is that of a measured quantity, too, whose description stays.
            said = [n for n in new if n not in MEASURED]
            self._writer.describe(quantities=[Quantity(n, "", "global", "logged by the loop") for n in said])
            self._writer.layout(Layout(tuple(Column(n) for n in self._names), kind=LOG, dtype="float64"))

    def take(self) -> dict[int, dict[str, float]]:
        """The newest number of each name that was stored since the last call, by step, for sinks."""
        out: dict[int, dict[str, float]] = {}
        with self._lock:
            for name, (step, value) in self._newest.items():
                out.setdefault(step, {})[name] = value
            self._newest.clear()
        return out


def _arrived(row: dict[str, Any]) -> bool:
    return all(v.arrived for v in row.values() if isinstance(v, _Away))


def _check_name(name: str, value: Any) -> None:
    """Refuse names that have a meaning of their own.

    Raises:
        ValueError: it is one.
    """
    if name == "step":
        raise ValueError(f"step = {value!r}: watch counts the steps itself; leave it out, or use another name")
    if OWN.fullmatch(name):
        raise ValueError(f"{name}: is a name that watch uses itself; choose another, such as loop_{name}")


def _number(name: str, value: Any) -> float | _Away:
    """What is logged, as a number, or on its way to become one.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise ValueError(f"{name} has shape {tuple(value.shape)}: must be a number, or have one element")
        if value.device.type != "cpu":
            return _Away(value)
    try:
        return float(value.item() if isinstance(value, Tensor) else value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} = {value!r}: must be a number, or a tensor with one element") from None


def named(numbers: Any, more: dict[str, Any]) -> dict[str, Any]:
    """What `log` was given, by name.

    Args:
        numbers: a mapping, or None.
        more: keywords.

    Raises:
        ValueError: it is no mapping of names, or a name is there twice.
    """
    if numbers is None:
        return more
    if not isinstance(numbers, Mapping):
        kind = type(numbers).__name__
        raise ValueError(f'log({kind}): must be names with numbers: log(loss=loss), or log({{"loss": loss}})')
    for name in numbers:
        if not isinstance(name, str):
            raise ValueError(f"log: {name!r} is not a name; the keys of the mapping must be strings")
        if name in more:
            raise ValueError(f"log: {name!r} is in the mapping and a keyword; give it once")
    return {**numbers, **more}


def whole(value: Any) -> Any:
    """A DTensor made whole, which all processes take part in; anything else as it is."""
    if type(value) in (Tensor, float, int) or not hasattr(value, "full_tensor"):
        return value
    return value.full_tensor()
