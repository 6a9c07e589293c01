"""The schedules of a trial: those of `equipoise.schedules` by name, and those designed for a given memory."""

from __future__ import annotations

from equipoise import _check, theory
from equipoise.lab.train.trial import Trial
from equipoise.schedules import Schedule, from_weights, named, warmup
from equipoise.schedules.memory import curriculum, equal_memory, tied_lr
from equipoise.theory import Memory

DESIGNED = {"curriculum": ("parts", "first"), "equal_memory": ("extra",), "equal_memory_tied": ()}
"""Schedules that are made for a trial's lr and weight decay, and their options: `parts`, what a batch of each part of
the run shall count; `first`, the first lr as a share of the trial's; `extra`, forgetting besides weight decay."""


def shapes(trial: Trial) -> tuple[Schedule, Schedule | None]:
    """The schedules of learning rate and weight decay, as factors on the trial's; None leaves the decay as it is.

    The designed ones begin after the trial's warmup. "equal_memory_tied" moves the decay with the learning rate.
    """
    name, W, options = trial.schedule, trial.warmup, dict(trial.schedule_options)
    if name not in DESIGNED:
        return named(name, steps=trial.steps, peak=1.0, warmup=W, final=trial.final, **options), None
    for key in options:
        _check.choice(f"schedule_options of {name!r}", key, DESIGNED[name])
    if trial.steps <= W:
        raise ValueError(f"warmup = {W}: must be < steps = {trial.steps}")
    if name == "equal_memory":
        decay = trial.weight_decay + _check.number("extra", options.get("extra", 0.0), low=0)
        return warmup(equal_memory(weight_decay=trial.lr * decay, peak=1.0), W), None
    product, rest = trial.lr * trial.weight_decay, trial.steps - W
    if name == "equal_memory_tied":
        lr = warmup(tied_lr(rest, weight_decay=product, peak=1.0), W)
        return lr, lr
    if "parts" not in options:
        raise ValueError("schedule_options: must have parts, what a batch of each part of the run counts")
    wanted = curriculum(options["parts"], rest)
    return warmup(from_weights(wanted, weight_decay=product, lr_first=options.get("first", 1.0)), W), None


def contributions(trial: Trial, *, extra: float = 0.0) -> Memory:
    """What theory says that each step's gradient contributes to the final weights, AdamW's momentum included.

    Args:
        trial: its lr, weight decay and schedule.
        extra: forgetting besides weight decay, in the same unit.
    """
    lr, decay = shapes(trial)
    factor = 1.0 if decay is None else decay.values(trial.steps)
    beta = trial.optimizer_options.get("betas", (0.9, 0.999))[0]
    return theory.memory(
        lr=trial.lr * lr.values(trial.steps), weight_decay=trial.weight_decay * factor + extra, steps=trial.steps,
        momentum=beta, bias_correction=True,
    )  # fmt: skip
