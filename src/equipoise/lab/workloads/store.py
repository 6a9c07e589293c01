"""Finished trials of workloads: a line of JSON each in `stored/NAME.jsonl`, sorted by key, kilobytes in all.

A trial is known by its key, so that nothing is trained twice, on whatever machine a sweep goes on.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import Workload

STORED = Path(__file__).parent / "stored"
"""The package's own."""

ENDED = ("diverged", "finished")
"""What is stored; a trial that failed is tried again."""

METRICS = ("train_loss", "validation_loss", "test_loss", "validation_accuracy", "test_accuracy")


@final
@dataclass(frozen=True)
class StoredTrial:
    """What came of a trial.

    Attributes:
        trial: its config.
        status: one of `ENDED`.
        metrics: of `METRICS` those that there are, to six digits; none where it diverged.
        seconds: time in training.
        date: of its end, UTC.
        versions: of Python, torch and equipoise, as text.
        data: the first digits of its data's SHA-256.
    """

    trial: Trial
    status: str
    metrics: Mapping[str, float]
    seconds: float = 0.0
    date: str = ""
    versions: str = ""
    data: str = ""

    @property
    def validation(self) -> float:
        """The loss that settings are chosen by; infinite where it diverged."""
        return self.metrics.get("validation_loss", float("inf"))

    @property
    def test(self) -> float:
        """The loss that is reported; infinite where it diverged."""
        return self.metrics.get("test_loss", float("inf"))


Outcomes = dict[str, StoredTrial]
"""By the trial's key."""


def outcome(result: Result) -> StoredTrial:
    """What is kept of a result."""
    if result.status == "finished" and not {"validation_loss", "test_loss"} <= result.metrics.keys():
        raise ValueError(f"data = {result.trial.data!r}: must have a part for validation and one to test on")
    kept = {name: float(f"{result.metrics[name]:.6g}") for name in METRICS if name in result.metrics}
    made = " ".join(f"{name} {version}" for name, version in result.versions.items())
    seconds = float(f"{result.seconds:.3g}")
    return StoredTrial(result.trial, result.status, kept, seconds, result.date, made, result.data[:12])


def read(workload: Workload, folder: Path = STORED) -> Outcomes:
    """The stored trials of a workload; none where there is no file."""
    file = folder / f"{workload.name}.jsonl"
    if not file.is_file():
        return {}
    found = {}
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        try:
            fields: dict[str, Any] = json.loads(line)
            key, changes = fields.pop("key"), fields.pop("changes")
            one = StoredTrial(workload.trial.vary(changes), **fields)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{file.name}, line {number}: is no stored trial ({error})") from None
        if one.trial.key != key:
            raise ValueError(
                f"{file.name}, line {number}: has the key {key}, and its trial {one.trial.key}; the workload was "
                "changed after it was swept: give it another name, or delete the file"
            )
        found[key] = one
    return found


def add(workload: Workload, outcomes: Iterable[StoredTrial], folder: Path = STORED) -> Outcomes:
    """Store trials besides those that there are, and give all; the file is whole at any time."""
    every = read(workload, folder) | {one.trial.key: one for one in outcomes if one.status in ENDED}
    file = folder / f"{workload.name}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text("".join(f"{_line(workload, one)}\n" for _, one in sorted(every.items())), encoding="utf-8")
    part.replace(file)
    return every


def _line(workload: Workload, one: StoredTrial) -> str:
    fields = {f.name: getattr(one, f.name) for f in dataclasses.fields(one) if f.name != "trial"}
    base, own = dataclasses.asdict(workload.trial), dataclasses.asdict(one.trial)
    changes = {name: value for name, value in own.items() if value != base[name]}
    return json.dumps({"key": one.trial.key, "changes": changes} | fields, ensure_ascii=False)
