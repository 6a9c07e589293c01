"""Schedules by the names that the command line and settings files use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from equipoise import _check
from equipoise.schedules import compose, curves, memory, phases
from equipoise.schedules.base import Schedule


def _constant(steps: int, peak: float, warmup: int, final: float) -> Schedule:
    _no_final("constant", final)
    return compose.warmup(curves.constant(peak), warmup)


def _linear(steps: int, peak: float, warmup: int, final: float) -> Schedule:
    return compose.warmup(curves.linear(steps - warmup, peak=peak, final=final), warmup)


def _polynomial(steps: int, peak: float, warmup: int, final: float, *, power: float = 2.0) -> Schedule:
    return compose.warmup(curves.polynomial(steps - warmup, power=power, peak=peak, final=final), warmup)


def _exponential(steps: int, peak: float, warmup: int, final: float) -> Schedule:
    return compose.warmup(curves.exponential(steps - warmup, peak=peak, final=final), warmup)


def _cosine(steps: int, peak: float, warmup: int, final: float) -> Schedule:
    return compose.warmup(curves.cosine(steps - warmup, peak=peak, final=final), warmup)


def _cosine_restarts(
    steps: int, peak: float, warmup: int, final: float, *, period: int, growth: int = 1, factor: float = 1.0
) -> Schedule:
    restarts = phases.cosine_restarts(period, growth=growth, factor=factor, peak=peak, final=final)
    return compose.warmup(restarts, warmup)


def _step(
    steps: int,
    peak: float,
    warmup: int,
    final: float,
    *,
    milestones: Sequence[int] = (),
    every: int | None = None,
    factor: float = 0.1,
) -> Schedule:
    _no_final("step", final)
    stairs = phases.step(milestones=milestones, every=every, factor=factor, peak=peak)
    # Milestones are steps of the run: the warmup lies over them and does not shift them.
    return stairs * compose.warmup(curves.constant(), warmup) if warmup else stairs


def _inverse_sqrt(steps: int, peak: float, warmup: int, final: float, *, timescale: float | None = None) -> Schedule:
    _no_final("inverse_sqrt", final)
    return compose.warmup(curves.inverse_sqrt(max(warmup, 1) if timescale is None else timescale, peak=peak), warmup)


def _one_cycle(
    steps: int, peak: float, warmup: int, final: float, *, start: float | None = None, anneal: str = "cosine"
) -> Schedule:
    return phases.one_cycle(steps, warmup=warmup or None, peak=peak, start=start, final=final, anneal=anneal)


def _wsd(
    steps: int, peak: float, warmup: int, final: float, *, decay: int | None = None, tail: str = "linear"
) -> Schedule:
    return phases.wsd(steps, warmup=warmup, decay=decay, peak=peak, final=final, tail=tail)


def _equal_memory(steps: int, peak: float, warmup: int, final: float, *, weight_decay: float) -> Schedule:
    _no_final("equal_memory", final)
    return compose.warmup(memory.equal_memory(weight_decay=weight_decay, peak=peak), warmup)


_MAKERS: dict[str, Callable[..., Schedule]] = {
    "constant": _constant,
    "cosine": _cosine,
    "cosine_restarts": _cosine_restarts,
    "equal_memory": _equal_memory,
    "exponential": _exponential,
    "inverse_sqrt": _inverse_sqrt,
    "linear": _linear,
    "one_cycle": _one_cycle,
    "polynomial": _polynomial,
    "step": _step,
    "wsd": _wsd,
}

NAMES = tuple(_MAKERS)
"""The names that `named` knows."""


def named(name: str, *, steps: int, peak: float = 1.0, warmup: int = 0, final: float = 0.0, **extra: Any) -> Schedule:
    """Make a schedule by its name.

    Args:
        name: one of `NAMES`.
        steps: steps of the whole run, warmup included.
        peak: the largest value.
        warmup: steps of linear warmup, < steps.
        final: the value at the last step; only 0, the default, for the names whose curves have no end (constant,
            step, inverse_sqrt, equal_memory).
        **extra: what the curve needs besides: `power` (polynomial), `period`, `growth`, `factor` (cosine_restarts),
            `milestones` or `every`, `factor` (step), `timescale` (inverse_sqrt; default the warmup), `start`,
            `anneal` (one_cycle), `decay`, `tail` (wsd), `weight_decay` (equal_memory).

    >>> named("cosine", steps=1000, warmup=100, peak=3e-4)
    warmup(cosine(steps=900, peak=0.0003), steps=100)
    >>> named("cosin", steps=1000)
    Traceback (most recent call last):
    ValueError: name = 'cosin': must be one of constant, cosine, cosine_restarts, equal_memory, exponential, \
inverse_sqrt, linear, one_cycle, polynomial, step, wsd
    """
    make = _MAKERS[_check.choice("name", name, NAMES)]
    T = _check.whole("steps", steps, low=1)
    W = _check.whole("warmup", warmup)
    if W >= T:
        raise ValueError(f"warmup = {W}: must be < steps = {T}")
    parameters = inspect.signature(make).parameters
    own = {key: p for key, p in parameters.items() if p.kind is p.KEYWORD_ONLY}
    if odd := sorted(set(extra) - set(own)):
        takes = f"takes only {', '.join(own)}" if own else "takes nothing more"
        raise ValueError(f"{odd[0]} = {extra[odd[0]]!r}: must be left out, because {name!r} {takes}")
    for key, parameter in own.items():
        if parameter.default is parameter.empty and key not in extra:
            raise ValueError(f"{key} = None: must be given for {name!r}")
    return make(T, peak, W, final, **extra)


def _no_final(name: str, final: float) -> None:
    if _check.number("final", final, low=0) != 0:
        raise ValueError(f"final = {final!r}: must be 0 for {name!r}, which has no last value of its own")
