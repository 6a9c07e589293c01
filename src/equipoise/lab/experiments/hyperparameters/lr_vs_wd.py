"""Learning rate against weight decay at a constant product: a normalised network, a GPT.  [kosson2024] Fig. 3, 13."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.checks import baseline, inside, learnt
from equipoise.lab.experiments.shared.figures import points
from equipoise.lab.experiments.shared.noisy import NOISY, is_noisy, not_by_heart
from equipoise.lab.experiments.shared.sweep import best, by_seed, by_setting, gap, seeds, stat
from equipoise.lab.experiments.shared.tasks import BOTH, by_task
from equipoise.lab.experiments.shared.watched import watched
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import stationary

SOURCES = {"vision": "[kosson2024] Fig. 3", "text": "[kosson2024] Fig. 13"}
METRICS = {"vision": "test_accuracy", "text": "test_loss"}
VARIANT = "rotational_adamw"
WORDS = {"adamw": "AdamW", VARIANT: "RV-AdamW"}
FROZEN = {"gain": {"lr": 0.0}, "bias": {"lr": 0.0}}
FLAT = {"vision": 0.01, "text": 0.05}
"""How much worse than the best still counts as flat, of accuracy and of loss, and more than which ends must be worse.
Ours; [kosson2024] has a figure."""


@dataclass(frozen=True)
class _Task:
    base: Trial
    product: float
    lrs: tuple[float, ...]


EVEN = (0.95, 1.05)
"""How far from settled a forecast may be that still counts as settled."""

NOISE = "noisy"
TIMES = 4.0
"""How much larger the product is where it must show in the rotation."""

LATE = (0.6, 1.0)
"""The part of a run at constant lr that is settled."""


@dataclass(frozen=True)
class _Size:
    tasks: dict[str, _Task]
    settling: _Task
    seeds: int


SIZES = {
    "smoke": _Size({
        "vision": _Task(BOTH["smoke"][0].vary({"steps": 40}), 3e-2, (1e-3, 1e-2, 1.0)),
        "text": _Task(BOTH["smoke"][1].vary({"steps": 20, "warmup": 8, "data_options.length": 64}), 3e-2, (1e-3, 1e-2)),
    }, _Task(NOISY.vary({"steps": 200, "data_options.samples": 13_000}), 3e-2, (3e-3, 1e-2, 3e-2)), 1),
    "small": _Size({
        "vision": _Task(BOTH["small"][0], 1e-2, (1e-4, 1e-3, 1e-2, 1e-1, 1.0)),
        "text": _Task(BOTH["small"][1], 1e-2, (3e-4, 3e-3, 3e-2, 3e-1)),
    }, _Task(NOISY, 1e-2, (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)), 3),
    "medium": _Size({
        "vision": _Task(BOTH["medium"][0], 1e-2, (1e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 1.0)),
        "text": _Task(BOTH["medium"][1], 5e-3, (1e-3, 5e-3, 1e-2, 2e-2, 4e-2, 0.2)),
    }, _Task(NOISY, 1e-2, (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)), 3),
    "full": _Size({
        "vision": _Task(BOTH["full"][0], 5e-4, (1e-4, 9e-4, 2.7e-3, 8.3e-3, 2.5e-2, 5e-2, 0.1, 0.3, 0.9)),
        "text": _Task(BOTH["full"][1], 2.5e-3, (1e-4, 5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2)),
    }, _Task(NOISY.vary({"steps": 8000, "data_options.samples": 600_000}), 1e-3,
             (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)), 5),
}  # fmt: skip
"""For each task: the trial, ηλ, learning rates; the same where rotation is to settle, at a constant lr; and seeds."""


@final
class LrVsWd(Experiment):
    """AdamW and its rotational variant over the learning rate, ηλ being constant."""

    name: ClassVar[str] = "lr-vs-wd"
    source: ClassVar[str] = "[kosson2024] Fig. 3 and 13"
    about: ClassVar[str] = "At constant lr·wd the settled rotation is the same; gains, biases and transients are not."
    statements: ClassVar[Mapping[str, str]] = {
        **{
            f"{kind}-{name}": f"{says}; {word}"
            for name, word in WORDS.items()
            for kind, says in {
                **by_task(
                    "low", "[kosson2024] Fig. 3, 13: at a constant product of lr and decay a very low lr is worse"
                ),
                **by_task(
                    "high", "[kosson2024] Fig. 3, 13: at a constant product of lr and decay a very high lr is worse"
                ),
                **by_task("flat", "[kosson2024] Fig. 3, 13: near the best lr the result hardly depends on it"),
            }.items()
        },
        "transient": "[kosson2024] Fig. 3, 13: at a low lr AdamW first rotates too slowly, at a high one too fast",
        "settled": "[kosson2024] Fig. 3, Table 1: once settled the rotation depends on the product alone",
        "frozen": "[kosson2024] Fig. 3: with gains and biases frozen the variant is as good as at the lowest lr "
        "(0.908)",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Every lr with the decay that goes with it; and the variant with gains and biases frozen."""
        size, found = SIZES[preset], []
        for name, task in size.tasks.items():
            for lr in task.lrs:
                plain = watched(task.base.vary({"lr": lr, "weight_decay": task.product / lr}), 30)
                turned = plain.vary({"optimizer": VARIANT})
                if name == "text":
                    turned = turned.vary({"model_options.gains": True,
                                          "optimizer_options.roles": {"embedding": {"rotate": False}}})  # fmt: skip
                found += [plain, turned]
                if name == "vision" and lr == _middle(task):
                    found.append(turned.vary({"optimizer_options.roles": FROZEN}))
        own = size.settling
        pairs = [*((lr, own.product / lr) for lr in own.lrs), (_middle(own), TIMES * own.product / _middle(own))]
        found += [watched(own.base).vary({"lr": lr, "weight_decay": decay}) for lr, decay in pairs]
        return seeds(found, size.seeds)

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Norm and rotation over the steps beside theory's, and what is reached without a network."""
        return {"path": _Path.measure(run, result.trial), "baseline": baseline(result.trial)}

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """The curve of each, the rotation at the beginning and once settled over the prediction, norms."""
        settings = by_setting([d for d in done if not is_noisy(d.trial)], ("model", "optimizer", "lr"))
        rows: list[dict[str, Any]] = []
        claims: list[Claim] = []
        curves: dict[str, Any] = {}
        for task in SOURCES:
            mine = {k: v for k, v in settings.items() if (k[0] == "gpt") == (task == "text")}
            for name in ("adamw", VARIANT):
                sweep = {k[2]: [d for d in v if not _frozen(d)] for k, v in sorted(mine.items()) if k[1] == name}
                paths = {lr: [_Path.of(d) for d in v if d.result.status == "finished"] for lr, v in sweep.items()}
                rows += [_row(task, name, lr, sweep[lr], paths[lr]) for lr in sweep]
                claims += _claims(task, name, sweep, paths)
                curves[f"{task} {name}"] = (
                    {lr: stat(v, METRICS[task]) for lr, v in sweep.items()}, {lr: p[0] for lr, p in paths.items() if p}
                )  # fmt: skip
            still = [d for v in mine.values() for d in v if _frozen(d)]
            if still:
                rows.append(_row(task, f"{VARIANT}, gains frozen", still[0].trial.lr, still, []))
                low = mine[min(k for k in mine if k[1] == VARIANT)]
                claims.append(
                    Claim("frozen", "[kosson2024] Fig. 3: 0.908", "accuracy of the RV at the lowest lr less that with "
                          "gains and biases frozen", 0.0, gap(low, still, METRICS[task]), tolerance=FLAT[task],
                          checks=[learnt(low)])
                )  # fmt: skip
        noisy = by_setting([d for d in done if is_noisy(d.trial)], ("lr", "weight_decay"))
        late = {key: [_Path.of(d) for d in own if d.measured] for key, own in noisy.items()}
        rows += [_row(NOISE, "adamw, constant lr", key[0], own, late[key]) for key, own in noisy.items()]
        lowest = min((lr * decay for lr, decay in noisy), default=0.0)
        shown = {k: v for k, v in sorted(late.items()) if v and k[0] * k[1] < 1.01 * lowest}
        curves[f"{NOISE} adamw"] = (
            {k[0]: Stat.of([p.last for p in v]) for k, v in shown.items()}, {k[0]: v[0] for k, v in shown.items()}
        )  # fmt: skip
        return Outcome(rows, [*claims, *_settled(noisy)], curves)

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """The metric over lr; and of AdamW the norm and the rotation over the steps, the prediction dashed.

        Below, at a constant lr, the late rotation over lr.
        """
        axes = figure.subplots(3, 3)
        for line, task in zip(axes, (*SOURCES, NOISE), strict=True):
            for name, style in (("adamw", "o-"), (VARIANT, "s--")):
                found, _ = outcome.curves.get(f"{task} {name}", ({}, {}))
                if any(s.count for s in found.values()):
                    points(line[0], found, fmt=style, marker=None, label=name)
            what = "late rotation" if task == NOISE else METRICS[task].replace("_", " ")
            line[0].set(title=f"{task}: {what}", xlabel="lr", xscale="log")
            _, paths = outcome.curves.get(f"{task} adamw", ({}, {}))
            if task == NOISE and paths:
                settled = [path.expected[-1] for path in paths.values()]
                line[0].plot(list(paths), settled, "k--", label="theory")
                line[0].set_ylim(0, 1.5 * max(settled))
            line[0].legend(fontsize=7)
            for lr, path in paths.items():
                line[1].semilogy(path.steps, path.norm, label=f"lr {lr:g}")
                line[2].semilogy(path.steps, path.rotation, label=f"lr {lr:g}")
            if paths:
                path = next(iter(paths.values()))
                line[2].semilogy(path.steps, path.expected, "k--", label="settled, by theory")
            line[1].set(title=f"{task}, AdamW: ‖w‖ over the initial", xlabel="step")
            line[2].set(title=f"{task}, AdamW: rotation", xlabel="step")
            line[2].legend(fontsize=6, loc="center left", bbox_to_anchor=(1, 0.5))
            for axis in line:
                axis.title.set_fontsize(9)
                axis.minorticks_off()  # a log axis has many, and each is a path in the file


@final
@dataclass(frozen=True)
class _Path:
    """Norm over the initial one, rotation, its forecast, and where it settles; means over hidden layers, by step."""

    steps: Array
    norm: Array
    rotation: Array
    forecast: Array
    expected: Array

    @staticmethod
    def of(done: Done) -> _Path:
        return _Path(**done.measured["path"])

    @staticmethod
    def measure(run: Run, trial: Trial) -> dict[str, Any]:
        betas = trial.optimizer_options.get("betas", (0.9, 0.999))
        hidden = [info for info in run.tensors.values() if info.role == "matrix"]
        norm = np.mean([run.series("norm", i.name).values / i.info["init_norm"] for i in hidden], 0)
        rotation = np.mean([run.series("rotation", i.name).values for i in hidden], 0)
        plain = [run.compare(i.name, points=None).plain.rotation for i in hidden]
        lr = run.series(f"lr/{hidden[0].group}")
        settled = [
            stationary("adamw", lr=max(float(x), 1e-30), weight_decay=trial.weight_decay, betas=tuple(betas),
                       size=1).rotation
            for x in lr.values
        ]  # fmt: skip
        return {
            "steps": lr.steps.astype(np.float64), "norm": norm, "rotation": rotation, "forecast": np.mean(plain, 0),
            "expected": np.array(settled),
        }  # fmt: skip

    def over(self, start: float, stop: float) -> float:
        """Rotation over where it would settle at the present lr, mean over this part of the run."""
        part = (self.steps > start * self.steps[-1]) & (self.steps <= stop * self.steps[-1])
        return float((self.rotation[part] / self.expected[part]).mean())

    @property
    def early(self) -> float:
        return self.over(0.0, 0.1)

    @property
    def last(self) -> float:
        """Rotation where it has settled, at a constant lr."""
        return float(self.rotation[self._late].mean())

    @property
    def planned(self) -> float:
        """The forecast's over where it settles: how settled theory itself says that it is."""
        return float((self.forecast[self._late] / self.expected[self._late]).mean())

    @property
    def _late(self) -> NDArray[np.bool_]:
        return (self.steps > LATE[0] * self.steps[-1]) & (self.steps <= LATE[1] * self.steps[-1])

    @property
    def settled(self) -> float:
        return self.over(0.6, 0.8)  # later a cosine falls faster than norms follow


def _row(task: str, name: str, lr: float, members: Sequence[Done], paths: Sequence[_Path]) -> dict[str, Any]:
    return {
        "task": task, "optimizer": name, "lr": lr, "wd": members[0].trial.weight_decay,
        "diverged": sum(d.result.status == "diverged" for d in members),
        "test accuracy": stat(members, "test_accuracy"), "test loss": stat(members, "test_loss"),
        "early rotation / settled": Stat.of([p.early for p in paths]),
        "late rotation / settled": Stat.of([p.settled for p in paths]),
        "last norm / initial": Stat.of([float(p.norm[-1]) for p in paths]),
    }  # fmt: skip


def _claims(
    task: str, name: str, sweep: dict[float, list[Done]], paths: dict[float, list[_Path]]
) -> list[Claim]:  # fmt: skip
    metric, source, lrs = METRICS[task], SOURCES[task], sorted(sweep)
    top = best({(lr,): v for lr, v in sweep.items()}, metric, lowest=task == "text")
    if top is None or len(lrs) < 2:
        return []
    learns = [learnt(sweep[top[0]])]
    at, sign = lrs.index(top[0]), -1.0 if task == "text" else 1.0
    of = f"{task}, {name}: {'loss' if task == 'text' else 'accuracy'}"

    def worse(than: float, lr: float) -> Stat:
        found = gap(sweep[than], sweep[lr], metric)
        return Stat(sign * found.mean, found.std, found.count)

    found = []
    for end, lr in (("low", lrs[0]), ("high", lrs[-1])):
        other = best({(x,): v for x, v in sweep.items() if x != lr}, metric, lowest=task == "text")
        if other is not None and worse(other[0], lr).count:  # where all have diverged the row says so
            found.append(
                Claim(f"{end}-{task}-{name}", source,
                      f"{of}, how much worse at the {end}est lr than at the best other", 0.0,
                      worse(other[0], lr), "above", checks=learns, least=FLAT[task])
            )  # fmt: skip
    beside = [lrs[i] for i in (at - 1, at + 1) if 0 <= i < len(lrs)]
    near = min(beside, key=lambda lr: m if (m := worse(top[0], lr).mean) == m else np.inf)
    found.append(Claim(f"flat-{task}-{name}", source, f"{of}, how much worse at the better neighbour of the best lr",
                       0.0, worse(top[0], near), tolerance=FLAT[task],
                       checks=[*learns, inside(sweep[top[0]], {(x,): v for x, v in sweep.items()}, name)]))  # fmt: skip
    if name == "adamw":
        for end, lr, relation in (("low", lrs[0], "below"), ("high", lrs[-1], "above")):
            if paths[lr]:
                found.append(
                    Claim(f"transient/{task}-{end}", source,
                          f"{task}, AdamW at the {end}est lr: early rotation over the settled one", 1.0,
                          Stat.of([p.early for p in paths[lr]]), relation)
                )  # fmt: skip
    return found


def _settled(settings: Mapping[tuple[float, float], list[Done]]) -> list[Claim]:
    """Late rotation of each lr over the middle one's, the product being the same; of a larger product; and theory's."""
    product = {key: float(f"{key[0] * key[1]:.6g}") for key in settings}  # of rounded numbers
    products = sorted(set(product.values()))
    if len(products) < 2:
        return []
    same = {key: own for key, own in settings.items() if product[key] == products[0]}
    middle = sorted(same)[len(same) // 2]
    source, found = "[kosson2024] Fig. 3, Table 1", []

    def claim(part: str, what: str, expected: float, key: tuple[float, float], measured: Stat, near: float) -> None:
        planned = [_Path.of(d).planned for d in settings[key] if d.measured]
        mean = float(np.mean(planned)) if planned else None
        checks = [Check.between("forecast rotation over the settled one", mean, *EVEN), not_by_heart(settings[key])]
        found.append(Claim(f"settled/{part}", source, what, expected, measured, tolerance=near, checks=checks))

    def ratio(key: tuple[float, float]) -> Stat:
        return by_seed(settings[key], settings[middle], lambda a, b: _Path.of(a).last / _Path.of(b).last)

    for key in (k for k in sorted(same) if k != middle):
        claim(f"lr-{key[0]:g}", f"late rotation at lr {key[0]:g} over that at lr {middle[0]:g}, the product being the "
              "same", 1.0, key, ratio(key), 0.1)  # fmt: skip
    larger = next(key for key in settings if key not in same)
    wanted = [stationary("adamw", lr=lr, weight_decay=decay, size=1).rotation for lr, decay in (larger, middle)]
    claim("product", f"late rotation at a product of {products[-1]:g} over that at {products[0]:g}, the lr being the "
          "same", wanted[0] / wanted[1], larger, ratio(larger), 0.1)  # fmt: skip
    over = [p.over(*LATE) for p in (_Path.of(d) for d in settings[middle] if d.measured)]
    claim("theory", f"late rotation at lr {middle[0]:g} over theory's", 1.0, middle, Stat.of(over), 0.15)
    return found


def _middle(task: _Task) -> float:
    return task.lrs[len(task.lrs) // 2]


def _frozen(done: Done) -> bool:
    return "gain" in done.trial.optimizer_options.get("roles", {})
