"""Transfer: what each rule keeps is kept, by recomputing it from the moved hyperparameters."""

import math

import pytest

from equipoise.planner import Setting, transfer
from equipoise.theory import advice


def base(**more: object) -> Setting:
    fields = {"lr": 1e-3, "weight_decay": 0.1, "steps": 10_000, "batch_size": 64, "dataset_size": 64_000} | more
    return Setting.make(**fields)  # type: ignore[arg-type]


def moved(setting: Setting, **change: object) -> dict[str, advice.Hyperparameters]:
    return {m.rule.code: m.to for m in transfer(setting, **change).moved}  # type: ignore[arg-type]


def test_memory_stays_a_share_of_the_run() -> None:
    to = moved(base(), steps=40_000)["memory-steps"]
    assert 1 / (to.lr * to.weight_decay) / 40_000 == pytest.approx(1 / (1e-3 * 0.1) / 10_000)


def test_timescale_in_epochs_stays() -> None:
    to = moved(base(), batch_size=256, dataset_size=128_000)["epoch-timescale"]
    assert 256 / (to.lr * to.weight_decay * 128_000) == pytest.approx(64 / (1e-3 * 0.1 * 64_000))


def test_power_lines_keep_the_distance_from_the_law() -> None:
    tokens, parameters = 1e9, 1e8

    def distance(lr: float, wd: float, batch: float, tokens: float) -> float:
        return batch / (lr * wd * tokens) / advice.power_lines_timescale(tokens, parameters)

    to = moved(base(), steps=15_000, batch_size=128)["power-lines"]
    assert distance(to.lr, to.weight_decay, 128, 3 * tokens) == pytest.approx(distance(1e-3, 0.1, 64, tokens))


def test_width_rules_conflict_and_both_are_shown() -> None:
    to = moved(base(), width_factor=4.0)
    assert set(to) == {"width-product", "width-root"}
    assert to["width-product"].lr * to["width-product"].weight_decay == pytest.approx(1e-4)
    assert (to["width-root"].lr, to["width-root"].weight_decay) == pytest.approx((2.5e-4, 0.2))


def test_complete_p() -> None:
    to = moved(base(), batch_size=256)["complete-p"]
    kappa = 4.0
    assert to.lr == pytest.approx(1e-3 * math.sqrt(kappa))
    assert to.weight_decay == pytest.approx(0.1 * math.sqrt(kappa))
    assert 1 - to.betas[0] == pytest.approx(0.1 * kappa)
    assert to.eps == pytest.approx(1e-8 / 2)


def test_every_answer_names_rule_source_and_range() -> None:
    for m in transfer(base(), steps=20_000, batch_size=32, width_factor=2.0).to_dict()["rules"]:
        assert m["code"]
        assert m["source"]
        assert m["fitted"]
        assert m["keeps"]


def test_a_chosen_rule_gives_a_setting() -> None:
    t = transfer(base(), steps=40_000)
    new = t.setting(base(), "memory-steps")
    assert new.groups[0].weight_decay == pytest.approx(0.025)
    with pytest.raises(ValueError, match="rule = 'width-root': must be one of complete-p"):
        t.setting(base(), "width-root")


def test_no_change_moves_nothing() -> None:
    assert transfer(base()).moved == ()


def test_bad_input_is_named() -> None:
    with pytest.raises(ValueError, match="batch_size = 32: must be left out, or given in the old setting too"):
        transfer(base(batch_size=None, dataset_size=None), batch_size=32)
    with pytest.raises(ValueError, match="width_factor = 0: must be a finite number > 0"):
        transfer(base(), width_factor=0)


def test_timescale_advice_inverts() -> None:
    wd = advice.weight_decay_for(5000, lr=2e-3)
    assert advice.timescale(2e-3, wd) == pytest.approx(5000)
    assert advice.timescale(advice.lr_for(5000, weight_decay=wd), wd) == pytest.approx(5000)
    assert advice.timescale(1e-3, 0.0) == math.inf
