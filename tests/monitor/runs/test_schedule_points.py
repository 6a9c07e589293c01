"""Settings, memory and coverage of every step that was taken, whatever was measured of it."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.monitor.loops import network, train

import equipoise as eq
from equipoise.board.gather import gather
from equipoise.monitor import Run
from equipoise.monitor.diagnose.attribute import Spans
from equipoise.monitor.diagnose.compare import Comparer, Latest
from equipoise.monitor.runs import schedule_points
from equipoise.monitor.runs.schedule_points import Remembered, Schedules
from equipoise.monitor.store.tables import Coverage

DECAY = 0.5


def watched(path: Path, rates: list[float], *, every: int = 1000, first: int = 1, **options: object) -> Path:
    """Train with one lr a step."""
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=DECAY)
    with eq.watch(model, optimizer, path, every=every, strict=True, **options) as watch:  # type: ignore[arg-type]
        for step, lr in enumerate(rates, first):
            optimizer.param_groups[0]["lr"] = lr
            train(model, optimizer, 1, first=step)
            watch.log(loss=1.0)
    return path


def smooth(steps: int) -> list[float]:
    """Up and down by a cosine: its peak lies between the ends of straight lines."""
    return [0.01 * 0.5 * (1.5 - math.cos(2 * math.pi * t / (steps + 1))) for t in range(1, steps + 1)]


def test_lr_of_every_step_and_its_peak(tmp_path: Path) -> None:
    rates = smooth(401)
    with Run.open(watched(tmp_path, rates)) as run:
        assert run.measured.tolist() == [1]
        schedules = Schedules(run)
        steps, values = schedules.change_points("lr", 0)
        assert len(steps) < 150, "few rows"
        assert values.max() == max(rates)
        assert steps[values.argmax()] == 201
        np.testing.assert_allclose(schedules.lr(0), rates, rtol=2e-3, atol=1e-8)


def test_memory_is_of_the_steps_that_were_taken(tmp_path: Path) -> None:
    rates = [1e-2] * 64 + [3e-3] * 336
    with Run.open(watched(tmp_path, rates)) as run:
        memory = Remembered(run)
        right = eq.theory.memory(lr=np.array(rates), weight_decay=DECAY)
        found = memory.of(0)
        assert found is not None
        np.testing.assert_allclose(found.weights, right.weights, rtol=1e-9)
        assert (found.init_share, found.effective_steps) == pytest.approx((right.init_share, right.effective_steps))
        effective, left = memory.so_far(0)
        early = eq.theory.memory(lr=np.array(rates[:100]), weight_decay=DECAY)
        assert (effective[99], left[99]) == pytest.approx((early.effective_steps, early.init_share))
        (now,) = memory.now
        assert (now.lr, now.peak, now.weight_decay) == (3e-3, 1e-2, DECAY)
        assert run.coverage == Coverage(1, 400, 1)


def test_a_resumed_run_has_the_lr_of_both_lives(tmp_path: Path) -> None:
    watched(tmp_path, [0.01] * 300, every=20)
    watched(tmp_path, [0.001] * 100, first=201, resume=200, every=20)
    with Run.open(tmp_path) as run:
        rates = [0.01] * 200 + [0.001] * 100
        np.testing.assert_allclose(Schedules(run).lr(0), rates, rtol=1e-12)
        right = eq.theory.memory(lr=np.array(rates), weight_decay=DECAY)
        found = Remembered(run).of(0)
        assert found is not None
        assert found.init_share == pytest.approx(right.init_share), "not of the second life alone"
        assert run.coverage == Coverage(17, 300, 300)
        (leap,) = [f for f in run.diagnose() if f.code == "lr-leap"]
        assert "0.01 to 0.001 at step 201" in leap.evidence


def test_a_run_that_goes_on_with_another_runs_training(tmp_path: Path) -> None:
    watched(tmp_path, [0.01] * 50, first=1001, resume=1000, every=1)
    with Run.open(tmp_path) as run:
        assert run.coverage == Coverage(50, 50, 1050, start=1000)
        assert str(run.coverage) == "50 of 50 steps measured, up to step 1,050"
        found = Remembered(run).of(0)
        assert found is not None
        assert len(found.weights) == 50
        assert found.init_share == pytest.approx((1 - 0.01 * DECAY) ** 50)


def test_resume_goes_on_after_the_last_step_taken(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with eq.watch(model, optimizer, tmp_path, every=1000):
        train(model, optimizer, 90)  # nothing is logged, and step 1 alone is measured
    with eq.watch(model, optimizer, tmp_path, every=1000, resume=True) as watch:
        assert watch.step == 90


def test_a_group_that_comes_late_did_nothing_before(tmp_path: Path) -> None:
    model = network()
    named = list(model.parameters())
    optimizer = torch.optim.AdamW(named[:2], lr=0.1, weight_decay=DECAY)
    with eq.watch(model, optimizer, tmp_path, every=1000):
        train(model, optimizer, 70)
        optimizer.add_param_group({"params": named[2:], "lr": 0.01, "weight_decay": 0.0})
        train(model, optimizer, 130, first=70)
    with Run.open(tmp_path) as run:
        np.testing.assert_allclose(Schedules(run).lr(1), [0.0] * 70 + [0.01] * 130, rtol=1e-12)
        assert Remembered(run).now[1].effective_steps == pytest.approx(130)


@pytest.mark.parametrize(("measured", "steps", "last", "enough"), [
    (27, 27, 27, False), (28, 400, 359, False), (28, 400, 360, True), (59, 400, 398, True), (0, 400, 0, False),
])  # fmt: skip
def test_when_enough_was_measured(measured: int, steps: int, last: int, enough: bool) -> None:
    coverage = Coverage(measured, steps, last)
    assert coverage.enough == enough
    assert coverage.verdict.startswith("No problems found" if enough else "Too little was measured to say")


def test_a_diagnosis_says_what_it_is_of(tmp_path: Path) -> None:
    with Run.open(watched(tmp_path, [1e-3] * 60, every=50)) as run:
        found = run.diagnose()
        assert found.coverage == Coverage(2, 60, 50)
        assert "2 of 60 steps measured, up to step 50" in repr(found)


def test_rotation_over_its_forecast_is_the_same_everywhere(tmp_path: Path) -> None:
    """Also where a point of a comparison sums up many steps, and lr falls within them."""
    rates = [0.02 * 0.99**t for t in range(1200)]
    with Run.open(watched(tmp_path, rates, every=1)) as run:
        names = [n for n, t in run.tensors.items() if len(t.shape) > 1]
        latest = Latest(run)(names)
        assert set(latest) == set(names)
        for name in names:
            exact, usual = run.compare(name, points=None), run.compare(name)
            assert len(usual.steps) < len(exact.steps)
            for one in (exact, usual):
                assert one.steps[-1] == 1200
                assert latest[name] == pytest.approx(one.rotation[-1] / one.plain.rotation[-1], rel=1e-6)
            spans = Spans(run.measured, np.array([0, 16, 100]))
            mean = Comparer(run).forecasts([name], spans)[name].rotation
            every = exact.plain.rotation
            assert mean == pytest.approx([every[:16].mean(), every[16:100].mean(), every[100:].mean()], rel=1e-6)


def test_only_the_last_steps_of_a_very_long_run_are_worked_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And they are what they are when all of it is: forecasts alone begin later."""
    rates = [0.01 * (1 + math.sin(t / 150)) for t in range(1, 401)]
    with Run.open(watched(tmp_path, rates, every=8)) as run:
        whole, schedules = Remembered(run), Schedules(run)
        expected = [schedules.lr(0), *whole.so_far(0)]
        monkeypatch.setattr(schedule_points, "LONGEST", 100)
        memory = Remembered(run)
        assert memory.schedules.start == 300
        lr, left = memory.schedules.lr(0), memory.so_far(0)[1]
        assert len(lr) == len(left) == 100
        np.testing.assert_array_equal(lr, expected[0][300:])
        np.testing.assert_allclose(left, expected[2][300:], rtol=1e-6)
        compared = run.compare("0.weight")
        assert 300 < compared.steps[0] < 310
        assert np.isfinite(compared.plain.norm).all()
        assert run.diagnose().coverage.steps == 400
        assert any("only the last 100 of 400 steps" in note for note in run.setting.assumptions)


@pytest.mark.parametrize("far", [10**8, 2**53])
def test_what_reading_needs_goes_with_rows_and_not_with_the_numbers_of_steps(tmp_path: Path, far: int) -> None:
    """A number of eight bytes for each step would be 800 MB, or 64 PiB; other memory of a process is 400 MB."""
    watched(tmp_path, [0.01] * 30, every=1)
    watched(tmp_path, [0.01] * 30, every=1, resume=far, first=far + 1)
    tracemalloc.start()
    try:
        with Run.open(tmp_path) as run:
            assert run.coverage.steps == far + 30
            run.diagnose()
            assert run.compare("0.weight").steps[0] == far + 1
            assert gather(run).coverage.measured == 60
            assert Remembered(run).now[0].init_share == 0
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 400e6
