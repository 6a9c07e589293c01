"""What sweeps share: trials by setting, the best of them, differences by seed, and how evenly a run rotates."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done
from equipoise.lab.experiments.shared.watched import curve, hidden, of_neurons
from equipoise.lab.report.claims import Stat, hashable
from equipoise.lab.statistics import LOOKS
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import stationary

LATE = 0.5
"""What comes after this share of the steps is averaged over."""

EARLY = 0.1
"""Trajectories are compared over this share of the steps: later, rounding has grown too far to say anything."""

Setting = tuple[Any, ...]


def seeds(trials: Sequence[Trial], count: int) -> list[Trial]:
    """Each trial with as many seeds."""
    return [trial.vary({"seed": seed}) for trial in trials for seed in range(count)]


def by_setting(done: Sequence[Done], paths: Sequence[str]) -> dict[Setting, list[Done]]:
    """Trials by the fields that they differ in, as `lr` or `optimizer_options.l2`; in a setting they differ by seed."""
    found: dict[Setting, list[Done]] = {}
    for one in done:
        found.setdefault(tuple(hashable(one.trial.get(path)) for path in paths), []).append(one)
    return {key: sorted(members, key=lambda d: d.trial.seed) for key, members in found.items()}


def stat(done: Sequence[Done], metric: str) -> Stat:
    """A metric over seeds, of those that finished."""
    return Stat.of([d.result.metrics[metric] for d in done if metric in d.result.metrics])


def diverged(done: Sequence[Done]) -> int:
    """How many went beyond all bounds."""
    return sum(d.result.status == "diverged" for d in done)


def finished(done: Sequence[Done]) -> list[Done]:
    """Those that did not."""
    return [d for d in done if d.result.status == "finished"]


def chosen_by(done: Sequence[Done], metric: str) -> str:
    """The metric that settings are chosen by: the validation part's where all have one, else the test's itself."""
    validation = metric.replace("test_", "validation_")
    return validation if done and all(validation in d.result.metrics for d in finished(done)) else metric


def best(settings: Mapping[Setting, Sequence[Done]], metric: str, *, lowest: bool = False) -> Setting | None:
    """The setting with the best mean, of those where every seed finished; None where there is none.

    It is chosen by the seeds of the first look, so that those which come later are of the same setting, and on the
    validation part. Where the data has none it is chosen by the test's mean, which flatters it; `checks.fair` says so.
    """
    every = [d for members in settings.values() for d in members]
    metric = chosen_by(every, metric)
    early = sorted({d.trial.seed for d in every})[: LOOKS[0]]
    first = {key: [d for d in members if d.trial.seed in early] for key, members in settings.items()}
    means = {
        key: stat(members, metric).mean
        for key, members in first.items()
        if members and all(metric in d.result.metrics for d in members)
    }
    return (min if lowest else max)(means, key=lambda key: means[key]) if means else None


def tuned(
    done: Sequence[Done], paths: Sequence[str], metric: str, *, lowest: bool = False
) -> dict[Setting, list[Done]]:
    """The trials of each setting at the learning rate that is best for it; settings without one are left out.

    Args:
        done: trials that differ in these fields, lr and seed.
        paths: fields, as `optimizer_options.factor`.
        metric: name in `Result.metrics`.
        lowest: the lowest is the best.
    """
    found: dict[Setting, list[Done]] = {}
    for key, members in by_setting(done, paths).items():
        lrs = by_setting(members, ["lr"])
        lr = best(lrs, metric, lowest=lowest)
        if lr is not None:
            found[key] = lrs[lr]
    return found


def by_seed(a: Sequence[Done], b: Sequence[Done], of: Callable[[Done, Done], float]) -> Stat:
    """A number of two settings over the seeds that both have finished: those share weights at the start and batches."""
    other = {d.trial.seed: d for d in b if d.result.status == "finished"}
    pairs = [(d, other[d.trial.seed]) for d in a if d.result.status == "finished" and d.trial.seed in other]
    return Stat.of([of(x, y) for x, y in pairs])


def cost(done: Done) -> float:
    """The ln of the perplexity, or −ln of the accuracy: what costs 0.01 more is about one per cent worse."""
    found = done.result.metrics
    if "test_perplexity" in found:
        return math.log(found["test_perplexity"])
    return -math.log(max(found["test_accuracy"], 1e-3))


def worse(a: Sequence[Done], b: Sequence[Done]) -> Stat:
    """How much worse a is than b, as a share, by seed."""
    return by_seed(a, b, lambda x, y: cost(x) - cost(y))


def gap(a: Sequence[Done], b: Sequence[Done], metric: str) -> Stat:
    """Metric of a less that of b, by seed."""
    return by_seed(a, b, lambda x, y: x.result.metrics[metric] - y.result.metrics[metric])


@final
@dataclass(frozen=True)
class Turning:
    """Rotation of a trial's hidden layers over the measured steps, and the late one of their sampled neurons.

    Output layers and embeddings are left out: they are not scale-invariant.

    Attributes:
        steps: at which it was measured.
        layers: by name, a value a step.
        neurons: by layer, a mean over the late steps for each neuron.
        lrs: of the hidden layers, a value a step.
    """

    steps: Array
    layers: dict[str, Array]
    neurons: dict[str, Array]
    lrs: Array

    @staticmethod
    def measure(run: Run) -> dict[str, Any]:
        """What the analysis needs of a run."""
        names = hidden(run)
        series = {name: run.series("rotation", name) for name in names}
        steps = series[names[0]].steps.astype(np.float64)
        at, lrs = curve(run, f"lr/{run.tensors[names[0]].group}")
        late = steps > LATE * steps[-1]
        neurons = {n: of_neurons(run, "rotation", n)[:, late].mean(1) for n in names if run.tensors[n].neurons}
        layers = {name: s.values for name, s in series.items()}
        return {"steps": steps, "layers": layers, "neurons": neurons, "lrs": np.interp(steps, at, lrs)}

    @staticmethod
    def of(done: Done) -> Turning:
        """Of a trial whose experiment has measured it."""
        return Turning(**done.measured["turning"])

    def late(self, values: Array) -> Array:
        """Mean over the late steps."""
        return values[..., self.steps > LATE * self.steps[-1]].mean(-1)

    @property
    def mean(self) -> float:
        """Over the late steps and all layers."""
        return float(np.mean([self.late(v) for v in self.layers.values()]))

    @property
    def over_layers(self) -> float:
        """Coefficient of variation of the late rotation over layers: 0 where all turn alike."""
        each = np.array([self.late(v) for v in self.layers.values()])
        return float(each.std() / each.mean())

    @property
    def over_neurons(self) -> float:
        """The same over the neurons of a layer, mean over layers."""
        return float(np.mean([each.std() / each.mean() for each in self.neurons.values()]))

    def over_theory(self, trial: Trial) -> float:
        """Late rotation over that where layers of this optimizer settle at the present lr, mean over the late steps."""
        # Wrapped Adam + L2 turns as AdamW would: its L2 is in the gradients alone.
        kind = "adamw" if trial.optimizer == "rotational_adam_l2" else trial.optimizer.removeprefix("rotational_")
        options = trial.optimizer_options
        given: dict[str, Any] = {"betas": tuple(options["betas"])} if "betas" in options else {}
        decay = options.get("roles", {}).get("matrix", {}).get("weight_decay", trial.weight_decay)
        lrs = self.lrs[self.steps > LATE * self.steps[-1]]
        wanted = [stationary(kind, lr=lr, weight_decay=decay, size=1, **given).rotation for lr in lrs if lr > 0]
        return self.mean / float(np.mean(wanted))


def apart(a: Done, b: Done) -> float:
    """Distance of two trajectories: relative difference of rotation, median over layers and early steps."""
    ours, theirs = Turning.of(a), Turning.of(b)
    early = ours.steps <= EARLY * a.trial.steps
    return float(np.median([np.abs(ours.layers[n][early] / theirs.layers[n][early] - 1) for n in ours.layers]))
