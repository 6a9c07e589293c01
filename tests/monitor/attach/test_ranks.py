"""Two real processes: the numbers of one, and no process waits for another that fails."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests import forked
from tests.monitor.loops import network, train, value, watched

import equipoise as eq

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available(), reason="needs torch.distributed with gloo"
)

ROWS = ("norm", "rotation", "update", "grad_norm", "grad_weight_cos", "momentum_norm", "angle", "c_err")
SPECTRA = ("weight_top", "update_top", "momentum_top", "weight_stable_rank", "update_entropy", "update_orthogonality")


def adamw(params: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=0.01, weight_decay=0.1)  # type: ignore[arg-type]


def two_ranks(folder: Path, *kinds: str) -> None:
    codes, said = forked.ranks(Path(__file__).with_name("watched_ranks.py"), folder, *kinds)
    assert codes == [0, 0], said


def test_two_ranks_give_the_numbers_of_one(tmp_path: Path) -> None:
    kinds = ("fsdp", "ddp", "both", "apart", "budget")
    two_ranks(tmp_path, *kinds)
    with eq.Run.open(tmp_path / "budget") as run:
        assert list(run.series("norm", "0.weight").steps)[:7] == [1, 2, 3, 4, 5, 6, 7]
        assert len(run.series("loss")) == 100
        assert run.findings == []
    single, _ = watched(tmp_path / "one", adamw, 4, spectra=1)
    for kind in kinds[:4]:
        with eq.Run.open(tmp_path / kind) as run:
            assert run.status == "finished"
            assert len(run.timeline) == 0
            sent = tmp_path / kind / "tensorboard"
            assert kind in ("both", "apart") or len(list(sent.iterdir())) == 1, "the first process alone sends"
            assert list(run.series("norm", "0.weight").steps) == [1, 2, 3, 4]
            for name in run.tensors:
                for quantity in ROWS:
                    if quantity == "angle" and name == "2.bias":
                        continue  # it begins at zero, which has no direction
                    got, right = value(run, quantity, name), value(single, quantity, name)
                    assert got == pytest.approx(right, rel=1e-3, abs=1e-6), (kind, quantity, name)
                assert value(run, "eps_share", name) == value(single, "eps_share", name)
                start = run.tensors[name].info["init_norm"]
                assert start == pytest.approx(single.tensors[name].info["init_norm"], rel=1e-6)
            for name in ("0.weight", "3.weight"):
                for quantity in SPECTRA:
                    got, right = (run.series(quantity, name).values, single.series(quantity, name).values)
                    assert got == pytest.approx(right, rel=1e-3), (kind, quantity, name)
            for share in (0.1, 0.9):
                got, right = (value(r, "rotation", "0.weight", quantile=share) for r in (run, single))
                assert got == pytest.approx(right, rel=1e-3)
            assert value(run, "balance_neurons") == pytest.approx(value(single, "balance_neurons"), rel=1e-3)


def test_a_rank_that_fails_keeps_nobody_waiting(tmp_path: Path) -> None:
    """The second rank fails from its third call on: one finding, no deadlock, the same weights."""
    kinds = ("before", "after", "spectra", "send", "look")
    two_ranks(tmp_path, *kinds)
    model = network()
    train(model, adamw(model.parameters()), 12)
    here, there = "RuntimeError: {} is broken", "RuntimeError: measuring failed on another process; its log says how"
    for kind in kinds:
        for got, right in zip(torch.load(tmp_path / f"{kind}.pt"), model.parameters(), strict=True):
            assert torch.allclose(got, right.detach(), atol=1e-6), kind
        said = [(tmp_path / f"{kind}-{rank}.txt").read_text() for rank in (0, 1)]
        if kind == "look":
            assert said == ["watch-failed: TogetherError: looking at the parameters failed on a process"] * 2
        else:
            assert said == [f"watch-failed: {text.format(kind)}" for text in (there, here)]
        with eq.Run.open(tmp_path / kind) as run:
            assert [f.code for f in run.findings] == ["watch-failed"]
            assert run.status == "finished"
            assert len(run.series("loss")) == 12
            if kind != "look":
                assert list(run.series("norm", "0.weight").steps) == ([1] if kind == "spectra" else [1, 2]), kind


def test_a_rank_that_crashes_inside_a_step_keeps_nobody_waiting(tmp_path: Path) -> None:
    """Its watch lets go of the step without a word to the others, who are somewhere else by then."""
    two_ranks(tmp_path, "crash")
    said = [(tmp_path / f"crash-{rank}.txt").read_text() for rank in (0, 1)]
    assert said[0].startswith("RuntimeError")
    assert "Connection" in said[0]
    assert said[1].startswith("TypeError")
    with eq.Run.open(tmp_path / "crash") as run:
        assert run.status == "crashed"
        assert list(run.series("norm", "0.weight").steps) == [1, 2]
        assert len(run.series("loss")) == 2
        assert run.check() == []
