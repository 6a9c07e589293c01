"""What a benchmark ran on, in one line; whether bfloat16 is fast there, by measurement."""

from __future__ import annotations

import platform
import time
from functools import cache

import torch

HOST = torch.device("cpu")
"""Where what needs no accelerator runs."""


def device() -> torch.device:
    """CUDA, MPS or the CPU, the first that there is."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def wait(where: torch.device) -> None:
    """Until the device has done all that it was told."""
    if where.type == "cuda":
        torch.cuda.synchronize()
    elif where.type == "mps":
        torch.mps.synchronize()


@cache
def bfloat16_speed(where: torch.device, size: int = 512) -> float:
    """How many times as fast as float32 a product in bfloat16 is."""
    seconds = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(size, size, device=where).to(dtype)
        times = []
        for _ in range(5):
            wait(where)
            start = time.perf_counter()
            torch.mm(x, x)
            wait(where)
            times.append(time.perf_counter() - start)
        seconds.append(min(times))
    return seconds[0] / seconds[1]


def bfloat16_is_fast(where: torch.device | None = None) -> bool:
    """Whether products in bfloat16 take less time than in float32."""
    return bfloat16_speed(where or device()) > 1


def features(where: torch.device | None = None) -> str:
    """The device, its instructions, threads and torch, and how fast bfloat16 is."""
    where = where or device()
    if where.type == "cuda":
        name = torch.cuda.get_device_name()
    elif where.type == "mps":
        name = platform.machine()
    else:
        told = getattr(torch.cpu, "_is_avx512_bf16_supported", bool)()
        amx = getattr(torch.cpu, "_is_amx_tile_supported", bool)()
        name = f"{torch.backends.cpu.get_cpu_capability()}, bfloat16 instructions {told}, AMX {amx}, "
        name += f"{torch.get_num_threads()} threads"
    speed = bfloat16_speed(where)
    return f"{where.type} ({name}), torch {torch.__version__}, bfloat16 products {speed:.2g} × as fast as float32"
