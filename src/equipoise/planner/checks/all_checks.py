"""What to look for in a setting before it runs.

Each check is a function that yields findings; each finding has a section in docs/findings.md under its code, and a
healthy setting passes all checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from equipoise.finding import SEVERITIES, Finding
from equipoise.planner.checks import finetune as finetune
from equipoise.planner.checks import rates as rates
from equipoise.planner.checks import settings as settings

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan

Check = Callable[["Plan"], Iterator[Finding]]

ALWAYS: tuple[Check, ...] = (
    rates.check_overshoot,
    rates.check_zero_lr,
    settings.check_schedule_end,
    settings.check_jump,
    settings.check_corrected,
    settings.check_bias_kick,
    settings.check_momentum,
    settings.check_low_precision,
)
"""Checks of any run."""

FROM_SCRATCH: tuple[Check, ...] = (
    rates.check_timescale,
    rates.check_power_lines,
    rates.check_transient,
    rates.check_fast_rotation,
    settings.check_no_decay,
    settings.check_decay_on_gains,
    settings.check_bias_warmup,
    settings.check_l2,
)
"""Checks against what is known of training from scratch: memory, equilibrium, balance."""

FINE_TUNING: tuple[Check, ...] = (finetune.check_taken, finetune.check_far)
"""Checks of how much is left of weights that were trained before."""

CHECKS = (*ALWAYS, *FROM_SCRATCH, *FINE_TUNING)
"""Every check, in the order that findings of one severity are shown in."""


def all_findings(plan: Plan) -> tuple[Finding, ...]:
    """All findings about a plan, the worst first."""
    others = FROM_SCRATCH if plan.setting.finetune else FINE_TUNING
    found = [f for check in CHECKS if check not in others for f in check(plan)]
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))
