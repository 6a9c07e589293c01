"""An example several times, each in a child of a process that has loaded what it imports, which takes seconds.

[torchrun --nproc-per-node 2] repeated_example.py EXAMPLE MODULES DTYPE PORT COMMAND [DTYPE PORT COMMAND...]

Modules are joined by commas, and each command is one argument, as in a shell. Processes of torchrun meet at their own
port, as its store can be used once.
"""

import importlib
import multiprocessing
import os
import runpy
import shlex
import sys

import torch


def one(example: str, dtype: str, port: str, command: str) -> None:
    torch.set_default_dtype(getattr(torch, dtype))
    os.environ |= {"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "False"}
    sys.argv = [example, *shlex.split(command)]
    runpy.run_path(example, run_name="__main__")


if __name__ == "__main__":
    example, modules, *runs = sys.argv[1:]
    for module in modules.split(","):
        importlib.import_module(module)
    fork = multiprocessing.get_context("fork")
    for dtype, port, command in zip(*(runs[k::3] for k in range(3)), strict=True):
        child = fork.Process(target=one, args=(example, dtype, port, command))
        child.start()
        child.join(120)
        if child.exitcode != 0:
            child.kill()
            sys.exit(f"{command}: {child.exitcode}")
