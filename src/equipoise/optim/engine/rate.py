"""The lr of a step: a number, or a tensor on an accelerator, which the host does not read, to avoid a wait."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from equipoise import _check
from equipoise.optim.engine.tensor_list import Traced
from equipoise.optim.options import GroupOptions


def hollow(x: Any) -> bool:
    """Whether a tensor has no numbers at all: on `meta`, or under FakeTensorMode."""
    return torch.is_tensor(x) and (x.is_meta or type(x).__name__ == "FakeTensor")


def readable(x: Any) -> bool:
    """Whether the host may read a number: any but those of a tensor on an accelerator, and where there are none.

    FakeTensorMode remembers the number that a tensor was made of (`constant`), until it is changed.
    """
    if not torch.is_tensor(x):
        return True
    return x.device.type == "cpu" and (not hollow(x) or getattr(x, "constant", None) is not None)


def rate(group: GroupOptions) -> Any:
    """The lr of a group: a float, or a tensor without dimensions that is not read."""
    lr: Any = group["lr"]
    return float(lr) if readable(lr) else lr.detach()


def check_rate(group: GroupOptions) -> None:
    """Refuse an lr that makes no sense, as far as it may be read."""
    lr: Any = group["lr"]
    if readable(lr):
        _check.number("lr", lr, low=0)
    elif lr.numel() != 1:
        raise ValueError(f"lr is a tensor of shape {tuple(lr.shape)}: must be one number")


def known_rate(group: GroupOptions) -> float:
    """The lr of a group as a number, refused where the host would have to wait for it."""
    lr: Any = group["lr"]
    if not readable(lr):
        raise ValueError(
            f"lr is a tensor on {lr.device}: must be a number or a tensor on the CPU where the rotation comes from lr "
            "and weight decay, as the host works that out and would wait for the device at every step; or give angle"
        )
    return float(lr)


def add(w: Any, u: Any, by: Any) -> None:
    """w ← w + by·u. Torch would read an alpha that is a tensor; a compiler does not."""
    if isinstance(by, Tensor) and not isinstance(w, Traced):
        w.add_(u.mul(by))
    else:
        w.add_(u, alpha=by)


def sent(values: list[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Numbers as one tensor on a device; some may be tensors that lie there. Nobody waits for it to arrive."""
    here = [0.0 if torch.is_tensor(x) else x for x in values]
    made = torch.tensor(here, dtype=dtype, pin_memory=device.type == "cuda").to(device, non_blocking=True)
    for i, x in enumerate(values):
        if torch.is_tensor(x):
            made[i].copy_(x)
    return made
