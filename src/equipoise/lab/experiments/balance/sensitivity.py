"""The rotational variants' own hyperparameters: averaging, centring, granularity. [kosson2024] Fig. 15."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.shared.checks import learnt
from equipoise.lab.experiments.shared.measured import Learns
from equipoise.lab.experiments.shared.sweep import seeds, stat
from equipoise.lab.experiments.shared.tasks import ENWIK8_BRIEF, FASHION_BRIEF, TASKS, by_task
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.train.trial import Trial

DEFAULT: dict[str, Any] = {"track": 0.99, "center": True, "granularity": "neuron"}
"""[kosson2024]'s: centred, by neuron."""

NEAR = {"resnet": 0.02, "mlp": 0.02, "gpt": 0.05}
"""What is taken as stable, relative: [kosson2024] gives no number."""

METRICS = {"resnet": "test_accuracy", "mlp": "test_accuracy", "gpt": "test_perplexity"}


@dataclass(frozen=True)
class _Size:
    data: str
    resnet: str
    gpt: str
    text: int
    length: int
    steps: tuple[int, int]
    tracks: tuple[float, ...]
    seeds: int


TRACKS = (0.0, 0.9, 0.99, 0.999)
SIZES = {
    "smoke": _Size("digits", "resnet-8", "tiny", 30_000, 32, (10, 6), (0.9, 0.99), 1),
    "small": _Size("digits", "resnet-8", "tiny", 300_000, 64, (80, 100), TRACKS, 3),
    "full": _Size("fashion", "resnet-18", "124M", 10_000_000, 512, (70_000, 15_000), (0.0, 0.5, 0.9, 0.99, 0.999), 5),
}
"""Data, networks, characters and tokens of a sample, steps of each, averaging factors, seeds."""


MEDIUM: tuple[tuple[Trial, dict[str, Any]], ...] = (
    (FASHION_BRIEF.vary({"optimizer": "rotational_sgdm", "lr": 0.1, "weight_decay": 5e-3}), {}),
    (ENWIK8_BRIEF.vary({"optimizer": "rotational_adamw", "weight_decay": 0.5}), {"betas": (0.9, 0.95)}),
)
"""The trials of `medium`, and options besides the case's."""


def cases(tracks: Sequence[float]) -> list[dict[str, Any]]:
    """The default, and what differs from it in one thing; both switches off; and Algorithm 1 to the letter.

    >>> len(cases([0.9, 0.99]))
    6
    """
    found = [DEFAULT, *({**DEFAULT, "track": track} for track in tracks if track != DEFAULT["track"])]
    found += [{**DEFAULT, "center": False}, {**DEFAULT, "granularity": "tensor"}]
    return [*found, {**DEFAULT, "center": False, "granularity": "tensor"}, {**DEFAULT, "reference": "paper"}]


@final
class Sensitivity(Learns):
    """Rotational SGDM on a ResNet, rotational AdamW on a GPT."""

    name: ClassVar[str] = "sensitivity"
    source: ClassVar[str] = "[kosson2024] Fig. 15"
    about: ClassVar[str] = "How much do averaging, centring and granularity of rotational variants matter?"
    statements: ClassVar[Mapping[str, str]] = {
        **by_task(
            "insensitive",
            "[kosson2024] Fig. 15: tracking, centring and granularity of rotational variants matter little",
        ),
    }

    def trials(self, preset: str) -> list[Trial]:
        """Every case on both networks."""
        if preset == "medium":
            return seeds([
                base.vary({"optimizer_options": {**case, **own}, "watch": {"every": 20, "neurons": 0, "spectra": 0}})
                for base, own in MEDIUM for case in cases(TRACKS)
            ], 3)  # fmt: skip
        size = SIZES[preset]
        watch = {"every": max(4, max(size.steps) // 50), "neurons": 0, "spectra": 0}
        resnet = Trial(
            data=size.data, model="resnet", model_options={"size": size.resnet}, optimizer="rotational_sgdm", lr=0.5,
            weight_decay=5e-3, steps=size.steps[0], batch_size=64, schedule="cosine", warmup=size.steps[0] // 20,
            watch=watch,
        )  # fmt: skip
        gpt = Trial(
            data="text", data_options={"size": size.text, "length": size.length}, model="gpt",
            model_options={"size": size.gpt}, optimizer="rotational_adamw", lr=0.02, weight_decay=0.5,
            steps=size.steps[1], batch_size=8, schedule="cosine", warmup=size.steps[1] // 50, watch=watch,
        )  # fmt: skip
        return [
            base.vary({"optimizer_options": {**case, **({"betas": (0.9, 0.95)} if base is gpt else {})}, "seed": seed})
            for base in (resnet, gpt) for case in cases(size.tracks) for seed in range(size.seeds)
        ]  # fmt: skip

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """The metric of each case, and over that of the default with the same seed."""
        found: dict[tuple[Any, ...], list[Done]] = {}
        for one in done:
            if METRICS[one.trial.model] in one.result.metrics:
                found.setdefault(_key(one.trial), []).append(one)
        rows, claims = [], []
        for (model, *case), own in found.items():
            metric, (track, center, granularity, reference) = METRICS[model], case
            base = {d.trial.seed: d for d in found.get((model, *_case(DEFAULT)), [])}
            pairs = [(d, base[d.trial.seed]) for d in own if d.trial.seed in base]
            ratio = Stat.of([a.result.metrics[metric] / b.result.metrics[metric] for a, b in pairs])
            rows.append({
                "model": model, "track": track, "centred": "yes" if center else "no", "by": granularity,
                "Algorithm 1": "yes" if reference == "paper" else "no", "metric": metric.replace("_", " "),
                "value": stat(own, metric), "/ default": ratio,
            })  # fmt: skip
            if case != list(_case(DEFAULT)):
                label = _label(rows[-1])
                name = f"insensitive-{TASKS[model]}/{model}-{label.replace(' ', '-').replace(',', '')}"
                claims.append(
                    Claim(name, "[kosson2024] Fig. 15",
                          f"{rows[-1]['metric']} of the {model} over the default's: {label}", 1.0, ratio,
                          tolerance=NEAR[model], checks=[learnt(list(base.values()))])
                )  # fmt: skip
        return Outcome(rows, claims)

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """A bar for each case."""
        axes = figure.subplots(1, 2, sharey=True)
        shown = [model for model in METRICS if any(row["model"] == model for row in outcome.rows)]
        for axis, model in zip(axes, shown, strict=False):
            metric = METRICS[model]
            own = [row for row in outcome.rows if row["model"] == model]
            stats: list[Stat] = [row["value"] for row in own]
            places = np.arange(len(own))
            axis.errorbar(
                [s.mean for s in stats], places, xerr=np.nan_to_num([s.std for s in stats]), fmt="o", capsize=3
            )
            if stats:
                axis.axvline(stats[0].mean, color="grey", lw=0.8)
            axis.set_yticks(places, [_label(row) for row in own])
            axis.set(ylim=(len(own) - 0.5, -0.5), title=f"{model}: {metric.replace('_', ' ')}")


def _case(options: Any) -> tuple[Any, ...]:
    return (*(options[name] for name in DEFAULT), options.get("reference"))


def _key(trial: Trial) -> tuple[Any, ...]:
    return (trial.model, *_case(trial.optimizer_options))


def _label(row: Any) -> str:
    parts = [f"track {row['track']:g}", "centred" if row["centred"] == "yes" else "not centred", f"by {row['by']}"]
    return ", ".join([*parts, *(["Algorithm 1"] if row["Algorithm 1"] == "yes" else [])])
