"""A measured step that is ready to be stored."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from equipoise.monitor import notes
from equipoise.monitor.assemble import Assembler
from equipoise.monitor.measure import Frame
from equipoise.planner.finding import Finding

LOST = 0.5
"""Share of weights that low precision may leave unchanged before it is a finding."""


@dataclass(frozen=True)
class Arrived:
    """A measured step whose numbers are there.

    Attributes:
        number: of the step.
        row: one number for each column of the main layout; empty on processes that do not write.
        per: each quantity of `quantities.PER_TENSOR`, a number for each tensor, and "norm_before".
        frame: the tensors.
        assembler: what made the row.
        skipped: whether the step changed nothing.
        failed: whether measuring failed on any process; the rest is empty then.
    """

    number: int
    row: NDArray[np.float64]
    per: dict[str, NDArray[np.float64]]
    frame: Frame
    assembler: Assembler
    skipped: bool
    failed: bool

    @property
    def update_lost(self) -> Finding | None:
        """The finding that low precision swallows most of a step; None where it does not."""
        if self.skipped or not self.frame.low:
            return None
        lost = np.nan_to_num(self.per["unchanged"]) * (self.per["grad_norm"] > 0)
        worst = int(np.argmax(lost))
        tensor = self.frame.tensors[worst]
        if lost[worst] <= LOST:
            return None
        return notes.update_lost(tensor.name, self.number, float(lost[worst]), str(tensor.p.dtype), LOST)
