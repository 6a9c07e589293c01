"""One of two gloo ranks that train a watched model under FSDP2 and under DDP; started by its test.

python watch_ranks.py RANK PORT FOLDER
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from loops import loss_of, network
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq


def worker(rank: int, port: int, folder: str) -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": "2"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for kind in ("fsdp", "ddp", "budget"):
        model = network()
        if kind != "ddp":
            mesh = init_device_mesh("cpu", (2,))
            for layer in (model[0], model[3]):  # type: ignore[index]
                fully_shard(layer, mesh=mesh)
            fully_shard(model, mesh=mesh)
        else:
            model = DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
        every, steps = (None, 100) if kind == "budget" else (1, 4)
        sinks = [] if kind == "budget" else ["tensorboard"]
        with eq.watch(model, optimizer, Path(folder, kind), every=every, strict=True, sinks=sinks) as watch:
            for step in range(steps):
                optimizer.zero_grad()
                loss = loss_of(model, step)
                loss.backward()
                optimizer.step()
                watch.log(loss=loss)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    worker(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
