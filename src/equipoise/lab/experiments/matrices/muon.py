"""Muon, its rotational and hyperball variants and its kinds of decay, on a GPT and a ResNet: [muon-appendix]."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.checks import baseline, learnt
from equipoise.lab.experiments.shared.sweep import by_seed, by_setting, seeds, stat
from equipoise.lab.experiments.shared.tasks import CIFAR, CIFAR_MEDIUM, ENWIK8_BRIEF, KIND, TEXT, WIKITEXT
from equipoise.lab.experiments.shared.watched import curve, hidden
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import stationary

MOMENTUM = 0.95
DECAYS = ("lr", "independent", "corrected", "cautious")
VARIANTS = (*DECAYS, "accurate", "rotational", "hyperball")
"""Kinds of decay; decay "lr" with UVᵀ to 10⁻³ instead of by four steps; norms kept."""

MODELS = {"resnet": "in a ResNet, whose kernels are normalised", "gpt": "in a GPT"}
LATE = 1 / 2
LAST = 0.1
"""Last lr over the peak."""


@dataclass(frozen=True)
class _Size:
    gpt: Trial
    resnet: Trial
    lr: float
    rate: float
    seeds: int


_GPT = TEXT.vary({"model_options": {"size": "tiny", "width": 64}, "batch_size": 8, "steps": 240})
_RESNET = Trial(
    data="digits", data_options={"test": 0.5}, model="resnet", model_options={"size": "resnet-8"}, batch_size=32,
    schedule="cosine", steps=240, warmup=8,
)  # fmt: skip

SIZES = {
    "smoke": _Size(
        _GPT.vary({
            "steps": 10, "model_options": {"size": "tiny", "depth": 1}, "batch_size": 4,
            "data_options": {"size": 50_000, "length": 32},
        }),
        _RESNET.vary({"steps": 10, "model_options.width": 4, "batch_size": 16}), 0.02, 0.02, 1,
    ),
    "small": _Size(_GPT, _RESNET, 0.02, 5e-3, 3),
    "medium": _Size(
        ENWIK8_BRIEF.vary({"model_options.width": 64}),
        CIFAR_MEDIUM.vary({"steps": 300, "warmup": 15, "batch_size": 64}), 0.02, 5e-3, 3,
    ),
    "full": _Size(WIKITEXT, CIFAR, 0.02, 2e-4, 5),
}  # fmt: skip
"""Trials, lr, share of the weights that decay takes at the peak, seeds."""


@final
class MuonVariants(Experiment):
    """Muon with four kinds of decay, and with norms that are kept."""

    name: ClassVar[str] = "muon"
    source: ClassVar[str] = "[muon-appendix]; [theory] 1, 7, 8"
    about: ClassVar[str] = (
        "Do Muon, its rotational and hyperball variants and its decays do what theory says, and learn?"
    )
    statements: ClassVar[Mapping[str, str]] = {
        "spectral-norm": (
            "[muon-appendix] C.3: the steepest step under the spectral norm is η·UVᵀ, every layer's of spectral norm η;"
            " UVᵀ to 10⁻³"
        ),
        "spectral-norm-four": "[muon-appendix] C.3: the same; UVᵀ by four steps of Newton–Schulz",
        **{
            f"forecast-{model}": "theory 1, 2: norm and rotation follow from lr, decay, momentum and shape, for each "
            f"kind of decay; {words}"
            for model, words in MODELS.items()
        },
        "as-asked": "theory 7: rotational and hyperball variants turn by the angle that they are given, at every step",
        **{
            f"match-{model}": "[kosson2024] Tables 2, 3 say of AdamW, SGDM and Lion that rotational variants match "
            f"them with no tuning; hypothesis: so with Muon; {words}"
            for model, words in MODELS.items()
        },
        "corrected": "[defazio2025]: corrected decay makes rotation ∝ lr as lr falls",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Embeddings, heads, gains and biases are AdamW's, the same in all."""
        size, found = SIZES[preset], []
        for base in (size.gpt, size.resnet):
            often = max(2, base.steps // 40)
            adam = {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": size.rate / 3e-3, "decay": "lr"}
            base = base.vary({
                "lr": size.lr, "final": LAST, "optimizer": "muon", "weight_decay": size.rate / size.lr,
                "optimizer_options": {"adam": adam}, "watch": {"every": often, "neurons": 0, "spectra": 1},
            })  # fmt: skip
            for variant in VARIANTS:
                found.append(base.vary(_changes(variant, size)))
        return seeds(found, size.seeds)

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Norm and rotation of matrices beside the forecast, spectral norms, and what is reached without a network."""
        return {"seen": _Seen.measure(run), "baseline": baseline(result.trial)}

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Against the forecast, and against plain Muon."""
        settings = by_setting([d for d in done if d.result.status == "finished"], ("model",))
        rows, claims = [], []
        curves: dict[tuple[str, str], _Seen] = {}
        for (model,), members in settings.items():
            by: dict[str, list[Done]] = {}
            for d in members:
                by.setdefault(_variant(d.trial), []).append(d)
            seen = {name: [_Seen(_variant(d.trial), **d.measured["seen"]) for d in found] for name, found in by.items()}
            for name in (v for v in VARIANTS if v in by):
                row: dict[str, Any] = {"model": model, "Muon": name, "test loss": stat(by[name], "test_loss")}
                row["loss / Muon's"] = _ratio(by[name], by["lr"]) if "lr" in by else None
                for column in COLUMNS:
                    row[COLUMNS[column]] = Stat.of([getattr(s, column) for s in seen[name]])
                rows.append(row)
                claims += _claims(model, name, row, learnt(by.get("lr", [])))
                curves[model, name] = seen[name][0]
        return Outcome(rows, claims, {"seen": curves})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Norm and rotation over the steps, the forecast dashed; spectral norm of updates. Of the first seed."""
        axes = figure.subplots(2, 3)
        shades = ("k", "tab:blue", "tab:green", "tab:purple", "tab:gray", "tab:orange", "tab:red")
        colours: dict[str, str] = dict(zip(VARIANTS, shades, strict=True))
        for (model, name), seen in outcome.curves["seen"].items():
            row = axes[int(model != "gpt")]
            middle = sorted(seen.norms)[len(seen.norms) // 2]
            for axis, measured, plain, what in (
                (row[0], seen.norms, seen.plain_norms, "norm over the first"),
                (row[1], seen.rotations, seen.plain_rotations, "rotation"),
            ):
                scale = seen.norms[middle][0] if what.startswith("norm") else 1.0
                axis.semilogy(seen.steps, measured[middle] / scale, color=colours[name], lw=1.2, label=name)
                axis.semilogy(seen.steps, plain[middle] / scale, color=colours[name], lw=0.8, ls="--")
                axis.set_title(f"{model}: {what} of {middle}", fontsize=7)
            row[2].semilogy(seen.top_steps, seen.relatives, color=colours[name], lw=1.2)
            row[2].set_title(f"{model}: ‖update‖₂ over ‖w‖₂", fontsize=7)
        for axis in axes[1]:
            axis.set(xlabel="step")
        axes[0, 0].legend(fontsize=7)


COLUMNS = {
    "top": "‖U‖₂ / lr", "relative": "‖U‖₂ / ‖w‖₂", "norm": "norm / forecast", "rotation": "rotation / forecast",
    "slope": "slope of rotation over lr", "grown": "last norm / first",
}  # fmt: skip


@final
@dataclass(frozen=True)
class _Seen:
    """One trial's matrices over the steps, beside their forecasts."""

    variant: str
    steps: Array
    lrs: Array
    norms: dict[str, Array]
    rotations: dict[str, Array]
    plain_norms: dict[str, Array]
    plain_rotations: dict[str, Array]
    top_steps: Array
    tops: Array
    """Spectral norm of updates over lr·scale, mean over matrices; with cautious decay in it, as watch has it."""
    relatives: Array
    """The same over that of the weights."""
    grown: float

    @staticmethod
    def measure(run: Run) -> dict[str, Any]:
        tops, relatives, grown = [], [], []
        found: list[dict[str, Array]] = [{}, {}, {}, {}]
        steps = top_steps = np.zeros(0)
        at, rate = curve(run, "lr/0")
        for name in hidden(run):
            got = run.compare(name, points=None)
            steps = got.steps.astype(float)
            parts = (got.norm, got.rotation, got.plain.norm, got.plain.rotation)
            for place, values in zip(found, parts, strict=True):
                place[name] = values
            info = run.tensors[name].info
            top_steps, values = curve(run, "update_top", name)
            tops.append(values / (np.interp(top_steps, at, rate) * info["update_scale"]))
            relatives.append(values / curve(run, "weight_top", name)[1])
            grown.append(got.norm[-1] / info["init_norm"])
        norms, rotations, plain_norms, plain_rotations = found
        return {
            "steps": steps, "lrs": np.interp(steps, at, rate), "norms": norms, "rotations": rotations,
            "plain_norms": plain_norms, "plain_rotations": plain_rotations, "top_steps": top_steps,
            "tops": np.mean(tops, 0), "relatives": np.mean(relatives, 0), "grown": float(np.mean(grown)),
        }  # fmt: skip

    def _over(self, measured: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
        late = self.steps > LATE * self.steps[-1]
        each = [np.log(measured[n][late] / expected[n][late]).mean() for n in measured]
        return float(np.exp(np.mean(each)))

    @property
    def top(self) -> float:
        """Over the late steps."""
        return float(self.tops[self.top_steps > LATE * self.top_steps[-1]].mean())

    @property
    def relative(self) -> float:
        """The same of the relative one."""
        return float(self.relatives[self.top_steps > LATE * self.top_steps[-1]].mean())

    @property
    def norm(self) -> float:
        """Over the forecast's, late."""
        return self._over(self.norms, self.plain_norms)

    @property
    def rotation(self) -> float:
        """The same."""
        return self._over(self.rotations, self.plain_rotations)

    @property
    def slope(self) -> float:
        """The slope of log rotation over log lr late in the run, where lr falls."""
        late = self.steps > LATE * self.steps[-1]
        x = np.log(self.lrs[late])
        return float(np.mean([np.polyfit(x, np.log(v[late]), 1)[0] for v in self.rotations.values()]))


def _changes(variant: str, size: _Size) -> dict[str, Any]:
    """What a variant changes in the trial of Muon."""
    apart = {role: {"rotate": False} for role in ("embedding", "head")}
    match variant:
        case "independent":
            return {"optimizer_options.decay": variant, "weight_decay": size.rate}
        case "corrected":
            return {"optimizer_options.decay": variant, "optimizer_options.lr_max": size.lr}
        case "cautious":
            return {"optimizer_options.decay": variant}
        case "accurate":
            return {"optimizer_options.polar": {"accuracy": 1e-3}}
        case "rotational":
            return {"optimizer": "rotational_muon", "optimizer_options.roles": apart}
        case "hyperball":
            turn = stationary(
                "muon", lr=size.lr, weight_decay=size.rate / size.lr, shape=(64, 64), momentum=MOMENTUM, nesterov=True
            ).rotation
            return {"optimizer": "hyperball_muon", "optimizer_options.roles": apart, "lr": turn}
        case _:
            return {}


def _variant(trial: Trial) -> str:
    if trial.optimizer != "muon":
        return trial.optimizer.partition("_")[0]
    if "polar" in trial.optimizer_options:
        return "accurate"
    return str(trial.optimizer_options.get("decay", "lr"))


def _ratio(a: Sequence[Done], b: Sequence[Done]) -> Stat:
    return by_seed(a, b, lambda x, y: x.result.metrics["test_loss"] / y.result.metrics["test_loss"])


def _claims(model: str, name: str, row: Mapping[str, Any], learns: Check) -> list[Claim]:
    of = f"{name} on the {model}"
    found = []
    if name in DECAYS:
        for what in ("norm", "rotation"):
            text = f"late {what} of Muon, decay {of}, over the forecast"
            found.append(
                Claim(
                    f"forecast-{KIND.get(model, model)}/{name}-{what}",
                    "theory",
                    text,
                    1.0,
                    row[COLUMNS[what]],
                    tolerance=0.1,
                )
            )
    elif name != "accurate":
        text = f"late rotation, {of}, over what was asked"
        found.append(Claim(f"as-asked/{model}-{name}", "theory", text, 1.0, row[COLUMNS["rotation"]], tolerance=0.03))
        if row["loss / Muon's"] is not None:
            text = f"test loss, {of}, over Muon's"
            found.append(
                Claim(
                    f"match-{KIND.get(model, model)}/{name}",
                    "[kosson2024] Tables 2, 3",
                    text,
                    1.0,
                    row["loss / Muon's"],
                    checks=[learns],
                )
            )
    if name in ("lr", "accurate"):
        steps = "four steps" if name == "lr" else "UVᵀ to 10⁻³"
        top = "spectral-norm-four" if name == "lr" else "spectral-norm"
        text = f"late spectral norm of updates over lr, {steps}, on the {model}"
        found.append(
            Claim(f"{top}/{model}-{name}", "[muon-appendix] C.3", text, 1.0, row[COLUMNS["top"]], tolerance=0.1)
        )
    if name == "corrected":
        text = f"slope of log rotation over log lr, corrected decay on the {model}"
        found.append(Claim(f"corrected/{model}", "theory", text, 1.0, row[COLUMNS["slope"]], tolerance=0.1))
    return found
