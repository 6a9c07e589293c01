"""Trials in processes of this machine. If a process dies, its trial is tried again."""

from __future__ import annotations

import multiprocessing as mp
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from equipoise._extras import MissingExtraError
from equipoise.lab.train.result import Report, Result
from equipoise.lab.train.run_trial import failure, run_trial
from equipoise.lab.train.trial import Trial

if TYPE_CHECKING:
    from equipoise.lab.data import Data

LIVES = 3
"""How often a trial is begun or gone on with whose process dies."""


def run_trials(
    trials: Sequence[Trial], place: Path, *, workers: int, threads: int = 1, device: str | None = None,
    report: Report | None = None, ended: Callable[[Result], None] | None = None,
) -> list[Result]:  # fmt: skip
    """Train trials that are not done yet, some at a time; their results in the order of the trials.

    Args:
        trials: what to train.
        place: where each has its directory.
        workers: processes.
        threads: of each process; the same number gives the same bits, however many processes there are.
        device: where to train. Default: a GPU if there is one.
        report: is told how far each is.
        ended: is given each result as it comes.
    """
    waiting, results = deque(range(len(trials))), dict[int, Result]()
    lives = [0] * len(trials)
    team = [_Worker.start(place, threads, device) for _ in range(min(workers, len(trials)))]
    try:
        while len(results) < len(trials):
            for worker in team:
                if worker.number is None and waiting:
                    worker.begin(waiting.popleft(), trials)
                    lives[worker.number or 0] += 1
            ready = wait([worker.pipe for worker in team])
            for worker in [w for w in team if w.pipe in ready]:
                number = worker.number
                try:
                    step, result = worker.pipe.recv()
                except (EOFError, OSError):
                    team.remove(worker)
                    worker.process.join()
                    if number is None:
                        continue
                    again = lives[number] < LIVES
                    if again:
                        waiting.appendleft(number)
                    if waiting:
                        team.append(_Worker.start(place, threads, device))
                    if again:
                        continue
                    how = f"its process died {LIVES} times, at last with exit code {worker.process.exitcode}"
                    step, result = 0, failure(trials[number], place / trials[number].key, how)
                assert number is not None
                if isinstance(result, str):
                    raise MissingExtraError(result)
                if result is not None:
                    results[number], worker.number = result, None
                    if ended is not None:
                        ended(result)
                if report is not None:
                    trial = trials[number]
                    report(number + 1, len(trials), trial, step if result is None else trial.steps)
    finally:
        for worker in team:
            worker.stop()
    return [results[number] for number in range(len(trials))]


@final
@dataclass(eq=False)
class _Worker:
    process: BaseProcess
    pipe: Connection
    number: int | None = None

    @staticmethod
    def start(place: Path, threads: int, device: str | None) -> _Worker:
        context = mp.get_context("spawn")  # torch's threads do not survive a fork
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, place, threads, device), daemon=True)
        process.start()
        theirs.close()  # else its death would not be seen here
        return _Worker(process, ours)

    def begin(self, number: int, trials: Sequence[Trial]) -> None:
        self.number = number
        with suppress(OSError):  # of one that has died: its pipe's end is read next
            self.pipe.send(trials[number])

    def stop(self) -> None:
        self.pipe.close()
        if self.number is not None:
            self.process.terminate()
        self.process.join(10)


def _work(pipe: Any, place: Path, threads: int, device: str | None) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this one
    threading.Thread(target=_die_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    loaded: dict[str, Data] = {}
    try:
        while True:
            trial = pipe.recv()
            try:
                result = run_trial(
                    trial, place, loaded, device=device, progress=lambda step, _: pipe.send((step, None))
                )
            except MissingExtraError as error:
                result = str(error)
            pipe.send((trial.steps, result))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _die_with_parent() -> None:
    """End with the parent, at once: a resumed sweep must not meet this process in the same directory."""
    parent = mp.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
