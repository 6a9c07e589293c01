"""The engine that every optimizer of the family runs on: groups, states, low precision, foreach; no equation."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from equipoise.optim.many import Many
from equipoise.optim.moves import Move, Piece, center_rows, turns
from equipoise.optim.rules import Rule
from equipoise.theory import DECAYS, _check

LOW_PRECISION = (torch.bfloat16, torch.float16)
NONFINITE = ("ignore", "skip", "error")


class RuleOptimizer(Optimizer):
    """A torch optimizer made of a rule and a move. Final classes choose the two and name the hyperparameters.

    State is in float32 or the parameter's own float64; bfloat16 and float16 parameters keep a float32 copy
    (`master`), so that small updates are not lost to rounding.
    """

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        *,
        rule: Rule,
        move: Move,
        angle: Callable[[int], float] | None = None,
    ):
        self.rule, self.move = rule, move
        self.skipped = 0
        """Steps not taken because a gradient was not finite, where `nonfinite="skip"`."""
        self._angle = angle
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, its options checked.

        Args:
            param_group: as for any torch optimizer.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            check_group(group)
            for p in group["params"]:
                if p.is_complex():
                    raise ValueError("params: complex parameters are not supported; optimize real and imaginary parts")
        except ValueError:
            self.param_groups.pop()
            raise
        if group.get("center") and group["reference"] is None:
            with torch.no_grad():
                for p in group["params"]:
                    if turns(p, group):
                        center_rows(p, group["granularity"])

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("rule", "move", "skipped", "_angle")}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step.

        Args:
            closure: re-evaluates the model and returns the loss.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._all_finite():
            self.skipped += 1
            return loss
        for group in self.param_groups:
            self._step_group(group)
        return loss

    def _all_finite(self) -> bool:
        """Whether the step may go on; gradients are looked at only where a group asks for it."""
        asked = [g for g in self.param_groups if g["nonfinite"] != "ignore"]
        grads = [p.grad for g in asked for p in g["params"] if p.grad is not None and not p.grad.is_sparse]
        if not grads or all(bool(torch.isfinite(n)) for n in torch._foreach_norm(grads, float("inf"))):
            return True
        if any(g["nonfinite"] == "error" for g in asked):
            bad = sum(1 for g in grads if not bool(torch.isfinite(g).all()))
            raise ValueError(
                f"gradients of {bad} of {len(grads)} parameters are not finite: no weight was changed; find the cause, "
                "clip, or set nonfinite='skip' to leave such steps out"
            )
        return False

    def _step_group(self, group: dict[str, Any]) -> None:
        buckets: dict[tuple[Any, ...], list[tuple[Tensor, Tensor, Piece]]] = {}
        for p in group["params"]:
            if p.grad is None:
                continue
            if p.grad.is_sparse:
                raise ValueError("gradient is sparse: use a dense one (torch.nn.Embedding(sparse=False))")
            if p.numel() == 0:
                continue
            state = self.state[p]
            if "step" not in state:
                self._init_state(p, state)
            state["step"] += 1
            t = int(state["step"])
            w = p if p.dtype not in LOW_PRECISION else _master(p, state)
            buckets.setdefault((p.device, w.dtype, t, _is_distributed(p)), []).append((p, p.grad, Piece(w, state)))
        for (_, dtype, t, distributed), bucket in buckets.items():
            if self._angle is not None:
                group["angle"] = float(self._angle(t))
            together = len(bucket) > 1 and not distributed and group["foreach"] is not False
            for part in [bucket] if together else [[one] for one in bucket]:
                self._step_bucket(part, dtype, t, together, group)

    def _step_bucket(
        self,
        bucket: list[tuple[Tensor, Tensor, Piece]],
        dtype: torch.dtype,
        t: int,
        together: bool,
        group: dict[str, Any],
    ) -> None:
        def pack(tensors: list[Tensor]) -> Any:
            return Many(tensors) if together else tensors[0]

        pieces = [piece for _, _, piece in bucket]
        grads = [grad if grad.dtype == dtype else grad.to(dtype) for _, grad, _ in bucket]
        g: Any = pack([self.move.prepare(grad, piece.w, group) for grad, piece in zip(grads, pieces, strict=True)])
        if group["maximize"]:
            g = g.neg()
        if group["l2"]:
            g = g.add(pack([piece.w for piece in pieces]), alpha=float(group["l2"]))
        averages = tuple(pack([piece.state[name] for piece in pieces]) for name in self.rule.state)
        u = self.rule(g, averages, t, group)
        self.move(pieces, u, rule=self.rule, t=t, group=group)
        for p, _, piece in bucket:
            if piece.w is not p:
                p.copy_(piece.w)

    def _init_state(self, p: Tensor, state: dict[str, Any]) -> None:
        state["step"] = torch.zeros((), dtype=torch.float32)
        dtype = torch.float32 if p.dtype in LOW_PRECISION else p.dtype
        for name in self.rule.state:
            state[name] = torch.zeros_like(p, dtype=dtype, memory_format=torch.preserve_format)


def _master(p: Tensor, state: dict[str, Any]) -> Tensor:
    """The float32 copy of a low-precision parameter; where somebody else has changed the parameter, it follows."""
    if "master" not in state:
        state["master"] = p.detach().float()
    else:
        master = state["master"]
        master.copy_(torch.where(master.to(p.dtype) == p, master, p.float()))
    return state["master"]


def _is_distributed(p: Tensor) -> bool:
    return type(p).__name__ == "DTensor" or type(p.data).__name__ == "DTensor"


_UNIT = {"low": 0, "high": 1, "open_high": True}


def check_group(group: dict[str, Any]) -> None:
    """Refuse hyperparameters that make no sense, by argument, value and range."""
    _check.number("lr", group["lr"], low=0)
    _check.number("weight_decay", group["weight_decay"], low=0)
    _check.number("l2", group["l2"], low=0)
    _check.choice("decay", group["decay"], DECAYS)
    _check.choice("nonfinite", group["nonfinite"], NONFINITE)
    if "betas" in group:
        _check.betas(group["betas"])
    if "eps" in group:
        _check.number("eps", group["eps"], low=0)
    for name in ("momentum", "alpha", "track"):
        if name in group:
            _check.number(name, group[name], **_UNIT)
    if group.get("nesterov") and group["momentum"] == 0:
        raise ValueError("nesterov = True with momentum = 0: must have momentum > 0")
    if "granularity" in group and not (isinstance(group["granularity"], int) and group["granularity"] > 0):
        _check.choice("granularity", group["granularity"], ("neuron", "tensor"))
    if "method" in group:
        _check.choice("method", group["method"], ("exact", "small_step"))
        if group["reference"] is not None:
            _check.choice("reference", group["reference"], ("paper",))
        if group["angle"] is not None:
            _check.number("angle", group["angle"], low=0)
        elif group["weight_decay"] == 0 and group["rotate"] is not False:
            raise ValueError(
                "weight_decay = 0: must be > 0, as the rotation comes from lr and weight decay; or give angle, or "
                "rotate=False for this group"
            )
