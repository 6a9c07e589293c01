"""To Python's own logging."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Self, final

from equipoise.finding import Finding
from equipoise.monitor.sinks.base import Place, text_of

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO}

LINE = (
    ("rotation", "equipoise/rotation/median"),
    ("least", "equipoise/rotation/min"),
    ("most", "equipoise/rotation/max"),
    ("norm", "equipoise/norm/median"),
    ("balance", "equipoise/balance/layers"),
    ("lr", "equipoise/lr/0"),
)
"""What a line says: the word, and the number's name."""


@final
class Logs:
    """Logs one line per step at level INFO, and findings at their own level.

    Args:
        logger: a logger, or the name of one.
        every_seconds: least seconds between two lines, after the first hundred.
    """

    def __init__(self, logger: str | logging.Logger = "equipoise.watch", *, every_seconds: float = 10.0) -> None:
        self.logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self.every_seconds = every_seconds

    @classmethod
    def of(cls, place: Place) -> Self:
        """The logger `equipoise.watch`."""
        return cls()

    @property
    def memory(self) -> dict[str, Any]:
        """What the run stores, to continue here after a resume."""
        return {"logger": self.logger.name}

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """One line: what the loop logged, and a few numbers of the layers; all of them in the record's `numbers`."""
        logged = [(n.removeprefix("equipoise/log/"), n) for n in numbers if n.startswith("equipoise/log/")]
        words = [f"{word} {numbers[name]:.4g}" for word, name in (*logged, *LINE) if name in numbers]
        self.logger.info("step %d: %s", step, ", ".join(words), extra={"step": step, "numbers": dict(numbers)})

    def finding(self, step: int, finding: Finding) -> None:
        """A line at the level of its severity."""
        words = ("step %d: %s: %s", step, finding.code, text_of(finding))
        self.logger.log(LEVELS[finding.severity], *words, extra={"step": step, "finding": finding.to_dict()})

    def close(self, status: str) -> None:
        """A last line."""
        self.logger.info("%s", status)
