"""What a sink is, and what its maker may know about the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from equipoise.finding import Finding


@runtime_checkable
class Sink(Protocol):
    """Where numbers and findings go besides the run. Any object with these three methods is one.

    All three are called in one thread of the sink's own, one after the other, so they may take their time. An attribute
    `every_seconds` limits how often `send` is called, `after` says up to which step everything is there already.
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
        """Let go: nothing more comes.

        Args:
            status: "finished", "interrupted" or "crashed".
        """
        ...


@dataclass(frozen=True)
class Place:
    """What a sink that is asked for by name is made from.

    Attributes:
        path: directory of the run.
        step: the last step before those to come.
        last: the last step that the run had; larger than `step` where training goes back.
        memory: what the sink of this name said of itself, when the run was watched before.
    """

    path: Path
    step: int = 0
    last: int = 0
    memory: Mapping[str, Any] = field(default_factory=dict)

    def after(self, **same: Any) -> int:
        """Up to which step a tool has everything, if it goes on where it was.

        Args:
            same: what must be as the memory has it.
        """
        there = bool(self.memory) and all(self.memory.get(key) == value for key, value in same.items())
        return self.last if there else 0


def text_of(finding: Finding) -> str:
    """A finding as one paragraph."""
    return (
        f"{finding.where}: {finding.evidence}. Expected: {finding.expected}. "
        f"To do: {finding.advice}. ({finding.source})"
    )
