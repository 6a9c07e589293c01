"""How benchmarks take time: jobs interleaved, so that a noisy machine hits all alike, and medians."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from machine import device, wait


def medians(jobs: dict[str, Callable[[], object]], rounds: int = 5) -> dict[str, float]:
    """Median seconds of each job, the jobs interleaved so that a noisy machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for job in jobs.values():
        job()  # warm up: compile, fill caches
        job()
        wait(device())
    for _ in range(rounds):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            wait(device())
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(t) for name, t in times.items()}
