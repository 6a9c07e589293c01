"""Plan and watch say the same of every optimizer, shape and kind of decay, and a random walk does it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.optim.dynamics_of import group_state
from equipoise.theory.directions import BY_LR_MAX

STEPS, LAST = 300, 20
SHAPES = {
    "matrix": (64, 64), "conv": (32, 16, 3, 3), "experts": (4, 32, 32), "embedding": (128, 32), "qkv": (96, 48),
    "gain": (4096,), "scalar": (),
}  # fmt: skip
MATRICES = ("matrix", "conv", "experts", "qkv")
RATES: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.5}
SIGNS: dict[str, Any] = {"lr": 0.002, "weight_decay": 2.5}
"""A sign's updates are longer: these settle near where the tensors begin. From far below, cautious decay is off."""
POLAR = {"steps": 8}


class Walker(nn.Module):
    """Parameters of every shape."""

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for name in names:
            start = torch.randn(SHAPES[name], generator=generator) * 0.1
            self.register_parameter(name, nn.Parameter(start if name != "scalar" else torch.tensor(0.5)))


def groups(model: Walker) -> list[dict[str, Any]]:
    """A group each, with the role that `param_groups` would give it."""
    roles = {"matrix": "matrix", "conv": "conv", "experts": "matrix", "embedding": "embedding", "qkv": "matrix"}
    return [
        {"params": [p], "name": name, "role": roles.get(name, "gain"), **({"split": 3} if name == "qkv" else {})}
        for name, p in model.named_parameters()
    ]  # fmt: skip


def bare(model: Walker) -> list[dict[str, Any]]:
    return [{"params": [p], "name": name} for name, p in model.named_parameters()]


def walk(model: Walker, optimizer: Any, generator: torch.Generator) -> None:
    """One step of noise: of scale-invariant tensors as long as 1/‖w‖, of gains of a fixed length."""
    for p in model.parameters():
        noise = torch.randn(p.shape, generator=generator) / math.sqrt(p.numel())
        p.grad = noise / p.detach().norm() if p.ndim > 1 else noise
    optimizer.step()


ALL, MUON = tuple(SHAPES), ("matrix", "conv", "experts", "qkv", "gain")
OURS: dict[str, tuple[tuple[str, ...], Any]] = {
    "SGDM": (ALL, lambda m, **k: eq.SGDM(groups(m), momentum=0.9, **RATES | k)),
    "SGDM l2": (ALL, lambda m: eq.SGDM(groups(m), lr=0.02, momentum=0.8, l2=0.05, weight_decay=0.0)),
    "RMSProp": (ALL, lambda m: eq.RMSProp(groups(m), **RATES)),
    "AdamW": (ALL, lambda m, **k: eq.AdamW(groups(m), **RATES | k)),
    "AdamW plain": (ALL, lambda m: eq.AdamW(groups(m), betas=(0.95, 0.99), **RATES)),
    "Adam nested": (ALL, lambda m: eq.Adam(groups(m), nested=True, betas=(0.9, 0.99), **RATES)),
    "SignSGDM": (ALL, lambda m: eq.SignSGDM(groups(m), **SIGNS)),
    "Lion": (ALL, lambda m, **k: eq.Lion(groups(m), **SIGNS | k)),
    "NormalizedGD": (ALL, lambda m: eq.NormalizedGD(groups(m), granularity="tensor", lr=0.3, weight_decay=0.02)),
    "Muon": (ALL, lambda m, **k: eq.Muon(groups(m), polar=POLAR, **RATES | k)),
    "Muon spectral": (MUON, lambda m: eq.Muon(groups(m), polar=POLAR, scale="spectral", momentum=0.9, **RATES)),
    "Muon adam": (MUON, lambda m: eq.Muon(groups(m), polar=POLAR, scale="adam", nesterov=False, **RATES)),
    "RotationalSGDM": (MATRICES, lambda m: eq.RotationalSGDM(groups(m), **RATES)),
    "RotationalAdamW": (MATRICES, lambda m, **k: eq.RotationalAdamW(groups(m), **RATES | k)),
    "RotationalAdamW angle": (MATRICES, lambda m: eq.RotationalAdamW(groups(m), angle=0.02, **RATES)),
    "RotationalAdamW small": (MATRICES, lambda m: eq.RotationalAdamW(groups(m), method="small_step", **RATES)),
    "RotationalLion": (MATRICES, lambda m: eq.RotationalLion(groups(m), **RATES)),
    "RotationalSignSGDM": (MATRICES, lambda m: eq.RotationalSignSGDM(groups(m), **RATES)),
    "RotationalMuon": (MATRICES, lambda m: eq.RotationalMuon(groups(m), polar=POLAR, **RATES)),
    "HyperballAdamW": (MATRICES, lambda m: eq.HyperballAdamW(groups(m), lr=0.01)),
}  # fmt: skip
OTHERS: dict[str, tuple[tuple[str, ...], Any]] = {
    "torch SGD": (ALL, lambda m: torch.optim.SGD(bare(m), lr=0.02, momentum=0.9, nesterov=True, weight_decay=0.02)),
    "torch SGD dampened": (ALL, lambda m:
                           torch.optim.SGD(bare(m), lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01)),
    "torch AdamW": (ALL, lambda m: torch.optim.AdamW(bare(m), **RATES)),
    "torch Muon": (("matrix",), lambda m: torch.optim.Muon(bare(m), **RATES)),
    "Rotational of AdamW": (MATRICES, lambda m: eq.Rotational(torch.optim.AdamW(bare(m), **RATES))),
    "Rotational of NAdam": (MATRICES, lambda m: eq.Rotational(torch.optim.NAdam(bare(m), lr=0.01), angle=0.03)),
    "Switch": (ALL, lambda m: eq.Switch(eq.AdamW(groups(m), **RATES), eq.SGDM(groups(m), **RATES), at=STEPS + 1)),
}  # fmt: skip
DECAYS: list[tuple[str, dict[str, Any]]] = [
    ("schedule", {"decay": "schedule", "weight_decay": 5e-3, "lr_max": 0.02}),
    ("schedule above lr_max", {"decay": "schedule", "weight_decay": 5e-3, "lr_max": 0.005}),
    ("independent", {"decay": "independent", "weight_decay": 5e-3}),
    ("corrected", {"decay": "corrected", "weight_decay": 1.0, "lr_max": 0.02}),
    ("corrected above lr_max", {"decay": "corrected", "lr_max": 0.005}),
    ("cautious", {"decay": "cautious"}),
]
CASES = {
    **{name: (*case, {}) for name, case in (OURS | OTHERS).items()},
    **{f"{name}, {kind}": (*OURS[name], more) for name in ("AdamW", "Lion", "Muon", "SGDM") for kind, more in DECAYS},
    **{f"RotationalAdamW, {kind}": (*OURS["RotationalAdamW"], more) for kind, more in DECAYS[2:5]},
}


@pytest.mark.parametrize("key", CASES)
def test_plan_and_watch_say_what_the_walk_does(key: str, tmp_path: Path) -> None:
    """Update, kept share, norm and rotation after 300 steps, within 3 %, of cautious decay 5 %; and no finding."""
    names, make, more = CASES[key]
    near = 0.05 if "cautious" in key else 0.03
    model = Walker(names)
    optimizer = make(model, **more)
    inner = optimizer.first if key == "Switch" else optimizer
    plan = eq.plan(model, optimizer, steps=STEPS, finetune=False)
    planned = {t.tensor.name: t for t in plan.tensors}
    states = {g["name"]: group_state(optimizer, g) for g in inner.param_groups}
    generator = torch.Generator().manual_seed(2)
    with eq.watch(model, optimizer, tmp_path, every=5, spectra=0, strict=True, quiet=True, finetune=False) as watch:
        for _ in range(STEPS):
            walk(model, optimizer, generator)
    with eq.Run.open(tmp_path) as run:
        for name in names:
            forecast = planned[name].forecast
            assert forecast is not None
            shape = SHAPES[name]
            share = states[name].lost(len(shape))
            turned = states[name].dynamics.turns(len(shape))
            assert turned or states[name].coupled or share == pytest.approx(1 - forecast.kept[0], rel=1e-9)
            if name == "scalar":
                continue  # one number wanders as it likes
            for quantity in ("update", "norm", "rotation"):
                if quantity == "rotation" and name == "gain":
                    continue
                if quantity == "update" and (turned or states[name].coupled):
                    continue  # what is measured has L2 in it, or is what the move made of it
                series = run.series(quantity, name)
                measured = series.values[-LAST:].mean()
                wanted = getattr(forecast, quantity)[series.steps - 1][-LAST:].mean()
                assert measured == pytest.approx(wanted, rel=near), (name, quantity, measured / wanted)
                compared = getattr(run.compare(name).plain, quantity)[-LAST:].mean()
                assert compared == pytest.approx(wanted, rel=1e-2), (name, quantity, "compared")
    assert [f for f in watch.findings if f.severity != "info"] == []


def test_every_kind_of_decay_is_in_the_table() -> None:
    said = {more.get("decay", "lr") for _, _, more in CASES.values()}
    assert said == set(eq.theory.DECAYS)
    above = [m["lr_max"] < 0.01 for _, _, m in CASES.values() if m.get("decay") in BY_LR_MAX]
    assert any(above)
    assert not all(above)
    assert np.isfinite(above).all()
