"""The singular values of weights, gradients and updates of a ResNet and a GPT, under AdamW and Muon: [notepad] 5.3."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.checks import baseline, learnt
from equipoise.lab.experiments.shared.sweep import by_seed, seeds, stat, tuned
from equipoise.lab.experiments.shared.tasks import CIFAR, CIFAR_MEDIUM, ENWIK8_BRIEF, KIND, TEXT, WIKITEXT
from equipoise.lab.experiments.shared.watched import curve, hidden
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run

OF = ("weight", "grad", "update")
MODELS = {"resnet": "ResNet", "gpt": "GPT"}
SIDES = ("align_left", "align_right")
LATE = 1 / 2
"""What comes after this share of the steps is averaged over."""


@dataclass(frozen=True)
class _Size:
    resnet: Trial
    gpt: Trial
    lrs: Mapping[str, Sequence[float]]
    seeds: int


_RESNET = Trial(
    data="digits", data_options={"test": 0.5}, model="resnet", model_options={"size": "resnet-8"}, batch_size=32,
    schedule="cosine", steps=160, warmup=8,
)  # fmt: skip
_GPT = TEXT.vary({"model_options": {"size": "tiny", "width": 64}, "batch_size": 8, "steps": 160})

SIZES = {
    "smoke": _Size(
        _RESNET.vary({"steps": 10, "model_options.width": 4, "batch_size": 16}),
        _GPT.vary({
            "steps": 10, "model_options": {"size": "tiny", "depth": 1}, "batch_size": 4,
            "data_options": {"size": 50_000, "length": 32},
        }),
        {"adamw": (3e-3,), "muon": (0.02,)}, 1,
    ),
    "small": _Size(_RESNET, _GPT, {"adamw": (3e-3, 1e-2), "muon": (0.02, 0.06)}, 3),
    "medium": _Size(
        CIFAR_MEDIUM.vary({"steps": 200, "warmup": 10, "batch_size": 64}),
        ENWIK8_BRIEF.vary({"model_options.width": 64}),
        {"adamw": (3e-3, 1e-2), "muon": (0.02, 0.06)}, 3,
    ),
    "full": _Size(CIFAR, WIKITEXT, {"adamw": (3e-4, 1e-3, 3e-3), "muon": (0.007, 0.02, 0.06)}, 5),
}  # fmt: skip
"""The two trials, learning rates, seeds."""


@final
class Svd(Experiment):
    """Stable rank, effective rank and leading singular vectors of weights, gradients and updates."""

    name: ClassVar[str] = "svd"
    source: ClassVar[str] = "[notepad] 5.3"
    about: ClassVar[str] = (
        "What do the singular values of weights, gradients and updates look like under AdamW and Muon?"
    )
    statements: ClassVar[Mapping[str, str]] = {
        **{
            f"orthogonal-steps-{model}": "[muon-appendix] C.3: the steepest step under the spectral norm has equal "
            f"singular values; Muon's four steps in a {words}"
            for model, words in MODELS.items()
        },
        "adam-low-rank": (
            "Muon's motive, outside the sources ([jordan2024]): steps of Adam are dominated by few directions"
        ),
        "weights-diverse": ("[liu2025]: weights trained by Muon have a higher entropy of singular values"),
        "gradients-low-rank": (
            "[notepad] 5.3 means to look at the SVD of a ResNet and has no result; hypothesis: gradients have fewer"
            " directions than a random matrix"
        ),
        "aligned": (
            "[notepad] 5.3, open as well; hypothesis: the leading singular vectors of gradients lie nearer to the "
            "weights'"
            " than chance has it"
        ),
    }

    def trials(self, preset: str) -> list[Trial]:
        """Both networks with both optimizers, at some learning rates; decay takes 10⁻³ of the weights a step."""
        size, found = SIZES[preset], []
        for base in (size.resnet, size.gpt):
            often = max(2, base.steps // 20)
            base = base.vary({"watch": {"every": often, "neurons": 0, "spectra": 1, "structure": often}})
            for name, lrs in size.lrs.items():
                # What Muon leaves to AdamW keeps the task's options.
                adam = name == "muon" and base.optimizer_options
                options = {"adam": base.optimizer_options} if adam else base.optimizer_options
                own = base.vary({"optimizer": name, "optimizer_options": options})
                found += [own.vary({"lr": lr, "weight_decay": 1e-3 / lr}) for lr in lrs]
        return seeds(found, size.seeds)

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Ranks and alignment of hidden layers over the steps, and what is reached without a network."""
        return {"seen": _Seen.measure(run), "baseline": baseline(result.trial)}

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Means over hidden layers and late steps, at the lr that is best for the test's loss."""
        chosen = tuned(done, ("model", "optimizer"), "test_loss", lowest=True)
        seen = {key: {d.trial.seed: _Seen(**d.measured["seen"]) for d in members} for key, members in chosen.items()}
        rows = []
        for (model, name), members in chosen.items():
            each = list(seen[model, name].values())
            row: dict[str, Any] = {"model": model, "optimizer": name, "lr": members[0].trial.lr}
            row["test loss"] = stat(members, "test_loss")
            for of in OF:
                row[f"stable rank of {of} / random's"] = Stat.of([s.late("stable", of) for s in each])
                row[f"effective rank of {of}, share"] = Stat.of([s.late("share", of) for s in each])
            row["alignment"] = Stat.of([s.alignment for s in each])
            rows.append(row)
        return Outcome(
            rows, _claims(chosen, seen), {"seen": {key: next(iter(found.values())) for key, found in seen.items()}}
        )

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Effective rank of the three over the steps, and alignment: mean over layers, and their range."""
        axes = figure.subplots(2, 4, sharex="row")
        colours = {"adamw": "tab:orange", "muon": "tab:green"}
        for (model, name), seen in outcome.curves["seen"].items():
            row = axes[int(model == "gpt")]
            parts = [(of, seen.share[of], f"{of}, effective rank") for of in OF] + [("grad", seen.aligned, "alignment")]
            for axis, (of, layers, title) in zip(row, parts, strict=True):
                values = np.array(list(layers.values()))
                axis.plot(seen.steps[of], values.mean(0), color=colours[name], lw=2, label=name)
                axis.fill_between(seen.steps[of], values.min(0), values.max(0), color=colours[name], alpha=0.2, lw=0)
                axis.set(ylim=(0, None if title == "alignment" else 1.05))
                axis.set_title(f"{model}: {title}", fontsize=8)
            row[3].axhline(1, color="gray", lw=0.8, ls=":")
        for axis in axes[1]:
            axis.set(xlabel="step")
        axes[0, 0].legend(fontsize=8)


@final
@dataclass(frozen=True)
class _Seen:
    """One trial's hidden layers: ranks and alignment over the measured steps."""

    steps: dict[str, Array]
    """Of each; the last update has no spectrum where lr ends at 0."""
    stable: dict[str, dict[str, Array]]
    """Stable rank over a Gaussian matrix's, mn/(√m + √n)²."""
    share: dict[str, dict[str, Array]]
    """exp of the entropy of σ²/Σσ², over the smaller side."""
    aligned: dict[str, Array]
    """Mean of left and right; 1 by chance."""

    @staticmethod
    def measure(run: Run) -> dict[str, Any]:
        stable: dict[str, dict[str, Array]] = {of: {} for of in OF}
        share: dict[str, dict[str, Array]] = {of: {} for of in OF}
        aligned: dict[str, Array] = {}
        steps: dict[str, Array] = {}
        for name in hidden(run):
            shape = run.tensors[name].shape
            m, n = shape[0], int(np.prod(shape[1:]))
            side = min(m, n)
            if side < 4:  # one channel in, as of a first convolution of few taps
                continue
            for of in OF:
                values = {}
                for what in ("stable_rank", "entropy"):
                    key = (f"grad_{what}/{name}",) if of == "grad" else (f"{of}_{what}", name)
                    steps[of], values[what] = curve(run, *key)
                stable[of][name] = values["stable_rank"] / (m * n / (m**0.5 + n**0.5) ** 2)
                share[of][name] = side ** (values["entropy"] - 1)
            sides = [curve(run, f"{which}/{name}")[1] for which in SIDES]
            aligned[name] = np.mean(sides, 0)
        return {"steps": steps, "stable": stable, "share": share, "aligned": aligned}

    def late(self, what: str, of: str) -> float:
        """Mean over layers and late steps; of weights, at the last."""
        values = np.mean(list(getattr(self, what)[of].values()), 0)
        return float(values[-1]) if of == "weight" else self._late(of, values)

    @property
    def alignment(self) -> float:
        """The same of the alignment."""
        return self._late("grad", np.mean(list(self.aligned.values()), 0))

    def _late(self, of: str, values: Array) -> float:
        return float(values[self.steps[of] > LATE * self.steps[of][-1]].mean())


def _claims(
    chosen: Mapping[tuple[Any, ...], Sequence[Done]], seen: Mapping[tuple[Any, ...], Mapping[int, _Seen]]
) -> list[Claim]:
    found = []
    for model, name in chosen:
        each = list(seen[model, name].values())
        where = f"of the {model} under {name}"
        if name == "muon":
            found.append(
                Claim(f"orthogonal-steps-{KIND.get(model, model)}", "[muon-appendix] C.3",
                      f"effective rank of updates {where}, a share", 1.0,
                      Stat.of([s.late("share", "update") for s in each]))
            )  # fmt: skip
        else:
            found.append(
                Claim(f"adam-low-rank/{model}", "[jordan2024]", f"stable rank of updates {where}, over a random"
                      " matrix's", 1.0, Stat.of([s.late("stable", "update") for s in each]), "below")
            )  # fmt: skip
        found += [
            Claim(f"gradients-low-rank/{model}-{name}", "[notepad] 5.3, open", f"stable rank of gradients {where}, "
                                                                               f"over a"
                  " random matrix's", 1.0, Stat.of([s.late("stable", "grad") for s in each]), "below"),
            Claim(f"aligned/{model}-{name}", "[notepad] 5.3, open", f"alignment of gradients and weights {where}, over"
                  " chance's", 1.0, Stat.of([s.alignment for s in each]), "above"),
        ]  # fmt: skip
    for model in dict.fromkeys(key[0] for key in chosen):
        if {(model, "muon"), (model, "adamw")} <= chosen.keys():
            muon, adamw = seen[model, "muon"], seen[model, "adamw"]
            more = by_seed(
                chosen[model, "muon"], chosen[model, "adamw"],
                lambda a, b, muon=muon, adamw=adamw: muon[a.trial.seed].late("share", "weight")
                - adamw[b.trial.seed].late("share", "weight"),
            )  # fmt: skip
            found.append(
                Claim(f"weights-diverse/{model}", "[liu2025]", f"effective rank of the {model}'s last weights, a"
                      " share, Muon's less AdamW's", 0.0, more, "above")
            )  # fmt: skip
    checks = {model: [learnt(*(v for k, v in chosen.items() if k[0] == model))] for model, _ in chosen}
    return [
        dataclasses.replace(c, checks=next(v for m, v in checks.items() if KIND.get(m, m) in c.name)) for c in found
    ]
