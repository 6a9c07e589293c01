"""Several processes: which one writes, sums over all of them, and gathered tensors."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor


def rank_of() -> tuple[int, int]:
    """This process's number and how many there are; 0 and 1 without torch.distributed."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def reduce_all(flat: Tensor) -> None:
    """Sum over all processes, in place."""
    if rank_of()[1] > 1:
        dist.all_reduce(flat)


def same_everywhere(number: int) -> int:
    """The first process's number, on all of them."""
    if rank_of()[1] == 1:
        return number
    said = [number]
    dist.broadcast_object_list(said, src=0)
    return said[0]


def all_well(well: bool) -> bool:
    """Whether all is well on all processes."""
    count = rank_of()[1]
    if count == 1:
        return well
    said: list[Any] = [None] * count
    dist.all_gather_object(said, well)
    return all(said)


def gathered(part: Tensor, like: Any) -> Tensor:
    """A tensor whole, from the parts that lie on the processes as those of a DTensor do.

    Args:
        part: the part here.
        like: the DTensor.
    """
    from torch.distributed.tensor import DTensor

    whole = DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )
    return whole.full_tensor()
