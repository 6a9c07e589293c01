"""Sound setups: optimizer × model × way of training. An audit must find nothing wrong with any."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from tests.auditing.loops import MODELS, Loop, audited, made
from torch import nn

import equipoise as eq
from equipoise.auditing import Audit

T = torch.optim
OPTIMIZERS: dict[str, Callable[[nn.Module], Any]] = {
    "SGD": lambda m: T.SGD(m.parameters(), lr=0.05),
    "SGD momentum L2": lambda m: T.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-3),
    "SGD nesterov": lambda m: T.SGD(m.parameters(), lr=0.05, momentum=0.8, nesterov=True),
    "Adam": lambda m: T.Adam(m.parameters(), lr=1e-3),
    "Adam L2": lambda m: T.Adam(m.parameters(), lr=1e-3, weight_decay=0.01),
    "AdamW": lambda m: T.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.95)),
    "AdamW default": lambda m: T.AdamW(m.parameters()),
    "AdamW maximize": lambda m: T.AdamW(m.parameters(), lr=1e-4, maximize=True),
    "RMSprop": lambda m: T.RMSprop(m.parameters(), lr=1e-3),
    "Adagrad": lambda m: T.Adagrad(m.parameters(), lr=1e-3),
    "NAdam": lambda m: T.NAdam(m.parameters(), lr=1e-3),
    "Adafactor": lambda m: T.Adafactor(m.parameters(), lr=1e-3),
    "eq.SGDM": lambda m: eq.SGDM(m.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01),
    "eq.RMSProp": lambda m: eq.RMSProp(m.parameters(), lr=1e-3, weight_decay=0.1),
    "eq.Adam nested": lambda m: eq.Adam(m.parameters(), lr=1e-3, nested=True),
    "eq.AdamW": lambda m: eq.AdamW(eq.param_groups(m), lr=1e-3, weight_decay=0.1),
    "eq.AdamW uncorrected": lambda m: eq.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1, bias_correction=False),
    "eq.AdamW first gradient": lambda m: eq.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1, zero_init=False),
    "eq.AdamW cautious": lambda m: eq.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1, decay="cautious"),
    "eq.AdamW independent": lambda m: eq.AdamW(m.parameters(), lr=1e-3, weight_decay=1e-3, decay="independent"),
    "eq.Lion": lambda m: eq.Lion(m.parameters(), lr=1e-3, weight_decay=0.1),
    "eq.SignSGDM": lambda m: eq.SignSGDM(m.parameters(), lr=1e-3, weight_decay=0.1),
    "eq.NormalizedGD": lambda m: eq.NormalizedGD(m.parameters(), lr=0.01, weight_decay=0.1),
    "eq.Muon": lambda m: eq.Muon(eq.param_groups(m), lr=0.02, weight_decay=0.1, adam={"lr": 1e-3}),
    "eq.RotationalAdamW": lambda m: eq.RotationalAdamW(eq.param_groups(m), lr=1e-2, weight_decay=0.1),
    "eq.RotationalMuon": lambda m: eq.RotationalMuon(
        eq.param_groups(m), lr=0.02, weight_decay=0.1, adam={"lr": 1e-2, "weight_decay": 0.1}
    ),
    "eq.HyperballAdamW": lambda m: eq.HyperballAdamW(eq.param_groups(m), lr=0.01),
    "eq.AdamCPR": lambda m: eq.AdamCPR(m.parameters(), lr=1e-3, warm_start=3),
}
"""Every kind that torch and equipoise have."""


@dataclass(frozen=True)
class Way:
    """A way to train: what is done besides forward, backward and step."""

    name: str
    run: Callable[[nn.Module, Any], Audit]


def _clipped(model: nn.Module, optimizer: Any) -> Audit:
    return audited(Loop(model, optimizer, after=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.8)))


def _scheduled(model: nn.Module, optimizer: Any) -> Audit:
    schedule = T.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=8)
    return audited(Loop(model, optimizer, end=schedule.step))


def _scaled(model: nn.Module, optimizer: Any) -> Audit:
    scaler = torch.amp.GradScaler("cpu")

    def clip() -> None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return audited(
        Loop(
            model, optimizer, backward=lambda loss: scaler.scale(loss).backward(), after=clip,
            step=lambda: scaler.step(optimizer), end=scaler.update,
        )
    )  # fmt: skip


WAYS = [
    Way("plain", lambda m, o: audited(Loop(m, o))),
    Way("accumulated", lambda m, o: audited(Loop(m, o, passes=3))),
    Way("clipped", _clipped),
    Way("scheduled", _scheduled),
    Way("resumed", lambda m, o: audited(Loop(m, o), warm=20)),
    Way("scaled", _scaled),
]


def setups() -> list[tuple[str, str, str]]:
    """Every optimizer on two models, every way with AdamW and SGD on all: optimizer, model, way."""
    models = list(MODELS)
    found = [(name, models[(i + k) % len(models)], "plain") for i, name in enumerate(OPTIMIZERS) for k in range(5)]
    for way in WAYS[1:]:
        for i, name in enumerate(("AdamW", "SGD momentum L2", "eq.Muon", "eq.Lion", "Adam L2")):
            found.append((name, models[i % len(models)], way.name))
    return found


def run(name: str, model: str, way: str) -> Audit:
    module = made(model)
    return next(w for w in WAYS if w.name == way).run(module, OPTIMIZERS[name](module))
