"""Go on with the reference sweeps: the most informative trials first, each stored as it ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from equipoise.lab import processes
from equipoise.lab.attempt import attempt
from equipoise.lab.config import Trial
from equipoise.lab.result import Result
from equipoise.lab.workloads import store
from equipoise.lab.workloads.base import Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.regret import tuned
from equipoise.lab.workloads.store import STORED, Outcomes
from equipoise.lab.workloads.sweep import STAGES, missing, planned
from equipoise.theory import _check

if TYPE_CHECKING:
    from equipoise.lab.data import Data


@final
@dataclass(frozen=True)
class Next:
    """A trial that is to be trained, of which workload and stage, and how long it will take."""

    workload: Workload
    stage: int
    trial: Trial
    seconds: float


@final
@dataclass(frozen=True)
class Status:
    """How far the sweep of a workload is.

    Attributes:
        workload: which.
        stored: trials that have ended.
        open: trials that are known to be missing; later stages may add to them.
        stage: the first stage that is not done; "done" where all are.
        seconds: of a trial.
    """

    workload: Workload
    stored: int
    open: int
    stage: str
    seconds: float


Tell = Callable[[Next, int, float, float], None]
"""Called with the trial, its step, and the seconds of the sweep that are done and that are known to be open."""


def read_all(folder: Path = STORED) -> dict[str, Outcomes]:
    """The stored trials of every workload."""
    return {name: store.read(workload, folder) for name, workload in WORKLOADS.items()}


def cost(workload: Workload, known: Outcomes) -> float:
    """Seconds of a trial: the mean of those that finished, or the workload's own guess."""
    found = [one.seconds for one in known.values() if one.status == "finished" and one.seconds]
    return sum(found) / len(found) if found else workload.seconds


def queue(names: Sequence[str], every: Mapping[str, Outcomes]) -> list[Next]:
    """What is to be trained next: by stage over all workloads, in a stage the workload with the cheapest trials first.

    Args:
        names: of the workloads.
        every: stored trials of all workloads.
    """
    settings, found = tuned(every), list[Next]()
    for name in names:
        workload, known = WORKLOADS[_check.choice("workload", name, WORKLOADS)], every[name]
        seconds = cost(workload, known)
        plan = planned(workload, known, settings)
        found += [Next(workload, stage, trial, seconds) for stage, trial in missing(plan, known)]
    place = {name: number for number, name in enumerate(WORKLOADS)}
    return sorted(found, key=lambda n: (n.stage, n.seconds, place[n.workload.name]))


def status(names: Sequence[str], every: Mapping[str, Outcomes]) -> list[Status]:
    """How far each sweep is."""
    ahead, found = queue(names, every), []
    for name in names:
        own = [n for n in ahead if n.workload.name == name]
        stage = STAGES[min(n.stage for n in own)] if own else "done"
        seconds = cost(WORKLOADS[name], every[name])
        found.append(Status(WORKLOADS[name], len(every[name]), len(own), stage, seconds))
    return found


def sweep(
    names: Sequence[str], place: Path, *, folder: Path = STORED, jobs: int = 1, limit: int | None = None,
    tell: Tell | None = None,
) -> list[Result]:  # fmt: skip
    """Train what is missing of the sweeps; what is killed goes on where it was, and loses the running trials at most.

    Args:
        names: of the workloads.
        place: for trials while they run; they are removed when they are stored.
        folder: where finished trials are stored.
        jobs: trials at a time, a thread each.
        limit: stop after this many trials.
        tell: is told how far it is.

    Returns:
        The results of trials that failed: they are left out of the rest of the sweep, and tried again the next time.
    """
    _check.whole("jobs", jobs, low=1)
    every, failed, done, spent = read_all(folder), dict[str, Result](), 0, 0.0
    loaded: dict[str, Data] = {}
    while limit is None or done < limit:
        ahead = [n for n in queue(names, every) if n.trial.key not in failed]
        if not ahead:
            break
        some = ahead[: min(jobs, len(ahead) if limit is None else limit - done)]
        left = sum(n.seconds for n in ahead)

        def progress(number: int, step: int, some: list[Next] = some, left: float = left, spent: float = spent) -> None:
            if tell is not None:
                share = some[number].seconds * step / some[number].trial.steps
                tell(some[number], step, spent + share, max(0.0, left - share))

        for result in _train(some, place, jobs, loaded, progress):
            one = next(n for n in some if n.trial.key == result.trial.key)
            if result.status == "failed":
                failed[result.trial.key] = result
            else:
                every[one.workload.name] = store.add(one.workload, [store.outcome(result)], folder)
                shutil.rmtree(place / result.trial.key, ignore_errors=True)
        done, spent = done + len(some), spent + sum(n.seconds for n in some)
    return list(failed.values())


def _train(
    some: Sequence[Next], place: Path, jobs: int, loaded: dict[str, Data], progress: Callable[[int, int], None]
) -> list[Result]:
    """Here, with one thread, or in as many processes."""
    if jobs > 1:
        trials = [n.trial for n in some]
        return processes.run(
            trials, place, workers=jobs, threads=1, report=lambda number, _, __, step: progress(number - 1, step)
        )
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [attempt(some[0].trial, place, loaded, progress=lambda step, _: progress(0, step))]
    finally:
        torch.set_num_threads(threads)
