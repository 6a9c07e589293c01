"""Statistics over seeds, and claims that are tested with them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from equipoise import _check
from equipoise.lab.statistics import LOOKS, Check, decide, margin
from equipoise.lab.statistics.sequential import RELATIONS
from equipoise.lab.train.result import Result

NOT_TESTED = "not tested"


@final
@dataclass(frozen=True)
class Stat:
    """A number over seeds: mean, standard deviation of a single seed, and how many.

    >>> stat = Stat.of([1.0, 2.0, 3.0])
    >>> str(stat), round(stat.margin, 3)
    ('2.00 ± 1.00', 11.525)
    >>> str(Stat(-0.0005, 0.009, 3)), str(Stat(1.0, 1e-8, 3))
    ('-0.0005 ± 0.0090', '1 ± 1e-08')
    """

    mean: float
    std: float
    count: int

    @staticmethod
    def of(values: Sequence[float]) -> Stat:
        """Of one value a seed."""
        x = np.asarray(values, np.float64)
        if not len(x):
            return Stat(math.nan, math.nan, 0)
        return Stat(float(x.mean()), float(x.std(ddof=1)) if len(x) > 1 else math.nan, len(x))

    @property
    def margin(self) -> float:
        """Half the width of the mean's interval, as `equipoise.lab.statistics` has it; infinite for a single seed."""
        return margin(self.std, self.count)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the mean over all seeds lies, with the error rate of `equipoise.lab.statistics`."""
        return self.mean - self.margin, self.mean + self.margin

    def __str__(self) -> str:
        if self.count == 0:
            return "—"
        if not math.isfinite(self.std):
            return f"{self.mean:.3g}"
        # As many digits as the deviation says something about, and three of the mean where it is larger.
        seen = (self.std,) if abs(self.mean) < self.std else (self.mean / 10, self.std)
        small = min((abs(v) for v in seen if v and math.isfinite(v)), default=1.0)
        digits = max(0, 1 - math.floor(math.log10(small)))
        if digits > 5:
            return f"{self.mean:.5g} ± {self.std:.1g}"
        return f"{self.mean:.{digits}f} ± {self.std:.{digits}f}"


@final
@dataclass(frozen=True)
class Claim:
    """What a source says, held against what was measured.

    Attributes:
        name: short, unique in its experiment: a name in `Experiment.statements`, or that and a part of it, as
            "zero-shot-vision/adamw". Parts of a statement are judged together in the ledger.
        source: where it says so.
        quantity: what was measured, in words.
        expected: its number.
        measured: ours.
        relation: "about", within `tolerance`; or the measured number is "above" or "below" the expected one.
        tolerance: relative, of the expected number; where that is 0, absolute. Ours where the source has none.
        checks: what must be true for it to be tested; where one does not pass it is not tested.
        least: of "above" and "below", the smallest distance from the expected number that matters: a claim whose
            interval leaves no room for so much differs. Ours, and at most half of the source's effect where it has one.
    """

    name: str
    source: str
    quantity: str
    expected: float
    measured: Stat
    relation: str = "about"
    tolerance: float = 0.05
    checks: Sequence[Check] = ()
    least: float = 0.0

    def __post_init__(self) -> None:
        _check.choice("relation", self.relation, RELATIONS)
        _check.number("least", self.least, low=0)

    @property
    def statement(self) -> str:
        """The name of the statement that it is part of."""
        return self.name.partition("/")[0]

    @property
    def room(self) -> float:
        """How far from the expected number is still about it."""
        return self.tolerance * (abs(self.expected) or 1.0)

    @property
    def interval(self) -> tuple[float, float]:
        """Of the mean over seeds."""
        return self.measured.interval

    @property
    def effect(self) -> float:
        """Its size: the mean less the expected number, in standard deviations of a seed; nan where there is none."""
        apart, std = self.measured.mean - self.expected, self.measured.std
        return apart / std if std > 0 else math.nan

    @property
    def decision(self) -> str:
        """Agrees or differs, where the interval of the mean lies on one side; else undecided. Without the checks.

        Fewer seeds than those of the first look decide nothing.
        """
        if self.measured.count < LOOKS[0]:
            return "undecided"
        low, high = self.interval
        return decide(low, high, relation=self.relation, expected=self.expected, room=self.room, least=self.least)

    @property
    def failed(self) -> list[Check]:
        """The checks that do not pass."""
        return [check for check in self.checks if not check.passed]

    @property
    def verdict(self) -> str:
        """The decision, or "not tested" where a check does not pass."""
        return NOT_TESTED if self.failed else self.decision

    @property
    def reason(self) -> str:
        """Why it was not tested, in words; "" where it was."""
        return "; ".join(check.reason for check in self.failed)

    @property
    def clearness(self) -> float:
        """How far the interval is from deciding otherwise, in its own half widths; the lower, the less clear."""
        m, half = self.measured.mean, self.measured.margin
        apart = self.room - abs(m - self.expected) if self.relation == "about" else m - self.expected
        return abs(apart) / half if half > 0 else math.inf

    def to_dict(self) -> dict[str, Any]:
        """All fields, interval, effect and verdict; what is not finite is None, as JSON has no word for it."""
        found = {"interval": [_finite(end) for end in self.interval], "effect": _finite(self.effect)}
        return dataclasses.asdict(self) | found | {"verdict": self.verdict}


def over_seeds(results: Sequence[Result], metrics: Sequence[str], by: Sequence[str]) -> list[dict[str, Any]]:
    """One row a setting: the fields it differs in, how its trials ended, and each metric as a `Stat`.

    Diverged trials are counted, and have no metrics: their mean would be of the survivors, so it is of them alone.

    Args:
        results: of any trials.
        metrics: names in `Result.metrics`.
        by: fields of the trial, as `lr` or `model_options.width`.
    """
    rows: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        rows.setdefault(tuple(hashable(result.trial.get(path)) for path in by), []).append(result)
    table = []
    for values, members in rows.items():
        row: dict[str, Any] = dict(zip(by, values, strict=True))
        for status in ("finished", "diverged", "failed"):
            row[status] = sum(r.status == status for r in members)
        for name in metrics:
            row[name] = Stat.of([r.metrics[name] for r in members if name in r.metrics])
        table.append(row)
    return table


def claim_rows(claims: Sequence[Claim]) -> list[dict[str, str]]:
    """Claims as rows of words: what, who says it, the source's number, ours, its interval and effect, and the verdict.

    >>> row = claim_rows([Claim("a", "[kosson2024]", "norm", 2.0, Stat(2.0, 0.01, 3))])[0]
    >>> row["source's"], row["interval"]
    ('2 ± 0.1', '1.885 to 2.115')
    """
    table = []
    untested = any(c.failed for c in claims)
    for c in claims:
        sign = {"about": "", "above": "> ", "below": "< "}[c.relation]
        room = f" ± {c.room:g}" if c.relation == "about" else f", by {c.least:g}" if c.least else ""
        table.append({
            "claim": c.quantity, "source": c.source, "source's": f"{sign}{c.expected:g}{room}",
            "measured": str(c.measured), "interval": interval_words(c.measured), "effect": effect_words(c),
            "seeds": str(c.measured.count), "verdict": c.verdict,
            **({"why not tested": c.reason} if untested else {}),
        })  # fmt: skip
    return table


def interval_words(stat: Stat) -> str:
    """The interval of a mean, with the digits that its width says something about.

    >>> interval_words(Stat(0.5, 0.001, 3)), interval_words(Stat(0.5, 0.001, 1))
    ('0.4885 to 0.5115', '—')
    """
    low, high = stat.interval
    if not math.isfinite(low) or not math.isfinite(high):
        return "—"
    width = high - low
    digits = max(0, 2 - math.floor(math.log10(width))) if width > 0 else 4
    return f"{low:.{digits}f} to {high:.{digits}f}" if digits <= 8 else f"{low:.5g} to {high:.5g}"


def effect_words(claim: Claim) -> str:
    """The size of an effect in words."""
    return f"{claim.effect:+.2g} σ" if math.isfinite(claim.effect) else "—"


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Rows as a table in Markdown, the columns being those of the first.

    >>> print(markdown([{"lr": 0.1, "|loss|": Stat(0.5, 0.01, 3)}]))
    | lr | \|loss\| |
    |---|---|
    | 0.1 | 0.500 ± 0.010 |
    """
    if not rows:
        return ""
    columns = list(rows[0])
    lines = [columns, *([cell(row.get(c)) for c in columns] for row in rows)]
    texts = ["| " + " | ".join(part.replace("|", "\\|") for part in line) + " |" for line in lines]
    return "\n".join([texts[0], "|" + "---|" * len(columns), *texts[1:]])


def ends(results: Sequence[Result]) -> str:
    """How many trials ended how, and what they took."""
    found = [r.status for r in results]
    counts = ", ".join(f"{found.count(s)} {s}" for s in ("finished", "diverged", "failed") if s in found)
    return f"{len(found)} trials: {counts}; {sum(r.seconds for r in results):.0f} s of training"


def cell(value: Any) -> str:
    """A value of a table as text."""
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def hashable(value: Any) -> Any:
    """A field of a trial as a key: lists are tuples, options are text."""
    if isinstance(value, dict):
        return json.dumps(value, sort_keys=True)
    return tuple(value) if isinstance(value, list) else value
