"""The rotational twin of a plain optimizer: `rotational(model, like=optimizer)`.

Hidden layers turn; what sets scales, embeddings and output layers, takes the plain optimizer's step, as do gains and
biases. Hidden layers turn as far as by the plain optimizer's own step, or as theory forecasts for it, transient and
schedule included, or at its equilibrium.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from equipoise import _check
from equipoise._check import Array
from equipoise.optim.controlled import (
    RotationalAdamL2,
    RotationalAdamW,
    RotationalLion,
    RotationalSGDM,
    RotationalSignSGDM,
)
from equipoise.optim.dynamics_of import GroupState, group_state
from equipoise.optim.engine.base import RuleOptimizer
from equipoise.optim.matrices.muon import Muon, RotationalMuon
from equipoise.optim.model.belonging import count_shared
from equipoise.optim.model.gains import add_gains
from equipoise.optim.model.roles import ROLES, ParameterRole, known_parameters
from equipoise.optim.rows import row_count
from equipoise.optim.sphere import BY_STEP
from equipoise.schedules import Schedule
from equipoise.theory import Dynamics
from equipoise.theory.directions import DECAYS, Shape

Maker = Callable[..., RuleOptimizer]

TWINS: dict[str, Maker] = {
    "adam": RotationalAdamW,
    "adamw": RotationalAdamW,
    "adam_l2": RotationalAdamL2,
    "lion": RotationalLion,
    "sgdm": RotationalSGDM,
    "signsgdm": RotationalSignSGDM,
}
"""The rotational class of each rule of theory; Muon's is made from our own Muon."""

STEP, START = "followed", "start_rms"
"""What groups that follow a forecast keep: how many of its steps are done, and the RMS of the weights before them."""

ANGLES = (BY_STEP, "forecast", "equilibrium")
"""What may set the rotation of a step."""

LARGEST = 1.5
"""Radians: the largest angle of a step."""

APART = 0.05
"""Tensors whose initial RMS is within this share of each other's share a forecast."""


def rotational(
    model: nn.Module,
    like: Optimizer,
    *,
    angle: Literal["step", "forecast", "equilibrium"] = "step",
    steps: int | None = None,
    schedule: Schedule | None = None,
    grad_norm: float | None = None,
    rotate: Sequence[str] = ("matrix", "conv"),
    gains: bool = False,
    center: bool = False,
    foreach: bool | None = None,
    compile: bool | None = None,
) -> RuleOptimizer:
    """The rotational twin of a plain optimizer, with its groups and hyperparameters, for the same model.

    Hidden layers (`rotate`) turn every neuron of a layer by the same angle. All other parameters take the plain
    optimizer's own step: the norms of embeddings and output layers set the scale of what the network says, and it has
    to be learned. Tensors that are zero at the start take it, too, as they have no direction.

    | `angle` | a step turns the neurons of a tensor by | norms |
    |---|---|---|
    | "step" | the root mean square of what the plain step would turn them by | the plain step's |
    | "forecast" | what theory forecasts for the plain optimizer from these weights on, under the schedule | kept |
    | "equilibrium" | the equilibrium of lr and weight decay at that time | kept |

    With "step" and "forecast", lr and weight decay that were tuned for the plain optimizer serve as they are, also a
    weight decay that is 0, or too weak for an equilibrium.

    Args:
        model: the model, before training.
        like: a plain optimizer of its parameters: torch's AdamW, Adam or SGD, a Lion, a SignSGDM, or `Muon`. It is
            read, and not stepped.
        angle: what sets the rotation of a step.
        steps: length of the run, for a forecast.
        schedule: of lr, for a forecast: a factor on each group's (a peak of 1). Step it as ever, too: the parameters
            that do not turn need it. Default: constant.
        grad_norm: for a forecast of SGDM and Adam with L2: the root mean square gradient norm of a row, times the row's
            norm. Their transient depends on it.
        rotate: roles of the parameters that turn.
        gains: give the layers that turn a learnable gain for each neuron, without decay, at the group's lr; `fold`
            takes it away again.
        center: keep the mean of each row that turns at 0.
        foreach: as for any optimizer.
        compile: as for any optimizer.

    Returns:
        `RotationalAdamW`, `RotationalSGDM` …, in the groups of `like`, split by what turns.

    Reference: [kosson2024] section 3 (hidden layers), "Scheduling Effects"; [theory] 2 and 7.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 16), nn.Linear(16, 2))
    >>> plain = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    >>> twin = rotational(model, plain)
    >>> type(twin).__name__, [(g["role"], g["rotate"]) for g in twin.param_groups]
    ('RotationalAdamW', [('matrix', True), ('bias', False), ('gain', False), ('head', False)])
    """
    for role in rotate:
        _check.choice("rotate", role, ROLES)
    follow = None
    if _check.choice("angle", angle, ANGLES) == "forecast":
        follow = _Follow(_check.whole("steps", steps, low=1), schedule, grad_norm)
    elif given := [n for n, v in (("steps", steps), ("schedule", schedule), ("grad_norm", grad_norm)) if v is not None]:
        raise ValueError(f"{given[0]}: must be left out, or come with angle = 'forecast'; step a schedule as ever")
    if not isinstance(model, nn.Module):
        raise ValueError(f"model = {_check.shown(model)}: must be a torch.nn.Module")
    if not isinstance(like, Optimizer):
        raise ValueError(f"like = {_check.shown(like)}: must be a torch optimizer of the model's parameters")
    count, shared = count_shared(model, like.param_groups)
    if shared < count:
        raise ValueError(
            f"like: must be an optimizer of the model's parameters, and {count - shared} of its {count} are others"
        )
    if any(p.is_meta for p in model.parameters()):
        raise ValueError("model: has parameters on meta, whose directions are not known; load the weights first")
    kept = {id(p) for p in model.parameters()}
    if gains:
        add_gains(model, modules=_modules(model, rotate))
    known = {id(k.param): k for k in known_parameters(model)}
    groups: list[dict[str, Any]] = []
    make: Maker | None = None
    for group in like.param_groups:
        state = group_state(like, group)
        make = _twin(like, state, make)
        sorts: dict[tuple[Any, ...], list[ParameterRole]] = {}
        for k in (known[id(p)] for p in group["params"]):
            turns = k.role in rotate and _has_direction(k.param)
            start = _start_of(k.param, state.dynamics) if turns and follow else ()
            sorts.setdefault((k.role, turns, start), []).append(k)
        for (role, turns, start), some in sorts.items():
            made = _options(like, group, state, turns and angle != BY_STEP) | {
                "role": role,
                "rotate": turns,
                "center": center and turns,
            }
            if not all(k.rows for k in some):  # the first dimension does not count outputs
                made["granularity"] = "tensor"
            if turns and angle == "equilibrium" and state.weight_decay == 0:
                raise ValueError(
                    "weight_decay = 0 in like: there is no equilibrium to turn at; leave out angle, and the twin turns "
                    "as the plain optimizer would"
                )
            if turns and angle == BY_STEP:
                made["angle"] = BY_STEP
            if start and follow:
                made |= {STEP: 0, START: math.exp(start[0] * APART)}
                follow.add(len(groups), state, some[0].param.shape)
                made["angle"] = follow.angle(len(groups), made)
            groups.append(made | {"params": [k.param for k in some], "param_names": [k.name for k in some]})
    new = [k for k in known.values() if id(k.param) not in kept]
    if new:
        own = {"params": [k.param for k in new], "param_names": [k.name for k in new], "role": "gain"}
        first = like.param_groups[0]
        plain = _options(like, first, group_state(like, first), False) | {"weight_decay": 0.0, "l2": 0.0}
        groups.append(plain | own | {"rotate": False})
    assert make is not None
    optimizer = make(groups, foreach=foreach, compile=compile)
    if follow is not None:
        optimizer.register_step_pre_hook(follow)
    return optimizer


class _Follow:
    """Before each step, gives every group that follows a forecast the angle of that step.

    Args:
        steps: length of the run.
        schedule: factor on lr.
        grad_norm: of a row, where forecasts depend on it.
    """

    def __init__(self, steps: int, schedule: Schedule | None, grad_norm: float | None):
        if schedule is not None and not isinstance(schedule, Schedule):
            raise ValueError(f"schedule = {type(schedule).__name__}: must be a Schedule, with a peak of 1")
        if grad_norm is not None:
            _check.number("grad_norm", grad_norm, low=0, open_low=True)
        self._factor = np.ones(steps) if schedule is None else schedule.values(steps)
        self._grad_norm = grad_norm
        self._rows: dict[int, tuple[GroupState, Shape | int]] = {}
        self._curve = functools.lru_cache(maxsize=256)(self._forecast)

    def add(self, number: int, state: GroupState, shape: Sequence[int]) -> None:
        """Follow the plain optimizer of that state in a group with tensors of that shape."""
        whole = tuple(shape)
        self._rows[number] = state, whole if state.dynamics.layout(whole) else math.prod(whole[1:])

    def _forecast(self, dynamics: Dynamics, shape: Shape | int, lr: float, weight_decay: float, rms: float) -> Array:
        """The rotations of all steps, of a row or a matrix."""
        if dynamics.by_gradient and self._grad_norm is None:
            raise ValueError(
                f"grad_norm = None: must be given to follow {dynamics.optimizer}, whose transient depends on it; "
                "or leave out steps, for the rotation of the equilibrium"
            )
        size = shape if isinstance(shape, int) else math.prod(shape)
        found = dynamics.forecast(
            shape, lr=lr * self._factor, weight_decay=weight_decay, steps=len(self._factor),
            init_norm=rms * math.sqrt(size), grad_norm=self._grad_norm or 1.0,
        )  # fmt: skip
        return np.minimum(found.rotation, LARGEST)

    def angle(self, number: int, group: dict[str, Any]) -> float:
        """The angle of a group's next step; from the start that a loaded state says, if one was loaded."""
        state, shape = self._rows[number]
        curve = self._curve(state.dynamics, shape, state.lr, state.weight_decay, group[START])
        return float(curve[min(group[STEP], len(curve) - 1)])

    def __call__(self, optimizer: Optimizer, *_: Any) -> None:
        for number in self._rows:
            group = optimizer.param_groups[number]
            group["angle"] = self.angle(number, group)
            group[STEP] += 1


def _twin(like: Optimizer, state: GroupState, before: Maker | None) -> Maker:
    """The rotational class of a plain optimizer, the same for all of its groups."""
    if isinstance(like, Muon):
        return RotationalMuon
    found = TWINS.get(state.dynamics.optimizer)
    if found is None or not state.dynamics.known or state.dynamics.move != "decay":
        raise ValueError(
            f"like = {type(like).__name__}: must be AdamW, Adam, SGD, Lion, SignSGDM or Muon; for another one, "
            "Rotational(optimizer, angle='step')"
        )
    if found is RotationalAdamW and before is RotationalAdamL2:
        return before
    return found


def _options(like: Optimizer, group: dict[str, Any], state: GroupState, by_angle: bool) -> dict[str, Any]:
    """The options of a group of the twin, which turns by an angle or not, from one of the plain optimizer."""
    known = state.dynamics
    kept = {name: value for name, value in group.items() if name in ("initial_lr", "name")}
    if isinstance(like, Muon):
        return {name: value for name, value in group.items() if name not in ("params", "param_names")}
    options: dict[str, Any] = {"lr": state.lr, "weight_decay": state.weight_decay, "maximize": known.maximize}
    if known.coupled:  # where the angle does not come from decay, it stays in the gradient
        options |= {"l2": 0.0} if by_angle else {"l2": state.weight_decay, "weight_decay": 0.0}
    elif known.decay in DECAYS and known.decay != "schedule":
        options |= {"decay": known.decay, "lr_max": known.lr_max}
    if known.optimizer in ("sgdm", "signsgdm"):
        options["momentum"] = known.betas[0]
    else:
        options["betas"] = known.betas
    if known.optimizer == "sgdm":
        options["nesterov"] = known.nesterov
    elif known.optimizer.startswith("adam"):
        options["eps"] = known.eps
    return kept | options


def _has_direction(p: Tensor) -> bool:
    """Whether a parameter can turn: rows of two weights or more, some of them not zero."""
    return p.ndim > 1 and p.numel() > row_count(p, "neuron") and bool(p.detach().any())


def _start_of(p: Tensor, dynamics: Dynamics) -> tuple[Any, ...]:
    """What tensors that share a forecast have in common: their RMS, in steps of `APART`, and what else theory asks."""
    rms = float(p.detach().square().mean().sqrt())
    return round(math.log(rms) / APART), None if dynamics.by_size else tuple(p.shape)


def _modules(model: nn.Module, rotate: Sequence[str]) -> list[str]:
    """The modules whose weights turn."""
    return [k.name.rpartition(".")[0] for k in known_parameters(model) if k.role in rotate and k.param.ndim > 1]
