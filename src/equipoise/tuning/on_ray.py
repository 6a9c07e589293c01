"""Trials on a Ray cluster: each is a task of Ray, and the search waits for it in a thread."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

from equipoise._extras import need
from equipoise.tuning.trial import StopTrial, Trial

LOOK = 0.5
"""Seconds after which a waiting thread looks whether the search was stopped."""


@contextmanager
def joined(cpus: int) -> Iterator[Any]:
    """Ray, joined to the cluster at `RAY_ADDRESS` or the caller's; else to one of this machine, which ends afterwards.

    Args:
        cpus: of a cluster of this machine.
    """
    ray = need("ray", extra="ray")
    own = not ray.is_initialized()
    if own:
        given: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if "RAY_ADDRESS" not in os.environ:
            given |= {"address": "local", "num_cpus": cpus, "include_dashboard": False}
        ray.init(**given)
    try:
        yield ray
    finally:
        if own:
            ray.shutdown()


@final
class Line:
    """Carries reports of a trial to the search, and answers back. An actor of Ray."""

    def __init__(self) -> None:
        self.reports: asyncio.Queue[tuple[int, float]] = asyncio.Queue()
        self.answers: asyncio.Queue[str] = asyncio.Queue()

    async def report(self, step: int, loss: float) -> str:
        """Called by the trial; waits for the answer."""
        await self.reports.put((step, loss))
        return await self.answers.get()

    async def next(self) -> tuple[int, float]:
        """The next report."""
        return await self.reports.get()

    async def answer(self, why: str) -> None:
        """Answer a report: why to stop, or nothing."""
        await self.answers.put(why)


def there(call: Callable[[Trial], float], number: int, values: dict[str, Any], line: Any) -> tuple[str, Any]:
    """Train a trial on a node of the cluster, and give how it ended."""
    import ray

    def told(step: int, loss: float) -> str:
        return ray.get(line.report.remote(step, loss))

    try:
        return "done", call(Trial(number, values, told))
    except StopTrial as why:
        return "stop", str(why)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {error}"


def on_ray(
    ray: Any, call: Callable[[Trial], float], trial: Trial, timeout: float | None, stopped: threading.Event
) -> float:
    """Train a trial as a task of Ray, and wait for it.

    Args:
        ray: which was joined.
        call: trains it, and gives its loss.
        trial: answers the reports.
        timeout: seconds after which it is killed.
        stopped: set where the search was stopped: then the trial is killed, too.
    """
    line = ray.remote(num_cpus=0)(Line).remote()
    task = ray.remote(max_retries=0)(there).remote(call, trial.number, dict(trial.values), line)
    asked, end = line.next.remote(), None if timeout is None else time.monotonic() + timeout
    try:
        while True:
            left = LOOK if end is None else min(LOOK, max(0.0, end - time.monotonic()))
            ready, _ = ray.wait([asked, task], timeout=left)
            if asked in ready:
                line.answer.remote(trial._told(*ray.get(asked)))
                asked = line.next.remote()
            elif ready:
                return _ended(ray, task)
            # A task that has ended is never cancelled: Ray 2.60 dies where one ends as it is cancelled.
            if stopped.is_set():
                ray.cancel(task, force=True)
                raise KeyboardInterrupt
            if end is not None and time.monotonic() >= end:
                ray.cancel(task, force=True)
                raise TimeoutError(f"no end after {timeout:g} s")
    finally:
        ray.kill(line)


def _ended(ray: Any, task: Any) -> float:
    try:
        kind, what = ray.get(task)
    except ray.exceptions.RayError as error:
        raise RuntimeError(f"on Ray: {str(error).splitlines()[0]}") from None
    if kind == "stop":
        raise StopTrial(what)
    if kind == "failed":
        raise RuntimeError(what)
    return what
