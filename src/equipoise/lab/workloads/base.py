"""A workload: a base trial, the sweep around it, and what rules need to know about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from equipoise import _check
from equipoise.lab.train.trial import Trial

HALVES = ("choosing", "held-out", "fresh")
"""What thresholds and advice are chosen on, and what they are judged on. Each workload is of one half for ever.

The fresh ones judge, too. They were added when the held-out half had been looked at. Parts of their grids had been seen
when small initial weights, Muon's step and the range of `decay-low` were set (docs/log.md).
"""

USED = {
    "choosing": "used to set it",
    "held-out": "not used to set it",
    "fresh": "added later, and seen in part when it was set",
}
"""What a half is to a rule, as "workloads that were …"."""

KINDS = ("fine-tuning", "pairs", "text", "text repeated", "vision, batch norm", "vision, layer norm", "vision, no norm")


@final
@dataclass(frozen=True)
class Workload:
    """A task with an optimizer, about half a minute a trial on one core.

    Its reference sweep is over lr and `shrink`, the lr·wd·T of [theory] 9: how many times over the initial weights
    decay by a factor e at a constant lr. The weight decay of a trial follows from both.

    Attributes:
        name: unique, in the file's and the command's words.
        half: one of `HALVES`.
        kind: one of `KINDS`.
        about: one line.
        trial: what all trials of it share; its lr and weight decay are the grid's middle.
        lrs: coarse grid of learning rates, ascending; extended where the best is at an end.
        samples: of the training part, as many as its loader gives.
        parameters: of the model.
        seconds: of a trial, about, until some are stored.
        proxy: the workload that tuned settings are moved from by rules for transfer, or "".
        twin_of: the workload whose task it is by another optimizer, or "".

    >>> Workload("a", "choosing", "text", "", Trial(lr=1e-2, steps=100), (1e-2,), 1000, 10).decay(1e-2, 0.3)
    0.3
    """

    name: str
    half: str
    kind: str
    about: str
    trial: Trial
    lrs: tuple[float, ...]
    samples: int
    parameters: int
    seconds: float = 30.0
    proxy: str = ""
    twin_of: str = ""

    def __post_init__(self) -> None:
        _check.choice("half", self.half, HALVES)
        _check.choice("kind", self.kind, KINDS)
        if list(self.lrs) != sorted(set(self.lrs)) or not self.lrs:
            raise ValueError(f"lrs = {self.lrs}: must be ascending")

    @property
    def epochs(self) -> float:
        """How often the training part is seen."""
        return self.trial.steps * self.trial.batch_size / self.samples

    @property
    def factor(self) -> float:
        """What lr times decay is multiplied by in the long run: 1/(1 − momentum) where decay is in the gradient."""
        if self.trial.optimizer != "sgdm":
            return 1.0
        return 1 / (1 - self.trial.optimizer_options.get("momentum", 0.9))

    def decay(self, lr: float, shrink: float) -> float:
        """The weight decay with which lr·wd·T is `shrink`, to three digits."""
        return float(f"{shrink / (lr * self.factor * self.trial.steps):.3g}")

    def shrink(self, lr: float, weight_decay: float) -> float:
        """lr·wd·T."""
        return lr * weight_decay * self.factor * self.trial.steps

    def at(self, lr: float, weight_decay: float, **changes: object) -> Trial:
        """Its trial with another lr and weight decay."""
        return self.trial.vary({"lr": lr, "weight_decay": weight_decay, **changes})
