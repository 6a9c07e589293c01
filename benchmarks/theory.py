"""Speed of a long AdamW forecast, as ratios measured in one run.

- growth: time for 1,000,000 steps over time for 100,000 (10 is linear)
- compiled: time of the plain Python recursion over that of the compiled one, at 100,000 steps
- memory: time of the memory of a million steps over that of the forecast
"""

from __future__ import annotations

import numpy as np
from machine import HOST, features
from timing import medians

from equipoise.theory import _scan, forecast, memory


def lr(steps: int) -> np.ndarray:
    return 1e-3 * (0.1 + 0.45 * (1 + np.cos(np.pi * np.arange(steps) / steps)))


def run(steps: int) -> None:
    forecast("adamw", lr=lr(steps), weight_decay=0.1, size=4096, init_norm=1.0)


def run_plain(steps: int) -> None:
    _scan.LONG, long = steps + 1, _scan.LONG
    try:
        run(steps)
    finally:
        _scan.LONG = long


def run_memory(steps: int) -> None:
    memory(lr=lr(steps), weight_decay=0.1, momentum=0.9, bias_correction=True)


def main() -> None:
    print(features(HOST))
    seconds = medians(
        {
            "1e5": lambda: run(100_000),
            "1e6": lambda: run(1_000_000),
            "1e5 plain": lambda: run_plain(100_000),
            "1e6 memory": lambda: run_memory(1_000_000),
        }
    )
    print(f"growth    {seconds['1e6'] / seconds['1e5']:6.1f}× for 10× the steps")
    print(f"compiled  {seconds['1e5 plain'] / seconds['1e5']:6.1f}× as fast as the plain recursion")
    print(f"memory    {seconds['1e6 memory'] / seconds['1e6']:6.2f}× the forecast's time")
    print(f"(a million steps: {seconds['1e6'] + seconds['1e6 memory']:.2f} s here, forecast and memory)")


if __name__ == "__main__":
    main()
