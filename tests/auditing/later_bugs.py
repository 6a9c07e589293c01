"""Public bugs that were written out after all thresholds were settled, and then run once."""

from typing import Any

import torch
from tests.auditing.bugs import Bug, Hand, adam, averages, trained
from tests.auditing.loops import made
from torch import Tensor

from equipoise.auditing import Audit

LATER: list[Bug] = []


def later(where: str, what: str, code: str) -> Any:
    def keep(run: Any) -> Any:
        LATER.append(Bug(where, what, code, run))
        return run

    return keep


def by_kind(model: torch.nn.Module, **rest: Any) -> list[dict[str, Any]]:
    """Matrices, and all else with options of its own."""
    params = list(model.parameters())
    return [{"params": [p for p in params if p.ndim > 1]}, {"params": [p for p in params if p.ndim < 2], **rest}]


@later("lessw2020/Ranger-Deep-Learning-Optimizer#9", "a cached step size holds the lr of the first group", "audit-lr")
def _() -> Audit:
    class Adam(Hand):
        cached: tuple[int, float] = (0, 0.0)

        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            m, v, t = averages(g, state)
            if self.cached[0] != t:
                self.cached = (t, group["lr"])
            p.sub_(adam(m, v, t), alpha=self.cached[1])

    model = made()
    return trained(Adam(by_kind(model, lr=1e-4), lr=1e-3, betas=(0.9, 0.999)), model)


@later("PaddlePaddle/Paddle#63616", "AdamW ignores the beta1 of a group", "audit-betas")
def _() -> Audit:
    class AdamW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(adam(*averages(g, state)), alpha=group["lr"])

    model = made()
    groups = by_kind(model, betas=(0.8, 0.999))
    return trained(AdamW(groups, lr=1e-3, weight_decay=0.01, betas=(0.9, 0.999)), model)


@later("yandex-research/tabular-dl-tabr#19", "the group without weight decay stays empty", "audit-decay-on-gains")
def _() -> Audit:
    model = made("attention")
    without: list[Tensor] = []
    groups = [{"params": list(model.parameters())}, {"params": without, "weight_decay": 0.0}]
    return trained(torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1), model)


@later("jettify/pytorch-optimizer#455", "SGDW takes lr·wd off every weight, whatever its value", "audit-unexplained")
def _() -> Audit:
    class SGDW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            v = state.setdefault("momentum_buffer", torch.zeros_like(g)).mul_(group["momentum"]).add_(g)
            p.add_(v, alpha=-group["lr"]).sub_(group["lr"] * group["weight_decay"])

    model = made()
    return trained(SGDW(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-2), model)


@later("FluxML/Optimisers.jl#129", "Lion's averages take β where 1 − β is meant", "audit-rule")
def _() -> Audit:
    class Lion(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            m = state.setdefault("exp_avg", torch.zeros_like(g))
            b1, b2 = group["betas"]
            m.mul_(1 - b2).add_(g, alpha=b2)
            p.sub_(((b1 - b2) * g + (1 - b1) * m).sign(), alpha=group["lr"])

    model = made()
    return trained(Lion(model.parameters(), lr=1e-3, betas=(0.9, 0.99)), model)


@later("microsoft/onnxruntime#4877", "parameters in no special group get no default weight decay", "audit-decay")
def _() -> Audit:
    class AdamW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            if group.get("special"):
                p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(adam(*averages(g, state)), alpha=group["lr"])

    model = made()
    groups = by_kind(model, special=True, weight_decay=0.0)
    return trained(AdamW(groups, lr=1e-3, weight_decay=0.1, betas=(0.9, 0.999)), model)


@later("zc911/MatrixSlow#17", "momentum starts with a gradient that is not multiplied by lr", "audit-rule")
def _() -> Audit:
    class SGD(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            if "velocity" not in state:
                state["velocity"] = -g.clone()
            else:
                state["velocity"].mul_(group["momentum"]).sub_(g, alpha=group["lr"])
            p.add_(state["velocity"])

    model = made()
    return trained(SGD(model.parameters(), lr=0.05, momentum=0.9), model)


@later("lessw2020/Ranger21#54", "decay stands behind the loop and reaches only the last parameter", "audit-decay")
def _() -> Audit:
    class AdamW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            p.sub_(adam(*averages(g, state)), alpha=group["lr"])
            if p is group["params"][-1]:
                p.mul_(1 - group["lr"] * group["weight_decay"])

    model = made("linear")
    return trained(AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, betas=(0.9, 0.999)), model)


@later(
    "UselessToys/Ecosystem_WebUI#383", "the group counts steps, also before a parameter's first gradient", "audit-lr"
)
def _() -> Audit:
    class AdamW(Hand):
        def update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
            m, v, _ = averages(g, state)
            group["count"] = group.get("count", 0) + (p is group["params"][0])
            p.sub_(adam(m, v, group["count"]), alpha=group["lr"])

    model = made("attention")
    optimizer = AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999))
    first, late = next(model.parameters()), model.get_parameter("up.weight")
    done: list[int] = []

    def each() -> None:
        done.append(1)
        if len(done) <= 4:
            late.grad = None  # the branch is not used yet
        assert first.grad is not None

    return trained(optimizer, model, each=each)
