"""Schedules of torch and Hugging Face as curves. torch is imported only when one of these is called."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from equipoise import _check
from equipoise._extras import importing
from equipoise.schedules.base import Schedule
from equipoise.schedules.table import from_array

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


def from_torch(
    scheduler: LRScheduler | Callable[[Any], Any],
    steps: int,
    *,
    lr: float | Sequence[float] = 1.0,
    group: int = 0,
    key: str = "lr",
) -> Schedule:
    """Read any torch learning-rate scheduler off as a curve.

    The value at step t is what the t-th `optimizer.step()` would use: torch's epoch t − 1. A scheduler that is given
    as an instance is copied, with a stand-in for its optimizer, and neither moves; it is read from where it stands.

    Args:
        scheduler: a factory `lambda optimizer: StepLR(optimizer, 30)`, or an instance.
        steps: how many steps to read.
        lr: base learning rate for a factory; with one for each of several groups, a list.
        group: which parameter group's curve is wanted.
        key: which hyperparameter: "lr", or "momentum", which OneCycleLR and CyclicLR also move.

    Raises:
        ValueError: for ReduceLROnPlateau, which follows the loss and is no function of the step.

    >>> from torch.optim.lr_scheduler import StepLR
    >>> from_torch(lambda optimizer: StepLR(optimizer, 2, gamma=0.5), 5).values().tolist()
    [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    from torch.optim.lr_scheduler import LRScheduler

    T = _check.whole("steps", steps, low=1)
    if isinstance(scheduler, LRScheduler):
        _check_pure(scheduler)
        stand_in = _stand_in([{k: v for k, v in g.items() if k != "params"} for g in scheduler.optimizer.param_groups])
        # The memo makes every reference to the optimizer, in nested schedulers too, one to the stand-in.
        moving: Any = copy.deepcopy(scheduler, {id(scheduler.optimizer): stand_in})
    elif callable(scheduler):
        rates = list(lr) if isinstance(lr, Sequence) else [lr]
        stand_in = _stand_in([{"lr": _check.number("lr", rate, low=0), "momentum": 0.9} for rate in rates])
        moving = scheduler(stand_in)
        _check_pure(moving)
        if getattr(moving, "optimizer", None) is not stand_in:
            raise ValueError("scheduler: the factory must make its scheduler for the optimizer that it is called with")
    else:
        raise ValueError(f"scheduler = {scheduler!r}: must be a torch scheduler or a function optimizer → scheduler")
    if _check.whole("group", group) >= len(stand_in.param_groups):
        raise ValueError(f"group = {group}: must be < {len(stand_in.param_groups)}, the number of parameter groups")
    chosen = stand_in.param_groups[group]
    if key not in chosen:
        raise ValueError(f"key = {key!r}: must be one of {', '.join(k for k in chosen if k != 'params')}")
    values = [float(chosen[key])]
    for _ in range(T - 1):
        moving.step()
        values.append(float(chosen[key]))
    return from_array(values)


def from_transformers(name: str, steps: int, *, warmup: int = 0, peak: float = 1.0, **arguments: Any) -> Schedule:
    """Read a Hugging Face schedule off as a curve, by the name that `transformers.get_scheduler` knows it by.

    Its steps count from 0, so that the first value after a warmup's start is 0, and its last is not quite its end.

    Args:
        name: as "cosine", "linear", "warmup_stable_decay"; `TrainingArguments.lr_scheduler_type`.
        steps: steps of the run, `num_training_steps`.
        warmup: `num_warmup_steps`.
        peak: the learning rate.
        **arguments: the schedule's own, as `lr_scheduler_kwargs` has them.
    """
    with importing("hf", "transformers"):
        from transformers import get_scheduler
    T, W = _check.whole("steps", steps, low=1), _check.whole("warmup", warmup)

    def make(optimizer: Optimizer) -> Any:
        return get_scheduler(
            name, optimizer, num_warmup_steps=W, num_training_steps=T, scheduler_specific_kwargs=arguments or None
        )

    return from_torch(make, T, lr=peak)


def _check_pure(scheduler: Any) -> None:
    from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

    kind = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau):
        raise ValueError(f"scheduler = {kind}: it follows the loss, not the step, so it has no curve")
    if not isinstance(scheduler, LRScheduler):
        raise ValueError(f"scheduler = {kind}: must be a torch LRScheduler, whose values follow the step alone")


def _stand_in(groups: list[dict[str, Any]]) -> Optimizer:
    """An optimizer with these groups that moves nothing."""
    import torch

    class StandIn(torch.optim.Optimizer):
        _opt_called = True  # what torch looks at to see that the optimizer steps before its scheduler

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            del closure

        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]

    own = [copy.deepcopy(g) | {"params": [torch.zeros(1)]} for g in groups]
    return StandIn(own, dict(groups[0]))
