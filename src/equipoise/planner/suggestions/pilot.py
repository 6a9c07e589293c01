"""A pilot: short runs before the run, each at another lr, that tell which lr it can stand.

A hundredth of the steps at each of up to five lrs costs a twentieth of the run. Each lr falls linearly to 0, and lr·wd
is the suggestion's, so that the memory stays. The lrs go upwards from the suggested one, or downwards where the second
is worse, until the loss turns. The least of a parabola in ln(lr) is the best lr of a short run.

Short runs end lowest at a larger lr than the whole run wants, as they have far to go and little time. So the lr that
they speak for is best/`LONG`, and it moves the suggested one by a share `TRUST` in ln(lr) alone. Both were chosen on
the workloads of the half "choosing" (docs/suggest.md). Longer short runs may be asked for: with an r-th of the steps
each, `LONG` becomes LONG^(ln r / ln 100). SGD has no suggestion: its pilot decides. Fine-tuning keeps the
suggestion. No setting goes beyond an lr at which a short run diverged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from equipoise import _check, schedules
from equipoise.planner.setting import Setting

if TYPE_CHECKING:
    import torch

Train = Callable[[Setting, int], Sequence[float]]
"""(setting, steps) → the training loss of each of these steps."""

SHARE = 0.05
"""Of the run's steps, at most, for all short runs, where nothing else is asked for."""

RUNS = 5
"""Short runs, at most."""

LEAST_STEPS = 4
"""Of a short run: fewer say nothing."""

STRIDE, SGD_STRIDE = 4.0, 8.0
"""From one lr to the next. The lr of SGD is not known to an order of magnitude."""

SGD_START = 0.01
"""The first lr of SGD."""

TRUST = 0.3
"""Of what short runs say, in ln(lr); the rest is the suggestion's."""

LONG, SGD_LONG = 8.0, 2.0
"""The best lr of a hundredth of the run over that of the run; the nearer a short run is to the whole, the less."""

LATE = 0.25
"""Last part of a short run whose mean loss counts."""


@dataclass(frozen=True)
class Short:
    """A short run.

    Attributes:
        lr: at its first step, of the main group.
        loss: mean of its last steps; infinite where it diverged.
    """

    lr: float
    loss: float


@dataclass(frozen=True)
class Pilot:
    """What short runs found.

    Attributes:
        runs: in the order in which they were trained.
        steps: of each.
        suggested: the lr before.
        best: the lr at which such a short run ends lowest; the last one where the loss did not turn.
        edge: whether the loss turned, so that more lr was worse. A run of less than 500 steps has too few for it.
        trust: how far the lr is moved to what short runs say, in ln(lr).
        long: the best lr of a short run over that of the run.
    """

    runs: tuple[Short, ...]
    steps: int
    suggested: float
    best: float
    edge: bool
    trust: float
    long: float

    @property
    def cost(self) -> int:
        """Steps of all runs."""
        return len(self.runs) * self.steps

    @property
    def factor(self) -> float:
        """What the suggested lr is multiplied by; the result is at most the largest at which short runs are stable."""
        said = (self.best / self.long / self.suggested) ** self.trust
        if not self.edge and self.trust < 1:
            said = max(said, 1.0)  # the best lies higher: that is no reason to go down
        diverged = [r.lr for r in self.runs if not math.isfinite(r.loss)]
        stable = [r.lr for r in self.runs if r.lr < min(diverged, default=math.inf)]
        return min(said, max(stable) / self.suggested) if stable else said

    @property
    def said(self) -> str:
        """Why lr is what it is, in a sentence."""
        turn = f"is best at lr {self.best:.2g}" if self.edge else f"is still better at lr {self.best:.2g}"
        moved = f"the whole run's is {self.long:.2g} times smaller, by the workloads"
        if self.trust < 1:
            moved += (
                f"; this moves the suggested {self.suggested:g} by {self.trust:g} of the way, as short runs tell little"
            )
        return f"a run of {self.steps} steps {turn}; {moved}"

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        runs = [{"lr": r.lr, "loss": r.loss if math.isfinite(r.loss) else None} for r in self.runs]
        names = ("steps", "suggested", "best", "edge", "trust", "long", "factor")
        return {"runs": runs} | {name: getattr(self, name) for name in names}


def fly(train: Train, setting: Setting, share: float = SHARE) -> Pilot:
    """Train short runs from a setting's lr on, until the loss turns or the steps are spent.

    Args:
        train: (setting, steps) → losses, as `eq.suggest` takes it.
        setting: of the whole run.
        share: of its steps, at most, for all short runs.

    Raises:
        ValueError: the run is too short for a pilot, `train` returned no losses, or every short run diverged.
    """
    if not callable(train):
        raise ValueError(f"pilot = {train!r}: must be a function train(setting, steps) that returns losses")
    _check.number("pilot_share", share, low=0, high=1, open_low=True)
    steps = max(LEAST_STEPS, int(share * setting.steps / RUNS + 1e-9))
    count = min(RUNS, int(share * setting.steps + 1e-9) // steps)
    if count < 2:
        least = math.ceil(2 * LEAST_STEPS / share)
        raise ValueError(f"steps = {setting.steps}: must be at least {least} for a pilot of {share:g} of the run")
    sgd = setting.groups[setting.main_group].dynamics.optimizer == "sgdm"
    stride, first = SGD_STRIDE if sgd else STRIDE, setting.groups[setting.main_group].lr
    runs = list[Short]()

    def at(power: int) -> Short:
        factor = stride**power
        losses = _checked(train(shortened(setting, steps, factor), steps), steps)
        runs.append(Short(first * factor, _late(losses, steps)))
        return runs[-1]

    before, now = at(0), at(1)
    way = 1 if now.loss < before.loss else -1
    if way < 0:
        before, now = now, before
    power, turned = max(0, way), False
    while len(runs) < count and not turned:
        power += way
        before, now = now, at(power)
        turned = math.isfinite(before.loss) and not now.loss < before.loss
    if not any(math.isfinite(r.loss) for r in runs):
        least = min(r.lr for r in runs)
        raise ValueError(f"pilot: must have a short run that stays finite; all diverged, down to lr {least:.2g}")
    best, edge = _least(sorted(runs, key=lambda r: r.lr))
    trust = 1.0 if sgd else 0.0 if setting.finetune else TRUST
    power = math.log(RUNS / share) / math.log(RUNS / SHARE)
    return Pilot(tuple(runs), steps, first, best, edge, trust, (SGD_LONG if sgd else LONG) ** power)


def scaled(setting: Setting, factor: float) -> Setting:
    """A setting with the lr of every group times a factor, to two digits, and the same lr·wd.

    Args:
        setting: of the whole run.
        factor: on lr.
    """
    lrs = [float(f"{g.lr * factor:.2g}") for g in setting.groups]
    groups = tuple(
        g.vary(lr=lr, weight_decay=float(f"{g.weight_decay * g.lr / lr:.2g}"))
        for g, lr in zip(setting.groups, lrs, strict=True)
    )
    return replace(setting, groups=groups)


def shortened(setting: Setting, steps: int, factor: float) -> Setting:
    """A setting for fewer steps with its lr times a factor, falling linearly to 0; lr·wd stays.

    Args:
        setting: of the whole run.
        steps: of the short one.
        factor: on every group's lr.
    """
    groups = tuple(g.vary(lr=g.lr * factor, weight_decay=g.weight_decay / factor) for g in setting.groups)
    curve = schedules.named("linear", steps=steps, final=0.0)
    return replace(
        setting, groups=groups, steps=steps, schedule=curve, warmup=0, own_schedules=(),
        source={"name": "linear", "warmup": 0, "final": 0.0},
    )  # fmt: skip


def _checked(losses: Any, steps: int) -> list[float]:
    try:
        found = [float(x) for x in losses]
    except (TypeError, ValueError):
        raise ValueError(f"pilot returned {losses!r}: must return the loss of each step") from None
    if len(found) > steps or (len(found) < steps and all(map(math.isfinite, found))):
        raise ValueError(
            f"pilot returned {len(found)} losses: must be {steps}, one a step (fewer where one is not finite)"
        )
    return found


def _late(losses: Sequence[float], steps: int) -> float:
    if len(losses) < steps or not all(map(math.isfinite, losses)):
        return math.inf
    count = max(1, round(LATE * steps))
    return sum(losses[-count:]) / count


def _least(runs: Sequence[Short]) -> tuple[float, bool]:
    """The lr of the least loss, by a parabola where its neighbours are finite; and whether it turned."""
    i = min(range(len(runs)), key=lambda j: runs[j].loss)
    if i == len(runs) - 1:
        return runs[i].lr, False
    if i == 0:
        return runs[i].lr, True
    left, middle, right = (r.loss for r in runs[i - 1 : i + 2])
    if not math.isfinite(right):
        return runs[i].lr, True
    bend = left - 2 * middle + right
    shift = 0.5 * (left - right) / bend if bend > 0 else 0.0
    return runs[i].lr * (runs[i].lr / runs[i - 1].lr) ** shift, True


def make_optimizer(model: torch.nn.Module, setting: Setting) -> tuple[torch.optim.Optimizer, Any]:
    """The optimizer of a suggested setting for a model, and its scheduler, to be stepped after each step.

    Args:
        model: made as the one that the setting was suggested for.
        setting: of a `Suggestion`, or what a pilot gets.

    >>> import torch
    >>> from equipoise.planner import suggest
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
    >>> optimizer, scheduler = make_optimizer(model, suggest(model, steps=1000, optimizer="lion").setting)
    >>> type(optimizer).__name__, scheduler.last_epoch
    ('Lion', 0)
    """
    from equipoise.optim import param_groups
    from equipoise.planner.suggestions.suggestion import bare_optimizer
    from equipoise.schedules import Scheduler

    optimizer = bare_optimizer(setting.groups[setting.main_group].dynamics.optimizer, param_groups(model))
    if len(optimizer.param_groups) != len(setting.groups):
        raise ValueError(
            f"model: must have the {len(setting.groups)} parameter groups of the setting, has "
            f"{len(optimizer.param_groups)}; give a model as the one that the setting was suggested for"
        )
    for group, has in zip(optimizer.param_groups, setting.groups, strict=True):
        group["lr"], group["weight_decay"] = has.lr, has.weight_decay
        if "betas" in group:
            group["betas"] = tuple(has.dynamics.betas)
    return optimizer, Scheduler(optimizer, lr=setting.schedule, relative=True)
