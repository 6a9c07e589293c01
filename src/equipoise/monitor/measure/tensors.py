"""The tensors of a watch: names, optimizers, rows, and their part on this process."""

# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false
# (torch exports its foreach functions under private names alone; DTensor's methods are not Tensor's)

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any

import torch
from torch import Tensor

from equipoise.monitor.attach.ranks import rank_of
from equipoise.monitor.attach.registry import OptimizerRegistry
from equipoise.optim.dynamics_of import dynamics_of, stepping
from equipoise.optim.model.groups import unwrapped
from equipoise.optim.model.roles import known_parameters


@dataclass(frozen=True)
class Watched:
    """One parameter: its neurons are rows `first` to `first + rows` of all rows.

    Attributes:
        name: as in the model.
        p: the parameter.
        owner: number of its optimizer.
        group: number of its group, through all optimizers.
        rows: its neurons; 1 for fewer than two dimensions, or where neurons are not told apart.
        first: where they begin among all rows.
        offset: of them, where this process's shard begins.
        scale: by how much the optimizer scales lr for its shape.
        counts: whether this process counts it; of replicas only one does.
    """

    name: str
    p: Tensor
    owner: int
    group: int
    rows: int
    first: int
    offset: int
    scale: float
    counts: bool

    @property
    def local(self) -> Tensor:
        """The part of the parameter on this process."""
        return local(self.p)

    @property
    def low(self) -> bool:
        """Whether its precision is low."""
        return self.p.dtype in (torch.bfloat16, torch.float16)


def local(x: Any) -> Tensor:
    """A DTensor's shard here, the values of a quantized state; any other tensor as it is. Only without gradients."""
    if type(x) in (Tensor, torch.nn.Parameter):  # most are, and asking for attributes that are not there is slow
        return x
    if hasattr(x, "to_local"):
        x = x.detach().to_local()
    return x if type(x).dequantize is Tensor.dequantize else x.dequantize()  # as torchao's 8-bit averages have it


def like(x: Any, p: Any) -> Any:
    """A gradient or state in the placement of its parameter."""
    if type(x) is Tensor:
        return x
    if hasattr(x, "placements") and hasattr(p, "placements") and x.placements != p.placements:
        return x.redistribute(placements=p.placements)
    return x


def names_of(model: Any) -> dict[int, str]:
    """The name of each parameter by its id; a tied one has its first name."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for name, p in [] if model is None else model.named_parameters(remove_duplicate=False):
        if id(p) not in names:
            short = unwrapped(name)
            # A module may itself be called "module": then the long name tells two parameters apart.
            names[id(p)] = name if short in taken else short
            taken.add(names[id(p)])
    return names


def roles_of(model: Any) -> dict[int, str]:
    """What each parameter is for, by its id, as `param_groups` tells it; kernels of convolutions are matrices.

    Args:
        model: the model, compiled or wrapped; None, or one that cannot be told, gives nothing.
    """
    try:
        known = [] if model is None else known_parameters(model)
    except (ValueError, AttributeError):
        return {}
    return {id(k.param): "matrix" if k.role == "conv" else k.role for k in known}


class Fingerprint:
    """What must be the same for a frame still to fit: the parameters, and what they are like.

    Args:
        registry: the optimizers.
    """

    def __init__(self, registry: OptimizerRegistry) -> None:
        self._params = _params(registry)
        self._counts = _counts(registry)
        self._kinds = list(map(_KIND, self._params))
        self._looked = -LOOK

    def fits(self, registry: OptimizerRegistry, step: int) -> bool:
        """Whether all is as it was; what a glance does not show is seen a few steps later.

        Args:
            registry: the optimizers.
            step: number of the step.
        """
        if _counts(registry) != self._counts:
            return False
        if 0 <= step - self._looked < LOOK:
            return True
        self._looked = step
        now = _params(registry)
        return all(map(is_, now, self._params)) and list(map(_KIND, now)) == self._kinds

    def forget(self) -> None:
        """Look at all parameters the next time."""
        self._looked = -LOOK


LOOK = 8
"""Steps after which parameters are looked at one by one, for freezing and the like."""

_KIND = attrgetter("requires_grad", "dtype", "shape")


def _counts(registry: OptimizerRegistry) -> list[int]:
    return [len(group["params"]) for group in registry.param_groups]


def _params(registry: OptimizerRegistry) -> list[Tensor]:
    return [p for group in registry.param_groups for p in group["params"]]


def watched(registry: OptimizerRegistry, names: dict[int, str], neurons: bool) -> list[Watched]:
    """The parameters of some optimizers that are trained, with their places.

    Args:
        registry: the optimizers.
        names: name of each parameter by its id; others are called by group and number.
        neurons: whether neurons are told apart.
    """
    found: list[Watched] = []
    sharded = registry.sharded
    first, taken = 0, set()
    for k, optimizer in enumerate(registry.each):
        for i, group in zip(registry.groups_of(k), stepping(optimizer).param_groups, strict=True):
            known = dynamics_of(optimizer, group)
            for j, p in enumerate(group["params"]):
                trained = p.requires_grad and p.numel() and p.is_floating_point() and p.layout == torch.strided
                if not trained or p.is_meta or id(p) in taken:
                    continue
                taken.add(id(p))
                name = names.get(id(p), f"group {i}, parameter {j}")
                rows = p.shape[0] if p.ndim > 1 and neurons else 1
                offset, counts = _shard(p, sharded)
                scale = known.scale_of(tuple(p.shape))
                found.append(Watched(name, p, k, i, rows, first, offset if rows > 1 else 0, scale, counts))
                first += rows
    return found


def _shard(p: Any, others: bool) -> tuple[int, bool]:
    """The row at which this process's shard begins, and whether it counts: of replicas only the first does.

    Where a DTensor lies on a part of the processes, as beside tensor parallelism, others have the same on theirs.

    Args:
        p: the parameter.
        others: whether any parameter is sharded, so that sums are taken over all processes.
    """
    if not hasattr(p, "placements"):
        return 0, not others or rank_of()[0] == 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
    place = p.device_mesh.get_coordinate()
    counts = 0 in p.device_mesh.mesh and all(
        c == 0 for c, kind in zip(place or (), p.placements, strict=True) if kind.is_replicate()
    )
    return (offset[0] if offset else 0), counts
