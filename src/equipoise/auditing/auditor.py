"""Audit an optimizer: record some steps, infer what it did, and hold that against what it says: `audit`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import torch
from rich.console import Console, RenderableType

from equipoise import _check
from equipoise.auditing.behaviour import Behaviour
from equipoise.auditing.infer import Inference
from equipoise.auditing.previous import changes, read_previous, settings_of
from equipoise.auditing.ranks import Sums, apart, exchanged
from equipoise.auditing.record import Recorder, Track
from equipoise.auditing.said import Difference, differences
from equipoise.auditing.structure import SOURCE, ScheduleSteps, few, schedulers_of, structural
from equipoise.auditing.table import Row, folded, page, rendered
from equipoise.finding import SEVERITIES, Finding
from equipoise.optim.dynamics_of import inwards, stepping
from equipoise.optim.model.roles import ParameterRole, known_parameters

SCHEMA = 1
"""Of `Audit.to_dict`."""


def audit(
    model: torch.nn.Module | Sequence[torch.nn.Module] | None,
    optimizer: Any,
    *,
    steps: int = 20,
    memory: float = 2e9,
    previous: str | os.PathLike[str] | Mapping[str, Any] | None = None,
) -> Audit:
    """Infer from some steps what an optimizer does to every tensor, and compare it with what it says.

    Training does not change by a bit. Weights and gradients of the recorded steps are copied: 2 · steps times the
    parameters' bytes, at most `memory`; tensors beyond that are sampled, the largest first.

    Args:
        model: names the parameters, and tells their roles; a list where several are trained, as in a GAN; None:
            parameters are numbered.
        optimizer: anything with `step()` and `param_groups`, or a list of such.
        steps: how many steps to record. More steps tell averaging factors near 1 better.
        memory: bytes that the copies may take.
        previous: an earlier audit of the same run, as a file that `Audit.save` wrote or as `Audit.to_dict` returned it.
            Findings then say what a resume changed.

    Returns:
        An `Audit`; use it as a context manager around the training loop, or call `close`.

    >>> model = torch.nn.Linear(8, 4)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    >>> with audit(model, optimizer, steps=5) as seen:
    ...     for _ in range(5):
    ...         optimizer.zero_grad()
    ...         model(torch.randn(16, 8)).square().mean().backward()
    ...         optimizer.step()
    >>> [row.rule for row in seen.table]
    ['Adam']
    >>> [finding.code for finding in seen.findings]
    ['audit-decay-on-gains']
    """
    return Audit(model, optimizer, steps, memory, previous)


class Audit:
    """An audit in progress or done; made by `audit`, which explains its arguments."""

    def __init__(
        self, model: torch.nn.Module | Sequence[torch.nn.Module] | None, optimizer: Any, steps: int = 20,
        memory: float = 2e9, previous: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        full: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        models: list[Any] = list(model) if isinstance(model, list | tuple) else [] if model is None else [model]
        for one in models:
            if not isinstance(one, torch.nn.Module):
                raise ValueError(f"model = {_check.shown(one)}: must be a torch.nn.Module, a list of such, or None")
        steps = _check.whole("steps", steps, low=1)
        memory = _check.number("memory", memory, low=0)
        optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        if not optimizers:
            raise ValueError("optimizer = []: must be an optimizer, or a list of at least one")
        for one in optimizers:
            _refuse(one)
        self.steps = steps
        """How many steps are to be recorded."""
        self._previous = None if previous is None else read_previous(previous)
        self._roles = with_masters(_known(models), optimizers)
        names = {id(r.param): r.name for r in self._roles}
        self._recorder = Recorder([_steps(one) for one in optimizers], names, steps, memory, self._recorded_all)
        self._full = full
        self._ranks: list[Sums] | None = None
        self.ended = ""
        """How a script that was audited ended before its steps were recorded; empty where it was stopped."""
        self._schedulers: list[ScheduleSteps] | None = None
        self._name = " + ".join(type(stepping(one)).__name__ for one in optimizers)
        self._at_start = {id(s): at for s, at in schedulers_of([stepping(o) for o in optimizers])}

    # While it runs

    @property
    def done(self) -> bool:
        """Whether all steps are recorded, so that the loop may end."""
        return self._recorder.over

    @property
    def recorded(self) -> int:
        """How many steps were recorded."""
        return self._recorder.taken

    def _recorded_all(self) -> None:
        self._ranks = exchanged(list(self._recorder.tracks.values()))
        self._full()

    def close(self) -> None:
        """Stop recording; more calls do nothing."""
        if self._schedulers is None:
            now = schedulers_of([stepping(o) for o in self._recorder.optimizers])
            self._schedulers = [
                ScheduleSteps(type(s).__name__, s.optimizer, at - self._at_start.get(id(s), 0)) for s, at in now
            ]
        self._recorder.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close()

    # What it found

    @cached_property
    def _inferred(self) -> list[tuple[Track, Behaviour, list[Difference]]]:
        self.close()
        inference, made = Inference(), []
        for track in self._recorder.tracks.values():
            if track.steps and not track.strange:
                did = inference.of(track)
                made.append((track, did, list(differences(track, did))))
        return made

    @cached_property
    def findings(self) -> list[Finding]:
        """What differs from what the optimizer says, and what is odd around it; most severe first."""
        if not self.recorded:
            return [_no_steps()]
        kinds: dict[tuple[str, str, str], list[tuple[Track, Difference]]] = {}
        for track, _, differing in self._inferred:
            for d in differing:
                kinds.setdefault((d.code, d.severity, d.expected), []).append((track, d))
        found = [
            Finding(code, severity, few([t.name for t, _ in members]), members[0][1].evidence, expected,
                    members[0][1].advice, SOURCE)
            for (code, severity, expected), members in kinds.items()
        ]  # fmt: skip
        found += structural(self._recorder, self._roles, self._schedulers or [])
        if self._ranks is not None:
            found += apart(self._ranks)
        if self._previous is not None:
            found += changes([t for t, _, _ in self._inferred], self._previous)
        if self._recorder.closures:
            found.append(_closures())
        if self.recorded < self.steps:
            found.append(_fewer(self.recorded, self.steps, self.ended))
        return sorted(found, key=lambda f: SEVERITIES.index(f.severity))

    @cached_property
    def table(self) -> list[Row]:
        """Tensor × what is said × what is done; equal tensors share a row, those with findings come first."""
        return folded([(t, b, tuple(dict.fromkeys(d.code for d in ds))) for t, b, ds in self._inferred])

    def worse_than(self, severity: str) -> bool:
        """Whether a finding is as severe as this, or more; for exit codes.

        Args:
            severity: "error", "warning" or "info".
        """
        _check.choice("severity", severity, SEVERITIES)
        return any(SEVERITIES.index(f.severity) <= SEVERITIES.index(severity) for f in self.findings)

    def show(self) -> None:
        """Print the table and the findings."""
        Console().print(self)

    def __rich__(self) -> RenderableType:
        return rendered(self._title, self.table, self.findings)

    def to_html(self) -> str:
        """The table and the findings as one HTML page that works on its own."""
        return page(self._title, self.table, self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data for JSON."""
        return {
            "schema": SCHEMA,
            "optimizer": self._name,
            "steps": self.recorded,
            "settings": {t.name: settings_of(t) for t, _, _ in self._inferred},
            "table": [row.to_dict() for row in self.table],
            "findings": [f.to_dict() for f in self.findings],
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a file: HTML if its name ends in .html, else JSON.

        Args:
            path: of the file.
        """
        target = Path(path)
        text = self.to_html() if target.suffix == ".html" else json.dumps(self.to_dict(), indent=2)
        target.write_text(text, encoding="utf-8")
        return target

    @property
    def _title(self) -> str:
        count = sum(len(row.tensors) for row in self.table)
        return f"{self._name}: {count} tensors, {self.recorded} steps"


def _known(models: Sequence[torch.nn.Module]) -> list[ParameterRole]:
    """The parameters of all models; where there are several, with their models' names before their own."""
    if len(models) < 2:
        return [r for m in models for r in known_parameters(m)]
    names = [type(m).__name__ for m in models]
    found: dict[int, ParameterRole] = {}
    for i, (name, model) in enumerate(zip(names, models, strict=True)):
        before = name if names.count(name) == 1 else f"{name} {names[: i + 1].count(name)}"
        for role in known_parameters(model):
            found.setdefault(id(role.param), replace(role, name=f"{before}: {role.name}"))
    return list(found.values())


def with_masters(roles: Sequence[ParameterRole], optimizers: Sequence[Any]) -> list[ParameterRole]:
    """The roles, where those of parameters in few bits that the optimizer has as float32 copies are the copies'.

    Args:
        roles: of the model's parameters.
        optimizers: what steps them, or their copies.
    """
    held = [p for one in optimizers for group in stepping(one).param_groups for p in group["params"]]
    ids, names = {id(p) for p in held}, {id(r.param) for r in roles}
    masters: dict[tuple[int, ...], list[torch.Tensor]] = {}
    for p in held:
        if id(p) not in names and p.dtype == torch.float32:
            masters.setdefault(tuple(p.shape), []).append(p)
    found: list[ParameterRole] = []
    for role in roles:
        p, same = role.param, masters.get(tuple(role.param.shape), [])
        copied = None
        if id(p) not in ids and p.element_size() < 4:
            copied = next((m for m in same if torch.equal(m.detach().to(p.device, p.dtype), p.detach())), None)
        if copied is None:
            found.append(role)
        else:
            same[:] = [m for m in same if m is not copied]
            found.append(replace(role, param=copied))
    return found


def _refuse(one: Any) -> None:
    """Refuse what has no steps to record."""
    if not callable(getattr(one, "step", None)):
        raise ValueError(f"optimizer = {type(one).__name__}: must have step() and param_groups")
    inner = stepping(one)
    if isinstance(inner, torch.optim.LBFGS):
        raise ValueError(
            "optimizer = LBFGS: it takes several steps on several gradients in one step(), which the audit cannot "
            "tell apart; audit a first-order optimizer"
        )
    if not any(group["params"] for group in inner.param_groups):
        raise ValueError(f"optimizer = {type(inner).__name__}: has no parameters")


def _steps(one: Any) -> Any:
    """The optimizer whose step has hooks; of one that holds no such, itself."""
    return next((o for o in inwards(one) if hasattr(o, "_optimizer_step_pre_hooks")), one)


def _no_steps() -> Finding:
    return Finding(
        "audit-no-steps", "error", "optimizer", "its step() was never called", "at least one step",
        "Train inside of the context, with the optimizer that the audit was given; if a framework wraps it, give the "
        "wrapped one", SOURCE,
    )  # fmt: skip


def _fewer(taken: int, steps: int, ended: str) -> Finding:
    failed = "failed" in ended or "code" in ended
    return Finding(
        "audit-fewer-steps", "warning" if failed else "info", "optimizer",
        f"{taken} steps were recorded" + (f"; then the script ended: {ended}" if failed else ""), f"{steps}",
        "Mend the script, or ask for fewer steps" if failed
        else "Nothing; averaging factors are told less well from fewer steps", SOURCE,
    )  # fmt: skip


def _closures() -> Finding:
    return Finding(
        "audit-closure", "warning", "optimizer", "step() calls its closure more than once, or not at all",
        "gradients of one pass for each step", "Nothing, if the optimizer needs several passes; what is said of rules "
        "here is of the gradients of the first", SOURCE,
    )  # fmt: skip
