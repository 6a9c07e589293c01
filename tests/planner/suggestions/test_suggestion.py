"""Suggestions: lr does what the rule says, decay follows the epochs, the code and the TOML give the same setting."""

import math
import re
from typing import Any

import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.planner import Setting, Suggestion, Tensor, plan_setting, read_setting, suggest, suggest_setting
from equipoise.planner.checks.paying import learnt_by_most
from equipoise.planner.suggestions.rules import FINETUNED, STEPS
from equipoise.planner.suggestions.suggestion import OPTIMIZERS
from equipoise.theory import advice


def network(width: int = 64) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, width), nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, 10))


def one(**more: object) -> Suggestion:
    fields = {
        "steps": 1000, "schedule": "cosine", "final": 0.0, "tensors": (Tensor(shape=(64, 64), init_rms=0.1),),
        "batch_size": 64, "dataset_size": 64_000,
    }  # fmt: skip
    return suggest_setting(Setting.make(**(fields | more)))  # type: ignore[arg-type]


def shrink(found: Suggestion) -> float:
    return found.lr * found.weight_decay * found.setting.steps


def test_the_lr_of_adamw_is_a_share_of_the_weights() -> None:
    assert one().lr == pytest.approx(STEPS["adamw"] * 0.1, rel=0.03)
    assert one(steps=20_000).lr == pytest.approx(one().lr, rel=0.05)  # whatever the length and the betas
    assert one(betas=(0.8, 0.9)).lr == pytest.approx(one().lr, rel=0.05)


@pytest.mark.parametrize(("inputs", "rms", "counts"), [(64, 0.02, 0.1), (64, 0.2, 0.2), (4096, 0.02, 0.02)])
def test_a_layer_that_starts_small_counts_as_large_as_it_grows(inputs: int, rms: float, counts: float) -> None:
    tensors = (Tensor(shape=(64, inputs), init_rms=rms),)
    assert one(tensors=tensors).lr == pytest.approx(STEPS["adamw"] * counts, rel=0.03)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_walk_of_simulated_weights_goes_as_far_as_the_rule_says(optimizer: str) -> None:
    """Independent of the planner: real optimizers on gradients of noise, at the suggested lr and without decay."""
    steps, size = 400, 48
    torch.manual_seed(1)
    weight = nn.Parameter(torch.randn(size, size) * 0.1)
    found = one(
        optimizer=optimizer,
        steps=steps,
        schedule="constant",
        final=None,
        tensors=(Tensor(shape=(size, size), init_rms=0.1),),
    )
    groups = [{"params": [weight], "role": "matrix"}]
    made = {
        "adamw": lambda: torch.optim.AdamW(groups, lr=found.lr, weight_decay=0.0),
        "lion": lambda: eq.Lion(groups, lr=found.lr, weight_decay=0.0),
        "muon": lambda: eq.Muon(groups, lr=found.lr, weight_decay=0.0, momentum=0.9, nesterov=False, scale="none"),
    }[optimizer]()  # fmt: skip
    first = weight.detach().clone()
    for _ in range(steps):
        weight.grad = torch.randn(size, size)
        made.step()
    walked = float((weight.detach() - first).norm() / first.norm())
    assert walked == pytest.approx(STEPS[optimizer] * math.sqrt(steps), rel=0.12)


def test_fine_tuning_ends_at_a_distance_and_does_not_decay() -> None:
    found = one(finetune=True)
    assert learnt_by_most(plan_setting(found.setting)) == pytest.approx(FINETUNED, rel=0.05)
    assert found.weight_decay == 0
    assert one(finetune=True, steps=4000).lr < 0.6 * found.lr


def test_decay_follows_how_often_the_data_is_seen() -> None:
    once, between, often = one(), one(dataset_size=16_000), one(dataset_size=1000)
    assert shrink(once) == pytest.approx(0.3, rel=0.05)
    assert shrink(often) == pytest.approx(3, rel=0.05)
    assert shrink(once) < shrink(between) < shrink(often)
    unknown = one(dataset_size=None)
    assert unknown.weight_decay == once.weight_decay
    said = next(r.why for r in unknown.reasons if r.name == "weight_decay")
    assert "lr·wd·T = 0.3" in said
    assert "lr·wd·T = 3" in said


def test_long_texts_take_power_lines() -> None:
    found = one(tokens_per_sample=100, parameters=100_000, dataset_size=10**7)
    assert shrink(found) == pytest.approx(1 / advice.power_lines_timescale(6.4e6, 1e5), rel=0.05)
    assert found.setting.groups[0].dynamics.betas == (0.9, 0.95)


def test_short_runs_average_over_less() -> None:
    assert one(steps=200).setting.groups[0].dynamics.betas == (0.8, 0.999)
    assert one(steps=200, tokens_per_sample=32).setting.groups[0].dynamics.betas == (0.8, 0.9)
    assert one(steps=10).setting.groups[0].dynamics.betas[0] == 0.5
    assert one(steps=400).setting.groups[0].dynamics.betas == (0.9, 0.999)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_code_makes_the_setting(optimizer: str) -> None:
    model = network()
    found = suggest(model, steps=300, batch_size=64, dataset_size=10_000, optimizer=optimizer)
    scope = {"model": model}
    exec(found.code, scope)
    made = eq.plan(model, scope["optimizer"], steps=300, schedule=scope["curve"]).setting  # type: ignore[arg-type]
    for name in {g.name for g in made.groups}:
        ours, theirs = (
            next((g.lr, g.weight_decay, *g.dynamics.betas) for g in s.groups if g.name == name)
            for s in (found.setting, made)
        )
        assert theirs == pytest.approx(ours), name
    assert made.lr() == pytest.approx(found.setting.lr())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_toml_reads_back(optimizer: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    found = suggest(network(), steps=300, batch_size=64, dataset_size=10_000, optimizer=optimizer)
    (tmp_path / "a.toml").write_text(found.toml)
    back = read_setting(tmp_path / "a.toml")
    assert (back.groups[0].lr, back.groups[0].weight_decay) == (found.lr, found.weight_decay)
    again = suggest_setting(back)
    assert (again.lr, again.weight_decay) == pytest.approx((found.lr, found.weight_decay), rel=0.05)  # of two digits


def test_its_plan_raises_no_warning() -> None:
    found = suggest(network(), steps=1000, batch_size=64, dataset_size=50_000)
    assert [f.code for f in found.plan.findings if f.severity != "info"] == []


def test_gains_and_biases_do_not_decay() -> None:
    found = suggest(network(), steps=300)
    assert {g.name: g.weight_decay > 0 for g in found.setting.groups} == {
        "matrix": True, "head": True, "gain": False, "bias": False,
    }  # fmt: skip


def text() -> nn.Module:
    return nn.Sequential(nn.Embedding(16, 64), nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 16))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.Conv2d(32, 64, 3), nn.Conv2d(64, 64, 3), nn.Flatten(), nn.Linear(64, 10)
    )


ONCE: dict[str, Any] = {"batch_size": 10, "dataset_size": 5000}
OFTEN: dict[str, Any] = {"batch_size": 10, "dataset_size": 100}


@pytest.mark.parametrize(
    ("model", "told", "optimizer", "why"),
    [
        (text(), {"tokens_per_sample": 32}, "muon", r"workloads like this one \(text seen once\)"),
        (text(), {"tokens_per_sample": 32, **ONCE}, "muon", r"\(text seen once\); optimizer='adamw' has shorter steps"),
        (text(), {"tokens_per_sample": 32, **OFTEN}, "adamw", r"no other ended lower .* \(text seen many times\)"),
        (text(), {"tokens_per_sample": 32, "finetune": True}, "adamw", r"\(fine-tuning\)"),
        (text(), {}, "adamw", "seen once or twice: pass batch_size and dataset_size"),
        (text(), OFTEN, "adamw", "seen once or twice$"),
        (network(), ONCE, "muon", r"\(other networks\)"),
        (images(), ONCE, "muon", r"\(networks with convolutions\)"),
        (nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 500)), ONCE, "adamw", "less than half of the weights"),
    ],
)
def test_the_optimizer_is_the_one_that_won_on_tasks_alike(
    model: nn.Module, told: dict[str, Any], optimizer: str, why: str
) -> None:
    chosen = suggest(model, steps=500, **told)
    assert chosen.optimizer == optimizer
    assert re.search(why, chosen.reasons[0].why), chosen.reasons[0].why


def test_a_suggested_optimizer_is_not_advised_against_by_its_own_plan() -> None:
    """`optimizer-other` and the choice are one rule."""
    tokens: list[tuple[nn.Module, int | None]] = [(text(), 32), (network(), None), (images(), None)]
    for model, length in tokens:
        for seen in (ONCE, OFTEN):
            found = suggest(model, steps=500, tokens_per_sample=length, **seen)
            assert "optimizer-other" not in [f.code for f in found.plan.findings]


def test_it_says_what_it_cannot_do() -> None:
    with pytest.raises(ValueError, match="gradient's size"):
        suggest(network(), steps=10, optimizer="sgd")
    with pytest.raises(ValueError, match="optimizer = 'adagrad': must be one of adamw, lion, muon"):
        suggest(network(), steps=10, optimizer="adagrad")
    with pytest.raises(ValueError, match=r"steps = 0"):
        suggest(network(), steps=0)
    with pytest.raises(ValueError, match=r"torch\.nn\.Module"):
        suggest("model", steps=10)  # type: ignore[arg-type]
    zeros = network()
    for p in zeros.parameters():
        nn.init.zeros_(p)
    with pytest.raises(ValueError, match="does not begin at 0"):
        suggest(zeros, steps=10)


def test_it_prints_every_number_and_what_it_cost() -> None:
    found = suggest(network(), steps=300, batch_size=64, dataset_size=10_000)
    text = re.sub(r"\s+", " ", str(found))
    for reason in found.reasons:
        assert reason.value.split()[0] in text
    assert "workloads that were not used to set it" in text
    assert found.to_dict()["schema"] == "equipoise.suggest/1"
