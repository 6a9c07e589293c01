"""Baselines without a network on the workloads' data, stored with the trials."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.store import STORED

FILE = "baselines.json"

Floors = dict[str, dict[str, float]]
"""Test loss of each baseline, by the data's key."""


def data_key(trial: Trial) -> str:
    """The data of a trial, as text."""
    return json.dumps([trial.data, dict(trial.data_options)], sort_keys=True)


def read(folder: Path = STORED) -> Floors:
    """What is stored."""
    file = folder / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def measure(folder: Path = STORED, tell: Callable[[str], None] | None = None) -> Floors:
    """Measure the baselines of the workloads' data that are not stored yet; the linear model takes minutes."""
    from equipoise.lab.data import load
    from equipoise.lab.data.baselines import rows

    found = read(folder)
    for workload in WORKLOADS.values():
        key = data_key(workload.trial)
        if key in found:
            continue
        if tell is not None:
            tell(workload.name)
        data = load(workload.trial.data, **workload.trial.data_options)
        found[key] = {row["baseline"]: float(f"{row['test_loss']:.6g}") for row in rows(data)}
        part = folder / f"{FILE}.part"
        part.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", encoding="utf-8")
        part.replace(folder / FILE)
    return found
