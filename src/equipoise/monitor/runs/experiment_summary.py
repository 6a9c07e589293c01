"""What is shown of an experiment: a summary in words and a figure, beside the runs of its trials.

Whoever runs an experiment writes the summary; boards list and show it, and know nothing else of the experiment.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

SUMMARY, FIGURE = "summary.json", "figure.svg"
"""The files in an experiment's folder."""

LARGEST = 20_000_000
"""Bytes of a summary or a figure that are read."""

Row = Mapping[str, str]


@dataclass(frozen=True)
class ExperimentSummary:
    """An experiment in words.

    Attributes:
        experiment: its name.
        source: where its claims come from.
        preset: how large it is.
        date: when its last trial ended.
        ends: how its trials ended.
        rows: its table, a row each by the names of the columns.
        claims: the same of its claims, each with a "verdict".
        trials: the folder of each trial in it, and how it ended.
    """

    experiment: str
    source: str
    preset: str
    date: str
    ends: str
    rows: tuple[Row, ...]
    claims: tuple[Row, ...]
    trials: tuple[tuple[str, str], ...]

    @property
    def verdicts(self) -> dict[str, int]:
        """How many claims came out how."""
        return dict(Counter(row["verdict"] for row in self.claims))

    def write(self, folder: Path) -> None:
        """Put the summary into a folder, whole or not at all."""
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f"{SUMMARY}.part"
        part.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False), encoding="utf-8")
        part.replace(folder / SUMMARY)

    @classmethod
    def read(cls, file: Path) -> Self:
        """Read what `write` wrote.

        Raises:
            ValueError: it is too large, or no summary.
        """
        if file.stat().st_size > LARGEST:
            raise ValueError("too large")
        try:
            stored = json.loads(file.read_text(encoding="utf-8"))
            words = {key: str(stored[key]) for key in ("experiment", "source", "preset", "date", "ends")}
            rows, claims = (tuple(map(_words, stored[part])) for part in ("rows", "claims"))
            trials = tuple((str(key), str(status)) for key, status in stored["trials"])
            found = cls(**words, rows=rows, claims=claims, trials=trials)
            _ = found.verdicts
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"no summary of an experiment: {error}") from None
        return found


def _words(row: Any) -> Row:
    return {str(k): str(v) for k, v in row.items()}
