"""`eq.tune`: the loop of a search. Optuna asks and stores; trials run here, or each in a process of its own."""

from __future__ import annotations

import functools
import math
import multiprocessing
import os
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from equipoise import _check
from equipoise._extras import need
from equipoise.tuning.on_ray import joined, on_ray
from equipoise.tuning.outwards import Outwards
from equipoise.tuning.space import Around, Ranges, Values, space_of
from equipoise.tuning.trial import StopTrial, Trial

Train = Callable[[Trial], float]

PLACES = ("here", "ray")
"""Where trials are trained."""

STARTUP = 4
"""Trials that are trained whole before others are stopped by their median."""


@final
@dataclass(frozen=True)
class Tuned:
    """What a search found.

    Attributes:
        study: Optuna's, which its tools read.
        space: what was searched.
        stopped: trials that were stopped early, and why, by their number.
        failed: trials that failed, and why, by their number.
    """

    study: Any = field(repr=False)
    space: Around | Ranges = field(repr=False)

    @property
    def trials(self) -> list[Any]:
        """All that have ended."""
        return [t for t in self.study.trials if t.state.is_finished()]

    @property
    def _finished(self) -> list[Any]:
        return [t for t in self.trials if t.state.name == "COMPLETE"]

    @property
    def loss(self) -> float:
        """The least; infinite where none has finished."""
        return min((float(t.value) for t in self._finished if t.value is not None), default=math.inf)

    @property
    def best(self) -> Values:
        """The hyperparameters of the best trial.

        Raises:
            ValueError: none has finished; says what went wrong.
        """
        if not self._finished:
            why = next(iter(self.failed.values()), "none was trained")
            raise ValueError(f"no trial has finished: {why}")
        return self.space.values(min(self._finished, key=lambda t: float(t.value or 0.0)).params)

    @property
    def stopped(self) -> dict[int, str]:
        """Why trials were stopped early, by number."""
        return self._said("PRUNED")

    @property
    def failed(self) -> dict[int, str]:
        """Why trials failed, by number."""
        return self._said("FAIL")

    def _said(self, state: str) -> dict[int, str]:
        return {t.number: t.user_attrs.get("message", "") for t in self.trials if t.state.name == state}


def tune(
    train: Train,
    *,
    space: Any,
    trials: int = 20,
    store: str | Path | None = None,
    name: str = "tune",
    seed: int | None = None,
    timeout: float | None = None,
    on: str = "here",
    jobs: int = 1,
    tell: Callable[[str], None] | None = None,
) -> Tuned:
    """Search hyperparameters: call `train` with settings until there are so many trials, and give the best.

    Args:
        train: gets a `Trial` (`trial.lr`, `trial.weight_decay`, …) and returns a loss, smaller is better. It may call
            `trial.report(step, loss)`, so that hopeless trials are stopped.
        space: a suggestion of `eq.suggest`: then the search begins with it, and draws the relative step and the memory
            around it. Or ranges by name: `{"lr": (1e-4, 1e-1), "norm": ["batch", "layer"]}`.
        trials: in the study in all, those of earlier calls with the same `store` and those of other machines included.
        store: a file for the study, `NAME.db` (SQLite) or `NAME.log` (a journal, for network drives), or any URL that
            Optuna takes. The same file goes on where it was, also after `kill -9`. None: kept in memory.
        name: of the study in the store.
        seed: of the search.
        timeout: seconds after which a trial counts as hung. Then each runs in a process of its own (made by `fork`).
        on: "here", one trial after the other, or "ray": on the cluster at `RAY_ADDRESS`, or one of this machine.
        jobs: trials at a time, on Ray.
        tell: is told each trial's end in a line. Default: a bar on a terminal.

    Returns:
        A `Tuned`: `.best`, `.loss`, `.failed`, `.stopped`, `.study`.

    Raises:
        ValueError: for a space that cannot be searched.
        KeyboardInterrupt: by Ctrl-C; the running trial is drawn again by the next call with the same store.

    docs/tune.md has examples.
    """
    if not callable(train):
        raise ValueError(f"train = {train!r}: must be a function that gets a trial and returns a loss")
    at = space_of(space)
    _check.whole("trials", trials, low=1)
    if timeout is not None:
        _check.number("timeout", timeout, low=0, open_low=True)
    if _check.choice("on", on, PLACES) == "here" and _check.whole("jobs", jobs, low=1) > 1:
        raise ValueError(f'jobs = {jobs}: must be 1 with on="here"; on="ray" trains several at a time')
    optuna = _optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        storage=_storage(store), study_name=name, load_if_exists=True, sampler=sampler(seed, at),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTUP),
    )  # fmt: skip
    _resume(study, at)
    found = Tuned(study, at)
    with _bar(trials, tell) as say:
        if on == "ray":
            _together(found, train, trials, timeout, jobs, say)
            return found
        limit = {} if timeout is None else {"timeout": timeout}
        while (done := len(found.trials)) < trials:
            drawn = study.ask(distributions(at.ranges))
            _one(study, drawn, at, functools.partial(_call if timeout is None else _apart, train, **limit))
            say(done + 1, study.trials[drawn.number], found.loss)
    return found


def _together(
    found: Tuned, train: Train, trials: int, timeout: float | None, jobs: int, say: Callable[[int, Any, float], None]
) -> None:
    """Train on Ray: a thread for each job draws a trial, waits for it, and draws the next."""
    study, lock, stopped, lost = found.study, threading.Lock(), threading.Event(), list[BaseException]()

    def work(ray: Any) -> None:
        while not stopped.is_set():
            with lock:
                running = [t for t in study.get_trials(deepcopy=False) if t.state.name == "RUNNING"]
                if len(found.trials) + len(running) >= trials:
                    return
                drawn = study.ask(distributions(found.space.ranges))
            try:
                _one(
                    study, drawn, found.space,
                    lambda trial: on_ray(ray, functools.partial(_call, train), trial, timeout, stopped),
                )  # fmt: skip
            except BaseException as error:
                lost.append(error)
                stopped.set()
                return
            with lock:
                say(len(found.trials), study.trials[drawn.number], found.loss)

    with joined(jobs) as ray:
        threads = [threading.Thread(target=work, args=(ray,), daemon=True) for _ in range(jobs)]
        try:
            for thread in threads:
                thread.start()
            while any(t.is_alive() for t in threads):
                time.sleep(0.05)
        finally:
            stopped.set()
            for thread in threads:
                thread.join()
    if lost:
        raise lost[0]


def sampler(seed: int | None, space: Around | Ranges) -> Any:
    """What draws settings: `Outwards` around a suggestion; in ranges TPE over all axes, from the fifth trial on."""
    if isinstance(space, Around):
        return Outwards(space, seed)
    return _optuna("samplers").TPESampler(seed=seed, n_startup_trials=STARTUP, multivariate=True)


def _optuna(part: str = "") -> Any:
    return need(f"optuna.{part}" if part else "optuna", "tune")


def distributions(ranges: Ranges) -> dict[str, Any]:
    """The axes as Optuna has them."""
    made = _optuna("distributions")
    return {
        name: made.FloatDistribution(*map(float, axis), log=ranges.log(name))
        if isinstance(axis, tuple)
        else made.CategoricalDistribution(axis)
        for name, axis in ranges.axes.items()
    }


def _storage(store: str | Path | None) -> Any:
    if store is None:
        return None
    text = str(store)
    if "://" in text:
        return text
    kind = Path(text).suffix
    if kind == ".log":
        return _optuna("storages").JournalStorage(_optuna("storages.journal").JournalFileBackend(text))
    if kind != ".db":
        raise ValueError(f"store = {text!r}: must end in .db or .log, or be a URL of a database")
    return f"sqlite:///{text}"


def _resume(study: Any, at: Around | Ranges) -> None:
    """Begin with the suggestion; draw again what was running when this machine was killed."""
    known = study.get_trials(deepcopy=False)
    names = set(at.ranges.axes)
    for t in known:
        if t.params and set(t.params) != names:
            raise ValueError(
                f"store: has a study of {', '.join(sorted(t.params))}, and space is of {', '.join(sorted(names))}: "
                "give another store or name"
            )
    if not known and at.first:
        study.enqueue_trial(at.first)
    for t in known:
        if t.state.name == "RUNNING" and _gone(t.user_attrs.get("owner", "")):
            study.tell(t.number, state=_optuna("trial").TrialState.FAIL)
            study.enqueue_trial(t.params)


def _gone(owner: str) -> bool:
    """Whether a process of this machine is no more; of another machine's that cannot be told."""
    host, _, pid = owner.rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return int(pid) == os.getpid()  # an earlier search of this process has ended


def _one(study: Any, drawn: Any, at: Around | Ranges, run: Callable[[Trial], float]) -> None:
    """Train one trial and tell the study how it ended."""
    states = _optuna("trial").TrialState

    def told(step: int, loss: float) -> str:
        drawn.report(loss, step)
        return f"above the median of the others at step {step}: {loss:.4g}" if drawn.should_prune() else ""

    drawn.set_user_attr("owner", f"{socket.gethostname()}:{os.getpid()}")
    trial = Trial(drawn.number, at.values(drawn.params), told)
    try:
        loss = run(trial)
    except StopTrial as why:
        drawn.set_user_attr("message", str(why))
        stopped = "median" in str(why)
        study.tell(drawn, state=states.PRUNED if stopped else states.FAIL)
    except Exception as error:
        drawn.set_user_attr("message", f"{type(error).__name__}: {error}")
        drawn.set_user_attr("traceback", traceback.format_exc())
        study.tell(drawn, state=states.FAIL)
    except BaseException:
        study.tell(drawn, state=states.FAIL)
        study.enqueue_trial(drawn.params)
        raise
    else:
        study.tell(drawn, loss)


def _call(train: Train, trial: Trial) -> float:
    loss = train(trial)
    try:
        value = float(loss)
    except (TypeError, ValueError):
        raise ValueError(f"train returned {loss!r}: must be a number, the loss") from None
    if not math.isfinite(value):
        raise StopTrial(f"the loss is {value} at the end")
    return value


def _apart(train: Train, trial: Trial, timeout: float) -> float:
    """Train in a process of its own, which is killed when it hangs."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()

    def work() -> None:
        def told(step: int, loss: float) -> str:
            theirs.send(("report", (step, loss)))
            return theirs.recv()

        try:
            theirs.send(("done", _call(train, Trial(trial.number, trial.values, told))))
        except StopTrial as why:
            theirs.send(("stop", str(why)))
        except BaseException as error:
            theirs.send(("failed", f"{type(error).__name__}: {error}"))

    child = context.Process(target=work, daemon=True)
    child.start()
    theirs.close()
    end = time.monotonic() + timeout
    try:
        while True:
            if not ours.poll(max(0.0, end - time.monotonic())):
                raise TimeoutError(f"no end after {timeout:g} s")
            try:
                kind, what = ours.recv()
            except EOFError:
                child.join(1)
                raise RuntimeError(f"its process ended with exit code {child.exitcode}") from None
            if kind == "report":
                ours.send(trial._told(*what))
            elif kind == "done":
                return what
            elif kind == "stop":
                raise StopTrial(what)
            else:
                raise RuntimeError(what)
    finally:
        child.kill()
        child.join()


@contextmanager
def _bar(trials: int, tell: Callable[[str], None] | None) -> Iterator[Callable[[int, Any, float], None]]:
    """A bar with the best so far on the error stream; lines to `tell` where it is given."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    def line(done: int, last: Any, best: float) -> str:
        how = f"{last.value:.4g}" if last.value is not None and last.state.name == "COMPLETE" else ""
        message = last.user_attrs.get("message", "")
        return f"{done}/{trials}: {how or message or last.state.name.lower()}; best {best:.4g}"

    console = Console(stderr=True)
    if tell is not None or not console.is_terminal:
        out = tell or (lambda text: console.print(text, highlight=False))
        yield lambda done, last, best: out(line(done, last, best))
        return
    with Progress(TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=console) as progress:
        task = progress.add_task("tune", total=trials)
        yield lambda done, last, best: progress.update(task, completed=done, description=line(done, last, best))
