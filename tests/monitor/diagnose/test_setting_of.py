"""A run as a setting: what `plan_setting` forecasts of it is what `run.compare` uses, and what was measured."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.monitor.measure.walked import RATES, Walker, bare, walk

import equipoise as eq
from equipoise.planner.planning import plan_setting

STEPS = 120
NAMES = ("matrix", "conv", "experts", "gain")


def taken(model: Walker, optimizer: Any, path: Path, scheduler: Any = None, **options: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    given: dict[str, Any] = {"every": 4, "spectra": 0, "strict": True, "quiet": True, "finetune": False} | options
    with eq.watch(model, optimizer, path, **given):
        for _ in range(STEPS):
            walk(model, optimizer, generator)
            if scheduler is not None:
                scheduler.step()


MADE = {
    "AdamW": lambda m: torch.optim.AdamW(bare(m), **RATES),
    "SGD": lambda m: torch.optim.SGD(bare(m), lr=0.05, momentum=0.9, weight_decay=0.05),
    "Muon": lambda m: eq.Muon(bare(m), polar={"steps": 8}, **RATES),
    "corrected": lambda m: eq.AdamW(bare(m), decay="corrected", lr_max=0.005, **RATES),
    "RotationalAdamW": lambda m: eq.RotationalAdamW(bare(m), **RATES),
}


@pytest.mark.parametrize("key", MADE)
def test_its_plan_is_what_compare_uses(key: str, tmp_path: Path) -> None:
    """Every tensor's norm and rotation at each measured step, within 1 %, under a schedule with warmup."""
    model = Walker(NAMES)
    optimizer = MADE[key](model)
    curve = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: min((t + 1) / 20, 1.2 - (t + 1) / 100, 1.0))
    taken(model, optimizer, tmp_path, curve)
    with eq.Run.open(tmp_path) as run:
        setting = run.setting
        assert setting.steps == STEPS
        assert setting.warmup == 20
        assert setting.own_schedules == ()
        forecasts = {t.tensor.name: t.forecast for t in plan_setting(setting).tensors}
        for name in NAMES:
            planned, compared = forecasts[name], run.compare(name)
            assert planned is not None
            for quantity in ("norm", "rotation"):
                want = getattr(planned, quantity)[compared.steps - 1]
                assert getattr(compared.plain, quantity) == pytest.approx(want, rel=0.01), (name, quantity)


def test_groups_with_schedules_of_their_own(tmp_path: Path) -> None:
    """lr and weight decay of each group at every step, as the optimizer had them."""
    model = Walker(("matrix", "conv"))
    optimizer = torch.optim.AdamW(bare(model), **RATES)
    optimizer.param_groups[1]["lr"] = 0.02
    wanted: list[list[tuple[float, float]]] = [[], []]
    generator = torch.Generator().manual_seed(2)
    with eq.watch(model, optimizer, tmp_path, every=4, spectra=0, strict=True, quiet=True) as watch:
        for step in range(1, STEPS + 1):
            optimizer.param_groups[0]["lr"] = 0.01 * (1 - step / 200)
            optimizer.param_groups[1]["weight_decay"] = 0.5 if step < 60 else 0.1
            for group, at in zip(optimizer.param_groups, wanted, strict=True):
                at.append((group["lr"], group["weight_decay"]))
            walk(model, optimizer, generator)
    assert [f for f in watch.findings if f.severity == "error"] == []
    with eq.Run.open(tmp_path) as run:
        setting = run.setting
        for i, rates in enumerate(wanted):
            lr, decay = np.array(rates).T
            assert setting.lr(i) == pytest.approx(lr, rel=1e-5)
            assert setting.weight_decay(i) == pytest.approx(decay, rel=1e-5)
        forecasts = {t.tensor.name: t.forecast for t in plan_setting(setting).tensors}
        for name, planned in forecasts.items():
            assert planned is not None
            compared = run.compare(name)
            assert compared.plain.norm == pytest.approx(planned.norm[compared.steps - 1], rel=0.01)


def test_sizes_and_the_start_are_stored(tmp_path: Path) -> None:
    model = Walker(("matrix", "gain"))
    optimizer = torch.optim.AdamW(bare(model), **RATES)
    sizes = {"batch_size": 8, "dataset_size": 960, "tokens_per_sample": 0}
    taken(model, optimizer, tmp_path, finetune=True, steps=200, meta=sizes)
    with eq.Run.open(tmp_path) as run:
        setting = run.setting
    assert (setting.batch_size, setting.dataset_size, setting.tokens_per_sample) == (8, 960, None)
    assert setting.steps_per_epoch == 120
    assert setting.finetune is True
    assert setting.steps == STEPS
    assert any("120 of 200 steps" in note for note in setting.assumptions)
    assert {t.name: (t.kind, t.shape) for t in setting.tensors} == {
        "matrix": ("matrix", (64, 64)),
        "gain": ("gain", (4096,)),
    }


def test_a_run_without_steps_or_optimizer_says_so(tmp_path: Path) -> None:
    model = Walker(("matrix",))
    with eq.watch(model, torch.optim.AdamW(bare(model)), tmp_path / "empty", quiet=True):
        pass
    with eq.Run.open(tmp_path / "empty") as run, pytest.raises(ValueError, match="the run does not say what its opt"):
        _ = run.setting


def test_another_process_reads_it_without_torch(tmp_path: Path) -> None:
    """Setting, comparison and diagnosis come from what the run stores: there is no live optimizer to ask."""
    model = Walker(("matrix", "gain"))
    taken(model, torch.optim.AdamW(bare(model), **RATES), tmp_path)
    code = (
        "import sys\n"
        "from equipoise.monitor.store.run import Run\n"
        "from equipoise.planner.planning import plan_setting\n"
        "with Run.open(sys.argv[1]) as run:\n"
        "    plan_setting(run.setting); run.compare('matrix')\n"
        "    assert 'torch' not in sys.modules, 'torch was imported'\n"
        "    assert run.diagnose().coverage.measured > 8\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
