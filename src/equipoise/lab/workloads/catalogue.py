"""The workloads. Which half each is of was fixed before it was trained, and does not change."""

from __future__ import annotations

import dataclasses
from typing import Any

from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import Workload

BETAS = {"betas": [0.9, 0.95]}
ENWIK8 = {"size": 10_000_000, "length": 32, "held": 64_000}
SMALL = {"size": "0.1M", "tied": True, "std": 0.1}
LARGE = {"size": "0.4M", "tied": True, "std": 0.07}
MIDDLE = SMALL | {"width": 96, "heads": 3}
PARAMETERS = {"0.1M": 117_056, "0.2M": 249_312, "0.4M": 430_720}

_TEXT: dict[str, Any] = {
    "data": "enwik8", "data_options": ENWIK8, "model": "gpt", "model_options": SMALL, "batch_size": 16, "steps": 800,
    "optimizer_options": BETAS, "schedule": "cosine", "warmup": 40,
}  # fmt: skip
_VISION: dict[str, Any] = {
    "data": "cifar", "data_options": {"validation": 5000}, "batch_size": 64, "schedule": "cosine",
}  # fmt: skip
_PAIRS: dict[str, Any] = {
    "data": "phonemes", "data_options": {"validation": 0.05}, "model": "seq2seq",
    "model_options": {"size": "tiny", "std": 0.15}, "batch_size": 64, "steps": 800, "schedule": "cosine", "warmup": 40,
}  # fmt: skip

PRETRAINED = Trial(**_TEXT).vary({"steps": 6000, "warmup": 200, "lr": 3e-3, "weight_decay": 0.1})
"""What the workloads of fine-tuning start from: the smallest GPT after 3 million bytes of enwik8."""

_TUNED = _TEXT | {"model_options": SMALL | {"start": dataclasses.asdict(PRETRAINED)}, "steps": 400, "warmup": 20}

_DOCS: dict[str, Any] = {
    "data": "linux_doc", "data_options": {"size": 3_000_000, "length": 64}, "model": "gpt",
    "model_options": {"size": "0.1M", "depth": 3, "tied": True}, "batch_size": 16, "steps": 1000,
    "optimizer_options": BETAS, "schedule": "cosine", "warmup": 50,
}  # fmt: skip
"""As nanoGPT has it at a small width: three layers, initial weights of GPT-2's size."""

_FASHION: dict[str, Any] = {
    "data": "fashion", "data_options": {"validation": 5000}, "batch_size": 64, "schedule": "cosine",
}  # fmt: skip

_ADAMW, _LION, _MUON = (1e-3, 3e-3, 1e-2), (1e-4, 3e-4, 1e-3), (1e-2, 3e-2, 1e-1)
_SGDM = (3e-2, 1e-1, 3e-1)
GRIDS = {"adamw": _ADAMW, "lion": _LION, "muon": _MUON, "sgdm": _SGDM}
"""Coarse learning rates by optimizer, where nothing else is known."""


def _trial(shared: dict[str, Any], optimizer: str, **changes: Any) -> Trial:
    fields: dict[str, Any] = {**shared, "optimizer": optimizer, **changes}
    if optimizer != "adamw":
        fields["optimizer_options"] = {}
    return Trial(**fields)


_LIST = (
    Workload(
        "text-adamw", "choosing", "text", "GPT of 0.1 M parameters, enwik8, 0.4 million of 10 million bytes seen",
        _trial(_TEXT, "adamw"), _ADAMW, 312_499, PARAMETERS["0.1M"], 20,
    ),
    Workload(
        "text-adamw-wide", "held-out", "text", "text-adamw at twice the width, 0.4 M parameters",
        _trial(_TEXT, "adamw", model_options=LARGE), _ADAMW, 312_499, PARAMETERS["0.4M"], 50, "text-adamw",
    ),
    Workload(
        "text-adamw-batch", "choosing", "text", "text-adamw with four times the batch and a quarter of the steps",
        _trial(_TEXT, "adamw", batch_size=64, steps=200, warmup=10), _ADAMW, 312_499, PARAMETERS["0.1M"], 18,
        "text-adamw",
    ),
    Workload(
        "text-adamw-long", "held-out", "text", "text-adamw with twice the steps",
        _trial(_TEXT, "adamw", steps=1600, warmup=80), _ADAMW, 312_499, PARAMETERS["0.1M"], 40, "text-adamw",
    ),
    Workload(
        "text-muon", "choosing", "text", "GPT of 0.4 M parameters, enwik8",
        _trial(_TEXT, "muon", model_options=LARGE, steps=500, warmup=25), _MUON, 312_499, PARAMETERS["0.4M"], 25,
    ),
    Workload(
        "text-lion", "held-out", "text", "GPT of 0.2 M parameters, enwik8",
        _trial(_TEXT, "lion", model_options=MIDDLE, steps=700, warmup=35), _LION, 312_499, PARAMETERS["0.2M"], 40,
    ),
    Workload(
        "repeat-adamw", "choosing", "text repeated", "GPT of 0.1 M parameters, 15 epochs of 55 kB of enwik8",
        _trial(_TEXT, "adamw", data_options=ENWIK8 | {"size": 55_000}, steps=1600, warmup=80),
        _ADAMW, 1718, PARAMETERS["0.1M"], 20,
    ),
    Workload(
        "repeat-muon", "held-out", "text repeated", "GPT of 0.1 M parameters, 15 epochs of 35 kB of enwik8",
        _trial(_TEXT, "muon", data_options=ENWIK8 | {"size": 35_000}, steps=1000, warmup=50),
        _MUON, 1093, PARAMETERS["0.1M"], 25,
    ),
    Workload(
        "finetune-adamw", "choosing", "fine-tuning", "GPT of 0.1 M parameters from enwik8 to Linux's documentation",
        _trial(_TUNED, "adamw", data="linux_doc", data_options={"size": 1_000_000, "length": 32}),
        (3e-4, 1e-3, 3e-3), 28_096, PARAMETERS["0.1M"], 12,
    ),
    Workload(
        "finetune-lion", "held-out", "fine-tuning", "GPT of 0.1 M parameters from enwik8 to Metamath's proofs",
        _trial(_TUNED, "lion", data="metamath", data_options={"size": 1_000_000, "length": 32}),
        (3e-5, 1e-4, 3e-4), 24_999, PARAMETERS["0.1M"], 12,
    ),
    Workload(
        "resnet-batch-sgdm", "choosing", "vision, batch norm", "ResNet-8, CIFAR-10, 0.64 epochs",
        _trial(_VISION, "sgdm", model="resnet", model_options={"size": "resnet-8"}, steps=450, warmup=22),
        _SGDM, 45_000, 19_954, 25,
    ),
    Workload(
        "resnet-batch-adamw", "held-out", "vision, batch norm", "ResNet-8, 1,920 images of CIFAR-10, 15 epochs",
        _trial(
            _VISION, "adamw", data_options={"size": 6920, "validation": 5000}, model="resnet",
            model_options={"size": "resnet-8"}, steps=450, warmup=22,
        ),
        _ADAMW, 1920, 19_954, 22,
    ),
    Workload(
        "vit-adamw", "choosing", "vision, layer norm", "ViT of two layers, patches of 8 pixels, CIFAR-10",
        _trial(
            _VISION, "adamw", model="vit", model_options={"size": "tiny", "patch": 8, "width": 64, "std": 0.1},
            steps=1200, warmup=60,
        ),
        _ADAMW, 45_000, 114_250, 20,
    ),
    Workload(
        "resnet-layer-adamw", "held-out", "vision, layer norm", "ResNet-8 with layer norm, CIFAR-10, 0.64 epochs",
        _trial(
            _VISION, "adamw", model="resnet", model_options={"size": "resnet-8", "norm": "layer"}, steps=450, warmup=22
        ),
        _ADAMW, 45_000, 19_954, 22,
    ),
    Workload(
        "vgg-adamw", "choosing", "vision, no norm", "VGG-13 an eighth as wide, CIFAR-10, 0.7 epochs",
        _trial(_VISION, "adamw", model="vgg", model_options={"width": 8, "norm": "none"}, steps=500, warmup=25),
        (3e-4, 1e-3, 3e-3), 45_000, 148_114, 20,
    ),
    Workload(
        "vgg-sgdm", "held-out", "vision, no norm", "VGG-13 an eighth as wide, CIFAR-10, 1.1 epochs",
        _trial(_VISION, "sgdm", model="vgg", model_options={"width": 8, "norm": "none"}, steps=800, warmup=40),
        (1e-2, 3e-2, 1e-1), 45_000, 148_114, 40,
    ),
    Workload(
        "pairs-adamw", "choosing", "pairs", "encoder and decoder of one layer each, how words are spoken",
        _trial(_PAIRS, "adamw"), _ADAMW, 112_434, 35_392, 20,
    ),
    Workload(
        "pairs-muon", "held-out", "pairs", "encoder and decoder of one layer each, how words are spoken",
        _trial(_PAIRS, "muon", steps=600, warmup=30), _MUON, 112_434, 35_392, 20,
    ),
    Workload(
        "text-adamw-small-init", "choosing", "text", "text-adamw with initial weights of GPT-2's size",
        _trial(_TEXT, "adamw", model_options=SMALL | {"std": 0.02}), _ADAMW, 312_499, PARAMETERS["0.1M"], 15,
    ),
    Workload(
        "mlp-adamw", "choosing", "vision, no norm", "MLP with torch's initial weights, Fashion-MNIST, 0.7 epochs",
        _trial(_FASHION, "adamw", model="mlp", model_options={"norm": "none"}, steps=600, warmup=30),
        (3e-4, 1e-3, 3e-3), 55_000, 118_282, 10,
    ),
    Workload(
        "docs-adamw", "fresh", "text", "GPT of 0.2 M parameters as nanoGPT starts it, Linux's documentation",
        _trial(_DOCS, "adamw"), _ADAMW, 40_734, 168_384, 30,
    ),
    Workload(
        "docs-muon", "fresh", "text", "GPT of 0.2 M parameters as nanoGPT starts it, Linux's documentation",
        _trial(_DOCS, "muon", steps=500, warmup=25), _MUON, 40_734, 168_384, 30,
    ),
    Workload(
        "docs-lion", "fresh", "text", "GPT of 0.2 M parameters as nanoGPT starts it, Linux's documentation",
        _trial(_DOCS, "lion", steps=800, warmup=40), _LION, 40_734, 168_384, 25,
    ),
    Workload(
        "docs-repeat-adamw", "fresh", "text repeated", "GPT of 0.2 M parameters, 15 epochs of Linux's documentation",
        _trial(_DOCS, "adamw", data_options={"size": 75_000, "length": 64}, steps=1100, warmup=55),
        _ADAMW, 1166, 168_384, 35,
    ),
    Workload(
        "fashion-sgdm", "fresh", "vision, batch norm", "ResNet-9 an eighth as wide, Fashion-MNIST, 0.5 epochs",
        _trial(_FASHION, "sgdm", model="fast_resnet", model_options={"width": 8}, steps=400, warmup=20),
        _SGDM, 55_000, 103_800, 30,
    ),
    Workload(
        "fashion-mlp-sgdm", "fresh", "vision, no norm", "MLP of three hidden layers, Fashion-MNIST, 0.7 epochs",
        _trial(_FASHION, "sgdm", model="mlp", model_options={"norm": "none", "depth": 3}, steps=600, warmup=30),
        (1e-2, 3e-2, 1e-1), 55_000, 134_794, 10,
    ),
    Workload(
        "fashion-vit-adamw", "fresh", "vision, layer norm", "ViT with initial weights of GPT-2's size, Fashion-MNIST",
        _trial(
            _FASHION, "adamw", model="vit", model_options={"size": "tiny", "patch": 7, "width": 64}, steps=800,
            warmup=40,
        ),
        _ADAMW, 55_000, 105_098, 25,
    ),
)  # fmt: skip

WORKLOADS = {workload.name: workload for workload in _LIST}
"""By name."""
