"""Facts about optimizers on workloads like a plan's."""

from typing import Any

import pytest

import equipoise as eq
from equipoise.planner import Plan
from equipoise.planner.checks import alike
from equipoise.planner.setting import Tensor

TEXT: dict[str, Any] = {"batch_size": 10, "dataset_size": 10**6, "tokens_per_sample": 32}


@pytest.fixture(autouse=True)
def stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of our own: those of the lab change when more is trained."""
    known = {
        "optimizers": {
            "text seen once": {
                "adamw": {"muon": [-9.0, -5.0, -12.0], "lion": [-3.0, -4.0], "sgdm": [40.0]},
                "muon": {"adamw": [10.0, 5.0, 13.0]},
                "lion": {"adamw": [-2.5, 30.0, -2.5]},
            },
            "fine-tuning": {"adamw": {"muon": [0.5]}},
        },
    }
    monkeypatch.setattr(alike, "choices", lambda: known)


def plan(optimizer: str = "adamw", **given: Any) -> Plan:
    given = {
        "lr": 3e-3,
        "weight_decay": 0.1,
        "tensors": (Tensor("w", (64, 64), init_rms=0.1),),
        "schedule": "cosine",
    } | given
    return eq.plan(optimizer=optimizer, steps=400, **given)


def said(found: Plan, code: str) -> list[Any]:
    return [f for f in found.findings if f.code == code]


def test_the_optimizer_that_won_most_is_named_with_its_numbers() -> None:
    (one,) = said(plan(**TEXT), "optimizer-other")
    assert (one.severity, one.change) == ("info", {})
    assert "Muon ended at a lower test loss than AdamW on 3 of 3 workloads" in one.evidence
    assert "on 3 of 4 of all kinds" in one.evidence
    assert one.paid == "test loss −9.0 % in the median (−12.0 to −5.0 %) on 3 workloads"
    assert "optimizer='muon'" in one.advice


@pytest.mark.parametrize(
    "given",
    [
        {**TEXT, "optimizer": "muon"},
        {**TEXT, "optimizer": "lion"},  # it won on two of three
        {**TEXT, "dataset_size": 100},
        {**TEXT, "dataset_size": None},
        {"finetune": True, **TEXT},
        {**TEXT, "move": "rotate"},
        {},
    ],
)
def test_nothing_is_said_where_nothing_won(given: dict[str, Any]) -> None:
    assert said(plan(**given), "optimizer-other") == []


def test_what_a_plan_is_like() -> None:
    image = (Tensor("a", (8, 3, 3, 3)), Tensor("b", (8, 8, 3, 3), count=2), Tensor("c", (10, 8)))
    assert alike.like(plan(**TEXT)) == "text seen once"
    assert alike.like(plan(**{**TEXT, "dataset_size": 100})) == "text seen many times"
    assert alike.like(plan(finetune=True)) == "fine-tuning"
    assert alike.like(plan(tensors=image)) == "networks with convolutions"
    assert alike.like(plan()) == "other networks"
