"""Rules for choosing and moving hyperparameters, each with its source and the range that it was fitted in.  [theory] 9.

Rules conflict; none is chosen here. `transfer` applies every rule that speaks to a change and says what it keeps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from equipoise import _check


@dataclass(frozen=True)
class TransferRule:
    """A published rule: what it says, where it is from, and where it was fitted.

    Attributes:
        code: short name.
        source: paper or article.
        says: the rule in a sentence.
        fitted: the range that its evidence covers.
    """

    code: str
    source: str
    says: str
    fitted: str


RULES = {
    rule.code: rule
    for rule in (
        TransferRule(
            "memory-steps",
            "[memory-article]",
            "1/(lr·wd) is proportional to the steps of a single-epoch run, or to one epoch's steps of a longer one",
            "an argument from equal importance of shuffled batches; not fitted to runs",
        ),
        TransferRule(
            "epoch-timescale",
            "[wang2024]",
            "τ_epoch = batch/(lr·wd·data) stays the same, and lies between 1 and the number of epochs",
            "AdamW; ResNet-18 and ViT on CIFAR-10 and ImageNet subsets, NanoGPT on OpenWebText",
        ),
        TransferRule(
            "power-lines",
            "[power-lines]",
            "τ = batch/(lr·wd·tokens) ≈ 1.084·TPP^−0.527 (TPP: tokens per parameter); at fixed τ, wd ∝ batch",
            "muP GPT-2-like models of 111M to 3.3B parameters, 10 % warmup, linear to 0, below the critical batch",
        ),
        TransferRule(
            "width-product",
            "[kosson2025]",
            "keep lr·wd constant across width: lr ∝ 1/width on hidden matrices (muP), wd ∝ width (independent decay)",
            "LLaMA-style transformers and ResNets trained with AdamW",
        ),
        TransferRule(
            "width-root",
            "[fan2025]",
            "lr ∝ 1/width, wd ∝ √width on hidden matrices (conflicts with width-product)",
            "LLaMA-style transformers trained with AdamW; top singular value ∝ √(lr/wd)·width^0.75 is an observed fit",
        ),
        TransferRule(
            "complete-p",
            "[mlodozeniec2025]",
            "with κ = batch ratio / data ratio: lr and wd × √κ, 1 − β × κ, eps / √κ",
            "AdamW transformers of 50M to 7B parameters, from the limit of small steps",
        ),
    )
}
"""Every rule, by its code."""


@dataclass(frozen=True)
class Hyperparameters:
    """The hyperparameters that rules move."""

    lr: float
    weight_decay: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass(frozen=True)
class Change:
    """How a run changes, as ratios new/old: steps, batch size, data (samples or tokens seen in all), width.

    Data defaults to steps × batch.
    """

    steps: float = 1.0
    batch: float = 1.0
    data: float = 1.0
    width: float = 1.0


@dataclass(frozen=True)
class Moved:
    """What one rule makes of a change: the new hyperparameters, and what it keeps."""

    rule: TransferRule
    to: Hyperparameters
    keeps: str


def timescale(lr: float, weight_decay: float) -> float:
    """Steps 1/(ηλ) over which decay forgets, for constant lr and weight decay.

    >>> timescale(1e-3, 0.1)
    10000.0
    """
    eta = _check.number("lr", lr, low=0)
    lam = _check.number("weight_decay", weight_decay, low=0)
    return math.inf if eta * lam == 0 else 1 / (eta * lam)


def weight_decay_for(steps: float, *, lr: float) -> float:
    """The weight decay that makes the timescale 1/(ηλ) that many steps.

    >>> round(weight_decay_for(10_000, lr=1e-3), 12)
    0.1
    """
    wanted = _check.number("steps", steps, low=1, open_low=True)
    return 1 / (wanted * _check.number("lr", lr, low=0, open_low=True))


def lr_for(steps: float, *, weight_decay: float) -> float:
    """The learning rate that makes the timescale 1/(ηλ) that many steps.

    >>> round(lr_for(10_000, weight_decay=0.1), 12)
    0.001
    """
    wanted = _check.number("steps", steps, low=1, open_low=True)
    return 1 / (wanted * _check.number("weight_decay", weight_decay, low=0, open_low=True))


def power_lines_timescale(tokens: float, parameters: float) -> float:
    """τ = B/(ηλD) that [power-lines] recommends: 1.084·TPP^−0.527, as a share of the run.

    >>> round(power_lines_timescale(20e9, 1e9), 3)
    0.224
    """
    per_parameter = _check.number("tokens", tokens, low=0, open_low=True) / _check.number(
        "parameters", parameters, low=0, open_low=True
    )
    return 1.084 * per_parameter**-0.527


def transfer(old: Hyperparameters, change: Change) -> list[Moved]:
    """Move tuned hyperparameters to another number of steps, batch, data or width, by every rule that speaks to it.

    >>> old = Hyperparameters(lr=1e-3, weight_decay=0.1)
    >>> for m in transfer(old, Change(steps=4.0, data=4.0)):
    ...     print(m.rule.code, f"{m.to.lr:.4g} {m.to.weight_decay:.4g}")
    memory-steps 0.001 0.025
    epoch-timescale 0.001 0.025
    power-lines 0.001 0.05191
    complete-p 0.0005 0.05
    """
    for name in ("steps", "batch", "data", "width"):
        _check.number(f"change.{name}", getattr(change, name), low=0, open_low=True)
    return [Moved(RULES[code], *moved) for code, rule in _TRANSFERS.items() if (moved := rule(old, change)) is not None]


def _scaled(old: Hyperparameters, lr: float = 1.0, wd: float = 1.0) -> Hyperparameters:
    return Hyperparameters(old.lr * lr, old.weight_decay * wd, old.betas, old.eps)


def _memory_steps(old: Hyperparameters, c: Change) -> tuple[Hyperparameters, str] | None:
    if c.steps == 1:
        return None
    return _scaled(old, wd=1 / c.steps), "lr, and the timescale 1/(lr·wd) as a share of the run"


def _epoch_timescale(old: Hyperparameters, c: Change) -> tuple[Hyperparameters, str] | None:
    if c.batch == c.data:
        return None
    return _scaled(old, wd=c.batch / c.data), "lr, and τ_epoch = batch/(lr·wd·data)"


def _power_lines(old: Hyperparameters, c: Change) -> tuple[Hyperparameters, str] | None:
    if c.width != 1 or (c.batch == 1 and c.data == 1):  # another width is another number of parameters
        return None
    return _scaled(
        old, wd=c.batch / c.data * c.data**0.527
    ), "lr, and the place of τ on the power law in tokens per parameter"


def _width_product(old: Hyperparameters, c: Change) -> tuple[Hyperparameters, str] | None:
    if c.width == 1:
        return None
    return _scaled(old, lr=1 / c.width, wd=c.width), "lr·wd, so timescale and equilibrium rotation of hidden matrices"


def _width_root(old: Hyperparameters, c: Change) -> tuple[Hyperparameters, str] | None:
    if c.width == 1:
        return None
    return _scaled(old, lr=1 / c.width, wd=math.sqrt(c.width)), "singular values of hidden matrices in the steady state"


def _complete_p(old: Hyperparameters, c: Change) -> tuple[Hyperparameters, str] | None:
    kappa = c.batch / c.data
    if kappa == 1:
        return None
    root = math.sqrt(kappa)
    first, second = (max(0.0, 1 - (1 - b) * kappa) for b in old.betas)
    moved = Hyperparameters(old.lr * root, old.weight_decay * root, (first, second), old.eps / root)
    return moved, "the continuous-time limit of AdamW: noise, timescale and averages per data seen"


_TRANSFERS: dict[str, Callable[[Hyperparameters, Change], tuple[Hyperparameters, str] | None]] = {
    "memory-steps": _memory_steps,
    "epoch-timescale": _epoch_timescale,
    "power-lines": _power_lines,
    "width-product": _width_product,
    "width-root": _width_root,
    "complete-p": _complete_p,
}
