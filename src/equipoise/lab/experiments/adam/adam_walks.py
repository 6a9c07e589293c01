"""Random walks under Adam with any betas, from where they will settle, and where they did."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from equipoise.lab.experiments.base import Done
from equipoise.lab.experiments.shared.watched import rms, settled
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run
from equipoise.theory import Stationary, stationary

TENSOR = "linear.weight"
LATE = 0.4
"""What comes after this share of the steps is settled."""

FIRST = 30
"""How many updates are the first ones."""


def walk(betas: tuple[float, float], *, nested: bool, width: int, steps: int, rate: float) -> Trial:
    """The simple system of [kosson2024] appendix J under Adam, whose lr keeps its norm about where it begins.

    Args:
        betas: averaging factors.
        nested: average what is divided, instead of dividing the average.
        width: C = K.
        steps: how many.
        rate: decay of a step, ηλ.
    """
    lr = 1 / math.sqrt(3) / expected(Trial(lr=1.0, weight_decay=rate), betas, nested=nested, width=width).norm
    return Trial(
        data="noise", model="walk", optimizer="adamw_switches", lr=lr, weight_decay=rate / lr, steps=steps,
        data_options={"inputs": width, "outputs": width}, model_options={"gammas": "ones"},
        optimizer_options={"betas": betas, "nested": nested},
        watch={"every": max(1, steps // 300), "neurons": 0, "spectra": 0},
    )  # fmt: skip


def expected(trial: Trial, betas: tuple[float, float], *, nested: bool, width: int) -> Stationary:
    """Norm and rotation of a neuron by theory."""
    name = "adam_nested" if nested else "adamw"
    return stationary(name, lr=trial.lr, weight_decay=trial.weight_decay, size=width, betas=betas)


def measure(run: Run, trial: Trial) -> dict[str, Any]:
    """What of a walk's run is needed: norm and rotation once settled, and the sizes of the first updates."""
    norm, rotation = (rms(settled(run, what, TENSOR, after=LATE)) for what in ("norm", "rotation"))
    sizes = run.series("update", TENSOR).values[:FIRST].astype(np.float64)
    return {"norm": norm, "rotation": rotation, "sizes": sizes / (trial.lr * trial.data_options["inputs"])}


def over_theory(done: Done) -> dict[str, float]:
    """Settled norm and rotation of a neuron, over theory's."""
    options: dict[str, Any] = dict(done.trial.optimizer_options)
    beta1, beta2 = options["betas"]
    width = done.trial.data_options["inputs"]
    theory = expected(done.trial, (beta1, beta2), nested=options["nested"], width=width)
    norm, rotation = done.measured["walk"]["norm"], done.measured["walk"]["rotation"]
    # The tensor has as many neurons as inputs, and turns as their root mean square.
    return {"norm": norm / math.sqrt(width) / theory.norm, "rotation": rotation / theory.rotation}


def is_walk(trial: Trial) -> bool:
    """Whether nothing can be learnt."""
    return trial.model == "walk"


def first_sizes(done: Done) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Root mean square of an element of u, at the first steps that were measured."""
    return done.measured["walk"]["sizes"]
