"""Fine-tuning: told by the weights or by the user, planned by distance from the start, without from-scratch advice."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests import ROOT
from torch import nn
from typer.testing import CliRunner

import equipoise as eq
from equipoise.cli import app
from equipoise.planner import Setting, Tensor, plan_setting, read_setting, write_setting
from equipoise.planner.checks.all_checks import FINE_TUNING
from equipoise.planner.pretrained import judge, strangeness

TUNED: dict[str, Any] = {"optimizer": "adamw", "lr": 2e-5, "weight_decay": 0.01, "steps": 600}
SCRATCH_CODES = {
    "init-share", "timescale-long", "timescale-short", "timescale-power-lines", "run-shorter-than-transient",
    "transient-too-fast", "no-decay", "decay-on-gains", "bias-warmup", "adam-l2",
}  # fmt: skip


def net(norm: bool = True) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(20, 64), nn.GELU()]
    for _ in range(2):
        layers += [*([nn.LayerNorm(64)] if norm else []), nn.Linear(64, 64), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(64, 10))


@cache
def trained(steps: int, *, norm: bool = True, seed: int = 0) -> nn.Sequential:
    """A network that has learnt for real to say which of ten directions is nearest."""
    torch.manual_seed(seed)
    model, ways = net(norm), torch.randn(20, 10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        x = torch.randn(64, 20)
        nn.functional.cross_entropy(model(x), (x @ ways).argmax(1)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def each(start: Callable[[torch.Tensor], Any]) -> Callable[[nn.Module], None]:
    def apply(model: nn.Module) -> None:
        for p in model.parameters():
            if p.ndim > 1:
                start(p)

    return apply


def everything(start: Callable[[torch.Tensor], Any]) -> Callable[[nn.Module], None]:
    def apply(model: nn.Module) -> None:
        for p in model.parameters():
            start(p)

    return apply


INITS: dict[str, Callable[[nn.Module], object]] = {
    "torch": lambda model: None,
    "kaiming": each(nn.init.kaiming_normal_),
    "xavier": each(nn.init.xavier_uniform_),
    "gpt-2": each(lambda p: nn.init.normal_(p, 0, 0.02)),
    "truncated": each(lambda p: nn.init.trunc_normal_(p, std=0.02, a=-0.02, b=0.02)),
    "orthogonal": each(nn.init.orthogonal_),
    "muP": each(lambda p: nn.init.normal_(p, 0, 1 / p[0].numel())),
    "sparse": each(lambda p: p.data.mul_(torch.rand_like(p) < 0.2)),
    "rows of one length": each(lambda p: p.data.div_(p.data.norm(dim=1, keepdim=True))),
    "heavy tails": each(lambda p: p.data.copy_(torch.distributions.StudentT(5.0).sample(p.shape))),
    "all normal": everything(lambda p: nn.init.normal_(p, 0, 0.02)),
    "all uniform": everything(lambda p: nn.init.uniform_(p, -0.08, 0.08)),
    "gains too": everything(lambda p: nn.init.normal_(p, 0, 0.02) if p.ndim > 1 else nn.init.normal_(p, 1, 0.02)),
    "identity": each(nn.init.eye_),
    "zeros": each(nn.init.zeros_),
    "bfloat16": lambda model: model.bfloat16(),
}


@pytest.mark.parametrize("init", INITS)
def test_fresh_weights_are_never_taken_for_trained_ones(init: str) -> None:
    for seed in range(5):
        torch.manual_seed(seed)
        for model in (net(), net(norm=False)):
            with torch.no_grad():
                INITS[init](model)
            assert not judge(model, model.parameters()).finetune, (init, seed)


def test_models_that_were_tried_out_on_a_few_batches_are_fresh() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32))
    for _ in range(5):
        model(torch.randn(4, 3, 8, 8))
    assert not judge(model, model.parameters()).finetune
    for _ in range(100):
        model(torch.randn(4, 3, 8, 8))
    assert judge(model, model.parameters()).why == "BatchNorm has counted 105 batches"


@pytest.mark.parametrize("norm", [True, False])
def test_trained_weights_are_told(norm: bool) -> None:
    for seed in range(3):
        verdict = judge(model := trained(300, norm=norm, seed=seed), model.parameters())
        assert verdict.finetune
        assert (
            "gains of 2 of 2 norms have moved" if norm else "matrices do not look like an initialisation"
        ) in verdict.why


def test_strangeness_is_of_training_and_not_of_scale_or_padding() -> None:
    torch.manual_seed(0)
    w = torch.randn(256, 64)
    w[0] = 0
    for same in (w, 1e-20 * w, w.half(), w.reshape(256, 16, 2, 2)):
        assert (strangeness(same) or 9) < 3
    assert (strangeness(w * torch.linspace(0.8, 1.2, 64)) or 0) > 6
    assert (strangeness(w + 0.3 * torch.randn(256, 1)) or 0) > 6
    assert strangeness(torch.randn(4, 100)) is None
    assert strangeness(torch.ones(64, 64)) is None


def test_an_optimizer_that_has_stepped_has_shaped_the_weights_itself() -> None:
    model = deepcopy(trained(300))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    assert eq.plan(model, optimizer, steps=100).setting.finetune is True
    model(torch.randn(4, 20)).sum().backward()
    optimizer.step()
    assert eq.plan(model, optimizer, steps=100).setting.finetune is False
    made_early = torch.optim.Adagrad(model.parameters())  # its state is there before the first step
    assert eq.plan(model, made_early, steps=100).setting.finetune is True


class Lora(nn.Module):
    """A frozen linear layer and its low-rank update, as people write it by hand."""

    def __init__(self, inner: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.inner = inner
        self.left = nn.Parameter(torch.randn(rank, inner.in_features) / inner.in_features**0.5)
        self.right = nn.Parameter(torch.zeros(inner.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + x @ self.left.T @ self.right.T


def with_lora(*, freeze: bool) -> tuple[nn.Module, list[nn.Parameter]]:
    torch.manual_seed(0)
    model = net()
    for i, layer in enumerate(model):
        if isinstance(layer, nn.Linear) and layer.out_features == 64 and layer.in_features == 64:
            model[i] = Lora(layer)
    new = [p for name, p in model.named_parameters() if "left" in name or "right" in name]
    for p in model.parameters():
        p.requires_grad_(not freeze)
    for p in new:
        p.requires_grad_(True)
    return model, new


def test_adapters_are_told_by_what_is_frozen_or_by_their_zeros() -> None:
    model, new = with_lora(freeze=True)
    assert judge(model, new).why == "91 % of the parameters are frozen"
    model, new = with_lora(freeze=False)
    assert judge(model, new).why == "only adapters train, 91 % of the parameters do not"
    assert not judge(model, model.parameters()).finetune


def test_a_fresh_network_with_a_frozen_layer_is_fresh() -> None:
    for model, taken in ((net(), False), (deepcopy(trained(300)), True)):
        for layer in list(model.children())[2:-1]:
            layer.requires_grad_(False)
        verdict = judge(model, model.parameters())
        assert verdict.frozen > sum(p.numel() for p in model.parameters() if p.requires_grad)
        assert (verdict.finetune, verdict.why) == (taken, "81 % of the parameters are frozen" if taken else "")


def test_the_user_has_the_last_word() -> None:
    model, new = with_lora(freeze=True)
    optimizer = torch.optim.AdamW(new, lr=1e-3)
    plan = eq.plan(model, optimizer, steps=100)
    assert plan.setting.assumptions[0] == (
        "treated as fine-tuning: 91 % of the parameters are frozen; pass finetune=False if it is not"
    )
    assert plan.setting.assumptions[0] in " ".join(str(plan).split())
    assert eq.plan(model, optimizer, steps=100, finetune=False).setting.finetune is False
    fresh = net()
    told = eq.plan(fresh, torch.optim.AdamW(fresh.parameters(), lr=1e-3), steps=100, finetune=True)
    assert told.setting.finetune is True
    assert not any("treated as" in a for a in told.setting.assumptions)
    assert eq.plan(fresh, "adamw", lr=1e-3, steps=10).setting.finetune is False
    assert eq.plan(trained(300), "adamw", lr=1e-3, steps=10).setting.finetune is True
    with pytest.raises(ValueError, match="finetune = 'yes': must be true or false, or left out"):
        eq.plan(fresh, torch.optim.AdamW(fresh.parameters()), steps=10, finetune="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="finetune = 1: must be true or false"):
        Setting.make(steps=10, finetune=1)  # type: ignore[arg-type]


def test_a_plan_of_fine_tuning_speaks_of_distance_and_not_of_equilibrium() -> None:
    plan = eq.plan(**TUNED, finetune=True, tensors=(Tensor(init_rms=0.02),))
    assert plan.findings == ()
    text = str(plan)
    assert "distance from the start" in text
    assert "removed by decay" in text
    for word in ("equilibrium", "timescale", "reached at", "initialisation left"):
        assert word not in text
    told = plan.to_dict()
    assert told["finetune"] is True
    assert told["distance"]["walk"] == pytest.approx(2e-5 * 600**0.5 / 0.02, rel=0.05)
    assert told["distance"]["steady"] == pytest.approx(2e-5 * 600 / 0.02, rel=0.01)
    assert told["distance"]["taken_by_decay"] == pytest.approx(2e-5 * 0.01 * 600, rel=1e-3)


@pytest.mark.parametrize("wd", [0.0, 0.01, 3.0])
@pytest.mark.parametrize("optimizer", ["adamw", "adam_l2", "sgdm", "lion", "muon"])
def test_no_advice_for_training_from_scratch(optimizer: str, wd: float) -> None:
    tensors = (Tensor(init_rms=0.02), Tensor(name="norm", shape=(64,), kind="gain"), Tensor(name="b", init_rms=0.0))
    for steps in (50, 600, 20_000):
        plan = eq.plan(**(TUNED | {"optimizer": optimizer, "weight_decay": wd, "steps": steps}), finetune=True,
                       tensors=tensors, batch_size=8, tokens_per_sample=128, parameters=10**9)  # fmt: skip
        assert not {f.code for f in plan.findings} & SCRATCH_CODES
        assert all(f.severity == "info" for f in plan.findings)
        str(plan)


def test_nobody_is_told_to_raise_decay_beyond_reason() -> None:
    """Without a model nobody can know whether it is fine-tuning: no advice in numbers that could not be meant."""
    for wd in (0.0, 0.01):
        run: dict[str, Any] = TUNED | {"weight_decay": wd}
        for f in eq.plan(**run).findings:
            assert f.severity == "info"
            assert "weight_decay" not in f.advice
            assert "lr" not in f.advice.split()


FAULTS: dict[str, dict[str, Any]] = {
    "decay-takes-start": {"weight_decay": 20.0},
    "far-from-start": {"lr": 1e-3},
}


@pytest.mark.parametrize("code", FAULTS)
def test_facts_of_fine_tuning(code: str) -> None:
    tensors = (Tensor(init_rms=0.02),)
    findings = eq.plan(**(TUNED | FAULTS[code]), finetune=True, tensors=tensors).findings
    (found,) = [f for f in findings if f.code != "decay-high"]  # which names a better decay where it is known to pay
    assert (found.code, found.severity) == (code, "info")
    assert code not in {f.code for f in eq.plan(**(TUNED | FAULTS[code]), tensors=tensors).findings}
    assert f"\n## `{code}`" in (ROOT / "docs/findings.md").read_text()
    assert len(FINE_TUNING) == len(FAULTS)


def test_new_weights_beside_frozen_ones_may_go_far() -> None:
    run: dict[str, Any] = TUNED | {"lr": 1e-3, "finetune": True, "tensors": (Tensor(shape=(8, 512), init_rms=0.02),)}
    assert {f.code for f in eq.plan(**run).findings} == {"far-from-start"}
    assert eq.plan(**run, frozen=10**6).findings == ()


def test_tensors_that_begin_at_zero_have_no_rotation_to_be_alarmed_by() -> None:
    run: dict[str, Any] = TUNED | {"lr": 1e-3, "weight_decay": 0.1, "steps": 60_000, "warmup": 500}
    for finetune in (True, False):
        zero = Tensor(name="lora_B", shape=(512, 8), init_rms=0.0)
        plan = eq.plan(**run, finetune=finetune, tensors=(Tensor(shape=(512, 512)), zero))
        assert not any("lora_B" in f.where for f in plan.findings)
        row = plan.to_dict()["tensors"][1]["distance"]
        assert row["walk"] is None
        assert row["walk_rms"] == pytest.approx(1e-3 * np.sqrt(1 / (2 * 1e-4)), rel=0.05)  # it is in equilibrium
        assert "0 → 0.07" in str(plan) or "RMS 0.07" in str(plan)


def test_lora_as_a_whole() -> None:
    model, new = with_lora(freeze=True)
    plan = eq.plan(model, torch.optim.AdamW(new, lr=2e-4, weight_decay=0.0), steps=600)
    assert plan.findings == ()
    assert plan.main.tensor.name.endswith("left")
    assert plan.setting.frozen == sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in new)


def test_distance_is_that_of_a_real_walk() -> None:
    """Adam on noise goes as far as the plan says, and on a gradient that never changes as far as the plan allows."""
    torch.manual_seed(0)
    for steady in (False, True):
        w = nn.Parameter(0.02 * torch.randn(64, 64, dtype=torch.float64))
        start, same = w.detach().clone(), torch.randn(64, 64, dtype=torch.float64)
        optimizer = torch.optim.AdamW([w], lr=2e-5, weight_decay=0.01)
        far = eq.plan(None, optimizer, steps=600, finetune=True).main_travel
        assert far is not None
        for _ in range(600):
            w.grad = same.clone() if steady else torch.randn_like(w)
            optimizer.step()
        gone = float((w.detach() - start).norm() / start.norm())
        assert gone == pytest.approx(far.farthest if steady else far.expected, rel=0.03)


def test_toml_and_flags(tmp_path: Path) -> None:
    setting = Setting.make(**TUNED, finetune=True, frozen=10**6)
    file = tmp_path / "run.toml"
    file.write_text(write_setting(setting))
    assert "finetune = true" in file.read_text()
    again = read_setting(file)
    assert (again.finetune, again.frozen) == (True, 10**6)
    file.write_text(file.read_text().replace("finetune = true", "finetune = 3"))
    with pytest.raises(ValueError, match="finetune = 3: must be true or false"):
        read_setting(file)
    flags = ["plan", "--lr", "2e-5", "--wd", "0.01", "--steps", "600"]
    said = CliRunner().invoke(app, [*flags, "--finetune"])
    assert "distance from the start" in said.stdout
    assert "equilibrium" not in said.stdout
    assert "equilibrium" in CliRunner().invoke(app, [*flags, "--no-finetune"]).stdout
    assert plan_setting(Setting.make(**TUNED)).setting.finetune is None


def test_a_plan_that_is_not_told_of_pretrained_weights_says_what_that_would_add() -> None:
    run: dict[str, Any] = {"optimizer": "adamw", "lr": 3e-4, "weight_decay": 0.01, "steps": 400, "schedule": "cosine"}
    found = {told: {f.code: f.advice for f in eq.plan(**run, finetune=told).findings} for told in (None, False)}
    assert "finetune=False (--no-finetune) adds advice on lr" in found[None]["init-share"]
    assert "lr-low" not in found[None]
    assert found[False]["init-share"] == "nothing to do in a short run"
    assert "lr-low" in found[False]
