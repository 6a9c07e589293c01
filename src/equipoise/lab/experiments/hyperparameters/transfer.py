"""A setting tuned at a small size, moved by every rule of [theory] 9: how far from the best at the target?"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise.lab.experiments.base import Done, Outcome
from equipoise.lab.experiments.shared.checks import inside, learnt, on_validation
from equipoise.lab.experiments.shared.figures import lr_axis
from equipoise.lab.experiments.shared.measured import Learns
from equipoise.lab.experiments.shared.sweep import best, by_seed, by_setting, gap, seeds, stat
from equipoise.lab.experiments.shared.tasks import ENWIK8_BRIEF, TEXT, WIKITEXT
from equipoise.lab.report.claims import Claim
from equipoise.lab.statistics import LOOKS, Check
from equipoise.lab.train.trial import Trial
from equipoise.theory.advice import RULES, Change, Hyperparameters
from equipoise.theory.advice import transfer as move

METRIC = "test_loss"
FACTOR = 4
"""How much longer, larger or wider the target is."""

CHANGES = {
    "steps": Change(steps=FACTOR, data=FACTOR),
    "batch": Change(steps=1 / FACTOR, batch=FACTOR),
    "width": Change(width=FACTOR),
}
"""More steps of the same batch; a larger batch over the same data; a wider network."""

UNMOVED = "unmoved"
NAIVE: dict[str, dict[str, tuple[float, float]]] = {
    "steps": {UNMOVED: (1, 1), "lr / 4": (1 / FACTOR, 1)},
    "batch": {UNMOVED: (1, 1), "lr × 4": (FACTOR, 1), "lr × 2": (FACTOR**0.5, 1)},
    "width": {UNMOVED: (1, 1), "lr / 4": (1 / FACTOR, 1)},
}
"""Factors on lr and weight decay of rules that leave weight decay alone."""

NEAR = 0.02
"""How much above the best trained is still near, as a share; ours."""

LEAST = 0.01
"""What of a loss matters, nats; ours: half of what is near, of a loss of about one."""

PATHS = ("lr", "weight_decay", "optimizer_options.betas", "optimizer_options.roles")
"""What settings of a size differ in."""


@dataclass(frozen=True)
class _Size:
    base: Trial
    lrs: tuple[float, ...]
    decays: tuple[float, ...]
    seeds: int

    @property
    def grid(self) -> list[Hyperparameters]:
        return [Hyperparameters(lr, decay) for lr in self.lrs for decay in self.decays]


_SMALL = TEXT.vary({"data_options.length": 32, "batch_size": 8, "steps": 160, "schedule": "linear",
                   "model_options.depth": 1, "model_options.width": 32})  # fmt: skip
SIZES = {
    "smoke": _Size(_SMALL.vary({"steps": 20, "data_options.size": 20_000, "model_options.width": 8}), (1e-2,),
                   (0.5,), 1),
    "small": _Size(_SMALL, (2.5e-3, 5e-3, 1e-2, 2e-2), (0.25, 1.0, 4.0), 3),
    "medium": _Size(ENWIK8_BRIEF.vary({"schedule": "linear"}), (2.5e-3, 5e-3, 1e-2, 2e-2, 4e-2), (0.2, 1.0), 3),
    "full": _Size(WIKITEXT.vary({"schedule": "linear", "model_options": {"size": "mini", "width": 128},
                                 "batch_size": 16}), (5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 16e-3), (0.025, 0.1, 0.4, 1.6), 5),
}  # fmt: skip
"""The trial at the small size, learning rates and weight decays of the sweep, seeds."""


@final
class TransferExperiment(Learns):
    """A sweep at the small size and at each target, and the best of the first moved to the others."""

    name: ClassVar[str] = "transfer"
    source: ClassVar[str] = "[theory] 9"
    about: ClassVar[str] = (
        "A tuned setting moved to more steps, a larger batch or width, by published rules and naively."
    )
    statements: ClassVar[Mapping[str, str]] = {
        **{code: f"{rule.source}: {rule.says}; here: at the target its loss is lower than unmoved"
           for code, rule in RULES.items() if code in
           ("memory-steps", "epoch-timescale", "power-lines", "width-product", "width-root", "complete-p")},
        "beats-naive": "[theory] 9: rules that move weight decay beat those that move lr alone; here: the best of each",
        **{f"near-best-{kind}": "[theory] 9: rules move a setting to near the best of the target; here: within 2 % of "
           f"its loss; {kind} ×{FACTOR}" for kind in CHANGES},
    }  # fmt: skip

    def trials(self, preset: str) -> list[Trial]:
        """The sweep at every size but the wider one, whose other parameters keep what is tuned first."""
        size = SIZES[preset]
        return seeds([at(kind, size.base, to) for kind in ("base", "steps", "batch") for to in size.grid], size.seeds)

    def then(self, preset: str, done: Sequence[Done]) -> list[Trial]:
        """The best of the small size, by the mean over seeds, moved by every rule; and the wider one's sweep."""
        size, top = SIZES[preset], tuned(done)
        if top is None:
            return []
        found = [at(kind, size.base, to, rest=top) for kind in CHANGES for to in moved(kind, top).values()]
        # A wider network wants its hidden matrices slower, by every rule: the sweep begins lower.
        lower = [Hyperparameters(to.lr / FACTOR**0.5, to.weight_decay) for to in size.grid]
        found += [at("width", size.base, to, rest=top) for to in lower]
        return seeds(list({t.key: t for t in found}.values()), size.seeds)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Loss of every rule at each target, and how far it is from the best that was trained there."""
        top, kinds = tuned(done), by_kind(done)
        rows: list[dict[str, Any]] = []
        claims: list[Claim] = []
        curves: dict[str, Any] = {}
        if top is None:
            return Outcome(rows, claims)
        rows.append(_row("none", "tuned", _best(kinds["base"]), _best(kinds["base"])))
        for kind in (k for k in CHANGES if kinds.get(k)):
            own = by_setting(kinds[kind], PATHS)
            first = _best(kinds[kind])
            rules = {name: _of(own, kind, to) for name, to in moved(kind, top).items()}
            rules = {name: v for name, v in rules.items() if v}
            rows.append(_row(kind, "best trained", first, first))
            rows += [_row(kind, name, v, first) for name, v in rules.items()]
            claims += _claims(kind, rules, first, _checks(kinds["base"], kinds[kind], first))
            curves[kind] = (
                [(*_pair(v[0].trial), stat(v, METRIC).mean) for v in own.values() if stat(v, METRIC).count],
                {name: _pair(v[0].trial) for name, v in rules.items()},
            )
        return Outcome(rows, claims, curves)

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Above the loss of the sweep over lr and decay, and where rules move to; below how far each is off."""
        kinds = list(outcome.curves)
        axes = figure.subplots(2, len(kinds), squeeze=False)
        shades = None
        for (above, below), kind in zip(axes.T, kinds, strict=True):
            points, rules = outcome.curves[kind]
            lr, decay, loss = (np.array(x) for x in zip(*points, strict=True))
            worse = np.clip(loss / loss.min() - 1, 0, 0.2)
            shades = above.scatter(lr, decay, c=worse, s=50, cmap="viridis_r", vmin=0, vmax=0.2)
            places: dict[tuple[float, float], list[str]] = {}
            for number, place in enumerate(rules.values(), 1):
                places.setdefault(place, []).append(str(number))
            for place, numbers in places.items():
                above.annotate(
                    " ".join(numbers), place, xytext=(5, 4), textcoords="offset points", fontsize=8, color="red"
                )
            above.margins(0.2)
            lr_axis(above, sorted(set(lr))[::2], yscale="log", title=f"{kind} ×{FACTOR}", xlabel="lr",
                    ylabel="weight decay")  # fmt: skip
            above.tick_params(axis="x", labelsize=7)
            own = [row for row in outcome.rows if row["change"] == kind and row["rule"] in rules]
            bars = [row["regret"].std if row["regret"].count > 1 else 0.0 for row in own]
            below.barh(range(len(own)), [row["regret"].mean for row in own], xerr=bars, color="tab:blue")
            below.set_yticks(range(len(own)), [f"{i} {row['rule']}" for i, row in enumerate(own, 1)], fontsize=7)
            below.invert_yaxis()
            below.set(xlabel="loss less the best's")
        if shades is not None:
            figure.colorbar(shades, ax=axes[0, -1], label="loss / best − 1")


def moved(kind: str, top: Hyperparameters) -> dict[str, Hyperparameters]:
    """What each rule makes of the tuned setting, and the naive ones."""
    naive = {
        n: Hyperparameters(top.lr * a, top.weight_decay * b, top.betas, top.eps) for n, (a, b) in NAIVE[kind].items()
    }
    return {**naive, **{m.rule.code: m.to for m in move(top, CHANGES[kind])}}


def at(kind: str, base: Trial, to: Hyperparameters, *, rest: Hyperparameters | None = None) -> Trial:
    """The trial of a size with these hyperparameters; of the wider one they are the hidden matrices' alone.

    Args:
        kind: "base", or one of `CHANGES`.
        base: the trial at the small size.
        to: lr, weight decay, betas and eps.
        rest: those of the other parameters of a wider network.
    """
    change = CHANGES.get(kind, Change())
    steps = round(base.steps * change.steps)
    trial = base.vary({
        "steps": steps, "warmup": steps // 10, "batch_size": round(base.batch_size * change.batch), "lr": to.lr,
        "weight_decay": to.weight_decay, "optimizer_options": {"betas": to.betas, "eps": to.eps},
        "model_options.width": round(base.model_options["width"] * change.width),
    })  # fmt: skip
    if rest is None or kind != "width":
        return trial
    hidden = {"matrix": {"lr": to.lr, "weight_decay": to.weight_decay}}
    return trial.vary({"lr": rest.lr, "weight_decay": rest.weight_decay, "optimizer_options.roles": hidden})


def by_kind(done: Sequence[Done]) -> dict[str, list[Done]]:
    """Trials by their size: "base", or the change."""
    width = min(d.trial.model_options["width"] for d in done)
    batch = min(d.trial.batch_size for d in done)
    steps = min(d.trial.steps for d in done if d.trial.batch_size == batch)
    found: dict[str, list[Done]] = {}
    for d in done:
        t = d.trial
        kind = "width" if t.model_options["width"] > width else "batch" if t.batch_size > batch else "steps"
        found.setdefault("base" if kind == "steps" and t.steps == steps else kind, []).append(d)
    return found


def tuned(done: Sequence[Done]) -> Hyperparameters | None:
    """The best of the small size; None where no setting finished with every seed."""
    # By the seeds of the first look, so that those which come later move the same setting.
    early = sorted({d.trial.seed for d in done})[: LOOKS[0]]
    found = _best([d for d in by_kind(done)["base"] if d.trial.seed in early])
    return None if not found else Hyperparameters(*_pair(found[0].trial))


def _best(done: Sequence[Done]) -> list[Done]:
    settings = by_setting(done, PATHS)
    first = best(settings, METRIC, lowest=True)
    return [] if first is None else settings[first]


def _pair(trial: Trial) -> tuple[float, float]:
    own = trial.optimizer_options.get("roles", {}).get("matrix", {})
    return own.get("lr", trial.lr), own.get("weight_decay", trial.weight_decay)


def _of(settings: Mapping[Any, list[Done]], kind: str, to: Hyperparameters) -> list[Done]:
    """The trials that have these hyperparameters."""
    wanted = Trial(lr=to.lr, weight_decay=to.weight_decay, optimizer_options={"betas": to.betas})  # with its digits
    for own in settings.values():
        trial = own[0].trial
        same = trial.optimizer_options["betas"] == wanted.optimizer_options["betas"]
        if same and _pair(trial) == _pair(wanted):
            return own
    return []


def _row(kind: str, rule: str, own: Sequence[Done], first: Sequence[Done]) -> dict[str, Any]:
    lr, decay = _pair(own[0].trial)
    return {
        "change": kind, "rule": rule, "lr": lr, "wd": decay,
        "betas": ", ".join(f"{b:g}" for b in own[0].trial.optimizer_options["betas"]),
        "test loss": stat(own, METRIC), "regret": gap(own, first, METRIC),
    }  # fmt: skip


def _checks(base: Sequence[Done], target: Sequence[Done], first: Sequence[Done]) -> list[Check]:
    """That something was learnt at the target, that the tuned lr is inside the sweep, and how it was chosen."""
    return [
        learnt(first),
        inside(_best(base), by_setting(base, PATHS), "the small size"),
        on_validation(target, METRIC),
    ]


def _claims(
    kind: str, rules: Mapping[str, Sequence[Done]], first: Sequence[Done], checks: Sequence[Check]
) -> list[Claim]:  # fmt: skip
    naive = {(n,): v for n, v in rules.items() if n in NAIVE[kind]}
    published = {(n,): v for n, v in rules.items() if n not in NAIVE[kind]}
    found = []
    for (name,), own in published.items():
        found.append(Claim(f"{name}/{kind}", RULES[name].source, f"{kind} ×{FACTOR}: test loss, {name} less unmoved",
                           0.0, gap(own, rules[UNMOVED], METRIC), "below", least=LEAST))  # fmt: skip
        near = by_seed(own, first, lambda a, b: a.result.metrics[METRIC] / b.result.metrics[METRIC])
        found.append(Claim(f"near-best-{kind}/{name}", RULES[name].source, f"{kind} ×{FACTOR}: test loss, {name} over "
                           "the best trained", 1 + NEAR, near, "below"))  # fmt: skip
    tops = [best(group, METRIC, lowest=True) for group in (published, naive)]
    if tops[0] is not None and tops[1] is not None:
        found.append(Claim(f"beats-naive/{kind}", "[theory] 9", f"{kind} ×{FACTOR}: test loss, the best rule less "
                           "the best naive one", 0.0, gap(published[tops[0]], naive[tops[1]], METRIC),
                           "below", least=LEAST))  # fmt: skip
    return [dataclasses.replace(claim, checks=checks) for claim in found]
