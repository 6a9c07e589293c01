"""Networks, from ones that train in seconds to those of the papers.

Comes in: `Data` and the options of a trial. Goes out: a `torch.nn.Module`. Read `make`, below, which knows them by
name, then one: `mlp` is the simplest, and each has a file.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from equipoise import _check
from equipoise.lab.data import Data
from equipoise.lab.models.fast import FastResNet, fast_resnet
from equipoise.lab.models.gpt import Gpt, gpt
from equipoise.lab.models.mlp import Mlp, mlp
from equipoise.lab.models.resnet import ResNet, resnet
from equipoise.lab.models.seq2seq import Seq2Seq, seq2seq
from equipoise.lab.models.vgg import Vgg, vgg
from equipoise.lab.models.vit import Vit, vit
from equipoise.lab.models.walk import Walk, walk

MAKERS = {
    "fast_resnet": fast_resnet, "gpt": gpt, "mlp": mlp, "resnet": resnet, "seq2seq": seq2seq, "vgg": vgg, "vit": vit,
    "walk": walk,
}  # fmt: skip
"""By the names that configs use. One's own may be added."""

TAKES = {
    "fast_resnet": ("classes",),
    "gpt": ("tokens",),
    "mlp": ("classes", "regression"),
    "resnet": ("classes",),
    "seq2seq": ("pairs",),
    "vgg": ("classes",),
    "vit": ("classes",),
    "walk": ("walk",),
}
"""The tasks that a model is for; one that is not listed takes all."""

__all__ = [
    "MAKERS",
    "TAKES",
    "FastResNet",
    "Gpt",
    "Mlp",
    "ResNet",
    "Seq2Seq",
    "Vgg",
    "Vit",
    "Walk",
    "fast_resnet",
    "gpt",
    "make",
    "mlp",
    "resnet",
    "seq2seq",
    "vgg",
    "vit",
    "walk",
]


def make(name: str, data: Data, seed: int, **options: Any) -> nn.Module:
    """Make a model for data, its weights drawn by the seed; torch's own generator is left as it was.

    Args:
        name: one of `MAKERS`.
        data: what it shall learn.
        seed: of the weights.
        **options: what its maker takes.
    """
    maker = MAKERS[_check.choice("model", name, MAKERS)]
    tasks = TAKES.get(name, (data.task,))
    if data.task not in tasks:
        raise ValueError(f"model = {name!r}: must be given data of the task {' or '.join(tasks)}, not {data.task}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return maker(data, **options)
