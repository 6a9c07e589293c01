"""Linear and logistic regression alike: three optimizers against condition number, noise and batch.  [notepad] 5.2."""

from __future__ import annotations

import functools
import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.checks import inside
from equipoise.lab.experiments.shared.figures import points
from equipoise.lab.experiments.shared.sweep import by_setting, finished, seeds, tuned
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run

if TYPE_CHECKING:
    from torch import Tensor

OPTIMIZERS = ("sgdm", "adamw", "muon")
OPTIONS: dict[str, dict[str, Any]] = {
    "sgdm": {}, "adamw": {"betas": [0.9, 0.95]}, "muon": {"roles": {"head": {"muon": True}}},
}  # fmt: skip
"""Momentum 0.9, 0.9 and 0.95. The one matrix is an output layer, to which Muon has to be told to come."""

WEIGHT = "head.weight"
PATHS = ("batch_size", "data_options.condition", "data_options.noise", "optimizer")
LEAST = 1e-9
"""Of the loss: less cannot be told from nothing in float32."""

LATE = 2 / 3


class Problem(NamedTuple):
    """What the data are, and how much of them a step sees."""

    batch: str
    condition: float
    noise: float


@dataclass(frozen=True)
class Size:
    """The size of a preset.

    Attributes:
        samples: N.
        inputs: d.
        outputs: D.
        mini: size of a mini-batch.
        steps: how many.
        conditions: numbers of the features, the smallest first.
        noises: the usual one and a higher one, at the largest condition number.
        lrs: of each optimizer.
        floors: of each optimizer: two constant learning rates, at the middle condition number.
        seeds: how many.
    """

    samples: int
    inputs: int
    outputs: int
    mini: int
    steps: int
    conditions: tuple[float, ...]
    noises: tuple[float, float]
    lrs: Mapping[str, Sequence[float]]
    floors: Mapping[str, tuple[float, float]]
    seeds: int


def sizes(
    noises: tuple[float, float], lrs: Mapping[str, Sequence[float]], floors: Mapping[str, tuple[float, float]],
    medium: Mapping[str, Sequence[float]],
) -> dict[str, Size]:  # fmt: skip
    """The presets, which the two regressions share but for noise and learning rates, those of `medium` apart."""
    one = {name: (own[1],) for name, own in lrs.items()}
    fine = {name: [lr * f for lr in own for f in (0.3, 1.0)] for name, own in lrs.items()}
    return {
        "smoke": Size(128, 6, 4, 16, 30, (1.0, 30.0), noises, one, floors, 1),
        "small": Size(1000, 20, 10, 50, 200, (1.0, 10.0, 100.0), noises, lrs, floors, 3),
        "medium": Size(1000, 20, 10, 50, 200, (1.0, 10.0, 100.0), noises, medium, floors, 3),
        "full": Size(10_000, 200, 50, 100, 2000, (1.0, 10.0, 100.0, 1000.0), noises, fine, floors, 5),
    }


class Convex(Experiment):
    """One matrix of weights, its loss over the analytic optimum, the singular values of its gradient."""

    data: ClassVar[str]
    sizes: ClassVar[Mapping[str, Size]]

    @staticmethod
    @abstractmethod
    def losses(X: Tensor, Y: Tensor) -> tuple[float, float]:
        """The loss of W = 0 and the least there is, in float64."""

    def trials(self, preset: str) -> list[Trial]:
        """Every setting at every lr, under cosine; full batches at a constant lr, too, for twice the steps."""
        size = self.sizes[preset]
        often = max(2, size.steps // 20)
        base = Trial(
            data=self.data, model="mlp", model_options={"depth": 0, "bias": False}, steps=size.steps,
            schedule="cosine", evaluate=often, limit=None,
            watch={"every": often, "neurons": 0, "spectra": 1, "structure": often},
            data_options={"samples": size.samples, "inputs": size.inputs, "outputs": size.outputs, "tests": 0},
        )  # fmt: skip
        usual = (size.conditions[len(size.conditions) // 2], size.noises[0])
        cases = [(c, size.noises[0]) for c in size.conditions] + [(size.conditions[-1], size.noises[1])]
        found: list[Trial] = []
        for batch, (condition, noise), name in product((size.samples, size.mini), cases, OPTIMIZERS):
            one = base.vary({
                "batch_size": batch, "data_options.condition": condition, "data_options.noise": noise,
                "optimizer": name, "optimizer_options": OPTIONS[name],
            })  # fmt: skip
            found += [one.vary({"lr": lr}) for lr in size.lrs[name]]
            if batch == size.samples and (condition, noise) == usual:
                flat = one.vary({"schedule": "constant", "steps": 2 * size.steps})
                found += [flat.vary({"lr": lr}) for lr in size.floors[name]]
        return [one.vary({"data_options.seed": one.seed}) for one in seeds(found, size.seeds)]

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Effective rank of gradients, extreme singular values, and the losses that `left` is counted from."""
        entropy = run.series(f"grad_entropy/{WEIGHT}")
        side = min(run.tensors[WEIGHT].shape)
        zero, least = _losses(type(self), json.dumps(dict(result.trial.data_options)))
        grads = [run.series(f"grad_{end}/{WEIGHT}").values for end in ("bottom", "top")]
        updates = [run.series(f"update_{end}", WEIGHT).values for end in ("bottom", "top")]
        moved = updates[1] > 0  # not the last step, where lr is 0
        return {
            "steps": entropy.steps.astype(float), "rank": side**entropy.values, "zero": zero, "least": least,
            "flatness": {
                "gradient": float((grads[0] / grads[1]).mean()),
                "step": float((updates[0][moved] / updates[1][moved]).mean()),
            },
        }  # fmt: skip

    def left(self, one: Done) -> tuple[Array, Array]:
        """Steps, and what is left of the loss over the optimum, of that at W = 0."""
        zero, least = one.measured["zero"], one.measured["least"]
        steps, found = zip(*one.result.tests, strict=True)
        loss = np.array([f["test_loss"] for f in found])
        return np.array(steps, float), np.maximum((loss - least) / (zero - least), LEAST)

    def best(self, done: Sequence[Done]) -> dict[tuple[Problem, str], list[Done]]:
        """The trials of each setting and optimizer at the lr that is best for them."""
        swept = tuned([d for d in done if d.trial.schedule == "cosine"], PATHS, "test_loss", lowest=True)
        return {
            (Problem("full" if batch == v[0].trial.data_options["samples"] else "mini", c, e), name): v
            for (batch, c, e, name), v in swept.items()
        }

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """A row for each setting and optimizer at its best lr."""
        chosen = self.best(done)
        seen = {
            key: {d.trial.seed: _Seen(*self.left(d), d.measured["steps"], d.measured["rank"]) for d in finished(own)}
            for key, own in chosen.items()
        }
        rows = []
        for (setting, name), found in seen.items():
            each = list(found.values())
            rows.append({
                **setting._asdict(), "optimizer": name, "best lr": chosen[setting, name][0].trial.lr,
                "log10 left": Stat.of([s.last for s in each]),
                "rank of the gradient, first": Stat.of([s.rank[0] for s in each]),
                "late": Stat.of([s.late for s in each]),
            })  # fmt: skip
        flat = [d for d in done if d.trial.schedule == "constant" and d.result.status == "finished"]
        sweeps = by_setting([d for d in done if d.trial.schedule == "cosine"], (*PATHS, "lr"))
        grid = {key: inside(own, {k: v for k, v in sweeps.items() if k[:4] == path}, key[1])
                for key, own in chosen.items() if (path := tuple(own[0].trial.get(p) for p in PATHS))}  # fmt: skip
        return Outcome(rows, [*self.claims(seen, grid), *self.floors(flat)], {"seen": seen})

    def claims(
        self, seen: Mapping[tuple[Problem, str], Mapping[int, _Seen]], grid: Mapping[tuple[Problem, str], Check]
    ) -> list[Claim]:
        """Of the sweep; each needs the best learning rates of what it compares inside their grids."""
        settings = sorted({key[0] for key in seen})
        noises = sorted({s.noise for s in settings})
        conditions = sorted({s.condition for s in settings})
        if len(seen) < len(settings) * len(OPTIMIZERS):
            return []
        low, high = conditions[0], conditions[-1]
        used: list[Check] = []  # by the values of the next claim

        def at(
            name: str, condition: float, batch: str = "full", noise: float = noises[0], what: str = "last"
        ) -> dict[int, float]:
            key = (Problem(batch, condition, noise), name)
            used.append(grid[key])
            return {seed: getattr(s, what) for seed, s in seen[key].items()}

        def less(a: dict[int, float], b: dict[int, float]) -> dict[int, float]:
            return {seed: a[seed] - b[seed] for seed in a if seed in b}

        def gain(over: str, condition: float, batch: str = "full") -> dict[int, float]:
            return less(at("muon", condition, batch), at(over, condition, batch))

        def claim(name: str, what: str, values: dict[int, float], relation: str, **own: Any) -> Claim:
            source = "theory" if self.statements[name.partition("/")[0]].startswith("theory") else self.source
            checks = list(dict.fromkeys(used))
            used.clear()
            return Claim(name, source, what, 0.0, Stat.of(list(values.values())), relation, **own, checks=checks)

        found = []
        for name in OPTIMIZERS:
            what = f"decades left by {name}, condition {high:g} less {low:g}"
            found.append(claim(f"condition/{name}", what, less(at(name, high), at(name, low)), "above"))
        for over in ("sgdm", "adamw"):
            what = f"decades left by Muon less {over}"
            found += [
                claim(f"muon-conditions/{over}-ill", f"{what}, full batch, condition {high:g}", gain(over, high),
                      "below"),
                claim(f"muon-conditions/{over}-grows", f"the same less that at condition {low:g}",
                      less(gain(over, high), gain(over, low)), "below"),
                claim(f"muon-conditions/{over}-batch", "the same less that of mini-batches",
                      less(gain(over, high), gain(over, high, "mini")), "below"),
            ]  # fmt: skip
        for name, batch in product(OPTIMIZERS, ("full", "mini")):
            change = less(at(name, high, batch, noises[1]), at(name, high, batch))
            relation, own = ("about", {"tolerance": 0.3}) if batch == "full" else ("above", {})
            what = f"decades left by {name}, {batch} batch, noise {noises[1]:g} less {noises[0]:g}"
            found.append(claim(f"noise-{batch}/{name}", what, change, relation, **own))
        first = less(at("muon", high, what="first"), at("muon", low, what="first"))
        used.clear()  # no learning rate has come in by then
        what = f"effective rank of the first gradient, condition {high:g} less {low:g}"
        found.append(claim("gradient-rank", what, first, "below"))
        for batch in ("full", "mini"):
            flatter = less(at("muon", high, batch, what="late"), at("sgdm", high, batch, what="late"))
            what = f"late effective rank of the gradient, condition {high:g}, {batch} batch, Muon's less SGD's"
            found.append(claim(f"flatter-{batch}", what, flatter, "above"))
        return found

    def floors(self, done: Sequence[Done]) -> list[Claim]:
        """The claims about constant learning rates."""
        found: list[Claim] = []
        for (name,), members in by_setting(done, ["optimizer"]).items():
            mean: dict[tuple[int, float], float] = {}
            for d in members:
                steps, left = self.left(d)
                mean[d.trial.seed, d.trial.lr] = math.log10(left[steps > LATE * steps[-1]].mean())
            low, high = min(lr for _, lr in mean), max(lr for _, lr in mean)
            whole = [seed for seed, lr in mean if lr == low and (seed, high) in mean]
            slopes = [(mean[s, high] - mean[s, low]) / math.log10(high / low) for s in whole]
            what = f"slope of log loss left over log lr, {name} at a constant lr of {low:g} to {high:g}"
            about = (0.0, "below") if name == "sgdm" else (2.0, "about")
            found.append(Claim(f"floor/{name}", "theory", what, about[0], Stat.of(slopes), about[1], 0.1))
        return found

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Loss left and rank of the gradient over the steps, at the highest condition number; loss left over it."""
        seen: Mapping[tuple[Problem, str], Mapping[int, _Seen]] = outcome.curves["seen"]
        noise, high = min(s.noise for s, _ in seen), max(s.condition for s, _ in seen)
        axes = figure.subplots(2, 3)
        colours = dict(zip(OPTIMIZERS, ("tab:blue", "tab:orange", "tab:green"), strict=True))
        for row, batch in zip(axes, ("full", "mini"), strict=True):
            for name, colour in colours.items():
                for one in seen.get((Problem(batch, high, noise), name), {}).values():
                    row[0].semilogy(one.steps, one.left, color=colour, lw=1)
                    row[1].plot(one.rank_steps, one.rank, color=colour, lw=1)
                ends = {s.condition: v for (s, n), v in seen.items() if (s.batch, s.noise, n) == (batch, noise, name)}
                points(row[2], {c: Stat.of([one.last for one in ends[c].values()]) for c in sorted(ends)}, color=colour,
                       label=name)  # fmt: skip
            row[0].set(title=f"loss left, {batch} batch, condition {high:g}", xlabel="step")
            row[1].set(title=f"effective rank of the gradient, {batch}", xlabel="step")
            row[2].set(title=f"log10 loss left at the end, {batch}", xlabel="condition number", xscale="log")
            for axis in row:
                axis.title.set_fontsize(9)
        axes[0, 2].legend(fontsize=8)


@dataclass(frozen=True)
class _Seen:
    """One trial: loss left, and the effective rank of its gradients, over the steps."""

    steps: Array
    left: Array
    rank_steps: Array
    rank: Array

    @property
    def last(self) -> float:
        """Decades."""
        return float(np.log10(self.left[-1]))

    @property
    def first(self) -> float:
        """Effective rank of the first gradient."""
        return float(self.rank[0])

    @property
    def late(self) -> float:
        """The same over the late steps."""
        return float(self.rank[self.rank_steps > LATE * self.rank_steps[-1]].mean())


@functools.cache
def _losses(experiment: type[Convex], options: str) -> tuple[float, float]:
    from equipoise.lab.data import Split, load

    train = load(experiment.data, **json.loads(options)).train
    assert isinstance(train, Split)
    return experiment.losses(train.x.double(), train.y)
