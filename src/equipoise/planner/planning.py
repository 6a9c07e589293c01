"""`eq.plan`: what a setting will do over the run, and what looks wrong, before it runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from equipoise import _viewer, schedules
from equipoise.finding import Finding
from equipoise.planner.setting import Setting, Tensor
from equipoise.planner.travel import Travel, travel
from equipoise.schedules import Schedule
from equipoise.theory import Forecast, Memory, Stationary

if TYPE_CHECKING:
    import torch

    from equipoise.planner.equivalents import Equivalent
    from equipoise.planner.pretrained import Verdict

SCHEMA = "equipoise.plan/1"
"""Version of the JSON that `Plan.to_dict` gives; the number rises when a field changes its meaning or goes."""

NOTHING = 1e-9
"""Root mean square that stands for 0, as a forecast must begin somewhere."""

REACHED = 0.05
"""The share of the initial gap in ‖w‖² at which equilibrium counts as reached."""


@dataclass(frozen=True)
class TensorPlan:
    """What one kind of tensor will do.

    Attributes:
        tensor: the tensor.
        forecast: norm, rotation and update size at every step; None if decay overshoots.
        equilibrium: where it would settle at the largest lr; None if decay overshoots.
        steps_to_reach: steps until 5 % of the initial gap in ‖w‖² is left, beyond the run at its mean rate; None
            without decay.
    """

    tensor: Tensor
    forecast: Forecast | None
    equilibrium: Stationary | None
    steps_to_reach: float | None


@dataclass(frozen=True)
class Plan:
    """A setting and what it will do over the run.

    Attributes:
        setting: the setting that was planned.
        tensors: what each kind of tensor will do.
        memory: what each step contributes to the final weights of the main group; None if decay overshoots.
    """

    setting: Setting
    tensors: tuple[TensorPlan, ...] = field(repr=False)
    memory: Memory | None = field(repr=False)

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Findings about the setting, most severe first."""
        from equipoise.planner.checks.all_checks import all_findings

        return all_findings(self)

    @cached_property
    def equivalents(self) -> tuple[Equivalent, ...]:
        """What other optimizers would be set to, to have the same memory and norms."""
        from equipoise.planner.equivalents import equivalents

        return equivalents(self)

    @property
    def main(self) -> TensorPlan:
        """The rotating tensor with the most weights, or else the largest; one that does not start at 0, if possible."""
        return max(
            self.tensors, key=lambda t: (t.tensor.rotates, not t.tensor.from_zero, t.tensor.size * t.tensor.count)
        )

    @cached_property
    def travels(self) -> tuple[Travel | None, ...]:
        """How far each tensor goes from where it began, in the order of `tensors`."""
        return tuple(travel(self.setting, t) for t in self.tensors)

    @property
    def main_travel(self) -> Travel | None:
        """How far the main tensor moves from its start."""
        main = self.main
        return next(far for t, far in zip(self.tensors, self.travels, strict=True) if t is main)

    @property
    def timescale_steps(self) -> float:
        """Steps over which memory falls to 1/e; infinite without decay."""
        return math.inf if self.memory is None else self.memory.period

    def to_dict(self) -> dict[str, Any]:
        """The plan as plain data: the schema of `equipoise plan --json`, described in docs/plan.md."""
        s, m = self.setting, self.memory
        per_epoch = s.steps_per_epoch
        tokens = None if s.tokens_per_sample is None or s.batch_size is None else s.batch_size * s.tokens_per_sample
        time = self.timescale_steps
        return {
            "schema": SCHEMA,
            "steps": s.steps,
            "timescale_steps": _finite(time),
            "timescale_epochs": None if per_epoch is None else _finite(time / per_epoch),
            "timescale_tokens": None if tokens is None else _finite(time * tokens),
            "init_share": None if m is None else m.init_share,
            "effective_steps": None if m is None else m.effective_steps,
            "contribution_by_tenth": None if m is None else m.parts(10).tolist(),
            "finetune": s.finetune,
            "distance": None if self.main_travel is None else self.main_travel.to_dict(),
            "equilibrium": _equilibrium(self.main),
            "tensors": [_tensor(t, far) for t, far in zip(self.tensors, self.travels, strict=True)],
            "lr": {
                "first": _at(s, 0),
                "peak": float(s.lr(s.main_group).max()),
                "last": _at(s, -1),
                "schedule": None if s.source is None else s.source["name"],
                "final_share": s.final_share,
            },
            "equivalents": [e.to_dict() for e in self.equivalents],
            "findings": [f.to_dict() for f in self.findings],
            "assumptions": list(s.assumptions),
        }

    def show(self) -> None:
        """Show the plan: as a page with sliders in a notebook, as `equipoise plan` prints it elsewhere."""
        _viewer.show(self)

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from equipoise.planner.show import render

        yield render(self, width=options.max_width)

    def _repr_html_(self) -> str:
        """The plan as HTML, for notebooks."""
        import io

        from rich.console import Console

        console = Console(width=100, record=True, file=io.StringIO())
        console.print(self)
        page = '<pre style="font-family: monospace; line-height: 1.25">{code}</pre>'
        return console.export_html(inline_styles=True, code_format=page)

    def __str__(self) -> str:
        from rich.console import Console

        console = Console(width=100, no_color=True)
        with console.capture() as captured:
            console.print(self)
        return captured.get()


def plan(
    model: torch.nn.Module | None = None,
    optimizer: torch.optim.Optimizer | str | None = None,
    *,
    steps: int,
    schedule: Schedule | str | torch.optim.lr_scheduler.LRScheduler | Callable[[int], float] | None = None,
    warmup: int = 0,
    final: float | None = None,
    finetune: bool | None = None,
    **setting: Any,
) -> Plan:
    """Plan a run: what these settings will do over it, and what looks wrong.

    Args:
        model: the model, whose tensors are named and classified; may be left out.
        optimizer: a torch optimizer, whose groups and shapes are read; or the name of one, with its hyperparameters
            as keywords (`lr`, `weight_decay`, `betas`, …: the fields of `theory.Dynamics`).
        steps: number of optimizer steps.
        schedule: a `Schedule`, the name of one, a torch scheduler of that optimizer, or a function of the step
            (counted from 1). With peak 1 it multiplies every group's lr; with another peak it is the lr itself.
        warmup: steps of linear warmup, for a named schedule.
        final: last value of a named schedule as a share of the peak. Default: 0.1.
        finetune: whether the weights are pretrained. The plan then reports the distance from the start, not
            equilibrium. Default: decided by the live weights, and listed in the assumptions.
        **setting: `batch_size`, `dataset_size`, `tokens_per_sample`, `parameters`, `decay_schedule`, `tensors`, and
            hyperparameters where `optimizer` is a name.

    Returns:
        A `Plan`: `.memory`, `.tensors`, `.findings`, `.to_dict()`; print it to read it.

    >>> p = plan(optimizer="adamw", lr=1e-3, weight_decay=0.1, steps=60_000, warmup=1000)
    >>> round(p.timescale_steps), p.findings
    (10000, ())
    """
    if optimizer is not None and not isinstance(optimizer, str):
        from equipoise.planner.live import judge_optimizers, read_optimizer

        groups, tensors, assumptions = read_optimizer(model, optimizer)
        verdict = judge_optimizers(model, [optimizer], finetune)
        setting = {"groups": groups, "tensors": tensors} | _start(verdict, assumptions) | setting
        if model is not None:
            setting.setdefault("parameters", sum(p.numel() for p in model.parameters()) or None)
    elif optimizer is not None:
        setting["optimizer"] = optimizer
        if model is not None:
            from equipoise.planner.live import read_model
            from equipoise.planner.pretrained import judge

            setting.setdefault("tensors", read_model(model))
            setting = _start(judge(model, model.parameters(), finetune=finetune), ()) | setting
    elif model is not None:
        raise ValueError("optimizer = None: must be a torch optimizer when a model is given")
    curve = schedule if schedule is None or isinstance(schedule, str | Schedule) else _foreign(schedule, steps)
    setting = {"finetune": finetune} | setting
    return plan_setting(Setting.make(steps=steps, schedule=curve, warmup=warmup, final=final, **setting))


def _start(verdict: Verdict, assumptions: tuple[str, ...]) -> dict[str, Any]:
    """What a setting says of the weights that it begins with."""
    said = (f"treated as {verdict.said}",) if verdict.why else ()
    return {"finetune": verdict.finetune, "frozen": verdict.frozen or None, "assumptions": (*said, *assumptions)}


def _foreign(schedule: Any, steps: int) -> Schedule:
    if hasattr(schedule, "get_last_lr"):
        return schedules.from_torch(schedule, steps)
    if callable(schedule):
        return schedules.from_function(schedule, steps)
    if np.ndim(schedule) == 1:
        return schedules.from_array(schedule)
    allowed = f"a Schedule, one of {', '.join(schedules.NAMES)}, a torch scheduler or a function of the step"
    raise ValueError(f"schedule = {schedule!r}: must be {allowed}")


def plan_setting(setting: Setting) -> Plan:
    """Plan a `Setting`."""
    main = setting.main_group
    sound = [bool((setting.decay_per_step(i) < 1).all()) for i in range(len(setting.groups))]
    remembered = None
    if sound[main] and setting.lr(main).any() and setting.groups[main].dynamics.optimizer != "adam_l2":
        remembered = setting.dynamics(main).memory(lr=setting.lr(main), weight_decay=setting.weight_decay(main))
    done: dict[tuple[Any, ...], tuple[Forecast, Stationary, float | None]] = {}
    tensors = []
    for t in setting.tensors:
        if not sound[t.group] or not setting.lr(t.group).any():
            tensors.append(TensorPlan(t, None, None, None))
            continue
        known = setting.groups[t.group].dynamics
        alike = (t.group, t.kind, f"{t.rms:.1e}", None if known.by_size else (t.shape, t.grad_norm))
        if alike not in done:
            done[alike] = _forecast(setting, t)
        tensors.append(TensorPlan(t, *_resized(done[alike], t)))
    if any(g.dynamics.optimizer == "muon" and g.dynamics.scale == 1.0 for g in setting.groups):
        note = "Muon's update is UVᵀ itself; torch.optim.Muon multiplies it by a factor of the shape: scale='original'"
        setting = replace(setting, assumptions=(*setting.assumptions, note))
    if setting.groups[main].dynamics.optimizer == "adam_l2":
        note = "what Adam forgets by L2 depends on the gradients: no memory is shown"
        setting = replace(setting, assumptions=(*setting.assumptions, note))
    by_gradient = {"sgdm": "SGD", "adam_l2": "Adam with L2"}
    unknown = {by_gradient[name] for g in setting.groups if (name := g.dynamics.optimizer) in by_gradient}
    if unknown and all(t.grad_norm == 1.0 for t in setting.tensors):
        note = f"norms under {' and '.join(sorted(unknown))} depend on the gradients: taken as 1 at unit weight norm"
        setting = replace(setting, assumptions=(*setting.assumptions, note))
    return Plan(setting, tuple(tensors), remembered)


def _forecast(setting: Setting, t: Tensor) -> tuple[Forecast, Stationary, float | None]:
    lr, weight_decay = setting.lr(t.group), setting.weight_decay(t.group)
    known = setting.dynamics(t.group)
    peak = int(np.argmax(lr))
    whole = known.forecast(
        t.shape, lr=lr, weight_decay=weight_decay, init_norm=math.sqrt(t.size) * (t.rms or NOTHING),
        grad_norm=t.grad_norm, scale_invariant=t.rotates and not t.from_zero,
    )  # fmt: skip
    if known.turns(len(t.shape)):  # it is where it will be from the first step on
        return whole, Stationary(whole.init_norm, float(whole.rotation[peak]), float(whole.update[peak])), 0.0
    end = known.stationary(t.shape, lr=float(lr[peak]), weight_decay=float(weight_decay[peak]), grad_norm=t.grad_norm)
    reach = known.steps_to_equilibrium(
        t.shape, lr=lr, weight_decay=weight_decay, fraction=REACHED, grad_norm=t.grad_norm
    )
    return whole, end, reach if math.isfinite(reach) else None


def _resized(done: tuple[Forecast, Stationary, float | None], t: Tensor) -> tuple[Forecast, Stationary, float | None]:
    whole, end, reach = done
    factor = math.sqrt(t.size) * (t.rms or NOTHING) / whole.init_norm
    if abs(factor - 1) < 1e-12:
        return done
    moved = Forecast(
        norm=whole.norm * factor,
        rotation=whole.rotation,
        update=whole.update * factor,
        lr=whole.lr,
        weight_decay=whole.weight_decay,
        kept=whole.kept,
        init_norm=whole.init_norm * factor,
    )
    return moved, Stationary(end.norm * factor, end.rotation, end.update * factor), reach


def _equilibrium(t: TensorPlan) -> dict[str, Any]:
    e = t.equilibrium
    norm = None if e is None else _finite(e.norm)
    return {
        "tensor": t.tensor.name,
        "norm": norm,
        "rms": None if norm is None else norm / math.sqrt(t.tensor.size),
        "rotation": None if e is None else e.rotation,
        "steps_to_reach": None if t.steps_to_reach is None else _finite(t.steps_to_reach),
    }


def _tensor(t: TensorPlan, far: Travel | None) -> dict[str, Any]:
    f, root = t.forecast, math.sqrt(t.tensor.size)
    now = None
    if f is not None:
        picks = np.unique(np.linspace(0, f.steps - 1, 11).round().astype(int))
        now = {
            "step": (picks + 1).tolist(),
            "rms": (f.norm[picks] / root).tolist(),
            "rotation": f.rotation[picks].tolist(),
            "update_rms": (f.update[picks] / root).tolist(),
            "effective_lr": f.effective_lr[picks].tolist(),
        }
    return {
        "name": t.tensor.name,
        "kind": t.tensor.kind,
        "shape": list(t.tensor.shape),
        "count": t.tensor.count,
        "init_rms": t.tensor.rms,
        "distance": None if far is None else far.to_dict(),
        "equilibrium": _equilibrium(t),
        "forecast": now,
    }


def _at(setting: Setting, step: int) -> float:
    return float(setting.lr(setting.main_group)[step])


def _finite(x: float) -> float | None:
    return float(x) if math.isfinite(x) else None
