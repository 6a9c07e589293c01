"""How far real networks are from a random walk: [kosson2024] Fig. 9 and 10, read off the watch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.checks import relaxed
from equipoise.lab.experiments.shared.noisy import not_by_heart
from equipoise.lab.experiments.shared.tasks import ENWIK8_BRIEF, FASHION_BRIEF
from equipoise.lab.experiments.shared.watched import hidden, rms, watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import stationary

LATE = 1 / 2
"""What comes after this share of the steps is settled."""

POINTS = 50
"""Of a curve: smooth as they are, these show it."""

BETAS = (0.9, 0.999)
FASHION = "fashion mlp"
"""The network of `medium` that is not on noisy labels."""

MEASURES = {
    "cos(g, w)": "gradient and weights",
    "cos(g, m)": "gradient and momentum",
    "‖u‖ / walk's": "size of the update over a random walk's",
    "λ_u / λ": "radial part of the gradient, as weight decay",
    "norm / [kosson2024]": "norm over [kosson2024]'s equilibrium",
    "rotation / [kosson2024]": "rotation over [kosson2024]'s equilibrium",
}
SQUARED = ("‖u‖ / walk's", "norm / [kosson2024]", "rotation / [kosson2024]")
"""Sizes, whose mean over steps is that of their squares."""


@dataclass(frozen=True)
class _Size:
    resnet: dict[str, Any]
    gpt: dict[str, Any]
    rate: float
    steps: int
    batches: tuple[int, int]
    length: int
    text: int
    samples: int
    seeds: int


SIZES = {
    "smoke": _Size(
        {"size": "resnet-8", "width": 4}, {"size": "tiny", "depth": 1}, 1e-2, 80, (16, 4), 32, 50_000, 2000, 2
    ),
    "small": _Size({"size": "resnet-8"}, {"size": "tiny"}, 1e-3, 2000, (32, 8), 64, 1_000_000, 20_000, 3),
    "full": _Size({"size": "resnet-20"}, {"size": "124M"}, 2e-4, 15_000, (128, 55), 512, 10_000_000, 500_000, 5),
}
"""Models, ηλ, steps, batch sizes, tokens of a sample, characters of the text, samples of the MLP, seeds.

[kosson2024] has ηλ = 1e-4 and 2.5e-4."""


@final
class Assumptions(Experiment):
    """Angles between gradient, weights and momentum, size and radial part of updates, of a ResNet, an MLP and a GPT."""

    name: ClassVar[str] = "assumptions"
    source: ClassVar[str] = "[kosson2024] Fig. 9, 10, appendix K"
    about: ClassVar[str] = "Is training a random walk? Angles, sizes and radial parts of gradients in real networks."
    statements: ClassVar[Mapping[str, str]] = {
        "no-radial": "[kosson2024] Fig. 9: in normalised networks gradients have no radial part, as a walk's",
        "no-drift": "[kosson2024] Fig. 9: in normalised networks gradients have no drift, as a walk's",
        "size": "[kosson2024] Fig. 9: in normalised networks updates have the size of a walk's",
        "predicts-normalised": "[kosson2024] Fig. 9: in normalised networks norm and rotation are near Table 1's",
        "predicts-gpt": "[kosson2024] Fig. 10: in a GPT norm and rotation are near Table 1's, too",
        "leans": "[kosson2024] Fig. 10: in a GPT gradients have a radial part, against weight decay",
        "turns-back": "[kosson2024] Fig. 10: in a GPT gradients turn back, against momentum, and updates are smaller "
        "than a walk's",
        "turns-less": "[kosson2024] Fig. 10: in a GPT rotation is below Table 1's",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Lr is constant, as in the paper. The digits are learnt by heart; the MLP's labels are noise in part."""
        size = SIZES["small" if preset == "medium" else preset]
        base = watched(Trial(steps=size.steps), 400)
        resnet = base.vary({
            "data": "digits", "model": "resnet", "model_options": size.resnet, "batch_size": size.batches[0],
            "lr": 1e-2, "weight_decay": size.rate / 1e-2,
        })  # fmt: skip
        mlp = base.vary({
            "data": "classification", "data_options": {"samples": size.samples, "inputs": 64, "noise": 0.3},
            "model": "mlp", "model_options": {"width": 64}, "lr": 1e-2, "weight_decay": size.rate / 1e-2,
        })  # fmt: skip
        gpt = base.vary({
            "data": "text", "data_options": {"size": size.text, "length": size.length}, "model": "gpt",
            "model_options": size.gpt, "batch_size": size.batches[1], "lr": 2e-3, "weight_decay": size.rate / 2e-3,
        })  # fmt: skip
        if preset == "medium":  # the digits are learnt by heart; a network on more images than it sees, and more text
            own = {"lr": 1e-2, "weight_decay": size.rate / 1e-2}
            still = {"steps": size.steps, "schedule": "constant", "warmup": 0, "watch": base.watch}
            resnet = FASHION_BRIEF.vary({**own, **still})
            gpt = ENWIK8_BRIEF.vary({"lr": 2e-3, "weight_decay": size.rate / 2e-3, "optimizer_options": {}, **still})
        return [one.vary({"seed": seed}) for one in (resnet, mlp, gpt) for seed in range(size.seeds)]

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Each measure of every hidden layer over the late steps, and smooth curves of few points."""
        return _Network.measure(run, result.trial)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Each measure, a mean over hidden layers and late steps."""
        found: dict[str, list[_Network]] = {}
        ends: dict[str, list[Check]] = {}
        for one in done:
            if one.result.status == "finished":
                own = [d for d in done if _name(d.trial) == _name(one.trial)]
                ends[_name(one.trial)] = [relaxed(one.trial, LATE), not_by_heart(own)]
                found.setdefault(_name(one.trial), []).append(_Network(**one.measured))
        rows: list[dict[str, Any]] = []
        claims: list[Claim] = []
        for name, networks in found.items():
            row = {measure: Stat.of([n.late(measure) for n in networks]) for measure in MEASURES}
            spread = {
                f"{m}, over layers": Stat.of([n.spread(m) for n in networks])
                for m in ("λ_u / λ", "norm / [kosson2024]")
            }
            rows.append({"model": name, "layers": len(networks[0].settled), **row, **spread})
            claims += _claims(name, row, ends[name])
        return Outcome(rows, claims, {name: networks[0] for name, networks in found.items()})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """As [kosson2024] Fig. 9 and 10: each measure over the steps, layers thin, their mean thick."""
        axes = figure.subplots(2, 3, sharex=True).flat
        colours = {"resnet": "tab:blue", FASHION: "tab:blue", "mlp": "tab:green", "gpt": "tab:orange"}
        for axis, measure in zip(axes, MEASURES, strict=True):
            shown = []
            for name, network in outcome.curves.items():
                layers = [c[measure] for c in network.curves.values()]
                for layer in layers:
                    axis.plot(network.steps, layer, color=colours[name], lw=0.5, alpha=0.4)
                axis.plot(network.steps, np.mean(layers, 0), color=colours[name], lw=2, label=name)
                shown += [layer[len(layer) // 10 :] for layer in layers]  # the first steps would set the scale
            expected = 1.0 if measure in SQUARED else 0.0
            axis.axhline(expected, color="black", ls="--", lw=1)
            low, high = min(expected, *(s.min() for s in shown)), max(expected, *(s.max() for s in shown))
            room = 0.08 * (high - low)
            axis.set(title=measure, xlabel="step", ylim=(low - room, high + room))
        next(iter(figure.axes)).legend()


@final
@dataclass(frozen=True)
class _Network:
    """One trial, by hidden layer and measure: once settled, and a smooth curve."""

    settled: dict[str, dict[str, float]]
    steps: Array
    curves: dict[str, dict[str, Array]]

    @staticmethod
    def measure(run: Run, trial: Trial) -> dict[str, Any]:
        steps = run.steps.astype(np.float64)
        late, few = steps > LATE * steps[-1], slice(None, None, max(1, len(steps) // POINTS))
        each = {name: _measures(run, name, trial) for name in hidden(run)}
        settled = {
            name: {m: rms(x[late]) if m in SQUARED else float(x[late].mean()) for m, x in own.items()}
            for name, own in each.items()
        }
        curves = {name: {m: _smooth(x)[few] for m, x in own.items()} for name, own in each.items()}
        return {"settled": settled, "steps": steps[few], "curves": curves}

    def late(self, measure: str) -> float:
        return float(np.mean([own[measure] for own in self.settled.values()]))

    def spread(self, measure: str) -> float:
        """Standard deviation over layers."""
        return float(np.std([own[measure] for own in self.settled.values()]))


def _name(trial: Trial) -> str:
    return FASHION if trial.data == "fashion" else trial.model


def _measures(run: Run, name: str, trial: Trial) -> dict[str, Array]:
    def of(quantity: str) -> Array:
        return run.series(quantity, name).values.astype(np.float64)

    size = math.prod(run.tensors[name].shape)
    expected = stationary(
        "adamw", lr=trial.lr, weight_decay=trial.weight_decay, size=size, betas=BETAS, method="small_step"
    )
    momentum = of("grad_momentum_cos")
    values = {
        "cos(g, w)": of("grad_weight_cos"),
        # At the first step there is no momentum yet.
        "cos(g, m)": np.concatenate([np.zeros(len(of("norm")) - len(momentum)), momentum]),
        "‖u‖ / walk's": np.sqrt(of("c_err")),
        "λ_u / λ": radial(of("radial_decay"), of("relative_update"), trial.lr, trial.weight_decay) / trial.weight_decay,
        "norm / [kosson2024]": of("norm") / expected.norm,
        "rotation / [kosson2024]": of("rotation") / expected.rotation,
    }
    return values


def radial(measured: Array, relative: Array, lr: float, decay: float) -> Array:
    """λ_u of the gradients alone, which is [kosson2024]'s, from that of the updates, which is the watch's.

    An update has the gradients that w has already taken in: also of a random walk ⟨w, u⟩ = −η Σ a^{k−1} R(k), k ≥ 1,
    which is −ηR(0)β₁/(1 − aβ₁) with R(k) = R(0)β₁^k, a = 1 − ηλ. This is taken off, with the measured R(0) = ‖U‖²/η².

    Args:
        measured: the watch's `radial_decay`.
        relative: its `relative_update`, ‖U‖/‖w‖.
        lr: η.
        decay: λ.
    """
    return measured + relative**2 / lr * BETAS[0] / (1 - BETAS[0] * (1 - lr * decay))


def _smooth(values: Array, share: float = 0.02) -> Array:
    """Mean over a window of a share of the points, so that noise does not hide the mean."""
    width = max(1, int(share * len(values)))
    padded = np.pad(values, (width // 2, width - 1 - width // 2), mode="edge")
    return np.convolve(padded, np.full(width, 1 / width), mode="valid")


def _claims(name: str, row: dict[str, Stat], checks: Sequence[Check]) -> list[Claim]:
    """Normalised networks are near a walk; in a GPT gradients lean, are smaller, and turn back.  [kosson2024]."""
    fig = "[kosson2024] Fig. 10" if name == "gpt" else "[kosson2024] Fig. 9"

    def claim(key: str, measure: str, expected: float, relation: str = "about", tolerance: float = 0.1) -> Claim:
        quantity = f"{measure} of the {name}: {MEASURES[measure]}"
        return Claim(
            f"{key}-{name.replace(' ', '-')}", fig, quantity, expected, row[measure], relation, tolerance, checks
        )

    if name != "gpt":
        return [
            claim("no-radial/weights", "cos(g, w)", 0.0, tolerance=0.01), claim("no-drift/momentum", "cos(g, m)", 0.0),
            claim("size/updates", "‖u‖ / walk's", 1.0), claim("no-radial/decay", "λ_u / λ", 0.0),
            claim("predicts-normalised/norm", "norm / [kosson2024]", 1.0),
            claim("predicts-normalised/rotation", "rotation / [kosson2024]", 1.0),
        ]  # fmt: skip
    return [
        claim("turns-back/momentum", "cos(g, m)", 0.0, "below"), claim("turns-back/size", "‖u‖ / walk's", 1.0, "below"),
        claim("leans/decay", "λ_u / λ", 0.0, "below"),
        claim("turns-less/rotation", "rotation / [kosson2024]", 1.0, "below"),
        claim("predicts-gpt/norm", "norm / [kosson2024]", 1.0),
        claim("predicts-gpt/rotation", "rotation / [kosson2024]", 1.0),
    ]  # fmt: skip
