"""All checks of a plan, and `all_findings`, which runs them.

Each check is a function that yields findings. Each finding has a section in docs/findings.md under its code. A healthy
setting passes all checks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from equipoise.finding import SEVERITIES, Finding
from equipoise.planner.checks import alike as alike
from equipoise.planner.checks import finetune as finetune
from equipoise.planner.checks import paying as paying
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
    paying.check_low_lr,
    paying.check_high_decay,
    alike.check_optimizer,
)
"""Checks of every plan."""

FROM_SCRATCH: tuple[Check, ...] = (
    paying.check_low_decay,
    rates.check_timescale,
    rates.check_power_lines,
    rates.check_transient,
    rates.check_twin,
    rates.check_fast_rotation,
    settings.check_no_decay,
    settings.check_decay_on_gains,
    settings.check_bias_warmup,
    settings.check_l2,
)
"""Checks for training from scratch: memory, equilibrium, balance."""

FINE_TUNING: tuple[Check, ...] = (finetune.check_taken, finetune.check_far)
"""Checks for fine-tuning: how much is left of the pretrained weights."""

CHECKS = (*ALWAYS, *FROM_SCRATCH, *FINE_TUNING)
"""Every check. Findings of the same severity are shown in this order."""


def all_findings(plan: Plan) -> tuple[Finding, ...]:
    """All findings about a plan, most severe first."""
    others = FROM_SCRATCH if plan.setting.finetune else FINE_TUNING
    found = [f for check in CHECKS if check not in others for f in check(plan)]
    return tuple(sorted(found, key=lambda f: SEVERITIES.index(f.severity)))
