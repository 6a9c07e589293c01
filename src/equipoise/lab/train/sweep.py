"""Sweeps: a grid, random draws, or both, over any field of a trial. A sweep is an experiment without claims."""

from __future__ import annotations

import itertools
import math
import random
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

from equipoise import _check
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.report.claims import Stat, over_seeds
from equipoise.lab.train.result import FAILED, RESULT, Result
from equipoise.lab.train.trial import Trial

KINDS = ("int", "log", "uniform")


@final
@dataclass(frozen=True)
class Range:
    """What a field is drawn from: evenly in its logarithm, evenly, or whole numbers, both ends included.

    >>> Range.read("log:1e-3:1")
    Range(low=0.001, high=1.0, kind='log')
    >>> Range.read("int:2:4").draw(random.Random(0))
    3
    """

    low: float
    high: float
    kind: str = "log"

    def __post_init__(self) -> None:
        _check.choice("kind", self.kind, KINDS)
        _check.number("low", self.low, low=0 if self.kind == "log" else -math.inf, open_low=self.kind == "log")
        _check.number("high", self.high, low=self.low, open_low=True)

    @staticmethod
    def read(text: str) -> Range:
        """The values that words such as "log:1e-3:1" stand for."""
        kind, *ends = text.split(":")
        try:
            low, high = map(float, ends)
        except ValueError:
            raise ValueError(
                f"range = {text!r}: must be KIND:LOW:HIGH, such as log:1e-3:1, uniform:0:0.5 or int:1:8"
            ) from None
        return Range(low, high, kind)

    def draw(self, dice: random.Random) -> float | int:
        """One value, with four digits."""
        if self.kind == "int":
            return dice.randint(round(self.low), round(self.high))
        if self.kind == "uniform":
            return float(f"{dice.uniform(self.low, self.high):.4g}")
        return float(f"{math.exp(dice.uniform(math.log(self.low), math.log(self.high))):.4g}")


@final
class Sweep(Experiment):
    """Trials that differ from a base in some fields; its table has a row for each setting, the best first.

    Args:
        base: what all share.
        grid: the values of each field (or option, as "model_options.width"); every combination is tried.
        ranges: what fields are drawn from; each draw is tried with every combination of the grid.
        draws: how many.
        seeds: of each setting: the base's own, and the next ones.
        metric: what is best in it. Default: `test_loss` where there is a test, else `train_loss`. More is better of an
            accuracy, less of the rest.
        dice: seed of the draws.

    >>> sweep = Sweep(Trial(), grid={"lr": [0.1, 0.2]}, ranges={"weight_decay": Range(0.01, 1)}, draws=3, seeds=2)
    >>> len(sweep.trials())
    12
    """

    name: ClassVar[str] = "sweep"
    source: ClassVar[str] = ""
    about: ClassVar[str] = "A sweep over fields of a trial."

    def __init__(
        self, base: Trial, *, grid: Mapping[str, Sequence[Any]] | None = None,
        ranges: Mapping[str, Range] | None = None, draws: int = 10, seeds: int = 3, metric: str | None = None,
        dice: int = 0,
    ) -> None:  # fmt: skip
        self.base, self.metric = base, metric
        self.grid, self.ranges = dict(grid or {}), dict(ranges or {})
        if not self.grid and not self.ranges:
            raise ValueError("grid and ranges: must have a field in one of the two")
        both = sorted(self.grid.keys() & self.ranges.keys())
        if both:
            raise ValueError(f"{', '.join(both)}: must be in the grid or be drawn, not both")
        for path, values in self.grid.items():
            if not values:
                raise ValueError(f"grid[{path!r}]: must have a value")
        if "seed" in self.grid | self.ranges:
            raise ValueError("seed: must not be swept over; say how many with seeds")
        self.draws, self.seeds = _check.whole("draws", draws, low=1), _check.whole("seeds", seeds, low=1)
        self.dice = dice

    def settings(self) -> list[Trial]:
        """The settings, one seed of each; the same sweep draws the same ones, and more draws only add to them."""
        dice = random.Random(self.dice)
        drawn = [{path: r.draw(dice) for path, r in self.ranges.items()} for _ in range(self.draws)]
        combinations = [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        ]  # fmt: skip
        found = [self.base.vary(g | d) for d in (drawn if self.ranges else [{}]) for g in combinations]
        return list({trial.key: trial for trial in found}.values())

    def trials(self, preset: str = "small") -> list[Trial]:
        """Every setting with every seed; presets are all alike."""
        return [t.vary({"seed": t.seed + k}) for t in self.settings() for k in range(self.seeds)]

    def analyse(self, done: Sequence[Done]) -> Outcome:
        """The table, the best setting first."""
        return tabulate([d.result for d in done], metric=self.metric, by=[*self.grid, *self.ranges])

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """The metric over each field."""
        draw(outcome, figure)


def read_base(path: Path) -> Trial:
    """A trial from a TOML file with its fields."""
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from None
    try:
        return Trial.from_dict(fields)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def gather(folder: Path) -> list[Done]:
    """What there is of results in a directory of trials, those that failed included; they may still be running."""
    found = []
    for place in sorted(p for p in folder.iterdir() if p.is_dir()):
        for name in (RESULT, FAILED):
            if (place / name).is_file():
                found.append(Done(Result.read(place, name)))
                break
    if not found:
        raise ValueError(f"{folder}: has no result of a trial yet")
    return found


def varied(trials: Sequence[Trial]) -> list[str]:
    """The fields and options in which trials differ, but for the seed.

    >>> varied([Trial(lr=1.0), Trial(lr=2.0, model_options={"width": 8}, seed=1)])
    ['lr', 'model_options.width']
    """
    paths: list[str] = []
    for name, value in vars(Trial()).items():
        if isinstance(value, Mapping):
            options = sorted({key for t in trials for key in getattr(t, name)})
            paths += [f"{name}.{key}" for key in options]
        elif name != "seed":
            paths.append(name)
    return [path for path in paths if any(t.get(path) != trials[0].get(path) for t in trials)]


def tabulate(results: Sequence[Result], *, metric: str | None = None, by: Sequence[str] | None = None) -> Outcome:
    """A row for each setting, the best first; those of which a trial diverged or failed come last.

    Args:
        results: of any trials.
        metric: what is best in it.
        by: the fields of a setting. Default: those that differ.
    """
    names = list(dict.fromkeys(name for r in results for name in r.metrics))
    if metric is None:
        metric = next((m for m in ("test_loss", "train_loss") if m in names or not names), names[0] if names else "")
    elif names:
        _check.choice("metric", metric, names)
    metrics = [metric, *(m for m in names if m != metric)]
    rows = over_seeds(results, metrics, varied([r.trial for r in results]) if by is None else by)
    sign = -1 if "accuracy" in metric else 1

    def rank(row: Mapping[str, Any]) -> tuple[bool, bool, float]:
        value: Stat = row[metric]
        return row["diverged"] + row["failed"] > 0, value.count == 0, sign * value.mean if value.count else 0.0

    return Outcome(sorted(rows, key=rank), (), {"metric": metric})


def draw(outcome: Outcome, figure: Any) -> None:
    """Draw the metric over each field of a table: mean ± standard deviation, the best filled; × where nothing ended."""
    metric = outcome.curves["metric"]
    fields = list(outcome.rows[0])[: list(outcome.rows[0]).index("finished")] or ["finished"]
    columns = min(3, len(fields))
    axes = list(figure.subplots(-(-len(fields) // columns), columns, sharey=True, squeeze=False).flat)
    for axis in axes[len(fields) :]:
        axis.set_visible(False)
    for axis, field in zip(axes, fields, strict=False):
        values = [row[field] for row in outcome.rows]
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        x = values if numbers else [str(v) for v in values]
        for place, (at, row) in enumerate(zip(x, outcome.rows, strict=True)):
            stat: Stat = row[metric]
            if not stat.count:
                axis.plot([at], [0.03], "x", color="tab:red", transform=axis.get_xaxis_transform())
                continue
            width = stat.std if math.isfinite(stat.std) else 0.0
            fill = "tab:blue" if place == 0 else "white"
            axis.errorbar([at], [stat.mean], [width], fmt="o", color="tab:blue", mfc=fill, capsize=3)
        if numbers and min(values) > 0 and max(values) > 20 * min(values):
            axis.set_xscale("log")
        axis.set(xlabel=field, ylabel=metric)
