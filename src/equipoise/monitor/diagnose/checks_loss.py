"""Checks of the logged loss, which need no measured step: not finite, rising, diverged, a spike, at chance, flat."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from equipoise.finding import Finding
from equipoise.monitor.runs.final_loss import loss_text, training_loss, validation_loss
from equipoise.monitor.store.layout import LOG
from equipoise.monitor.store.run import Run

POINTS = 1024
"""A loss curve is read at about this many points, however long the run."""

ENOUGH, STEADY = 16, 64
"""Logged values needed to judge a loss: at the end of a run, and while it is running."""

NOISE = 6.0
"""A change of more than this many times the noise is not noise."""

RISES, LOSES, LEAPS, MOVES, NEAR = 0.03, 0.5, 0.25, 0.02, 0.01
"""Relative thresholds: a loss rises by this share of itself; diverges by losing this share of its gain; a spike loses
this share for a while; a flat loss falls by less than this share of itself; a loss at chance is this close to ln k."""

FLAT_STEPS, FLAT_SURE = 100, 1000
"""A loss that has not moved in this many steps is flat: at the end of a run, and while it may be warming up."""


class Loss:
    """A logged loss and its summary: start, end, best, noise.

    Args:
        name: the name it was logged under.
        steps: the logged steps.
        values: the loss at these steps; may be NaN or infinite.
    """

    def __init__(self, name: str, steps: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        self.name, self.all, self.all_steps = name, values, steps
        there = np.isfinite(values)
        self.values, self.steps = values[there], steps[there]

    @cached_property
    def few(self) -> int:
        """The number of values that one point of the smoothed curve averages over."""
        return max(3, len(self.values) // 20)

    @cached_property
    def noise(self) -> float:
        """Standard deviation of single values around their trend, from the later half."""
        later = self.values[len(self.values) // 2 :]
        return float(1.4826 / math.sqrt(2) * np.median(np.abs(np.diff(later)))) if len(later) > 2 else 0.0

    @cached_property
    def start(self) -> float:
        """The loss at the start."""
        return float(np.median(self.values[:3]))

    @cached_property
    def end(self) -> float:
        """The loss at the end so far."""
        return float(np.median(self.values[-self.few :]))

    @cached_property
    def level(self) -> NDArray[np.float64]:
        """The rolling median."""
        return rolling_median(self.values, self.few)

    @cached_property
    def best(self) -> int:
        """Index of the lowest rolling median."""
        return int(np.argmin(self.level))


def rolling_median(values: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    """The median of `width` values around each value, of fewer at the ends.

    >>> rolling_median(np.array([1.0, 9.0, 2.0, 3.0]), 3).tolist()
    [5.0, 2.0, 3.0, 2.5]
    """
    half = width // 2
    padded = np.pad(values.astype(float), half, constant_values=np.nan)
    return np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, 2 * half + 1), axis=1)


def training(run: Run) -> Loss | None:
    """The training loss; None if no finite one was logged."""
    name = training_loss(run.logged)
    loss = None if name is None else _read(run, name)
    return loss if loss is not None and len(loss.values) else None


def _read(run: Run, name: str) -> Loss:
    series = run.series(name, kind=LOG if LOG in run.kinds else None, points=POINTS)
    return Loss(name, series.steps, series.values.astype(float))


def check_loss(run: Run, ended: bool, finetune: bool = False) -> list[Finding]:
    """Findings about the losses of a run.

    Args:
        run: the run.
        ended: whether the run has ended; a running one needs more values.
        finetune: whether it started from pretrained weights; its loss may then stay flat.
    """
    found: list[Finding] = []
    name = training_loss(run.logged)
    for one in (name, validation_loss(run.logged)):
        if one is None:
            continue
        loss = _read(run, one)
        found += _not_finite(loss)
        if one == name and len(loss.values) >= (ENOUGH if ended else STEADY):
            told = (_rising(loss), _diverged(loss), _chance(loss, run), _flat(loss, ended, finetune))
            found += next(filter(None, map(list, told)), [])  # these have one cause: only the first is reported
            found += _spike(loss)
    return found


def _finding(code: str, severity: str, loss: Loss, evidence: str, expected: str, advice: str) -> Finding:
    return Finding(code, severity, loss.name, evidence, expected, advice, "the logged loss")


def _not_finite(loss: Loss) -> Iterator[Finding]:
    bad = ~np.isfinite(loss.all)
    if not bad.any():
        return
    stays, count = bool(bad[-1]), int(bad.sum())
    until = "to the end" if stays else f"at {count} of {len(bad)} points"
    yield _finding(
        "loss-not-finite",
        "error" if stays else "warning",
        loss,
        f"NaN or infinite from step {int(loss.all_steps[bad][0]):,}, {until}",
        "a finite loss",
        "check the batch of that step, logarithms and divisions in the loss, and lr",
    )


def _rising(loss: Loss) -> Iterator[Finding]:
    """The loss was never lower than at the start."""
    enough = max(NOISE * loss.noise, RISES * abs(loss.start))
    if loss.end > loss.start + enough and loss.level[loss.best] > loss.start - enough:
        yield _finding(
            "loss-rising",
            "error",
            loss,
            f"rose from {loss_text(loss.start)} at the start to {loss_text(loss.end)}, and was never lower",
            "a loss that falls",
            "check the sign of the loss, the optimizer's maximize option, and lr",
        )


def _diverged(loss: Loss) -> Iterator[Finding]:
    """The loss fell, then rose and stayed up."""
    low = float(loss.level[loss.best])
    lost = loss.end - low
    if lost > max(NOISE * loss.noise, LOSES * (loss.start - low), RISES * abs(low)):
        step = int(loss.steps[loss.best])
        yield _finding(
            "loss-diverged",
            "error" if loss.end > loss.start else "warning",
            loss,
            f"fell from {loss_text(loss.start)} to {loss_text(low)} at step {step:,} and is now {loss_text(loss.end)}",
            "a loss that does not rise again",
            f"go back to a checkpoint before step {step:,}, and check what changed after it: lr, data, gradient norms",
        )


def _chance(loss: Loss, run: Run) -> Iterator[Finding]:
    """The loss stays at the level of guessing among the classes."""
    matrices = [t for t in run.tensors.values() if len(t.shape) == 2]
    sizes = {t.shape[0] for t in [*matrices[-1:], *(t for t in matrices if t.role == "embedding")] if t.shape[0] > 1}
    half = loss.level[len(loss.level) // 2 :]
    still = abs(float(half[0]) - loss.end) < max(NEAR * abs(loss.end), 2 * loss.noise / math.sqrt(loss.few))
    for k in sorted(sizes):
        if still and loss.steps[-1] >= FLAT_STEPS and abs(loss.end - math.log(k)) < NEAR * math.log(k):
            yield _finding(
                "loss-at-chance",
                "warning",
                loss,
                f"stays at {loss_text(loss.end)}; guessing among {k} classes gives ln {k} = {math.log(k):.4g}",
                "a loss below that",
                "check that labels match their inputs, that gradients reach the first layers, and lr",
            )
            return


def _flat(loss: Loss, ended: bool, finetune: bool) -> Iterator[Finding]:
    """The loss has hardly moved."""
    steps = int(loss.steps[-1] - loss.steps[0])
    first = float(np.median(loss.values[: loss.few]))
    fell = max(loss.start, first) - loss.end
    enough = max(MOVES * abs(loss.start), loss.noise / math.sqrt(loss.few))
    if finetune or steps < (FLAT_STEPS if ended else FLAT_SURE) or fell >= enough:
        return
    yield _finding(
        "loss-flat",
        "warning",
        loss,
        f"has hardly moved in {steps:,} steps: {loss_text(loss.start)} at first, {loss_text(loss.end)} now",
        f"a loss that falls by {MOVES:.0%} or more",
        "check lr, eps, gradient clipping, the data and its labels",
    )


def _jumps(loss: Loss) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """How far medians of three values are above the level before them, that level, and what counts as a jump."""
    values, width = loss.values, 2 * loss.few + 1
    before = np.concatenate([np.full(width, np.nan), rolling_median(values, width)[:-width]])[: len(values)]
    three = values
    if len(values) > 2:
        middle = np.median(np.lib.stride_tricks.sliding_window_view(values, 3), axis=1)
        three = np.concatenate([[values[:2].mean()], middle, [values[-2:].mean()]])
    gain = loss.start - float(loss.level[loss.best])
    over = np.where(np.isfinite(before), three - before, -np.inf)
    return over, before, max(NOISE * loss.noise, LEAPS * gain) if gain > 0 else math.inf


def departure(loss: Loss) -> tuple[int, int] | None:
    """When a loss left its course: the last step at which it was as it should be, and the first at which it was not.

    It leaves its course if it is not finite, jumps, or rises from its lowest level and does not come back.

    Args:
        loss: the logged loss.
    """
    found: list[tuple[int, int]] = []
    bad = ~np.isfinite(loss.all)
    if bad.any():
        i = int(bad.argmax())
        found.append((int(loss.all_steps[max(0, i - 1)]), int(loss.all_steps[i])))
    if len(loss.values) >= ENOUGH:
        over, _, limit = _jumps(loss)
        if (over > limit).any():
            i = int((over > limit).argmax())
            found.append((int(loss.steps[max(0, i - 1)]), int(loss.steps[i])))
        low = float(loss.level[loss.best])
        enough = max(NOISE * loss.noise, LOSES * (loss.start - low), RISES * abs(low))
        high = loss.level[loss.best :] - low > enough
        if high[-1]:
            found.append((int(loss.steps[loss.best]), int(loss.steps[loss.best + int(high.argmax())])))
    return min(found, key=lambda one: one[1]) if found else None


def _spike(loss: Loss) -> Iterator[Finding]:
    """The loss jumped up for three logged values or more, and came back."""
    over, before, limit = _jumps(loss)
    at = int(np.argmax(over))
    if over[at] <= limit or loss.end > before[at] + limit:
        return
    yield _finding(
        "loss-spike",
        "warning",
        loss,
        f"jumped from {loss_text(before[at])} to {loss_text(before[at] + over[at])} at step {int(loss.steps[at]):,}, "
        "and came back",
        "a loss without jumps",
        "check the gradient norm, the batch and lr of that step",
    )
