"""What a plan says other optimizers would be set to."""

import pytest

import equipoise as eq
from equipoise.planner import Plan, Setting, plan_setting
from equipoise.planner.equivalents import OTHERS, equivalents, usual
from equipoise.planner.setting import Tensor
from equipoise.theory import equivalent


def plan(optimizer: str = "adamw", **given: object) -> Plan:
    tensors = (
        Tensor("wide", (512, 64), count=3), Tensor("square", (64, 64)), Tensor("table", (1000, 64), "embedding"),
        Tensor("zero", (64, 64), init_rms=0.0), Tensor("gain", (64,), "gain"),
    )  # fmt: skip
    return eq.plan(optimizer=optimizer, steps=100, tensors=tensors, **({"lr": 3e-3, "weight_decay": 0.1} | given))  # type: ignore[arg-type]


def test_the_median_matrix_decides() -> None:
    found = {e.optimizer: e for e in plan().equivalents}
    assert found.keys() == {*OTHERS} - {"adamw"}
    p = plan()
    own, muon = p.setting.groups[0].dynamics, usual("muon", p.setting)
    lr, decay = equivalent(own, muon, (512, 64), lr=3e-3, weight_decay=0.1)
    assert (found["muon"].lr, found["muon"].weight_decay) == pytest.approx((lr, decay), rel=0.01)
    lion = found["lion"]
    assert lion.lr is not None
    assert lion.weight_decay is not None
    assert lion.lr * lion.weight_decay == pytest.approx(3e-4, rel=0.01)
    assert found["sgdm"].lr is None
    assert found["sgdm"].product == pytest.approx(3e-5, rel=0.01), "its L2 goes through momentum"
    assert [e.optimizer for e in equivalents(p, ["lion"])] == ["lion"]


def test_planning_what_it_says_gives_the_same_memory_and_norm() -> None:
    first = plan()
    for e in first.equivalents:
        if e.lr is None or e.weight_decay is None:
            continue
        known = usual(e.optimizer, first.setting)
        group = first.setting.groups[0].vary(**known.to_dict(), lr=e.lr, weight_decay=e.weight_decay)
        made = Setting.make(groups=(group,), tensors=first.setting.tensors[:1], steps=100)
        other = plan_setting(made)
        assert other.timescale_steps == pytest.approx(first.timescale_steps, rel=0.01)
        assert other.main.equilibrium is not None
        assert first.tensors[0].equilibrium is not None
        assert other.main.equilibrium.norm == pytest.approx(first.tensors[0].equilibrium.norm, rel=0.01)
        assert e.rotation == pytest.approx(other.main.equilibrium.rotation, rel=0.01)


def test_of_sgd_only_the_product_is_known() -> None:
    for e in plan("sgdm", lr=0.1, weight_decay=5e-4).equivalents:
        assert (e.lr, e.weight_decay) == (None, None)
        assert e.product == pytest.approx(5e-4, rel=0.01)
    assert "by gradients" in str(plan("sgdm", lr=0.1, weight_decay=5e-4))


def test_nothing_is_said_where_memory_or_norms_are_of_another_kind() -> None:
    assert plan(move="rotate").equivalents == ()
    assert plan("adam_l2").equivalents == ()
    assert plan(decay="cautious").equivalents == ()
    assert plan(lr=0.0).equivalents == ()
    assert plan(lr=1.0, weight_decay=2.0).equivalents == ()
    assert all(e.weight_decay in (0.0, None) for e in plan(weight_decay=0.0).equivalents)


def test_it_is_printed_and_in_json() -> None:
    one = plan()
    assert "same memory and norms with" in str(one)
    assert one.to_dict()["equivalents"][0] == one.equivalents[0].to_dict()
