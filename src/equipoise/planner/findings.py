"""What to look for in a setting before it runs.

Each check is a function that yields findings; each finding has a section in docs/findings.md under its code, and a
healthy setting passes all checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from equipoise.planner import checks_rates as rates
from equipoise.planner import checks_settings as settings
from equipoise.planner.finding import SEVERITIES, Finding

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan

Check = Callable[["Plan"], Iterator[Finding]]

CHECKS: tuple[Check, ...] = (
    rates.check_overshoot,
    rates.check_zero_lr,
    rates.check_timescale,
    rates.check_power_lines,
    rates.check_transient,
    rates.check_fast_rotation,
    settings.check_no_decay,
    settings.check_decay_on_gains,
    settings.check_schedule_end,
    settings.check_jump,
    settings.check_corrected,
    settings.check_bias_correction,
    settings.check_momentum,
    settings.check_l2,
    settings.check_low_precision,
)
"""Every check, in the order that findings of one severity are shown in."""


def find(plan: Plan) -> tuple[Finding, ...]:
    """All findings about a plan, the worst first."""
    found = [f for check in CHECKS for f in check(plan)]
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))
