"""What a trained network recalls of facts that were shown once, by when, and how fast it forgets them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done
from equipoise.lab.train.schedules import contributions
from equipoise.lab.train.trial import Trial

MOST = 30.0
"""The fastest forgetting that is looked for: e-folds over the run."""


@final
@dataclass(frozen=True)
class Recall:
    """What a trained network knows of the facts of each window more than of those it was never shown."""

    done: Done
    windows: list[tuple[int, int]]
    gain: Array
    accuracy: Array

    @staticmethod
    def read(done: Done) -> Recall:
        """From the tests of a trial on `equipoise.lab.data.facts`."""
        from equipoise.lab.data.facts import NEVER

        found = done.result.metrics
        names = [key.removesuffix("_loss") for key in found if key[0].isdigit() and key.endswith("_loss")]
        windows = [(int(a), int(b)) for a, b in (name.split("-") for name in names)]
        gain = np.array([found[f"{NEVER}_loss"] - found[f"{name}_loss"] for name in names])
        known = np.array([found[f"{name}_accuracy"] - found[f"{NEVER}_accuracy"] for name in names])
        return Recall(done, windows, gain, known)

    @property
    def trial(self) -> Trial:
        """Its config."""
        return self.done.trial

    @property
    def middle(self) -> Array:
        """The step in the middle of each window."""
        return np.array([(a + b) / 2 for a, b in self.windows])

    def expected(self, extra: float = 0.0) -> Array:
        """Theory's contribution of each window, a mean over its batches."""
        c = contributions(self.trial, extra=max(extra, 0.0)).weights
        return np.array([c[a - 1 : b].mean() for a, b in self.windows])

    @property
    def share(self) -> Array:
        """What each third of the run has of recall."""
        return thirds(self.gain)

    def correlation(self, values: Array) -> float:
        """The correlation of recall with these values, over windows."""
        return float(np.corrcoef(self.gain, values)[0, 1])

    def explained(self, values: Array) -> float:
        """Share of the variance over windows that the best multiple of the values explains; negative where less."""
        left = self.gain - values * (self.gain @ values) / (values @ values)
        return 1 - float((left @ left) / ((self.gain - self.gain.mean()) ** 2).sum())

    @cached_property
    def rate(self) -> float:
        """Forgetting over lr: the weight decay with which theory's contributions would fit recall best.

        By least squares, on a grid and then between its points; warmup and momentum are in the contributions.
        """
        plain, unit = self.trial.vary({"weight_decay": 0.0}), 1 / (self.trial.lr * self.trial.steps)

        def unexplained(decay: float) -> float:
            c = contributions(plain, extra=decay).weights
            return -self.explained(np.array([c[a - 1 : b].mean() for a, b in self.windows]))

        grid = np.linspace(0, MOST * unit, 61)
        at = int(np.argmin([unexplained(x) for x in grid]))
        near = np.linspace(grid[max(at - 1, 0)], grid[min(at + 1, 60)], 41)
        return float(near[np.argmin([unexplained(x) for x in near])])


def thirds(values: Array) -> Array:
    """The share of each third, as if all were equally long.

    >>> thirds(np.array([1.0, 1.0, 1.0, 2.0])).round(2).tolist()
    [0.25, 0.25, 0.5]
    """
    means = np.array([part.mean() for part in np.array_split(values, 3)])
    return means / means.sum()
