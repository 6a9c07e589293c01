"""Continue the reference sweeps: the most informative trials first, each stored when it ends."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

from equipoise import _check
from equipoise.lab.data import Data
from equipoise.lab.train import processes
from equipoise.lab.train.result import Result
from equipoise.lab.train.run_trial import run_trial
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads import store
from equipoise.lab.workloads.base import Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.regret import tuned
from equipoise.lab.workloads.store import STORED, Outcomes
from equipoise.lab.workloads.sweep import STAGES, missing, planned
from equipoise.lab.workloads.twins import TWINS, find


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
    """The stored trials of every workload and twin."""
    return {name: store.read(workload, folder) for name, workload in (WORKLOADS | TWINS).items()}


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
        workload, known = find(name), every[name]
        seconds = cost(workload, known)
        plan = planned(workload, known, settings)
        found += [Next(workload, stage, trial, seconds) for stage, trial in missing(plan, known)]
    place = {name: number for number, name in enumerate(WORKLOADS | TWINS)}
    return sorted(found, key=lambda n: (n.stage, n.seconds, place[n.workload.name]))


def status(names: Sequence[str], every: Mapping[str, Outcomes]) -> list[Status]:
    """How far each sweep is."""
    ahead, found = queue(names, every), []
    for name in names:
        own = [n for n in ahead if n.workload.name == name]
        stage = STAGES[min(n.stage for n in own)] if own else "done"
        seconds = cost(find(name), every[name])
        found.append(Status(find(name), len(every[name]), len(own), stage, seconds))
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
    every, failed, loaded = read_all(folder), dict[str, Result](), dict[str, Data]()
    done, spent = 0, 0.0
    while limit is None or done < limit:
        ahead = [n for n in queue(names, every) if n.trial.key not in failed]
        if not ahead:
            break
        # Trials of a stage do not depend on each other; one at a time, the next is chosen anew by what is known.
        some = [n for n in ahead if n.stage == ahead[0].stage][: None if limit is None else limit - done]
        some = some if jobs > 1 else some[:1]
        left, parts = sum(n.seconds for n in ahead), dict[int, float]()

        def progress(
            number: int, step: int, some: list[Next] = some, left: float = left, spent: float = spent,
            parts: dict[int, float] = parts,
        ) -> None:  # fmt: skip
            if tell is not None:
                parts[number] = some[number].seconds * step / some[number].trial.steps
                now = sum(parts.values())
                tell(some[number], step, spent + now, max(0.0, left - now))

        def ended(result: Result, some: list[Next] = some) -> None:
            workload = next(n.workload for n in some if n.trial.key == result.trial.key)
            if result.status == "failed":
                failed[result.trial.key] = result
                return
            every[workload.name] = store.add(workload, [store.outcome(result)], folder)
            shutil.rmtree(place / result.trial.key, ignore_errors=True)

        if jobs == 1:
            ended(_here(some[0].trial, place, loaded, progress))
        else:
            trials = [n.trial for n in some]
            processes.run_trials(
                trials, place, workers=jobs, ended=ended,
                report=lambda number, _, __, step, tell=progress: tell(number - 1, step),
            )  # fmt: skip
        done, spent = done + len(some), spent + sum(n.seconds for n in some)
    return list(failed.values())


def _here(trial: Trial, place: Path, loaded: dict[str, Data], progress: Callable[[int, int], None]) -> Result:
    """Train in this process, with one thread, as in the others."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return run_trial(trial, place, loaded, progress=lambda step, _: progress(0, step))
    finally:
        torch.set_num_threads(threads)
