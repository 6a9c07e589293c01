"""Baselines without a network on the data of workloads and experiments, stored with the trials."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.store import STORED

FILE = "baselines.json"

AUGMENTED = ("crop", "flip")
"""Options that change batches of training alone, which no baseline has."""

NATURAL = ("cifar", "enwik8", "fashion", "linux_doc", "metamath", "phonemes")
"""Data that is not made by a seed, so that one row is for all."""

Floors = dict[str, dict[str, float]]
"""Test loss of each baseline, by the data's key."""


def data_key(trial: Trial) -> str:
    """The data of a trial, as text.

    >>> data_key(Trial(data="cifar", data_options={"validation": 5000, "crop": 4}))
    '["cifar", {"validation": 5000}]'
    """
    options = {name: value for name, value in trial.data_options.items() if name not in AUGMENTED}
    return json.dumps([trial.data, options], sort_keys=True)


def read(folder: Path = STORED) -> Floors:
    """What is stored."""
    file = folder / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def of(trials: Iterable[Trial], folder: Path = STORED) -> list[dict[str, str]]:
    """A row for each baseline that is stored for the data of some trials."""
    stored = read(folder)
    data = {data_key(trial): trial.data for trial in trials}
    return [
        {"without a network": name, "data": data[key], "test loss": f"{loss:.3f}"}
        for key in data for name, loss in stored.get(key, {}).items()
    ]  # fmt: skip


def measure(
    folder: Path = STORED, tell: Callable[[str], None] | None = None, *, trials: Iterable[Trial] | None = None
) -> Floors:
    """Measure the baselines that are not stored yet; the linear model takes minutes.

    Args:
        folder: where they are stored.
        tell: is told the data that is measured.
        trials: on whose data, where it is `NATURAL`. Default: the workloads'.
    """
    from equipoise.lab.data import load
    from equipoise.lab.data.baselines import rows

    found = read(folder)
    wanted = [workload.trial for workload in WORKLOADS.values()] if trials is None else trials
    for key, trial in {data_key(trial): trial for trial in wanted if trial.data in NATURAL}.items():
        if key in found:
            continue
        if tell is not None:
            tell(key)
        data = load(trial.data, **trial.data_options)
        found[key] = {row["baseline"]: float(f"{row['test_loss']:.6g}") for row in rows(data)}
        part = folder / f"{FILE}.part"
        part.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
        part.replace(folder / FILE)
    return found
