"""A task that is not learnt by heart: its labels are noise in part, and hardly a sample is seen twice.

On few digits the loss goes to nothing, and gradients with it, so that late in a run nothing rotates as lr and weight
decay ask for. Statements about settled rotation are tested here.
"""

from __future__ import annotations

from collections.abc import Sequence

from equipoise.lab.experiments.base import Done
from equipoise.lab.experiments.shared.sweep import finished, stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.trial import Trial

NOISY = Trial(
    data="classification", data_options={"samples": 60_000, "inputs": 64, "noise": 0.3}, model="mlp",
    model_options={"width": 64, "depth": 3}, batch_size=64, steps=800,
)  # fmt: skip
"""An MLP with batch normalisation at a constant lr."""


def is_noisy(trial: Trial) -> bool:
    """Whether it is of this task."""
    return trial.data == NOISY.data


def not_by_heart(done: Sequence[Done]) -> Check:
    """Check that the training loss is not far below the test loss."""
    own = finished(done)
    ratio = stat(own, "train_loss").mean / stat(own, "test_loss").mean if own else None
    return Check.between("training loss over test loss", ratio, low=0.5)
