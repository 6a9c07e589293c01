"""`Setting`: optimizer, hyperparameters, schedules, length, data and tensors of a run. Frozen, and without torch.

A `Setting` comes from arguments (`Setting.make`), a TOML file (`toml.py`) or a live optimizer (`live.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from equipoise import _check, schedules
from equipoise._check import Array
from equipoise.planner.curves import as_factor, by_name, values_of
from equipoise.schedules import Schedule
from equipoise.theory import Dynamics

LARGEST = 1e100
"""Of initial weights: sums of squares of larger or smaller ones have no room in a float."""

KINDS = ("matrix", "embedding", "gain", "bias")
"""What a tensor is for. Gains and biases have no direction to rotate; they are told by their update size."""

KIND_OF_ROLE = {"conv": "matrix", "head": "matrix"} | {kind: kind for kind in KINDS}
"""The kind of a tensor by its role in the network (`optim.model.roles.ROLES`)."""

WITHOUT = {"beta1": ("rmsprop", "ngd"), "beta2": ("sgdm", "signsgdm", "muon", "ngd")}
"""Optimizers that do not have an averaging factor."""

DTYPES = ("float64", "float32", "bfloat16", "float16")
"""Types that weights are stored in."""

MOST_STEPS = 100_000_000
"""A plan keeps a few numbers a step; more steps than this do not fit."""


ADAMW = Dynamics()
"""What a group does where nothing is said."""


@dataclass(frozen=True)
class Group:
    """One parameter group; `lr` and `weight_decay` are the values that schedules multiply.

    Attributes:
        dynamics: what the optimizer does to the group's tensors.
        lr: learning rate where the schedule is 1.
        weight_decay: weight decay.
        name: the group's name.
    """

    dynamics: Dynamics = ADAMW
    lr: float = 1e-3
    weight_decay: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        _check.number("lr", self.lr, low=0)
        _check.number("weight_decay", self.weight_decay, low=0)

    @staticmethod
    def make(**given: Any) -> Group:
        """A group from lr, weight_decay, name and the fields of a `Dynamics`.

        >>> Group.make(optimizer="lion", lr=1e-4).dynamics.betas
        (0.9, 0.99)
        """
        for key, value in given.items():
            if key not in GROUP_FIELDS:
                allowed = ", ".join(sorted(GROUP_FIELDS))
                raise ValueError(f"{key} = {value!r}: must be left out; a setting takes {allowed}")
        own = {k: v for k, v in given.items() if k in OWN_FIELDS}
        return Group(Dynamics.from_dict({k: v for k, v in given.items() if k not in OWN_FIELDS}), **own)

    def vary(self, **changes: Any) -> Group:
        """A copy with some fields changed, of the group or of its dynamics."""
        own = {k: v for k, v in changes.items() if k in OWN_FIELDS}
        return replace(
            self, dynamics=replace(self.dynamics, **{k: v for k, v in changes.items() if k not in OWN_FIELDS}), **own
        )

    def unusual(self) -> dict[str, Any]:
        """The fields of its dynamics that differ from the optimizer's defaults."""
        plain = Dynamics(self.dynamics.optimizer)
        names = [f.name for f in fields(Dynamics) if f.name not in ("optimizer", "known", "maximize")]
        return {n: v for n in names if (v := getattr(self.dynamics, n)) != getattr(plain, n)}

    def to_dict(self) -> dict[str, Any]:
        """All fields, as plain data for JSON."""
        return {"lr": self.lr, "weight_decay": self.weight_decay, "name": self.name} | self.dynamics.to_dict()


OWN_FIELDS = ("lr", "weight_decay", "name")
GROUP_FIELDS = {*OWN_FIELDS, *(f.name for f in fields(Dynamics))}
"""What `Group.make` and a TOML file take."""


@dataclass(frozen=True)
class Tensor:
    """A parameter tensor, or several of the same shape and kind.

    Attributes:
        name: its name in the model.
        shape: its shape.
        kind: one of `KINDS`.
        init_rms: root mean square of its initial values; None for torch's default of a linear layer.
        group: index of its parameter group.
        count: how many such tensors there are.
        dtype: name of the dtype of its values.
        grad_norm: its gradient's norm at unit weight norm, which SGDM's norm and Adam+L2 depend on.
    """

    name: str = "weight"
    shape: tuple[int, ...] = (1024, 1024)
    kind: str = "matrix"
    init_rms: float | None = None
    group: int = 0
    count: int = 1
    dtype: str = "float32"
    grad_norm: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"name = {self.name!r}: must be a text")
        _check.choice("kind", self.kind, KINDS)
        _check.choice("dtype", self.dtype, DTYPES)
        _check.whole("group", self.group)
        _check.number("grad_norm", self.grad_norm, low=0, open_low=True)
        object.__setattr__(self, "shape", tuple(_check.whole(f"shape of {self.name}", n, low=1) for n in self.shape))
        if not self.shape:
            object.__setattr__(self, "shape", (1,))
        if self.init_rms is not None:
            rms = _check.number(f"init_rms of {self.name}", self.init_rms, low=0, high=LARGEST)
            if 0 < rms < 1 / LARGEST:
                raise ValueError(f"init_rms of {self.name} = {rms}: must be 0 or ≥ {1 / LARGEST:g}")
        _check.whole("count", self.count, low=1)

    @property
    def size(self) -> int:
        """The number of weights."""
        return math.prod(self.shape)

    @property
    def rows(self) -> int:
        """The first dimension: the outputs of a layer."""
        return next(iter(self.shape))

    @property
    def inputs(self) -> int:
        """Weights of a row: what an output of the layer is summed over."""
        return self.size // self.rows if len(self.shape) > 1 else self.size

    @property
    def rms(self) -> float:
        """Root mean square of the initial values: given, or 1/√(3·inputs), torch's default of a linear layer."""
        if self.init_rms is not None:
            return self.init_rms
        if self.kind in ("gain", "bias"):
            return 1.0 if self.kind == "gain" else 0.0
        return 1 / math.sqrt(3 * self.inputs)

    @property
    def rotates(self) -> bool:
        """Whether its rotation is meaningful."""
        return self.kind not in ("gain", "bias")

    @property
    def from_zero(self) -> bool:
        """Whether it starts at 0, where rotation and relative update are undefined: LoRA's B, some outputs."""
        return self.rms == 0


@dataclass(frozen=True)
class Setting:
    """Everything that a plan is computed from.

    Attributes:
        groups: parameter groups.
        tensors: the tensors, each in one of the groups.
        steps: number of optimizer steps.
        schedule: factor on every group's lr, 1 where lr is as given.
        decay_schedule: factor on every group's weight decay.
        own_schedules: the two factors of each group that has its own, None of the others; empty if none has.
        batch_size: samples per step.
        dataset_size: samples in the data, for epochs.
        tokens_per_sample: tokens in a sample, for language models.
        parameters: parameters of the model, for rules that use tokens per parameter.
        finetune: whether the weights are pretrained, so that the plan reports their distance from the start and not
            equilibrium. None: unknown, which is planned as training from scratch.
        frozen: parameters of the model that do not train.
        warmup: steps of warmup, if known.
        source: name and options of a schedule made by name, else None.
        assumptions: what was assumed because it was not given.
    """

    groups: tuple[Group, ...]
    tensors: tuple[Tensor, ...]
    steps: int
    schedule: Schedule
    decay_schedule: Schedule
    batch_size: int | None = None
    dataset_size: int | None = None
    tokens_per_sample: int | None = None
    parameters: int | None = None
    finetune: bool | None = None
    frozen: int | None = None
    warmup: int = 0
    source: dict[str, Any] | None = None
    assumptions: tuple[str, ...] = ()
    own_schedules: tuple[tuple[Schedule, Schedule] | None, ...] = ()

    def __post_init__(self) -> None:
        if _check.whole("steps", self.steps, low=1) > MOST_STEPS:
            raise ValueError(f"steps = {self.steps}: must be ≤ {MOST_STEPS:,}")
        for name in ("batch_size", "dataset_size", "tokens_per_sample", "parameters"):
            if getattr(self, name) is not None:
                _check.whole(name, getattr(self, name), low=1)
        told(self.finetune)
        if self.frozen is not None:
            _check.whole("frozen", self.frozen)
        if not self.groups:
            raise ValueError("groups = (): must hold at least one parameter group")
        if not self.tensors:
            raise ValueError("tensors = (): must hold at least one tensor")
        if self.own_schedules and len(self.own_schedules) != len(self.groups):
            many = len(self.own_schedules)
            raise ValueError(f"own_schedules of {many} groups: must have an entry for each of the {len(self.groups)}")
        for tensor in self.tensors:
            if not 0 <= tensor.group < len(self.groups):
                raise ValueError(f"group = {tensor.group} of {tensor.name}: must be in 0..{len(self.groups) - 1}")

    @staticmethod
    def make(
        *,
        steps: int,
        tensors: tuple[Tensor, ...] = (),
        schedule: Schedule | str | None = None,
        schedule_options: dict[str, Any] | None = None,
        warmup: int = 0,
        final: float | None = None,
        relative: bool | None = None,
        decay_schedule: Schedule | None = None,
        batch_size: int | None = None,
        dataset_size: int | None = None,
        tokens_per_sample: int | None = None,
        parameters: int | None = None,
        finetune: bool | None = None,
        frozen: int | None = None,
        groups: tuple[Group, ...] = (),
        assumptions: tuple[str, ...] = (),
        **group: Any,
    ) -> Setting:
        """A setting from plain values: `**group` are what `Group.make` takes.

        Args:
            steps: number of optimizer steps.
            tensors: the tensors; default: one 1024 × 1024 matrix, listed in the assumptions.
            schedule: a `Schedule`, or the name of one (`schedules.NAMES`); default: constant.
            relative: whether a `Schedule` is a factor on lr, or lr itself, with groups keeping their ratios. Default:
                a factor if its largest value is near 1 and far above lr; doubts are listed in the assumptions.
            schedule_options: other options of a named schedule, such as `power` or `tail` (`schedules.named`).
            warmup: steps of linear warmup, for a named schedule.
            final: last value of a named schedule as a share of the peak; default 0.1, if it has an end.
            decay_schedule: factor on weight decay.
            batch_size: samples per step.
            dataset_size: samples in the data.
            tokens_per_sample: tokens in a sample.
            parameters: parameters of the model.
            finetune: whether the weights are pretrained.
            frozen: parameters of the model that do not train.
            groups: parameter groups, instead of `**group`.
            assumptions: what the caller assumed.
            **group: lr, weight_decay, name and the fields of `theory.Dynamics`.

        >>> s = Setting.make(lr=1e-3, weight_decay=0.1, steps=100, schedule="cosine", warmup=10)
        >>> s.lr()[[0, 9, 99]].round(6).tolist()
        [0.0001, 0.001, 0.0001]
        """
        length = _check.whole("steps", steps, low=1)
        if length > MOST_STEPS:
            raise ValueError(f"steps = {steps}: must be ≤ {MOST_STEPS:,}")
        if groups and group:
            key, value = next(iter(group.items()))
            raise ValueError(f"{key} = {value!r}: must be left out; it is read from the optimizer")
        groups = groups or (Group.make(**group),)
        if schedule is not None and not isinstance(schedule, str) and (warmup or final is not None):
            raise ValueError("warmup and final: must be left out with a Schedule; put them into it (schedules.warmup)")
        if not tensors:
            tensors = (Tensor(),)
            assumptions = (*assumptions, "no tensors given: one 1024 × 1024 matrix with torch's default initialisation")
        if schedule is None or isinstance(schedule, str):
            name, options = schedule or "constant", schedule_options or {}
            curve = by_name(name, length, warmup, final, options, groups[0])
            source = {"name": name, "warmup": warmup, "final": final} | options
        else:
            source = None
            curve, groups, notes = as_factor(schedule, groups, length, relative)
            assumptions = (*assumptions, *notes)
        return Setting(
            groups=groups,
            tensors=tensors,
            steps=length,
            schedule=curve,
            decay_schedule=decay_schedule if decay_schedule is not None else schedules.constant(1.0),
            batch_size=batch_size,
            dataset_size=dataset_size,
            tokens_per_sample=tokens_per_sample,
            parameters=parameters,
            finetune=finetune,
            frozen=frozen,
            warmup=warmup,
            source=source,
            assumptions=assumptions,
        )

    def lr(self, group: int = 0) -> Array:
        """The learning rate of a group at every step."""
        return self.groups[group].lr * values_of(self._schedules(group)[0], self.steps)

    def weight_decay(self, group: int = 0) -> Array:
        """The weight decay of a group at every step."""
        return self.groups[group].weight_decay * values_of(self._schedules(group)[1], self.steps)

    def _schedules(self, group: int) -> tuple[Schedule, Schedule]:
        own = self.own_schedules[group] if self.own_schedules else None
        return (self.schedule, self.decay_schedule) if own is None else own

    def dynamics(self, group: int = 0) -> Dynamics:
        """What the optimizer does to a group's tensors, with the largest lr of the run filled in."""
        own = self.groups[group].dynamics
        return replace(own, lr_max=own.lr_max or float(self.lr(group).max()) or None)

    def decay_per_step(self, group: int = 0) -> Array:
        """The share of the weights that each step's decay removes in the long run; may be 1 or more."""
        return self.groups[group].dynamics.decay_share(self.lr(group), self.weight_decay(group))

    def weight_decay_for(self, group: int, shrink: float) -> float:
        """The weight decay of a group with which lr·wd·T at peak lr is that much; infinite where nothing decays.

        Args:
            group: which.
            shrink: how many times over decay alone would shrink the weights by a factor e.
        """
        taken = self.dynamics(group).decay_share(float(self.lr(group).max()), 1e-6) * 1e6  # by 1, to first order
        return shrink / (taken * self.steps) if taken > 0 else math.inf

    @property
    def final_share(self) -> float:
        """The last lr as a share of the peak; 0 if lr is always 0."""
        factor = values_of(self.schedule, self.steps)
        top = float(factor.max()) if self.source is None else 1.0  # a named one has its peak at 1, between steps too
        return float(factor[-1]) / top if top else 0.0

    @property
    def schedule_words(self) -> str:
        """The schedule in words, with its final value.

        >>> Setting.make(lr=1e-3, steps=100, schedule="cosine").schedule_words
        'cosine to 10 % of the peak'
        """
        name = str(self.source["name"]).replace("_", " ") if self.source is not None else "own schedule"
        share = self.final_share
        return name if name == "constant" else f"{name} to {100 * share:.3g} % of the peak"

    @property
    def main_group(self) -> int:
        """The group with the most rotating weights, which a summary is about."""
        weights = [0] * len(self.groups)
        for t in self.tensors:
            weights[t.group] += t.size * t.count * (1 if t.rotates else 0)
        return int(np.argmax(weights))

    @property
    def steps_per_epoch(self) -> float | None:
        """Steps per epoch, if batch and data size are known."""
        if self.batch_size is None or self.dataset_size is None:
            return None
        return self.dataset_size / self.batch_size


def told(finetune: Any) -> bool | None:
    """Check what a user says about fine-tuning.

    Raises:
        ValueError: it is not a bool or None.
    """
    if not isinstance(finetune, bool | None):
        raise ValueError(f"finetune = {finetune!r}: must be true or false, or left out to decide by the weights")
    return finetune
