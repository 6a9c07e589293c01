"""The last step of a run is measured, whichever it is, where weights are few."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.monitor.loops import loss_of, network, train

import equipoise as eq
from equipoise.monitor.attach import cadence
from equipoise.monitor.attach.cadence import Cadence
from equipoise.monitor.measure import frame
from equipoise.monitor.store.layout import Column

MAKERS: dict[str, Any] = {
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1),
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=0.1),
    "cautious": lambda model: eq.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, decay="cautious"),
    "two": lambda model: [
        eq.Muon([p for p in model.parameters() if p.ndim > 1], lr=1e-2),
        torch.optim.AdamW([p for p in model.parameters() if p.ndim == 1], lr=1e-2),
    ],
}


@pytest.fixture(autouse=True)
def no_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps of these tests are short, and the machine may be busy."""
    monkeypatch.setattr(cadence, "HELD", 1e9)
    monkeypatch.setattr(cadence, "MOST", 0.0)  # measures as seldom as it may


def steps_of(optimizer: Any, model: torch.nn.Module, number: int, zero_after: bool = False) -> None:
    each = optimizer if isinstance(optimizer, list) else [optimizer]
    scheduler = torch.optim.lr_scheduler.LambdaLR(each[0], lambda step: 1 - step / 100)
    for step in range(number):
        for one in each:
            one.zero_grad()
        loss_of(model, step).backward()
        for one in each:
            one.step()
        scheduler.step()
        if zero_after:
            for one in each:
                one.zero_grad()


@pytest.mark.parametrize("zero_after", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_it_is_measured_as_if_it_had_been_asked_for(name: str, zero_after: bool, tmp_path: Path) -> None:
    rows = {}
    for every in (None, 1):
        model = network()
        optimizer = MAKERS[name](model)
        path = tmp_path / str(every)
        with eq.watch(model, optimizer, path, every=every, spectra=0, strict=True, quiet=True):
            steps_of(optimizer, model, 29, zero_after)
        with eq.Run.open(path) as run:
            table = run.table(None, kind="main")
            rows[every] = dict(zip(table.columns, table.values[list(table.steps).index(29)], strict=True))
            if every is None:
                assert run.coverage.last == 29
                assert run.coverage.measured < 20
    assert rows[None].keys() == rows[1].keys()
    gone, others = ("momentum_norm", "grad_momentum_cos"), ("step_time", "watch_share")
    for column, value in rows[None].items():
        if column.quantity in others:
            continue
        if column.quantity in gone:
            assert np.isnan(value), column
        else:
            np.testing.assert_allclose(value, rows[1][column], rtol=1e-5, atol=1e-7, err_msg=str(column))


@pytest.mark.parametrize("what", ["zeroed in place", "stopped inside of a step", "large", "closure"])
def test_it_is_not_where_something_of_it_is_gone(what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if what == "large":
        monkeypatch.setattr(frame, "LITTLE", 0)
    model = network()
    optimizer = MAKERS["AdamW"](model)
    watch = eq.watch(model, optimizer, tmp_path, spectra=0, strict=True, quiet=True)
    steps_of(optimizer, model, 28)
    if what == "closure":
        optimizer.step(lambda: loss_of(model, 1))
    else:
        train(model, optimizer, 1)
    if what == "zeroed in place":
        optimizer.zero_grad(set_to_none=False)
    if what == "stopped inside of a step":

        def stop(*_: Any) -> None:
            raise KeyboardInterrupt

        optimizer.register_step_pre_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            optimizer.step()
    watch.close()
    with eq.Run.open(tmp_path) as run:
        assert run.coverage.steps == 29 + (what == "stopped inside of a step")
        assert run.coverage.last < 29


def test_one_that_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    seen = set()
    for number in range(8, 24):
        model = network()
        optimizer = MAKERS["AdamW"](model)
        path = tmp_path / str(number)
        watch = eq.watch(model, optimizer, path, spectra=0, strict=True, quiet=True)
        steps_of(optimizer, model, number)
        seen.add(watch._cadence._last == number)
        watch.close()
        assert {f.code for f in watch.findings} <= {"decay-on-gains"}
        with eq.Run.open(path) as run:
            steps = run.series("norm", "0.weight").steps.tolist()
            assert steps == sorted(set(steps))
            assert steps[-1] == number
            assert "row-refused" not in {f.code for f in run.findings}
    assert seen == {False, True}


def test_nothing_changes_to_the_last_bit(tmp_path: Path) -> None:
    weights = []
    for watching in (False, True):
        model = network()
        optimizer = MAKERS["SGD"](model)
        watch = eq.watch(model, optimizer, tmp_path, quiet=True, strict=True) if watching else None
        for step in range(40):
            if step % 3 == 0:  # gradients of three steps add up, in place
                optimizer.zero_grad(set_to_none=False)
            loss_of(model, step).backward()
            optimizer.step()
        if watch is not None:
            watch.close()
        weights.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def test_it_is_kept_while_that_is_a_small_share_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cadence, "HELD", 0.03)
    one = Cadence()
    one.trained_for(1e-3)
    for seconds in (5e-4, *[4e-5] * cadence.TRIALS):
        assert one.keeps, "it is tried first"
        one.kept(seconds)
        if one._trials == cadence.TRIALS:
            break
    assert not one.keeps
    one.kept(2e-5)
    assert one.keeps
    assert not Cadence(every=5).keeps


@pytest.mark.parametrize("decay", ["lr", "cautious"])
@pytest.mark.parametrize("neurons", [0, 2])
def test_copies_give_the_same_sums_as_blocks(
    neurons: int, decay: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Tensors of any shape, some without a gradient, copied whole and measured block by block."""
    shapes = [(7, 5), (4, 3, 2, 2), (), (9,), (3, 40), (1, 1), (6, 5)]
    rows = []
    for most in (frame.LITTLE, 0):
        monkeypatch.setattr(frame, "LITTLE", most)
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
        optimizers = [eq.AdamW(some, lr=1e-2, weight_decay=0.1, decay=decay) for some in (params[:3], params[3:])]
        path = tmp_path / str(most)
        with eq.watch(None, optimizers, path, every=1, neurons=neurons, quiet=True) as watch:
            for step in range(20):
                for i, p in enumerate(params):
                    p.grad = None if i == 6 and step < 2 else torch.randn_like(p)
                for optimizer in optimizers:
                    optimizer.step()
            assert watch._measurer.frame.little == (most > 0)
        assert "watch-failed" not in {f.code for f in watch.findings}
        with eq.Run.open(path) as run:
            table = run.table(None, kind="main")
            assert list(table.steps) == list(range(1, 21))
            there = [i for i, c in enumerate(table.columns) if c.tensor is not None]
            rows.append(([table.columns[i] for i in there], np.asarray(table.values[:, there], np.float64)))
    assert rows[0][0] == rows[1][0]
    loose = [c.quantity in ("radial_decay", "total_decay", "grad_weight_cos", "budget_radial") for c in rows[0][0]]
    for which, rtol in ((np.array(loose), 1e-2), (~np.array(loose), 2e-3)):
        np.testing.assert_allclose(rows[0][1][:, which], rows[1][1][:, which], rtol=rtol, atol=3e-5)


def test_a_row_that_changes_width_with_its_block_keeps_its_start(tmp_path: Path) -> None:
    """Unfreezing a wider layer changes what a block is padded to; the angle to the start goes on."""
    model = network()
    wide = torch.nn.Parameter(torch.randn(3, 50), requires_grad=False)
    optimizer = torch.optim.AdamW([*model.parameters(), wide], lr=1e-2)
    with eq.watch(None, optimizer, tmp_path, every=1, strict=True, quiet=True):
        train(model, optimizer, 10)
        wide.requires_grad_(True)
        for step in itertools.count(10):
            train(model, optimizer, 1, first=step)
            if step == 30:
                break
    with eq.Run.open(tmp_path) as run:
        name = next(n for n, t in run.tensors.items() if t.shape == (10, 12))
        angle = run.series("angle", name).values
        assert Column("norm", next(n for n, t in run.tensors.items() if t.shape == (3, 50))) in run.columns
        assert (np.diff(angle) > -1e-3).all()
        assert angle[-1] > 2 * angle[9]
