"""Several optimizers that share a model make one run with one row a step."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.monitor.loops import loss_of, network, value
from torch import nn

import equipoise as eq
from equipoise.monitor.measure import frame


def split(model: nn.Module) -> list[torch.optim.Optimizer]:
    """Muon for matrices, AdamW for the rest."""
    params = list(model.parameters())
    return [
        torch.optim.Muon([p for p in params if p.ndim == 2], lr=0.02, weight_decay=0.1),
        torch.optim.AdamW([p for p in params if p.ndim < 2], lr=0.01, weight_decay=0.2),
    ]


def test_muon_and_adamw_make_one_row_a_step(tmp_path: Path) -> None:
    """Numbers are those of the weights before and after, and of the group that each tensor is in."""
    model = network()
    optimizers = split(model)
    before: dict[str, Any] = {}
    with eq.watch(model, optimizers, tmp_path, every=1, strict=True, spectra=1) as watch:
        for step in range(4):
            before = {n: p.detach().clone() for n, p in model.named_parameters()}
            loss_of(model, step).backward()
            for optimizer in optimizers:
                optimizer.step()
            watch.log(loss=float(step))
            assert watch.step == step + 1
            for optimizer in optimizers:
                optimizer.zero_grad()
    with eq.Run.open(tmp_path) as run:
        assert run.meta["optimizer"] == "Muon + AdamW"
        assert list(run.series("balance_layers").steps) == [1, 2, 3, 4]
        assert list(run.series("loss").steps) == [1, 2, 3, 4]
        assert [value(run, f"lr/{i}") for i in (0, 1)] == pytest.approx([0.02, 0.01])
        assert [value(run, f"weight_decay/{i}") for i in (0, 1)] == pytest.approx([0.1, 0.2])
        for name, p in model.named_parameters():
            old, new = before[name].double(), p.detach().double()
            assert run.tensors[name].group == (0 if p.ndim == 2 else 1)
            lost = 0.02 * 0.1 if p.ndim == 2 else 0.01 * 0.2
            assert value(run, "change", name) == pytest.approx(float((new - old).norm()), rel=1e-4)
            assert value(run, "update", name) == pytest.approx(float((new - old + lost * old).norm()), rel=1e-4)
            assert math.isfinite(value(run, "grad_momentum_cos", name))
        assert value(run, "update_orthogonality", "0.weight") < 0.5
        assert math.isfinite(value(run, "eps_share", "0.bias"))
        assert len(run.series("eps_share", "0.weight")) == 0


def test_nothing_changes_to_the_last_bit(tmp_path: Path) -> None:
    def run(watching: bool) -> list[Any]:
        model = network()
        optimizers = split(model)
        watch = eq.watch(model, optimizers, tmp_path, every=1, spectra=1, strict=True) if watching else None
        for step in range(4):
            loss_of(model, step).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        if watch is not None:
            watch.close()
            assert watch.findings == []
        states = [s for o in optimizers for s in o.state_dict()["state"].values()]
        moments = [v.tolist() for s in states for v in s.values()]
        return [p.tolist() for p in model.parameters()] + moments + [torch.get_rng_state().tolist()]

    assert run(False) == run(True)


def test_one_that_steps_more_often_has_steps_of_its_own(tmp_path: Path) -> None:
    """As a GAN: the discriminator steps twice, then the generator once, which belongs to the step before it."""
    model = network()
    d, g = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in (model[0], model[3]))  # type: ignore[index]
    with eq.watch(model, [d, g], tmp_path, every=1, strict=True, spectra=1) as watch:
        for _ in range(3):
            for k in range(2):
                d.zero_grad()
                loss_of(model, k).backward()
                d.step()
            g.zero_grad()
            loss_of(model, 2).backward()
            g.step()
        assert watch.step == 6
    with eq.Run.open(tmp_path) as run:
        assert list(run.series("norm", "0.weight").steps) == [1, 2, 3, 4, 5, 6]
        assert list(run.series("norm", "3.weight").steps) == [2, 4, 6]
        assert list(run.series("angle", "3.weight").steps) == [2, 4, 6]
        assert list(run.series("weight_top", "3.weight").steps) == [2, 4, 6]
        assert value(run, "memory/0") == pytest.approx(6)
        assert value(run, "memory/1") == pytest.approx(3)


def test_the_copy_of_one_is_given_back_before_the_next(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(frame, "LITTLE", 0)
    model = network()
    optimizers = split(model)
    held: list[int] = []
    with eq.watch(model, optimizers, tmp_path, every=2, strict=True) as watch:

        def count(*_: Any) -> None:
            workspace = watch._measurer.frame._workspace
            held.append(0 if workspace is None else sum(c._copy.numel() for c in workspace.all if c._copy is not None))

        for optimizer in optimizers:
            optimizer.register_step_pre_hook(count)
        loss_of(model, 0).backward()
        for optimizer in optimizers:
            optimizer.step()
    assert held == [sum(p.numel() for p in o.param_groups[0]["params"]) for o in optimizers]


def test_groups_may_come_to_any_of_them(tmp_path: Path) -> None:
    model = network()
    params = list(model.parameters())
    first, second = torch.optim.SGD(params[:1], lr=0.1), torch.optim.SGD(params[1:2], lr=0.2)
    with eq.watch(model, [first, second], tmp_path, every=1, strict=True):
        for step in range(2):
            loss_of(model, step).backward()
            first.step()
            second.step()
            if step == 0:
                first.add_param_group({"params": params[2:], "lr": 0.3})
    with eq.Run.open(tmp_path) as run:
        assert run.tensors["0.bias"].group == 2
        assert [value(run, f"lr/{i}") for i in range(3)] == pytest.approx([0.1, 0.3, 0.2])
        assert list(run.series("norm", "3.weight").steps) == [2]


def test_a_switch_has_the_lr_of_the_one_whose_turn_it_is(tmp_path: Path) -> None:
    model = network()
    params = list(model.parameters())
    switch = eq.Switch(torch.optim.AdamW(params, lr=0.01), torch.optim.SGD(params, lr=0.5), at=2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(switch, 0.5)
    with eq.watch(model, switch, tmp_path, every=1, strict=True):
        for step in range(4):
            loss_of(model, step).backward()
            switch.step()
            scheduler.step()
    with eq.Run.open(tmp_path) as run:
        assert run.series("lr/0").values.tolist() == pytest.approx([0.01, 0.005, 0.125, 0.0625])


def test_what_cannot_be_watched_together_is_refused(tmp_path: Path) -> None:
    p = nn.Parameter(torch.ones(2))
    one, two = torch.optim.SGD([p], lr=0.1), torch.optim.SGD([p], lr=0.1)
    with pytest.raises(ValueError, match=r"optimizer = \[\]: must be an optimizer"):
        eq.watch(None, [], tmp_path)
    with pytest.raises(ValueError, match="the same one is in the list twice"):
        eq.watch(None, [one, one], tmp_path)
    with pytest.raises(ValueError, match="is in number 0 and in number 1 of the list; must be in only one"):
        eq.watch(None, [one, two], tmp_path)
