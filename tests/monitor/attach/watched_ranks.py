"""One of two gloo ranks that train a watched model under FSDP2 and under DDP; started by its test.

torchrun --nproc-per-node 2 watched_ranks.py FOLDER KIND...

Kinds: fsdp, ddp, budget (FSDP2 at the default cadence), both (two optimizers), apart (float64, DTensors on a part of
the ranks), and what fails on the second rank: before, after, spectra, send, look. The weights at the end are saved as
KIND.pt by the first rank. In the last kind, crash, the second rank's training itself fails inside a step, and no rank
waits for it.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.monitor.loops import loss_of, network
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq
from equipoise.monitor.measure.assemble import Assembler
from equipoise.monitor.measure.frame import Frame

BREAKS = {
    "before": (Frame, "before"),
    "after": (Frame, "after"),
    "spectra": (Frame, "change_of"),
    "send": (Frame, "flat"),
    "look": (Assembler, "__init__"),
}


def break_it(kind: str) -> Callable[[], None]:
    """Let one part fail from its third call on, looking at the parameters at once; what mends it."""
    owner, name = BREAKS[kind]
    whole, calls = getattr(owner, name), []

    def broken(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) > (0 if kind == "look" else 2):
            raise RuntimeError(f"{kind} is broken")
        return whole(*args, **kwargs)

    setattr(owner, name, broken)
    return lambda: setattr(owner, name, whole)


def optimizers_for(model: torch.nn.Module, kind: str) -> list[torch.optim.Optimizer]:
    params = list(model.parameters())
    parts = [params[:3], params[3:]] if kind == "both" else [params]
    return [torch.optim.AdamW(part, lr=0.01, weight_decay=0.1) for part in parts]


def run(kind: str, rank: int, folder: str) -> None:
    model = network(torch.float64 if kind == "apart" else torch.float32)
    if kind == "apart":  # each rank alone on its part of the mesh, as a replica is beside tensor parallelism
        part = init_device_mesh("cpu", (1, 2), mesh_dim_names=("data", "tensor"))["data"]
        fully_shard(model, mesh=part)
    elif kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (2,))
        for layer in (model[0], model[3]):  # type: ignore[index]
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizers = optimizers_for(model, kind)
    every, steps = (None, 100) if kind == "budget" else (1, 12 if kind in BREAKS else 4)
    strict = kind not in BREAKS
    spectra = None if kind == "budget" else 1
    mend = break_it(kind) if kind in BREAKS and rank == 1 else None
    given = optimizers if kind == "both" else optimizers[0]
    sinks = ["tensorboard"] if kind in ("fsdp", "ddp") else []
    with eq.watch(
        model, given, Path(folder, kind), every=every, spectra=spectra, sinks=sinks, diagnose=False, strict=strict
    ) as watch:
        for step in range(steps):
            loss = loss_of(model, step, torch.float64 if kind == "apart" else torch.float32)
            loss.backward()
            if kind == "crash" and rank == 1 and step == 2:
                optimizers[0].param_groups[-1]["betas"] = None
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
            watch.log(loss=loss)
    if mend is not None:
        mend()
    if kind in BREAKS:
        Path(folder, f"{kind}-{rank}.txt").write_text("\n".join(f"{f.code}: {f.evidence}" for f in watch.findings))
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p.detach() for p in model.parameters()]  # type: ignore[attr-defined]
    if rank == 0:
        torch.save(whole, Path(folder, f"{kind}.pt"))
    dist.barrier()


if __name__ == "__main__":
    folder, *kinds = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for kind in kinds:
        try:
            run(kind, rank, folder)
        except Exception as error:
            if kind != "crash":
                raise
            Path(folder, f"crash-{rank}.txt").write_text(f"{type(error).__name__}: {error}")
            os._exit(0)
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo may outlive the group, and abort a process that ends by itself
