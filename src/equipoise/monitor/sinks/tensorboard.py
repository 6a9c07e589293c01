"""To TensorBoard's event files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self, final

from equipoise._extras import need
from equipoise.finding import Finding
from equipoise.monitor.sinks.base import Place, text_of


@final
class TensorBoard:
    """Writes scalars, and findings as text.

    Args:
        directory: where event files go; look at them with `tensorboard --logdir directory`.
        purge_step: discard existing events from this step on, for example after training went back.
        every_seconds: least seconds between two sends, after the first hundred.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, purge_step: int | None = None, every_seconds: float = 1.0
    ) -> None:
        need("tensorboard", "tensorboard")
        from torch.utils.tensorboard import SummaryWriter

        self.every_seconds = every_seconds
        self._writer = SummaryWriter(os.fspath(directory), purge_step=purge_step)

    @classmethod
    def of(cls, place: Place) -> Self:
        """A sink in the run's directory."""
        return cls(place.path / "tensorboard", purge_step=place.step + 1 if place.memory else None)

    @property
    def memory(self) -> dict[str, Any]:
        """What the run stores, to continue here after a resume."""
        return {"directory": self._writer.log_dir}

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """One scalar for each number."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finding(self, step: int, finding: Finding) -> None:
        """A text, under its code."""
        text = f"**{finding.severity}** {text_of(finding)}"
        self._writer.add_text(f"equipoise/findings/{finding.code}", text, step)

    def close(self, status: str) -> None:
        """Close the file."""
        self._writer.close()
