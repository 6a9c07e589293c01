"""What an experiment still costs: trials that are not stored, at the pace of those that are.

The pace of a network is that of the fastest stored trial with the same network and optimizer; else with the same
network; else with the same kind of model on the same data, which is rough; else it is measured, if that is asked for.
"""

from __future__ import annotations

import functools
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from equipoise.lab.experiments.base import Experiment, catalogue
from equipoise.lab.report.claims import markdown
from equipoise.lab.report.page import write_marked
from equipoise.lab.statistics.rounds import BUDGET, reseeded
from equipoise.lab.statistics.sequential import LOOKS
from equipoise.lab.train.trial import Trial
from equipoise.lab.train.trial_store import STORED, config, read_lines, stored_trials

PART = "cost"
"""The marked part of a page."""

FIELDS = ("data", "data_options.length", "data_options.inputs", "data_options.outputs", "model", "batch_size")
"""What a step's time depends on, besides the options of the model and the optimizer."""

STEPS = (5, 25)
"""That are trained to measure a pace."""

Network = tuple[tuple[str, str], ...]


@final
@dataclass(frozen=True)
class Cost:
    """What is left of an experiment.

    Attributes:
        experiment: its name.
        preset: of its trials.
        trials: of the first round of seeds; those that follow from others come on top.
        stored: how many of them are stored.
        seconds: that training the rest takes on one core; None where no such network is stored.
        budget: the same up to the last round of seeds that the preset may take.
        seeds: of that last round.
    """

    experiment: str
    preset: str
    trials: int
    stored: int
    seconds: float | None
    budget: float | None
    seeds: int

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            "experiment": self.experiment, "trials": self.trials, "stored": self.stored,
            "hours left, first round": hours(self.seconds), f"hours left, {self.seeds} seeds": hours(self.budget),
        }  # fmt: skip


def cost(experiment: Experiment, preset: str, folder: Path = STORED, *, measure: bool = False) -> Cost:
    """What is left of an experiment at a preset.

    Args:
        experiment: which.
        preset: one of `PRESETS`.
        folder: of stored outcomes.
        measure: train a few steps of networks of which nothing is stored.
    """
    first = experiment.trials(preset)
    have = {(line["key"], line["version"]) for line in read_lines(stored_trials(experiment.name, folder))}
    count = len({trial.seed for trial in first})
    limit = max([look for look in LOOKS if look <= BUDGET.get(preset, LOOKS[-1])], default=count)
    more = reseeded(first, range(count, limit)) if limit > count else []
    rate = dict(pace(folder))
    left, later = ([t for t in part if (t.key, experiment.version) not in have] for part in (first, more))
    begin = _seconds(left, rate, measure)
    rest = _seconds(later, rate, measure)
    whole = None if begin is None or rest is None else begin + rest
    return Cost(experiment.name, preset, len(first), len(first) - len(left), begin, whole, max(limit, count))


@functools.cache
def pace(folder: Path = STORED) -> Mapping[Network, float]:
    """Seconds a step of each network that is stored, tests included; of the fastest trial, as others shared a core."""
    found: dict[Network, float] = {}
    for file in sorted(folder.glob("trials/*.jsonl")):
        for line in read_lines(file):
            if line["status"] == "finished" and line["steps"]:
                rate = line["seconds"] / line["steps"]
                for key in _networks(line["config"]):
                    found[key] = min(rate, found.get(key, rate))
    return found


def write(
    page: str | os.PathLike[str], preset: str = "medium", folder: Path = STORED, *, measure: bool = False
) -> None:
    """Write what every experiment still costs into the marked part of a page; the arguments are those of `cost`."""
    pace.cache_clear()
    found = [cost(experiment(), preset, folder, measure=measure) for experiment in catalogue().values()]
    known = [c.seconds for c in found if c.seconds is not None]
    total = f"In all {hours(sum(known))} hours of one core for the first rounds"
    unknown = [c.experiment for c in found if c.seconds is None]
    told = f", without {', '.join(unknown)}, of whose networks no trial is stored." if unknown else "."
    write_marked(Path(page), PART, f"{markdown([c.row() for c in found])}\n\n{total}{told}")


def hours(seconds: float | None) -> str:
    """In words.

    >>> hours(1800.0), hours(0.0), hours(None)
    ('0.50', '0', 'not known')
    """
    return "not known" if seconds is None else "0" if seconds == 0 else f"{seconds / 3600:.2f}"


def _seconds(trials: Sequence[Trial], rate: dict[Network, float], measure: bool) -> float | None:
    total = 0.0
    for trial in trials:
        keys = _networks(config(trial))
        known = next((rate[key] for key in keys if key in rate), None)
        if known is None and measure:
            known = rate[keys[1]] = measured(trial)
        if known is None:
            return None
        total += known * trial.steps
    return total


def measured(trial: Trial) -> float:
    """Seconds of a core that a step takes, by training some: the difference of a longer and a shorter run."""
    from equipoise.lab.data import load
    from equipoise.lab.train.training import train

    data, spent = load(trial.data, **trial.data_options), []
    with tempfile.TemporaryDirectory() as folder:
        for steps in (2, *STEPS):  # the first warms up
            began = time.process_time()
            train(trial.vary({"steps": steps, "warmup": 0, "evaluate": 0}), Path(folder) / str(steps), data=data)
            spent.append(time.process_time() - began)
    return max((spent[2] - spent[1]) / (STEPS[1] - STEPS[0]), 0.1 * spent[2] / STEPS[1])  # some networks are all tests


def _networks(fields: Mapping[str, Any]) -> tuple[Network, Network, Network]:
    """A trial's network with its optimizer, without, and its kind."""
    own = {k: v for k, v in fields.items() if k in FIELDS or k.startswith("model_options.")}
    plain = tuple(sorted((k, str(v)) for k, v in own.items()))
    kind = (("data", str(fields.get("data", ""))), ("model", str(fields.get("model", ""))), ("kind", ""))
    return (*plain, ("optimizer", str(fields.get("optimizer", "")))), plain, kind
