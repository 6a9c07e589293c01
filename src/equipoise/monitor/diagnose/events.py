"""Who went first: what left its usual course before the loss did, by layer, in the order in which it happened.

Of every tensor four numbers are followed: its gradient, its update over lr, its rotation over lr, and its norm; where
the forward pass was measured, so are the outputs of blocks and the attention. With y = ln x of such a number, and the
median m and the spread s = 1.4826·median|y − m| of the `BEFORE` measured steps before t, it has left its course at t if

    |y(t) − m| > max(LEAST, TIMES·s).

Within one step things happen in the order of training: schedule, forward pass, loss, gradient, update, rotation, norm.
So the first event is the one of the earliest step, and of those the one that comes first within a step. An event lies
after the last measured step at which all was as usual; if few steps were measured, that may be long before.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from equipoise.finding import Finding
from equipoise.monitor.diagnose.checks_loss import Loss, departure, training
from equipoise.monitor.forward.quantities import FORWARD, LOGIT, OUTPUT_RMS
from equipoise.monitor.runs.schedule_points import Schedules

if TYPE_CHECKING:
    from equipoise.monitor.diagnose.evidence import Evidence
    from equipoise.monitor.store.run import Run

Array = NDArray[np.float64]

WENT_FIRST = "went-first"
"""The code of the finding."""

BEFORE, ENOUGH = 16, 6
"""Measured steps that say what is usual, and how many there must be."""

TIMES = 8.0
"""An event is farther from the median than so many spreads …"""

LEAST = math.log(3)
"""… and than a factor of three."""

WINDOW = 64
"""Steps before the loss leaves its course in which causes are looked for, or the last `BEFORE` measured ones."""

ORDER = ("lr", "output", "attention logits", "loss", "gradient", "update", "rotation", "norm")
"""What happens in a step, in its order."""

LOOK = {
    "lr": "look at the schedule at that step",
    "output": "look at the inputs of that step, and at the weights of that block",
    "attention logits": "look at the norms of the query and key weights before that step",
    "gradient": "look at the batch of that step, and at that layer's gradient",
    "update": "look at the optimizer's averages of that layer: they lag behind a gradient that changes",
    "rotation": "look at the norm and the update of that layer",
    "norm": "look at what set the weights of that layer: a step of an optimizer does not change norms so much",
}
"""Where to look, by what went first."""

LOOK_EVERYWHERE = "look at the batch and the lr of that step: no layer was alone"

SHOWN = 3
"""Later events that a finding names."""

OF_TENSORS = {"grad_norm": "gradient", "relative_update": "update", "rotation": "rotation", "norm": "norm"}
OF_MODULES = {OUTPUT_RMS: "output", LOGIT: "attention logits"}
BY_LR = ("relative_update", "rotation")
"""What goes with lr: a schedule's own changes are no events."""


@dataclass(frozen=True)
class Event:
    """Something that left its usual course.

    Attributes:
        step: the first step at which it was seen to.
        after: the last measured step at which it was as usual; the event lies between both.
        what: one of `ORDER`.
        where: the tensor or module; "" for the loss, and the group's number for lr.
        times: by what factor it was off; infinite where it was not finite.
    """

    step: int
    after: int
    what: str
    where: str
    times: float

    def __str__(self) -> str:
        """In words.

        >>> str(Event(120, 119, "gradient", "0.weight", 31.4))
        'step 120: gradient of 0.weight, 31 times its usual size'
        """
        return f"{_when(self)}: {self.said}"

    @property
    def said(self) -> str:
        """What happened, without the step."""
        of = f" of {'group ' * (self.what == 'lr')}{self.where}" if self.where else ""
        if not math.isfinite(self.times):
            return f"{self.what}{of}, not finite"
        times = max(self.times, 1 / self.times) if self.times else math.inf
        size = f"{float(f'{times:.2g}'):,g}"
        size = f"{size} times" if self.times >= 1 else f"1/{size} of"
        return f"{self.what}{of}, {size} its usual size"


def _when(event: Event) -> str:
    if event.step - event.after > 1:
        return f"steps {event.after + 1:,} to {event.step:,}"
    return f"step {event.step:,}"


def events(run: Run, step: int | None = None) -> list[Event]:
    """What left its usual course up to a step, in the order in which it happened; look at the first one first.

    Args:
        run: the run; it may still be written.
        step: where something was seen to be wrong. Default: where the logged loss left its course; no events if it
            never did.
    """
    loss = training(run)
    left = None if loss is None else departure(loss)
    if step is not None:
        since = until = step
    elif left is not None:
        since, until = left
    else:
        return []
    schedules, begin = Schedules(run, until), since - WINDOW
    found = list(_of_schedules(schedules, begin))
    for what, where, steps, values in _series(run, schedules, begin, until):
        if (event := _first(what, where, steps, values, begin)) is not None:
            found.append(event)
    if loss is not None and left is not None and left[1] <= until:
        found.append(Event(left[1], left[0], "loss", "", _times(loss, left[1])))
    return sorted(found, key=lambda e: (e.step, ORDER.index(e.what), -abs(math.log(e.times or 1e-300))))


def _series(
    run: Run, schedules: Schedules, begin: int, until: int
) -> Iterator[tuple[str, str, NDArray[np.int64], Array]]:
    """What is followed, as it was measured in the window and in the `BEFORE` steps before it."""
    known, tensors = set(run.columns), run.tensors
    for kind, of in (("main", OF_TENSORS), (FORWARD, OF_MODULES)):
        if kind not in run.kinds:
            continue
        steps = run.measured
        start = int(steps[max(0, int(np.searchsorted(steps, begin)) - BEFORE)]) if len(steps) else 0
        columns = [c for c in known if c.quantity in of and c.tensor and c.quantile is None and c.neuron is None]
        if not columns:
            continue
        table = run.table(columns, kind=kind, start=start, stop=until + 1)
        for i, column in enumerate(columns):
            there = table.count[:, i] > 0
            steps, values = table.steps[there], np.asarray(table.values[there, i], np.float64)
            if column.quantity in BY_LR:
                with np.errstate(all="ignore"):
                    values = values / schedules.at("lr", tensors[str(column.tensor)].group, steps)
            yield of[column.quantity], str(column.tensor), steps, values


def _first(what: str, where: str, steps: NDArray[np.int64], values: Array, begin: int) -> Event | None:
    """The first time that a series left its course in the window."""
    with np.errstate(all="ignore"):
        logs = np.log(values)
    for i in range(ENOUGH, len(steps)):
        before = logs[max(0, i - BEFORE) : i]
        before = before[np.isfinite(before)]
        if steps[i] < begin or len(before) < ENOUGH or np.isneginf(logs[i]):
            continue
        middle = float(np.median(before))
        spread = 1.4826 * float(np.median(np.abs(before - middle)))
        if not np.isfinite(logs[i]):
            return Event(int(steps[i]), int(steps[i - 1]), what, where, math.inf)
        if abs(logs[i] - middle) > max(LEAST, TIMES * spread):
            return Event(int(steps[i]), int(steps[i - 1]), what, where, math.exp(logs[i] - middle))
    return None


def _of_schedules(schedules: Schedules, begin: int) -> Iterator[Event]:
    """Jumps of lr from one step to the next."""
    first = max(schedules.start, begin - 1)
    for group in schedules.groups:
        lr = schedules.lr(group)[first - schedules.start :]
        with np.errstate(all="ignore"):
            jumps = np.abs(np.diff(np.log(lr)))
        for i in np.flatnonzero(np.isfinite(jumps) & (jumps > LEAST)).tolist()[:1]:
            yield Event(first + i + 2, first + i + 1, "lr", str(group), float(lr[i + 1] / lr[i]))


def _times(loss: Loss, step: int) -> float:
    """By what factor the loss is off at a step; infinite where it is not finite."""
    at = int(np.searchsorted(loss.all_steps, step))
    before = loss.values[loss.steps < step][-BEFORE:]
    value = float(loss.all[at])
    usual = float(np.median(before)) if len(before) else math.nan
    return value / usual if math.isfinite(value) and usual > 0 else math.inf


def check_events(e: Evidence) -> Iterator[Finding]:
    """What left its usual course before the loss did, where it was measured."""
    found = events(e.run)
    others = [one for one in found if one.what != "loss"]
    if not others:
        return
    first = others[0]
    together = [one for one in others if (one.step, one.what) == (first.step, first.what)]
    everywhere = 2 * len(together) > len(e.names) and len(e.names) > 2
    what = f"{first.what} of {len(together)} tensors at once" if everywhere else first.said
    later = [str(one) for one in found if one.step > first.step or one.what == "loss"]
    yield Finding(
        WENT_FIRST,
        "info",
        "all tensors" if everywhere else first.where if first.what != "lr" else f"group {first.where}",
        f"{_when(first)}: {what}" + (f"; then {'; '.join(later[:SHOWN])}" if later else ""),
        "a loss that stays on its course",
        LOOK_EVERYWHERE if everywhere else LOOK[first.what],
        "what left its usual course before the loss did",
    )
