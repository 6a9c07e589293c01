"""Alerts: a webhook that is called, or a command that is run, when something is found or a run does not finish."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, final

from equipoise import _check
from equipoise.finding import SEVERITIES, Finding

HOUR = 3600.0

TRIES, PAUSE = 3, 1.0
"""How often a webhook is called that does not answer, and the seconds before the second time; then twice as many."""


class Alerts(ABC):
    """What is common to alerts: which findings count, and how many an hour.

    Args:
        severities: of the findings that count.
        per_hour: alerts at most in any hour; what is held back is counted, and the next one says how many.
    """

    def __init__(self, severities: Sequence[str], per_hour: int) -> None:
        if isinstance(severities, str):
            raise ValueError(f"severities = {severities!r}: must be a list, such as [{severities!r}]")
        for one in severities:
            _check.choice("severities", one, SEVERITIES)
        self._severities = tuple(severities)
        self._most = _check.whole("per_hour", per_hour, low=1)
        self._sent: deque[float] = deque()
        self._held = 0
        self.run = ""
        """Directory of the run; the watch says it."""

    @abstractmethod
    def alert(self, words: str, facts: dict[str, Any]) -> None:
        """Tell somebody.

        Args:
            words: in one line.
            facts: the same as data: "run", "step", "status", "finding".
        """

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        """Do nothing: numbers are no alerts."""
        return

    def finding(self, step: int, finding: Finding) -> None:
        """An alert, if the severity counts and the hour has room."""
        if finding.severity in self._severities:
            where = f" in {finding.where}" if finding.where else ""
            words = f"{finding.severity} at step {step:,}: {finding.code}{where}: {finding.evidence}"
            self._tell(words, {"step": step, "finding": finding.to_dict()})

    def close(self, status: str) -> None:
        """An alert if the run did not finish."""
        if status != "finished":
            self._tell(f"the run was {status}" if status == "interrupted" else f"the run {status}", {"status": status})

    def _tell(self, words: str, facts: dict[str, Any]) -> None:
        now = time.monotonic()
        while self._sent and now - self._sent[0] >= HOUR:
            self._sent.popleft()
        if len(self._sent) >= self._most:
            self._held += 1
            return
        self._sent.append(now)
        held, self._held = self._held, 0
        more = f" ({held} more {'was' if held == 1 else 'were'} held back)" if held else ""
        self.alert(f"equipoise: {self.run}: {words}{more}", {"run": self.run, "held_back": held} | facts)


@final
class Webhook(Alerts):
    """Calls a URL with JSON: "text" and "content", one line for people, and "run", "step", "finding" as data.

    Slack, Mattermost and Discord take this as it is. The URL is not stored with the run. A call that fails is tried
    three times.

    Args:
        url: where to, http or https.
        severities: of the findings that count.
        per_hour: calls at most in any hour.
        headers: to send besides, such as for authorization.
        timeout: seconds to wait for an answer.

    >>> sink = Webhook("https://example.org/hook", per_hour=5)
    """

    def __init__(
        self,
        url: str,
        *,
        severities: Sequence[str] = ("error", "warning"),
        per_hour: int = 10,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
    ) -> None:
        super().__init__(severities, per_hour)
        if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
            raise ValueError(f"url = {url!r}: must begin with http:// or https://")
        self._url, self._headers = url, dict(headers or {})
        self._timeout = _check.number("timeout", timeout, low=0, open_low=True)

    def alert(self, words: str, facts: dict[str, Any]) -> None:
        """Call the URL.

        Raises:
            RuntimeError: it did not take it; the message does not tell the URL, which may hold a secret.
        """
        body = json.dumps({"text": words, "content": words} | facts, default=str).encode()
        headers = {"Content-Type": "application/json", "User-Agent": "equipoise"} | self._headers
        request = urllib.request.Request(self._url, body, headers, method="POST")
        reason = ""
        for attempt in range(TRIES):
            try:
                with urllib.request.urlopen(request, timeout=self._timeout):
                    return
            except urllib.error.HTTPError as error:
                reason = f"answered {error.code}"
            except (OSError, ValueError) as error:
                reason = str(getattr(error, "reason", error))
            if attempt < TRIES - 1:
                time.sleep(PAUSE * 2**attempt)
        raise RuntimeError(f"the webhook {reason}, {TRIES} times")


@final
class Command(Alerts):
    """Runs a command, with what was found in the environment and as JSON on standard input.

    The variables are EQUIPOISE_TEXT, EQUIPOISE_RUN, EQUIPOISE_STEP, EQUIPOISE_STATUS, EQUIPOISE_CODE,
    EQUIPOISE_SEVERITY and EQUIPOISE_WHERE; what does not apply is empty. Nothing that was found becomes a part of the
    command itself.

    Args:
        command: for the shell, or a list of a program and its arguments.
        severities: of the findings that count.
        per_hour: runs of it at most in any hour.
        timeout: seconds that it may take.

    >>> sink = Command('notify-send "$EQUIPOISE_TEXT"')
    """

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        severities: Sequence[str] = ("error", "warning"),
        per_hour: int = 10,
        timeout: float = 60.0,
    ) -> None:
        super().__init__(severities, per_hour)
        if not command:
            raise ValueError(f"command = {command!r}: must be a command for the shell, or a program and its arguments")
        self._command = command if isinstance(command, str) else list(command)
        self._timeout = _check.number("timeout", timeout, low=0, open_low=True)

    def alert(self, words: str, facts: dict[str, Any]) -> None:
        """Run the command.

        Raises:
            RuntimeError: it ended with a code other than 0.
            subprocess.TimeoutExpired: it took too long; it is killed.
        """
        finding = facts.get("finding", {})
        said = {"TEXT": words, "RUN": self.run, "STEP": facts.get("step", ""), "STATUS": facts.get("status", "")}
        said |= {key.upper(): finding.get(key, "") for key in ("code", "severity", "where")}
        plain = {f"EQUIPOISE_{key}": str(value).replace("\0", "") for key, value in said.items()}
        done = subprocess.run(
            self._command,
            shell=isinstance(self._command, str),
            input=json.dumps({"text": words} | facts, default=str).encode(),
            env=os.environ | plain,
            capture_output=True,
            timeout=self._timeout,
            check=False,
        )
        if done.returncode:
            said_last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise RuntimeError(f"the command ended with code {done.returncode}{''.join(f': {s}' for s in said_last)}")
