"""Finished trials as lines of JSON, small enough to commit, so that any machine can continue from them.

A line has the trial's key, what of its config is not the default, how it ended, its metrics, what was measured of its
run, and what it was made with. Reading a line back needs no run directory.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np

from equipoise.lab.experiments.base import Done
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial

TRIALS = "trials.jsonl"
"""In the folder of an experiment."""

STORED = Path(__file__).parents[1] / "stored"
"""What comes with the package: outcomes, and in `trials` the trials, a file for each experiment."""

LONG = 300
"""Characters of a value in a stored config."""

ARRAY = "float32"
"""The key of a packed array."""


def stored_trials(name: str, folder: Path = STORED) -> Path:
    """The file of an experiment's trials that comes with the package."""
    return folder / "trials" / f"{name}.jsonl"


@final
class TrialStore:
    """Trials that are done, by key and by the version of what was measured of them.

    Args:
        own: the file that new ones are added to.
        others: files that are read as well, as those of the package.
    """

    def __init__(self, own: Path, others: Sequence[Path] = ()) -> None:
        self.own = own
        self._lines: dict[tuple[str, int], dict[str, Any]] = {}
        for file in (*others, own):
            for line in read_lines(file):
                self._lines.setdefault((line["key"], line["version"]), line)

    def get(self, trial: Trial, version: int) -> Done | None:
        """A trial as it was done, or None where it was not."""
        line = self._lines.get((trial.key, version))
        if line is None:
            return None
        tests = line.get("tests") or [[line["steps"], {k: v for k, v in line["metrics"].items() if k != "train_loss"}]]
        result = Result(
            trial, line["status"], line["steps"], line["metrics"], line["seconds"], line["weights"], line["data"],
            line["versions"], line["date"], [(step, found) for step, found in tests],
        )  # fmt: skip
        return Done(result, unpack(line["measured"]))

    def add(self, result: Result, measured: Mapping[str, Any], version: int) -> Done:
        """Keep a trial that is finished or has diverged, and give it as it will be read."""
        one = {
            "key": result.trial.key, "version": version, "config": config(result.trial), "status": result.status,
            "steps": result.steps, "metrics": dict(result.metrics), "seconds": round(result.seconds, 1),
            "weights": result.weights, "data": result.data, "versions": dict(result.versions), "date": result.date,
            "measured": pack(measured),
        }  # fmt: skip
        if len(result.tests) > 1:
            one["tests"] = [[step, dict(found)] for step, found in result.tests]
        self._lines[result.trial.key, version] = json.loads(json.dumps(one))
        self.own.parent.mkdir(parents=True, exist_ok=True)
        with self.own.open("a", encoding="utf-8") as file:
            file.write(_line(one))
        done = self.get(result.trial, version)
        assert done is not None
        return done


def read_lines(file: Path) -> Iterable[dict[str, Any]]:
    """The trials of a file; a last line that was cut off by a kill is none, any other is an error that names it."""
    lines = file.read_text(encoding="utf-8").split("\n") if file.is_file() else []
    for number, text in enumerate(lines, 1):
        if not text:
            continue
        try:
            line = json.loads(text)
            missing = {f.name for f in dataclasses.fields(Result)} - {"trial", "tests", "error"} - line.keys()
            if missing or not isinstance(line["key"], str) or not isinstance(line["version"], int):
                raise ValueError(f"has no {', '.join(sorted(missing)) or 'key'}")
            unpack(line["measured"])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if number == len(lines):
                return
            raise ValueError(f"{file}: line {number} is no trial ({error})") from None
        yield line


def keep_trials(name: str, file: Path, folder: Path = STORED) -> None:
    """Add the trials of a file to those that come with the package, sorted by key so that additions merge.

    Args:
        name: of the experiment.
        file: its `trials.jsonl`.
        folder: where outcomes are stored.
    """
    target = stored_trials(name, folder)
    found = {(line["key"], line["version"]): line for place in (file, target) for line in read_lines(place)}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("".join(_line(found[key]) for key in sorted(found)), encoding="utf-8")


def config(trial: Trial) -> dict[str, Any]:
    """What differs from the default in a trial: options by their paths, long values by their hashes.

    >>> config(Trial(lr=0.1, model_options={"width": 8}))
    {'lr': 0.1, 'model_options.width': 8}
    """
    default = _defaults()
    return {k: brief(v) for k, v in flat(trial.fields()).items() if k not in default or default[k] != v}


@functools.cache
def _defaults() -> dict[str, Any]:
    return flat(Trial().fields())


def flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields with options by their paths."""
    found: dict[str, Any] = {}
    for name, value in fields.items():
        found |= {f"{name}.{option}": v for option, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


def brief(value: Any) -> Any:
    """A value of a config; of a long one, as a curve point by point, its hash: the experiment makes it again."""
    text = json.dumps(value, sort_keys=True)
    return value if len(text) < LONG else f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def pack(value: Any) -> Any:
    """What JSON can hold: arrays as 32-bit floats in base64.

    >>> unpack(pack({"a": np.array([[1.0, 2.0]]), "b": 0.5}))
    {'a': array([[1., 2.]]), 'b': 0.5}
    """
    if isinstance(value, np.ndarray):
        data = np.ascontiguousarray(value, dtype="<f4")
        return {ARRAY: base64.b64encode(data.tobytes()).decode(), "shape": list(data.shape)}
    if isinstance(value, Mapping):
        return {str(key): pack(part) for key, part in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def unpack(value: Any) -> Any:
    """What `pack` has packed; arrays are of 64 bits again."""
    if not isinstance(value, dict):
        return value
    if ARRAY in value:
        data = np.frombuffer(base64.b64decode(value[ARRAY]), dtype="<f4")
        return data.astype(np.float64).reshape(value["shape"])
    return {key: unpack(part) for key, part in value.items()}


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")) + "\n"
