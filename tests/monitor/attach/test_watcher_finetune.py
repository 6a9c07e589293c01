"""Runs that fine-tune: what they are taken as, and that nothing meant for training from scratch is said of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import equipoise as eq
from equipoise.board.gather import gather
from equipoise.board.pages.run_page import facts
from equipoise.monitor.diagnose.diagnosis import diagnose
from equipoise.monitor.diagnose.evidence import Evidence
from equipoise.monitor.measure.quantities import distances
from equipoise.monitor.runs.recorded import START, taken_as
from equipoise.monitor.runs.snapshot import SnapshotReader

WAYS = torch.randn(20, 10, generator=torch.Generator().manual_seed(0))


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(20, 64),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Linear(64, 64),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Linear(64, 10),
    )


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, path: Path | None = None, **options: Any
) -> Any:
    watch = None if path is None else eq.watch(model, optimizer, path, every=2, strict=True, **options)
    torch.manual_seed(1)
    for _ in range(steps):
        x = torch.randn(64, 20)
        loss = nn.functional.cross_entropy(model(x), (x @ WAYS).argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if watch is not None:
            watch.log(loss=loss)
    if watch is not None:
        watch.close()
    return model


def pretrained() -> nn.Module:
    model = net()
    return train(model, torch.optim.AdamW(model.parameters(), lr=3e-3), 150)


class Lora(nn.Module):
    def __init__(self, inner: nn.Linear) -> None:
        super().__init__()
        self.inner = inner.requires_grad_(False)
        self.left = nn.Parameter(torch.randn(4, inner.in_features) / inner.in_features**0.5)
        self.right = nn.Parameter(torch.zeros(inner.out_features, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + x @ self.left.T @ self.right.T


def test_fine_tuning_gets_no_advice_for_training_from_scratch(tmp_path: Path) -> None:
    model = pretrained()
    said = {}
    for told in (None, False):
        optimizer = torch.optim.Adam(model.parameters(), lr=2e-5, weight_decay=0.01)
        train(model, optimizer, 60, tmp_path / str(told), finetune=told)
        with eq.Run.open(tmp_path / str(told)) as run:
            said[told] = {f.code for f in run.diagnose()}
            words = taken_as(run.meta)
            assert SnapshotReader(run).now().taken_as == words
            if told is None:
                assert words == "fine-tuning: the gains of 2 of 2 norms have moved; pass finetune=False if it is not"
            else:
                assert words is None
    assert said[False] >= {"decay-on-gains", "adam-l2"}
    assert said[None] == set()


def test_training_from_scratch_is_taken_as_that(tmp_path: Path) -> None:
    model = net()
    train(model, torch.optim.AdamW(model.parameters(), lr=1e-3), 20, tmp_path)
    with eq.Run.open(tmp_path) as run:
        assert run.meta[START] == {"finetune": False, "frozen": 0}
        assert not Evidence(run).finetune


def test_a_run_that_goes_on_is_what_it_was(tmp_path: Path) -> None:
    """Weights of a checkpoint look trained: by this very run."""
    model = net()
    train(model, torch.optim.AdamW(model.parameters(), lr=3e-3), 150, tmp_path)
    fresh_state = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train(model, fresh_state, 10, tmp_path, resume=True)
    with eq.Run.open(tmp_path) as run:
        assert taken_as(run.meta) is None
    train(model, fresh_state, 10, tmp_path, resume=True, finetune=True)
    with eq.Run.open(tmp_path) as run:
        assert taken_as(run.meta) == "fine-tuning: finetune=True"


def test_adapters(tmp_path: Path) -> None:
    model: Any = pretrained().requires_grad_(False)
    for i in (0, 3, 6):
        model[i] = Lora(model[i])
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.0)
    train(model, optimizer, 100, tmp_path)
    with eq.Run.open(tmp_path) as run:
        assert run.diagnose() == []
        assert "of the parameters are frozen" in str(taken_as(run.meta))
        assert run.tensors["3.right"].info["init_norm"] == 0
        for quantity in ("rotation", "relative_update", "effective_lr"):
            series = run.series(quantity, "3.right")
            assert not len(series.steps) or (series.steps[0] > 1 and np.isfinite(series.values).all()), quantity
        rows = dict(facts(gather(run)))
        assert rows["started at 0"].startswith("3 tensors, now of RMS ")
        assert "of ‖w₀‖" in rows["distance from the start"]


def test_zeros_of_a_fresh_network_raise_no_alarm(tmp_path: Path) -> None:
    model = net()
    nn.init.zeros_(model[3].weight)  # type: ignore[arg-type]
    decayed = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    groups = [{"params": decayed, "weight_decay": 10.0}, {"params": rest, "weight_decay": 0.0}]
    train(model, torch.optim.AdamW(groups, lr=1e-3), 300, tmp_path)
    with eq.Run.open(tmp_path) as run:
        assert not any(f.where == "3.weight" and f.code == "transient-too-fast" for f in run.diagnose())


def test_facts_are_measured(tmp_path: Path) -> None:
    model = pretrained()
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    train(model, torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.1), 300, tmp_path, neurons=64)
    with eq.Run.open(tmp_path) as run:
        found = {f.code: f for f in diagnose(run)}
        assert found["decay-takes-start"].evidence.startswith("weight decay removes 45%")
        assert found["far-from-start"].severity == "info"
        e = Evidence(run)
        far = distances(e.mean("norm")[-1], e.mean("angle")[-1], e.start)
        for i in e.layers:
            name = e.names[i]
            change = dict(model.named_parameters())[name].detach() - start[name]
            assert far[i] == pytest.approx(float(change.norm() / start[name].norm()), rel=0.01)


def test_distances_by_hand() -> None:
    rng = np.random.default_rng(0)
    a = rng.standard_normal(50)
    for b in (a + 1e-5 * rng.standard_normal(50), rng.standard_normal(50), 2 * a):
        angle = np.arctan2(np.linalg.norm(b - a * (a @ b) / (a @ a)), (a @ b) / np.linalg.norm(a))
        found = distances(*(np.array([float(x)]) for x in (np.linalg.norm(b), angle, np.linalg.norm(a))))
        assert found[0] == pytest.approx(np.linalg.norm(b - a) / np.linalg.norm(a), rel=1e-6)
    assert np.isnan(distances(np.ones(1), np.ones(1), np.zeros(1))).all()


def test_what_is_said_must_be_a_bool(tmp_path: Path) -> None:
    model = net()
    with pytest.raises(ValueError, match="finetune = 1: must be true or false"):
        eq.watch(model, torch.optim.AdamW(model.parameters()), tmp_path, finetune=1)  # type: ignore[arg-type]
