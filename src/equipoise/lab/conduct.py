"""Run an experiment: its trials, here or elsewhere, then its table, claims and figure, stored with what made them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise._extras import need
from equipoise.lab import on_ray, processes
from equipoise.lab.attempt import attempt
from equipoise.lab.config import Trial
from equipoise.lab.experiments.base import PRESETS, Done, Experiment, Outcome
from equipoise.lab.result import Report, Result
from equipoise.lab.results import cell, claim_rows, ends
from equipoise.theory import _check

if TYPE_CHECKING:
    from equipoise.lab.data import Data

OUTCOME, FIGURE = "outcome.json", "figure.svg"
"""What the board shows of an experiment."""

LONG = 300
"""Characters of a value in a stored config."""


def conduct(
    experiment: Experiment, folder: str | os.PathLike[str], *, preset: str = "small", device: str | None = None,
    report: Report | None = None, workers: int | None = None, threads: int = 1, on: str = "processes",
) -> tuple[Outcome, list[Done]]:  # fmt: skip
    """Run all trials of an experiment that are not done yet, and say what came of it.

    One that fails is recorded and does not stop the rest; it is tried again the next time. The folder has a directory
    for each trial, named by its key, `outcome.json`, and `figure.svg` where there is matplotlib.

    Args:
        experiment: what to run.
        folder: where to keep its trials.
        preset: one of `PRESETS`.
        device: where to train. Default: a GPU if there is one.
        report: is told how far it is.
        workers: how many trials at a time. Default: one after the other in this process; on Ray, one for each core.
        threads: of each worker.
        on: "processes" of this machine, or "ray".
    """
    place = Path(folder)
    first = experiment.trials(_check.choice("preset", preset, PRESETS))
    elsewhere = {"processes": processes.run, "ray": on_ray.run}[_check.choice("on", on, ("processes", "ray"))]
    team = _check.whole("workers", os.cpu_count() or 1 if workers is None else workers, low=1)
    each = _check.whole("threads", threads, low=1)

    def run(trials: Sequence[Trial]) -> list[Done]:
        if workers is None and on == "processes":
            results = _here(trials, place, device, report)
        else:
            results = elsewhere(trials, place, workers=team, threads=each, device=device, report=report)
        return [Done(result, place / result.trial.key) for result in results]

    done = run(first)
    known = {d.trial.key for d in done}
    more = [trial for trial in experiment.then(preset, done) if trial.key not in known]
    if more:
        done += run(more)
    outcome = experiment.analyse(done)
    store(experiment, preset, outcome, done, place)
    if find_spec("matplotlib") is not None:
        write_figure(experiment, outcome, place / FIGURE)
    return outcome, done


def _here(trials: Sequence[Trial], place: Path, device: str | None, report: Report | None) -> list[Result]:
    loaded: dict[str, Data] = {}
    results: list[Result] = []
    for number, trial in enumerate(trials, 1):

        def progress(step: int, _: float, number: int = number, trial: Trial = trial) -> None:
            if report is not None:
                report(number, len(trials), trial, step)

        progress(0, 0.0)
        results.append(attempt(trial, place, loaded, device=device, progress=progress))
        progress(trial.steps, 0.0)
    return results


def store(experiment: Experiment, preset: str, outcome: Outcome, done: Sequence[Done], folder: Path) -> None:
    """Write the outcome: table, claims, config, versions and dates of the trials, and how each ended."""
    shared, own = _configs([d.trial for d in done])
    content = {
        "experiment": experiment.name, "source": experiment.source, "preset": preset,
        "statements": dict(experiment.statements), "date": max((d.result.date for d in done), default=""),
        "versions": [dict(v) for v in sorted({tuple(d.result.versions.items()) for d in done})],
        "rows": [{k: _plain(v) for k, v in row.items()} for row in outcome.rows],
        "claims": [claim.to_dict() for claim in outcome.claims], "config": shared,
        "shown": {  # in words, for pages
            "rows": [{k: cell(v) for k, v in row.items()} for row in outcome.rows],
            "claims": claim_rows(outcome.claims), "ends": ends([d.result for d in done]),
        },
        "trials": [
            {"key": d.trial.key, "status": d.result.status, "seconds": round(d.result.seconds, 1), "config": differs}
            for d, differs in zip(done, own, strict=True)
        ],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{OUTCOME}.part"
    part.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    part.replace(folder / OUTCOME)


def _configs(trials: Sequence[Trial]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What all trials have in common, and what each has besides; options by their paths."""
    every = [{k: _brief(v) for k, v in _flat(dataclasses.asdict(trial)).items()} for trial in trials]
    shared = {k: v for k, v in every[0].items() if all(k in e and e[k] == v for e in every)} if every else {}
    return shared, [{k: v for k, v in e.items() if k not in shared} for e in every]


def _brief(value: Any) -> Any:
    """A value of a config; of a long one, as a curve point by point, its hash: the trial's result has it whole."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) < LONG else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _flat(fields: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in fields.items():
        flat |= {f"{name}.{option}": v for option, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def write_figure(experiment: Experiment, outcome: Outcome, path: str | os.PathLike[str]) -> None:
    """Draw the outcome into a file: PDF, PNG or SVG, by its ending."""
    draw_into(path, lambda figure: experiment.draw(outcome, figure), salt=experiment.name)


def draw_into(path: str | os.PathLike[str], draw: Callable[[Any], None], *, salt: str) -> None:
    """Draw on a figure of matplotlib and write it; the same picture is the same file.

    Args:
        path: PDF, PNG or SVG, by its ending.
        draw: is given the figure.
        salt: for the names in an SVG.
    """
    rc_context = need("matplotlib").rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 6), layout="constrained")  # without pyplot: no display, nothing kept
    dated = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}}.get(Path(path).suffix.lower())
    with rc_context({"svg.hashsalt": salt, "svg.fonttype": "none"}):
        draw(figure)
        figure.savefig(path, dpi=120, metadata=dated)


def _plain(value: Any) -> Any:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else value
