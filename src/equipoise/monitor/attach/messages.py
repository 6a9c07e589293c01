"""Messages of a watch: each warning and error once, and how the run ended."""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from equipoise._terminal import visible
from equipoise.finding import Finding
from equipoise.monitor.attach.cadence import FAST_SHARE, MOST
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.schema import RunError

log = logging.getLogger("equipoise")

LEVELS = {"error": logging.ERROR, "warning": logging.WARNING}
"""The severities that are said aloud."""

LONG = 200
"""Letters of a finding's evidence that a line has room for."""


class Messenger:
    """Says lines: to Python's logging, and in a terminal where logging does not show them there.

    A line goes to the logger "equipoise". If standard error is a terminal and no handler of the logger writes to one,
    the line is written to standard error as well, round progress bars. Where logging was not set up at all, that is
    done in its place.

    Args:
        path: directory of the run.
        on: whether to say anything.
        sink: the logger that a sink of the watch sends findings to: they are not logged a second time.
    """

    def __init__(self, path: str | os.PathLike[str], on: bool, sink: logging.Logger | None = None) -> None:
        self._path, self._on, self._sink = os.fspath(path), on, sink
        self._said: set[str] = set()

    def finding(self, finding: Finding, step: int, error: Exception | None = None) -> None:
        """Say a warning or an error, unless one of its code was said before.

        Args:
            finding: what was found.
            step: at which step.
            error: the exception behind it; logging gets its traceback.
        """
        if finding.severity not in LEVELS or finding.code in self._said:
            return
        self._said.add(finding.code)
        evidence = textwrap.shorten(finding.evidence, LONG, placeholder=" …")
        where = "" if finding.where in ("", f"step {step}", self._path) else f" in {finding.where}"
        line = f"equipoise: {finding.severity} at step {step:,}: {finding.code}{where}: {evidence}. {self._look}"
        more = {"exc_info": error, "extra": {"step": step, "finding": finding.to_dict()}}
        self._say(LEVELS[finding.severity], line, self._sink, **more)

    def warn(self, words: str) -> None:
        """Say a warning about the run itself.

        Args:
            words: what is wrong.
        """
        self._say(logging.WARNING, f"equipoise: warning: {words}")

    def end(
        self, status: str, first: int, last: int, findings: Sequence[Finding], share: float = 0.0, seconds: float = 0.0
    ) -> None:
        """Say how the run ended, and how to look at it.

        Args:
            status: how.
            first: the step before the first one.
            last: the last step.
            findings: what was found.
            share: watching's time over training's; it is said where it is more than was promised.
            seconds: of watching.
        """
        if not self._on:
            return
        loss, measured, enough = "", "", True
        with contextlib.suppress(RunError), Run.open(self._path) as run:
            loss = "" if run.final is None else f", {run.final}"
            measured, enough = f", {run.coverage}", run.coverage.enough
        if last == first:
            steps = "without a step: was optimizer.step() called?"
        else:
            steps = f"after {last:,} step{'s' * (last != 1)}" if not first else f"after steps {first + 1:,} to {last:,}"
        counts = []
        for severity in LEVELS:
            codes = list(dict.fromkeys(f.code for f in findings if f.severity == severity))
            if codes:
                counts.append(f"{len(codes)} {severity}{'s' * (len(codes) > 1)} ({', '.join(codes)})")
        found = ", ".join(counts) or ("no warnings" if enough else "no warnings, but too little was measured to say")
        if share > FAST_SHARE * MOST + 0.005:  # the clock does not see what training pays for caches that it finds cold
            measured += f", watching took at least {seconds:.2g} s ({share:.0%} of training)"
        self._say(logging.INFO, f"equipoise: {self._path} {status} {steps}{loss}{measured}; {found}. {self._look}")

    @property
    def _look(self) -> str:
        return f"Look: equipoise report {shlex.quote(self._path)}"

    def _say(self, level: int, line: str, sink: logging.Logger | None = None, **more: Any) -> None:
        if not self._on:
            return
        line, logger = visible(line), log if sink is None else sink
        # Python prints warnings where nobody has set up logging, but into progress bars.
        unheard = not logger.hasHandlers()
        terminal = _is_terminal(sys.stderr)
        if sink is None and not (unheard and terminal):
            log.log(level, "%s", line, **more)
        if terminal and not (_shows(logger, level) or (unheard and sink is not None)):
            _print(line)


def _is_terminal(stream: Any) -> bool:
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # none, or closed
        return False


def _shows(logger: logging.Logger, level: int) -> bool:
    """Whether a handler of the logger shows lines of a level in a terminal."""
    at: logging.Logger | None = logger
    while at is not None and logger.isEnabledFor(level):
        for handler in at.handlers:
            stream = getattr(handler, "stream", None) or getattr(getattr(handler, "console", None), "file", None)
            if handler.level <= level and _is_terminal(stream):
                return True
        at = at.parent if at.propagate else None
    return False


def _print(line: str) -> None:
    """Write a line to the terminal; a progress bar that is there moves down."""
    with contextlib.suppress(OSError, ValueError):
        bars = getattr(sys.modules.get("tqdm"), "tqdm", None)
        if getattr(bars, "_instances", None):
            bars.write(line, file=sys.stderr)  # type: ignore[union-attr]
        else:
            sys.stderr.write(f"\r\x1b[K{line}\n")
            sys.stderr.flush()
