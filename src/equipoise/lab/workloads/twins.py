"""Twins: the task of a workload trained by another optimizer, to say which optimizer is worth a try.

A twin tries lr alone, at one lr·wd·T, until the best lr has a neighbour on both sides. The workload's own grid has the
same lr·wd·T, so both sides are compared by three lrs each: the best on validation and its neighbours.
"""

from __future__ import annotations

import dataclasses

from equipoise import _check
from equipoise.lab.workloads.base import Workload
from equipoise.lab.workloads.catalogue import BETAS, GRIDS, WORKLOADS

REPEATED = 2.0
"""Epochs above which data counts as repeated."""


def twin(workload: Workload, optimizer: str) -> Workload:
    """The same task by another optimizer, with that one's usual lrs.

    >>> twin(WORKLOADS["text-adamw"], "muon").name
    'text-adamw/muon'
    """
    text = "length" in workload.trial.data_options
    options = BETAS if optimizer == "adamw" and text else {}
    trial = workload.trial.vary({"optimizer": optimizer, "optimizer_options": options})
    name, lrs = f"{workload.name}/{optimizer}", GRIDS[optimizer]
    return dataclasses.replace(workload, name=name, trial=trial, lrs=lrs, proxy="", twin_of=workload.name)


def shrink_of(workload: Workload) -> float:
    """lr·wd·T at which twins are compared: 3 where data repeats, and 0.3 elsewhere."""
    return 3.0 if workload.epochs > REPEATED else 0.3


_OTHERS = {
    "text-adamw": ("muon", "lion", "sgdm"),
    "text-adamw-wide": ("muon",),
    "text-adamw-batch": ("muon",),
    "text-adamw-long": ("muon",),
    "text-muon": ("adamw",),
    "text-lion": ("adamw", "muon"),
    "repeat-adamw": ("muon", "lion"),
    "repeat-muon": ("adamw",),
    "finetune-adamw": ("muon", "lion"),
    "finetune-lion": ("adamw", "muon"),
    "resnet-batch-sgdm": ("adamw", "muon"),
    "resnet-batch-adamw": ("muon", "sgdm"),
    "vit-adamw": ("muon", "sgdm"),
    "resnet-layer-adamw": ("muon", "sgdm"),
    "vgg-adamw": ("muon", "sgdm", "lion"),
    "vgg-sgdm": ("adamw", "muon"),
    "pairs-adamw": ("muon", "lion"),
    "pairs-muon": ("adamw",),
}
"""By which other optimizers each task is trained."""

TWINS = {one.name: one for name, some in _OTHERS.items() for one in (twin(WORKLOADS[name], o) for o in some)}
"""By name, as "text-adamw/muon"."""


def find(name: str) -> Workload:
    """A workload or a twin, by name."""
    both = WORKLOADS | TWINS
    return both[_check.choice("workload", name, both)]
