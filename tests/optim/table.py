"""The table: every optimizer of the family with the settings that its tests run it at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from tests.optim import references

from equipoise import optim


@dataclass(frozen=True)
class Row:
    """One optimizer at one setting, with its literal reference and its twin in torch, where there are such."""

    name: str
    make: type
    options: dict[str, Any]
    reference: Callable[..., np.ndarray] | None = None
    twin: Callable[[Any], torch.optim.Optimizer] | None = None
    reference_options: dict[str, Any] | None = field(default=None)

    def __str__(self) -> str:
        return self.name

    def build(self, params: Any, **more: Any) -> torch.optim.Optimizer:
        return self.make(params, **(self.options | more))


ADAM: dict[str, Any] = {"lr": 0.01, "betas": (0.8, 0.95), "eps": 1e-3}
TURN: dict[str, Any] = {"lr": 0.02, "weight_decay": 0.1}

PLAIN = [
    Row("SGDM", optim.SGDM, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}, references.sgdm),
    Row("SGDM nesterov L2", optim.SGDM, {"lr": 0.01, "momentum": 0.8, "l2": 0.1, "nesterov": True}, references.sgdm,
        lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.8, weight_decay=0.1, nesterov=True)),
    Row("RMSProp", optim.RMSProp, {"lr": 0.01, "alpha": 0.9, "eps": 1e-3, "weight_decay": 0.1}, references.rmsprop),
    Row("RMSProp plain", optim.RMSProp, {"lr": 0.01, "alpha": 0.9, "eps": 1e-3}, references.rmsprop,
        lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.9, eps=1e-3)),
    Row("Adam", optim.Adam, ADAM, references.adam, lambda p: torch.optim.Adam(p, **ADAM)),
    Row("Adam L2", optim.Adam, ADAM | {"l2": 0.1}, references.adam,
        lambda p: torch.optim.Adam(p, weight_decay=0.1, **ADAM)),
    Row("AdamW", optim.AdamW, ADAM | {"weight_decay": 0.1}, references.adam,
        lambda p: torch.optim.AdamW(p, weight_decay=0.1, **ADAM)),
    *(
        Row(f"Adam zero_init={zi} bias_correction={bc} nested={n}", optim.Adam,
            ADAM | {"zero_init": zi, "bias_correction": bc, "nested": n}, references.adam)
        for zi in (True, False) for bc in (True, False) for n in (True, False)
    ),
    *(
        Row(f"AdamW {kind}", optim.AdamW, ADAM | {"weight_decay": 0.1, "decay": kind, **more}, references.adam)
        for kind, more in (("independent", {}), ("corrected", {"lr_max": 0.05}), ("cautious", {}))
    ),
    Row("SignSGDM", optim.SignSGDM, {"lr": 0.01, "momentum": 0.8, "weight_decay": 0.1}, references.signsgdm),
    Row("Lion", optim.Lion, {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}, references.lion),
    Row("NormalizedGD", optim.NormalizedGD, {"lr": 0.01, "weight_decay": 0.1}, references.normalized),
    Row("NormalizedGD neuron", optim.NormalizedGD, {"lr": 0.01, "granularity": "neuron"}, references.normalized),
]  # fmt: skip

CONTROLLED = [
    Row("RotationalSGDM", optim.RotationalSGDM, TURN),
    Row("RotationalAdamW", optim.RotationalAdamW, TURN),
    Row("RotationalAdamW centred", optim.RotationalAdamW, TURN | {"center": True}),
    Row("RotationalAdamW tensor", optim.RotationalAdamW, TURN | {"granularity": "tensor"}),
    Row("RotationalAdamW paper", optim.RotationalAdamW, TURN | {"reference": "paper"}),
    Row("RotationalAdamW step", optim.RotationalAdamW, TURN | {"angle": "step"}),
    Row("RotationalSGDM step", optim.RotationalSGDM, TURN | {"angle": "step", "l2": 0.01, "center": True}),
    Row("RotationalAdamL2", optim.RotationalAdamL2, TURN | {"l2": 0.01}),
    Row("RotationalLion", optim.RotationalLion, TURN),
    Row("RotationalSignSGDM", optim.RotationalSignSGDM, TURN),
    Row("HyperballAdamW", optim.HyperballAdamW, {"lr": 0.02}),
    Row("AdamCPR", optim.AdamCPR, {"lr": 0.02, "warm_start": 3}),
]

# Their references take a matrix; what has one dimension takes another step.
RELATIVES = [
    Row("LAMB", optim.LAMB, ADAM | {"weight_decay": 0.1}, references.lamb),
    Row("LARS", optim.LARS, {"lr": 0.5, "momentum": 0.8, "weight_decay": 0.1, "trust": 0.02}, references.lars),
    Row("ClippedSGDM", optim.ClippedSGDM, {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1, "clip": 0.05},
        references.clipped_sgdm),
    Row("AdamP", optim.AdamP, ADAM | {"weight_decay": 0.1, "delta": 0.5}, references.adamp),
    Row("MDAdam", optim.MDAdam, ADAM | {"gain_rate": 0.5}, references.md_adam),
]  # fmt: skip

# These make two groups of one, matrices or rows and the rest.
MATRIX = [
    Row("RotationalMuon", optim.RotationalMuon, TURN | {"adam": TURN}),
    Row("HyperballMuon", optim.HyperballMuon, {"lr": 0.02, "adam": {"lr": 0.02}}),
    Row("Muon", optim.Muon, {"lr": 0.02, "adam": {"lr": 0.02}}),
    Row("NorMuon", optim.NorMuon, {"lr": 0.02, "adam": {"lr": 0.02}}),
    Row("FloorMuon", optim.FloorMuon, {"lr": 0.02, "floor": 5.0, "adam": {"lr": 0.02}}),
    Row("BrakeMuon", optim.BrakeMuon, {"lr": 0.02, "weight_decay": 0.1, "adam": {"lr": 0.02}}),
    Row("MDMuon", optim.MDMuon, {"lr": 0.02, "adam": {"lr": 0.02}}),
    Row("AngularMuown", optim.AngularMuown, {"lr": 0.02, "turn_decay": 0.1, "adam": {"lr": 0.02}}),
    Row("Nero", optim.Nero, {"lr": 0.02, "beta": 0.9}),
    Row("Muon cautious", optim.Muon, {"lr": 0.02, "decay": "cautious", "nesterov": False, "adam": {"lr": 0.02}}),
    Row("SteepestDescent", optim.SteepestDescent, {"lr": 0.02, "momentum": 0.8, "weight_decay": 0.1}),
    Row("SteepestDescent sharpness", optim.SteepestDescent, {"sharpness": 50.0}),
]

ALL = PLAIN + CONTROLLED + RELATIVES
