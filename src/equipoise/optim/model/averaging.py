"""An average of a model's weights, kept beside them and swapped with them for evaluation."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

from typing import Any, Self, final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from equipoise import _check, theory
from equipoise._check import Array


@final
class WeightAverage:
    """w̄ ← βw̄ + (1−β)w after every step, or any average Σ_t b_t w_t, without a second model.

    As torch's `AveragedModel`, it starts as the weights after the first update, and buffers are not averaged: where a
    BatchNorm is in the model, call `torch.optim.swa_utils.update_bn` while the average is in it. Averages of
    low-precision weights are in float32.

    Args:
        model: whose parameters are averaged, as they are now.
        beta: β.
        weights: b_t instead, one a step, as `theory.design_average` gives them.

    Reference: [tian2025]; `theory.memory(…, average=…)` says which batches it remembers.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = WeightAverage(model, beta=0.5)
    >>> for value in (1.0, 3.0):
    ...     _ = nn.init.constant_(model.weight, value)
    ...     average.update()
    >>> with average:
    ...     print(model.weight.item())
    2.0
    >>> model.weight.item()
    3.0
    """

    def __init__(self, model: nn.Module, *, beta: float = 0.999, weights: ArrayLike | None = None):
        if not isinstance(model, nn.Module):
            raise ValueError(f"model = {type(model).__name__}: must be a torch.nn.Module")
        named = dict(model.named_parameters())
        if not named:
            raise ValueError("model: must have parameters")
        self.beta = _check.number("beta", beta, low=0, high=1, open_high=True)
        self.weights = None if weights is None else _check.series("weights", weights, None, low=0)
        self.updates = 0
        """How many steps are in the average."""
        self.swapped = False
        """Whether the model has the average's weights, and the average the model's."""
        self._names, self._params = list(named), list(named.values())
        self._kept = [p.detach().to(torch.float32 if p.dtype in _LOW else p.dtype, copy=True) for p in self._params]

    @torch.no_grad()
    def update(self) -> None:
        """Take in the weights as they are now; call it after each step."""
        if self.swapped:
            raise ValueError("the model has the averaged weights: swap them back before the next update")
        b = self.weights
        if b is not None and self.updates >= len(b):
            raise ValueError(f"weights has {len(b)} values: must be one for each update, and this is one more")
        self.updates += 1
        if b is None:
            new = 1.0 if self.updates == 1 else 1 - self.beta
        else:
            total = float(b[: self.updates].sum())
            new = float(b[self.updates - 1]) / total if total else 1.0
        if new == 1.0:
            torch._foreach_copy_(self._kept, [p.detach() for p in self._params])
        elif new:
            now = [p.to(k.dtype) for p, k in zip(self._params, self._kept, strict=True)]
            torch._foreach_lerp_(self._kept, now, new)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the model's weights and the average, in place; once more puts them back."""
        if not self.updates:
            raise ValueError("there is no average yet: call update() after a step")
        for p, kept in zip(self._params, self._kept, strict=True):
            before = p.detach().to(kept.dtype, copy=True)
            p.copy_(kept)
            kept.copy_(before)
        self.swapped = not self.swapped

    def __enter__(self) -> Self:
        self.swap()
        return self

    def __exit__(self, *_: object) -> None:
        self.swap()

    def shares(self) -> Array:
        """b_t of the updates so far: what `theory.memory` takes as `average`."""
        if self.weights is None:
            return theory.ema_weights(max(self.updates, 1), beta=self.beta)
        some = np.asarray(self.weights[: self.updates])
        return some / some.sum()

    def state_dict(self) -> dict[str, Any]:
        """The average and its number of updates; that of the model itself while the two are swapped is refused."""
        if self.swapped:
            raise ValueError("the model has the averaged weights: swap them back before saving")
        return {"updates": self.updates, "average": dict(zip(self._names, self._kept, strict=True))}

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned.

        Args:
            state_dict: of an average of the same model.
        """
        saved: dict[str, Tensor] = state_dict["average"]
        if set(saved) != set(self._names):
            odd = sorted(set(saved) ^ set(self._names))
            raise ValueError(f"state_dict has other parameters than the model: {', '.join(odd[:3])}")
        for name, kept in zip(self._names, self._kept, strict=True):
            kept.copy_(saved[name])
        self.updates, self.swapped = int(state_dict["updates"]), False


_LOW = (torch.bfloat16, torch.float16)
