"""Seeds in rounds: an experiment gets more of them until its claims are decided or its budget is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

from equipoise import _check
from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.statistics.sequential import LOOKS, next_look
from equipoise.lab.train.trial import Trial

BUDGET = {"smoke": 1, "small": 8, "medium": 12}
"""Seeds that a preset may take; of any other the last look's. A preset has at least those that its trials say."""

Train = Callable[[Sequence[Trial]], list[Done]]
"""Gives what came of trials, in their order."""


@final
@dataclass(frozen=True)
class RoundsResult:
    """What an experiment found after its last round.

    Attributes:
        outcome: its table and claims.
        done: all trials.
        seeds: how many there are of each setting.
        ended: why there are no more: "decided", "seeds spent" or "hours spent".
    """

    outcome: Outcome
    done: list[Done]
    seeds: int
    ended: str


def run_rounds(
    experiment: Experiment, preset: str, train: Train, *, seeds: int | None = None, hours: float | None = None
) -> RoundsResult:
    """Train what a preset says, then more seeds of the same settings, look by look.

    Every setting gets every seed, so that all differences are between trials of the same seed. What is trained is a
    function of what came of the trials before: the same call goes on where it was stopped.

    Args:
        experiment: what to run.
        preset: one of `PRESETS`.
        train: trains, or knows already.
        seeds: at most so many. Default: the preset's `BUDGET`.
        hours: no round is begun that would take more training than this in all, by what seeds took so far.
    """
    limit = BUDGET.get(preset, LOOKS[-1]) if seeds is None else _check.whole("seeds", seeds, low=1)
    first = experiment.trials(preset)
    done = train(first)
    known = {trial.key for trial in first}
    then = [trial for trial in experiment.then(preset, done) if trial.key not in known]
    done = [*done, *(train(then) if then else [])]
    count = len({trial.seed for trial in first})
    while True:
        outcome = experiment.analyse(done)
        if not any(claim.verdict == "undecided" for claim in outcome.claims):
            return RoundsResult(outcome, done, count, "decided")
        look = next_look(count)
        if look is None or look > limit:
            return RoundsResult(outcome, done, count, "seeds spent")
        spent = sum(d.result.seconds for d in done) / 3600
        if hours is not None and spent * look / count > hours:
            return RoundsResult(outcome, done, count, "hours spent")
        done = [*done, *train(reseeded([*first, *then], range(count, look)))]
        count = look


def reseeded(trials: Sequence[Trial], seeds: Sequence[int]) -> list[Trial]:
    """The same settings with other seeds, counted from the lowest; data whose seed is the trial's moves with it.

    >>> [t.seed for t in reseeded([Trial(seed=4), Trial(seed=5)], [2, 3])]
    [6, 7]
    """
    low = min(trial.seed for trial in trials)
    found = []
    for trial in (t for t in trials if t.seed == low):
        for seed in (low + s for s in seeds):
            own = {"data_options.seed": seed} if trial.data_options.get("seed") == trial.seed else {}
            found.append(trial.vary({"seed": seed, **own}))
    return found
