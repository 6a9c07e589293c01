"""The distributed example several times, each in a child of a process that has torch loaded, which takes seconds.

torchrun --nproc-per-node 2 many_runs.py DTYPE PORT COMMAND [DTYPE PORT COMMAND...]

Each command is one argument, as in a shell. Its processes meet at their own port, as torchrun's store can be used once.
"""

import multiprocessing
import os
import runpy
import shlex
import sys
from pathlib import Path

import torch._dynamo
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp

import equipoise.lab.models.gpt
import equipoise.monitor.diagnose
import equipoise.monitor.watching  # noqa: F401

EXAMPLE = str(Path(__file__).parents[1] / "examples" / "distributed.py")


def one(dtype: str, port: str, command: str) -> None:
    torch.set_default_dtype(getattr(torch, dtype))
    os.environ |= {"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    sys.argv = [EXAMPLE, *shlex.split(command)]
    runpy.run_path(EXAMPLE, run_name="__main__")


if __name__ == "__main__":
    fork = multiprocessing.get_context("fork")
    for dtype, port, command in zip(*(sys.argv[k::3] for k in (1, 2, 3)), strict=True):
        child = fork.Process(target=one, args=(dtype, port, command))
        child.start()
        child.join(120)
        if child.exitcode != 0:
            child.kill()
            sys.exit(f"{command}: {child.exitcode}")
