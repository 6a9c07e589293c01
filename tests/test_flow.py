"""One number through the whole house: Setting → Forecast → Run → Finding → board, each asked for itself."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.board import report_html
from equipoise.board.predict import predicted
from equipoise.finding import Finding
from equipoise.monitor.runs.recorded import recorded
from equipoise.monitor.store.layout import Column

NAME, STEPS = "weight", 300


class One(torch.nn.Module):
    """A single weight."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 0.1)


def walked(model: One, optimizer: torch.optim.Optimizer, path: Path) -> list[Finding]:
    generator = torch.Generator().manual_seed(1)
    with eq.watch(model, optimizer, path, every=5, spectra=0, strict=True, quiet=True, finetune=False) as watch:
        for _ in range(STEPS):
            model.weight.grad = torch.randn(model.weight.shape, generator=generator) / model.weight.detach().norm()
            optimizer.step()
    return watch.findings


def test_what_corrected_decay_keeps_above_lr_max(tmp_path: Path) -> None:
    """λη² / η_max would take half of the weights a step; above η_max it is ηλ, a twentieth."""
    model = One(32, 32)
    options: dict[str, Any] = {"lr": 1e-2, "weight_decay": 5.0}
    optimizer = eq.AdamW(model.parameters(), decay="corrected", lr_max=1e-3, **options)
    plan = eq.plan(model, optimizer, steps=STEPS, finetune=False)
    (group,) = plan.setting.groups
    assert group.dynamics.kept(**options) == pytest.approx(0.95)
    forecast = plan.tensors[0].forecast
    assert forecast is not None
    assert forecast.kept == pytest.approx(np.full(STEPS, 0.95))
    told = {f.code: f for f in walked(model, optimizer, tmp_path / "run")}
    before = model.weight.detach().clone()
    model.weight.grad = torch.zeros_like(before)
    for average in optimizer.state[model.weight].values():
        average.zero_() if average.ndim else None  # nothing but decay is left of the step
    optimizer.step()
    assert float((model.weight.detach() / before).mean()) == pytest.approx(0.95, rel=1e-5)
    with eq.Run.open(tmp_path / "run") as run:
        assert recorded(run) == [group], "the run keeps what was planned"
        share = run.series("decay", NAME).values / run.series("norm", NAME).values
        assert share[-20:].mean() == pytest.approx(0.05, rel=0.05)  # of the norm after the step, which is near
        for found in (told["timescale-short"], {f.code: f for f in run.diagnose()}["timescale-short"]):
            assert "0.05 of the weights" in found.evidence
        page = report_html([tmp_path / "run"])
    assert "0.05 of the weights" in page
    assert "0.05 of the weights" in {f.code: f for f in plan.findings}["timescale-short"].evidence


def test_the_norm_of_a_stack_under_muon(tmp_path: Path) -> None:
    """Eight matrices, not one: four times the norm."""
    model = One(8, 16, 32)
    optimizer = eq.Muon(model.parameters(), lr=0.02, weight_decay=0.5, polar={"steps": 8})
    plan = eq.plan(model, optimizer, steps=STEPS, finetune=False)
    (group,) = plan.setting.groups
    layout = group.dynamics.layout((8, 16, 32))
    assert layout is not None
    assert layout[:3] == (8, 16, 32)
    forecast = plan.tensors[0].forecast
    assert forecast is not None
    planned = float(forecast.norm[-1])
    assert [f for f in walked(model, optimizer, tmp_path / "run") if f.severity != "info"] == []
    assert float(model.weight.detach().norm()) == pytest.approx(planned, rel=0.03)
    with eq.Run.open(tmp_path / "run") as run:
        assert recorded(run) == [group]
        assert run.series("norm", NAME).values[-1] == pytest.approx(planned, rel=0.03)
        assert run.compare(NAME).plain.norm[-1] == pytest.approx(planned, rel=0.01)
        table = run.table([Column("norm", NAME)], kind="main")
        assert predicted(run, [NAME], table)[NAME].norm[-1] == pytest.approx(planned, rel=0.01)
        assert [f for f in run.diagnose() if f.severity != "info"] == []
        page = report_html([tmp_path / "run"])
    assert re.search(r"\bweight\b", page)
