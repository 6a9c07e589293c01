"""Layer normalisation leaves neurons unbalanced: SGDM against its rotational variant over lr.  [kosson2024] Fig. 5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.shared.checks import fair, learnt, rotates
from equipoise.lab.experiments.shared.figures import points
from equipoise.lab.experiments.shared.measured import Rotates
from equipoise.lab.experiments.shared.noisy import NOISY, is_noisy, not_by_heart
from equipoise.lab.experiments.shared.sweep import Setting, Turning, best, by_seed, by_setting, gap, seeds, stat
from equipoise.lab.experiments.shared.tasks import FASHION_BRIEF
from equipoise.lab.experiments.shared.watched import watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.trial import Trial

SOURCE = "[kosson2024] Fig. 5 left"
METRIC = "test_accuracy"
LEAST = 0.005
"""What of an accuracy matters; ours: [kosson2024] has a figure."""
PLAIN, VARIANT = "sgdm", "rotational_sgdm"


@dataclass(frozen=True)
class _Size:
    base: Trial
    lrs: tuple[float, ...]
    balance: Trial
    seeds: int


_DIGITS = Trial(
    data="digits", data_options={"test": 0.8}, model="mlp", model_options={"width": 64, "depth": 4}, batch_size=64,
    schedule="cosine", steps=300, warmup=8, weight_decay=5e-3,
)  # fmt: skip

_BALANCE = NOISY.vary({"model_options.depth": 4, "lr": 0.1, "weight_decay": 0.01})

SIZES = {
    "smoke": _Size(_DIGITS.vary({"steps": 40, "model_options.width": 16}), (0.1, 0.5),
                   _BALANCE.vary({"steps": 60, "data_options.samples": 4000}), 1),
    "small": _Size(_DIGITS, (0.01, 0.03, 0.1, 0.3, 1.0), _BALANCE, 3),
    "medium": _Size(FASHION_BRIEF.vary({"model_options.depth": 4, "weight_decay": 5e-3}),
                    (1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0), _BALANCE, 3),
    "full": _Size(
        Trial(
            data="cifar", data_options={"path": "cifar-100-binary"}, model="resnet",
            model_options={"size": "resnet-18"}, batch_size=256, schedule="cosine", steps=35_200, warmup=880,
            weight_decay=5e-4,
        ),
        (0.03, 0.1, 0.3, 0.5, 1.0, 3.0),
        _BALANCE.vary({"steps": 8000, "data_options.samples": 600_000, "weight_decay": 1e-3}), 5,
    ),
}  # fmt: skip
"""The trial and learning rates of the comparison, the trial by which balance is measured, seeds."""


@final
class PoorNormalisation(Rotates):
    """A network with layer normalisation over lr; and balance, with layer and batch normalisation, on noisy labels."""

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
        """Both optimizers at every lr; and with both normalisations where gradients do not vanish, at a constant lr."""
        size, found = SIZES[preset], []
        base, balance = watched(size.base, 30, neurons=16), watched(size.balance, 40, neurons=16)
        for lr in size.lrs:
            found += [base.vary({"lr": lr, "optimizer": n, "model_options.norm": "layer"}) for n in (PLAIN, VARIANT)]
        found += [
            balance.vary({"optimizer": name, "model_options.norm": norm})
            for norm in ("layer", "batch") for name in (PLAIN, VARIANT)
        ]  # fmt: skip
        return seeds(found, size.seeds)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Accuracy and spread of rotation, lr by lr."""
        settings = by_setting(done, ("data", "model_options.norm", "optimizer", "lr"))
        turning = {
            key: {d.trial.seed: Turning.of(d) for d in members if d.result.status == "finished"}
            for key, members in settings.items()
        }
        rows = [_row(key, settings[key], list(turning[key].values())) for key in sorted(settings)]
        curves: dict[str, Any] = {PLAIN: {}, VARIANT: {}, "spread": {}}
        for key, members in sorted(settings.items()):
            if is_noisy(members[0].trial):
                curves["spread"][f"{key[2]}\n{key[1]}"] = Stat.of([t.over_neurons for t in turning[key].values()])
            else:
                curves[key[2]][key[3]] = stat(members, METRIC)
        return Outcome(rows, _claims(settings, turning), curves)

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Accuracy over lr, and the spread of rotation over neurons on noisy labels."""
        axes = figure.subplots(1, 2)
        for name, colour in ((PLAIN, "black"), (VARIANT, "tab:orange")):
            points(axes[0], outcome.curves[name], color=colour, label=name)
        axes[0].set(title="layer normalisation: test accuracy", xlabel="lr", xscale="log")
        axes[0].legend()
        spread: dict[str, Stat] = {k: s for k, s in outcome.curves["spread"].items() if s.count}
        colours = ["tab:orange" if k.startswith(VARIANT) else "black" for k in spread]
        bars = [0.0 if s.count < 2 else s.std for s in spread.values()]
        axes[1].bar(list(spread), [s.mean for s in spread.values()], 0.6, yerr=bars, color=colours, ecolor="grey",
                    capsize=3)  # fmt: skip
        axes[1].tick_params(axis="x", labelsize=7)
        axes[1].set(title="noisy labels: spread of rotation over neurons")


def _row(key: Setting, members: Sequence[Done], turning: Sequence[Turning]) -> dict[str, Any]:
    data, norm, name, lr = key
    over = [t.over_theory(d.trial) for d, t in zip([d for d in members if d.measured], turning, strict=True)]
    return {
        "data": data, "norm": norm, "optimizer": name, "lr": lr,
        "diverged": sum(d.result.status == "diverged" for d in members),
        "accuracy": stat(members, METRIC), "test loss": stat(members, "test_loss"),
        "rotation": Stat.of([t.mean for t in turning]), "rotation / theory": Stat.of(over),
        "spread over layers": Stat.of([t.over_layers for t in turning]),
        "spread over neurons": Stat.of([t.over_neurons for t in turning]),
    }  # fmt: skip


def _claims(settings: Mapping[Setting, list[Done]], turning: Mapping[Setting, Mapping[int, Turning]]) -> list[Claim]:
    found: list[Claim] = []
    learned = {k[1:]: v for k, v in settings.items() if not is_noisy(v[0].trial)}
    sweeps = {name: {k: v for k, v in learned.items() if k[1] == name} for name in (PLAIN, VARIANT)}
    tops = {name: best(sweep, METRIC) for name, sweep in sweeps.items()}
    plain, turned = tops[PLAIN], tops[VARIANT]
    if plain is not None and turned is not None:
        arms = {"SGDM": (learned[plain], sweeps[PLAIN]), "RV-SGDM": (learned[turned], sweeps[VARIANT])}
        found.append(Claim("better/best", SOURCE, "accuracy of RV-SGDM less SGDM's, each at its best lr", 0.0,
                           gap(learned[turned], learned[plain], METRIC), "above",
                           checks=fair(METRIC, "SGDM", arms), least=LEAST))  # fmt: skip
    for norm, name, lr in sorted(sweeps[VARIANT]):
        own, other = learned[norm, name, lr], learned.get((norm, PLAIN, lr), [])
        if (both := gap(own, other, METRIC)).count:
            found.append(
                Claim(f"better/lr-{lr:g}", SOURCE, f"accuracy of RV-SGDM less SGDM's at lr {lr:g}", 0.0, both, "above",
                      checks=[learnt(own, other)], least=LEAST)
            )  # fmt: skip
    return [*found, *_uneven({k[1:3]: (v, turning[k]) for k, v in settings.items() if is_noisy(v[0].trial)})]


def _uneven(cases: Mapping[Setting, tuple[list[Done], Mapping[int, Turning]]]) -> list[Claim]:
    """Spreads by seed; what is compared must rotate as its lr and decay ask for."""
    layer, batch, even = ("layer", PLAIN), ("batch", PLAIN), ("layer", VARIANT)
    if not {layer, batch, even} <= cases.keys():
        return []

    def ratio(a: Setting, b: Setting) -> Stat:
        (own, ours), (other, theirs) = cases[a], cases[b]
        return by_seed(own, other, lambda x, y: ours[x.trial.seed].over_neurons / theirs[y.trial.seed].over_neurons)

    def checks(*keys: Setting) -> list[Check]:
        words = {PLAIN: "SGDM", VARIANT: "RV-SGDM"}
        each = [(cases[k][0], f"rotation of {words[k[1]]} with {k[0]} normalisation over theory's") for k in keys]
        return [check for own, name in each for check in (rotates(own, name), not_by_heart(own))]

    of = "spread of rotation over neurons"
    return [
        Claim("uneven/layer", "[kosson2024] section 3", f"{of}, SGDM with layer over with batch normalisation", 1.0,
              ratio(layer, batch), "above", checks=checks(layer, batch)),
        Claim("uneven/variant", "[kosson2024] section 3", f"{of}, layer normalisation, RV-SGDM over SGDM", 1.0,
              ratio(even, layer), "below", checks=checks(even, layer)),
    ]  # fmt: skip
