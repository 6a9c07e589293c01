"""Run an experiment: train its trials, then compute and store its table, claims and figure."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from equipoise import _check
from equipoise._extras import need
from equipoise.lab.experiments.base import PRESETS, Done, Experiment, Outcome, catalogue
from equipoise.lab.report.claims import cell, claim_rows, ends
from equipoise.lab.statistics.rounds import RoundsResult, run_rounds
from equipoise.lab.train import on_ray, processes
from equipoise.lab.train.result import RUN, Report, Result
from equipoise.lab.train.run_trial import run_trial
from equipoise.lab.train.trial import Trial
from equipoise.lab.train.trial_store import TRIALS, TrialStore, brief, flat, stored_trials
from equipoise.monitor import Run
from equipoise.monitor.runs.experiment_summary import FIGURE, ExperimentSummary

if TYPE_CHECKING:
    from equipoise.lab.data import Data

OUTCOME = "outcome.json"
"""What came of an experiment, with what made it."""


def run_experiment(
    experiment: Experiment, folder: str | os.PathLike[str], *, preset: str = "small", device: str | None = None,
    report: Report | None = None, workers: int | None = None, threads: int = 1, on: str = "processes",
    seeds: int | None = None, hours: float | None = None,
) -> tuple[Outcome, list[Done]]:  # fmt: skip
    """Run all trials of an experiment that are not done yet, in rounds of seeds, and say what came of it.

    Trials that come with the package (`lab/stored/trials`) or that the folder has are not trained again. One that fails
    is recorded and does not stop the rest; it is tried again the next time. The folder has a directory for each trial
    that was trained here, named by its key, `trials.jsonl` with what is worth keeping of them, `outcome.json`,
    `summary.json` for boards, and `figure.svg` where there is matplotlib.

    Args:
        experiment: what to run.
        folder: where to keep its trials.
        preset: one of `PRESETS`.
        device: where to train. Default: a GPU if there is one.
        report: is told how far it is.
        workers: how many trials at a time. Default: one after the other in this process; on Ray, one for each core.
        threads: of each worker.
        on: "processes" of this machine, or "ray".
        seeds: at most so many of a setting, as long as a claim is undecided. Default: 8 at `small`, 20 at `full`.
        hours: no round of seeds is begun that would take more training than this in all.
    """
    place = Path(folder)
    _check.choice("preset", preset, PRESETS)
    elsewhere = {"processes": processes.run_trials, "ray": on_ray.run_trials_on_ray}[
        _check.choice("on", on, ("processes", "ray"))
    ]
    team = _check.whole("workers", os.cpu_count() or 1 if workers is None else workers, low=1)
    each = _check.whole("threads", threads, low=1)
    if hours is not None:
        _check.number("hours", hours, low=0, open_low=True)
    packaged = [stored_trials(experiment.name)] if catalogue().get(experiment.name) is type(experiment) else []
    store = TrialStore(place / TRIALS, packaged)
    trained = [0]

    def train(trials: Sequence[Trial]) -> list[Done]:
        found = {trial.key: store.get(trial, experiment.version) for trial in trials}
        missing = list({trial.key: trial for trial in trials if found[trial.key] is None}.values())
        before = trained[0]
        trained[0] += len(missing)

        def told(number: int, count: int, trial: Trial, step: int) -> None:
            if report is not None:
                report(before + number, before + count, trial, step)

        if not missing:
            results = []
        elif workers is None and on == "processes":
            results = _here(missing, place, device, told)
        else:
            results = elsewhere(missing, place, workers=team, threads=each, device=device, report=told)
        for result in results:
            found[result.trial.key] = _measured(experiment, result, place, store)
        return [done for trial in trials if (done := found[trial.key]) is not None]

    finding = run_rounds(experiment, preset, train, seeds=seeds, hours=hours)
    write_outcome(experiment, preset, finding, place)
    if find_spec("matplotlib") is not None:
        write_figure(experiment, finding.outcome, place / FIGURE)
    return finding.outcome, finding.done


def _measured(experiment: Experiment, result: Result, place: Path, store: TrialStore) -> Done:
    """A trial that was trained, with what its experiment needs of its run; kept, unless it failed."""
    if result.status == "failed":
        return Done(result)
    measured: Mapping[str, Any] = {}
    if result.status == "finished" or experiment.measures_diverged:
        with Run.open(place / result.trial.key / RUN) as run:
            measured = experiment.measure(result, run)
    return store.add(result, measured, experiment.version)


def _here(trials: Sequence[Trial], place: Path, device: str | None, report: Report | None) -> list[Result]:
    loaded: dict[str, Data] = {}
    results: list[Result] = []
    for number, trial in enumerate(trials, 1):

        def progress(step: int, _: float, number: int = number, trial: Trial = trial) -> None:
            if report is not None:
                report(number, len(trials), trial, step)

        progress(0, 0.0)
        results.append(run_trial(trial, place, loaded, device=device, progress=progress))
        progress(trial.steps, 0.0)
    return results


def write_outcome(experiment: Experiment, preset: str, finding: RoundsResult, folder: Path) -> None:
    """Write the outcome (table, claims, config, versions and dates of the trials, how each ended) and its summary."""
    outcome, done = finding.outcome, finding.done
    shared, own = _configs([d.trial for d in done])
    content = {
        "experiment": experiment.name, "source": experiment.source, "preset": preset,
        "statements": dict(experiment.statements), "date": max((d.result.date for d in done), default=""),
        "versions": [dict(v) for v in sorted({tuple(d.result.versions.items()) for d in done})],
        "seeds": finding.seeds, "ended": finding.ended,
        "rows": [{k: _plain(v) for k, v in row.items()} for row in outcome.rows],
        "claims": [claim.to_dict() for claim in outcome.claims], "config": shared,
        "trials": [
            {"key": d.trial.key, "status": d.result.status, "seconds": round(d.result.seconds, 1), "config": differs}
            for d, differs in zip(done, own, strict=True)
        ],
    }  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / f"{OUTCOME}.part"
    part.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    part.replace(folder / OUTCOME)
    ExperimentSummary(
        experiment=experiment.name, source=experiment.source, preset=preset, date=content["date"],
        ends=ends([d.result for d in done]), rows=tuple({k: cell(v) for k, v in row.items()} for row in outcome.rows),
        claims=tuple(claim_rows(outcome.claims)), trials=tuple((d.trial.key, d.result.status) for d in done),
    ).write(folder)  # fmt: skip


def _configs(trials: Sequence[Trial]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What all trials have in common, and what each has besides; options by their paths."""
    every = [{k: brief(v) for k, v in flat(dataclasses.asdict(trial)).items()} for trial in trials]
    shared = {k: v for k, v in every[0].items() if all(k in e and e[k] == v for e in every)} if every else {}
    return shared, [{k: v for k, v in e.items() if k not in shared} for e in every]


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
