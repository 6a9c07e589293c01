"""An experiment: its trials by preset, what its runs say, a figure. One file each, found by its name."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

from equipoise import _check
from equipoise._extras import MissingExtraError
from equipoise.lab.report.claims import Claim
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial
from equipoise.monitor import Run

PRESETS = ("smoke", "small", "medium", "full")
"""Seconds; under half an hour on two cores; at most 90 minutes on two cores, on tasks that can decide; as the source.

What is about random walks and convex problems alone is the same at `small` and `medium`."""


@final
@dataclass(frozen=True)
class Done:
    """A trial that has ended, and what was measured of its run.

    Attributes:
        result: how it ended, and its metrics.
        measured: what `Experiment.measure` took from its run.
    """

    result: Result
    measured: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trial(self) -> Trial:
        """Its config."""
        return self.result.trial


@final
@dataclass(frozen=True)
class Outcome:
    """What an experiment found.

    Attributes:
        rows: the table: words, numbers, `Stat`s.
        claims: what the sources say, held against it.
        curves: what the figure draws, by name.
    """

    rows: Sequence[Mapping[str, Any]]
    claims: Sequence[Claim] = ()
    curves: Mapping[str, Any] = field(default_factory=dict)


class Experiment(ABC):
    """One experiment. Subclasses say what to train, and what comes of it.

    Attributes:
        name: as on the command line.
        source: what it reproduces.
        about: one sentence.
        statements: what the source says, by name: a sentence each, with its place. They make the ledger's rows.
        version: of `measure`, to be raised where it takes something else from a run: kept trials of another version
            are measured again, or trained again where their runs are gone.
        measures_diverged: whether `measure` is asked about trials that diverged, too.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    about: ClassVar[str]
    statements: ClassVar[Mapping[str, str]] = {}
    version: ClassVar[int] = 1
    measures_diverged: ClassVar[bool] = False

    @abstractmethod
    def trials(self, preset: str) -> list[Trial]:
        """Every trial of a preset, seeds included."""

    def then(self, preset: str, done: Sequence[Done]) -> list[Trial]:
        """Trials that depend on what came of the others, as settings moved from the best of a sweep; none by itself."""
        return []

    def measure(self, result: Result, run: Run) -> Mapping[str, Any]:
        """What `analyse` and `draw` need of a run: numbers, words, short arrays, and tables of them.

        It is kept with the trial, so that the run itself is not needed again. Trials that failed are not measured.
        """
        return {}

    @abstractmethod
    def analyse(self, done: Sequence[Done]) -> Outcome:
        """The table and the claims, from what is done so far: trials may be missing, diverged or failed."""

    @abstractmethod
    def draw(self, outcome: Outcome, figure: Any) -> None:
        """Draw the outcome on a matplotlib figure."""


def catalogue() -> dict[str, type[Experiment]]:
    """The experiments in this folder and its subfolders, by name."""
    found: dict[str, type[Experiment]] = {}
    for info in pkgutil.walk_packages([str(Path(__file__).parent)], "equipoise.lab.experiments."):
        found |= _in_module(importlib.import_module(info.name))
    return dict(sorted(found.items()))


def find(name: str) -> Experiment:
    """An experiment by its name, or the one in a Python file.

    Args:
        name: one of `catalogue()`, or the path of a file that has one class of experiment.
    """
    if not name.endswith(".py"):
        known = catalogue()
        return known[_check.choice("experiment", name, known)]()
    if not Path(name).is_file():
        raise ValueError(f"experiment = {name!r}: must be a file that exists")
    spec = importlib.util.spec_from_file_location(Path(name).stem, name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except MissingExtraError:
        raise
    except Exception as error:
        places = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == module.__file__]
        line = error.lineno if isinstance(error, SyntaxError) else places[-1] if places else None
        raise ValueError(f"experiment = {name!r}: line {line}: {type(error).__name__}: {error}") from error
    own = list(_in_module(module).values())
    if len(own) != 1:
        raise ValueError(f"experiment = {name!r}: must have one class of Experiment, not {len(own)}")
    return own[0]()


def _in_module(module: Any) -> dict[str, type[Experiment]]:
    classes = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, Experiment)]
    return {c.name: c for c in classes if c.__module__ == module.__name__ and not inspect.isabstract(c)}
