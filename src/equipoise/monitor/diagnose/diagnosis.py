"""`diagnose`: what is wrong with a run, where, why, and what to do."""

from __future__ import annotations

from collections.abc import Iterable

from equipoise.finding import SEVERITIES, Finding
from equipoise.monitor.attach.finite import NOT_FINITE, seen_at
from equipoise.monitor.diagnose import (
    checks_dynamics,
    checks_faults,
    checks_finetune,
    checks_forward,
    checks_gradients,
    checks_settings,
)
from equipoise.monitor.diagnose.checks_loss import check_loss
from equipoise.monitor.diagnose.events import check_events
from equipoise.monitor.diagnose.evidence import Evidence
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.tables import Coverage

FROM_SCRATCH = (*checks_settings.FROM_SCRATCH, *checks_dynamics.FROM_SCRATCH)
"""Checks against what is known of training from scratch: decay, equilibrium, balance."""

ANY = (
    *checks_faults.CHECKS,
    *checks_gradients.CHECKS,
    *checks_settings.CHECKS,
    *checks_dynamics.CHECKS,
    *checks_forward.CHECKS,
    check_events,
)
"""Checks of any run."""

CHECKS = (*ANY, *FROM_SCRATCH, *checks_finetune.CHECKS)
"""Every check, in the order that findings of one severity are shown in."""

LEAST = 8
"""With fewer measured steps, only the loss is looked at."""


def review(run: Run, ended: bool | None = None) -> list[Finding]:
    """What the loss and the rows of a run show, the worst first.

    Args:
        run: the run; it may still be written.
        ended: whether it has. Default: what it says itself.
    """
    evidence = Evidence(run)
    found = check_loss(run, run.status != "running" if ended is None else ended, evidence.finetune)
    if len(evidence.steps) >= LEAST:
        others = FROM_SCRATCH if evidence.finetune else checks_finetune.CHECKS
        found += [f for check in CHECKS if check not in others for f in check(evidence)]
    return sorted(found, key=lambda f: SEVERITIES.index(f.severity))


class Diagnosis(list[Finding]):
    """Findings, the worst first, and what they were found in.

    Args:
        findings: the findings.
        coverage: how much of the run was measured; its `verdict` says what it means if nothing was found.
    """

    def __init__(self, findings: Iterable[Finding], coverage: Coverage) -> None:
        super().__init__(findings)
        self.coverage = coverage

    def __repr__(self) -> str:
        if not self:
            return f"<{self.coverage.verdict}>"
        return f"<{super().__repr__()}: {self.coverage}>"


def diagnose(run: Run) -> Diagnosis:
    """What is wrong with a run: what its rows show now, and what was stored while it ran and is not among that.

    What is not finite is told as it was while the run was written: there every 16th step was looked at, here only
    measured ones.

    Args:
        run: the run; it may still be written.
    """
    found, stored = review(run), run.findings
    seen = [f for f in (*found, *stored) if f.code == NOT_FINITE]
    if seen:
        first = min(seen, key=seen_at)
        found, stored = ([f for f in some if f.code != NOT_FINITE or f is first] for some in (found, stored))
    known = {(f.code, f.where) for f in found}
    for finding in stored:
        if (finding.code, finding.where) not in known:
            known.add((finding.code, finding.where))
            found.append(finding)
    return Diagnosis(sorted(found, key=lambda f: SEVERITIES.index(f.severity)), run.coverage)
