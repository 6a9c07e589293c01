"""Findings that prescribe: where they are raised, what they ask for, and what they leave alone."""

import dataclasses
import json
from typing import Any

import numpy as np
import pytest

import equipoise as eq
from equipoise.finding import Finding
from equipoise.planner import Plan
from equipoise.planner.checks import paying
from equipoise.planner.setting import Tensor
from equipoise.theory import DECAYS

ONCE: dict[str, Any] = {"batch_size": 10, "dataset_size": 10**6}
"""400 steps are a small part of an epoch."""

REPEATED: dict[str, Any] = {"batch_size": 10, "dataset_size": 200, "tokens_per_sample": 32}
"""400 steps are 20 epochs of a text."""


def plan(optimizer: str = "adamw", rms: float = 0.1, **given: Any) -> Plan:
    given = {"tensors": (Tensor("w", (64, 64), init_rms=rms),), "finetune": False, "schedule": "cosine"} | given
    return eq.plan(optimizer=optimizer, steps=400, warmup=20, **given)


def changes(found: Plan) -> dict[str, dict[str, Any]]:
    return {f.code: dict(f.change) for f in found.findings if f.change}


def test_what_a_random_walk_learns_is_what_a_simulated_one_does() -> None:
    """AdamW on noise in float64: ‖w_T − P·w_0‖ over ‖w_0‖."""
    lr, decay, steps, b1, b2 = 1e-3, 0.5, 300, 0.9, 0.95
    rng = np.random.default_rng(0)
    w = start = rng.normal(size=20_000) * 0.1
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t in range(1, steps + 1):
        g = rng.normal(size=w.size)
        m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
        w = (1 - lr * decay) * w - lr * (m / (1 - b1**t)) / np.sqrt(v / (1 - b2**t))
    simulated = np.linalg.norm(w - (1 - lr * decay) ** steps * start) / np.linalg.norm(start)
    planned = eq.plan(
        optimizer="adamw", lr=lr, weight_decay=decay, betas=(b1, b2), steps=steps,
        tensors=(Tensor("w", (100, 200), init_rms=0.1),),
    )  # fmt: skip
    assert paying.learnt_by_most(planned) == pytest.approx(simulated, rel=0.03)


def test_a_low_lr_is_raised_and_the_memory_kept() -> None:
    found = plan(lr=3e-4, weight_decay=0.1, **ONCE)
    (asked,) = [f for f in found.findings if f.code == "lr-low"]
    assert asked.severity == "warning"
    assert dict(asked.change) == {"lr": 3e-3, "weight_decay": 0.01}
    assert "3e-03" not in asked.advice
    assert "0.003" in asked.advice
    assert changes(plan(lr=3e-3, weight_decay=0.01, **ONCE)) == {}


@pytest.mark.parametrize("optimizer", ["adamw", "lion", "signsgdm", "rmsprop", "muon"])
def test_what_is_asked_for_ends_the_finding(optimizer: str) -> None:
    low = plan(optimizer, lr=1e-6, weight_decay=0.0)
    assert set(changes(low)["lr-low"]) == {"lr"}, "there is no decay to keep"
    raised = plan(optimizer, lr=changes(low)["lr-low"]["lr"], weight_decay=0.0)
    assert "lr-low" not in changes(raised)
    learnt = paying.learnt_by_most(raised)
    assert learnt is not None
    assert paying.LEARNT < learnt < 2 * paying.LEARNT_GOAL


def test_where_nothing_is_known_nothing_is_asked_for() -> None:
    assert "lr-low" not in changes(plan("adam_l2", lr=1e-6, weight_decay=0.1)), "steps follow the gradient's size"
    assert "lr-low" not in changes(plan(lr=1e-6, weight_decay=0.0, finetune=True))
    assert "lr-low" not in changes(plan(lr=1e-6, weight_decay=0.0, finetune=None)), "it may be fine-tuning"
    assert "lr-low" not in changes(plan(lr=1e-6, weight_decay=0.1, move="rotate"))
    assert "lr-low" not in changes(plan(lr=0.0, weight_decay=0.0))
    assert "lr-low" not in changes(plan(lr=1e-6, weight_decay=0.0, rms=0.0)), "it begins at 0"


def test_a_constant_lr_is_raised_together_with_a_schedule_that_falls() -> None:
    low = plan(lr=3e-4, weight_decay=0.0, schedule="constant")
    assert changes(low) == {"lr-low": {"lr": 3e-3, "schedule": "cosine"}}
    (asked,) = [f for f in low.findings if f.code == "lr-low"]
    assert asked.severity == "warning"
    assert "let it fall to 0" in asked.advice
    after = plan(lr=3e-3, weight_decay=0.0, schedule="cosine", final=0.0)
    assert "lr-low" not in changes(after)
    falling, constant = (
        paying.learnt_by_most(after),
        paying.learnt_by_most(plan(lr=3e-3, weight_decay=0.0, schedule="constant")),
    )
    assert falling is not None
    assert constant is not None
    assert falling / constant == pytest.approx(paying.FALLING, rel=0.1)


def test_a_schedule_that_stays_high_is_told_and_not_raised() -> None:
    (lion,) = [f for f in plan("lion", lr=3e-5, weight_decay=0.0, schedule="constant").findings if f.code == "lr-low"]
    assert (lion.severity, lion.change, lion.paid) == ("info", {}, "")
    (one,) = [f for f in plan(lr=3e-4, weight_decay=0.0, final=0.5).findings if f.code == "lr-low"]
    assert (one.severity, one.change, one.paid) == ("info", {}, "")
    assert "lr-low" in changes(plan(lr=3e-4, weight_decay=0.0, schedule="linear", final=0.2))


def test_fine_tuning_is_raised_where_the_data_can_tell_all_weights() -> None:
    def tuned(lr: float, **given: Any) -> Plan:  # 8,000 tokens of 4,096 weights, 0.8 epochs
        much = {"finetune": True, "batch_size": 20, "dataset_size": 10_000, "tokens_per_sample": 1} | given
        return plan(lr=lr, weight_decay=0.0, **much)

    assert changes(tuned(3e-4)) == {"lr-low": {"lr": 3e-3}}
    (one,) = [f for f in tuned(3e-4).findings if f.code == "lr-low"]
    assert "forgotten" in one.advice
    assert changes(tuned(3e-3)) == {}
    assert changes(tuned(3e-4, batch_size=10)) == {}, "fewer tokens than weights"
    assert changes(tuned(3e-4, dataset_size=3000)) == {}, "seen more than twice"
    assert changes(tuned(3e-4, dataset_size=None)) == {}, "epochs are not known"
    assert changes(tuned(3e-4, frozen=5000)) == {}, "adapters"


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_raised_only_from_far_below(momentum: float) -> None:
    low = plan("sgdm", lr=1e-3 * (1 - momentum), weight_decay=0.0, betas=(momentum, 0.0))
    (lr,) = changes(low)["lr-low"].values()
    learnt = paying.learnt_by_most(plan("sgdm", lr=lr, weight_decay=0.0, betas=(momentum, 0.0)), guess=True)
    assert learnt is not None
    wanted = paying.LEARNT_GOAL / paying.MARGIN**0.5
    assert wanted / 2 < learnt < wanted * 2
    (one,) = [f for f in low.findings if f.code == "lr-low"]
    assert "10 times as large" in one.expected
    near = plan("sgdm", lr=lr / 3, weight_decay=0.0, betas=(momentum, 0.0))
    assert changes(near) == {}, "gradients may be ten times as large"


def test_decay_that_shrinks_weights_on_new_data_is_lowered() -> None:
    found = plan(lr=3e-3, weight_decay=2.5, **ONCE)
    assert changes(found) == {"decay-high": {"weight_decay": 0.25}}
    assert changes(plan(lr=3e-3, weight_decay=0.25, **ONCE)) == {}
    assert "decay-high" in changes(plan(lr=3e-3, weight_decay=2.5, finetune=True, **ONCE))
    assert "decay-high" not in changes(plan(lr=3e-3, weight_decay=10.0, **ONCE)), "12 is beyond what was tried"


def test_where_the_epochs_are_unknown_both_cases_are_said() -> None:
    (one,) = [f for f in plan(lr=3e-3, weight_decay=2.5).findings if f.code == "decay-high"]
    assert (one.severity, one.change, one.paid) == ("info", {}, "")
    assert "once or twice" in one.advice
    assert "10 times or more" in one.advice


def test_repeated_text_gets_decay() -> None:
    assert changes(plan(lr=1e-2, weight_decay=0.01, **REPEATED)) == {"decay-low": {"weight_decay": 0.75}}
    assert set(changes(plan(lr=3e-4, weight_decay=0.01, **REPEATED))) == {"lr-low"}, "one after the other"
    assert changes(plan(lr=1e-2, weight_decay=0.75, **REPEATED)) == {}, "and is left alone when it has it"
    assert "decay-low" not in changes(plan(lr=1e-2, weight_decay=0.01, finetune=True, **REPEATED))
    few = plan(lr=1e-2, weight_decay=0.01, **{**REPEATED, "dataset_size": 1000})
    assert changes(few) == {}, "four epochs are neither"


def test_a_run_that_does_not_go_far_gets_no_decay() -> None:
    found = plan(lr=3e-3, weight_decay=0.01, **REPEATED)
    assert paying.LEARNT < (paying.learnt_by_most(found) or 0) < paying.LEARNT_BY_HEART
    (one,) = [f for f in found.findings if f.code == "decay-low"]
    assert (one.severity, one.change, one.paid) == ("info", {}, "")
    assert "cost 12 % on another" in one.advice


def test_of_repeated_images_only_facts_are_said() -> None:
    (one,) = [
        f for f in plan(lr=3e-3, weight_decay=0.01, **{**REPEATED, "tokens_per_sample": None}).findings
        if f.code == "decay-low"
    ]  # fmt: skip
    assert (one.severity, one.change, one.paid) == ("info", {}, "")


@pytest.mark.parametrize("kind", [d for d in DECAYS if d != "schedule"])
def test_the_decay_asked_for_has_the_shrink_that_it_names(kind: str) -> None:
    found = plan(lr=1e-2, weight_decay=1e-6, decay=kind, **REPEATED)
    asked = changes(found)["decay-low"]["weight_decay"]
    after = plan(lr=1e-2, weight_decay=asked, decay=kind, **REPEATED)
    taken = after.setting.decay_per_step(0).max() * after.setting.steps
    assert taken == pytest.approx(paying.SHRINK_REPEATED, rel=0.01)


def test_sgd_counts_what_momentum_makes_of_decay() -> None:
    asked = plan("sgdm", lr=0.1, weight_decay=1e-5, **REPEATED).setting.weight_decay_for(0, paying.SHRINK_REPEATED)
    assert asked == pytest.approx(3 / (0.1 / (1 - 0.9) * 400), rel=0.01)


def test_findings_carry_their_change_as_data() -> None:
    found = plan(lr=3e-4, weight_decay=0.1, **ONCE)
    (one,) = [f for f in json.loads(json.dumps(found.to_dict()))["findings"] if f["code"] == "lr-low"]
    assert one["change"] == {"lr": 3e-3, "weight_decay": 0.01}
    assert Finding(**one) == next(f for f in found.findings if f.code == "lr-low")
    assert one["paid"]
    assert one["paid"] in " ".join(str(found).split())
    assert len({*found.findings}) == len(found.findings), "findings can be hashed"
    assert dataclasses.asdict(found.findings[0])["change"] is not None
