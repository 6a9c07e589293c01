"""The final loss of a run, defined in one place. Needs no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from equipoise.monitor.store.layout import LOG, Column

if TYPE_CHECKING:
    from equipoise.monitor.store.run import Run
    from equipoise.monitor.store.tables import Table

SHARE = 0.05
"""The final loss is the mean over this share of the logged values, the last ones."""

LABEL = f"mean of the last {SHARE:.0%}".replace("%", " %")
"""What the final loss is, beside the number."""

TRAINING = ("loss", "train_loss", "train/loss", "training_loss")
VALIDATION = ("val_loss", "eval_loss", "validation_loss", "valid_loss")
"""Names that come before others that say the same."""

HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "dev"}
APART = {"test", "best", "min", "aux", "scale"}
"""A name with such a word is neither the training loss nor a validation loss."""

POINTS = 256
"""Lines to read at once: a long run is read coarsely first."""


@dataclass(frozen=True)
class Best:
    """The smallest value of a metric: its name, the value, and the step that has it; NaN where every value is NaN."""

    name: str
    value: float
    step: int


@dataclass(frozen=True)
class Final:
    """How a run's training loss ended. A loss that is NaN is NaN here.

    Attributes:
        name: as the loop logged it.
        mean: of the last 5 % of the logged values, at least one: the headline. NaN if one of them is.
        values: how many values that is the mean of.
        last: the last logged value.
        step: the step that it was logged at.
    """

    name: str
    mean: float
    values: int
    last: float
    step: int

    def __str__(self) -> str:
        return f"{self.name} {loss_text(self.mean)} ({LABEL})"


def loss_text(x: float) -> str:
    """A loss in four digits.

    >>> loss_text(1.71449), loss_text(0.25), loss_text(float("nan")), loss_text(float("inf"))
    ('1.714', '0.25', 'NaN', '∞')
    """
    return "NaN" if math.isnan(x) else ("∞" if x > 0 else "−∞") if math.isinf(x) else f"{x:.4g}"


def training_loss(names: Iterable[str]) -> str | None:
    """The name of the training loss among names of what was logged.

    >>> training_loss(["accuracy", "val_loss", "train_loss"]), training_loss(["eval_loss"])
    ('train_loss', None)
    """
    return _first(names, TRAINING, lambda words: not words & HELD_OUT)


def validation_loss(names: Iterable[str]) -> str | None:
    """The name of the validation loss; that of a test set is none.

    >>> validation_loss(["loss", "test_loss", "val/loss"]), validation_loss(["loss", "test_loss"])
    ('val/loss', None)
    """
    return _first(names, VALIDATION, lambda words: bool(words & HELD_OUT))


def final(run: Run) -> Final | None:
    """How the training loss ended; None where none was logged."""
    name = training_loss(run.logged)
    if name is None:
        return None
    table = _read(run, name)
    there = np.flatnonzero(table.count[:, 0])
    if not len(there):
        return None
    values = max(1, math.ceil(SHARE * int(table.count.sum())))
    # The end of a run is in its last lines: go down where the wanted values begin, and to the last one.
    end = table
    while end.level:
        i = np.flatnonzero(end.count[:, 0])[-1]
        end = _read(run, name, int(end.first[i]), int(end.last[i]) + 1)
    i = np.flatnonzero(end.count[:, 0])[-1]
    return Final(name, _tail(run, name, table, values) / values, values, float(end.values[i, 0]), int(end.steps[i]))


def best(run: Run) -> Best | None:
    """The best validation loss; None where none was logged."""
    name = validation_loss(run.logged)
    if name is None:
        return None
    table = _read(run, name)
    while len(table):
        there = np.flatnonzero(table.count[:, 0])
        if not len(there):
            return None
        low = np.where(np.isnan(table.low[there, 0]), np.inf, table.low[there, 0])
        i = there[int(np.argmin(low))]
        if table.level == 0:
            return Best(name, float(table.low[i, 0]), int(table.steps[i]))
        table = _read(run, name, int(table.first[i]), int(table.last[i]) + 1)
    return None


def _tail(run: Run, name: str, table: Table, wanted: int) -> float:
    """The sum of the last values."""
    total = 0.0
    for i in range(len(table) - 1, -1, -1):
        n = int(table.count[i, 0])
        if n > wanted:
            inside = _read(run, name, int(table.first[i]), int(table.last[i]) + 1)
            return total + (_tail(run, name, inside, wanted) if wanted else 0.0)
        if n:
            total += n * float(table.values[i, 0])
            wanted -= n
    return total


def _read(run: Run, name: str, start: int = 0, stop: int | None = None) -> Table:
    kind = LOG if LOG in run.kinds else None
    return run.table([Column(name)], kind=kind, start=start, stop=stop, points=POINTS)


def _first(names: Iterable[str], usual: tuple[str, ...], fits: Callable[[set[str]], bool]) -> str | None:
    found = []
    for name in names:
        words = set(re.findall(r"[a-z]+", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()))
        if "loss" in words and not words & APART and fits(words):
            found.append(name)
    return min(found, key=lambda n: usual.index(n) if n in usual else len(usual), default=None)
