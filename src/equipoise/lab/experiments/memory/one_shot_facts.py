"""Is a fact that was shown once recalled as its batch's contribution says?  [memory-article]; [theory] 3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.memory.recall import Recall, thirds
from equipoise.lab.experiments.shared.sweep import seeds, stat
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.trial import Trial

SYSTEMS: dict[str, dict[str, Any]] = {
    "linear": {"model_options.depth": 0},
    "mlp": {"model_options.norm": "layer"},
    "plain mlp": {},
    "frozen mlp": {"model_options.norm": "layer", "optimizer_options.roles": {"matrix": {"lr": 0.0}}},
}
"""The last two are trained at a constant lr alone: without normalisation, and with the hidden layer frozen."""

ONE_LAYER = ("linear", "frozen mlp")
EXTRA = {"linear": 0.9, "mlp": 2.6}
"""Forgetting besides weight decay, over lr: a pilot's, two seeds (100, 101) at constant lr. What `DESIGNED` is for."""

SCHEDULES: dict[str, tuple[str, dict[str, Any]]] = {
    "constant": ("constant", {}),
    "cosine": ("cosine", {}),
    "wsd": ("wsd", {}),
    "Eq. 16": ("equal_memory", {}),
    "Eq. 17": ("equal_memory_tied", {}),
    "curriculum": ("curriculum", {"parts": (1.0, 3.0, 1.0), "first": 0.5}),
}
EQUAL = ("Eq. 16", "Eq. 17")
UNEVEN = ("constant", "cosine", "wsd", "curriculum")
"""Those by which every batch counts the same, and those by which not."""

ARTICLE, OURS = "[memory-article]", "theory with interference"

DESIGNED = "measured memory"
"""Eq. 16 with the forgetting that was measured in the place of weight decay."""

RECALLED = 0.05
"""Least mean recall by which it can be said when something was forgotten; ours."""

NEAR = 0.25
"""How far from theory's number still counts as it; ours."""


@dataclass(frozen=True)
class _Size:
    steps: int
    windows: int
    inputs: int
    width: int
    decays: tuple[float, ...]
    seeds: int


LR = 2e-3
_SMALL = _Size(960, 24, 256, 256, (0.0, 1.5, 3.0), 5)
SIZES = {
    "smoke": _Size(120, 6, 64, 32, (0.0, 12.0), 1),
    "small": _SMALL,
    "medium": _SMALL,
    "full": _Size(9600, 48, 1024, 1024, (0.0, 0.15, 0.3), 10),
}
"""Steps, windows of recall, inputs, width, weight decays at constant lr (the second for all schedules), seeds."""


@final
class MemoryExperiment(Experiment):
    """Facts shown once, over schedules; and at constant lr over weight decays."""

    name: ClassVar[str] = "memory"
    source: ClassVar[str] = "[memory-article]; [theory] 3"
    about: ClassVar[str] = "Facts that are shown once are recalled as their batch's contribution to the weights says."
    statements: ClassVar[Mapping[str, str]] = {
        "contribution": "[memory-article] Eq. 13, not measured there: what is left of a batch is in proportion to "
        "c_j = η_j Π(1 − η_i λ_i)",
        "not-recency": "theory, against the null hypothesis that later is better: c_j says more than the step",
        "period": "[memory-article] 'Memory Period', not measured there: at constant lr memory falls as exp(−ηλ·age)",
        "no-decay": "[memory-article] 'Memory Period', not measured there: without weight decay no batch is forgotten",
        "equal": "[memory-article] Eq. 16 and 17, not measured there: every batch counts the same",
        "more-equal": "[memory-article] Eq. 16 and 17, not measured there: batches count more equally than at a "
        "constant lr",
        "more-equal-cosine": "[memory-article] Eq. 16 and 17, not measured there: batches count more equally than "
        "under a cosine",
        "interference": "hypothesis of this lab: later batches overwrite at a rate of their own, which adds to ηλ; "
        "where one layer is trained",
        "interference-deep": "hypothesis of this lab: the same; where two layers are",
        "one-rate": "hypothesis of this lab: that rate, fitted at constant lr, makes c_j fit other schedules better",
        "design": "hypothesis of this lab: Eq. 16 made for the measured rate is more equal than for weight decay alone",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Systems × schedules, and the other weight decays at constant lr; each seed has its own facts."""
        size, found = SIZES[preset], []
        for name, changes in SYSTEMS.items():
            base = Trial(
                data="facts", data_options={"steps": size.steps, "windows": size.windows, "inputs": size.inputs},
                model="mlp", model_options={"norm": "none", "width": size.width, "depth": 1}, lr=LR, batch_size=32,
                steps=size.steps, warmup=size.steps // 50, weight_decay=size.decays[1],
            ).vary(changes)  # fmt: skip
            found += [base.vary({"weight_decay": decay}) for decay in size.decays]
            if name in EXTRA:
                given = {**SCHEDULES, DESIGNED: ("equal_memory", {"extra": EXTRA[name]})}
                found += [
                    base.vary({"schedule": kind, "schedule_options": extra})
                    for label, (kind, extra) in given.items() if label != "constant"
                ]  # fmt: skip
        return [t.vary({"data_options.seed": t.seed}) for t in seeds(found, size.seeds)]

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Recall by thirds of the run beside theory's, the forgetting that fits it, and the claims."""
        found = [Recall.read(d) for d in done if d.result.status == "finished"]
        settings: dict[tuple[str, str, float], list[Recall]] = {}
        for one in found:
            settings.setdefault((system(one.trial), label(one.trial), one.trial.weight_decay), []).append(one)
        rates = {(name, decay): float(np.mean([r.rate for r in own]))
                 for (name, kind, decay), own in settings.items() if kind == "constant"}  # fmt: skip
        rows = [_row(key, own, rates.get((key[0], key[2]), key[2]) - key[2]) for key, own in settings.items()]
        claims = [c for name in SYSTEMS for c in _System(name, [r for r in found if system(r.trial) == name]).claims()]
        return Outcome(rows, claims, {"recall": settings, "rates": rates})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Recall over the step of appearance: mean over seeds, theory's contribution scaled to it, and the fit's."""
        found, rates = outcome.curves["recall"], outcome.curves["rates"]
        # Of the decays the first two, so that a system has eight panels.
        shown = sorted({decay for _, _, decay in found})[:2]
        kept = [key for key in found if key[0] in EXTRA and key[2] in shown]
        axes = figure.subplots(4, 4, sharex=True)
        for axis in axes.flat[len(kept) :]:
            axis.set_visible(False)
        for axis, (name, kind, decay) in zip(axes.flat, kept, strict=False):
            own, extra = found[name, kind, decay], rates.get((name, decay), decay) - decay
            gain, x = np.mean([r.gain for r in own], 0), own[0].middle
            spread = np.std([r.gain for r in own], 0, ddof=1) if len(own) > 1 else np.zeros_like(gain)
            axis.fill_between(x, gain - spread, gain + spread, color="tab:blue", alpha=0.25, lw=0)
            axis.plot(x, gain, ".", color="tab:blue", ms=3, label="recall, nats")
            for values, style, what in ((own[0].expected(), "k--", "theory"),
                                        (own[0].expected(extra), "tab:red", "with interference")):  # fmt: skip
                axis.plot(x, values * (gain @ values) / (values @ values), style, lw=1, label=what)
            axis.set_title(f"{name}, {kind}" + (f", wd {decay:g}" if kind == "constant" else ""), fontsize=8)
            axis.tick_params(labelsize=6)
            axis.locator_params(nbins=3)
            axis.spines[["top", "right"]].set_visible(False)
        for axis in axes[-1]:
            axis.set_xlabel("step at which it was shown", fontsize=7)
        figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)


def system(trial: Trial) -> str:
    """The name of a trial's system."""
    fits = {n: own for n, own in SYSTEMS.items() if all(trial.get(path) == v for path, v in own.items())}
    return max(fits, key=lambda n: len(fits[n]))  # the plain one fits all


def label(trial: Trial) -> str:
    """The name of a trial's schedule."""
    if "extra" in trial.schedule_options:
        return DESIGNED
    return next(label for label, (name, _) in SCHEDULES.items() if name == trial.schedule)


def _row(key: tuple[str, str, float], own: Sequence[Recall], extra: float) -> dict[str, Any]:
    return {
        "system": key[0], "schedule": key[1], "wd": key[2], "law's loss": stat([r.done for r in own], "test_loss"),
        "recall, nats": Stat.of([float(r.gain.mean()) for r in own]),
        "accuracy over never shown": Stat.of([float(r.accuracy.mean()) for r in own]),
        **{f"share of {name} third": Stat.of([float(r.share[i]) for r in own])
           for i, name in enumerate(("first", "middle", "last"))},
        "theory's": _words(thirds(own[0].expected())),
        "with interference": _words(thirds(own[0].expected(extra))),
        "forgetting / lr": Stat.of([r.rate for r in own] if key[1] == "constant" else []),
    }  # fmt: skip


def _words(shares: Array) -> str:
    return " ".join(f"{s:.2f}" for s in shares)


@final
class _System:
    """The claims about one system."""

    def __init__(self, name: str, found: Sequence[Recall]) -> None:
        self.name = name
        gain = float(np.mean([r.gain.mean() for r in found])) if found else None
        self.recalls = Check.between("recall of facts that were shown once, nats", gain, low=RECALLED)
        self.constant: dict[float, dict[int, Recall]] = {}
        for r in found:
            if label(r.trial) == "constant":
                self.constant.setdefault(r.trial.weight_decay, {})[r.trial.seed] = r
        self.decays = sorted(self.constant)
        self.by: dict[str, dict[int, Recall]] = {}
        for r in found:
            if len(self.decays) > 1 and r.trial.weight_decay == self.decays[1]:
                self.by.setdefault(label(r.trial), {})[r.trial.seed] = r

    def claims(self) -> list[Claim]:
        return [*self.forgetting(), *self.contributing(), *self.equality(), *self.interference()]

    def claim(
        self, name: str, source: str, what: str, expected: float, measured: Sequence[float], relation: str = "about"
    ) -> Claim:
        statement, _, part = name.partition("/")
        whole = f"{statement}/{self.name}-{part}" if part else f"{statement}/{self.name}"
        return Claim(whole, source, f"{self.name}{what}", expected, Stat.of(measured), relation, NEAR, [self.recalls])

    def forgetting(self) -> Iterator[Claim]:
        if 0.0 not in self.constant:
            return
        free = self.constant[0.0]
        yield self.claim("no-decay", ARTICLE, ", constant lr, no weight decay: share of the last third", 1 / 3,
                         [r.share[2] for r in free.values()])  # fmt: skip
        for decay in self.decays[1:]:
            own = self.constant[decay]
            more = [(own[s].rate - free[s].rate) / decay for s in free if s in own]
            yield self.claim(f"period/{decay:g}", ARTICLE, f", wd {decay:g}: rate of forgetting over ηλ", 1.0,
                             [r.rate / decay for r in own.values()])  # fmt: skip
            statement = "interference" if self.name in ONE_LAYER else "interference-deep"
            yield self.claim(f"{statement}/{decay:g}", OURS, f", wd {decay:g}: rate of forgetting less that without "
                             "weight decay, over ηλ", 1.0, more)  # fmt: skip

    def contributing(self) -> Iterator[Claim]:
        for name in (x for x in UNEVEN if x in self.by and self.name in EXTRA):
            with_c = {s: r.correlation(r.expected()) for s, r in self.by[name].items()}
            yield self.claim(f"contribution/{name}", "theory", f", {name}: correlation of recall with c_j", 0.0,
                             list(with_c.values()), "above")  # fmt: skip
            if name != "constant":
                yield self.claim(f"not-recency/{name}", "theory", f", {name}: correlation of recall with c_j less that "
                                 "with the step", 0.0,
                                 [with_c[s] - r.correlation(r.middle) for s, r in self.by[name].items()],
                                 "above")  # fmt: skip

    def equality(self) -> Iterator[Claim]:
        for name in (x for x in EQUAL if x in self.by):
            yield self.claim(f"equal/{name}", ARTICLE, f", {name}: share of the last third", 1 / 3,
                             [r.share[2] for r in self.by[name].values()])  # fmt: skip
            for other in (x for x in ("constant", "cosine") if x in self.by):
                statement = "more-equal" if other == "constant" else "more-equal-cosine"
                yield self.claim(f"{statement}/{name}-{other}", ARTICLE, f": spread over thirds, {name} less {other}",
                                 0.0, self.spreads(name, other), "below")  # fmt: skip

    def interference(self) -> Iterator[Claim]:
        others = [x for x in SCHEDULES if x != "constant"]
        if not all(x in self.by for x in (*others, DESIGNED)):
            return
        lam = self.decays[1]
        gains = []
        for seed, fitted in self.constant[lam].items():
            if not all(seed in self.by[x] for x in others):
                continue
            own = [self.by[x][seed] for x in others]
            gains += [
                float(np.mean([r.explained(r.expected(fitted.rate - lam)) - r.explained(r.expected()) for r in own]))
            ]
        yield self.claim("one-rate", OURS, ": variance of recall explained, with interference less without, mean over "
                         "the other schedules", 0.0, gains, "above")  # fmt: skip
        yield self.claim("design", OURS, f": spread over thirds, {DESIGNED} less Eq. 16", 0.0,
                         self.spreads(DESIGNED, "Eq. 16"), "below")  # fmt: skip

    def spreads(self, name: str, other: str) -> list[float]:
        """Of one less that of the other, by seed."""
        a, b = self.by[name], self.by[other]
        return [float(np.ptp(a[s].share) - np.ptp(b[s].share)) for s in a if s in b]
