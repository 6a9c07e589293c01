"""Run one trial. An exception is stored as its result, and the trial is tried again the next time."""

from __future__ import annotations

import json
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise._extras import MissingExtraError
from equipoise.lab.train.result import FAILED, RESULT, Result, versions
from equipoise.lab.train.trial import Trial

if TYPE_CHECKING:
    from equipoise.lab.data import Data
    from equipoise.lab.train.training import Progress


def run_trial(
    trial: Trial, place: Path, loaded: dict[str, Data], *, device: str | None = None, progress: Progress | None = None
) -> Result:
    """Train a trial in `place/KEY`, or record that it failed, in `failed.json` there; a missing extra is raised.

    Args:
        trial: what to train.
        place: where all trials are.
        loaded: the data of the last trial, which is used again where it is the same; changed in place.
        device: where to train. Default: a GPU if there is one.
        progress: is told how far it is.
    """
    from equipoise.lab.data import load
    from equipoise.lab.train.training import train

    folder = place / trial.key
    try:
        key = json.dumps([trial.data, dict(trial.data_options)], sort_keys=True)
        if key not in loaded and not (folder / RESULT).exists():
            loaded.clear()  # trials of the same data follow each other: one in memory is enough
            loaded[key] = load(trial.data, **trial.data_options)
        result = train(trial, folder, data=loaded.get(key), device=device, progress=progress)
    except MissingExtraError:
        raise  # of every other trial, too
    except Exception as error:
        return failure(trial, folder, "".join(traceback.format_exception(error)))
    (folder / FAILED).unlink(missing_ok=True)
    return result


def failure(trial: Trial, folder: Path, error: str) -> Result:
    """The result of a trial that failed, recorded in its directory."""
    date = time.strftime("%Y-%m-%d", time.gmtime())
    result = Result(trial, "failed", versions=versions(), date=date, error=error)
    folder.mkdir(parents=True, exist_ok=True)
    result.write(folder, FAILED)
    return result
