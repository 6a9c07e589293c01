"""AdamW against Adam + L2: sweeps, how evenly they rotate, both made to rotate evenly.  [kosson2024] Fig. 4."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, ClassVar, final

import numpy as np

from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.shared.checks import fair, learnt, rotates
from equipoise.lab.experiments.shared.figures import lr_axis
from equipoise.lab.experiments.shared.measured import Rotates
from equipoise.lab.experiments.shared.sweep import Setting, Turning, best, by_seed, by_setting, gap, seeds, stat
from equipoise.lab.experiments.shared.tasks import FASHION_BRIEF
from equipoise.lab.experiments.shared.watched import watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.train.trial import Trial

SOURCE = "[kosson2024] Fig. 4, appendix O"
METRIC = "test_accuracy"
PAPER = {"adamw": 0.9474, "adam_l2": 0.9408, "rotational_adamw": 0.9457, "rotational_adam_l2": 0.9455}
"""[kosson2024] appendix O: ResNet-18 on CIFAR-10, test accuracy of the best settings, five seeds."""

GAP, GAIN = 0.0066, 0.0047
"""Of these: AdamW's less Adam + L2's, and the wrapped one's less Adam + L2's."""

SWEPT = ("adamw", "adam_l2")
FOLLOW = ("rotational_adamw", "rotational_adam_l2")
"""They take AdamW's best lr and weight decay of the sweep, as in [kosson2024]; the wrapped one takes Adam's best L2."""


@dataclass(frozen=True)
class _Size:
    base: Trial
    lrs: tuple[float, ...]
    decays: tuple[float, ...]
    l2s: tuple[float, ...]
    seeds: int


_DIGITS = Trial(
    data="digits", data_options={"test": 0.8}, model="mlp", model_options={"width": 64, "depth": 4}, batch_size=64,
    schedule="cosine", steps=300,
)  # fmt: skip

SIZES = {
    "smoke": _Size(_DIGITS.vary({"steps": 20, "model_options.width": 16}), (1e-2,), (0.3, 3.0), (1e-3, 1e-2), 1),
    "small": _Size(_DIGITS, (1e-3, 3e-3, 1e-2), (0.3, 3.0, 10.0), (1e-3, 1e-2, 1e-1), 3),
    "medium": _Size(
        FASHION_BRIEF.vary({"model_options.depth": 4, "steps": 800, "warmup": 0}), (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
        (0.5, 1.5, 5.0), (1e-4, 1e-3, 1e-2), 3,
    ),
    "full": _Size(
        Trial(
            data="cifar", data_options={"crop": 4, "flip": True}, model="resnet",
            model_options={"size": "resnet-18"}, batch_size=128, schedule="cosine", steps=78_200,
        ),
        (7.813e-4, 3.125e-3, 1.25e-2, 5e-2), (8e-3, 2e-2, 8e-2, 0.2), (3.125e-5, 1.25e-4, 5e-4, 2e-3), 5,
    ),
}  # fmt: skip
"""Trial, learning rates, decays of AdamW, L2 of Adam, seeds."""


@final
class AdamVsAdamW(Rotates):
    """AdamW, Adam + L2, and the rotational variant of each, at their best settings."""

    name: ClassVar[str] = "adam-vs-adamw"
    source: ClassVar[str] = SOURCE
    about: ClassVar[str] = "Adam + L2 rotates unevenly and does worse than AdamW; made to rotate evenly, it catches up."
    statements: ClassVar[Mapping[str, str]] = {
        "uneven-layers": "[kosson2024] Fig. 4: under Adam + L2 layers rotate less evenly than under AdamW",
        "uneven-neurons": "[kosson2024] appendix I: under Adam + L2 neurons rotate less evenly than under AdamW",
        "gap": "[kosson2024] Fig. 4: at their best settings AdamW is better than Adam + L2 (0.9474, 0.9408)",
        "gains": "[kosson2024] appendix O: made to rotate evenly, Adam + L2 gains (0.9408 to 0.9455)",
        "catches-up": "[kosson2024] appendix O: made to rotate evenly, Adam + L2 is as good as rotational AdamW "
        "(0.9455, 0.9457)",
    }

    def trials(self, preset: str) -> list[Trial]:
        """A grid of lr and weight decay."""
        size, found = SIZES[preset], []
        base = _base(size)
        for name in SWEPT:
            grid = product(size.lrs, size.decays if name == "adamw" else size.l2s)
            found += [base.vary({"optimizer": name, "lr": lr, "weight_decay": decay}) for lr, decay in grid]
        return seeds(found, size.seeds)

    def then(self, preset: str, done: Sequence[Done]) -> list[Trial]:
        """The rotational variants at AdamW's best lr and weight decay, the wrapped one with Adam's best L2."""
        chosen, size = _best(done), SIZES[preset]
        if chosen.keys() != set(SWEPT):
            return []
        adamw, l2 = (chosen[name][0].trial for name in SWEPT)
        base = _base(size).vary({"lr": adamw.lr, "weight_decay": adamw.weight_decay})
        wrapped = {"optimizer": FOLLOW[1], "optimizer_options.l2": l2.weight_decay}
        return seeds([base.vary({"optimizer": FOLLOW[0]}), base.vary(wrapped)], size.seeds)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """The best setting of the two, the variants, and how evenly each rotates."""
        settings = by_setting(done, ("optimizer", "lr", "weight_decay"))
        chosen = _best(done)
        for name in FOLLOW:
            members = [d for d in done if d.trial.optimizer == name]
            if any(d.result.status == "finished" for d in members):
                chosen[name] = members
        turning = {name: _turning(members) for name, members in chosen.items()}
        rows = [_row(name, chosen[name], list(turning[name].values())) for name in chosen]
        grids = {name: {k[1:]: stat(v, METRIC).mean for k, v in settings.items() if k[0] == name} for name in SWEPT}
        layers = {name: turning[name][min(turning[name])] for name in turning}
        return Outcome(rows, _claims(chosen, settings), {"grids": grids, "layers": layers})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Above the sweeps; below the rotation of each layer over the steps, at the best settings."""
        axes = figure.subplots(2, 2, sharey="row")
        for axis, (name, grid) in zip(axes[0], outcome.curves["grids"].items(), strict=True):
            for lr in sorted({lr for lr, _ in grid}):
                points = sorted((decay, value) for (at, decay), value in grid.items() if at == lr)
                axis.semilogx(*np.array(points).T, "o-", label=f"lr {lr:g}")
            label = "L2" if name == "adam_l2" else "weight decay"
            lr_axis(axis, (decay for _, decay in grid), title=f"{name}: test accuracy", xlabel=label)
            axis.legend(fontsize=8)
        for axis, name in zip(axes[1], SWEPT, strict=True):
            for layer, values in (
                outcome.curves["layers"][name].layers.items() if name in outcome.curves["layers"] else ()
            ):
                axis.semilogy(outcome.curves["layers"][name].steps, values, lw=1, label=layer)
            axis.set(title=f"{name}: rotation of layers", xlabel="step", ylabel="radians a step")
        axes[1, 0].legend(fontsize=7)


def _base(size: _Size) -> Trial:
    return watched(size.base, 30, neurons=16)


def _best(done: Sequence[Done]) -> dict[str, list[Done]]:
    """The best setting of each sweep, where there is one."""
    settings = by_setting(done, ("optimizer", "lr", "weight_decay"))
    found: dict[str, list[Done]] = {}
    for name in SWEPT:
        key = best({k: v for k, v in settings.items() if k[0] == name}, METRIC)
        if key is not None:
            found[name] = settings[key]
    return found


def _turning(members: Sequence[Done]) -> dict[int, Turning]:
    """By seed."""
    return {d.trial.seed: Turning.of(d) for d in members if d.result.status == "finished"}


def _row(name: str, members: Sequence[Done], turning: Sequence[Turning]) -> dict[str, Any]:
    trial = members[0].trial
    return {
        "optimizer": name, "lr": trial.lr, "wd": trial.weight_decay, "accuracy": stat(members, METRIC),
        "test loss": stat(members, "test_loss"), "rotation": Stat.of([t.mean for t in turning]),
        "spread over layers": Stat.of([t.over_layers for t in turning]),
        "spread over neurons": Stat.of([t.over_neurons for t in turning]), "accuracy in [kosson2024]": PAPER[name],
    }  # fmt: skip


def _claims(
    chosen: Mapping[str, Sequence[Done]], settings: Mapping[Setting, Sequence[Done]]
) -> list[Claim]:  # fmt: skip
    if not set(SWEPT) <= chosen.keys():
        return []
    adamw, l2 = chosen["adamw"], chosen["adam_l2"]

    # Spread is compared where AdamW has settled, at the best such setting, and of Adam + L2 at the same lr.
    still = {k: v for k, v in settings.items() if k[0] == "adamw" and rotates(v).passed}
    at = best(still, METRIC)
    same = {k: v for k, v in settings.items() if k[0] == "adam_l2" and at is not None and k[1] == at[1]}
    other = best(same, METRIC)
    even = adamw if at is None else settings[at]
    uneven = l2 if other is None else settings[other]

    def ratio(what: str) -> Stat:
        return by_seed(uneven, even, lambda a, b: math.log(getattr(Turning.of(a), what) / getattr(Turning.of(b), what)))

    sweeps = {name: {k: v for k, v in settings.items() if k[0] == name} for name in SWEPT}
    tuned = fair(METRIC, "adam_l2", {name: (chosen[name], sweeps[name]) for name in SWEPT})
    turns = [rotates(even, "late rotation of AdamW over theory's")]
    found = [
        Claim("uneven-layers", SOURCE, "ln of the spread of rotation over layers, Adam + L2 over AdamW", 0.0,
              ratio("over_layers"), "above", checks=turns),
        Claim("uneven-neurons", "[kosson2024] appendix I",
              "ln of the spread of rotation over neurons, Adam + L2 over AdamW", 0.0,
              ratio("over_neurons"), "above", checks=turns),
        Claim("gap", f"{SOURCE}: {GAP}", "accuracy of AdamW less Adam + L2's", 0.0, gap(adamw, l2, METRIC), "above",
              checks=tuned, least=GAP / 2),
    ]  # fmt: skip
    if set(FOLLOW) <= chosen.keys():
        plain, wrapped = (chosen[name] for name in FOLLOW)
        found += [
            Claim("gains", f"{SOURCE}: {GAIN}", "accuracy of wrapped Adam + L2 less Adam + L2's", 0.0,
                  gap(wrapped, l2, METRIC), "above", checks=[learnt(l2), rotates(wrapped)], least=GAIN / 2),
            Claim("catches-up", f"{SOURCE}: -0.0002", "accuracy of wrapped Adam + L2 less RV-AdamW's", 0.0,
                  gap(wrapped, plain, METRIC), tolerance=0.01, checks=[learnt(plain), rotates(wrapped)]),
        ]  # fmt: skip
    return found
