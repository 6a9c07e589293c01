"""Measured steps that wait: the thread that writes makes their rows, several at once, before it stores them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

import numpy as np

from equipoise.monitor.measure.step import MeasuredStep
from equipoise.monitor.store.writer import RunWriter

NUMBERS = 1 << 20
"""Sums that are worked on at once."""


class RowMaker:
    """Makes rows of measured steps, and has them written.

    Args:
        writer: where to.
        norms: norms of tensors when they were first seen; added to, and described.
        failed: is given what goes wrong in the thread that writes; None raises it, and makes each row at once.
    """

    def __init__(
        self, writer: RunWriter, norms: dict[str, float], failed: Callable[[Exception], object] | None
    ) -> None:
        self._writer, self._norms, self._failed = writer, norms, failed
        self._waiting: deque[MeasuredStep] = deque()
        self._lock = threading.RLock()
        writer.collect(self.make)

    def put(self, step: MeasuredStep, now: bool = False) -> None:
        """A step was measured.

        Args:
            step: its numbers are there.
            now: whether its row is needed at once.
        """
        step.when = self._writer.clock()
        self._waiting.append(step)
        if now or self._failed is None:
            self.make()

    def make(self) -> None:
        """Make rows of all that waits."""
        with self._lock:
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
            try:
                while waiting:
                    alike = self._alike(waiting)
                    self._make(waiting[:alike])
                    del waiting[:alike]
            except Exception as error:
                if self._failed is None:
                    raise
                self._failed(error)

    @staticmethod
    def _alike(steps: list[MeasuredStep]) -> int:
        """How many of the first steps can be worked on together: of one frame, with the same sums."""
        first = steps[0]
        assert first.measured is not None
        most = max(1, NUMBERS // (len(first.measured.names) * first.frame.rows))
        for k, step in enumerate(steps[:most]):
            assert step.measured is not None
            if step.assembler is not first.assembler or step.measured.names != first.measured.names:
                return k
        return min(most, len(steps))

    def _make(self, steps: list[MeasuredStep]) -> None:
        first, measured = steps[0], [step.measured for step in steps if step.measured is not None]
        names = list(measured[0].names)
        found = [one.sums() for one in measured if one.sums is not None]
        values, angles = (np.stack([pair[k] for pair in found], axis=1, dtype=np.float64) for k in range(2))
        rows, per = first.assembler.rows(measured, first.frame.row_sums(values, names), angles)
        for i, step in enumerate(steps):
            step.row, step.per = rows[i], {name: x[i] for name, x in per.items()}
            self._tell_norms(step)
        self._writer.extend([step.number for step in steps], rows, times=[step.when for step in steps])

    def _tell_norms(self, step: MeasuredStep) -> None:
        """Say what norms tensors begin with, when they are first seen."""
        tensors = step.frame.tensors
        if all(t.name in self._norms for t in tensors):
            return
        there = zip(tensors, step.per["norm_before"], strict=True)
        new = {t.name: float(n) for t, n in there if np.isfinite(n) and t.name not in self._norms}
        self._norms |= new
        self._writer.describe(tensors=[t for t in step.assembler.infos(self._norms) if t.name in new])
