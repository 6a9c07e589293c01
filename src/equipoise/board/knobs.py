"""The controls on the page of a plan, and a setting as code, TOML or a command."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from equipoise import _check
from equipoise.planner import Group, Setting, Tensor, write_setting
from equipoise.planner.setting import WITHOUT
from equipoise.schedules import NAMES
from equipoise.theory import OPTIMIZERS
from equipoise.theory.directions import BY_LR_MAX

SCHEDULES = tuple(n for n in NAMES if n not in ("step", "cosine_restarts"))
"""Those that need nothing but a warmup and a last value."""

ENDLESS = ("constant", "inverse_sqrt", "equal_memory")
"""Those that have no last value."""

STARTS = ("random", "trained")
"""What weights are when training begins."""

CHOICES = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES, "start": STARTS}

MOST_STEPS = 1_000_000
"""A page must answer at once."""


@dataclass(frozen=True)
class Knobs:
    """A setting as a page has it.

    Attributes:
        optimizer: its name.
        lr: learning rate at the peak.
        weight_decay: weight decay.
        beta1: first averaging factor, or momentum.
        beta2: second averaging factor.
        steps: number of steps.
        warmup: steps of warmup.
        schedule: its name.
        final: last lr as a share of the peak, where the schedule has an end.
        width: rows and columns of the matrix.
        start: one of `STARTS`; weights that were trained before make it a plan of fine-tuning.
    """

    optimizer: str = "adamw"
    lr: float = 1e-3
    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    steps: int = 20_000
    warmup: int = 500
    schedule: str = "cosine"
    final: float = 0.1
    width: int = 1024
    start: str = "random"

    @staticmethod
    def read(data: Any) -> Knobs:
        """Knobs from what a browser sent: unknown names, types and sizes are refused.

        Raises:
            ValueError: naming what is wrong.
        """
        if not isinstance(data, Mapping):
            raise ValueError("knobs: must be a table of names and values")
        known = {f.name: getattr(Knobs(), f.name) for f in fields(Knobs)}
        given: dict[str, Any] = {}
        for name, value in data.items():
            if name not in known:
                raise ValueError(f"{str(name)[:40]!r}: must be one of {', '.join(known)}")
            if isinstance(value, bool):
                raise ValueError(f"{name} = {value}: must be a number or a name")
            if isinstance(known[name], str):
                given[name] = _check.choice(name, value, CHOICES[name])
            elif isinstance(known[name], int):
                given[name] = _check.whole(name, value, low=0 if name == "warmup" else 1)
            else:
                given[name] = _check.number(name, value, low=0, high=1 if name == "final" else math.inf)
        for name, most in (("steps", MOST_STEPS), ("width", 1_000_000)):
            if given.get(name, 0) > most:
                raise ValueError(f"{name} = {given[name]:,}: must be ≤ {most:,} here")
        return Knobs(**given)

    def setting(self) -> Setting:
        """The knobs as a setting, with one square matrix."""
        if self.warmup >= self.steps:
            raise ValueError(f"warmup = {self.warmup:,}: must be less than steps = {self.steps:,}")
        return Setting.make(
            optimizer=self.optimizer, lr=self.lr, weight_decay=self.weight_decay, betas=(self.beta1, self.beta2),
            steps=self.steps, schedule=self.schedule, warmup=self.warmup,
            final=None if self.schedule in ENDLESS else self.final,
            tensors=(Tensor(name="weight", shape=(self.width, self.width)),),
            finetune=True if self.start == "trained" else None,
        )  # fmt: skip


def moved(setting: Setting, lr: float, weight_decay: float) -> Setting:
    """The setting with other values in its main group, and all others in proportion."""
    main = setting.groups[setting.main_group]
    by_lr = lr / main.lr if main.lr else 1.0
    by_wd = weight_decay / main.weight_decay if main.weight_decay else 1.0

    def group(g: Group) -> Group:
        exact = g == main  # no rounding where it can be had
        return g.vary(
            lr=lr if exact else g.lr * by_lr,
            weight_decay=weight_decay if exact else g.weight_decay * by_wd,
            lr_max=None if g.dynamics.lr_max is None else g.dynamics.lr_max * by_lr,
        )

    return replace(setting, groups=tuple(group(g) for g in setting.groups))


def texts(setting: Setting) -> dict[str, str]:
    """The setting as code, TOML and a command; only code where its schedule has no name."""
    if len(setting.groups) != 1 or setting.source is None:
        return {"code": _groups_code(setting)}
    return {"code": _code(setting), "toml": write_setting(setting), "command": _command(setting)}


def _code(setting: Setting) -> str:
    g, s = setting.groups[0], dict(setting.source or {})
    lines = [
        f"optimizer={g.dynamics.optimizer!r}",
        f"lr={g.lr!r}",
        f"weight_decay={g.weight_decay!r}",
        f"betas={g.dynamics.betas!r}",
    ]
    lines += [f"{name}={value!r}" for name, value in g.unusual().items() if name != "betas"]
    lines += [f"steps={setting.steps}", f"schedule={s.pop('name')!r}"]
    lines += [f"{key}={value!r}" for key in ("warmup", "final") if (value := s.pop(key)) is not None]
    if s:
        lines.append(f"schedule_options={s!r}")
    for name in ("batch_size", "dataset_size", "tokens_per_sample", "parameters", "finetune", "frozen"):
        if (value := getattr(setting, name)) is not None:
            lines.append(f"{name}={value!r}")
    if setting.tensors != (Tensor(),):
        plain = Tensor()
        shown = [
            ", ".join(f"{f.name}={v!r}" for f in fields(Tensor) if (v := getattr(t, f.name)) != getattr(plain, f.name))
            for t in setting.tensors
        ]
        lines.append(f"tensors=({' '.join(f'eq.planner.Tensor({t}),' for t in shown)})")
    return "import equipoise as eq\n\nplan = eq.plan(\n" + "".join(f"    {line},\n" for line in lines) + ")\n"


def _groups_code(setting: Setting) -> str:
    values = ", ".join(f"({g.lr!r}, {g.weight_decay!r})" for g in setting.groups)
    return (
        f"for group, (lr, weight_decay) in zip(optimizer.param_groups, [{values}], strict=True):\n"
        "    group.update(lr=lr, weight_decay=weight_decay)\n"
    )


def _command(setting: Setting) -> str:
    g, s = setting.groups[0], dict(setting.source or {})
    words = ["equipoise", "plan", "--optimizer", g.dynamics.optimizer, "--lr", repr(g.lr), "--wd", repr(g.weight_decay)]
    for factor, value in zip(WITHOUT, g.dynamics.betas, strict=True):
        words += [] if g.dynamics.optimizer in WITHOUT[factor] else [f"--{factor}", repr(value)]
    words += ["--nesterov"] if g.dynamics.nesterov else []
    words += ["--decay", g.dynamics.decay] if g.dynamics.decay != "lr" else []
    words += (
        ["--lr-max", repr(g.dynamics.lr_max)] if g.dynamics.lr_max is not None and g.dynamics.decay in BY_LR_MAX else []
    )
    words += ["--steps", str(setting.steps), "--schedule", str(s.pop("name"))]
    for key in ("warmup", "final"):
        if (value := s.pop(key)) is not None:
            words += [f"--{key}", repr(value)]
    for key, value in s.items():
        text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
        words += ["--schedule-option", f"{key}={text}"]
    for name in ("batch_size", "dataset_size", "tokens_per_sample", "parameters"):
        if (value := getattr(setting, name)) is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if setting.finetune is not None:
        words.append("--finetune" if setting.finetune else "--no-finetune")
    for t in setting.tensors:
        words += ["--shape", "x".join(map(str, t.shape))]
    rms = {t.init_rms for t in setting.tensors}
    if len(rms) == 1 and (one := rms.pop()) is not None:
        words += ["--init-rms", repr(one)]
    return shlex.join(words)
