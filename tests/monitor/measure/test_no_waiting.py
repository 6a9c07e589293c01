"""Watching never waits for a device, neither on measured steps nor on others, spectra included."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import equipoise as eq
from equipoise.monitor.attach.registry import OptimizerRegistry
from equipoise.monitor.measure import spectra
from equipoise.monitor.measure.frame import Frame
from equipoise.optim.dynamics_of import group_state

WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "unique", "_linalg_eigh", "_linalg_svd")
"""What reads a number of a device. Torch's solvers read whether they succeeded."""


class Refused(TorchDispatchMode):
    """Refuses what would wait; step counts lie on the CPU, and may be read."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self._optimizer = optimizer

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        counts = [state["step"].data_ptr() for state in self._optimizer.state.values() if "step" in state]
        assert name not in WAITS or args[0].data_ptr() in counts, f"{name}: the host waits for the device"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("make", [eq.AdamW, eq.RotationalAdamW, torch.optim.SGD])
def test_no_step_waits(make: Any, tmp_path: Path) -> None:
    """Every third step is measured. Without spectra, which are solved at once where they are on the CPU already."""
    model = torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Linear(8, 5))
    optimizer = make(model.parameters(), lr=0.01, weight_decay=0.1)
    with eq.watch(model, optimizer, tmp_path, every=3, spectra=0, strict=True):
        for _ in range(8):
            optimizer.zero_grad()
            loss = model(torch.randn(16, 12)).square().mean()
            loss.backward()
            with Refused(optimizer):
                optimizer.step()
    with eq.Run.open(tmp_path) as run:
        assert len(run.series("rotation", "0.weight")) >= 3


@pytest.fixture
def on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if tensors had to come from a device."""
    monkeypatch.setattr(spectra, "_there", lambda x: False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)


@pytest.mark.usefixtures("on_the_way")
def test_spectra_are_taken_without_waiting_and_solved_on_the_host() -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(12, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, eps=1e-2)
    registry = OptimizerRegistry(optimizer)
    frame = Frame(registry, {id(p): name for name, p in model.named_parameters()}, 0, {})
    seen = spectra.Spectra(frame, first=True)
    model(torch.randn(16, 12)).square().mean().backward()
    before = model.weight.detach().clone()
    with torch.no_grad():
        frame.begin(cautious=False)
        frame.before(0, 0, grads=True)
        optimizer.step()
        steps = [group_state(optimizer, group) for group in optimizer.param_groups]
        frame.after(0, False, np.zeros(2, dtype=bool), [0, 1])
        with Refused(optimizer):
            taken = seen.measure(registry, [0, 1], steps, failed=False)
    row = dict(zip([(c.quantity, c.tensor) for c in seen.layout.columns], seen.row(taken), strict=True))
    weight = model.weight.detach().double()
    update = weight - before.double() * (1 - 0.001)
    state = optimizer.state[model.weight]
    for key, matrix in (("weight", weight), ("update", update), ("momentum", state["exp_avg"].double())):
        values = torch.linalg.svdvals(matrix)
        assert row[f"{key}_top", "weight"] == pytest.approx(float(values[0]), rel=1e-4)
        assert row[f"{key}_bottom", "weight"] == pytest.approx(float(values[-1]), rel=1e-3)
    small = (state["exp_avg_sq"] / (1 - 0.999)).sqrt() < 1e-2
    assert row["eps_share", "weight"] == pytest.approx(float(small.double().mean()))
    assert np.isnan(row["weight_top", "bias"])
    assert row["eps_share", "bias"] >= 0


@pytest.mark.usefixtures("on_the_way")
def test_many_large_spectra_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectra, "ROOM", 3 * 8 * 16 * 16)
    params = [torch.nn.Parameter(torch.randn(16, 20)) for _ in range(5)]
    optimizer = torch.optim.SGD(params, lr=0.1)
    registry = OptimizerRegistry(optimizer)
    frame = Frame(registry, {}, 0, {})
    with torch.no_grad():
        frame.begin(cautious=False)
        frame.before(0, 0, grads=False)
        frame.after(0, False, np.zeros(5, dtype=bool), range(5))
    steps = [group_state(optimizer, group) for group in optimizer.param_groups]
    taken = spectra.Spectra(frame, first=True).measure(registry, list(range(5)), steps, failed=False)
    assert sum(one.size for one in taken) <= spectra.ROOM
    assert all("weight_top" in one.solve() for one in taken)
