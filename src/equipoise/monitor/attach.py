"""What an optimizer and a path are, before a watch attaches to them."""

from __future__ import annotations

import os
from typing import Any

from torch import Tensor

from equipoise.monitor.layout import Quantity
from equipoise.monitor.quantities import PER_GROUP
from equipoise.monitor.run import Run
from equipoise.monitor.schema import FILE


def hooked(optimizer: Any) -> Any:
    """The optimizer whose step has hooks: inside accelerate's, its own."""
    one = optimizer
    while not hasattr(one, "_optimizer_step_pre_hooks"):
        if not hasattr(one, "optimizer"):
            raise ValueError(
                f"optimizer = {type(optimizer).__name__}: must be a torch.optim.Optimizer, or hold one as .optimizer; "
                "give the optimizer whose step() your loop calls"
            )
        one = one.optimizer
    return one


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a step was called with a closure, in which the gradients are computed."""
    return kwargs.get("closure") is not None or (len(args) > 1 and args[1] is not None)


def cheap(optimizer: Any) -> bool:
    """Whether lr can be read without waiting for a device."""
    return not any(isinstance(g.get("lr"), Tensor) and g["lr"].device.type != "cpu" for g in optimizer.param_groups)


def sharded(optimizer: Any) -> bool:
    """Whether parameters are spread over several processes."""
    return any(hasattr(p, "placements") for group in optimizer.param_groups for p in group["params"])


def of_groups(optimizer: Any) -> list[Quantity]:
    """The quantities that there is one of for each group."""
    count = len(optimizer.param_groups)
    return [
        Quantity(f"{q.name}/{i}", q.unit, "global", f"{q.description}: {i}") for q in PER_GROUP for i in range(count)
    ]


def last_step(path: str | os.PathLike[str]) -> int:
    """The last step of the run that is there; 0 if there is none."""
    if not os.path.exists(os.path.join(path, FILE)):
        return 0
    with Run.open(path) as run:
        return int(max(run.steps, default=0))
