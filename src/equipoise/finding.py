"""`Finding`: one thing to know about a plan or a run, with its evidence. Plans and runs share this type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

SEVERITIES = ("error", "warning", "info")
"""The run cannot work; it is likely worse than it could be; or it is a fact that is good to know."""


@dataclass(frozen=True)
class Finding:
    """What is wrong, where, why, and what to do.

    Attributes:
        code: its section in docs/findings.md.
        severity: one of `SEVERITIES`.
        where: the group, tensor or step that it is about.
        evidence: what was computed or measured.
        expected: the usual value.
        advice: what to do.
        source: where the expectation comes from.
        change: what to set instead, by name, as `{"weight_decay": 0.4}`; empty where a change was not shown to pay.
        paid: what that change, or the choice that is named, did to the loss on the lab's workloads; empty if unknown.
    """

    code: str
    severity: str
    where: str
    evidence: str
    expected: str
    advice: str
    source: str
    change: Mapping[str, float | str] = field(default_factory=dict[str, float | str], hash=False)
    paid: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data for JSON."""
        return asdict(self)
