"""The settings on which theory is held to simulation, and how one of them is measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from tests.theory.simulated_walks import simulate

from equipoise.theory import stationary

WEIGHT_DECAY = 0.1


@dataclass(frozen=True)
class Case:
    """One optimizer at one setting; `rate` is ηλ."""

    optimizer: str
    rate: float
    beta1: float = 0.9
    beta2: float = 0.99
    decay: str = "lr"
    nesterov: bool = False
    coupled: bool | None = None
    shape: tuple[int, ...] = (512,)
    rows: int = 16

    @property
    def tolerance(self) -> float:
        return 0.05 if self.optimizer == "adam_l2" or self.decay == "cautious" else 0.02

    @property
    def lr(self) -> float:
        return self.rate / WEIGHT_DECAY

    @property
    def is_coupled(self) -> bool:
        if self.coupled is not None:
            return self.coupled
        return self.optimizer == "adam_l2" or (self.optimizer == "sgdm" and self.decay == "lr")

    @property
    def weight_decay(self) -> float:
        return self.rate if self.decay == "independent" else WEIGHT_DECAY

    def arguments(self) -> dict[str, Any]:
        return {
            "weight_decay": self.weight_decay,
            "betas": (self.beta1, self.beta2),
            "decay": self.decay,
            "nesterov": self.nesterov,
            "coupled": self.is_coupled,
            "shape": self.shape,
            "grad_norm": float(np.sqrt(np.prod(self.shape))),
        }

    def __str__(self) -> str:
        words = [self.optimizer, f"rate={self.rate:g}", f"betas={self.beta1:g},{self.beta2:g}"]
        words += [w for w, on in ((self.decay, self.decay != "lr"), ("nesterov", self.nesterov)) if on]
        return " ".join([*words, "decoupled"] if self.coupled is False else words)


@dataclass(frozen=True)
class Errors:
    """Relative errors of a prediction against a simulated walk."""

    norm: float
    rotation: float


def measure(case: Case, *methods: str, seed: int = 0) -> list[Errors]:
    """Simulate a case to its stationary state and compare the named methods with it.

    The walk starts at [kosson2024]'s small-step norm, not at the prediction under test, and runs for two decay times
    (cautious decay is half as fast); the second half counts.
    """
    kwargs = case.arguments()
    start = stationary(case.optimizer, lr=case.lr, method="small_step", **kwargs).norm
    memory_of_v = 4 / (1 - case.beta2) if case.optimizer not in ("sgdm", "muon", "ngd") else 0
    steps = int(max(1200, (4 if case.decay == "cautious" else 2) / case.rate + memory_of_v))
    walk = simulate(case.optimizer, lr=np.full(steps, case.lr), init_norm=start, rows=case.rows, seed=seed, **kwargs)
    half = slice(steps // 2, None)
    norm, rotation = np.sqrt(np.mean(walk.norm[half] ** 2)), np.mean(walk.rotation[half])
    found = [stationary(case.optimizer, lr=case.lr, method=m, **kwargs) for m in methods]
    return [Errors(float(s.norm / norm - 1), float(s.rotation / rotation - 1)) for s in found]


def _grid(rates: tuple[float, ...], matrix_rates: tuple[float, ...]) -> list[Case]:
    cases = []
    for rate in rates:
        cases += [Case("ngd", rate), Case("rmsprop", rate), Case("rmsprop", rate, beta2=0.95)]
        for b1 in (0.0, 0.9, 0.95):
            cases += [Case(o, rate, b1) for o in ("sgdm", "adamw", "adam_l2", "adam_nested", "signsgdm", "lion")]
            cases += [Case("adamw", rate, b1, 0.95), Case("sgdm", rate, b1, coupled=False)]
        cases += [Case("sgdm", rate, nesterov=True), Case("sgdm", rate, nesterov=True, coupled=False)]
        cases += [Case(o, rate, b1, decay="cautious") for o in ("adamw", "lion", "sgdm") for b1 in (0.0, 0.9, 0.95)]
        cases += [Case(o, rate, decay=d) for o in ("adamw", "lion") for d in ("independent", "corrected")]
    for rate in matrix_rates:
        for b1 in (0.0, 0.9, 0.95):
            cases += [Case("muon", rate, b1, nesterov=n, shape=(16, 32), rows=12) for n in (False, True) if b1 or not n]
        cases += [Case("muon", rate, shape=(24, 24), rows=12), Case("muon", rate, shape=(64, 8), rows=12)]
        cases += [Case("muon", rate, decay="cautious", shape=(16, 32), rows=12)]
    return cases


QUICK = _grid((5e-3, 5e-2), (2e-2,))
FULL = _grid((1e-4, 1e-3, 1e-2, 5e-2), (1e-3, 1e-2, 5e-2))
