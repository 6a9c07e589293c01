"""Failures of watch itself, and findings that must be reported at once. Each is reported once."""

from __future__ import annotations

from collections.abc import Callable

from equipoise.finding import Finding
from equipoise.monitor.attach import own_findings
from equipoise.monitor.attach.messages import Messenger
from equipoise.monitor.sinks.sending import Sending
from equipoise.monitor.store.writer import RunWriter

GIVE_UP = 3
"""After so many failures nothing more is measured."""


class Faults:
    """Collects findings, and counts failures.

    Args:
        strict: raise failures instead of noting them.
        messenger: says what is found.
    """

    def __init__(self, strict: bool, messenger: Messenger) -> None:
        self._strict, self._messenger = strict, messenger
        self._writer: RunWriter | None = None
        self._sending: Sending | None = None
        self.findings: list[Finding] = []
        self.late: list[Exception] = []
        """What has failed in another thread, until `came_late`."""
        self.count = 0
        """Failures so far, where several processes must give up together those that all of them know of."""

    def tell(self, writer: RunWriter | None, sending: Sending) -> None:
        """Findings go there from now on.

        Args:
            writer: where they are stored; None on processes that write nothing.
            sending: the sinks.
        """
        self._writer, self._sending = writer, sending

    @property
    def too_many(self) -> bool:
        """Whether to measure nothing more."""
        return self.count >= GIVE_UP

    def note(self, finding: Finding, step: int, error: Exception | None = None) -> None:
        """Keep a finding, say it, and store it with its step; with the exception behind it, if there is one."""
        self.findings.append(finding)
        self._messenger.finding(finding, step, error)
        if self._writer is not None:
            self._writer.finding(finding, step)
        if self._sending is not None:
            self._sending.finding(step, finding)

    def note_once(self, code: str, look: Callable[[], Finding | None], step: int) -> None:
        """Look for something, unless it has been found already, and note it."""
        found = None if self.noted(code) else look()
        if found is not None:
            self.note(found, step)

    def noted(self, code: str) -> bool:
        """Whether there is a finding of that code already."""
        return any(f.code == code for f in self.findings)

    def fail(self, error: Exception, step: int) -> None:
        """Note a failure once, or raise it if strict; training goes on."""
        if self._strict:
            raise error
        if self.noted("watch-failed"):
            return
        self.note(own_findings.watch_failed(step, error, GIVE_UP), step, error)

    def came_late(self) -> list[Exception]:
        """What has failed in another thread since the last call."""
        return [self.late.pop(0) for _ in range(len(self.late))]

    def together(self, step: int) -> None:
        """Count a failure that all processes know of, and note it where it was another's."""
        self.count += 1
        if not self.noted("watch-failed"):
            error = RuntimeError("measuring failed on another process; its log says how")
            self.note(own_findings.watch_failed(step, error, GIVE_UP), step)
