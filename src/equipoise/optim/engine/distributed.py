"""Share work on whole tensors of several ranks (DTensors): one rank computes each tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from equipoise.optim.rows import gathered


def mesh_of(x: Any) -> Any:
    """The ranks that a DTensor lies on; None for any other tensor."""
    return x.device_mesh if type(x).__name__ == "DTensor" else None


def whole(x: Any) -> Tensor:
    """All of a DTensor, on every rank; any other tensor as it is."""
    return x if mesh_of(x) is None else gathered(x).to_local()  # type: ignore[attr-defined]


def summed(x: Tensor, mesh: Any) -> Tensor:
    """The sum of what each rank of a mesh has, on all of them; without a mesh the tensor itself."""
    if mesh is None:
        return x
    from torch.distributed.tensor import DTensor, Partial

    return DTensor.from_local(x, mesh, [Partial()] * mesh.ndim).full_tensor()


def orthogonalization_cost(shape: Sequence[int]) -> int:
    """Of orthogonalising a matrix, up to a factor."""
    return math.prod(shape) * min(shape, default=1)


def divided(tensors: Sequence[Tensor], what: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """What a function makes of each tensor as a whole, placed as the tensor is.

    Of DTensors each rank takes its share, one at a time, so that no rank holds more than two whole ones: it is gathered
    from all, and what was made of it is scattered as a sum in which the other ranks have zeros. Equal costs go
    together, so that ranks do not wait for each other.

    Args:
        tensors: on the same mesh.
        what: a function of one tensor that keeps its shape and dtype.
    """
    mesh = mesh_of(tensors[0])
    if mesh is None:
        return [what(x) for x in tensors]
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    ranks: list[int] = mesh.mesh.flatten().tolist()
    plain = all(type(p) in (Replicate, Shard) for x in tensors for p in x.placements)  # type: ignore[attr-defined]
    if len(tensors) < 2 or len(ranks) < 2 or not plain:
        everywhere = [Replicate()] * mesh.ndim
        return [_placed(DTensor.from_local(what(whole(x)), mesh, everywhere), x) for x in tensors]
    made, here = list(tensors), ranks.index(dist.get_rank())
    order = sorted(range(len(tensors)), key=lambda i: -orthogonalization_cost(tensors[i].shape))
    for start in range(0, len(order), len(ranks)):
        turn = order[start : start + len(ranks)]
        mine = None
        for rank, i in enumerate(turn):
            x = whole(tensors[i])  # all take part
            if rank == here:
                mine = x
        result = None if mine is None else what(mine).contiguous()
        for rank, i in enumerate(turn):
            like: Any = tensors[i]
            part = result if rank == here and result is not None else like.to_local().new_zeros(like.shape)
            made[i] = _placed(DTensor.from_local(part, mesh, [Partial()] * mesh.ndim), like)
    return made


def _placed(x: Any, like: Any) -> Tensor:
    return x.redistribute(placements=like.placements)
