"""The surface between stored trials, and what the planner quotes of the settings that `eq.suggest` gives."""

import dataclasses
import json
import math

import pytest

from equipoise.lab.data import load
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads import WORKLOADS, Workload
from equipoise.lab.workloads.policies import SUGGEST
from equipoise.lab.workloads.regret import Surface
from equipoise.lab.workloads.run import read_all
from equipoise.lab.workloads.store import StoredTrial
from equipoise.lab.workloads.suggested import PILOTS, costs, pilots, replayed, said, setting_of, trained, wanted
from equipoise.planner import Setting, suggest_setting
from equipoise.planner.suggestions.suggestion import SUGGESTED

TEXT = WORKLOADS["text-adamw"]


def test_a_surface_is_exact_at_stored_trials_and_above_a_bowl_between() -> None:
    def loss(lr: float, shrink: float) -> float:
        return math.exp(0.3 * math.log(lr / 3e-3) ** 2 + 0.1 * (math.log1p(shrink / 0.1) - 1.4) ** 2)

    known = {}
    for lr in (1e-3, 3e-3, 1e-2):
        for shrink in (0.0, 0.3, 3.0):
            trial = TEXT.at(lr, TEXT.decay(lr, shrink))
            value = loss(lr, TEXT.shrink(lr, trial.weight_decay))
            known[trial.key] = StoredTrial(trial, "finished", {"validation_loss": value, "test_loss": value})
    surface = Surface(TEXT, known)
    for one in known.values():
        at = one.trial.lr, TEXT.shrink(one.trial.lr, one.trial.weight_decay)
        assert surface.loss(*at) == pytest.approx(one.test)
        assert surface.nearest(*at) == pytest.approx(surface.regret(*at))
    for lr in (1.5e-3, 2e-3, 5e-3):
        for shrink in (0.1, 0.3, 1.0):
            assert surface.loss(lr, shrink) >= loss(lr, shrink)
    assert surface.nearest(2.8e-3, 0.28) == pytest.approx(0, abs=1e-9)
    with pytest.raises(ValueError, match="two lrs"):
        Surface(TEXT, {k: v for k, v in known.items() if v.trial.lr == 1e-3})
    with pytest.raises(ValueError, match="that finished"):
        Surface(TEXT, {})


def test_other_seeds_and_schedules_are_not_of_the_surface() -> None:
    known = read_all()["text-adamw"]
    base = Surface(TEXT, known)
    top = next(iter(known.values()))
    changed = {"seed": 1}, {"schedule": "constant", "warmup": 0, "lr": 0.5}
    others = [dataclasses.replace(top, trial=top.trial.vary(c), metrics={"test_loss": 0.1}) for c in changed]
    assert Surface(TEXT, known | {o.trial.key: o for o in others}).rows == base.rows


def test_what_the_planner_quotes_is_what_stored_trials_say() -> None:
    """Run `equipoise lab workloads payoff docs/payoff.md` after trials were added, or the rule was changed."""
    assert json.loads(SUGGESTED.read_text(encoding="utf-8")) == said(costs(read_all()))


@pytest.mark.parametrize("how", PILOTS)
def test_what_is_wanted_follows_from_stored_pilots_by_the_planners_rule(how: str) -> None:
    share = PILOTS[how][1]
    for name, shorts in pilots(how).items():
        workload, found = WORKLOADS[name], wanted(WORKLOADS[name])
        assert len(shorts) * max(4, int(share * workload.trial.steps / 5)) <= share * workload.trial.steps
        told = suggest_setting(setting_of(workload), pilot=replayed(shorts), pilot_share=share).pilot
        assert told is not None
        assert found[how].lr == pytest.approx(told.suggested * told.factor, rel=0.05)
        assert (found[how].schedule == "cosine") == (workload.kind == "fine-tuning")
        if workload.trial.optimizer == "sgdm":
            assert "no pilot" not in found
        else:
            plain = {"lr": 1.0, "weight_decay": 0.0}
            assert found[how].vary(plain) == found["no pilot"].vary(plain)


def test_a_pilot_that_is_not_stored_is_asked_for() -> None:
    with pytest.raises(ValueError, match="train it anew"):
        replayed([(1.0, 2.0)])(setting_of(TEXT), 8)


def test_short_runs_of_a_workload_train_and_what_diverges_ends_early() -> None:
    workload = Workload(
        "digits",
        "choosing",
        "vision, layer norm",
        "",
        Trial(steps=400, warmup=20, schedule="cosine"),
        (1e-3,),
        1000,
        10,
    )
    setting = Setting.make(lr=1e-2, weight_decay=0.1, steps=20, schedule="linear", final=0.0)
    data = load("digits")
    losses = trained(workload, data)(setting, 20)
    assert len(losses) == 20
    assert losses[-1] < 0.9 * losses[0]
    assert trained(workload, data)(setting, 20) == losses  # the same weights and batches each time


def test_the_policy_speaks_to_all_but_sgd() -> None:
    spoken = {name for name, w in WORKLOADS.items() if SUGGEST.choose(w, {}) is not None}
    assert set(WORKLOADS) - spoken == {name for name in WORKLOADS if name.endswith("-sgdm")}
