"""Who went first: a cause is planted at one step of real training, and named, with its step."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

import equipoise as eq
from equipoise.board.gather import gather
from equipoise.board.pages.findings_view import LANES, evidence
from equipoise.monitor.diagnose.events import ENOUGH, Event, events

STEPS, AT = 120, 80


def trained(path: Path, fault: str, *, seed: int = 0, sgd: bool = False, every: int | None = 1) -> eq.Run:
    """A run with something done to it at step `AT`."""
    torch.manual_seed(seed)
    first, between, last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 32), torch.nn.Linear(32, 8)
    model, target = torch.nn.Sequential(first, torch.nn.ReLU(), between, torch.nn.ReLU(), last), torch.randn(16, 8)
    middle = between.weight
    adamw = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9) if sgd else adamw
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * STEPS)
    with eq.watch(model, optimizer, path, every=every, quiet=True, spectra=0) as watch:
        for step in range(1, STEPS + 1):
            x = torch.randn(64, 16)
            y, now = (x @ target).argmax(1), step == AT
            if now and fault == "batch":
                x[0, 0] = math.nan
            if now and fault == "lr":
                optimizer.param_groups[0]["lr"] *= 300
            loss = torch.nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            if now and fault == "gradient":
                assert middle.grad is not None
                middle.grad.mul_(3000)
            if now and fault == "weights":
                with torch.no_grad():
                    middle.mul_(30)
            optimizer.step()
            scheduler.step()
            watch.log(loss=loss)
    return eq.Run.open(path)


@pytest.mark.parametrize("sgd", [False, True], ids=["adamw", "sgd"])
@pytest.mark.parametrize("seed", [0, 1])
def test_a_healthy_run_has_no_events(tmp_path: Path, seed: int, sgd: bool) -> None:
    with trained(tmp_path, "none", seed=seed, sgd=sgd) as run:
        assert run.events() == []
        assert "went-first" not in {f.code for f in run.diagnose()}


@pytest.mark.parametrize(
    ("fault", "sgd", "first", "where"),
    [
        ("lr", False, ("lr", "0"), "group 0"),
        ("lr", True, ("lr", "0"), "group 0"),
        ("gradient", True, ("gradient", "2.weight"), "2.weight"),
        ("weights", False, ("update", "2.weight"), "2.weight"),
        ("weights", True, ("update", "2.weight"), "2.weight"),
    ],
)
def test_what_was_planted_went_first(tmp_path: Path, fault: str, sgd: bool, first: tuple[str, str], where: str) -> None:
    with trained(tmp_path, fault, sgd=sgd) as run:
        found = run.events()
        assert (found[0].step, found[0].what, found[0].where) == (AT, *first)
        loss = next(e for e in found if e.what == "loss")
        assert AT < loss.step <= AT + 5
        told = next(f for f in run.diagnose() if f.code == "went-first")
        assert told.severity == "info"
        assert told.where == where
        assert told.evidence.startswith(f"step {AT}: ")
        assert f"step {loss.step}: loss" in told.evidence
        drawn = evidence(told, gather(run))
        assert drawn is not None
        assert [(row["after"], row["step"]) for row in drawn["lanes"]] == [
            (e.after, e.step) for i, e in enumerate(found) if i < LANES or e.what == "loss"
        ]
        assert "loss" in [row["name"] for row in drawn["lanes"]]


def test_a_bad_batch_is_in_all_layers_at_once(tmp_path: Path) -> None:
    with trained(tmp_path, "batch") as run:
        found = run.events()
        assert (found[0].step, found[0].what, found[0].times) == (AT, "loss", math.inf)
        assert {e.what for e in found if e.step == AT} >= {"loss", "gradient"}
        assert next(f for f in run.diagnose() if f.code == "went-first").where == "all tensors"


def test_between_measured_steps_an_event_has_a_range(tmp_path: Path) -> None:
    with trained(tmp_path, "gradient", sgd=True, every=7) as run:
        assert AT not in run.measured
        first = next(e for e in run.events(AT + 10) if e.what == "norm")
        assert first.after < AT <= first.step
        assert str(first).startswith(f"steps {first.after + 1} to {first.step}: norm of ")


def test_a_step_can_be_given(tmp_path: Path) -> None:
    with trained(tmp_path, "gradient", sgd=True) as run:
        assert run.events(AT - 1) == []
        assert {e.step for e in run.events(AT)} == {AT}
        assert run.events(ENOUGH - 1) == []
        with pytest.raises(ValueError, match="step = 0: must be"):
            run.events(0)


def test_words() -> None:
    assert str(Event(9, 8, "loss", "", math.inf)) == "step 9: loss, not finite"
    assert str(Event(1200, 1100, "norm", "a", 0.1)) == "steps 1,101 to 1,200: norm of a, 1/10 of its usual size"
    assert str(Event(9, 8, "norm", "a", 2431.0)) == "step 9: norm of a, 2,400 times its usual size"
    assert str(Event(9, 8, "lr", "1", 3.0)) == "step 9: lr of group 1, 3 times its usual size"


def test_without_a_loss_there_is_nothing_to_look_for(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with eq.watch(model, optimizer, tmp_path, every=1, quiet=True):
        for _ in range(10):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
    with eq.Run.open(tmp_path) as run:
        assert events(run) == []
