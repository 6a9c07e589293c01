"""Schedule-free training: gradients are taken between the weights and their average."""

from __future__ import annotations

from typing import Any, Self, final

import torch
from torch import Tensor

from equipoise import _check


@final
class ScheduleFree:
    """z by the optimizer's step from gradients at y;  x ← (1−c)x + cz;  y = (1−β)z + βx, with c = η²/Ση².

    The model has y in training, and the average x inside `with`, for evaluation and at the end. The lr may warm up, and
    then stays. It works on the steps of any optimizer. The gradients must be there before `step`: no closures.

    Deviation: weight decay takes from z, where the optimizer steps, not from y.

    Args:
        optimizer: whose steps make z.
        beta: β; at 0 the training is the optimizer's own, and x is the mean of its weights.

    Reference: [defazio2024] Eq. 3–5, with the weights of its code.

    >>> w = torch.nn.Parameter(torch.zeros(1))
    >>> optimizer = torch.optim.SGD([w], lr=0.5)
    >>> free = ScheduleFree(optimizer, beta=0.5)
    >>> for _ in range(2):
    ...     w.grad = w.detach() - 1.0
    ...     optimizer.step()
    >>> w.item()  # y, of z = 0.75 and x = 0.625
    0.6875
    >>> with free:
    ...     w.item()
    0.625
    """

    def __init__(self, optimizer: torch.optim.Optimizer, *, beta: float = 0.9):
        self.optimizer = optimizer
        self.beta = _check.number("beta", beta, low=0, high=1)
        self.swapped = False
        """Whether the model has the average."""
        self._z: dict[Tensor, Tensor] = {}
        self._x: dict[Tensor, Tensor] = {}
        self._totals: dict[int, float] = {}
        self._hooks = [
            optimizer.register_step_pre_hook(self._before), optimizer.register_step_post_hook(self._after),
        ]  # fmt: skip

    @torch.no_grad()
    def _before(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.swapped:
            raise ValueError("the model has the averaged weights: leave `with` before the next step")
        if kwargs.get("closure", args[1] if len(args) > 1 else None) is not None:
            raise ValueError("closure: must be None, as it would be called with other weights than those of training")
        for p in self._params():
            if p not in self._z:
                self._z[p], self._x[p] = (p.detach().to(_kept_in(p), copy=True) for _ in "zx")
            p.copy_(self._z[p])

    @torch.no_grad()
    def _after(self, *_: Any) -> None:
        for i, group in enumerate(self.optimizer.param_groups):
            weight = float(group["lr"]) ** 2
            self._totals[i] = self._totals.get(i, 0.0) + weight
            share = weight / self._totals[i] if self._totals[i] else 0.0
            for p in group["params"]:
                self._z[p].copy_(p)
                self._x[p].lerp_(self._z[p], share)
                p.copy_(self._between(p))

    def _between(self, p: Tensor) -> Tensor:
        return self._z[p].lerp(self._x[p], self.beta)

    def _params(self) -> list[Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @torch.no_grad()
    def __enter__(self) -> Self:
        if self.swapped:
            raise ValueError("the model has the averaged weights already")
        for p, x in self._x.items():
            p.copy_(x)
        self.swapped = True
        return self

    @torch.no_grad()
    def __exit__(self, *_: object) -> None:
        for p in self._x:
            p.copy_(self._between(p))
        self.swapped = False

    def remove(self) -> None:
        """Leave the optimizer as it was, with the weights that the model has."""
        for hook in self._hooks:
            hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """What goes on with the model's weights and the optimizer's state."""
        params = [p for p in self._params() if p in self._z]
        return {"z": [self._z[p] for p in params], "x": [self._x[p] for p in params], "totals": dict(self._totals)}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, and put y into the model.

        Args:
            state_dict: of the same parameters in the same order.
        """
        params = self._params() if state_dict["z"] else []
        for name in ("z", "x"):
            shapes = [tuple(value.shape) for value in state_dict[name]]
            if shapes != [tuple(p.shape) for p in params]:
                raise ValueError(f"state_dict has {len(shapes)} weights: must be of the model's {len(params)} shapes")
        for p, z, x in zip(params, state_dict["z"], state_dict["x"], strict=True):
            self._z[p], self._x[p] = (v.to(device=p.device, dtype=_kept_in(p), copy=True) for v in (z, x))
            p.copy_(self._between(p))
        self._totals = {int(i): float(total) for i, total in state_dict["totals"].items()}


def _kept_in(p: Tensor) -> torch.dtype:
    return torch.float32 if p.dtype in (torch.bfloat16, torch.float16) else p.dtype
