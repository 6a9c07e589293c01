"""The plan's figures, its inputs from flags, files and live optimizers, and its findings."""

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import ROOT

import equipoise as eq
from equipoise import schedules, theory
from equipoise.planner import Finding, Group, Plan, Setting, Tensor, plan_setting, read_setting, write_setting
from equipoise.planner.checks.all_checks import CHECKS

HEALTHY: dict[str, Any] = {
    "optimizer": "adamw",
    "lr": 1e-3,
    "weight_decay": 0.1,
    "steps": 100_000,
    "schedule": "cosine",
    "warmup": 1000,
}


SHORT: dict[str, Any] = {"steps": 500, "warmup": 10}


def codes(plan: Plan) -> set[str]:
    return {f.code for f in plan.findings}


def test_figures_of_adamw() -> None:
    plan = eq.plan(
        optimizer="adamw", lr=1e-3, weight_decay=0.1, steps=60_000, tensors=(Tensor(shape=(4096,)),)
    ).to_dict()
    assert plan["timescale_steps"] == pytest.approx(10_000)
    assert plan["equilibrium"]["rms"] == pytest.approx(0.0707, rel=2e-3)
    assert plan["equilibrium"]["rotation"] == pytest.approx(3.244e-3, rel=2e-3)
    assert plan["equilibrium"]["steps_to_reach"] == pytest.approx(14_978, abs=1)


def test_figures_of_memory() -> None:
    constant = eq.plan(optimizer="adamw", lr=3e-3, weight_decay=0.1, steps=1000).to_dict()
    assert constant["init_share"] == pytest.approx(0.7407848779, abs=5e-11)
    cosine = eq.plan(optimizer="adamw", lr=0.01, weight_decay=1.0, steps=1000, schedule="cosine", warmup=100).to_dict()
    assert cosine["init_share"] == pytest.approx(0.004209359, abs=5e-10)
    assert cosine["effective_steps"] == pytest.approx(689.97, abs=5e-3)
    assert sum(cosine["contribution_by_tenth"]) == pytest.approx(1)


def test_equal_memory_by_name_remembers_all_alike() -> None:
    plan = eq.plan(optimizer="adamw", lr=0.01, weight_decay=0.5, steps=1000, schedule="equal_memory")
    assert plan.memory is not None
    assert np.ptp(plan.memory.weights) / plan.memory.weights.mean() < 1e-14


def test_a_healthy_setting_raises_nothing() -> None:
    assert eq.plan(**HEALTHY).findings == ()
    lion = eq.plan(
        optimizer="lion", lr=1e-4, weight_decay=1.0, betas=(0.9, 0.99), steps=60_000, schedule="cosine", warmup=500
    )
    assert lion.findings == ()


def test_the_forecast_is_that_of_theory() -> None:
    plan = eq.plan(**HEALTHY)
    t = plan.main
    lr = schedules.named("cosine", steps=100_000, warmup=1000, final=0.1).values(100_000) * 1e-3
    expected = theory.forecast("adamw", lr=lr, weight_decay=0.1, size=1024**2, init_norm=1024 / math.sqrt(3 * 1024))
    assert t.forecast is not None
    np.testing.assert_allclose(t.forecast.norm, expected.norm, rtol=1e-12)


@pytest.mark.parametrize(
    ("schedule", "final", "share", "words"),
    [
        ("cosine", None, 0.1, "cosine to 10 % of the peak"),
        ("cosine", 0.03, 0.03, "cosine to 3 % of the peak"),
        ("linear", 0.0, 0.0, "linear to 0 % of the peak"),
        ("constant", None, 1.0, "constant"),
        (schedules.cosine(500, peak=2e-3, final=5e-4), None, 0.25, "own schedule to 25 % of the peak"),
    ],
)
def test_a_plan_says_where_its_schedule_ends(schedule: Any, final: float | None, share: float, words: str) -> None:
    p = eq.plan(optimizer="adamw", lr=2e-3, weight_decay=0.1, steps=500, schedule=schedule, final=final)
    found = p.to_dict()["lr"]
    assert found["final_share"] == pytest.approx(share, abs=1e-4)
    assert found["schedule"] == (schedule if isinstance(schedule, str) else None)
    assert found["last"] == pytest.approx(share * found["peak"], abs=1e-6)
    assert words in str(p)


def test_tensors_that_start_alike_share_a_forecast_and_keep_their_norm() -> None:
    tensors = tuple(Tensor(name=str(s), shape=s, init_rms=0.02) for s in ((64, 64), (256, 64)))
    plan = eq.plan(**(HEALTHY | SHORT), tensors=tensors)
    small, large = (t.forecast for t in plan.tensors)
    assert small is not None
    assert large is not None
    np.testing.assert_allclose(large.norm, 2 * small.norm, rtol=1e-12)
    alone = eq.plan(**(HEALTHY | SHORT), tensors=tensors[1:]).tensors[0].forecast
    assert alone is not None
    np.testing.assert_allclose(large.norm, alone.norm, rtol=1e-12)


FAULTS: dict[str, dict[str, Any]] = {
    "decay-overshoot": {"lr": 1.0, "weight_decay": 2.0},
    "lr-zero": {"lr": 0.0},
    "lr-zero-first": {"schedule": schedules.from_array(np.linspace(0, 1, 100_000)), "warmup": 0},
    "lr-zero-last": {"final": 0.0},
    "init-share": {"steps": 5_000},
    "timescale-long": {"steps": 3_000},
    "timescale-short": {"weight_decay": 5.0},
    "timescale-power-lines": {"batch_size": 8, "tokens_per_sample": 128, "parameters": 10**9, "steps": 300_000},
    "run-shorter-than-transient": {"steps": 10_000},
    "transient-too-fast": {"schedule": "constant", "warmup": 0, "tensors": (Tensor(init_rms=1e-3),)},
    "no-decay": {"weight_decay": 0.0},
    "decay-on-gains": {"tensors": (Tensor(), Tensor(name="norm.weight", shape=(8,), kind="gain"))},
    "schedule-end": {"schedule": schedules.cosine(50_000, final=0.1), "warmup": 0, "relative": True},
    "lr-jump": {"schedule": schedules.from_array(np.r_[np.linspace(1, 0.5, 99_000), np.full(1000, 0.01)]), "warmup": 0},
    "corrected-lr-max": {"decay": "corrected", "lr_max": 5e-3},
    "bias-warmup": {"steps": 2_000, "warmup": 0},
    "bias-kick": {"bias_correction": False, "warmup": 0},
    "decay-faster-than-momentum": {"lr": 0.1, "weight_decay": 0.9},
    "adam-l2": {"optimizer": "adam_l2"},
    "update-lost": {"tensors": (Tensor(dtype="bfloat16", init_rms=0.1),)},
    "decay-lost": {"tensors": (Tensor(dtype="bfloat16"),)},
}


def test_a_rotational_optimizer_is_compared_with_its_plain_twin() -> None:
    def found(steps: int, **options: Any) -> list[str]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.Linear(256, 256))
        plain = torch.optim.AdamW(model.parameters(), lr=1e-3, **options)
        both = eq.RotationalAdamW(eq.param_groups(model), lr=1e-3, **options), plain
        said = []
        forecast = eq.rotational(model, plain, angle="forecast", steps=steps)
        for one in (*both, forecast, eq.rotational(model, plain)):
            findings = eq.plan(model, one, steps=steps).findings
            said.append([f.evidence for f in findings if f.code == "rotation-unlike-plain"])
        assert said[1:] == [[], [], []]
        return said[0]

    weak = found(500, weight_decay=0.01)
    assert len(weak) == 2, "a group each: hidden and output layer"
    forecast = theory.forecast("adamw", lr=1e-3, weight_decay=0.01, steps=500, size=256**2, init_norm=256 / 768**0.5)
    asked = theory.stationary("adamw", lr=1e-3, weight_decay=0.01, size=256).rotation
    assert float(re.search(r"turns (\S+) times", weak[0])[1]) == pytest.approx(  # type: ignore[index]
        500 * asked / forecast.rotation.sum(), rel=0.06
    )
    assert not found(20_000, weight_decay=1.0)


@pytest.mark.parametrize("code", FAULTS)
def test_each_fault_is_found(code: str) -> None:
    found = {f.code: f for f in eq.plan(**(HEALTHY | FAULTS[code])).findings}
    assert code in found, set(found)
    assert all(getattr(found[code], part) for part in ("where", "evidence", "expected", "advice", "source"))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "wsd", "polynomial"])
def test_the_end_of_a_schedule_that_falls_to_0_is_no_jump(schedule: str) -> None:
    """The last steps of a line are 3, 2, 1 and 0 parts: a half, and yet no faster than before."""
    for steps in (20, 37, 80, 100, 161, 250, 400):
        found = eq.plan(optimizer="adamw", lr=1e-3, weight_decay=0.1, steps=steps, schedule=schedule, final=0.0)
        assert "lr-jump" not in [f.code for f in found.findings], steps


def test_a_last_lr_of_0_is_said_once_for_all_groups() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(eq.param_groups(model), lr=1e-3)
    found = eq.plan(model, optimizer, steps=100, schedule="cosine", final=0.0).findings
    assert [f.where for f in found if f.code == "lr-zero-last"] == ["all parameters, last step"]


def test_every_finding_has_a_section_in_the_docs() -> None:
    text = (ROOT / "docs/findings.md").read_text()
    for code in FAULTS:
        assert f"\n## `{code}`" in text, code
    sections = {line[4:-1] for line in text.splitlines() if line.startswith("## `")}
    assert sections >= set(FAULTS)
    assert len(CHECKS) >= 15


def test_advice_mends_what_it_is_about() -> None:
    short: dict[str, Any] = HEALTHY | {"steps": 5_000, "warmup": 100}
    finding = next(f for f in eq.plan(**short).findings if f.code == "init-share")
    wd = float(finding.advice.split("about ")[1].split(" ")[0])
    assert "init-share" not in codes(eq.plan(**{**short, "weight_decay": 1.02 * wd}))


@pytest.mark.parametrize("schedule", ["cosine", "wsd", "inverse_sqrt", "equal_memory"])
def test_advice_holds_for_other_schedules(schedule: str) -> None:
    short = HEALTHY | {"steps": 20_000, "schedule": schedule, "weight_decay": 0.05}
    finding = next(f for f in eq.plan(**short).findings if f.code == "init-share")
    wd = float(finding.advice.split("about ")[1].split(" ")[0])
    assert "init-share" not in codes(eq.plan(**{**short, "weight_decay": 1.05 * wd}))


def test_timescale_is_one_thing() -> None:
    plan = eq.plan(**{**HEALTHY, "weight_decay": 5.0})
    finding = next(f for f in plan.findings if f.code == "timescale-short")
    assert f"{plan.timescale_steps:,.0f} steps" in finding.evidence
    found = re.search(r"at weight_decay = (\S+) the timescale is a fifth of the run", finding.advice)
    assert found is not None, finding.advice
    wd = float(found[1])
    mended = eq.plan(**{**HEALTHY, "weight_decay": wd})
    assert "timescale-short" not in codes(mended)


def test_what_is_not_shown_to_pay_is_said_as_a_fact() -> None:
    """A usual short run raises no warning, and nothing tells to raise or to lower lr or weight decay."""
    usual = eq.plan(optimizer="adamw", lr=1e-3, weight_decay=0.01, steps=2_000, warmup=100, schedule="cosine")
    short = eq.plan(optimizer="adamw", lr=3e-4, weight_decay=0.1, steps=5_000, tensors=(Tensor(init_rms=0.02),))
    for plan in (usual, short):
        assert {f.severity for f in plan.findings} <= {"info"}, plan.findings
        for finding in plan.findings:
            assert not any(word in finding.advice for word in ("raise", "lower", "warm up for")), finding


def test_a_memory_of_a_few_steps_is_a_warning() -> None:
    """lr·weight_decay = 0.03: measured to be worse on every workload that it was tried on."""
    short = eq.plan(optimizer="adamw", lr=1e-3, weight_decay=30.0, steps=400)
    finding = next(f for f in short.findings if f.code == "timescale-short")
    assert finding.severity == "warning"
    assert "timescale-short" not in codes(eq.plan(optimizer="adamw", lr=1e-3, weight_decay=5.0, steps=400))


def test_sgd_forgets_through_its_momentum() -> None:
    """Coupled L2 decays by lr·wd/(1−α), as torch's SGD does with zero gradients."""
    steps = 2000
    plan = eq.plan(optimizer="sgdm", lr=0.1, weight_decay=5e-4, betas=(0.9, 0.999), steps=steps)
    w = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimizer = torch.optim.SGD([w], lr=0.1, momentum=0.9, weight_decay=5e-4)
    for _ in range(steps):
        w.grad = torch.zeros_like(w)
        optimizer.step()
    assert plan.memory is not None
    assert plan.memory.init_share == pytest.approx(w.item(), rel=0.01)


@pytest.mark.parametrize(
    ("schedule", "lr", "wanted"),
    [
        (schedules.cosine(1000), 1e-3, 1e-3),
        (schedules.linear(1000), 1e-3, 1e-3),
        (lambda t: 0.5 * (1 + math.cos(math.pi * t / 1000)), 1e-3, 1e-3),
        (schedules.cosine(1000, peak=3e-4), 1e-3, 3e-4),
        (schedules.cosine(1000, peak=0.5), 0.5, 0.5),
        (np.linspace(1, 0.1, 1000), 0.1, 0.1),
    ],
)
def test_factors_and_learning_rates_are_told_apart(schedule, lr: float, wanted: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.randn(4, 4))], lr=lr)
    assert eq.plan(None, optimizer, steps=1000, schedule=schedule).setting.lr().max() == pytest.approx(wanted, rel=2e-3)
    assert eq.plan(None, optimizer, steps=1000, schedule=schedule, relative=True).setting.groups[0].lr == lr


def test_frozen_parameters_and_named_optimizers() -> None:
    model = make_model()
    model[1].weight.requires_grad_(False)  # type: ignore[index]
    plan = eq.plan(model, torch.optim.AdamW(model.parameters(), lr=1e-3), steps=100)
    assert "1.weight" not in {t.tensor.name for t in plan.tensors}
    assert any("1 parameter is left out: frozen" in a for a in plan.setting.assumptions)
    assert {t.tensor.name for t in eq.plan(model, "adamw", lr=1e-3, steps=100).tensors} >= {"0.weight", "3.weight"}


def test_overshoot_still_gives_a_plan() -> None:
    plan = eq.plan(optimizer="adamw", lr=1.0, weight_decay=2.0, steps=10)
    data = plan.to_dict()
    assert data["init_share"] is None
    assert data["findings"][0]["severity"] == "error"
    json.dumps(data)
    assert "decay-overshoot" in str(plan)


def make_model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Embedding(50, 16), torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 16)
    )


@pytest.mark.parametrize("flags", [{}, {"foreach": True}, {"fused": True}])
def test_reads_a_live_optimizer(flags: dict) -> None:
    model = make_model()
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], lr=1e-3, **flags
    )
    plan = eq.plan(model, optimizer, steps=100_000, schedule="cosine", warmup=1000)
    assert codes(plan) == set()
    by_name = {t.tensor.name: t.tensor for t in plan.tensors}
    assert by_name["0.weight"].kind == "embedding"
    assert by_name["1.weight"].kind == "matrix"
    assert by_name["2.weight"].kind == "gain"
    assert by_name["1.bias"].kind == "bias"
    weight = model[1].weight  # type: ignore[index]
    assert by_name["1.weight"].init_rms == pytest.approx(weight.square().mean().sqrt().item())
    assert plan.setting.parameters == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("make", "name", "assumes"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4), "sgdm", "gradients"),
        (lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=0.1), "adam_l2", "gradients"),
        (lambda p: torch.optim.Adam(p, lr=1e-3), "adam", ""),
        (lambda p: torch.optim.RMSprop(p, lr=1e-3, weight_decay=0.1), "adam_l2", "gradients"),
        (lambda p: torch.optim.Muon(p, lr=1e-2), "muon", ""),
        (lambda p: torch.optim.NAdam(p, lr=1e-3), "adamw", "NAdam is not known"),
        (lambda p: torch.optim.Adagrad(p, lr=1e-2), "sgdm", "Adagrad is not known"),
    ],
)
def test_other_optimizers_degrade_gracefully(make, name: str, assumes: str) -> None:
    optimizer = make([torch.nn.Parameter(torch.randn(16, 8))])
    plan = eq.plan(None, optimizer, steps=1000)
    assert plan.setting.groups[0].dynamics.optimizer == name
    assert any(assumes in a for a in plan.setting.assumptions) if assumes else plan.setting.assumptions == ()
    assert plan.main.forecast is not None
    str(plan)


@pytest.mark.parametrize(
    ("make", "name", "assumes"),
    [
        (lambda p: eq.AdamW(p, lr=1e-3, weight_decay=0.1, decay="independent"), "adamw", ""),
        (lambda p: eq.Adam(p, lr=1e-3, l2=0.1), "adam_l2", "gradients"),
        (lambda p: eq.SGDM(p, lr=0.1, l2=1e-4), "sgdm", "gradients"),
        (lambda p: eq.Lion(p, lr=1e-4, weight_decay=1.0), "lion", ""),
        (lambda p: eq.SignSGDM(p, lr=1e-4, weight_decay=1.0), "signsgdm", ""),
        (lambda p: eq.RotationalAdamW(p, lr=1e-3, weight_decay=0.1), "adamw", "controls norms itself"),
    ],
)
def test_our_own_optimizers_are_read(make, name: str, assumes: str) -> None:
    optimizer = make([torch.nn.Parameter(torch.randn(16, 8))])
    plan = eq.plan(None, optimizer, steps=1000)
    assert plan.setting.groups[0].dynamics.optimizer == name
    assert plan.setting.groups[0].weight_decay > 0
    assert any(assumes in a for a in plan.setting.assumptions) if assumes else plan.setting.assumptions == ()


def test_muon_is_planned_with_torchs_scale() -> None:
    torch.manual_seed(0)
    p = torch.nn.Parameter(torch.randn(64, 16))
    plan = eq.plan(None, torch.optim.Muon([p], lr=0.02, weight_decay=0.1, momentum=0.9, nesterov=False), steps=2000)
    end = plan.main.equilibrium
    assert end is not None
    w = torch.nn.Parameter(torch.zeros(64, 16))
    step = torch.optim.Muon([w], lr=1.0, weight_decay=0.0, nesterov=False)  # √(64/16), and what the quintic leaves of σ
    lengths = []
    for _ in range(20):
        w.grad, w.data, step.state = torch.randn(64, 16), torch.zeros(64, 16), type(step.state)(dict)
        step.step()
        lengths.append(float(w.detach().square().sum()))
    assert end.update == pytest.approx(0.02 * (sum(lengths) / len(lengths)) ** 0.5, rel=0.02)
    assert plan.main.forecast is not None
    assert plan.main.forecast.norm[-1] == pytest.approx(end.norm, rel=0.01)


def test_groups_of_our_muon_that_take_adamw_have_no_nesterov() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4))
    plan = eq.plan(model, eq.Muon(eq.param_groups(model), nesterov=True), steps=100)
    kinds = {g.name: (g.dynamics.optimizer, g.dynamics.nesterov) for g in plan.setting.groups}
    assert kinds == dict.fromkeys(("head", "gain", "bias"), ("adamw", False)) | {"matrix": ("muon", True)}


def test_an_absolute_schedule_sets_lr_and_keeps_the_groups_ratios() -> None:
    a, b = (torch.nn.Parameter(torch.randn(4, 4)) for _ in range(2))
    optimizer = torch.optim.AdamW([{"params": [a], "lr": 1e-3}, {"params": [b], "lr": 2e-3}])
    plan = eq.plan(None, optimizer, steps=100, schedule=schedules.cosine(100, peak=0.5, final=0.05), relative=False)
    # The first step of a cosine is a hair below its peak.
    assert plan.setting.lr(1).max() == pytest.approx(0.5, rel=1e-3)
    assert plan.setting.lr(0).max() == pytest.approx(0.25, rel=1e-3)


def test_torch_schedulers_and_functions_are_schedules() -> None:
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.randn(4, 4))], lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 40, gamma=0.5)
    plan = eq.plan(None, optimizer, steps=100, schedule=scheduler)
    np.testing.assert_allclose(plan.setting.lr(), np.r_[np.full(40, 0.5), np.full(40, 0.25), np.full(20, 0.125)])
    assert scheduler.last_epoch == 0
    plan = eq.plan(None, optimizer, steps=100, schedule=lambda t: 1 / t)
    np.testing.assert_allclose(plan.setting.lr(), 0.5 / np.arange(1, 101))
    with pytest.raises(ValueError, match="schedule = 3: must be a Schedule"):
        eq.plan(None, optimizer, steps=100, schedule=3)  # type: ignore[arg-type]


def test_shows_in_a_notebook() -> None:
    html = eq.plan(**(HEALTHY | SHORT))._repr_html_()
    assert "initialisation left" in html
    assert "<script" not in html


def test_toml_round_trip(tmp_path: Path) -> None:
    setting = Setting.make(
        optimizer="lion", lr=1e-4, weight_decay=1.0, betas=(0.9, 0.99), steps=5000, schedule="wsd",
        schedule_options={"tail": "1-sqrt"}, warmup=100, final=0.05, batch_size=32, dataset_size=1000,
        tensors=(Tensor(name="up", shape=(64, 16), init_rms=0.02), Tensor(name="gain", shape=(16,), kind="gain")),
    )  # fmt: skip
    file = tmp_path / "a.toml"
    file.write_text(write_setting(setting))
    assert read_setting(file) == setting


@pytest.mark.parametrize("betas", [None, (0.9, 0.99), (0.9, 0.999)])
@pytest.mark.parametrize("name", ["lion", "adamw"])
def test_betas_go_through_toml(name: str, betas: Any, tmp_path: Path) -> None:
    """What is left out there is the optimizer's own, and is left out for that alone."""
    setting = Setting.make(optimizer=name, lr=1e-4, weight_decay=1.0, betas=betas, steps=50)
    file = tmp_path / "a.toml"
    file.write_text(write_setting(setting))
    assert read_setting(file) == setting
    own = eq.theory.default_betas(name)
    assert ("betas" in file.read_text()) is (betas not in (None, own))
    file.write_text(f"[optimizer]\nname = '{name}'\nmomentum = 0.8\n[run]\nsteps = 5\n")
    assert read_setting(file).groups[0].dynamics.betas == (0.8, own[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = 3", "the file has 'steps': must be one of optimizer, run, schedule, tensor"),
        ("[run]\nsteps = 0", "steps = 0: must be a whole number ≥ 1"),
        ("[optimizer]\nlr = 1", "[run] has no steps"),
        (
            "[run]\nsteps = 5\n[optimizer]\nlearning_rate = 1",
            "[optimizer] has 'learning_rate': must be one of angle, betas",
        ),
        ("[run]\nsteps = 5\n[optimizer]\nname = 'adamx'", "optimizer = 'adamx': must be one of adam"),
        ("[run]\nsteps = 5\n[schedule]\nname = 'cos'", "schedule = 'cos': must be one of constant"),
        ("[run]\nsteps = 5\n[[tensor]]\nshape = 4", "[[tensor]] number 1: shape = 4: must be a list"),
        (
            "[run]\nsteps = 5\n[[tensor]]\nshape = [0]",
            "[[tensor]] number 1: shape of weight = 0: must be a whole number",
        ),
        ("[run\n", "not a TOML file"),
        ("[run]\nsteps = 5\n[schedule]\nname = 'cosine'\nwarmup = 9", "warmup = 9: must be < steps = 5"),
        ("optimizer = 3", "optimizer = 3: must be a table, [optimizer]"),
        ("[run]\nsteps = 5\n[optimizer]\nbetas = [0.9]\nmomentum = 0.9", "betas = [0.9]: must be two numbers"),
        ("[run]\nsteps = 5\n[optimizer]\nlr = true", "lr = True: must be a number"),
        ("[run]\nsteps = 5\n[schedule]\nname = 3", "[schedule] name = 3: must be one of"),
        ("[run]\nsteps = 5\n[schedule]\nname = 'cosine'\npeak = 3", "peak = 3: must be left out of the schedule"),
        ("[run]\nsteps = 5\n[schedule]\nname = 'cosine'\nfinal = 2", "final = 2: must be a finite number in [0, 1]"),
        ("[run]\nsteps = 5\n[[tensor]]\nshape = [4]\ndtype = 'bf16'", "dtype = 'bf16': must be one of bfloat16"),
        ("[run]\nsteps = 5\n[[tensor]]\nshape = [4]\ngroup = 'a'", "group = 'a': must be a whole number"),
        ("[run]\nsteps = 100000000000000", "steps = 100000000000000: must be ≤ 100,000,000"),
    ],
)
def test_bad_files_say_what_and_where(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"bad\.toml") as caught:
        read_setting(file)
    assert message in str(caught.value)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="optimizer = None: must be a torch optimizer when a model is given"):
        eq.plan(make_model(), steps=10)
    with pytest.raises(ValueError, match="optimizer = int: must be a torch optimizer"):
        eq.plan(None, 3, steps=10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="foo = 3: must be left out; a setting takes angle, betas"):
        eq.plan(optimizer="adamw", steps=10, foo=3)
    with pytest.raises(ValueError, match="lr = 5: must be left out; it is read from the optimizer"):
        eq.plan(None, torch.optim.SGD(make_model().parameters()), steps=10, lr=5)
    with pytest.raises(ValueError, match="warmup and final: must be left out with a Schedule"):
        eq.plan(optimizer="adamw", steps=10, schedule=schedules.cosine(10), warmup=3)
    with pytest.raises(ValueError, match="groups = "):
        Setting((), (Tensor(),), 10, schedules.constant(), schedules.constant())
    with pytest.raises(ValueError, match="group = 1 of weight: must be in"):
        Setting((Group(),), (Tensor(group=1),), 10, schedules.constant(), schedules.constant())


def test_schema_is_as_documented() -> None:
    data = eq.plan(**{**HEALTHY, "steps": 5000, "warmup": 100}).to_dict()
    documented = (ROOT / "docs/plan.md").read_text()
    for key in data:
        assert f"`{key}`" in documented, key
    assert list(data["findings"][0]) == [f.name for f in dataclasses.fields(Finding)]
    assert all(f"`{name}`" in documented for name in data["findings"][0])
    assert isinstance(Finding(**data["findings"][0]), Finding)
    assert plan_setting(Setting.make(steps=3)).to_dict()["schema"] == "equipoise.plan/1"
