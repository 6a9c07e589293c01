"""Findings on what surrounds the steps: which parameters the optimizer has, what reaches them, who changes lr."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from equipoise.auditing.record import Recorder, Track
from equipoise.finding import Finding
from equipoise.optim.dynamics_of import stepping
from equipoise.optim.model.roles import ParameterRole

SOURCE = "what the audit recorded"

MATRICES = ("matrix", "conv")
PLAIN = ("gain", "bias")


class ScheduleSteps(NamedTuple):
    """How many steps a scheduler made while the audit ran."""

    name: str
    optimizer: Any
    taken: int


def few(names: Sequence[str]) -> str:
    """Up to three names, and how many there are."""
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{len(names)} tensors: {shown}, …"


def structural(
    recorder: Recorder, roles: Sequence[ParameterRole], schedulers: Sequence[ScheduleSteps]
) -> Iterator[Finding]:
    """All findings on the structure.

    Args:
        recorder: of the steps.
        roles: of the model's parameters.
        schedulers: what they did meanwhile.
    """
    tracks = [t for t in recorder.tracks.values() if t.steps]
    yield from _parameters(recorder, roles)
    yield from _decayed(tracks, roles)
    yield from _muon(recorder, tracks)
    yield from _ties(recorder, roles)
    yield from _gradients(tracks)
    yield from _dropped(tracks)
    yield from _clipping(tracks)
    yield from _stacks(tracks, {id(r.param) for r in roles if r.role == "conv"})
    yield from _skipped(recorder, tracks)
    yield from _state(tracks)
    yield from _schedules(recorder, schedulers)
    if recorder.changed:
        yield Finding(
            "audit-between", "info", few(list(recorder.changed)),
            f"weights were changed between steps, {max(recorder.changed.values())} times",
            "only steps change weights", "Nothing, if your loop does so on purpose", SOURCE,
        )  # fmt: skip


def _parameters(recorder: Recorder, roles: Sequence[ParameterRole]) -> Iterator[Finding]:
    own = {id(r.param) for r in roles}
    left = [r.name for r in roles if r.param.requires_grad and id(r.param) not in recorder.tracks]
    others = [t.name for key, t in recorder.tracks.items() if key not in own] if roles else []
    if left and not (others and len(left) == len(roles)):
        yield Finding(
            "audit-not-in-optimizer", "warning", few(left),
            f"{len(left)} parameters that require gradients are in no group of the optimizer", "0",
            "Add them to a group, or set requires_grad to False; parameters that are made after the optimizer are in "
            "none", SOURCE,
        )  # fmt: skip
    if others:
        every = len(others) == len(recorder.tracks)
        yield Finding(
            "audit-other-parameters", "error" if every else "warning", few(others),
            f"{len(others)} of {len(recorder.tracks)} parameters of the optimizer are not the model's", "0",
            "Make the optimizer from model.parameters() after the model is changed, moved or wrapped", SOURCE,
        )  # fmt: skip
    if recorder.doubled:
        yield Finding(
            "audit-twice", "error", few(recorder.doubled), "they are in more than one group, or in two optimizers, "
            "and are stepped twice", "one group each", "List each parameter in one group", SOURCE,
        )  # fmt: skip
    strange = [t for t in recorder.tracks.values() if t.strange]
    for reason in sorted({t.strange for t in strange}):
        names = [t.name for t in strange if t.strange == reason]
        yield Finding(
            "audit-not-recorded", "info", few(names), f"it {reason}", "dense real floating-point numbers",
            "Nothing: the rest is audited", SOURCE,
        )  # fmt: skip


def _decayed(tracks: Sequence[Track], roles: Sequence[ParameterRole]) -> Iterator[Finding]:
    role = {id(r.param): r.role for r in roles}
    with_decay = [t for t in tracks if t.said[0].weight_decay > 0]
    plain = [t.name for t in with_decay if role.get(id(t.param)) in PLAIN]
    free = [t.name for t in tracks if role.get(id(t.param)) in PLAIN and not t.said[0].weight_decay]
    if plain:
        mixed = f"; without: {len(free)} ({few(free)})" if free else ""
        yield Finding(
            "audit-decay-on-gains", "warning" if free else "info", few(plain),
            f"gains and biases with weight decay: {len(plain)}{mixed}", "0",
            "eq.param_groups(model) leaves them out, by the type of their module and not by name", SOURCE,
        )  # fmt: skip
    matrices = [t for t in tracks if role.get(id(t.param)) in MATRICES]
    bare = [t.name for t in matrices if not t.said[0].weight_decay and t.said[0].dynamics.move == "decay"]
    if bare and len(bare) < len(matrices) and any(t.said[0].weight_decay for t in matrices):
        yield Finding(
            "audit-decay-missing", "warning", few(bare),
            f"{len(bare)} of {len(matrices)} matrices have no weight decay, the others have", "all alike",
            "Check the rule that sorts parameters into groups: it may go by name. Without decay their norms grow as "
            "√steps", SOURCE,
        )  # fmt: skip


def _muon(recorder: Recorder, tracks: Sequence[Track]) -> Iterator[Finding]:
    for k, one in enumerate(recorder.optimizers):
        inner = stepping(one)
        speaks = "muon" in type(inner).__name__.lower() or any("use_muon" in g for g in inner.param_groups)
        mine = [t for t in tracks if t.owner == k]
        known = all(t.said[0].dynamics.known for t in mine)
        if speaks and known and mine and not any(t.said[0].dynamics.optimizer == "muon" for t in mine):
            yield Finding(
                "audit-no-muon", "warning", type(inner).__name__,
                f"none of its {len(mine)} parameters is in a group for Muon", "matrices are",
                "Check what sorts parameters into groups, and its flag use_muon", SOURCE,
            )  # fmt: skip


def _ties(recorder: Recorder, roles: Sequence[ParameterRole]) -> Iterator[Finding]:
    tables = [r for r in roles if r.role == "embedding"]
    heads = [r for r in roles if r.role == "head"]
    for table in tables:
        for head in heads:
            a, b = recorder.tracks.get(id(table.param)), recorder.tracks.get(id(head.param))
            if a is None or b is None or not a.before or not b.before or a.param.shape != b.param.shape:
                continue
            if torch.equal(a.before[0], b.before[0]) and bool(a.before[0].any()):
                yield Finding(
                    "audit-tie-lost", "warning", f"{a.name}, {b.name}",
                    "they began with equal values but are two parameters, which are trained apart",
                    "one parameter that is shared", "Tie them again after loading or moving the model", SOURCE,
                )  # fmt: skip


def _gradients(tracks: Sequence[Track]) -> Iterator[Finding]:
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    old, changed = [], []
    for t in tracks:
        later = [a for a in t.arrivals[1:] if a.passes and a.finite]
        if len(later) >= 3 and sum(a.before > 0.5 * abs(a.factor) > 0 and a.rest < 0.1 for a in later) > 0.8 * len(
            later
        ):
            old.append(t.name)
        elif alone and len(later) >= 3 and all(a.rest > 0.05 for a in later):
            changed.append(t.name)
    if len(old) > 0.5 * len([t for t in tracks if any(t.grad_norms)]):
        yield Finding(
            "audit-not-zeroed", "warning", few(old), "each gradient still holds those of the steps before",
            "only what was computed since the last step", "Call optimizer.zero_grad() after each step", SOURCE,
        )  # fmt: skip
    elif changed:
        yield Finding(
            "audit-gradient-changed", "info", few(changed),
            "gradients were changed between backward and step, by more than one factor", "as they came, or clipped",
            "Nothing, if your loop or a hook does so on purpose", SOURCE,
        )  # fmt: skip


def _dropped(tracks: Sequence[Track]) -> Iterator[Finding]:
    full = [t for t in tracks if any(t.grad_norms)]
    least = min((t.dropped for t in full), default=0)
    if least:
        yield Finding(
            "audit-dropped", "warning", f"{len(full)} tensors",
            f"{least} backward passes in {len(full[0].steps)} steps were thrown away: gradients were zeroed before the "
            "step", "0", "Call zero_grad() after step(), and not between the passes of one step", SOURCE,
        )  # fmt: skip


def _stacks(tracks: Sequence[Track], convolutions: set[int]) -> Iterator[Finding]:
    """Stacks of matrices whose norm is held as a whole, and not that of each."""
    found = []
    for t in tracks:
        if t.param.ndim < 3 or id(t.param) in convolutions or not t.whole or len(t.after) < 2:
            continue
        for matrices in {1, t.param.ndim - 2}:
            first, last = (
                x.double().flatten(0, matrices - 1).flatten(1).norm(dim=1) for x in (t.before[0], t.after[-1])
            )
            whole = abs(float(last.norm() / first.norm()) - 1)
            each = float((last / first - 1).abs().max())
            moved = float((t.after[-1].double() - t.before[0].double()).norm() / first.norm())
            if len(first) > 1 and whole < 1e-5 and each > max(10 * whole, 1e-3 * moved):
                found.append((t, len(first), each))
                break
    if found:
        most, count, each = max(found, key=lambda x: x[2])
        said = all(t.said[0].dynamics.known and t.said[0].dynamics.move != "decay" for t, _, _ in found)
        yield Finding(
            "audit-norm-together", "info" if said else "warning", few([t.name for t, _, _ in found]),
            f"the norm of all {count} matrices together is held, one changed by {100 * each:.2g} %: {most.name}",
            "each matrix keeps its norm", f"Take the norm over the last two dimensions (here granularity={count})"
            if said else "Take the norm over the last two dimensions", SOURCE,
        )  # fmt: skip


def _clipping(tracks: Sequence[Track]) -> Iterator[Finding]:
    full = [t for t in tracks if any(t.grad_norms)]
    count = min((len(t.grad_norms) for t in full), default=0)
    if count < 4:
        return
    totals = [math.sqrt(sum(t.grad_norms[i] ** 2 for t in full)) for i in range(count)]
    mean = sum(totals) / count
    if not mean or max(abs(x - mean) for x in totals) > 1e-3 * mean:
        return
    factors = [abs(a.factor) for t in full for a in t.arrivals if a.rest < 0.05]
    typical = sorted(factors)[len(factors) // 2] if factors else 1.0
    if typical > 0.99:
        return
    tiny = mean < 1e-3
    advice = "Clip after scaler.unscale_(optimizer), or raise the bound" if tiny else "Nothing; the bound sets the size"
    yield Finding(
        "audit-clipped-always", "warning" if tiny else "info", f"{len(full)} tensors",
        f"every gradient was clipped, to a total norm of {mean:.3g}; the median factor is {typical:.2g}",
        "now and then", advice, SOURCE,
    )  # fmt: skip


def _skipped(recorder: Recorder, tracks: Sequence[Track]) -> Iterator[Finding]:
    skipped = max((t.skipped for t in tracks), default=0)
    if skipped:
        many = skipped > recorder.taken / 4
        yield Finding(
            "audit-skipped", "warning" if many else "info", "all steps",
            f"{skipped} backward passes brought gradients that were not finite, and no step followed",
            "few, at the start", "Lower the scaler's init_scale, or train in bfloat16", SOURCE,
        )  # fmt: skip


def _state(tracks: Sequence[Track]) -> Iterator[Finding]:
    lost = []
    for t in tracks:
        step = t.start.get("step")
        averages = [x for x in t.start.values() if isinstance(x, torch.Tensor)]
        if step and step > 1 and averages and not any(bool(x.any()) for x in averages) and any(t.grad_norms):
            lost.append(t.name)
    if lost:
        yield Finding(
            "audit-state-lost", "warning", few(lost),
            "the optimizer counts its steps from before, but its averages are all 0", "averages as they were saved",
            "Save and load the optimizer's whole state_dict, and step no empty optimizer before loading", SOURCE,
        )  # fmt: skip


def schedulers_of(optimizers: Iterable[Any]) -> list[tuple[Any, int]]:
    """The schedulers that there are, torch's and alike, with the number of their last step."""
    from torch.optim.lr_scheduler import LRScheduler

    ours = {id(p) for one in optimizers for g in one.param_groups for p in g["params"]}
    found = []
    for thing in gc.get_objects():
        if not issubclass(type(thing), LRScheduler):
            continue
        its = getattr(thing, "optimizer", None)
        params = [p for g in getattr(its, "param_groups", []) for p in g["params"]]
        if any(id(p) in ours for p in params):
            found.append((thing, int(getattr(thing, "last_epoch", 0))))
    held = {id(inner) for s, _ in found for inner in getattr(s, "_schedulers", [])}
    return [(s, at) for s, at in found if id(s) not in held]


def _schedules(recorder: Recorder, schedulers: Sequence[ScheduleSteps]) -> Iterator[Finding]:
    steps = recorder.taken
    stepping_now = {id(stepping(o)) for o in recorder.optimizers} | {id(o) for o in recorder.optimizers}
    for name, its, taken in schedulers:
        if id(its) not in stepping_now and id(stepping(its)) not in stepping_now:
            yield Finding(
                "audit-schedule-other", "warning", name,
                "it changes the lr of another optimizer of the same parameters, which does not step",
                "the optimizer that steps", "Make the scheduler from the optimizer that steps", SOURCE,
            )  # fmt: skip
        elif steps >= 3 and taken > 1.5 * steps:
            passes = max((a.passes for t in recorder.tracks.values() for a in t.arrivals), default=1)
            why = f", as often as backward ran ({passes} times a step)" if abs(taken / steps - passes) < 0.2 else ""
            yield Finding(
                "audit-schedule-fast", "warning", name, f"it made {taken} steps in {steps} of the optimizer{why}",
                "one each, at the most", "Call scheduler.step() once, after optimizer.step()", SOURCE,
            )  # fmt: skip
        elif steps >= 3 and taken == 0:
            yield Finding(
                "audit-schedule-still", "info", name, f"it made no step in {steps} of the optimizer",
                "one each, or one an epoch", "Nothing, if it steps once an epoch", SOURCE,
            )  # fmt: skip


def models_with(optimizers: Sequence[Any]) -> list[nn.Module]:
    """The modules that hold parameters of these optimizers and are in no other, the one with the most first."""
    ours = {id(p) for one in optimizers for g in stepping(one).param_groups for p in g["params"]}
    modules = [m for m in gc.get_objects() if issubclass(type(m), nn.Module)]
    inner = {id(c) for m in modules for c in m.children()}
    tops = [({id(p) for p in m.parameters()} & ours, m) for m in modules if id(m) not in inner]
    found: list[nn.Module] = []
    for mine, module in sorted(tops, key=lambda pair: -len(pair[0])):
        if mine & ours:
            found.append(module)
            ours -= mine
    return found
