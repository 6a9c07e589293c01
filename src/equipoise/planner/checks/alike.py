"""Which optimizer paid on the lab's workloads like a plan's.

These are facts with their numbers, not orders: a workload is a minute long, and yours may differ. `choices.json` has
the numbers; `equipoise lab workloads payoff` writes it, and a test computes it again.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise.finding import Finding
from equipoise.planner.checks.common import group_name

if TYPE_CHECKING:
    from equipoise.planner.planning import Plan

CHOICES = Path(__file__).with_name("choices.json")

REPEATED = 2.0
"""Epochs above which data counts as repeated."""

WORTH = -2.0
"""Percent of the loss in the median below which another optimizer is named: differences of seeds are below that."""

KINDS = ("fine-tuning", "text seen once", "text seen many times", "networks with convolutions", "other networks")

NAMES = {"adamw": "AdamW", "lion": "Lion", "muon": "Muon", "sgdm": "SGD with momentum"}


def like(plan: Plan) -> str:
    """The kind of task that a plan is about, one of `KINDS`."""
    s = plan.setting
    if s.finetune:
        return "fine-tuning"
    if s.tokens_per_sample is not None:
        per_epoch = s.steps_per_epoch
        return "text seen many times" if per_epoch and s.steps / per_epoch > REPEATED else "text seen once"
    convolutions = sum(t.count for t in s.tensors if len(t.shape) > 2)
    matrices = sum(t.count for t in s.tensors if t.rotates)
    return "networks with convolutions" if 2 * convolutions > matrices else "other networks"


def check_optimizer(plan: Plan) -> Iterator[Finding]:
    """Another optimizer ended lower on tasks like this one."""
    s = plan.setting
    own = s.groups[s.main_group].dynamics
    name = "adamw" if own.optimizer == "adam" else own.optimizer
    if not own.known or own.move != "decay" or is_unsaid(plan):
        return
    kind = like(plan)
    found = winner(kind, name)
    if found is None:
        return
    best, each = found
    everywhere = [x for kinds in choices()["optimizers"].values() for x in kinds.get(name, {}).get(best, [])]
    yield Finding(
        "optimizer-other",
        "info",
        group_name(plan, s.main_group),
        f"{NAMES[best]} ended at a lower test loss than {NAMES.get(name, name)} on {sum(x < 0 for x in each)} of "
        f"{len(each)} workloads like this one ({kind}), and on {sum(x < 0 for x in everywhere)} of {len(everywhere)} "
        "of all kinds, at the same number of steps",
        f"{NAMES.get(name, name)} with the best of three lrs, {NAMES[best]} with no more, at the same lr·wd·T"
        + ("; a step of Muon takes longer" if "muon" in (best, name) else ""),
        f"{NAMES[best]} is worth a try"
        + ("" if best == "sgdm" else f"; eq.suggest(…, optimizer={best!r}) chooses its lr and weight_decay"),
        "[theory] 1, and the stored trials: docs/payoff.md",
        paid=f"test loss {spread(each)} on {len(each)} workload{'s' * (len(each) > 1)}",
    )


def winner(kind: str, name: str) -> tuple[str, list[float]] | None:
    """The optimizer that ended lowest on tasks of a kind, and by how many percent on each of them.

    Args:
        kind: one of `KINDS`.
        name: the optimizer that it has to beat, by `WORTH` in the median and on three quarters of the tasks.
    """
    against = {b: v for b, v in choices()["optimizers"].get(kind, {}).get(name, {}).items() if b in NAMES}
    better = {b: v for b, v in against.items() if np.median(v) < WORTH and sum(x < 0 for x in v) > 0.75 * len(v)}
    if not better:
        return None
    best = min(better, key=lambda b: float(np.median(better[b])))
    return best, better[best]


@functools.cache
def choices() -> dict[str, Any]:
    """What is stored."""
    if CHOICES.is_file():
        return json.loads(CHOICES.read_text(encoding="utf-8"))
    return {"optimizers": {}, "equivalents": {}}


def is_unsaid(plan: Plan) -> bool:
    """Whether the plan does not know how often data is seen, on which the winner depends, or that was not tried."""
    s = plan.setting
    if s.steps_per_epoch is None:
        return True
    return s.tokens_per_sample is None and s.steps / s.steps_per_epoch > REPEATED


def spread(values: list[float]) -> str:
    """Percents as a sentence has them: the median, and from which to which."""
    low, high = min(values), max(values)
    if len(values) == 1 or math.isclose(low, high):
        return f"{_signed(low)} %"
    return f"{_signed(float(np.median(values)))} % in the median ({_signed(low)} to {_signed(high)} %)"


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
