"""Muon over sharded matrices (FSDP2's DTensors) on two ranks: ratios in one run, medians.

The ranks are two CUDA devices where there are as many, else processes of one thread each.

The peers: our own step where every rank orthogonalises every matrix (`foreach=False`), and torch.optim.Muon on the same
DTensors, its code in float32 where bfloat16 is slow, as in benchmarks/muon.py.
"""

from __future__ import annotations

import os
import socket
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from machine import HOST, bfloat16_is_fast, features
from timing import medians
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import equipoise as eq

RANKS = 2
SHAPES = [(512, 512)] * 8 + [(2048, 512)] * 4 + [(512, 2048)] * 4


def worker(rank: int, port: int) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    where = torch.device("cuda", rank) if torch.cuda.device_count() >= RANKS else HOST
    if where.type == "cuda":
        torch.cuda.set_device(where)
    if rank == 0:
        print(features(where))
    if not bfloat16_is_fast(where):
        torch.Tensor.bfloat16 = lambda x, *_: x.float().clone()  # type: ignore[method-assign]
    dist.init_process_group("nccl" if where.type == "cuda" else "gloo", rank=rank, world_size=RANKS)
    mesh = init_device_mesh(where.type, (RANKS,))

    def parameters() -> list[torch.nn.Parameter]:
        generator = torch.Generator().manual_seed(0)
        made = []
        for shape in SHAPES:
            w, grad = (torch.randn(shape, generator=generator).to(where) for _ in range(2))
            made.append(torch.nn.Parameter(distribute_tensor(0.02 * w, mesh, [Shard(0)])))
            made[-1].grad = distribute_tensor(grad, mesh, [Shard(0)])
        return made

    options: dict[str, Any] = {"lr": 1e-3, "weight_decay": 0.0}
    jobs = {
        "shared": eq.Muon(parameters(), **options),
        "on every rank": eq.Muon(parameters(), **options, foreach=False),
        "torch.optim.Muon": torch.optim.Muon(parameters(), **options),
    }
    seconds = medians({name: optimizer.step for name, optimizer in jobs.items()}, rounds=7)
    if rank == 0:
        for name in ("on every rank", "torch.optim.Muon"):
            print(f"Muon, matrices shared by {RANKS} ranks, takes {seconds['shared'] / seconds[name]:.2f} of: {name}")
    dist.destroy_process_group()


def main() -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    mp.spawn(worker, (port,), nprocs=RANKS)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
