"""What pages read of runs: the right numbers, few enough of them, whatever the run is like."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.board import example_runs

import equipoise as eq
from equipoise.board.gather import gather
from equipoise.board.pages.findings_view import evidence
from equipoise.board.pages.geometry_page import triangles
from equipoise.finding import Finding
from equipoise.monitor import Run
from equipoise.monitor.diagnose.attribute import Predicted
from equipoise.theory import memory


def test_a_trained_run_is_read_as_it_was_measured(tmp_path: Path) -> None:
    example_runs.trained(tmp_path, steps=40)
    with Run.open(tmp_path) as run:
        data = gather(run, "mine")
        i = [t.name for t in data.tensors].index("3.0.weight")
        np.testing.assert_array_equal(data.layers.values["rotation"][i], run.series("rotation", "3.0.weight").values)
        low = run.series("norm", "3.0.weight", quantile=0.1).values
        np.testing.assert_allclose(data.layers.values["norm_low"][i], low * math.sqrt(demo_width()), rtol=1e-6)
        assert data.name == "mine"
        assert data.last == 40
        assert next(iter(data.logged.values)) == "loss"
        tokens = data.tokens(np.array([10.0]))
        assert tokens is not None
        assert tokens.tolist() == [1280.0]
        names = [t.name for t in data.tensors]
        assert names.index("5.weight") < names.index("0.1.bias"), "matrices come first"
        # Without a forecast a layer is held against the median matrix of the step.
        line, plain = data.layers.values["rotation"][i], gather(run, quick=True)
        assert not plain.held_to_forecast
        among = np.array([plain.layers.values["rotation"][k] for k, t in enumerate(data.tensors) if len(t.shape) > 1])
        np.testing.assert_allclose(plain.ratio[i], line / np.median(among, axis=0), rtol=1e-5)


def demo_width() -> int:
    import demo

    return demo.WIDTH


def test_a_forecast_is_used_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example_runs.made(tmp_path, ["a", "b"], rows=50)

    def half(run: Run, tensors: list[str], steps: np.ndarray) -> dict[str, Predicted]:
        """Half of what was measured, for one tensor; nothing for the other."""
        assert tensors == ["a", "b"]
        return {"a": Predicted(np.ones(len(steps)), run.series("rotation", "a").values / 2, np.ones(len(steps)))}

    monkeypatch.setattr("equipoise.board.gather.predicted", half)
    with Run.open(tmp_path) as run:
        data = gather(run)
    assert data.held_to_forecast
    np.testing.assert_allclose(data.ratio[0], 2.0, rtol=1e-6)
    assert np.isnan(data.ratio[1]).all()


@pytest.mark.parametrize("finetune", [True, False])
def test_weights_that_were_trained_before_have_no_forecast(tmp_path: Path, finetune: bool) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    with eq.watch(model, optimizer, tmp_path, every=1, finetune=finetune, quiet=True) as watch:
        for _ in range(10):
            model(torch.ones(2, 6)).square().sum().backward()
            optimizer.step()
            watch.log(loss=1.0)
    with Run.open(tmp_path) as run:
        data = gather(run)
    drawn = [q for q in data.layers.values if q.endswith("_forecast")]
    assert drawn == ([] if finetune else ["norm_forecast", "rotation_forecast"])
    assert data.held_to_forecast is not finetune
    for name, has in (("0.weight", not finetune), ("0.bias", False)):
        curve = evidence(Finding("lr-layer", "info", name, "", "", "", ""), data)
        assert curve is not None
        assert ("forecast" in curve) is has


@pytest.mark.parametrize("make", [example_runs.empty, example_runs.crashed])
def test_runs_that_did_not_go_well_are_read(tmp_path: Path, make) -> None:
    make(tmp_path)
    with Run.open(tmp_path) as run:
        data = gather(run)
    assert data.status in ("empty", "crashed")
    assert data.last == (30 if data.status == "crashed" else 0)


def test_many_layers_get_fewer_points_each(tmp_path: Path) -> None:
    example_runs.made(tmp_path, [f"layer{i}" for i in range(40)], rows=2000)
    with Run.open(tmp_path) as run:
        few, many = gather(run, numbers=20_000), gather(run, numbers=200_000)
    size = sum(v.size for v in few.layers.values.values())
    assert size <= 40 * 13 * 60, "the least is 60 points"
    assert len(few.layers) < len(many.layers)
    assert few.last == many.last == 2000


def test_memory_is_that_of_the_steps_taken(tmp_path: Path) -> None:
    example_runs.made(tmp_path, ["a"], rows=300)
    with Run.open(tmp_path) as run:
        found = gather(run).remembered
    assert found is not None
    kept = np.exp(-1e-4) * np.ones(300)
    expected = memory(lr=np.full(300, 1e-3), weight_decay=0.1, kept=kept)
    np.testing.assert_allclose(found.share, expected.share, rtol=1e-4)
    assert found.init_share == pytest.approx(math.exp(-0.03), rel=1e-5)


def test_triangles_are_those_of_the_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 5, bias=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.4)
    weights = [model.weight.detach().double().clone()]
    with eq.watch(model, optimizer, tmp_path, every=1):
        for _ in range(6):
            optimizer.zero_grad()
            (model(torch.randn(16, 8)) - 1).square().mean().backward()
            optimizer.step()
            weights.append(model.weight.detach().double().clone())
    with Run.open(tmp_path) as run:
        found = triangles(run)
    assert found["name"] == ["weight"]
    assert found["steps"] == [1, 2, 3, 4, 5, 6]
    for k, (old, new) in enumerate(itertools.pairwise(weights)):
        length = float(old.norm())
        along = float((new - old).flatten() @ old.flatten()) / length
        across = float((new - old - along * old / length).norm())
        at = {q: float(v[0, k]) for q, v in found["values"].items()}
        assert at["before"] == pytest.approx(length, rel=1e-5)
        assert at["after"] == pytest.approx(float(new.norm()), rel=1e-5)
        assert at["along"] == pytest.approx(along, rel=1e-4, abs=1e-6)
        assert at["across"] == pytest.approx(across, rel=1e-4)
        assert at["decay"] == pytest.approx(0.05 * 0.4 * length, rel=1e-5)
        assert math.atan2(across, length + along) == pytest.approx(
            math.atan2(at["across"], at["before"] + at["along"]), rel=1e-4
        )
