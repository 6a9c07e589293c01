"""Where random walks settle, for every optimizer; AdamW against Adam + L2.  [kosson2024] Table 1, Fig. 8."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.watched import of_neurons
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import stationary

TENSOR = "linear.weight"
LATE = 2 / 3
"""What comes after this share of the steps is settled."""

CLAIMED = {"sgdm": "[kosson2024] Table 1", "adamw": "[kosson2024] Table 1", "lion": "[kosson2024] Eq. 70–72"}
"""What [kosson2024] has formulas for, besides Adam + L2; `theory` has the others."""

BETAS = {"lion": (0.9, 0.99), "adam_l2": (0.9, 0.999), "rmsprop": (0.0, 0.99)}
MOMENTUM = {"muon": 0.95, "sgdm": 0.9, "signsgdm": 0.9}
OPTIONS: dict[str, dict[str, Any]] = {
    "lion": {"betas": (0.9, 0.99)},
    "muon": {"momentum": 0.95, "nesterov": False, "scale": "none"},
    "ngd": {"granularity": "neuron"},
}
OPTIMIZERS = ("adamw", "adam_l2", "sgdm", "rmsprop", "adam_nested", "signsgdm", "lion", "muon", "ngd")


@dataclass(frozen=True)
class _Size:
    width: int
    steps: int
    rate: float
    seeds: int
    paper: int
    neurons: int


_SMALL = _Size(128, 3000, 1e-3, 3, paper=0, neurons=64)
SIZES = {
    "smoke": _Size(96, 900, 5e-3, 1, paper=0, neurons=32),
    "small": _SMALL,
    "medium": _SMALL,
    "full": _Size(128, 100_000, 1e-4, 5, paper=100_000, neurons=128),
}
"""C = K, steps, decay of a step, seeds, and the steps of AdamW and Adam + L2 where run as in [kosson2024] Fig. 8."""

BATCH = 32
POINTS = 60
"""Of a curve in the figure."""


@final
class RandomWalk(Experiment):
    """The simple system of [kosson2024] appendix J under every optimizer, its neurons measured one by one."""

    name: ClassVar[str] = "random-walk"
    source: ClassVar[str] = "[kosson2024] Fig. 8, Table 1, appendix J"
    about: ClassVar[str] = "Norm and rotation that random walks settle at; AdamW balances neurons, Adam + L2 does not."
    statements: ClassVar[Mapping[str, str]] = {
        "table": "[kosson2024] Table 1: norm and rotation that random walks settle at, by optimizer",
        "balance": "[kosson2024] Fig. 8: where gradients differ in size, AdamW rotates neurons alike, and Adam + L2 "
        "does not",
    }

    def trials(self, preset: str) -> list[Trial]:
        """Every optimizer and seed."""
        size = SIZES[preset]
        found = []
        for name in OPTIMIZERS:
            lr, decay = _setting(name, size)
            steps = size.paper or size.steps if name in ("adamw", "adam_l2") else size.steps
            found += [
                Trial(
                    data="noise", model="walk", optimizer=name, lr=lr, weight_decay=decay, steps=steps,
                    batch_size=BATCH, seed=seed, data_options={"inputs": size.width, "outputs": size.width},
                    # Muon's theory is of matrices without preferred directions, which γ would give.
                    model_options={"gammas": "ones" if name == "muon" else "normal"},
                    optimizer_options=OPTIONS.get(name, {}),
                    watch={"every": max(4, steps // 200), "neurons": size.neurons, "spectra": 0},
                )
                for seed in range(size.seeds)
            ]  # fmt: skip
        return found

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Neurons once settled, and of four and of all of them the curves."""
        return _Walk.measure(run)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Measured over predicted, and the spread of rotation over neurons."""
        walks: dict[str, list[_Walk]] = {}
        for one in done:
            if one.result.status == "finished":
                walks.setdefault(one.trial.optimizer, []).append(_Walk.of(one))
        rows, claims = [], []
        for name, found in walks.items():
            row: dict[str, Any] = {"optimizer": name, "lr": found[0].trial.lr, "wd": found[0].trial.weight_decay}
            row |= {"norm": Stat.of([w.norm for w in found]), "rotation": Stat.of([w.rotation for w in found])}
            for what in ("norm", "rotation"):
                for method in ("exact", "small_step"):
                    row[f"{what} / {method}"] = Stat.of([w.ratio(what, method) for w in found])
            row["spread of rotation"] = Stat.of([w.spread for w in found])
            rows.append(row)
            if name in CLAIMED:
                claims += [
                    Claim(f"table/{name}-{what}", CLAIMED[name], f"{what} of {name}, over [kosson2024]'s", 1.0,
                          row[f"{what} / small_step"])
                    for what in ("norm", "rotation")
                ]  # fmt: skip
        if {"adamw", "adam_l2"} <= walks.keys():
            claims += _balance(walks)
        curves = {name: found[0] for name, found in walks.items()}
        return Outcome(rows, claims, curves)

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Neurons with large and small gradients in colours, all in black, prediction dashed.  [kosson2024] Fig. 8."""
        axes = figure.subplots(2, 2, sharex=True)
        names = [n for n in ("adamw", "adam_l2") if n in outcome.curves]
        for line, name in zip(axes, names, strict=False):
            walk: _Walk = outcome.curves[name]
            for axis, what in zip(line, ("norm", "rotation"), strict=True):
                *few, every = walk.curves[what]
                for k, colour in zip(range(len(few)), ("tab:blue", "tab:green", "tab:orange", "tab:pink"), strict=True):
                    axis.plot(walk.steps, few[k], color=colour, lw=0.8, label=f"‖g‖‖w‖ = {walk.shown[k]:.1e}")
                axis.plot(walk.steps, every, color="black", label="all neurons")
                axis.axhline(walk.expected(what, "small_step"), color="red", ls="--", label="[kosson2024]")
                axis.set(title=f"{name}: {what}", ylim=(0, None))
        for axis in axes[-1]:
            axis.set_xlabel("step")
        axes[0, 0].legend(fontsize=7)


@final
@dataclass(frozen=True)
class _Walk:
    """One trial: each neuron once settled, root mean squares over the late steps; curves of four neurons and of all."""

    trial: Trial
    shape: tuple[int, int]
    settled: dict[str, Array]
    grad: Array
    steps: Array
    curves: dict[str, Array]
    """The last is the root mean square over neurons."""
    shown: Array
    """The gradients of the four."""

    @staticmethod
    def measure(run: Run) -> dict[str, Any]:
        info = run.tensors[TENSOR]
        steps = run.series("norm", TENSOR).steps.astype(np.float64)
        series = {what: of_neurons(run, what, TENSOR) for what in ("norm", "rotation", "grad_norm")}
        late = steps > LATE * steps[-1]
        grad = np.sqrt(((series["grad_norm"] * series["norm"])[:, late] ** 2).mean(1))
        order = np.argsort(grad)
        chosen = order[np.linspace(0, len(order) - 1, 4).astype(int)]
        few = slice(None, None, max(1, len(steps) // POINTS))
        both = {what: series[what] for what in ("norm", "rotation")}
        return {
            "rows": info.shape[0], "columns": info.shape[1], "grad": grad, "steps": steps[few], "shown": grad[chosen],
            "settled": {what: np.sqrt((x[:, late] ** 2).mean(1)) for what, x in both.items()},
            "curves": {what: np.vstack([x[chosen], np.sqrt((x**2).mean(0))])[:, few] for what, x in both.items()},
        }  # fmt: skip

    @staticmethod
    def of(done: Done) -> _Walk:
        m = done.measured
        shape = (m["rows"], m["columns"])
        return _Walk(done.trial, shape, m["settled"], m["grad"], m["steps"], m["curves"], m["shown"])

    @property
    def norm(self) -> float:
        return float(np.sqrt((self.settled["norm"] ** 2).mean()))

    @property
    def rotation(self) -> float:
        return float(np.sqrt((self.settled["rotation"] ** 2).mean()))

    @property
    def spread(self) -> float:
        """Coefficient of variation of the settled rotation over neurons."""
        each = self.settled["rotation"]
        return float(each.std() / each.mean())

    def predicted(self, method: str) -> tuple[Array, Array]:
        """Norm and rotation of each neuron; they differ where the gradient's size matters."""
        name, trial = self.trial.optimizer, self.trial
        given: dict[str, Any] = {"lr": trial.lr, "weight_decay": trial.weight_decay, "method": method}
        given |= {"momentum": MOMENTUM[name]} if name in MOMENTUM else {}
        given |= {"betas": BETAS[name]} if name in BETAS else {}
        if name == "muon":
            one = stationary(name, shape=self.shape, **given)
            return np.array([one.norm / math.sqrt(self.shape[0])]), np.array([one.rotation])
        matters = name in ("sgdm", "adam_l2")
        each = [stationary(name, size=self.shape[1], grad_norm=g, **given) for g in (self.grad if matters else [1.0])]
        return np.array([s.norm for s in each]), np.array([s.rotation for s in each])

    def expected(self, what: str, method: str) -> float:
        """Root mean square over neurons, as `norm` and `rotation` are."""
        norm, rotation = self.predicted(method)
        return float(np.sqrt(((norm if what == "norm" else rotation) ** 2).mean()))

    def ratio(self, what: str, method: str) -> float:
        return getattr(self, what) / self.expected(what, method)


def _balance(walks: dict[str, list[_Walk]]) -> list[Claim]:
    adamw, l2 = ([w.spread for w in walks[name]] for name in ("adamw", "adam_l2"))
    times = [math.log(b / a) for a, b in zip(adamw, l2, strict=False)]  # a ratio of spreads is skewed
    return [
        Claim("balance/adamw", "[kosson2024] Fig. 8", "spread of AdamW's rotation over neurons (0: all alike)", 0.0,
              Stat.of(adamw)),
        Claim("balance/adam-l2", "[kosson2024] Fig. 8",
              "ln of the spread of Adam + L2's rotation over AdamW's (more than twice)", math.log(2), Stat.of(times),
              "above"),
    ]  # fmt: skip


def _setting(name: str, size: _Size) -> tuple[float, float]:
    """Lr and weight decay that keep the norm about where it begins, 1/√3 a neuron, and decay at the preset's rate."""
    C, rate, wanted = size.width, size.rate, 1 / math.sqrt(3)
    if size.paper and name == "adamw":
        return 1e-3, 0.1
    if size.paper and name == "adam_l2":
        return 1e-3, 1e-3
    g = 1 / math.sqrt(C * BATCH)  # ‖∇‖ at unit norm: C inputs, outputs' gradients of 1/(CB) over B samples
    if name == "sgdm":  # [kosson2024]: ‖w‖⁴ = ηg²/(2λ(1−α)), and the decay of a step is ηλ/(1−α)
        lr = wanted**2 * (1 - 0.9) * math.sqrt(2 * rate) / g
        return lr, rate * (1 - 0.9) / lr
    if name == "adam_l2":  # λw is divided by √v, too, which is g/(√C‖w‖)
        lr = wanted * math.sqrt(2 * rate / C)
        return lr, rate * g / (lr * math.sqrt(C) * wanted)
    shape: dict[str, Any] = {"shape": (C, C), "momentum": 0.95} if name == "muon" else {"size": C}
    trial = stationary(name, lr=1.0, weight_decay=rate, betas=BETAS.get(name, (0.9, 0.999)), **shape)
    lr = wanted * (math.sqrt(C) if name == "muon" else 1.0) / trial.norm
    return lr, rate / lr
