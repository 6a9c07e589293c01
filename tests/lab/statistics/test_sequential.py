"""The stated error rate: a thousand simulated experiments on statements whose answers are known."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from equipoise.lab.experiments import Done, Experiment, Outcome
from equipoise.lab.experiments.shared.sweep import gap, seeds
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import ERROR, LOOKS, decide, margin, next_look
from equipoise.lab.statistics.rounds import run_rounds
from equipoise.lab.statistics.sequential import NOMINAL
from equipoise.lab.train.result import Result
from equipoise.lab.train.trial import Trial

COUNT = 1000
Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]

NOISE: dict[str, Noise] = {
    "normal": lambda dice, shape: dice.normal(size=shape),
    "skewed": lambda dice, shape: dice.gamma(4, size=shape) - 4,
    "skewed the other way": lambda dice, shape: 4 - dice.gamma(4, size=shape),
    "heavy tails": lambda dice, shape: dice.standard_t(3, size=shape),
    "uniform": lambda dice, shape: dice.uniform(-1, 1, size=shape),
    "two modes": lambda dice, shape: dice.choice([-1.0, 1.0], size=shape) + 0.3 * dice.normal(size=shape),
    "rounded": lambda dice, shape: np.round(2 * dice.normal(size=shape)) / 2,
}
"""Of mean zero."""


def first_decision(values: np.ndarray, claim: Callable[[Stat], Claim]) -> str:
    """What is said of one experiment, looked at until it is decided."""
    for look in LOOKS:
        said = claim(Stat.of(values[:look].tolist())).verdict
        if said != "undecided":
            return said
    return "undecided"


CASES: dict[str, tuple[float, str, float, str]] = {
    # name: true mean, relation, what is still about it or the least that matters, what would be wrong to say
    "false: not above": (0.0, "above", 0.0, "agrees"),
    "true: above, by nothing": (1e-9, "above", 0.0, "differs"),
    "true: below, by nothing": (-1e-9, "below", 0.0, "differs"),
    "false: just not about": (0.5 + 1e-9, "about", 0.5, "agrees"),
    "true: just about": (0.5, "about", 0.5, "differs"),
    "false: a little below": (-0.3, "above", 0.0, "agrees"),
    "true: a little above": (0.3, "above", 0.0, "differs"),
    "true: above, just by what matters": (0.5 + 1e-9, "above", 0.5, "differs"),
    "true: below, just by what matters": (-0.5 - 1e-9, "below", 0.5, "differs"),
    "false: not above, though something would matter": (0.0, "above", 0.5, "agrees"),
}
"""The hardest are those at the boundary."""


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("case", CASES)
def test_wrong_decisions_are_as_rare_as_stated(case: str, noise: str) -> None:
    mean, relation, room, wrong = CASES[case]
    dice = np.random.default_rng(sum(map(ord, case + noise)))
    values = mean + NOISE[noise](dice, (COUNT, LOOKS[-1]))

    def claim(stat: Stat) -> Claim:
        return Claim("a", "me", "x", 0.0, stat, relation, room, least=0.0 if relation == "about" else room)

    said = [first_decision(row, claim) for row in values]
    assert said.count(wrong) <= ERROR * COUNT


@pytest.mark.parametrize(("effect", "decided"), [(0.0, 0.0), (1.25, 0.8), (4.0, 0.999)])
def test_clear_statements_are_decided(effect: float, decided: float) -> None:
    """Effects in standard deviations of a seed: one and a quarter is found by the last look, four long before."""
    dice = np.random.default_rng(0)
    values = effect + dice.normal(size=(COUNT, LOOKS[-1]))
    said = [first_decision(row, lambda stat: Claim("a", "me", "x", 0.0, stat, "above")) for row in values]
    assert said.count("agrees") >= decided * COUNT
    early = [first_decision(row[: LOOKS[2]], lambda s: Claim("a", "me", "x", 0.0, s, "above")) for row in values]
    if effect == 4.0:
        assert early.count("agrees") > 0.99 * COUNT


@pytest.mark.parametrize(("noise", "low", "high"), [
    (lambda dice, shape: dice.normal(size=shape), 0.002, 0.005),
    (lambda dice, shape: 4 - dice.gamma(4, size=shape), 0.01, 0.02),
    (lambda dice, shape: math.exp(0.125) - np.exp(0.5 * dice.normal(size=shape)), 0.01, 0.03),
    (NOISE["two modes"], 0.02, 0.04),
    (lambda dice, shape: 1 - dice.exponential(size=shape), 0.04, ERROR),
    (lambda dice, shape: math.exp(0.5) - np.exp(dice.normal(size=shape)), ERROR, 0.15),  # as the module says
])  # fmt: skip
def test_the_rates_that_the_module_names(noise: Noise, low: float, high: float) -> None:
    values = noise(np.random.default_rng(3), (40_000, LOOKS[-1]))
    wrong, decided = np.zeros((2, len(values)), bool)
    for look in LOOKS:
        part = values[:, :look]
        mean, half = part.mean(1), margin(1.0, look) * part.std(1, ddof=1)
        wrong |= ~decided & (mean > half)
        decided |= abs(mean) > half
    assert low < wrong.mean() < high


def test_an_effect_that_is_too_small_to_notice_is_none() -> None:
    """Where there is nothing, "above" stays undecided for ever, unless it is said what would matter."""
    values = np.random.default_rng(5).normal(size=(COUNT, LOOKS[-1]))
    for least, decided in ((0.0, 0.02), (1.0, 0.6), (1.5, 0.95)):
        said = [first_decision(v, lambda s, m=least: Claim("a", "me", "x", 0.0, s, "above", least=m)) for v in values]
        assert said.count("agrees") <= 0.01 * COUNT
        assert (said.count("differs") >= decided * COUNT) == (least > 0), (least, said.count("differs"))
    small = [Claim("a", "me", "x", 0.0, Stat(0.1, 0.01, 8), "above", least=least).verdict for least in (0.0, 0.5)]
    assert small == ["agrees", "differs"], "an effect that is there, and smaller than what matters"
    with pytest.raises(ValueError, match="least = -1"):
        Claim("a", "me", "x", 0.0, Stat.of([1.0]), "above", least=-1)


def test_peeking_with_plain_intervals_would_err_more_often() -> None:
    """The test can fail: the same looks at 95 % intervals break the stated rate."""
    from equipoise.lab.statistics.student import quantile

    values = np.random.default_rng(1).normal(size=(COUNT, LOOKS[-1]))
    wrong = 0
    for row in values:
        ends = [(row[:n].mean(), quantile(1 - ERROR, n - 1) * row[:n].std(ddof=1) / math.sqrt(n)) for n in LOOKS]
        wrong += any(abs(mean) > half for mean, half in ends)
    assert wrong > 2 * ERROR * COUNT


def test_intervals_of_all_looks_hold_the_truth_together() -> None:
    values = np.random.default_rng(2).normal(size=(4 * COUNT, LOOKS[-1]))
    missed = sum(
        any(abs(row[:n].mean()) > margin(float(row[:n].std(ddof=1)), n) for n in LOOKS) for row in values
    )  # fmt: skip
    assert missed <= NOMINAL * 4 * COUNT


class Paired(Experiment):
    """Two settings; the second is better by what the simulation says."""

    name, source, about = "paired", "a simulation", "Is the second better?"
    statements = {"better": "a simulation: the second is better", "same": "a simulation: they are the same"}  # noqa: RUF012

    def trials(self, preset: str) -> list[Trial]:
        return seeds([Trial(lr=0.1), Trial(lr=0.2)], 3)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        first, second = ([d for d in done if d.trial.lr == lr] for lr in (0.1, 0.2))
        ahead = gap(second, first, "test_loss")
        return Outcome([], [
            Claim("better", "me", "loss", 0.0, ahead, "above"), Claim("same", "me", "loss", 0.0, ahead, tolerance=0.5),
        ])  # fmt: skip

    def draw(self, outcome: Outcome, figure: Any) -> None:
        figure.subplots()


def trainer(number: int, effect: float, asked: list[int]) -> Callable[[Sequence[Trial]], list[Done]]:
    """Trials that take no time: a seed's own level, which pairing takes out, noise, and the second's effect."""

    def train(trials: Sequence[Trial]) -> list[Done]:
        found = []
        for trial in trials:
            level = 10 * np.random.default_rng([number, trial.seed]).normal()
            noise = np.random.default_rng([number, trial.seed, round(10 * trial.lr)]).normal() / math.sqrt(2)
            value = level + noise + effect * (trial.lr == 0.2)
            found.append(Done(Result(trial, "finished", trial.steps, {"test_loss": value}, seconds=36.0)))
            asked.append(trial.seed)
        return found

    return train


@pytest.mark.parametrize(
    ("effect", "wrong"),
    [(0.0, {"better": "agrees", "same": "differs"}), (0.5, {"better": "differs", "same": "differs"}),
     (1.2, {"better": "differs", "same": "agrees"}), (-0.8, {"better": "agrees", "same": "agrees"})],
)  # fmt: skip
def test_the_engine_on_statements_with_known_answers(effect: float, wrong: dict[str, str]) -> None:
    """A quarter of a thousand experiments each, from trials to verdicts, through rounds of seeds."""
    errors = dict.fromkeys(wrong, 0)
    for number in range(COUNT // 4):
        found = run_rounds(Paired(), "full", trainer(number, effect, []))
        for claim in found.outcome.claims:
            errors[claim.name] += claim.verdict == wrong[claim.name]
    assert all(count <= ERROR * COUNT / 4 for count in errors.values()), errors


def test_rounds_stop_when_all_is_decided_or_the_budget_is_spent() -> None:
    asked: list[int] = []
    found = run_rounds(Paired(), "full", trainer(0, 100.0, asked))
    assert (found.seeds, found.ended, len(asked)) == (3, "decided", 6)
    undecided = run_rounds(Paired(), "full", trainer(0, 0.45, asked := []))
    assert (undecided.seeds, undecided.ended) == (20, "seeds spent")
    assert sorted(asked) == sorted(2 * list(range(20))), "no seed of a setting is trained twice"
    assert run_rounds(Paired(), "full", trainer(0, 0.45, []), seeds=11).seeds == 8, "only looks that were planned"
    assert run_rounds(Paired(), "small", trainer(0, 0.45, [])).seeds == 8
    assert run_rounds(Paired(), "smoke", trainer(0, 0.45, [])).seeds == 3
    dear = run_rounds(Paired(), "full", trainer(0, 0.45, []), hours=0.17)  # 0.02 hours a seed
    assert (dear.seeds, dear.ended) == (8, "hours spent")
    with pytest.raises(ValueError, match="seeds = 0"):
        run_rounds(Paired(), "full", trainer(0, 0.45, []), seeds=0)


class Three(Paired):
    """The third setting is far better than the first, which the first look decides; the second is as the first."""

    def trials(self, preset: str) -> list[Trial]:
        return seeds([Trial(lr=lr) for lr in (0.1, 0.2, 0.3)], 3)

    def analyse(self, done: Sequence[Done]) -> Outcome:
        first, second, third = ([d for d in done if d.trial.lr == lr] for lr in (0.1, 0.2, 0.3))
        return Outcome([], [
            Claim("better/second", "me", "loss", 0.0, gap(second, first, "test_loss"), "above"),
            Claim("better/third", "me", "loss", 0.0, gap(third, first, "test_loss"), "above"),
        ])  # fmt: skip


def test_later_seeds_go_to_what_undecided_claims_depend_on() -> None:
    def train(trials: Sequence[Trial]) -> list[Done]:
        asked.extend(trials)
        found = []
        for trial in trials:
            noise = float(np.random.default_rng([trial.seed, round(10 * trial.lr)]).normal())
            found.append(Done(Result(trial, "finished", 1, {"test_loss": noise + 1000 * (trial.lr == 0.3)})))
        return found

    asked: list[Trial] = []
    found = run_rounds(Three(), "full", train)
    assert (found.seeds, found.ended) == (20, "seeds spent")
    assert {lr: sum(t.lr == lr for t in asked) for lr in (0.1, 0.2, 0.3)} == {0.1: 20, 0.2: 20, 0.3: 3}
    assert {c.name: (c.measured.count, c.verdict) for c in found.outcome.claims} == {
        "better/second": (20, "undecided"), "better/third": (3, "agrees"),
    }  # fmt: skip


def test_what_two_seeds_say_is_not_decided() -> None:
    assert Claim("a", "me", "x", 0.0, Stat.of([5.0, 5.0]), "above").verdict == "undecided"
    assert Claim("a", "me", "x", 0.0, Stat.of([5.0, 5.0, 5.0]), "above").verdict == "agrees"


def test_odd_numbers_decide_nothing() -> None:
    for low, high in ((math.nan, math.nan), (-math.inf, math.inf)):
        for relation in ("about", "above", "below"):
            assert decide(low, high, relation=relation, expected=0.0, room=0.1) == "undecided"
    assert decide(0.0, 0.0, relation="above", expected=0.0) == "undecided", "neither above nor below"
    assert next_look(LOOKS[-1]) is None
