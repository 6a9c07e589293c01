"""Neurons slowed on purpose: what imbalanced rotation costs, [kosson2024] Fig. 12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.shared.checks import fair
from equipoise.lab.experiments.shared.figures import points
from equipoise.lab.experiments.shared.measured import Learns
from equipoise.lab.experiments.shared.sweep import by_setting, gap, stat, tuned
from equipoise.lab.experiments.shared.tasks import FASHION_BRIEF
from equipoise.lab.report.claims import Claim
from equipoise.lab.train.trial import Trial

PATHS = ("model_options.width", "optimizer_options.portion", "optimizer_options.factor")
LEAST = 0.005
"""What of an accuracy or a loss matters; ours: [kosson2024] has a figure."""

METRICS = {"test_accuracy": "below", "test_loss": "above", "train_loss": "above"}
"""Each at the lr that is best for it, and on which side of the balanced network's imbalance should put it."""

HALF, SLOW = 0.5, 10.0
"""The portion where the factor varies, and the factor where the portion varies."""


@dataclass(frozen=True)
class _Size:
    data: str
    model: str | None
    width: int
    factors: tuple[float, ...]
    portions: tuple[float, ...]
    lrs: tuple[float, ...]
    decay: float
    steps: int
    seeds: int


SIZES = {
    "smoke": _Size("digits", "resnet-8", 4, (1, 10), (0.5,), (0.1,), 0.3, 20, 2),
    "small": _Size("digits", "resnet-8", 4, (1, 2, 4, 10), (0.25, 0.5, 0.75), (0.03, 0.1, 0.3), 0.3, 120, 3),
    "medium": _Size("fashion", None, 64, (1, 2, 10), (0.25, 0.75), (3e-3, 1e-2, 3e-2, 0.1), 0.3, 400, 3),
    "full": _Size(
        "fashion", "resnet-18", 64, (1, 1.5, 2, 3, 5, 10), (0.1, 0.25, 0.5, 0.75, 0.9),
        (0.0083, 0.025, 0.05, 0.1, 0.3, 0.9), 0.01, 70_000, 5,
    ),
}  # fmt: skip
"""Data, ResNet (or the MLP of `medium`), width of its first stage, how many times slower, portions, learning rates,
weight decay, steps, seeds."""


@final
class Imbalance(Learns):
    """A portion p of the neurons of each layer rotates f times slower than the rest; lr tuned for each."""

    name: ClassVar[str] = "imbalance"
    source: ClassVar[str] = "[kosson2024] Fig. 12"
    about: ClassVar[str] = "Some neurons of each layer rotate slower, in the rotational variant: what does it cost?"
    statements: ClassVar[Mapping[str, str]] = {
        "costs": "[kosson2024] Fig. 12: slowing some neurons costs accuracy and loss, at the best lr too",
        "half-the-width": "[kosson2024] Fig. 12: half of the neurons ten times slower is as good as half the width",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Factors at half of the neurons, portions at the largest factor, and a network of half the width."""
        size = SIZES[preset]
        cases = [(size.width, HALF, f) for f in size.factors] + [(size.width, p, SLOW) for p in size.portions]
        base = Trial(
            data=size.data, model="resnet", model_options={"size": size.model}, optimizer="imbalanced_adamw",
            weight_decay=size.decay, steps=size.steps, batch_size=64, schedule="cosine", warmup=size.steps // 40,
            limit=None, watch={"every": max(4, size.steps // 20), "neurons": 0, "spectra": 0},
        )  # fmt: skip
        if size.model is None:
            own = {"data_options": FASHION_BRIEF.data_options, "model": "mlp", "model_options": {"depth": 3}}
            base = base.vary(own)
        return [
            base.vary({
                "model_options.width": width, "optimizer_options": {"portion": p, "factor": 1 / f}, "lr": lr,
                "seed": seed,
            })
            for width, p, f in dict.fromkeys([*cases, (size.width // 2, HALF, 1.0)]) for lr in size.lrs
            for seed in range(size.seeds)
        ]  # fmt: skip

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Each setting at its best lr, by metric: at the lr for accuracy, losses would compare learning rates."""
        wide = max((d.trial.get("model_options.width") for d in done), default=0)
        best = {m: tuned(done, PATHS, m, lowest=m != "test_accuracy") for m in METRICS}
        rows: list[dict[str, Any]] = []
        for width, portion, factor in best["test_accuracy"]:
            row: dict[str, Any] = {"width": width, "p": portion if factor != 1 else 0.0, "f": round(1 / factor, 3)}
            for metric, settings in best.items():
                own = settings[width, portion, factor]
                row |= {
                    metric.replace("_", " "): stat(own, metric),
                    f"lr for {metric.replace('_', ' ')}": own[0].trial.lr,
                }
            rows.append(row)
        return Outcome(rows, _claims(best, wide, by_setting(done, (*PATHS, "lr"))), {"rows": rows, "width": wide})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """As [kosson2024] Fig. 12, middle and right."""
        axes = figure.subplots(2, 2)
        wide = outcome.curves["width"]
        rows = [row for row in outcome.curves["rows"] if row["width"] == wide]
        narrow = [row for row in outcome.curves["rows"] if row["width"] != wide]
        for line, metric in zip(axes, ("test accuracy", "train loss"), strict=True):
            for axis, by, kept in zip(line, ("p", "f"), (("f", SLOW), ("p", HALF)), strict=True):
                # Without imbalance, p = 0 and f = 1 are the same setting.
                own = sorted((r for r in rows if r[kept[0]] == kept[1] or r["f"] == 1), key=lambda r: r[by])
                points(axis, {r[by]: r[metric] for r in own}, label=f"width {wide}")
                for row in narrow:
                    axis.axhline(row[metric].mean, color="tab:orange", ls="--", label=f"width {row['width']}, balanced")
                label = "portion p that is 10 times slower" if by == "p" else "half is f times slower"
                axis.set(xlabel=label, ylabel=metric, yscale="log" if metric == "train loss" else "linear")
        axes[0, 0].legend()


def _claims(
    best: dict[str, dict[Any, list[Done]]], wide: int, settings: Mapping[Any, Sequence[Done]]
) -> list[Claim]:  # fmt: skip
    claims = []

    def sweep(case: tuple[Any, ...]) -> dict[Any, Sequence[Done]]:
        return {k: v for k, v in settings.items() if k[:3] == case}

    for metric, relation in METRICS.items():
        balanced = best[metric].get((wide, HALF, 1.0))
        for (width, portion, factor), own in best[metric].items():
            if factor == 1 or width != wide or balanced is None:
                continue
            f = round(1 / factor, 3)
            what = f"{metric.replace('_', ' ')} less the balanced, {portion:.0%} of neurons {f:g} times slower"
            apart = gap(own, balanced, metric)
            arms = {
                "the balanced": (balanced, sweep((wide, HALF, 1.0))),
                "the slowed": (own, sweep((width, portion, factor))),
            }
            claims.append(
                Claim(f"costs/{metric}-{portion:g}-{f:g}", "[kosson2024] Fig. 12", what, 0.0, apart, relation,
                      checks=fair(metric, "the balanced", arms), least=LEAST)
            )  # fmt: skip
    accuracy = best["test_accuracy"]
    slow, narrow = accuracy.get((wide, HALF, 1 / SLOW)), accuracy.get((wide // 2, HALF, 1.0))
    if slow is not None and narrow is not None:
        arms = {
            "the narrow": (narrow, sweep((wide // 2, HALF, 1.0))), "the slowed": (slow, sweep((wide, HALF, 1 / SLOW))),
        }  # fmt: skip
        claims.append(
            Claim("half-the-width", "[kosson2024] Fig. 12", "test accuracy at p = 50 %, f = 10 less that of half the "
                                                            "width", 0.0,
                  gap(slow, narrow, "test_accuracy"), tolerance=0.01,
                  checks=fair("test_accuracy", "the narrow", arms))
        )  # fmt: skip
    return claims
