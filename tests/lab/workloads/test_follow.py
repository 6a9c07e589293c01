"""Following findings on the workloads: what was stored, computed again."""

import json
import math

import pytest

import equipoise as eq
from equipoise.lab.train import optimizers
from equipoise.lab.train.schedules import shapes
from equipoise.lab.workloads import WORKLOADS, follow, plans
from equipoise.lab.workloads.policies import FIRST, FOLLOWED
from equipoise.lab.workloads.run import read_all
from equipoise.lab.workloads.store import StoredTrial
from equipoise.lab.workloads.sweep import best
from equipoise.planner.checks.paying import PAID


def test_a_stored_plan_is_the_plan_of_the_model() -> None:
    """Of the one workload whose data every machine has."""
    from equipoise.lab.data import load
    from equipoise.lab.train.training import make_model

    workload = WORKLOADS["pairs-adamw"]
    trial = workload.at(1e-3, 0.375)
    model = make_model(trial, load(trial.data, **trial.data_options))
    whole = eq.plan(
        model, optimizers.of_groups(trial, eq.param_groups(model)), steps=trial.steps, schedule=shapes(trial)[0],
        batch_size=trial.batch_size, dataset_size=workload.samples,
    )  # fmt: skip
    stored = plans.plan_of(workload, trial)
    assert [f.code for f in stored.findings if f.change] == [f.code for f in whole.findings if f.change] == ["lr-low"]
    assert stored.main.forecast is not None
    assert whole.main.forecast is not None
    assert stored.main.forecast.rotation == pytest.approx(whole.main.forecast.rotation, rel=0.01)


def test_every_workload_is_described_and_counts_its_parameters() -> None:
    described = plans.read()
    assert described.keys() == WORKLOADS.keys()
    for name, groups in described.items():
        count = sum(math.prod(shape) for group in groups for shape, _ in group["params"])
        assert count == WORKLOADS[name].parameters, name


def test_a_workload_that_is_not_described_says_what_to_do() -> None:
    import dataclasses

    other = dataclasses.replace(WORKLOADS["pairs-adamw"], name="other")
    with pytest.raises(ValueError, match="lab workloads describe"):
        plans.plan_of(other, other.trial)
    assert all(policy.choose(other, {}) is None for policy in FOLLOWED)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_best_known_setting_raises_no_warning(name: str) -> None:
    top = best(WORKLOADS[name], read_all()[name])
    assert top is not None
    assert [f.code for f in follow.findings(WORKLOADS[name], top) if f.severity != "info"] == []


@pytest.mark.parametrize("name", WORKLOADS)
def test_following_ends(name: str) -> None:
    workload = WORKLOADS[name]
    for policy in FIRST:
        first = policy.choose(workload, {})
        assert first is not None
        after = follow.followed(workload, first)
        assert not any(f.change for f in follow.findings(workload, after)), policy.name
        assert after.schedule in (first.schedule, "cosine")
        back = {"lr": first.lr, "weight_decay": first.weight_decay, "schedule": first.schedule}
        assert after.vary(back) == first, "nothing else is changed"


def test_following_a_finding_never_costs_more_than_a_percent() -> None:
    found = follow.pairs(read_all())
    for code in {"lr-low", "decay-high", "decay-low"}:
        values = [p.percent for p in found if p.code == code]
        assert values, code
        assert max(values) <= 1.0, code
        assert min(values) < -1.0, f"{code} pays nowhere"


def test_what_findings_say_that_they_paid_is_what_is_stored() -> None:
    assert json.loads(PAID.read_text(encoding="utf-8")) == follow.said(follow.pairs(read_all()))


def test_pairs_are_counted_by_hand() -> None:
    workload = WORKLOADS["text-adamw"]
    low, high = workload.at(1e-3, 0.375), workload.at(3e-3, 0.125)
    strong = workload.at(3e-3, 1.25)
    losses = [(low, 2.5), (high, 2.0), (strong, 2.1), (high.vary({"seed": 1}), 9.0)]
    known = {t.key: StoredTrial(t, "finished", {"validation_loss": x, "test_loss": x}) for t, x in losses}
    found = {(p.code, round(p.percent, 3)) for p in follow.pairs({"text-adamw": known})}
    assert found == {("lr-low", -20.0), ("decay-high", round(100 * (2.0 / 2.1 - 1), 3))}
    known[high.key] = StoredTrial(high, "diverged", {})
    assert {p.percent for p in follow.pairs({"text-adamw": known})} == {math.inf}
    assert "diverged" in follow.said(follow.pairs({"text-adamw": known}))["lr-low"]
