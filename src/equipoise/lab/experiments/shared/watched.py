"""What experiments read off watched runs: the hidden layers, and a quantity once things have settled."""

from __future__ import annotations

import numpy as np

from equipoise._check import Array
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Column, Run


def watched(trial: Trial, times: int = 40, *, neurons: int = 0) -> Trial:
    """The trial, watched so many times, but not at every step; without spectra.

    >>> watched(Trial(steps=400)).watch
    {'every': 10, 'neurons': 0, 'spectra': 0}
    """
    return trial.vary({"watch": {"every": max(2, trial.steps // times), "neurons": neurons, "spectra": 0}})


def hidden(run: Run) -> list[str]:
    """Names of the matrices and kernels; embeddings and output layers are none."""
    return [name for name, info in run.tensors.items() if info.role == "matrix"]


def curve(run: Run, quantity: str, tensor: str | None = None) -> tuple[Array, Array]:
    """Steps and values where it was measured."""
    series = run.series(quantity, tensor)
    return series.steps.astype(np.float64), series.values.astype(np.float64)


def of_neurons(run: Run, quantity: str, tensor: str) -> Array:
    """The values of the sampled neurons of a tensor, a line each: read at once, not once for each."""
    table = run.table([Column(quantity, tensor, neuron=n) for n in run.tensors[tensor].neurons])
    return np.ascontiguousarray(table.values[(table.count > 0).all(1)].T)


def settled(run: Run, quantity: str, tensor: str | None = None, *, after: float) -> Array:
    """The values after this share of the steps."""
    steps, values = curve(run, quantity, tensor)
    return values[steps > after * run.steps[-1]]


def rms(values: Array) -> float:
    """Root mean square."""
    return float(np.sqrt(np.square(values).mean()))
