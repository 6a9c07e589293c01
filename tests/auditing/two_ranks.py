"""Two ranks train under an audit, soundly and with faults: `python -m torch.distributed.run … two_ranks.py OUT`.

Rank 0 writes, for each case, the warnings of both ranks and the rules of its table.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.auditing.loops import Loop, audited, made, warned
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import equipoise as eq
from equipoise.auditing import Audit, audit

OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-3),
    "AdamW": lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1),
    "eq.AdamW": lambda m: eq.AdamW(eq.param_groups(m), lr=1e-3, weight_decay=0.1),
    "eq.Lion": lambda m: eq.Lion(m.parameters(), lr=1e-3, weight_decay=0.1),
    "eq.Muon": lambda m: eq.Muon(eq.param_groups(m), lr=0.02, weight_decay=0.1, adam={"lr": 1e-3}),
    "eq.RotationalAdamW": lambda m: eq.RotationalAdamW(eq.param_groups(m), lr=1e-2, weight_decay=0.1),
}
MODELS = ("mlp", "attention")


def seed() -> int:
    return 1 + dist.get_rank()  # each rank has batches of its own


def replicated(name: str, model: str, passes: int = 1) -> Audit:
    wrapped = DistributedDataParallel(made(model))
    optimizer = OPTIMIZERS[name](wrapped)
    return audited(Loop(wrapped, optimizer, passes=passes, batches=batches(model)))


def batches(model: str) -> Callable[[], torch.Tensor]:
    """Inputs, on each rank others."""
    generator = torch.Generator().manual_seed(seed())
    if model == "attention":
        return lambda: torch.randint(20, (16, 5), generator=generator)
    return lambda: torch.randn(16, 12, generator=generator)


def sharded(name: str, model: str) -> Audit:
    module = made(model)
    for child in module.children():
        if any(p.requires_grad for p in child.parameters()) and not isinstance(child, nn.MultiheadAttention):
            fully_shard(child)
    fully_shard(module)
    return audited(Loop(module, OPTIMIZERS[name](module), batches=batches(model)))


def unlike_starts() -> Audit:
    """Gradients are averaged by hand; weights were never made equal."""
    model = made("mlp", seed=dist.get_rank())

    def average() -> None:
        for p in model.parameters():
            dist.all_reduce(p.grad)

    return audited(Loop(model, OPTIMIZERS["AdamW"](model), after=average, seed=seed()))


def unlike_gradients() -> Audit:
    """The module inside of DistributedDataParallel is called, so that nothing averages its gradients."""
    model = made("mlp")
    DistributedDataParallel(model)
    return audited(Loop(model, OPTIMIZERS["AdamW"](model), seed=seed()))


def unlike_steps() -> Audit:
    """One rank has another lr."""
    model = DistributedDataParallel(made("mlp"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1 + 0.01 * dist.get_rank())
    return audited(Loop(model, optimizer, batches=batches("mlp")))


def unlike_scales() -> Audit:
    """Averaged gradients are divided by another scale on each rank (pytorch/pytorch#136009)."""
    model = DistributedDataParallel(made("mlp"))

    def unscale() -> None:
        for p in model.parameters():
            p.grad /= 1 + dist.get_rank()  # type: ignore[operator]

    return audited(Loop(model, OPTIMIZERS["SGD"](model), after=unscale, batches=batches("mlp")))


def apart() -> Audit:
    """Two trainings that have nothing to do with each other."""
    model = made("mlp", seed=dist.get_rank())
    return audited(Loop(model, OPTIMIZERS["AdamW"](model), seed=seed()))


def alone() -> Audit:
    """Only rank 0 audits, and does not wait for ever."""
    model = DistributedDataParallel(made("mlp"))
    optimizer = OPTIMIZERS["AdamW"](model)
    loop = Loop(model, optimizer, batches=batches("mlp"))
    if dist.get_rank():
        loop.run()
        return audit(model, optimizer, steps=1)
    return audited(loop)


FAULTS: dict[str, Callable[[], Audit]] = {
    "unlike starts": unlike_starts, "unlike gradients": unlike_gradients, "unlike steps": unlike_steps,
    "unlike scales": unlike_scales, "apart": apart,
}  # fmt: skip


def sound() -> dict[str, Callable[[], Audit]]:
    """Every sound case by its name."""
    found: dict[str, Callable[[], Audit]] = {}
    for name in OPTIMIZERS:
        for model in MODELS:
            found[f"{name} · {model} · DDP"] = lambda n=name, m=model: replicated(n, m)
            found[f"{name} · {model} · FSDP2"] = lambda n=name, m=model: sharded(n, m)
    found["AdamW · mlp · DDP, accumulated"] = lambda: replicated("AdamW", "mlp", passes=2)
    found["alone"] = alone
    return found


def main(out: Path, *which: str) -> None:
    dist.init_process_group("gloo")
    made_of: dict[str, Any] = {}
    for name, run in (FAULTS | sound()).items():  # "alone" is the last
        if which and name not in which:
            continue
        torch.manual_seed(0)
        seen = run()
        mine = {
            "warned": warned(seen),
            "said": [f"{f.code}: {f.evidence}" for f in seen.findings],
            "rules": sorted({row.rule for row in seen.table}),
        }
        both: list[Any] = [None, None]
        dist.all_gather_object(both, mine)
        made_of[name] = both
        if dist.get_rank() == 0:
            out.write_text(json.dumps(made_of, indent=1))
    dist.barrier()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
    # Without torch's own end: after a wait in the store that ran out of time, its threads sometimes abort there.
    sys.stderr.flush()
    os._exit(0)
