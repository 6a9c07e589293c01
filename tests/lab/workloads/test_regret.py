"""Regret: arithmetic on synthetic trials with known answers, and the page that is made of the stored ones."""

import math

import pytest
from tests import ROOT
from tests.lab.workloads.synthetic_workloads import WORKLOAD, bowl, ended, swept

from equipoise.lab.workloads import POLICIES, WORKLOADS, Policy, regrets
from equipoise.lab.workloads import catalogue as named
from equipoise.lab.workloads.payoff import GROUPS, content, details, summary
from equipoise.lab.workloads.policies import epoch_timescale, memory_steps, power_lines
from equipoise.lab.workloads.regret import regret, tuned
from equipoise.lab.workloads.store import Outcomes
from equipoise.lab.workloads.sweep import others, settled

PAGE = ROOT / "docs" / "payoff.md"
BEST, HABIT = WORKLOAD.at(3e-3, 0.1), WORKLOAD.at(1e-3, 0.01)


def known(**tests: tuple[float, ...]) -> Outcomes:
    found = {}
    for trial, losses in ((BEST, tests["best"]), (HABIT, tests["habit"])):
        for one, loss in zip([trial, *others(trial)], losses, strict=False):
            found[one.key] = ended(one, loss, loss)
    return found


def test_percent_of_the_test_loss() -> None:
    one = regret(HABIT, BEST, known(best=(2.0,), habit=(2.1,)))
    assert one is not None
    assert (one.percent, one.seeds) == (pytest.approx(5.0), 1)
    assert math.isnan(one.spread)
    three = regret(HABIT, BEST, known(best=(2.0, 2.0, 2.0), habit=(2.1, 2.2, 2.3)))
    assert three is not None
    assert (three.percent, three.seeds, three.spread) == (pytest.approx(10.0), 3, pytest.approx(5.0))
    assert regret(BEST, BEST, known(best=(2.0,), habit=())).percent == 0  # type: ignore[union-attr]


def test_seeds_are_compared_in_pairs() -> None:
    one = regret(HABIT, BEST, known(best=(2.0, 2.2, 2.4), habit=(2.1,)))
    assert one is not None
    assert (one.percent, one.seeds) == (pytest.approx(5.0), 1), "of the seed that both have"


def test_what_diverged_costs_infinitely_much_and_what_is_unknown_nothing() -> None:
    one = regret(HABIT, BEST, known(best=(2.0, 2.0), habit=(2.1, math.inf)))
    assert one is not None
    assert math.isinf(one.percent)
    assert regret(HABIT, BEST, known(best=(2.0,), habit=())) is None
    assert regret(HABIT, BEST, known(best=(), habit=(2.0,))) is None


def test_the_best_is_chosen_on_validation_and_compared_on_the_test() -> None:
    whole, _ = swept(bowl(3e-3, 0.3))
    top = settled(WORKLOAD, whole)
    assert top is not None
    whole = {key: ended(one.trial, one.validation, 1.0 if one.trial.lr > 3e-3 else 2.0) for key, one in whole.items()}
    mine = {"mine": Policy("mine", "", lambda workload, _: workload.at(1e-2, 0.0))}
    found = regrets(WORKLOAD, whole, {WORKLOAD.name: top}, mine)["mine"]
    assert found is not None
    assert found.percent == pytest.approx(-50), "better on the test than what validation chose"
    assert regrets(WORKLOAD, whole, {}, mine)["mine"] is None, "a grid that is not done has no best yet"


def test_rules_give_the_decay_that_their_sources_ask_for() -> None:
    text, repeated, images = (named.WORKLOADS[n] for n in ("text-adamw", "repeat-adamw", "resnet-batch-sgdm"))
    assert memory_steps(text) == epoch_timescale(text) == text.trial.steps
    assert memory_steps(repeated) == pytest.approx(repeated.samples / repeated.trial.batch_size)
    assert epoch_timescale(repeated) == pytest.approx(memory_steps(repeated) * math.sqrt(repeated.epochs))
    tokens = text.trial.steps * text.trial.batch_size * 32
    assert power_lines(text) == pytest.approx(text.trial.steps * 1.084 * (tokens / text.parameters) ** -0.527)
    assert power_lines(images) is None
    chosen = POLICIES["memory-steps, habit's lr"].choose(text, {})
    assert chosen is not None
    assert chosen.lr * chosen.weight_decay * chosen.steps == pytest.approx(1, rel=1e-2)
    images_chosen = POLICIES["memory-steps, habit's lr"].choose(images, {})
    assert images_chosen is not None
    assert images_chosen.weight_decay == pytest.approx(1 / (0.1 * 10 * images.trial.steps), rel=1e-2)
    assert POLICIES["memory-steps, best lr"].choose(text, {}) is None


def test_rules_for_transfer_move_the_best_setting_of_the_proxy() -> None:
    proxy, wide, long, batch = (
        named.WORKLOADS[n] for n in ("text-adamw", "text-adamw-wide", "text-adamw-long", "text-adamw-batch")
    )
    known = {proxy.name: proxy.at(4e-3, 0.2)}
    product = POLICIES["width-product from proxy"].choose(wide, known)
    assert product is not None
    assert (product.lr, product.weight_decay) == (pytest.approx(2e-3), pytest.approx(0.4))
    longer = POLICIES["memory-steps from proxy"].choose(long, known)
    assert longer is not None
    assert (longer.lr, longer.weight_decay) == (pytest.approx(4e-3), pytest.approx(0.1))
    larger = POLICIES["complete-p from proxy"].choose(batch, known)
    assert larger is not None
    assert (larger.lr, larger.weight_decay) == (pytest.approx(8e-3), pytest.approx(0.4))
    assert POLICIES["width-product from proxy"].choose(long, known) is None
    assert POLICIES["complete-p from proxy"].choose(proxy, known) is None


def test_habits_and_defaults_are_what_people_type() -> None:
    text, images = named.WORKLOADS["text-adamw"], named.WORKLOADS["resnet-batch-sgdm"]
    found = [POLICIES[name].choose(text, {}) for name in ("defaults", "habit", "other habit")]
    assert [(t.lr, t.weight_decay, t.schedule, t.warmup) for t in found if t is not None] == [
        (1e-3, 0.01, "constant", 0), (1e-3, 0.01, "cosine", 40), (3e-4, 0.1, "cosine", 40),
    ]  # fmt: skip
    habit = POLICIES["habit"].choose(images, {})
    assert habit is not None
    assert (habit.lr, habit.weight_decay) == (0.1, 5e-4)


def test_the_summary_counts_workloads_by_half() -> None:
    first, second = (w.name for w in WORKLOADS.values() if w.half == "choosing"), "text-adamw-wide"
    a, b = next(first), next(first)
    one = regret(HABIT, BEST, known(best=(2.0,), habit=(2.1,)))
    two = regret(HABIT, BEST, known(best=(2.0,), habit=(2.3,)))
    lost = regret(HABIT, BEST, known(best=(2.0,), habit=(math.inf,)))
    found = {a: {"habit": one}, b: {"habit": two}, second: {"habit": lost}}
    row = next(r for r in summary(found) if r["policy"] == "habit")
    assert [*row.values()][1:] == ["+10.0", "+15.0", "2", "diverged", "diverged", "1", "·", "·", "0"]
    assert details(found, ["habit", "defaults"])[0] == {"workload": a, "habit": "+5.0", "defaults": "·"}
    assert details(found, ["defaults"]) == []
    assert sorted(name for group in GROUPS for name in group) == sorted(POLICIES), "each policy is in one table"


def test_the_page_is_what_the_stored_trials_say() -> None:
    assert content() in PAGE.read_text(encoding="utf-8"), "equipoise lab workloads payoff docs/payoff.md"
    assert set(tuned({})) == set()
