"""Schedules of a setting: a curve or a name, as a factor on the lr of groups."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from equipoise import _check, schedules
from equipoise._check import Array
from equipoise.schedules import Schedule

if TYPE_CHECKING:
    from equipoise.planner.setting import Group


def as_factor(
    curve: Schedule, groups: tuple[Group, ...], steps: int, relative: bool | None
) -> tuple[Schedule, tuple[Group, ...], tuple[str, ...]]:
    """A schedule as a factor on lr, the groups' lr where it was lr itself, and what was assumed.

    Args:
        curve: the schedule.
        groups: the parameter groups.
        steps: of the run.
        relative: whether it is a factor; None decides by its largest value.
    """
    top = float(curve.values(steps).max())
    if top <= 0:
        raise ValueError(f"schedule = {curve}: must be > 0 at some step of the run")
    largest = max(g.lr for g in groups)
    notes: tuple[str, ...] = ()
    if relative is None:
        relative = abs(top - 1) < 1e-9 or (0.3 <= top < 1 and largest < 0.2 * top)
        sure = (relative and top > 0.95) or (not relative and abs(top / (largest or top) - 1) < 0.05)
        if not sure:
            meaning = f"a factor on lr = {largest:g}" if relative else f"lr itself, in place of {largest:g}"
            notes = (f"the schedule, whose largest value is {top:.4g}, is read as {meaning} (set relative= to decide)",)
    if relative:
        return curve, groups, notes
    groups = tuple(replace(g, lr=top * (g.lr / largest if largest else 1.0)) for g in groups)
    return curve * (1 / top), groups, notes


def by_name(name: str, steps: int, warmup: int, final: float | None, options: dict[str, Any], group: Group) -> Schedule:
    """A schedule by name as a factor on lr.

    Args:
        name: one of `schedules.NAMES`.
        steps: of the run.
        warmup: steps of linear warmup.
        final: the last value as a share of the peak; None: a tenth, if it has an end.
        options: of the schedule.
        group: whose lr·weight_decay "equal_memory" takes.
    """
    _check.choice("schedule", name, schedules.NAMES)
    for key in ("peak", "steps"):
        if key in options:
            raise ValueError(f"{key} = {options[key]!r}: must be left out of the schedule; lr and the run set it")
    more: dict[str, Any] = dict(options)
    if final is not None:
        more["final"] = _check.number("final", final, low=0, high=1)
    elif name not in ("constant", "step", "inverse_sqrt", "equal_memory"):
        more["final"] = 0.1
    if name == "equal_memory":
        more.setdefault("weight_decay", group.lr * group.weight_decay)  # of lr as a factor: 1/f ← 1/f + lr·λ
    return schedules.named(name, steps=steps, warmup=_check.whole("warmup", warmup), **more)


@functools.lru_cache(maxsize=4)
def _kept(schedule: Schedule, steps: int) -> Array:
    return schedule.values(steps)


def values_of(schedule: Schedule, steps: int) -> Array:
    """The curve, which a plan asks for a dozen times, and a grid of plans a thousand times; not to be written to."""
    try:
        return _kept(schedule, steps)
    except TypeError:  # one of somebody's own that cannot be hashed
        return schedule.values(steps)
