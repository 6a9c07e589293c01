"""Relatives of rotation, against their papers' algorithms, and where these say nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.optim import references
from tests.optim.table import RELATIVES, Row

from equipoise import optim


def run(make: Any, start: torch.Tensor, grads: torch.Tensor, **options: Any) -> torch.Tensor:
    w = torch.nn.Parameter(start.clone())
    optimizer = make([w], **options)
    for g in grads:
        w.grad = g.clone()
        optimizer.step()
    return w.detach()


def data(shape: tuple[int, ...] = (6, 10), steps: int = 12) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(shape, generator=generator, dtype=torch.float64)
    return start, torch.randn(steps, *shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("row", RELATIVES, ids=str)
@pytest.mark.parametrize("foreach", [None, False])
def test_it_is_its_papers_algorithm(row: Row, foreach: bool | None) -> None:
    start, grads = data()
    options: Any = row.options
    assert row.reference is not None
    expected = row.reference(start.numpy(), grads.numpy(), **options)
    got = run(row.make, start, grads, foreach=foreach, **options, **({"nesterov": True} if "clip" in options else {}))
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-12)
    assert np.abs(expected - start.numpy()).max() > 0.01


def test_normuon_is_its_papers_algorithm() -> None:
    start, grads = data()
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1, "beta2": 0.7}
    expected = references.normuon(start.numpy(), grads.numpy(), **options)

    def make(params: Any, **options: Any) -> optim.NorMuon:
        return optim.NorMuon([{"params": params, "muon": True}], polar={"method": "svd"}, **options)

    np.testing.assert_allclose(run(make, start, grads, **options).numpy(), expected, rtol=1e-7, atol=1e-9)


MUONS: dict[str, tuple[Any, Any, dict[str, Any], dict[str, Any]]] = {
    "floor": (optim.FloorMuon, references.floor_muon, {"floor": 0.9}, {}),
    "floor, rows": (optim.FloorMuon, references.floor_muon, {"floor": 0.9, "rows": True}, {"granularity": "neuron"}),
    "no floor": (optim.FloorMuon, references.floor_muon, {"floor": 0.0}, {}),
    "brake": (optim.BrakeMuon, references.brake_muon, {"outward": 0.3, "inward": 0.6}, {}),
    "no brake": (optim.BrakeMuon, references.brake_muon, {"outward": 1.0, "inward": 1.0}, {}),
    "full brake": (optim.BrakeMuon, references.brake_muon, {"outward": 0.0, "inward": 0.0}, {}),
}


@pytest.mark.parametrize("name", MUONS)
@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_muons_with_a_floor_or_a_brake_are_their_algorithms(name: str, shape: tuple[int, int]) -> None:
    make, reference, own, more = MUONS[name]
    start, grads = data(shape, steps=40)
    start = start / 2  # short enough that some steps are above the floor, and long enough that some are not
    grads[20:] = -start + 0.1 * grads[20:]  # at first outward, then inward
    options: dict[str, Any] = {"lr": 0.1, "momentum": 0.8, "weight_decay": 0.1}
    expected = reference(start.numpy(), grads.numpy(), **options, **own)

    def build(params: Any, **options: Any) -> torch.optim.Optimizer:
        group = {"params": params, "muon": True}
        return make([group], polar={"method": "svd"}, scale="none", nesterov=False, **options, **more)

    options |= {key: value for key, value in own.items() if key != "rows"}
    np.testing.assert_allclose(run(build, start, grads, **options).numpy(), expected, rtol=1e-7, atol=1e-9)
    if name.startswith("no "):
        muon = run(
            lambda params, **o: optim.Muon([{"params": params, "muon": True}], polar={"method": "svd"}, **o),
            start, grads, scale="none", nesterov=False, lr=0.1, momentum=0.8, weight_decay=0.1,
        )  # fmt: skip
        np.testing.assert_allclose(muon.numpy(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
def test_md_muon_is_its_papers_algorithm(shape: tuple[int, int]) -> None:
    start, grads = data(shape)
    own: dict[str, Any] = {"lr": 0.1, "weight_decay": 0.2, "gain_rate": 0.3}
    muon = references.muon_direction(0.8)
    expected = references.md(start.numpy(), grads.numpy(), direction=muon, betas=(0.8, 0.9), eps=1e-8, **own)
    got = run(apart(optim.MDMuon, scale="none", nesterov=False, momentum=0.8), start, grads, **own)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("shape", [(6, 10), (10, 6)])
@pytest.mark.parametrize("warmup", [0, 4])
def test_angular_muown_is_its_papers_algorithm(shape: tuple[int, int], warmup: int) -> None:
    start, grads = data(shape)
    own: dict[str, Any] = {"lr": 0.1, "momentum": 0.8, "turn_decay": 0.2, "turn_power": 0.7, "turn_warmup": warmup}
    expected = references.angular_muown(start.numpy(), grads.numpy(), betas=(0.8, 0.9), eps=1e-8, **own)
    got = run(apart(optim.AngularMuown), start, grads, **own)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-7, atol=1e-9)


def apart(make: Any, **fixed: Any) -> Any:
    """A Muon with magnitudes apart, all of it exact, of one matrix."""

    def build(params: Any, **options: Any) -> torch.optim.Optimizer:
        adam = {"betas": (0.8, 0.9), "eps": 1e-8}
        return make([{"params": params, "muon": True}], polar={"method": "svd"}, adam=adam, **fixed, **options)

    return build


@pytest.mark.parametrize("compiled", [False, True])
def test_nero_is_its_papers_algorithm(compiled: bool) -> None:
    start, grads = data((64, 40), steps=8)
    expected = references.nero(start.numpy(), grads.numpy(), lr=0.1, beta=0.7, norm=1.0)
    got = run(optim.Nero, start, grads, lr=0.1, beta=0.7, norm=1.0, compile=compiled)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-9, atol=1e-12)
    for bias in (torch.zeros(8, dtype=torch.float64), torch.linspace(-1, 1, 8, dtype=torch.float64)):
        slopes = data((8,))[1]
        expected = references.nero_biases(bias.numpy(), slopes.numpy(), lr=0.1, beta=0.7)
        np.testing.assert_allclose(run(optim.Nero, bias, slopes, lr=0.1, beta=0.7).numpy(), expected, rtol=1e-9)


def test_nero_keeps_norms_and_means_and_splits_groups() -> None:
    convs = [torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 2, 1)]
    model = torch.nn.Sequential(*convs, torch.nn.Linear(1, 5))
    named = list(model.named_parameters())
    norms = [p.detach().flatten(1).norm(dim=1) for _, p in named if p.ndim > 1]
    optimizer = optim.Nero(named, lr=0.1)
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 4]  # rows of one number do not turn
    assert optimizer.param_groups[1]["param_names"] == ["0.bias", "1.bias", "2.weight", "2.bias"]
    for t in range(3):
        torch.manual_seed(t)
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        optimizer.step()
    for p, norm in zip([conv.weight for conv in convs], norms, strict=False):
        rows = p.detach().flatten(1)
        torch.testing.assert_close(rows.norm(dim=1), norm)
        assert rows.mean(1).abs().max() < 1e-7
    with pytest.raises(ValueError, match="must be a list of parameters or groups"):
        optim.Nero(torch.ones(2))
    with pytest.raises(ValueError, match="was computed"):
        optimizer.add_param_group({"params": [torch.ones(3, 3, requires_grad=True) * 2]})


@pytest.mark.parametrize("make", [optim.Nero, optim.MDAdam, optim.MDMuon, optim.AngularMuown, optim.AdamP])
def test_lr_zero_and_zeros(make: Any) -> None:
    """Nothing moves at lr 0, rows and tensors of zeros begin to learn, and without gradients they stay."""
    start, grads = data()
    still = make([w := torch.nn.Parameter(start - start.mean(1, keepdim=True))], lr=0.0)
    before = w.detach().clone()
    for g in grads:
        w.grad = g.clone()
        still.step()
    assert torch.equal(w.detach(), before)
    rows = start.clone()
    rows[2] = 0.0
    for begin in (rows, torch.zeros_like(rows)):
        got = run(make, begin, grads, lr=0.1)
        assert got.isfinite().all()
        assert (got.norm(dim=1) > 0).all()
        got = run(make, begin, torch.zeros_like(grads), lr=0.1, weight_decay=0.0)
        assert (got[begin.norm(dim=1) == 0] == 0).all()
        assert got.isfinite().all()


def test_adamp_projects_by_rows_by_the_tensor_or_not_at_all() -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(6, 400, generator=generator, dtype=torch.float64)
    other = torch.randn(6, 400, generator=generator, dtype=torch.float64)
    heads = start / start.norm(dim=1, keepdim=True)
    by_row = other - heads * (other * heads).sum(1, keepdim=True)
    by_tensor = by_row + heads * torch.tensor([3.0, -3, 3, -3, 3, -3], dtype=torch.float64)[:, None]
    by_tensor -= start * (by_tensor * start).sum() / start.square().sum()
    options: dict[str, Any] = {"lr": 0.01, "betas": (0.0, 0.0), "eps": 1e-3, "weight_decay": 0.1}
    radial = []
    for g in (by_row, by_tensor, by_row + 3 * heads):
        decayed = {wd: run(optim.AdamP, start, g[None], **options | {"weight_decay": wd}) for wd in (0.0, 0.1)}
        moved = decayed[0.0] - start
        radial.append([float((moved * heads).sum(1).abs().max()), float((moved * start).sum().abs())])
        share = float(((decayed[0.0] - decayed[0.1]) / start).mean())
        assert share == pytest.approx(1e-3 if len(radial) == 3 else 1e-4)
    assert radial[0][0] < 1e-12
    assert radial[1][0] > 1e-3 > 1e-9 > radial[1][1]
    assert min(radial[2]) > 1e-3


def test_magnitudes_have_a_lr_of_their_own_and_the_norm_of_directions_is_kept() -> None:
    start, grads = data()
    norm = start.norm()
    fixed = run(optim.MDAdam, start, grads, lr=0.1, gain_rate=0.0)
    torch.testing.assert_close(fixed.norm(), norm)
    assert not torch.allclose(run(optim.MDAdam, start, grads, lr=0.1).norm(), norm)
    lengths = run(apart(optim.AngularMuown), start, grads, lr=0.0).norm(dim=1)
    torch.testing.assert_close(lengths, start.norm(dim=1))


@pytest.mark.parametrize(("make", "name", "value"), [
    (optim.AdamP, "delta", -1.0), (optim.AdamP, "wd_ratio", 2.0), (optim.MDAdam, "gain_rate", -1.0),
    (optim.AngularMuown, "turn_decay", -1.0), (optim.AngularMuown, "turn_warmup", -1), (optim.Nero, "beta", 1.0),
    (optim.Nero, "norm", 0.0),
])  # fmt: skip
def test_options_of_those_apart_are_checked(make: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} = {value}: must be"):
        make([torch.nn.Parameter(torch.eye(2))], **{name: value})


@pytest.mark.parametrize("move", [optim.Floor(), optim.Brake()])
def test_floor_and_brake_compile_with_other_rules(move: optim.Move) -> None:
    start, grads = data((64, 64), steps=5)
    rule = optim.AdamW([torch.nn.Parameter(torch.ones(2))]).rule
    options = optim.AdamW([torch.nn.Parameter(torch.ones(2))]).defaults | {"lr": 0.1}
    options |= {"floor": 3.0} if isinstance(move, optim.Floor) else {}

    def make(params: Any, **more: Any) -> optim.RuleOptimizer:
        return optim.RuleOptimizer(params, options | more, rule=rule, move=move)

    eager, compiled = (run(make, start, grads, compile=c) for c in (False, True))
    torch.testing.assert_close(eager, compiled, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(eager, run(optim.AdamW, start, grads, lr=0.1, weight_decay=options["weight_decay"]))


@pytest.mark.parametrize(("make", "name", "value"), [
    (optim.FloorMuon, "floor", -1.0), (optim.BrakeMuon, "outward", 1.5), (optim.BrakeMuon, "inward", -0.5),
])  # fmt: skip
def test_floor_and_brake_are_checked(make: Any, name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{name} = {value}: must be"):
        make([torch.nn.Parameter(torch.eye(2))], **{name: value})


def test_lambs_step_is_lr_of_the_norm_whatever_the_decay() -> None:
    start, grads = data(steps=1)
    for decay in (0.0, 0.1, 10.0):
        moved = run(optim.LAMB, start, grads, lr=0.03, weight_decay=decay) - start
        assert float(moved.norm() / start.norm()) == pytest.approx(0.03)


@pytest.mark.parametrize("make", [optim.LAMB, optim.LARS, optim.FloorMuon, optim.BrakeMuon])
def test_zeros_take_a_plain_step(make: Any) -> None:
    _, grads = data()
    zeros = torch.zeros(6, 10, dtype=torch.float64)
    got = run(make, zeros, grads[:1], lr=0.1)
    assert got.isfinite().all()
    assert got.abs().max() > 0
    assert (run(make, zeros, torch.zeros_like(grads), lr=0.1) == 0).all()


def test_small_gradients_are_not_clipped_and_the_output_layer_need_not_be() -> None:
    start, grads = data()
    plain = run(optim.SGDM, start, grads / 1e4, lr=0.1, nesterov=True)
    assert torch.equal(run(optim.ClippedSGDM, start, grads / 1e4, lr=0.1), plain)
    plain = run(optim.SGDM, start, grads, lr=0.1, nesterov=True)
    assert torch.equal(run(optim.ClippedSGDM, start, grads, lr=0.1, clip=None), plain)
    assert not torch.allclose(run(optim.ClippedSGDM, start, grads, lr=0.1), plain)


def test_experts_of_normuon_have_rows_of_their_own() -> None:
    start, grads = data((2, 6, 10), steps=1)
    moved = run(lambda p, **o: optim.NorMuon([{"params": p, "muon": True}], **o), start, grads, lr=1.0, weight_decay=0)
    moved = moved - start
    rows = moved.square().mean(-1).sqrt()
    torch.testing.assert_close(rows, torch.full_like(rows, 0.2), rtol=1e-3, atol=0)


@pytest.mark.parametrize("make", [optim.NorMuon, optim.MDMuon, optim.AngularMuown])
def test_a_convolution_in_one_dimension_is_one_matrix(make: Any) -> None:
    start, grads = data((4, 3, 5))

    def trained(w: torch.Tensor, g: torch.Tensor, **group: Any) -> torch.Tensor:
        return run(lambda p, **o: make([{"params": p, **group}], **o), w, g, lr=0.1)

    flat = trained(start.reshape(4, 15), grads.reshape(-1, 4, 15), muon=True)
    torch.testing.assert_close(trained(start, grads, role="conv").reshape(4, 15), flat)
    assert not torch.allclose(trained(start, grads, muon=True).reshape(4, 15), flat)
