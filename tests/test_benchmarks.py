"""Benchmarks of steps run unchanged on any device, as far as a machine without one can show it."""

from typing import Any

import muon
import pytest
import small
import timing
import torch

import equipoise as eq
import optim

WHERE = torch.device("meta")
"""Where a tensor that was made elsewhere cannot be taken, and nothing can be read."""


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (optim, small, timing):
        monkeypatch.setattr(module, "device", lambda: WHERE)
    adamw = torch.optim.AdamW

    def unfused(params: Any, *, fused: bool = False, **options: Any) -> torch.optim.Optimizer:
        return adamw(params, **options)  # torch's fused step does not know the device

    monkeypatch.setattr(torch.optim, "AdamW", unfused)


def test_steps_of_large_and_small_tensors() -> None:
    text = optim.table("two matrices", [(8, 8), (8, 16)], rounds=1)
    assert len(text.splitlines()) == 2 + len(optim.jobs([(8, 8)]))


@pytest.mark.parametrize("name", small.MODELS)
def test_steps_of_small_models(name: str) -> None:
    weights, found = small.ratios(small.MODELS[name], rounds=1)
    assert weights > 7e5
    assert {"torch AdamW", *small.CLASSES} <= set(found)


def test_steps_of_muon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(muon, "SHAPES", [(8, 8), (16, 8)])
    for make in (torch.optim.Muon, eq.Muon):
        params = muon.parameters(WHERE)
        make(params).step()
        assert {p.device for p in params} == {WHERE}
