"""Run an experiment: its trials one after the other, then its table, claims and figure, stored with what made them."""

from __future__ import annotations

import dataclasses
import json
import os
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from equipoise.lab._extras import need
from equipoise.lab.config import Trial
from equipoise.lab.data import Data, load
from equipoise.lab.experiments.base import PRESETS, Done, Experiment, Outcome
from equipoise.lab.result import Result, versions
from equipoise.lab.train import train
from equipoise.theory import _check

OUTCOME = "outcome.json"

Report = Callable[[int, int, Trial, int], None]
"""Called with the number of the trial (1, 2, …), how many there are, the trial, and its step."""


def conduct(
    experiment: Experiment, folder: str | os.PathLike[str], *, preset: str = "small", device: str | None = None,
    report: Report | None = None,
) -> tuple[Outcome, list[Done]]:  # fmt: skip
    """Run all trials of an experiment that are not done yet, and say what came of it.

    One that fails is recorded and does not stop the rest; it is tried again the next time. The folder has a directory
    for each trial, named by its key, and `outcome.json`.

    Args:
        experiment: what to run.
        folder: where to keep its trials.
        preset: one of `PRESETS`.
        device: where to train. Default: a GPU if there is one.
        report: is told how far it is.
    """
    place = Path(folder)
    trials = experiment.trials(_check.choice("preset", preset, PRESETS))
    done: list[Done] = []
    loaded: dict[str, Data] = {}
    for number, trial in enumerate(trials, 1):
        done.append(Done(_one(trial, place, loaded, device, report, number, len(trials)), place / trial.key))
    outcome = experiment.analyse(done)
    store(experiment, preset, outcome, done, place)
    return outcome, done


def _one(
    trial: Trial, place: Path, loaded: dict[str, Data], device: str | None, report: Report | None, number: int,
    count: int,
) -> Result:  # fmt: skip
    def progress(step: int, _: float) -> None:
        if report is not None:
            report(number, count, trial, step)

    progress(0, 0.0)
    try:
        key = json.dumps([trial.data, dict(trial.data_options)], sort_keys=True)
        if key not in loaded:
            loaded.clear()  # trials of the same data follow each other: one in memory is enough
            loaded[key] = load(trial.data, **trial.data_options)
        result = train(trial, place / trial.key, data=loaded[key], device=device, progress=progress)
    except Exception as error:
        text = "".join(traceback.format_exception(error))
        result = Result(trial, "failed", versions=versions(), date=_today(), error=text)
    progress(trial.steps, 0.0)
    return result


def store(experiment: Experiment, preset: str, outcome: Outcome, done: Sequence[Done], folder: Path) -> None:
    """Write the outcome: table, claims, each trial's key and end, versions, date."""
    content = {
        "experiment": experiment.name, "source": experiment.source, "preset": preset, "date": _today(),
        "versions": versions(), "rows": [{k: _plain(v) for k, v in row.items()} for row in outcome.rows],
        "claims": [claim.to_dict() for claim in outcome.claims],
        "trials": [{"key": d.trial.key, "status": d.result.status, "seconds": d.result.seconds} for d in done],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{OUTCOME}.part"
    part.write_text(json.dumps(content, indent=1), encoding="utf-8")
    part.replace(folder / OUTCOME)


def write_figure(experiment: Experiment, outcome: Outcome, path: str | os.PathLike[str]) -> None:
    """Draw the outcome into a file: PDF, PNG or SVG, by its ending."""
    rc_context = need("matplotlib").rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")  # without pyplot: no display, nothing kept
    # The same picture is the same file: no date, no random names.
    dated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(Path(path).suffix.lower())
    with rc_context({"svg.hashsalt": experiment.name, "svg.fonttype": "none"}):
        experiment.draw(outcome, figure)
        figure.savefig(path, dpi=120, metadata=dated)


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value


def _today() -> str:
    return time.strftime("%Y-%m-%d", time.gmtime())
