"""Several processes: who writes, and sums over all of them."""

from __future__ import annotations

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
