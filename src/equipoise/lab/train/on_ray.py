"""Trials on a Ray cluster. If a worker dies, Ray tries its trial again."""

from __future__ import annotations

import io
import tarfile
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from equipoise.lab.train.processes import LIVES
from equipoise.lab.train.result import Report, Result
from equipoise.lab.train.run_trial import failure, run_trial
from equipoise.lab.train.trial import Trial
from equipoise.tuning.on_ray import joined

TOKEN = ".sweep"
"""A file by which a worker knows whether it sees the same directory as who asked."""


def run_trials_on_ray(
    trials: Sequence[Trial], place: Path, *, workers: int, threads: int = 1, device: str | None = None,
    report: Report | None = None,
) -> list[Result]:  # fmt: skip
    """Train trials that are not done yet on Ray; their results in the order of the trials.

    On the cluster at `RAY_ADDRESS`, or one that the caller has joined; else on one of this machine, which is ended
    afterwards. Every node needs equipoise. Nodes that see the directory write there and go on where a dead worker was;
    what others have trained is sent here when a trial is done.

    Args:
        trials: what to train.
        place: where each has its directory.
        workers: how many at a time where a cluster of this machine is started.
        threads: of each trial, which asks Ray for as many CPUs.
        device: where to train. Default: a GPU if there is one.
        report: is told what is done.
    """
    place.mkdir(parents=True, exist_ok=True)
    token = uuid.uuid4().hex
    (place / TOKEN).write_text(token)
    try:
        with joined(workers * threads) as ray:
            remote = ray.remote(num_cpus=threads, max_retries=LIVES - 1)(train_there)
            where = str(place.resolve())
            asked = {remote.remote(t.to_json(), where, token, threads, device): n for n, t in enumerate(trials)}
            results: dict[int, Result] = {}
            waiting = list(asked)
            while waiting:
                ready, waiting = ray.wait(waiting)
                for reference in ready:
                    number = asked[reference]
                    trial = trials[number]
                    try:
                        results[number], packed = ray.get(reference)
                        if packed is not None:
                            unpack(packed, place / trial.key)
                    except ray.exceptions.RayError as error:
                        results[number] = failure(trial, place / trial.key, f"on Ray: {error}")
                    if report is not None:
                        report(number + 1, len(trials), trial, trial.steps)
    finally:
        (place / TOKEN).unlink(missing_ok=True)
    return [results[number] for number in range(len(trials))]


def train_there(
    trial: str, place: str, token: str, threads: int, device: str | None
) -> tuple[Result, bytes | None]:  # fmt: skip
    """Train a trial where the caller can see it, or else here, and give back its directory as well.

    Args:
        trial: as JSON.
        place: the caller's directory of trials.
        token: what its file `TOKEN` says.
        threads: of torch.
        device: where to train.
    """
    import torch

    torch.set_num_threads(threads)
    config, mark = Trial.from_json(trial), Path(place) / TOKEN
    if mark.is_file() and mark.read_text() == token:
        return run_trial(config, Path(place), {}, device=device), None
    with tempfile.TemporaryDirectory() as here:
        result = run_trial(config, Path(here), {}, device=device)
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as archive:
            archive.add(Path(here) / config.key, arcname=".")
        return result, packed.getvalue()


def unpack(packed: bytes, folder: Path) -> None:
    """Put a trial's directory, as it was sent, in its place."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
