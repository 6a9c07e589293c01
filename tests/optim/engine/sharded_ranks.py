"""One of two gloo ranks that step DTensor parameters and compare with the unsharded run; started by its test.

torchrun --nproc-per-node 2 sharded_ranks.py FOLDER
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from equipoise import geometry, optim


def wrapped(params: list[torch.nn.Parameter], **options: Any) -> optim.Rotational:
    return optim.Rotational(torch.optim.AdamW(params, **options))


def switched(params: list[torch.nn.Parameter], **options: Any) -> optim.Switch:
    switch = optim.Switch(optim.AdamW(params, **options), optim.RotationalAdamW(params, **options), at=1, blend=1)
    switch.state_dict()  # looks for the names of states, and changes nothing
    return switch


CASES: list[tuple[Any, dict[str, Any]]] = [
    (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "decay": "cautious"}),
    (optim.Lion, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.SGDM, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.NormalizedGD, {"lr": 0.01, "granularity": "neuron"}),
    (optim.NormalizedGD, {"lr": 0.01, "granularity": "tensor"}),
    (optim.RotationalAdamW, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.RotationalAdamW, {"lr": 0.01, "weight_decay": 0.1, "granularity": "tensor"}),
    (optim.RotationalAdamW, {"lr": 0.01, "weight_decay": 0.1, "center": True}),
    (optim.RotationalAdamW, {"lr": 0.01, "weight_decay": 0.1, "speeds": "rising"}),
    (optim.HyperballAdamW, {"lr": 0.01}),
    (wrapped, {"lr": 0.01, "weight_decay": 0.1}),
    (switched, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.AdamCPR, {"lr": 0.01, "warm_start": 2}),
    (optim.RotationalAdamW, {"lr": 0.01, "weight_decay": 0.1, "granularity": 5}),
    (optim.RotationalAdamW, {"lr": 0.01, "weight_decay": 0.1, "angle": "step"}),
    (optim.AdamW, {"lr": 0.01, "weight_decay": 0.1, "compile": True}),
    (optim.Muon, {"lr": 0.01}),
    (optim.RotationalMuon, {"lr": 0.01}),
    (optim.SteepestDescent, {"lr": 0.01, "momentum": 0.5}),
    (optim.SteepestDescent, {"sharpness": 10.0}),
    (optim.RotationalAdamW, {"lr": 0.01, "weight_decay": 0.1, "compile": True}),
    (optim.AdamP, {"lr": 0.01, "weight_decay": 0.1, "delta": 1.0}),
    (optim.Nero, {"lr": 0.01}),
    (optim.MDAdam, {"lr": 0.01}),
    (optim.MDMuon, {"lr": 0.01}),
    (optim.AngularMuown, {"lr": 0.01}),
]
PLACEMENTS = {"rows": Shard(0), "columns": Shard(1), "replicated": Replicate()}
STEPS = 4


SHAPES = ((6, 10), (5, 6), (4, 3, 5))  # the second does not divide between two ranks


def weight(shape: tuple[int, ...]) -> torch.Tensor:
    w = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    w[1] = 0.0
    return w


def gradient(t: int, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(10 + t))


def options_for(options: dict[str, Any], shape: tuple[int, ...]) -> dict[str, Any]:
    if options.get("speeds") == "rising":
        return options | {"speeds": torch.linspace(0.5, 2.0, shape[0])}
    return options


def unsharded(make: Any, options: dict[str, Any], shape: tuple[int, ...]) -> torch.Tensor:
    p = torch.nn.Parameter(weight(shape))
    optimizer = make([p], **options_for(options, shape))
    for t in range(STEPS):
        p.grad = gradient(t, shape)
        optimizer.step()
    return p.detach()


SHARED: list[tuple[Any, dict[str, Any]]] = [
    (optim.Muon, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.RotationalMuon, {"lr": 0.01, "weight_decay": 0.1}),
    (optim.HyperballMuon, {"lr": 0.01}),
    (optim.SteepestDescent, {"lr": 0.01, "momentum": 0.5}),
    (optim.Muon, {"lr": 0.01, "weight_decay": 0.1, "foreach": False}),
]
"""What works on whole matrices."""

MATRICES = ((6, 10), (5, 6), (3, 9), (1, 4), (8, 2))


def shared(make: Any, options: dict[str, Any], mesh: Any) -> None:
    """Several matrices: ranks divide the work, and the weights are those of one process."""
    calls, polar = [0], geometry.polar

    def counted(*args: Any, **kwargs: Any) -> torch.Tensor:
        calls[0] += 1
        return polar(*args, **kwargs)

    geometry.polar = counted
    try:
        sharded = [
            torch.nn.Parameter(distribute_tensor(weight(s) if s[0] > 1 else torch.ones(s), mesh, [Shard(i % 2)]))
            for i, s in enumerate(MATRICES)
        ]
        plain = [torch.nn.Parameter(p.data.full_tensor()) for p in sharded]  # type: ignore[attr-defined]
        for params in (sharded, plain):
            optimizer = make(params, **options)
            calls[0] = 0
            for t in range(STEPS):
                for i, (p, s) in enumerate(zip(params, MATRICES, strict=True)):
                    grad = gradient(t, s)
                    p.grad = distribute_tensor(grad, mesh, [Shard(i % 2)]) if params is sharded else grad
                optimizer.step()
            if params is sharded and make is optim.Muon:
                each = len(MATRICES) if "foreach" in options else 3 - mesh.get_rank()
                assert calls[0] == STEPS * each, f"{calls[0]} calls"
    finally:
        geometry.polar = polar
    for p, q in zip(sharded, plain, strict=True):
        torch.testing.assert_close(p.data.full_tensor(), q.data, rtol=1e-5, atol=1e-6)  # type: ignore[attr-defined]


def refused(mesh: Any, bad: float, row: int) -> None:
    """A step with a gradient that is not finite is left out by all ranks, wherever it lies."""
    p = torch.nn.Parameter(distribute_tensor(torch.ones(6, 3), mesh, [Shard(0)]))
    small = torch.nn.Parameter(distribute_tensor(torch.ones(1), mesh, [Shard(0)]))  # the second rank has none of it
    optimizer = optim.AdamW([p, small], lr=0.1, nonfinite="skip")
    grad = torch.ones(6, 3)
    grad[row, 1] = bad
    p.grad, small.grad = distribute_tensor(grad, mesh, [Shard(0)]), distribute_tensor(torch.ones(1), mesh, [Shard(0)])
    optimizer.step()
    assert optimizer.skipped == 1, "it was not seen"
    assert bool((p.data.full_tensor() == 1).all())  # type: ignore[attr-defined]
    optimizer.param_groups[0]["nonfinite"] = "error"
    with pytest.raises(ValueError, match="gradients of 1 of 2 parameters"):
        optimizer.step()


def worker(folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    report = []
    for (make, options), shape in ((case, shape) for case in CASES for shape in SHAPES):
        expected = unsharded(make, options, shape)
        for name, placement in PLACEMENTS.items():
            if name == "replicated" and shape != SHAPES[0]:
                continue
            label = f"{make.__name__} {options} {shape} {name}"
            try:
                p = torch.nn.Parameter(distribute_tensor(weight(shape), mesh, [placement]))
                optimizer = make([p], **options_for(options, shape))
                for t in range(STEPS):
                    p.grad = distribute_tensor(gradient(t, shape), mesh, [placement])
                    optimizer.step()
                data = p.data
                assert isinstance(data, DTensor)
                assert data.placements == (placement,), "the placement is kept"
                torch.testing.assert_close(data.full_tensor(), expected, rtol=1e-5, atol=1e-6)
            except Exception as error:  # each case is reported, not only the first
                report.append(f"{label}: {type(error).__name__}: {str(error)[:300]}")
    for make, options in SHARED:
        try:
            shared(make, options, mesh)
        except Exception as error:
            report.append(f"{make.__name__} {options} shared: {type(error).__name__}: {str(error)[:300]}")
    for bad, row in ((float("nan"), 0), (float("nan"), 5), (float("inf"), 5)):
        try:
            refused(mesh, bad, row)
        except Exception as error:
            report.append(f"{bad} in row {row}: {type(error).__name__}: {str(error)[:300]}")
    Path(folder, f"rank{dist.get_rank()}.txt").write_text("\n".join(report))
    dist.destroy_process_group()
    os._exit(0)  # threads of gloo may outlive the group, and abort a process that ends by itself


if __name__ == "__main__":
    worker(sys.argv[1])
