"""The page of a plan shows what `plan_setting` says, and its texts make the same plan again."""

import json
import math
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import equipoise as eq
from equipoise.board.files import plan_html
from equipoise.board.knobs import Knobs, moved, texts
from equipoise.board.pages.plan_page import CURVES, curves_of, grid_sources, live_sources, summary
from equipoise.cli import app
from equipoise.planner import Setting, Tensor, plan_setting, read_setting

SETTINGS = {
    "plain": Setting.make(lr=1e-3, weight_decay=0.1, steps=2000),
    "cosine": Setting.make(lr=3e-4, weight_decay=0.1, betas=(0.9, 0.95), steps=2000, schedule="cosine", warmup=50),
    "options": Setting.make(
        optimizer="sgdm", lr=0.1, weight_decay=5e-4, steps=900, nesterov=True, schedule="step",
        schedule_options={"milestones": [300, 600], "factor": 0.2}, batch_size=32, dataset_size=1000,
    ),
    "tensors": Setting.make(
        optimizer="lion", lr=1e-4, weight_decay=1.0, betas=(0.9, 0.99), steps=500, decay="independent",
        schedule="wsd", final=0.0, tensors=(Tensor(name="256x64", shape=(256, 64), init_rms=0.02),),
    ),
}  # fmt: skip


def same(a: Setting, b: Setting) -> None:
    one, two = (plan_setting(s).to_dict() for s in (a, b))
    for each in (one, two):
        each.pop("assumptions")
        for tensor in each["tensors"]:
            tensor.pop("name")
        each["equilibrium"].pop("tensor")
        for finding in each["findings"]:
            finding.pop("where")
    assert one == two


@pytest.mark.parametrize("name", SETTINGS)
def test_texts_make_the_same_plan_again(name: str, tmp_path: Path) -> None:
    setting = SETTINGS[name]
    found = texts(setting)
    scope: dict[str, eq.planner.Plan] = {}
    exec(found["code"], scope)
    same(scope["plan"].setting, setting)
    file = tmp_path / "setting.toml"
    file.write_text(found["toml"])
    same(read_setting(file), setting)
    words = shlex.split(found["command"])
    assert words[:2] == ["equipoise", "plan"]
    if name == "tensors":
        words[words.index("independent")]
    done = CliRunner().invoke(app, [*words[1:], "--json"])
    assert done.exit_code == 0, done.output
    plain = plan_setting(setting).to_dict()
    assert json.loads(done.output)["contribution_by_tenth"] == plain["contribution_by_tenth"]
    assert json.loads(done.output)["equilibrium"]["norm"] == plain["equilibrium"]["norm"]


def test_settings_of_an_optimizer_are_code_alone() -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(
        [{"params": [model.weight], "weight_decay": 0.1}, {"params": [model.bias], "lr": 0.5, "weight_decay": 0.0}]
    )
    plan = eq.plan(model, optimizer, steps=100)
    again = moved(plan.setting, 0.002, 0.3)
    found = texts(again)
    assert list(found) == ["code"]
    exec(found["code"], {"optimizer": optimizer})
    assert [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups] == [(0.002, 0.3), (1.0, 0.0)]


def test_curves_are_those_of_the_plan() -> None:
    plan = plan_setting(SETTINGS["cosine"])
    curves = curves_of(plan)
    steps = curves["step"].astype(int)
    assert steps[0] == 1
    assert steps[-1] == 2000
    assert (np.diff(steps) >= 0).all()
    assert plan.memory is not None
    forecast = plan.main.forecast
    assert forecast is not None
    np.testing.assert_array_equal(curves["lr"], plan.setting.lr()[steps - 1])
    np.testing.assert_array_equal(curves["rms"], forecast.norm[steps - 1] / 1024)
    np.testing.assert_array_equal(curves["rotation"], forecast.rotation[steps - 1])
    np.testing.assert_array_equal(curves["share"], plan.memory.share[steps - 1] * 2000)
    left = [math.prod(1 - plan.setting.decay_per_step()[:s]) for s in steps[::20]]
    np.testing.assert_allclose(curves["left"][::20], left, rtol=1e-9)


@pytest.mark.parametrize("steps", [1, 2, 7, 100, 161])
def test_short_runs_have_curves(steps: int) -> None:
    curves = curves_of(plan_setting(Setting.make(lr=1e-3, weight_decay=0.1, steps=steps)))
    assert {len(v) for v in curves.values()} == {160}
    assert curves["step"][-1] == steps


def test_a_grid_holds_the_plans_of_its_values() -> None:
    plan = plan_setting(SETTINGS["cosine"])
    found = grid_sources(plan)
    notes = json.loads(found["notes"]["json"][0])
    lrs, decays = notes["grid"]["lr"], notes["grid"]["weight_decay"]
    assert 3e-4 in lrs
    assert 0.1 in decays
    assert len(notes["rows"]) == len(lrs) * len(decays) == len(found["curves"]["lr"])
    for i, j in ((0, 0), (len(lrs) - 1, 0), (lrs.index(3e-4), decays.index(0.1))):
        row = i * len(decays) + j
        expected = plan_setting(Setting.make(
            lr=lrs[i], weight_decay=decays[j], betas=(0.9, 0.95), steps=2000, schedule="cosine", warmup=50
        ))  # fmt: skip
        np.testing.assert_allclose(found["curves"]["rotation"][row], curves_of(expected, 100)["rotation"], rtol=1e-6)
        assert notes["rows"][row]["summary"] == summary(expected)
        assert [f["code"] for f in notes["rows"][row]["findings"]] == [f.code for f in expected.findings]


def test_the_page_says_where_the_schedule_ends() -> None:
    setting = {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0, "steps": 100, "schedule": "cosine"}
    for final, words in ((None, "cosine to 10 % of the peak"), (0.5, "cosine to 50 % of the peak")):
        notes = json.loads(grid_sources(eq.plan(**setting, final=final))["notes"]["json"][0])
        assert notes["kept"]["schedule"] == words
        assert notes["rows"][0]["title"].endswith(words)


def test_a_grid_without_decay_has_one_column() -> None:
    notes = json.loads(grid_sources(plan_setting(Setting.make(lr=1e-3, steps=50)))["notes"]["json"][0])
    assert notes["grid"]["weight_decay"] == [0.0]


def test_knobs_make_settings_and_refuse_nonsense() -> None:
    knobs = Knobs.read({"lr": 0.01, "steps": 100, "warmup": 5, "optimizer": "lion", "schedule": "linear", "final": 0})
    assert knobs.setting().groups[0].dynamics.optimizer == "lion"
    for wrong in (
        {"lr": "x"}, {"lr": -1}, {"lr": float("nan")}, {"steps": 10**9}, {"steps": 1.5}, {"optimizer": "sgd; rm"},
        {"schedule": "__class__"}, {"beta3": 1}, {"final": 2}, [1], None, {"width": 0}, {"lr": True}, {"lr": None},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="must"):
            Knobs.read(wrong)
    with pytest.raises(ValueError, match="warmup"):
        Knobs(warmup=50, steps=50).setting()


def test_a_live_page_has_the_setting_and_the_pinned_one() -> None:
    found = live_sources(Knobs(steps=500, warmup=10), Knobs(steps=300, warmup=10, optimizer="sgdm"))
    notes = json.loads(found["notes"]["json"][0])
    assert len(notes["rows"]) == 2
    assert {s["name"] for s in notes["spec"]} == set(notes["knobs"])
    assert found["curves"]["step"][:, -1].tolist() == [500, 300]
    assert set(CURVES) < set(found["curves"])


@pytest.mark.parametrize("optimizer", eq.theory.OPTIMIZERS)
def test_every_optimizer_has_a_page(optimizer: str) -> None:
    found = live_sources(Knobs(optimizer=optimizer, steps=200, warmup=10, width=32))
    assert np.isfinite(found["curves"]["lr"]).all()


def test_a_live_page_can_begin_from_trained_weights() -> None:
    knobs = Knobs.read({"start": "trained", "lr": 2e-5, "weight_decay": 0.01, "steps": 600, "warmup": 10})
    assert knobs.setting().finetune
    assert Knobs().setting().finetune is None
    with pytest.raises(ValueError, match="start"):
        Knobs.read({"start": "pretrained"})
    found = live_sources(knobs, Knobs(steps=300, warmup=10))
    notes = json.loads(found["notes"]["json"][0])
    assert notes["finetune"]
    assert notes["left"][0] == "Distance from the start"
    assert "--finetune" in notes["rows"][0]["texts"]["command"]
    assert not {"equilibrium at step", "batches remembered"} & dict(notes["rows"][0]["summary"]).keys()
    far = plan_setting(knobs.setting()).main_travel
    assert far is not None
    assert found["curves"]["left"][0, -1] == pytest.approx(far.expected)
    assert np.isnan(found["curves"]["left"][1]).all(), "of the pinned one it is another quantity"
    assert json.loads(live_sources(Knobs())["notes"]["json"][0])["left"][0] == "Initialisation left"


def test_fine_tuning_is_shown_by_its_distance() -> None:
    plan = eq.plan(optimizer="adamw", lr=2e-5, weight_decay=0.01, steps=600, finetune=True)
    rows = dict(summary(plan))
    assert set(rows) == {
        "RMS, start",
        "distance by a random walk",
        "if gradients never change",
        "removed by decay",
    }
    far = plan.main_travel
    assert far is not None
    assert curves_of(plan)["left"][-1] == pytest.approx(far.expected)
    page = plan_html(plan)
    assert "Distance from the start" in page
    assert "Initialisation left" not in page
    assert "--finetune" in page
