"""What most experiments keep of a run: what is reached without a network, and how hidden layers rotate."""

from __future__ import annotations

from typing import Any

from equipoise.lab.experiments.base import Experiment
from equipoise.lab.experiments.shared.checks import baseline
from equipoise.lab.experiments.shared.sweep import Turning
from equipoise.lab.train.result import Result
from equipoise.monitor import Run


class Learns(Experiment):
    """An experiment on networks that must learn something."""

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """What is reached without a network."""
        return {"baseline": baseline(result.trial)}


class Rotates(Learns):
    """One in which rotation counts, too."""

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Rotation, and what is reached without a network."""
        return {"turning": Turning.measure(run), **super().measure(result, run)}
