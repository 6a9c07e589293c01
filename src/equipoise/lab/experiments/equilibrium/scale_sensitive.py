"""Layers whose scale matters: the radial gradient as weight decay, [kosson2024] Fig. 11 and appendix L."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.checks import baseline, learnt, relaxed
from equipoise.lab.experiments.shared.watched import curve, hidden, rms, settled, watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import stationary

LATE = 1 / 2
EARLY = 1 / 10
"""Settled after the one share of the steps; λ_u is taken as that of the beginning before the other."""

LEAST_RADIAL = 0.1
"""|λ_u / λ| that matters; ours."""

SIDES = {"digits": 8, "fashion": 28}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"norm": "none"},
    "standardised": {"norm": "none", "standardised": True},
    "batch norm": {"norm": "batch"},
}


@dataclass(frozen=True)
class _Size:
    data: str
    width: int
    steps: int
    lr: float
    decay: float
    seeds: int
    validation: int = 0


SIZES = {
    "smoke": _Size("digits", 4, 60, 0.05, 2e-3, 1),
    "small": _Size("digits", 8, 1000, 0.05, 2e-3, 5),
    "medium": _Size("fashion", 4, 1000, 0.01, 1e-2, 5, validation=5000),
    "full": _Size("fashion", 64, 40_000, 0.05, 5e-4, 5),
}
"""Data, width of the first stage, steps, lr, weight decay, seeds, images of the validation part.

At `medium` the lr is one at which the network without normalisation learns: at 0.05 it stays at 10 %."""


@final
class ScaleSensitive(Experiment):
    """VGG without normalisation, with weight standardisation, and with batch normalisation, under SGDM."""

    name: ClassVar[str] = "scale-sensitive"
    source: ClassVar[str] = "[kosson2024] Fig. 11, appendix L"
    version: ClassVar[int] = 2
    about: ClassVar[str] = "Without normalisation gradients have a radial part; does λ + λ_u predict norm and rotation?"
    statements: ClassVar[Mapping[str, str]] = {
        "normalised": "[kosson2024] Fig. 11: with weights standardised or normalised there is no radial part",
        "table": "[kosson2024] Fig. 11: with weights standardised or normalised Table 1 holds",
        "radial": "[kosson2024] Fig. 11: in a VGG without normalisation gradients have a radial part, which grows "
        "over training",
        "effective": "[kosson2024] Fig. 11: with λ + λ_u for λ, Table 1 predicts the norm and rotation of "
        "scale-sensitive layers",
        "better": "[kosson2024] Fig. 11: with λ + λ_u for λ, Table 1 predicts the rotation of scale-sensitive layers "
        "better",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Three networks at a constant learning rate."""
        size = SIZES[preset]
        base = Trial(
            data=size.data, model="vgg", optimizer="sgdm", lr=size.lr, weight_decay=size.decay, steps=size.steps,
            limit=None, data_options={"validation": size.validation} if size.validation else {},
        )  # fmt: skip
        return [
            watched(base, 400).vary({"model_options": {"width": size.width, **options}, "seed": seed})
            for options in VARIANTS.values() for seed in range(size.seeds)
        ]  # fmt: skip

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Each layer once settled, smooth curves, and what is reached without a network."""
        side = SIDES[result.trial.data]
        # On images of one pixel only the middle of a kernel has gradients: the rest is no walk.
        stages = sum(side >> stage >= 2 for stage in range(5))
        layers = {name: _Layer.measure(run, name, result.trial) for name in hidden(run)[: 2 * stages]}
        return {"layers": layers, "baseline": baseline(result.trial)}

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """λ_u, and measured over predicted, with λ and with λ + λ_u."""
        found: dict[str, list[_Network]] = {}
        learns: dict[str, Check] = {}
        for name in VARIANTS:
            learns[name] = learnt([one for one in done if _variant(one.trial) == name])
        ends = [(_variant(one.trial), one.result.status) for one in done]
        for one in done:
            if one.result.status == "finished":
                found.setdefault(_variant(one.trial), []).append(_Network.of(one))
        rows = []
        for name, networks in found.items():
            row: dict[str, Any] = {"network": name, "diverged": ends.count((name, "diverged"))}
            row["layers"] = len(networks[0].layers)
            for column, value in (
                ("test accuracy", "accuracy"), ("λ_u / λ", "radial"), ("largest |λ_u / λ|", "largest"),
                ("rotation / [kosson2024]", "rotation"), ("rotation / [kosson2024] with λ_e", "rotation_e"),
                ("norm / [kosson2024]", "norm"),
                ("norm / [kosson2024] with λ_e", "norm_e"), ("layers with λ_e > 0", "settling"),
            ):  # fmt: skip
                row[column] = Stat.of([getattr(n, value) for n in networks])
            rows.append(row)
        return Outcome(rows, _claims(found, rows, learns), {name: networks[0] for name, networks in found.items()})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """λ_u, norm and rotation of the two layers with least and most λ_u when plain.  As [kosson2024] Fig. 11."""
        plain = outcome.curves.get("plain") or next(iter(outcome.curves.values()))
        order = sorted(range(len(plain.layers)), key=lambda i: abs(plain.layers[i].radial))
        axes = figure.subplots(3, 2, sharex=True)
        for column, index in enumerate((order[0], order[-1])):
            for (name, network), colour in zip(
                outcome.curves.items(), ("tab:blue", "tab:orange", "tab:green"), strict=False
            ):
                layer: _Layer = network.layers[index]
                steps, lines = layer.steps, (layer.lambda_u, layer.norms, layer.rotations)
                expected = (None, layer.predicted(layer.total).norm, layer.predicted(layer.total).rotation)
                for axis, values, dashed in zip(axes[:, column], lines, expected, strict=True):
                    axis.plot(steps, values, color=colour, label=name, lw=1)
                    if dashed is not None and math.isfinite(dashed):
                        axis.plot([LATE * steps[-1], steps[-1]], [dashed, dashed], color=colour, ls="--")
            axes[0, column].set(title=f"layer {index + 1}: λ_u / λ, smoothed")
            axes[1, column].set(title="norm, smoothed (dashed: [kosson2024] with λ_e)", ylim=(0, None))
            axes[2, column].set(
                title="rotation, smoothed (dashed: [kosson2024] with λ_e)", ylim=(0, None), xlabel="step"
            )
        axes[1, 0].legend(loc="lower right", fontsize=8)


@final
@dataclass(frozen=True)
class _Predicted:
    norm: float
    rotation: float


@final
@dataclass(frozen=True)
class _Layer:
    """One layer: settled, at the beginning, and its curves, means over a twentieth of the run each."""

    trial: Trial
    steps: Array
    lambda_u: Array
    norms: Array
    rotations: Array
    early: float
    """|λ_u/λ| at the beginning."""
    radial: float
    norm: float
    rotation: float
    grad: float

    @staticmethod
    def measure(run: Run, name: str, trial: Trial) -> dict[str, Any]:
        def late(quantity: str) -> Array:
            return settled(run, quantity, name, after=LATE)

        steps, radial = curve(run, "radial_decay", name)
        radial = radial / trial.weight_decay
        return {
            "steps": _smooth(steps), "lambda_u": _smooth(radial), "norms": _smooth(curve(run, "norm", name)[1]),
            "rotations": _smooth(curve(run, "rotation", name)[1]),
            "early": float(abs(radial[steps <= EARLY * steps[-1]].mean())),
            "radial": float(late("radial_decay").mean()), "norm": rms(late("norm")), "rotation": rms(late("rotation")),
            # The gradient at unit norm: inverse to the norm where a layer is scale-invariant ([kosson2024] Eq. 2).
            "grad": rms(late("grad_norm") * late("norm")),
        }  # fmt: skip

    @property
    def total(self) -> float:
        """λ_e."""
        return self.trial.weight_decay + self.radial

    def predicted(self, decay: float) -> _Predicted:
        """[kosson2024]'s Table 1 with this decay; nothing settles where it is not positive."""
        if decay <= 0:
            return _Predicted(math.nan, math.nan)
        at = stationary(
            "sgdm", lr=self.trial.lr, weight_decay=decay, size=1, grad_norm=self.grad, method="small_step"
        )  # fmt: skip
        return _Predicted(at.norm, at.rotation)


@final
@dataclass(frozen=True)
class _Network:
    layers: list[_Layer]
    accuracy: float

    @staticmethod
    def of(done: Done) -> _Network:
        layers = [_Layer(done.trial, **own) for own in done.measured["layers"].values()]
        return _Network(layers, done.result.metrics["test_accuracy"])

    def ratios(self, what: str, *, effective: bool) -> Array:
        """Measured over predicted, of the layers for which there is a prediction."""
        pairs = [(getattr(x, what), x.predicted(x.total if effective else x.trial.weight_decay)) for x in self.layers]
        found = np.array([value / getattr(p, what) for value, p in pairs])
        return found[np.isfinite(found)]

    def _mean(self, what: str, *, effective: bool) -> float:
        return float(np.exp(np.log(self.ratios(what, effective=effective)).mean()))

    @property
    def radial(self) -> float:
        return float(np.mean([x.radial / x.trial.weight_decay for x in self.layers]))

    @property
    def largest(self) -> float:
        return max(abs(x.radial) / x.trial.weight_decay for x in self.layers)

    @property
    def growth(self) -> float:
        """How much larger |λ_u/λ| is late than at the beginning, a mean over layers."""
        return float(np.mean([abs(x.radial) / x.trial.weight_decay - x.early for x in self.layers]))

    @property
    def settling(self) -> float:
        return float(np.mean([x.total > 0 for x in self.layers]))

    @property
    def rotation(self) -> float:
        return self._mean("rotation", effective=False)

    @property
    def rotation_e(self) -> float:
        return self._mean("rotation", effective=True)

    @property
    def norm(self) -> float:
        return self._mean("norm", effective=False)

    @property
    def norm_e(self) -> float:
        return self._mean("norm", effective=True)

    def error(self, *, effective: bool) -> float:
        """Mean of |log(measured/predicted)| of rotation, over layers."""
        return float(np.abs(np.log(self.ratios("rotation", effective=effective))).mean())


def _smooth(values: Array) -> Array:
    """Means over a twentieth of the run: a single batch's λ_u is many times λ, of both signs."""
    return np.array([part.mean() for part in np.array_split(values, 20)])


def _variant(trial: Trial) -> str:
    options = {k: v for k, v in trial.model_options.items() if k != "width"}
    return next(name for name, own in VARIANTS.items() if own == options)


def _claims(
    found: Mapping[str, list[_Network]], rows: Sequence[dict[str, Any]], learns: Mapping[str, Check]
) -> list[Claim]:  # fmt: skip
    claims, fig = [], "[kosson2024] Fig. 11"
    table = {row["network"]: row for row in rows}
    for name in ("standardised", "batch norm"):
        if name in table:
            key, row = name.replace(" ", "-"), table[name]
            claims += [
                Claim(f"normalised/{key}-radial", fig, f"largest |λ_u / λ| of a layer, {name}", 0.0,
                      row["largest |λ_u / λ|"]),
                Claim(f"table/{key}-rotation", fig, f"rotation over [kosson2024]'s, {name}", 1.0,
                      row["rotation / [kosson2024]"],
                      tolerance=0.1),
                Claim(f"table/{key}-norm", fig, f"norm over [kosson2024]'s, {name}", 1.0,
                      row["norm / [kosson2024]"], tolerance=0.1),
            ]  # fmt: skip
    if "plain" in table:
        row, networks = table["plain"], found["plain"]
        better = Stat.of([n.error(effective=False) - n.error(effective=True) for n in networks])
        claims += [
            Claim("radial/size", fig, "ln of the largest |λ_u / λ| of a layer, plain", math.log(LEAST_RADIAL),
                  Stat.of([math.log(n.largest) for n in networks]), "above"),
            Claim("radial/growth", fig, "growth of |λ_u / λ| over training, plain", 0.0,
                  Stat.of([n.growth for n in networks]), "above"),
            Claim("effective/rotation", fig, "rotation over [kosson2024]'s with λ_e, plain", 1.0, row["rotation / "
                                                                                                      "[kosson2024] "
                                                                                                      "with λ_e"],
                  tolerance=0.1),
            Claim("effective/norm", fig, "norm over [kosson2024]'s with λ_e, plain", 1.0, row["norm / [kosson2024] "
                                                                                              "with λ_e"],
                  tolerance=0.1),
            Claim("better", fig, "error |log| of rotation with λ less that with λ_e, plain", 0.0, better,
                  "above"),
        ]  # fmt: skip
    ends = [relaxed(next(iter(found.values()))[0].layers[0].trial, LATE, momentum=0.9)] if found else []
    checked = []
    for claim in claims:
        name = next((v for v in VARIANTS if v.replace(" ", "-") in claim.name), "plain")
        early = claim.statement == "radial"  # of gradients, wherever norms are
        checked.append(dataclasses.replace(claim, checks=[learns[name], *([] if early else ends)]))
    return checked
