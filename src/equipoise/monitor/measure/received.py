"""A measured step that is ready to be stored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.finding import Finding
from equipoise.monitor.attach import own_findings
from equipoise.monitor.measure.assemble import Assembler
from equipoise.monitor.measure.frame import Frame

LOST = 0.5
"""Share of weights that low precision may leave unchanged before it is a finding."""


@dataclass(frozen=True)
class MeasuredStep:
    """A measured step whose numbers are there.

    Attributes:
        number: of the step.
        frame: the tensors.
        assembler: what makes the row.
        skipped: whether the step changed nothing.
        failed: whether measuring failed on any process; there is no row then, and none on those that do not write.
        make: makes `row` and `per`, in whichever thread first asks.
    """

    number: int
    frame: Frame
    assembler: Assembler
    skipped: bool
    failed: bool
    make: Callable[[], tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]]

    @cached_property
    def _made(self) -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
        return self.make()

    @property
    def row(self) -> NDArray[np.float64]:
        """One number for each column of the main layout."""
        return self._made[0]

    @property
    def per(self) -> dict[str, NDArray[np.float64]]:
        """Each quantity of `quantities.PER_TENSOR`, a number for each tensor, and ‖w‖ before as "norm_before"."""
        return self._made[1]

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
        return own_findings.update_lost(tensor.name, self.number, float(lost[worst]), str(tensor.p.dtype), LOST)
