"""Optimizers and schedules side by side: arithmetic on synthetic trials, and that plans quote what is stored."""

import math

import pytest

from equipoise.lab.workloads import TWINS, WORKLOADS, Workload, duels, planned
from equipoise.lab.workloads.run import queue, read_all
from equipoise.lab.workloads.store import Outcomes, StoredTrial
from equipoise.lab.workloads.sweep import SHRINKS, grid
from equipoise.lab.workloads.twins import find, shrink_of
from equipoise.planner.checks.alike import CHOICES, KINDS

TASK, TWIN = WORKLOADS["text-adamw"], TWINS["text-adamw/muon"]


def line(workload: Workload, losses: dict[float, float]) -> Outcomes:
    found: Outcomes = {}
    for lr, loss in losses.items():
        trial = workload.at(lr, workload.decay(lr, shrink_of(workload)))
        metrics = {"validation_loss": loss, "test_loss": loss + 0.5}
        found[trial.key] = StoredTrial(trial, "finished", metrics, seconds=1.0)
    return found


def test_a_twin_is_the_same_task_by_another_optimizer() -> None:
    for name, twin in TWINS.items():
        task = WORKLOADS[twin.twin_of]
        assert name == f"{task.name}/{twin.trial.optimizer}"
        assert twin.trial.optimizer != task.trial.optimizer
        same = {"optimizer": task.trial.optimizer, "optimizer_options": dict(task.trial.optimizer_options)}
        assert twin.trial.vary(same) == task.trial
        assert shrink_of(twin) == shrink_of(task)
        assert shrink_of(task) in SHRINKS, "so that the task's own grid has it"
        assert find(name) is twin


def test_both_sides_are_compared_by_the_best_of_their_lrs() -> None:
    every = {
        TASK.name: line(TASK, {1e-3: 2.5, 3e-3: 1.5, 1e-2: 2.0}),
        TWIN.name: line(TWIN, {1e-2: 1.4, 3e-2: 1.0, 1e-1: 3.0}),
    }
    (duel,) = duels.duels(every)
    assert (duel.first.trial.lr, duel.second.trial.lr) == (3e-3, 3e-2)
    assert duel.percent == pytest.approx(-25)
    assert duel.guess is not None
    assert 3e-3 < duel.guess < 1e-2
    assert duel.factor == pytest.approx(duel.guess / 3e-2)
    assert duel.lost == pytest.approx(100 * (1.9 / 1.5 - 1)), "the nearest lr of the grid is 0.01"
    found = duels.for_planner(every)
    assert found["optimizers"] == {"text seen once": {"adamw": {"muon": [-25.0]}, "muon": {"adamw": [33.3]}}}
    assert found["equivalents"] == {"pairs": 1, "within": 0, "median": 26.7, "worst": 26.7}
    (row,) = duels.duel_rows([duel])
    assert row["percent"] == "−25.0"


def test_fewer_lrs_are_to_the_other_sides_disadvantage() -> None:
    ours = line(TASK, {1e-3: 2.5, 3e-3: 1.5, 1e-2: 2.0})
    for edge, lrs in (({1e-2: 1.0, 3e-2: 1.5, 1e-1: 3.0}, 2), ({1e-2: 1.0}, 1)):
        every = {TASK.name: ours, TWIN.name: line(TWIN, edge)}
        (duel,) = duels.duels(every)
        assert (duel.lrs, duel.percent) == (lrs, pytest.approx(-25))
        assert math.isnan(duel.lost), "what the best lr is, is not known yet"
        found = duels.for_planner(every)
        assert found["optimizers"] == {"text seen once": {"adamw": {"muon": [-25.0]}}}, "nothing against Muon"
        assert found["equivalents"]["pairs"] == 0
    assert duels.duels({TASK.name: ours, TWIN.name: {}}) == []
    whole = line(TWIN, {1e-2: 1.4, 3e-2: 1.0, 1e-1: 3.0})
    assert duels.duels({TASK.name: {}, TWIN.name: whole}) == []
    assert duels.duels({TASK.name: line(TASK, {1e-3: 1.5, 3e-3: 2.5}), TWIN.name: whole}) == []


def test_a_twin_goes_on_until_its_best_lr_is_inside() -> None:
    known: Outcomes = {}
    for _ in range(20):
        ahead = [t for stage in planned(TWIN, known, {}).values() for t in stage if t.key not in known]
        if not ahead:
            break
        loss = (math.log10(ahead[0].lr) + 3) ** 2
        known[ahead[0].key] = StoredTrial(ahead[0], "finished", {"validation_loss": loss, "test_loss": loss})
    assert sorted(one.trial.lr for one in known.values()) == [3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
    assert [n.workload.name for n in queue([TWIN.name], {TWIN.name: known})] == []
    assert [n.trial.lr for n in queue([TWIN.name], {TWIN.name: {}})] == list(TWIN.lrs)


def test_schedules_are_compared_with_nothing_else_changed() -> None:
    known: Outcomes = {}
    for trial in grid(TASK, TASK.lrs, SHRINKS):
        loss = 2 + abs(math.log10(trial.lr / 3e-3)) + abs(TASK.shrink(trial.lr, trial.weight_decay) - 0.3)
        known[trial.key] = StoredTrial(trial, "finished", {"validation_loss": loss, "test_loss": 2.0})
    top = TASK.at(3e-3, TASK.decay(3e-3, 0.3))
    for other, loss in ((top.vary({"schedule": "linear"}), 1.9), (top.vary({"schedule": "wsd", "lr": 1e-3}), 9.0)):
        known[other.key] = StoredTrial(other, "finished", {"validation_loss": loss, "test_loss": loss})
    (one,) = duels.schedules({TASK.name: known})
    assert (one.schedule, one.percent) == ("linear", pytest.approx(-5))
    assert duels.schedule_rows([one])[0]["median"] == "−5.0"


def test_plans_quote_what_is_stored() -> None:
    assert CHOICES.read_text(encoding="utf-8") == duels.text(read_all()), "equipoise lab workloads payoff"
    assert {duels.kind_of(w) for w in WORKLOADS.values()} == set(KINDS)
