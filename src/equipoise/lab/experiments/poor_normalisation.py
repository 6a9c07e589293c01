"""Layer normalisation leaves neurons unbalanced: SGDM against its rotational variant over lr.  [kosson2024] Fig. 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from equipoise.lab.config import Trial
from equipoise.lab.experiments._sweep import Setting, Turning, best, by_seed, by_setting, gap, seeds, stat
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.results import Claim, Stat

SOURCE = "[kosson2024] Fig. 5 left"
METRIC = "test_accuracy"
PLAIN, VARIANT = "sgdm", "rotational_sgdm"


@dataclass(frozen=True)
class _Size:
    base: Trial
    lrs: tuple[float, ...]
    seeds: int


_DIGITS = Trial(
    data="digits", data_options={"test": 0.8}, model="mlp", model_options={"width": 64, "depth": 4}, batch_size=64,
    schedule="cosine", steps=300, warmup=8, weight_decay=5e-3,
)  # fmt: skip

SIZES = {
    "smoke": _Size(_DIGITS.vary({"steps": 40, "model_options.width": 16}), (0.1, 0.5), 1),
    "small": _Size(_DIGITS, (0.01, 0.03, 0.1, 0.3, 1.0), 3),
    "full": _Size(
        Trial(
            data="cifar", data_options={"path": "cifar-100-binary"}, model="resnet",
            model_options={"size": "resnet-18"}, batch_size=256, schedule="cosine", steps=35_200, warmup=880,
            weight_decay=5e-4,
        ),
        (0.03, 0.1, 0.3, 0.5, 1.0, 3.0), 5,
    ),
}  # fmt: skip
"""The trial, learning rates, seeds."""


@final
class PoorNormalisation(Experiment):
    """A network with layer normalisation over lr; and with batch normalisation at one lr, to compare balance."""

    name: ClassVar[str] = "poor-normalisation"
    source: ClassVar[str] = SOURCE
    about: ClassVar[str] = "With layer normalisation neurons rotate unevenly under SGDM; controlled rotation helps."
    statements: ClassVar[Mapping[str, str]] = {
        "better": "[kosson2024] Fig. 5 left: with layer normalisation RV-SGDM is better than SGDM, at its best lr and "
        "others",
        "uneven": "[kosson2024] section 3: with layer normalisation SGDM rotates neurons less evenly; its variant "
        "does not",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Both optimizers at every lr."""
        size, found = SIZES[preset], []
        watch = {"every": max(2, size.base.steps // 30), "neurons": 16, "spectra": 0}
        for lr in size.lrs:
            for name in (PLAIN, VARIANT):
                one = size.base.vary({"lr": lr, "optimizer": name, "watch": watch, "model_options.norm": "layer"})
                found.append(one)
                if lr == size.lrs[len(size.lrs) // 2]:
                    found.append(one.vary({"model_options.norm": "batch"}))
        return seeds(found, size.seeds)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Accuracy and spread of rotation, lr by lr."""
        settings = by_setting(done, ("model_options.norm", "optimizer", "lr"))
        turning = {
            key: {d.trial.seed: Turning.read(d) for d in members if d.result.status == "finished"}
            for key, members in settings.items()
        }
        rows = [_row(key, settings[key], list(turning[key].values())) for key in sorted(settings)]
        curves = {
            name: {k[2]: (stat(v, METRIC), Stat.of([t.over_neurons for t in turning[k].values()]))
                   for k, v in sorted(settings.items()) if k[:2] == ("layer", name)}
            for name in (PLAIN, VARIANT)
        }  # fmt: skip
        return Outcome(rows, _claims(settings, turning), curves)

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Accuracy, and the spread of rotation over neurons, over lr."""
        axes = figure.subplots(1, 2)
        for name, colour in ((PLAIN, "black"), (VARIANT, "tab:orange")):
            for axis, i in zip(axes, (0, 1), strict=True):
                kept = {lr: pair[i] for lr, pair in outcome.curves.get(name, {}).items() if pair[i].count}
                bars = [0.0 if s.count < 2 else s.std for s in kept.values()]
                axis.errorbar(list(kept), [s.mean for s in kept.values()], bars, fmt="o-", color=colour, capsize=3,
                              label=name)  # fmt: skip
        axes[0].set(title="layer normalisation: test accuracy", xlabel="lr", xscale="log")
        axes[1].set(title="spread of rotation over neurons", xlabel="lr", xscale="log", ylim=(0, None))
        axes[0].legend()


def _row(key: Setting, members: Sequence[Done], turning: Sequence[Turning]) -> dict[str, Any]:
    norm, name, lr = key
    return {
        "norm": norm, "optimizer": name, "lr": lr, "diverged": sum(d.result.status == "diverged" for d in members),
        "accuracy": stat(members, METRIC), "test loss": stat(members, "test_loss"),
        "rotation": Stat.of([t.mean for t in turning]),
        "spread over layers": Stat.of([t.over_layers for t in turning]),
        "spread over neurons": Stat.of([t.over_neurons for t in turning]),
    }  # fmt: skip


def _claims(settings: Mapping[Setting, list[Done]], turning: Mapping[Setting, Mapping[int, Turning]]) -> list[Claim]:
    found: list[Claim] = []
    sweeps = {name: {k: v for k, v in settings.items() if k[:2] == ("layer", name)} for name in (PLAIN, VARIANT)}
    tops = {name: best(sweep, METRIC) for name, sweep in sweeps.items()}
    plain, turned = tops[PLAIN], tops[VARIANT]
    if plain is not None and turned is not None:
        found.append(Claim("better/best", SOURCE, "accuracy of RV-SGDM less SGDM's, each at its best lr", 0.0,
                           gap(settings[turned], settings[plain], METRIC), "above"))  # fmt: skip
    for norm, name, lr in sorted(sweeps[VARIANT]):
        both = gap(settings[norm, name, lr], settings.get((norm, PLAIN, lr), []), METRIC)
        if both.count:
            found.append(
                Claim(f"better/lr-{lr:g}", SOURCE, f"accuracy of RV-SGDM less SGDM's at lr {lr:g}", 0.0, both, "above")
            )
    for lr in sorted({k[2] for k in settings if k[0] == "batch"}):
        layer, batch, even = ("layer", PLAIN, lr), ("batch", PLAIN, lr), ("layer", VARIANT, lr)

        def ratio(a: Setting, b: Setting) -> Stat:
            return by_seed(settings.get(a, []), settings.get(b, []), lambda x, y: turning[a][x.trial.seed].over_neurons
                           / turning[b][y.trial.seed].over_neurons)  # fmt: skip

        of = f"spread of rotation over neurons at lr {lr:g}"
        found += [
            Claim("uneven/layer", "[kosson2024] section 3", f"{of}, SGDM with layer over with batch normalisation", 1.0,
                  ratio(layer, batch), "above"),
            Claim("uneven/variant", "[kosson2024] section 3", f"{of}, layer normalisation, RV-SGDM over SGDM", 1.0,
                  ratio(even, layer), "below"),
        ]  # fmt: skip
    return found
