"""The interface of a sink, and what it is created from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from equipoise.finding import Finding


@runtime_checkable
class Sink(Protocol):
    """A destination for numbers and findings besides the run. Any object with these three methods is a sink.

    All three are called in the sink's own thread, one after the other, so they may be slow. An attribute
    `every_seconds` limits how often `send` is called; `after` is the last step that was already sent.
    """

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a step.

        Args:
            step: never smaller than the one before.
            numbers: by name, such as "equipoise/rotation/median".
        """
        ...

    def finding(self, step: int, finding: Finding) -> None:
        """Take a finding.

        Args:
            step: at which it was found.
            finding: what was found.
        """
        ...

    def close(self, status: str) -> None:
        """End: nothing more follows.

        Args:
            status: "finished", "interrupted" or "crashed".
        """
        ...


@dataclass(frozen=True)
class Place:
    """What a sink that is given by name is created from.

    Attributes:
        path: directory of the run.
        step: the last step before the new ones.
        last: the last step of the run so far; larger than `step` if training goes back.
        memory: the `memory` of the sink of this name from when the run was watched before.
    """

    path: Path
    step: int = 0
    last: int = 0
    memory: Mapping[str, Any] = field(default_factory=dict)

    def after(self, **same: Any) -> int:
        """Up to which step a tool already has everything, if it continues the same run.

        Args:
            same: values that must equal those in the memory.
        """
        there = bool(self.memory) and all(self.memory.get(key) == value for key, value in same.items())
        return self.last if there else 0


def text_of(finding: Finding) -> str:
    """A finding as one paragraph."""
    return (
        f"{finding.where}: {finding.evidence}. Expected: {finding.expected}. "
        f"To do: {finding.advice}. ({finding.source})"
    )
