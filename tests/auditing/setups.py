"""Sound setups: optimizer × model × way of training. An audit must find nothing wrong with any.

`benchmarks/audit.py` runs them all.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from lion_pytorch import Lion
from schedulefree import AdamWScheduleFree
from tests.auditing.loops import MODELS, STEPS, Loop, audited, loss_of, made
from torch import nn

import equipoise as eq
from equipoise.auditing import Audit

T = torch.optim


def _in_two(m: nn.Module, matrices: Callable[..., Any], rest: Callable[..., Any]) -> list[Any]:
    """An optimizer for what has two dimensions, and one for all else."""
    params = list(m.parameters())
    return [matrices([p for p in params if p.ndim == 2]), rest([p for p in params if p.ndim != 2])]


def _training(optimizer: Any) -> Any:
    optimizer.train()
    return optimizer


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
    "Adamax": lambda m: T.Adamax(m.parameters(), lr=1e-3),
    "RAdam": lambda m: T.RAdam(m.parameters(), lr=1e-3),
    "Adadelta": lambda m: T.Adadelta(m.parameters(), lr=1.0),
    "ASGD": lambda m: T.ASGD(m.parameters(), lr=0.05),
    "Rprop": lambda m: T.Rprop(m.parameters(), lr=1e-3),
    "AdamW amsgrad": lambda m: T.AdamW(m.parameters(), lr=1e-3, amsgrad=True),
    "AdamW fused": lambda m: T.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1, fused=True),
    "AdamW foreach": lambda m: T.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1, foreach=True),
    "RMSprop momentum": lambda m: T.RMSprop(m.parameters(), lr=1e-3, momentum=0.9, centered=True),
    "SGD dampening": lambda m: T.SGD(m.parameters(), lr=0.05, momentum=0.9, dampening=0.9),
    "Muon and AdamW": lambda m: _in_two(
        m, partial(T.Muon, lr=0.02, weight_decay=0.1), partial(T.AdamW, lr=1e-3, weight_decay=0.1)
    ),
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
    "eq.RotationalSGDM": lambda m: eq.RotationalSGDM(eq.param_groups(m), lr=0.05, weight_decay=0.01),
    "eq.RotationalAdamL2": lambda m: eq.RotationalAdamL2(eq.param_groups(m), lr=1e-2),
    "eq.RotationalLion": lambda m: eq.RotationalLion(eq.param_groups(m), lr=1e-3),
    "eq.RotationalSignSGDM": lambda m: eq.RotationalSignSGDM(eq.param_groups(m), lr=1e-3),
    "eq.Rotational": lambda m: eq.Rotational(T.AdamW(eq.param_groups(m), lr=1e-2, weight_decay=0.1)),
    "eq.Switch": lambda m: eq.Switch(
        eq.AdamW(eq.param_groups(m), lr=1e-3, weight_decay=0.1),
        eq.RotationalAdamW(eq.param_groups(m), lr=1e-2, weight_decay=0.1),
        at=5,
    ),
    "eq.HyperballMuon": lambda m: eq.HyperballMuon(eq.param_groups(m), lr=0.02, adam={"lr": 1e-3}),
    "eq.LAMB": lambda m: eq.LAMB(eq.param_groups(m), lr=1e-2, weight_decay=0.1),
    "eq.LARS": lambda m: eq.LARS(eq.param_groups(m), lr=1.0, weight_decay=1e-3),
    "eq.ClippedSGDM": lambda m: eq.ClippedSGDM(m.parameters(), lr=0.05),
    "eq.NorMuon": lambda m: eq.NorMuon(eq.param_groups(m), lr=3e-3, adam={"lr": 1e-3}),
    "eq.SteepestDescent": lambda m: eq.SteepestDescent(eq.param_groups(m), lr=1e-2),
    "eq.rotational": lambda m: eq.rotational(m, like=T.AdamW(m.parameters(), lr=1e-2, weight_decay=0.1)),
    "lion-pytorch": lambda m: Lion(m.parameters(), lr=1e-3, weight_decay=0.1),
    "schedulefree": lambda m: _training(AdamWScheduleFree(m.parameters(), lr=1e-3, weight_decay=0.1)),
    "eq.AdamCPR": lambda m: eq.AdamCPR(m.parameters(), lr=1e-3, warm_start=3),
}
"""Every kind that torch and equipoise have, and two packages' own."""


@dataclass(frozen=True)
class Way:
    """A way to train: what is done besides forward, backward and step."""

    name: str
    run: Callable[[nn.Module, Any, int], Audit]


def _looped(model: nn.Module, optimizer: Any, steps: int, **parts: Any) -> Audit:
    """An audit of a loop, in which several optimizers step one after the other."""
    warm = parts.pop("warm", 0)
    if not isinstance(optimizer, list):
        return audited(Loop(model, optimizer, **parts), steps=steps, warm=warm)

    def step() -> None:
        for one in optimizer:
            one.step()

    parts = {"zero": model.zero_grad, "step": step} | parts
    return audited(Loop(model, optimizer[0], **parts), optimizer=optimizer, steps=steps, warm=warm)


def _clipped(model: nn.Module, optimizer: Any, steps: int) -> Audit:
    return _looped(model, optimizer, steps, after=lambda: nn.utils.clip_grad_norm_(model.parameters(), 0.8))


def _scheduled(model: nn.Module, optimizer: Any, steps: int) -> Audit:
    schedule = T.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=8)
    return _looped(model, optimizer, steps, end=schedule.step)


def _scaled(model: nn.Module, optimizer: Any, steps: int) -> Audit:
    scaler = torch.amp.GradScaler("cpu")

    def clip() -> None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    return _looped(
        model, optimizer, steps, backward=lambda loss: scaler.scale(loss).backward(), after=clip,
        step=lambda: scaler.step(optimizer), end=scaler.update,
    )  # fmt: skip


def _autocast(model: nn.Module, optimizer: Any, steps: int) -> Audit:
    """The loss under autocast; weights stay in float32."""
    generator = torch.Generator().manual_seed(2)

    def backward(_: torch.Tensor) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, generator)
        loss.backward()

    return _looped(model, optimizer, steps, backward=backward)


def _masters(model: nn.Module, make: Callable[[Any], Any], steps: int) -> Audit:
    """Weights in bfloat16 whose float32 copies are what the optimizer steps."""
    held = copy.deepcopy(model)
    masters, low = list(held.parameters()), list(model.bfloat16().parameters())
    optimizer = make(held)

    def give() -> None:
        for master, p in zip(masters, low, strict=True):
            master.grad = p.grad.float()  # type: ignore[union-attr]

    def take() -> None:
        with torch.no_grad():
            for master, p in zip(masters, low, strict=True):
                p.copy_(master)

    take()
    return _looped(model, optimizer, steps, zero=model.zero_grad, after=give, end=take)


def _kept(model: nn.Module, make: Callable[[Any], Any], steps: int) -> Audit:
    """Weights in bfloat16; the optimizer keeps float32 copies, as those of equipoise do."""
    model = model.bfloat16()
    return _looped(model, make(model), steps)


def _compiled(model: nn.Module, optimizer: Any, steps: int) -> Audit:
    """A compiled model; what compiles it changes nothing for an audit, so that the quickest serves."""
    return _looped(torch.compile(model, backend="aot_eager"), optimizer, steps)  # type: ignore[arg-type]


WAYS = {
    way.name: way for way in (
        Way("plain", _looped), Way("accumulated", partial(_looped, passes=3)), Way("clipped", _clipped),
        Way("scheduled", _scheduled), Way("resumed", partial(_looped, warm=20)), Way("scaled", _scaled),
        Way("autocast", _autocast), Way("compiled", _compiled), Way("bf16, masters", _masters),
        Way("bf16, kept", _kept),
    )
}  # fmt: skip
LATE = ("bf16, masters", "bf16, kept")
"""Ways that make the optimizer themselves."""

OFTEN = ("AdamW", "SGD momentum L2", "eq.Muon", "eq.Lion", "Adam L2", "eq.AdamW", "eq.RotationalAdamW", "NAdam")
"""The optimizers of ways other than the plain one."""

KEPT = ("eq.AdamW", "eq.Lion", "eq.SGDM", "eq.Muon", "eq.RMSProp")


def setups() -> list[tuple[str, str, str]]:
    """Every optimizer on every model, some of them in every other way: optimizer, model, way."""
    models = list(MODELS)
    found = [(name, models[(i + k) % len(models)], "plain") for i, name in enumerate(OPTIMIZERS) for k in range(5)]
    for way in list(WAYS)[1:]:
        for i, name in enumerate(KEPT if way == "bf16, kept" else OFTEN):
            found.append((name, models[i % len(models)], way))
    return found


def run(name: str, model: str, way: str, steps: int = STEPS) -> Audit:
    """Audit one setup."""
    module = made(model)
    make = OPTIMIZERS[name]
    return WAYS[way].run(module, make if way in LATE else make(module), steps)
