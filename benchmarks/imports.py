"""What importing equipoise costs beyond torch, in new processes, interleaved, medians.

- import: `import equipoise` after `import torch`, over `import torch` alone
- names: besides, the first use of `eq.watch`, `eq.plan`, `eq.AdamW` and `eq.Run`
- command: `import equipoise.cli`, which needs no torch

Each process says how long its statements took by its own clock, so that Python's start is not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile

from machine import HOST, features

TORCH = "import torch"
JOBS = {
    "torch alone": TORCH,
    "import equipoise": f"{TORCH}; import equipoise",
    "and its names": f"{TORCH}; import equipoise as eq; eq.watch; eq.plan; eq.AdamW; eq.Run",
    "the command": "import equipoise.cli",
}
CLOCK = """
import time
clock, cpu = time.perf_counter(), time.process_time()
{}
print(time.perf_counter() - clock, time.process_time() - cpu)
"""


def seconds(statements: str, cache: str) -> tuple[float, float]:
    """What statements take in a new process, by the clock and in CPU time; with byte code, as pip installs it."""
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": cache}
    command = [sys.executable, "-c", CLOCK.format(statements)]
    clock, cpu = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout.split()
    return float(clock), float(cpu)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    print(features(HOST))
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in JOBS}
    with tempfile.TemporaryDirectory() as cache:
        for i in range(rounds + 1):
            for name, statements in JOBS.items():
                taken = seconds(statements, cache)
                if i:  # the first round fills the caches
                    times[name].append(taken)
    for name, taken in times.items():
        line = f"{name:17}"
        for kind, word in enumerate(("by the clock", "CPU time")):
            # Compared within a round: both ran on the same busy or idle machine.
            pairs = [(t[kind], t0[kind]) for t, t0 in zip(taken, times["torch alone"], strict=True)]
            ratio, more = (statistics.median(x) for x in ([t / t0 for t, t0 in pairs], [t - t0 for t, t0 in pairs]))
            line += f"   {word} {ratio:5.2f}× torch, {more:+.3f} s"
        print(line)


if __name__ == "__main__":
    main()
