"""The plan of a trial, as `eq.plan` would make it before training. It needs no data: shapes and sizes are stored.

`stored/parameters.json` has, for each workload, the groups of `eq.param_groups` with the shape and the root mean square
of every parameter. `describe` adds the workloads that it lacks; only that loads data and makes models.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import equipoise as eq
from equipoise.lab.train import optimizers
from equipoise.lab.train.schedules import shapes
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.store import STORED
from equipoise.planner import Plan

FILE = "parameters.json"

Described = dict[str, list[dict[str, Any]]]
"""Parameter groups by the workload's name: what `eq.param_groups` says of each, and [shape, RMS] of its parameters."""


def plan_of(workload: Workload, trial: Trial, folder: Path = STORED) -> Plan:
    """What `eq.plan` says of a trial of a workload.

    Args:
        workload: where.
        trial: the setting.
        folder: where the workload's parameters are described.
    """
    described = read(folder)
    if workload.name not in described:
        raise ValueError(f"workload = {workload.name!r}: must be described first: equipoise lab workloads describe")
    groups = [
        {**group, "params": [torch.nn.Parameter(torch.full(shape, rms)) for shape, rms in group["params"]]}
        for group in described[workload.name]
    ]
    return eq.plan(
        None, optimizers.of_groups(trial, groups), steps=trial.steps, schedule=shapes(trial)[0],
        finetune=workload.kind == "fine-tuning", batch_size=trial.batch_size, dataset_size=workload.samples,
        tokens_per_sample=trial.data_options.get("length"), parameters=workload.parameters,
    )  # fmt: skip


@functools.cache
def read(folder: Path = STORED) -> Described:
    """What is stored."""
    file = folder / FILE
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def describe(folder: Path = STORED, tell: Callable[[str], None] | None = None) -> Described:
    """Describe the parameters of the workloads that are not stored yet."""
    found = dict(read(folder))
    for workload in WORKLOADS.values():
        if workload.name not in found:
            if tell is not None:
                tell(workload.name)
            found[workload.name] = _groups(workload.trial)
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(groups)}" for name, groups in sorted(found.items()))
    part = folder / f"{FILE}.part"
    part.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    part.replace(folder / FILE)
    read.cache_clear()
    return found


def _groups(trial: Trial) -> list[dict[str, Any]]:
    from equipoise.lab.data import load
    from equipoise.lab.train.training import make_model

    model = make_model(trial, load(trial.data, **trial.data_options))
    return [
        {**group, "params": [[list(p.shape), float(f"{_rms(p):.3g}")] for p in group["params"]]}
        for group in eq.param_groups(model)
    ]


def _rms(param: torch.Tensor) -> float:
    return float(param.detach().square().mean().sqrt())
