"""The result of a trial as a JSON file: its config, how it ended, its numbers, and what it was made with."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from equipoise.lab.train.trial import Trial

RESULT = "result.json"
FAILED = "failed.json"
RUN = "run"
"""What a trial's directory has: one of the first two, and what was watched."""

STATUSES = ("diverged", "failed", "finished")

Report = Callable[[int, int, Trial, int], None]
"""Called with the number of the trial (1, 2, …), how many there are, the trial, and its step."""


@final
@dataclass(frozen=True)
class Result:
    """What came of a trial.

    Attributes:
        trial: its config.
        status: "finished"; "diverged": its loss went beyond all bounds, which is a result; "failed": it raised.
        steps: how many were taken.
        metrics: `train_loss`, the mean over the last tenth, and the last test's; none where it diverged or failed.
        seconds: time in training, over all lives.
        weights: SHA-256 of the trained weights.
        data: SHA-256 of the data.
        versions: of Python, torch and equipoise.
        date: of its end, UTC.
        tests: every test: step, and its metrics.
        error: what it raised, where it failed.
    """

    trial: Trial
    status: str
    steps: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    weights: str = ""
    data: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    tests: Sequence[tuple[int, Mapping[str, float]]] = ()
    error: str = ""

    def write(self, folder: Path, name: str = RESULT) -> None:
        """Store it in the trial's directory, whole or not at all."""
        part = folder / f"{name}.part"
        part.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")
        part.replace(folder / name)

    @staticmethod
    def read(folder: Path, name: str = RESULT) -> Result:
        """Read what `write` wrote."""
        try:
            fields: dict[str, Any] = json.loads((folder / name).read_text(encoding="utf-8"))
            fields["trial"] = Trial.from_dict(fields["trial"])
            fields["tests"] = [(step, found) for step, found in fields["tests"]]
            fields["metrics"] = {key: float(value) for key, value in fields["metrics"].items()}
            fields["seconds"], fields["error"] = float(fields["seconds"]), str(fields["error"])
            return Result(**fields)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"{folder / name}: is no result of a trial ({error})") from None


def versions() -> dict[str, str]:
    """The versions of Python, torch and equipoise."""
    import torch

    from equipoise._version import __version__

    return {"python": platform.python_version(), "torch": torch.__version__, "equipoise": __version__}
