"""Settings at their own best learning rate, and differences within a seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equipoise.lab.experiments.base import Done
from equipoise.lab.results import Stat


def tuned(done: Sequence[Done], paths: Sequence[str], metric: str, *, lowest: bool = False) -> dict[Any, list[Done]]:
    """The trials of each setting at the lr with the best mean of a metric, where every seed finished.

    Args:
        done: trials that differ in these fields, lr and seed.
        paths: fields, as `optimizer_options.factor`.
        metric: name in `Result.metrics`.
        lowest: the lowest is the best.
    """
    found: dict[Any, dict[float, list[Done]]] = {}
    for one in done:
        key = tuple(one.trial.get(path) for path in paths)
        found.setdefault(key, {}).setdefault(one.trial.lr, []).append(one)
    best: dict[Any, list[Done]] = {}
    for key, lrs in found.items():
        whole = {lr: own for lr, own in lrs.items() if all(metric in d.result.metrics for d in own)}
        means = {lr: over(own, metric).mean * (-1 if lowest else 1) for lr, own in whole.items()}
        if means:
            best[key] = sorted(whole[max(means, key=lambda lr: means[lr])], key=lambda d: d.trial.seed)
    return best


def over(done: Sequence[Done], metric: str) -> Stat:
    """A metric over seeds."""
    return Stat.of([d.result.metrics[metric] for d in done])


def less(a: Sequence[Done], b: Sequence[Done], metric: str) -> Stat:
    """A metric of a less that of b, over the seeds that both have."""
    other = {d.trial.seed: d.result.metrics[metric] for d in b}
    return Stat.of([d.result.metrics[metric] - other[d.trial.seed] for d in a if d.trial.seed in other])
