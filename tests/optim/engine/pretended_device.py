"""Steps on an accelerator that is not there: tensors without numbers, on a device that is not the CPU.

Torch refuses to mix such tensors with the CPU's, and what would read a number of them raises; copies to the CPU are
counted. It renames a backend of torch for good, so it runs in a process of its own, and prints what failed as JSON:
`python pretended_device.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from tests.optim.table import ALL, MATRIX
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import equipoise as eq

DEVICE = "pretend"
SHAPES = [(40, 30), (30, 40), (300, 257), (7,), (5, 3, 3, 3)]


class NoCopyToHost(TorchDispatchMode):
    """Refuses operations that take a tensor of the device and make one of the CPU, or write into one.

    And float64 on the device, which MPS does not have.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {x.device.type for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = {x.device.type for x in tree_leaves(out) if isinstance(x, torch.Tensor)}
        assert DEVICE not in given or "cpu" not in made, f"{func}: a copy to the host"
        there = {x.dtype for x in tree_leaves(out) if isinstance(x, torch.Tensor) and x.device.type == DEVICE}
        assert torch.float64 not in there, f"{func}: float64, which not every device has"
        return out


def step(build: Callable[..., torch.optim.Optimizer], rate: str, **options: Any) -> None:
    """Three steps."""
    params = [torch.nn.Parameter(torch.empty(s, device=DEVICE)) for s in SHAPES]
    if rate != "its own":
        options["lr"] = {"zero": 0.0, "host": torch.tensor(0.01), "device": torch.full((), 0.01, device=DEVICE)}[rate]
    optimizer = build(params, **options)
    for _ in range(3):
        for p in params:
            p.grad = torch.empty_like(p)
        with NoCopyToHost():
            optimizer.step()


def blended(params: Any, **options: Any) -> eq.Switch:
    return eq.Switch(eq.AdamW(params, **options), eq.Lion(params), at=1, blend=1)


BUILDS: dict[str, Any] = {row.name: row.build for row in ALL + MATRIX} | {
    "Rotational": lambda params, **options: eq.Rotational(eq.AdamW(params, **options)),
    "Rotational angle": lambda params, **options: eq.Rotational(eq.AdamW(params, **options), angle=0.01),
    "RotationalAdamW angle": lambda params, **options: eq.RotationalAdamW(params, angle=0.01, **options),
    "Switch": blended,
}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((rate, {}) for rate in ("its own", "zero", "host", "device")), ("its own", {"compile": True}),
]  # fmt: skip


def main() -> None:
    _setup_privateuseone_for_python_backend(DEVICE)
    failed = []
    for name, build in BUILDS.items():
        for rate, options in CASES:
            try:
                with FakeTensorMode():
                    step(build, rate, **options)
            except Exception as error:
                if "-v" in sys.argv:
                    raise
                failed.append((name, rate, f"{type(error).__name__}: {error}"))
    print(json.dumps(failed))


if __name__ == "__main__":
    main()
