"""Pilots: what they cost, which lrs they try, what they move, and real short runs of a small network."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from equipoise.planner import Setting, Tensor, make_optimizer, suggest, suggest_setting
from equipoise.planner.suggestions.pilot import LONG, SGD_LONG, SHARE, TRUST, fly, scaled, shortened
from equipoise.planner.suggestions.suggestion import OPTIMIZERS


def run(steps: int = 1000, **more: object) -> Setting:
    fields = {"steps": steps, "schedule": "wsd", "tensors": (Tensor(shape=(64, 64), init_rms=0.1),)}
    return suggest_setting(Setting.make(**(fields | more))).setting  # type: ignore[arg-type]


class Bowl:
    """Short runs whose loss is a parabola in ln(lr) around a known lr; it counts what it is asked for."""

    def __init__(self, best: float, stable: float = math.inf) -> None:
        self.best, self.stable, self.asked = best, stable, list[Setting]()

    def __call__(self, setting: Setting, steps: int) -> list[float]:
        assert steps == setting.steps
        self.asked.append(setting)
        lr = setting.groups[setting.main_group].lr
        if lr > self.stable:
            return [3.0, math.nan]
        return [3.0] * (steps // 2) + [1 + math.log(lr / self.best) ** 2 / 50] * (steps - steps // 2)


@pytest.mark.parametrize("times", [1 / 12, 1 / 3, 3.0, 20.0])
def test_the_best_lr_of_a_bowl_is_found_within_a_twentieth_of_the_run(times: float) -> None:
    setting = run()
    train = Bowl(best=times * setting.groups[0].lr)
    found = fly(train, setting)
    assert found.edge
    assert found.best == pytest.approx(train.best, rel=1e-6)
    assert found.cost == sum(s.steps for s in train.asked) <= SHARE * setting.steps


def test_longer_short_runs_cost_more_and_are_nearer_to_the_whole() -> None:
    setting = run()
    train = Bowl(best=3 * setting.groups[0].lr)
    found = fly(train, setting, 5 / 8)
    assert {s.steps for s in train.asked} == {125}
    assert found.cost <= 5 / 8 * setting.steps
    assert found.long == pytest.approx(LONG ** (math.log(8) / math.log(100)))
    assert fly(Bowl(best=1.0), setting, 1.0).long < found.long < fly(Bowl(best=1.0), setting).long
    assert fly(Bowl(best=1.0), setting).long == pytest.approx(LONG)
    for wrong in (0.0, 1.5, math.nan, "half"):
        with pytest.raises(ValueError, match="pilot_share"):
            fly(train, setting, wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"at least 80 for a pilot of 0\.1 of the run"):
        fly(train, replace(setting, steps=79), 0.1)


def test_short_runs_fall_to_zero_at_the_same_memory() -> None:
    setting = run()
    short = shortened(setting, 10, 4.0)
    assert short.groups[0].lr == 4 * setting.groups[0].lr
    assert short.groups[0].lr * short.groups[0].weight_decay == pytest.approx(
        setting.groups[0].lr * setting.groups[0].weight_decay
    )
    curve = short.lr() / short.groups[0].lr
    assert curve[-1] < 0.11
    assert (curve[:-1] > curve[1:]).all()


def test_what_diverges_is_an_edge_and_no_setting_goes_beyond_it() -> None:
    setting = run()
    lr = setting.groups[0].lr
    found = fly(Bowl(best=1.0, stable=5 * lr), setting)
    assert found.edge
    assert found.best == pytest.approx(4 * lr)
    low = fly(Bowl(best=1.0, stable=lr / 10), setting)  # the suggestion itself diverges
    assert lr * low.factor <= max(r.lr for r in low.runs if math.isfinite(r.loss)) * 1.0001 < lr / 10


def test_a_loss_that_did_not_turn_is_no_reason_to_go_down() -> None:
    found = fly(Bowl(best=1e9), run(steps=200))
    assert len(found.runs) == 2
    assert not found.edge
    assert found.factor == 1.0


@pytest.mark.parametrize("times", [8.0, 64.0])
def test_a_suggestion_moves_by_a_share_of_what_the_pilot_says(times: float) -> None:
    base = Setting.make(steps=1000, schedule="wsd", tensors=(Tensor(shape=(64, 64), init_rms=0.1),))
    plain = suggest_setting(base)
    found = suggest_setting(base, pilot=Bowl(best=times * plain.lr))
    assert found.lr == pytest.approx(plain.lr * (times / LONG) ** TRUST, rel=0.02)
    assert found.lr * found.weight_decay == pytest.approx(plain.lr * plain.weight_decay, rel=0.02)
    assert found.pilot is not None
    assert found.to_dict()["pilot"]["best"] == pytest.approx(times * plain.lr)
    assert "short runs tell little" in next(r.why for r in found.reasons if r.name == "lr")
    tuned = suggest_setting(replace(base, finetune=True), pilot=Bowl(best=times * plain.lr))
    assert tuned.lr == suggest_setting(replace(base, finetune=True)).lr


@pytest.mark.parametrize("best", [0.5, 7.0])
def test_sgd_needs_a_pilot_and_takes_its_word(best: float) -> None:
    base = Setting.make(
        optimizer="sgdm", steps=1000, schedule="wsd", tensors=(Tensor(shape=(64, 64), init_rms=0.1),), weight_decay=1.0
    )
    with pytest.raises(ValueError, match="pass a pilot"):
        suggest_setting(base)
    found = suggest_setting(base, pilot=Bowl(best=best))
    assert found.optimizer == "sgdm"
    assert found.lr == pytest.approx(best / SGD_LONG, rel=0.02)
    # lr·wd·T/(1 − momentum) is what it is for others.
    assert found.lr * found.weight_decay * 1000 / 0.1 == pytest.approx(0.3, rel=0.05)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 4))


def trained(setting: Setting, steps: int) -> list[float]:
    model = network()
    optimizer, scheduler = make_optimizer(model, setting)
    generator, losses = torch.Generator().manual_seed(1), list[float]()
    for _ in range(steps):
        x = torch.randn(32, 16, generator=generator)
        loss = nn.functional.cross_entropy(model(x), x[:, :4].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS, "sgd"])
def test_a_real_network_is_trained_by_each_optimizer(optimizer: str) -> None:
    found = suggest(network(), steps=1000, batch_size=32, dataset_size=32_000, optimizer=optimizer, pilot=trained)
    assert found.pilot is not None
    assert 2 <= len(found.pilot.runs) <= 5
    assert all(math.isfinite(r.loss) for r in found.pilot.runs[:2])
    losses = trained(replace(found.setting, steps=200), 200)
    assert sum(losses[-20:]) / 20 < 0.6 * losses[0]
    scope: dict[str, object] = {"model": network()}
    exec(found.code, scope)
    ours, _ = make_optimizer(network(), found.setting)
    for made, own in zip(scope["optimizer"].param_groups, ours.param_groups, strict=True):  # type: ignore[attr-defined]
        assert made["lr"] == pytest.approx(own["lr"])
        assert made["weight_decay"] == pytest.approx(own["weight_decay"])


def test_scaling_keeps_the_memory_of_every_group() -> None:
    setting = run(groups=())
    other = scaled(setting, 3.0)
    for a, b in zip(setting.groups, other.groups, strict=True):
        assert b.lr == pytest.approx(3 * a.lr, rel=0.05)
        assert b.lr * b.weight_decay == pytest.approx(a.lr * a.weight_decay, rel=0.02)


@pytest.mark.parametrize(
    ("pilot", "steps", "said"),
    [
        ("train", 1000, "must be a function train"),
        (lambda s, n: [1.0] * 3, 1000, "returned 3 losses: must be 10"),
        (lambda s, n: 1.0, 1000, "must return the loss of each step"),
        (lambda s, n: [1.0] * n, 100, "steps = 100: must be at least 160"),
        (lambda s, n: [math.nan], 1000, "all diverged, down to lr"),
    ],
)
def test_wrong_pilots_are_told(pilot: object, steps: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        suggest(network(), steps=steps, pilot=pilot)  # type: ignore[arg-type]


def test_another_model_is_refused() -> None:
    found = suggest(network(), steps=1000)
    with pytest.raises(ValueError, match="parameter groups of the setting"):
        make_optimizer(nn.Sequential(nn.Linear(4, 4, bias=False)), found.setting)
