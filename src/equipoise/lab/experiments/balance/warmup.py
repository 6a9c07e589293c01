"""Do rotational variants need warmup? And how fast do first steps rotate?  [kosson2024] Fig. 5 right, Fig. 14."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.checks import baseline, fair, learnt
from equipoise.lab.experiments.shared.figures import lr_axis, points
from equipoise.lab.experiments.shared.sweep import Setting, best, by_setting, gap
from equipoise.lab.experiments.shared.tasks import FASHION_BRIEF
from equipoise.lab.experiments.shared.watched import curve, hidden, rms, watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import stationary

FIRST = 1 / 10
"""The share of the steps that are the first ones."""

PAIRS = {"adamw": "rotational_adamw", "sgdm": "rotational_sgdm"}
"""The baseline and its rotational variant. [kosson2024] Fig. 5 has SGDM, Fig. 14 AdamW."""

DECAY = {"adamw": 0.1, "sgdm": 5e-3}
METRIC = "test_accuracy"
FAILED = 0.1
"""Accuracy of a trial that diverged: that of guessing."""


@dataclass(frozen=True)
class _Size:
    base: Trial
    lrs: dict[str, tuple[float, ...]]
    warmup: int
    seeds: int


LEAST = 0.005
"""What of an accuracy matters; ours: [kosson2024] has figures."""

_DIGITS = Trial(
    data="digits", model="resnet", model_options={"size": "resnet-8"}, steps=56, batch_size=128, schedule="cosine",
    limit=None,
)  # fmt: skip
SMALL = {"adamw": (0.03, 0.1, 0.3, 1.0), "sgdm": (0.5, 2.0, 8.0)}
SIZES = {
    "smoke": _Size(
        _DIGITS.vary({"model_options.width": 4, "steps": 16, "batch_size": 32}), {"adamw": (0.3,), "sgdm": (2.0,)}, 4, 1
    ),
    "small": _Size(_DIGITS, SMALL, 8, 3),
    "medium": _Size(
        FASHION_BRIEF.vary({
            "model_options.depth": 4, "steps": 120, "batch_size": 256, "limit": None, "lr": 1e-3, "warmup": 0,
        }),
        {"adamw": (3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0), "sgdm": (0.03, 0.1, 0.5, 2.0, 8.0)}, 12, 3,
    ),
    "full": _Size(
        _DIGITS.vary({"model_options.size": "resnet-20", "steps": 2000, "batch_size": 256}),
        {n: (v[0] / 4, *v, v[-1] * 4) for n, v in SMALL.items()}, 200, 5,
    ),
}  # fmt: skip
"""Trial, learning rates, steps of warmup, seeds."""

SAYS = {
    "stable": "[kosson2024] Fig. 5 right: without warmup the variant is more stable than the baseline",
    "variant-better": "[kosson2024] Fig. 5 right: without warmup the variant is better than the baseline",
    "needed": "[kosson2024] section 3: baselines need warmup",
    "less-needed": "[kosson2024] section 3: rotational variants need warmup less than their baselines",
    "fast": "[kosson2024] section 3, Fig. 14: without warmup baselines rotate too fast at first",
    "variant-not-fast": "[kosson2024] section 3, Fig. 14: without warmup variants do not rotate too fast at first",
}
WORDS = {"sgdm": "SGDM, as in Fig. 5", "adamw": "AdamW, as in Fig. 14"}


@final
class WarmupExperiment(Experiment):
    """Large batches and few epochs, with warmup and without."""

    name: ClassVar[str] = "warmup"
    source: ClassVar[str] = "[kosson2024] Fig. 5 right, Fig. 14"
    about: ClassVar[str] = "Baselines rotate too fast at first, and warmup helps; do rotational variants need it?"
    measures_diverged: ClassVar[bool] = True
    statements: ClassVar[Mapping[str, str]] = {
        f"{name}-{kind}": f"{says}; {word}" for name, says in SAYS.items() for kind, word in WORDS.items()
    }

    def trials(self, preset: str) -> list[Trial]:
        """Baselines and their variants at every learning rate, with warmup and without; cosine to zero."""
        size = SIZES[preset]
        base = watched(size.base, 100)
        return [
            base.vary({"optimizer": name, "lr": lr, "weight_decay": DECAY[kind], "warmup": warmup, "seed": seed})
            for kind, variant in PAIRS.items() for lr in size.lrs[kind] for name in (kind, variant)
            for warmup in (0, size.warmup) for seed in range(size.seeds)
        ]  # fmt: skip

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Rotation over that at equilibrium, and what is reached without a network."""
        return {"rotation": _Case.measure(run, result.trial), "baseline": baseline(result.trial)}

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Accuracy and the first steps' rotation; claims are of differences within a seed."""
        found = [_Case.of(one) for one in done if one.result.status != "failed"]
        rows: dict[tuple[Any, ...], list[_Case]] = {}
        for case in found:
            rows.setdefault((case.trial.optimizer, case.trial.lr, case.trial.warmup), []).append(case)
        table = [
            {
                "optimizer": name, "lr": lr, "warmup": warmup, "test accuracy": Stat.of([c.accuracy for c in cases]),
                "diverged": sum(c.diverged for c in cases),
                "first rotation / equilibrium's": Stat.of([c.first for c in cases]),
            }
            for (name, lr, warmup), cases in rows.items()
        ]  # fmt: skip
        claims = [claim for kind in PAIRS for claim in _claims(kind, found)]
        return Outcome(table, claims, {"cases": found})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Accuracy over lr, and rotation over the steps at the largest lr."""
        axes = figure.subplots(2, 2)
        cases: list[_Case] = outcome.curves["cases"]
        for line, (kind, variant) in zip(axes, PAIRS.items(), strict=True):
            for name, colour in ((kind, "black"), (variant, "tab:orange")):
                for warm, style in ((False, "-"), (True, "--")):
                    own = [c for c in cases if c.trial.optimizer == name and (c.trial.warmup > 0) == warm]
                    if not own:
                        continue
                    label = f"{name}, {'warmup' if warm else 'no warmup'}"
                    lrs = sorted({c.trial.lr for c in own})
                    stats = {lr: Stat.of([c.accuracy for c in own if c.trial.lr == lr]) for lr in lrs}
                    points(line[0], stats, color=colour, ls=style, label=label)
                    last = next(c for c in own if c.trial.lr == lrs[-1])
                    line[1].plot(last.steps, last.rotation, color=colour, ls=style, label=label)
            line[1].set(yscale="log", xlabel="step", ylabel="rotation / equilibrium's", title="at the largest lr")
            line[1].axhline(1, color="grey", lw=0.8)
            lr_axis(line[0], (c.trial.lr for c in cases if c.trial.optimizer == kind), xlabel="learning rate",
                    ylabel="test accuracy")  # fmt: skip
            line[0].legend(fontsize=7)


@final
@dataclass(frozen=True)
class _Case:
    """One trial: its accuracy, and the rotation of its hidden layers over that at equilibrium at the peak lr."""

    done: Done
    accuracy: float
    diverged: bool
    steps: Array
    rotation: Array

    @property
    def trial(self) -> Trial:
        return self.done.trial

    @staticmethod
    def of(done: Done) -> _Case:
        accuracy, seen = done.result.metrics.get(METRIC, FAILED), done.measured["rotation"]
        return _Case(done, accuracy, done.result.status == "diverged", seen["steps"], seen["over"])

    @staticmethod
    def measure(run: Run, trial: Trial) -> dict[str, Any]:
        kind = trial.optimizer.removeprefix("rotational_")
        expected = stationary(kind, lr=trial.lr, weight_decay=trial.weight_decay, size=1).rotation
        series = [curve(run, "rotation", name) for name in hidden(run)]
        count = min(len(values) for _, values in series)  # a trial that diverged ends in the middle of a step
        rotation = np.sqrt(np.mean([np.square(values[:count]) for _, values in series], 0)) / expected
        return {"steps": series[0][0][:count], "over": rotation}

    @property
    def first(self) -> float:
        """Root mean square over layers and the first steps."""
        return rms(self.rotation[self.steps <= max(2, FIRST * self.trial.steps)])


def _learns(kind: str, cases: Sequence[_Case]) -> Check:
    """That the baseline learns at some lr."""
    own = [c.done for c in cases if c.trial.optimizer == kind]
    return learnt(*by_setting(own, ("lr", "warmup")).values())


def _tuned(kind: str, cases: Sequence[_Case]) -> dict[str, tuple[Sequence[Done], dict[Setting, list[Done]]]]:
    """The baseline and its variant without warmup: each at its best lr, and all that it was chosen from."""
    arms = {}
    for name in (kind, PAIRS[kind]):
        cold = [c.done for c in cases if c.trial.optimizer == name and not c.trial.warmup]
        sweep = by_setting(cold, ["lr"])
        top = best(sweep, METRIC)
        arms[name] = ([] if top is None else sweep[top], sweep)
    return arms


def _claims(kind: str, cases: Sequence[_Case]) -> list[Claim]:
    by = {(c.trial.optimizer, c.trial.lr, c.trial.warmup > 0, c.trial.seed): c for c in cases}
    lrs = sorted({c.trial.lr for c in cases if c.trial.optimizer == kind})
    pair = (kind, PAIRS[kind])
    seeds = sorted({c.trial.seed for c in cases})
    seeds = [s for s in seeds if all((n, lr, w, s) in by for n in pair for lr in lrs for w in (False, True))]
    if not lrs:
        return []

    def of(name: str, warm: bool, seed: int) -> Array:
        return np.array([by[name, lr, warm, seed].accuracy for lr in lrs])

    need = {name: [float((of(name, True, s) - of(name, False, s)).mean()) for s in seeds] for name in pair}
    ahead = [of(pair[1], False, s) - of(kind, False, s) for s in seeds]
    first = {name: Stat.of([by[name, lrs[-1], False, s].first for s in seeds]) for name in pair}
    less = [a - b for a, b in zip(need[kind], need[pair[1]], strict=True)]
    where, learns, arms = f"{kind}'s", _learns(kind, cases), _tuned(kind, cases)
    tuned = fair(METRIC, kind, arms)
    return [
        Claim(f"stable-{kind}", "[kosson2024] Fig. 5 right",
              f"accuracy without warmup, {where} variant less {kind}, mean over lr", 0.0,
              Stat.of([float(a.mean()) for a in ahead]), "above", checks=[learns], least=LEAST),
        Claim(f"variant-better-{kind}", "[kosson2024] Fig. 5 right",
              f"accuracy without warmup at its best lr, {where} variant less {kind}", 0.0,
              gap(arms[pair[1]][0], arms[kind][0], METRIC), "above",
              checks=tuned, least=LEAST),
        Claim(f"needed-{kind}", "[kosson2024] section 3", f"accuracy that warmup gives {kind}, mean over lr", 0.0,
              Stat.of(need[kind]), "above", checks=[learns], least=LEAST),
        Claim(f"less-needed-{kind}", "[kosson2024] section 3", f"what warmup gives {kind} less what it gives its "
                                                               f"variant", 0.0,
              Stat.of(less), "above", checks=[learns], least=LEAST),
        Claim(f"fast-{kind}", "[kosson2024] section 3, Fig. 14",
              f"first rotation of {kind} over equilibrium's, no warmup, largest lr", 1.0, first[kind], "above"),
        Claim(f"variant-not-fast-{kind}", "[kosson2024] section 3", f"the same of {where} variant", 1.0, first[pair[1]],
              tolerance=0.1),
    ]  # fmt: skip
