"""Seeds in rounds: undecided claims get more of them until they are decided or the budget is spent."""

from __future__ import annotations

import dataclasses
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
        seeds: how many there are of each setting that an open claim depended on.
        ended: why there are no more: "decided", "seeds spent" or "hours spent".
    """

    outcome: Outcome
    done: list[Done]
    seeds: int
    ended: str


def run_rounds(
    experiment: Experiment, preset: str, train: Train, *, seeds: int | None = None, hours: float | None = None
) -> RoundsResult:
    """Train what a preset says, then more seeds of what undecided claims depend on, look by look.

    The trials of a preset have the seeds of the first look, by which learning rates are chosen, too. Settings that are
    compared get the same seeds, so that differences are between trials of the same seed. What is trained is a function
    of what came of the trials before: the same call goes on where it was stopped.

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
    low, count = min(trial.seed for trial in first), len({trial.seed for trial in first})
    settings = [trial for trial in (*first, *then) if trial.seed == low]
    while True:
        outcome = experiment.analyse(done)
        if not any(claim.verdict == "undecided" for claim in outcome.claims):
            return RoundsResult(outcome, done, count, "decided")
        look = next_look(count)
        if look is None or look > limit:
            return RoundsResult(outcome, done, count, "seeds spent")
        more = reseeded(open_settings(experiment, done, outcome, settings, count), range(look))
        have = {d.trial.key: d.result.seconds for d in done}
        took = sum(have.values()) / len(have) * sum(trial.key not in have for trial in more)
        if hours is not None and (sum(have.values()) + took) / 3600 > hours:
            return RoundsResult(outcome, done, count, "hours spent")
        done = [*done, *train([trial for trial in more if trial.key not in have])]
        count = look


def open_settings(
    experiment: Experiment, done: Sequence[Done], outcome: Outcome, settings: Sequence[Trial], count: int
) -> list[Trial]:
    """The settings that undecided claims depend on: without one more seed of theirs such a claim would have less.

    One more seed is made up for each, like its last: what is measured with all of them is held against what is measured
    with all but one.

    Args:
        experiment: whose claims they are.
        done: all trials.
        outcome: what was made of them.
        settings: the trial of each with the lowest seed.
        count: seeds that a setting has at the most.
    """
    undecided = [claim.name for claim in outcome.claims if claim.verdict == "undecided"]
    have = {d.trial.key: d for d in done if d.result.status == "finished"}
    more: dict[str, Done] = {}
    for trial in settings:
        own = [have[t.key] for t in reseeded([trial], range(count)) if t.key in have]
        if own:
            result = dataclasses.replace(own[-1].result, trial=reseeded([trial], [count])[0])
            more[trial.key] = Done(result, own[-1].measured)

    def measured(left_out: str = "") -> list[str]:
        found = experiment.analyse([*done, *(d for key, d in more.items() if key != left_out)])
        by = {claim.name: repr(claim.measured) for claim in found.claims}
        return [by.get(name, "") for name in undecided]

    whole = measured()
    return [trial for trial in settings if trial.key in more and measured(trial.key) != whole]


def reseeded(trials: Sequence[Trial], seeds: Sequence[int]) -> list[Trial]:
    """The same settings with other seeds, counted from the lowest; data whose seed is the trial's moves with it.

    >>> [t.seed for t in reseeded([Trial(seed=4), Trial(seed=5)], [2, 3])]
    [6, 7]
    """
    low = min((trial.seed for trial in trials), default=0)
    found = []
    for trial in (t for t in trials if t.seed == low):
        for seed in (low + s for s in seeds):
            own = {"data_options.seed": seed} if trial.data_options.get("seed") == trial.seed else {}
            found.append(trial.vary({"seed": seed, **own}))
    return found
