"""What weight decay does to norms and to the effective learning rate: [norm-note], on a walk and on a network."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from equipoise._check import Array
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.noisy import NOISY
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import Forecast, effective_lr, forecast, norm_over_time, stationary

SOURCE = "[norm-note]"
NAMES = {"ngd": "normalised GD", "adamw": "AdamW", "muon": "Muon"}
OPTIMIZERS = tuple(NAMES)
OPTIONS: dict[str, dict[str, Any]] = {"muon": {"momentum": 0.95, "nesterov": False, "scale": "none"}}
SYSTEMS = {"walk": "linear.weight", "mlp": "body.1.weight"}
"""The tensor that is followed: in the system of [kosson2024] appendix J, in a batch-normalised network."""

GROWN = 2.0
"""Norm at equilibrium over the initial one."""

LATE = 2 / 3
MOVES = 0.9
"""Share of the late steps that must have moved something: what is learnt to the last bit has no gradient."""


@dataclass(frozen=True)
class _Size:
    width: int
    steps: int
    rate: float
    seeds: int
    noisy: bool = False


SIZES = {
    "smoke": _Size(32, 400, 1e-2, 1),
    "small": _Size(128, 2400, 2.5e-3, 3),
    "medium": _Size(128, 2400, 2.5e-3, 3, noisy=True),
    "full": _Size(128, 40_000, 2e-4, 5, noisy=True),
}
"""Width of layers, steps, ηλ, seeds, whether the network learns noisy labels instead of the digits, which it learns by
heart."""


_SAYS = {
    **{f"grows-{name}": f"[norm-note]: without decay norms grow as √t; {word}" for name, word in NAMES.items()},
    **{f"slows-{name}": f"[norm-note]: without decay the effective lr falls as 1/√t; {word}"
       for name, word in NAMES.items()},
    **{f"relaxes-{name}": f"[norm-note]: with decay norms relax to √(η/(λ(2 − ηλ)))·U; {word}"
       for name, word in NAMES.items()},
    **{f"settles-{name}": f"[norm-note]: with decay the effective lr settles at √(2ηλ); {word}"
       for name, word in NAMES.items()},
    "momentum": "theory: the effective lr settles at √(2ηλ) times momentum's factor, which the note leaves out",
    "size": "[norm-note]: AdamW's updates have 0.2 as root mean square",
}  # fmt: skip
WHERE = {"walk": "on a random walk", "mlp": "in a network"}


@final
class Norms(Experiment):
    """Norm and effective learning rate with and without weight decay, over the note's formulas."""

    name: ClassVar[str] = "norms"
    source: ClassVar[str] = "[norm-note]"
    about: ClassVar[str] = "Norms grow as √t without decay and relax with it; effective lr falls as 1/√t or settles."
    statements: ClassVar[Mapping[str, str]] = {
        f"{name}-{system}": f"{says}, {where}" for system, where in WHERE.items() for name, says in _SAYS.items()
    }

    def trials(self, preset: str) -> list[Trial]:
        """Every system and optimizer, with decay and without."""
        size, found = SIZES[preset], []
        for system in SYSTEMS:
            shape = (size.width, size.width if system == "walk" else 64)
            for name in OPTIMIZERS:
                lr = _lr(name, shape, size.rate)
                for decay in (0.0, size.rate / lr):
                    base = Trial(
                        optimizer=name, lr=lr, weight_decay=decay, steps=size.steps,
                        optimizer_options=OPTIONS.get(name, {}), limit=None,
                        watch={"every": max(4, size.steps // 600), "neurons": 0, "spectra": 0},
                    )  # fmt: skip
                    if system == "walk":
                        noise = {"inputs": size.width, "outputs": size.width}
                        base = base.vary({"data": "noise", "model": "walk", "data_options": noise})
                        base = base.vary({"model_options.gammas": "ones"})
                    else:
                        base = base.vary({"data": "digits", "model": "mlp", "model_options.width": size.width})
                        if size.noisy:
                            base = base.vary({"data": NOISY.data, "data_options": NOISY.data_options})
                    found += [base.vary({"seed": seed}) for seed in range(size.seeds)]
        return found

    def measure(self, result: Result, run: Run) -> dict[str, Any]:
        """Norm, size of updates and effective learning rate of the tensor that is followed."""
        name = SYSTEMS[result.trial.model]
        info = run.tensors[name]
        norm, update, effective = (run.series(q, name) for q in ("norm", "update", "relative_update"))
        return {
            "rows": info.shape[0], "columns": info.shape[1], "start": info.info["init_norm"],
            "steps": norm.steps.astype(np.float64), "norm": norm.values, "update": update.values,
            "effective": effective.values,
        }  # fmt: skip

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """Measured over the note's formulas, with its own U and with the measured size of updates."""
        cases: dict[tuple[str, str, bool], list[_Case]] = {}
        for one in done:
            if one.result.status == "finished":
                key = (one.trial.model, one.trial.optimizer, one.trial.weight_decay > 0)
                cases.setdefault(key, []).append(_Case.of(one))
        rows, claims = [], []
        for (system, name, decays), found in cases.items():
            row: dict[str, Any] = {"system": system, "optimizer": name, "decay": "yes" if decays else "no"}
            for column, value in (
                ("norm / note", "over_note"), ("norm / theory", "over_theory"), ("‖u‖ / U", "size"),
                ("slope of effective lr", "slope"), ("effective lr / note", "lr_over_note"),
                ("effective lr / theory", "lr_over_theory"),
            ):  # fmt: skip
                row[column] = Stat.of([getattr(c, value) for c in found])
            rows.append(row)
            moves = float(np.mean([c.moving.sum() / c.late.sum() for c in found]))
            checks = [Check.between("late steps that moved something, share", moves, low=MOVES)]
            claims += _claims(system, name, decays, row, checks)
        return Outcome(rows, claims, {"/".join(map(str, key)): found[0] for key, found in cases.items()})

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Norm and effective learning rate over the steps, the note's dashed."""
        axes = figure.subplots(2, 2)
        colours = dict(zip(OPTIMIZERS, ("tab:blue", "tab:orange", "tab:green"), strict=True))
        for case in outcome.curves.values():
            if case.trial.model != "walk":
                continue
            row = axes[int(case.decays)]
            colour, name = colours[case.trial.optimizer], case.trial.optimizer
            row[0].plot(case.steps, case.norm / case.start, color=colour, label=name)
            row[0].plot(case.steps, case.note_norm / case.start, color=colour, ls="--")
            row[1].loglog(case.steps, case.effective, color=colour, label=name)
            row[1].loglog(case.steps, case.note_lr, color=colour, ls="--")
        for row, title in zip(axes, ("without decay", "with decay"), strict=True):
            row[0].set(title=f"norm over the initial one, {title}", xlabel="step", ylim=(0, None))
            row[1].set(title=f"effective learning rate, {title}", xlabel="step")
        axes[0, 0].legend()


@final
@dataclass(frozen=True)
class _Case:
    """One trial's tensor: norm and size of updates over the steps."""

    trial: Trial
    shape: tuple[int, int]
    start: float
    steps: Array
    norm: Array
    update: Array
    effective: Array

    @staticmethod
    def of(done: Done) -> _Case:
        m = done.measured
        shape = (m["rows"], m["columns"])
        return _Case(done.trial, shape, m["start"], m["steps"], m["norm"], m["update"], m["effective"])

    @property
    def decays(self) -> bool:
        return self.trial.weight_decay > 0

    @property
    def late(self) -> NDArray[np.bool_]:
        return self.steps > LATE * self.steps[-1]

    @property
    def moving(self) -> NDArray[np.bool_]:
        """Late steps that moved something: where all is learnt to the last bit, there is no gradient left."""
        return self.late & (self.effective > 0)

    @property
    def note_update(self) -> float:
        """The note's U: 1, √(number of weights), √(smaller side)."""
        rows, columns = self.shape
        return {"ngd": 1.0, "adamw": math.sqrt(rows * columns), "muon": math.sqrt(min(rows, columns))}[
            self.trial.optimizer
        ]

    @property
    def _given(self) -> dict[str, float]:
        t = self.trial
        return {"lr": t.lr, "weight_decay": t.weight_decay, "update_norm": self.note_update, "init_norm": self.start}

    @property
    def note_norm(self) -> Array:
        return norm_over_time(self.steps, **self._given)

    @property
    def note_lr(self) -> Array:
        return effective_lr(self.steps - 1, **self._given)  # before the step, as it is measured

    def _ratio(self, measured: Array, expected: Array) -> float:
        return float(np.exp(np.log((measured / expected)[self.moving]).mean()))

    @property
    def over_note(self) -> float:
        return self._ratio(self.norm, self.note_norm)

    @property
    def lr_over_note(self) -> float:
        return self._ratio(self.effective, self.note_lr)

    @property
    def size(self) -> float:
        return self._ratio(self.update, np.full(len(self.steps), self.trial.lr * self.note_update))

    @property
    def slope(self) -> float:
        """The late slope of log effective lr over log t: −½ without decay, 0 with it."""
        return float(np.polyfit(np.log(self.steps[self.moving]), np.log(self.effective[self.moving]), 1)[0])

    def _forecast(self) -> Forecast:
        t = self.trial
        own: dict[str, Any] = {"size": 1} if t.optimizer == "ngd" else {"shape": self.shape}
        own |= {"momentum": 0.95} if t.optimizer == "muon" else {}
        return forecast(
            t.optimizer, lr=t.lr, weight_decay=t.weight_decay, steps=t.steps, init_norm=self.start, **own
        )  # fmt: skip

    @property
    def over_theory(self) -> float:
        return self._ratio(self.norm, self._forecast().norm[self.steps.astype(int) - 1])

    @property
    def lr_over_theory(self) -> float:
        found, at = self._forecast(), self.steps.astype(int) - 1
        before = np.concatenate([[self.start], found.norm])[at]
        return self._ratio(self.effective, found.update[at] / before)


def _claims(
    system: str, name: str, decays: bool, row: dict[str, Any], checks: Sequence[Check]
) -> list[Claim]:  # fmt: skip
    norm, rate = ("relaxes", "settles") if decays else ("grows", "slows")
    where = f"{name}-{system}"
    of = f"of {name} on the {system}, {'with' if decays else 'without'} decay"
    found = [
        Claim(f"{norm}-{where}", SOURCE, f"norm {of}, over the note's", 1.0, row["norm / note"], tolerance=0.1),
        Claim(f"{rate}-{where}/size", SOURCE, f"effective lr {of}, over the note's", 1.0, row["effective lr / note"],
              tolerance=0.1),
    ]  # fmt: skip
    if decays:
        found.append(
            Claim(f"momentum-{system}/{name}", "[kosson2024] Table 1; theory",
                  f"effective lr {of}, over √(2ηλ)·momentum factor", 1.0,
                  row["effective lr / theory"], tolerance=0.1)
        )  # fmt: skip
    else:
        slope = row["slope of effective lr"]
        found.append(Claim(f"{rate}-{where}/slope", SOURCE, f"slope of log effective lr {of}", -0.5, slope,
                           tolerance=0.1))  # fmt: skip
    if name == "adamw":
        end = "decay" if decays else "free"
        found.append(Claim(f"size-{system}/{end}", SOURCE, f"‖u‖/√C {of}", 0.2, row["‖u‖ / U"], tolerance=0.2))
    return [dataclasses.replace(claim, checks=checks) for claim in found]


def _lr(name: str, shape: tuple[int, int], rate: float) -> float:
    """The lr at which the norm settles at `GROWN` times torch's initial one, √(rows/3)."""
    wanted = GROWN * math.sqrt(shape[0] / 3)
    own: dict[str, Any] = {"shape": shape} if name != "ngd" else {"size": 1}
    own |= {"momentum": 0.95} if name == "muon" else {}
    return wanted / stationary(name, lr=1.0, weight_decay=rate, **own).norm
