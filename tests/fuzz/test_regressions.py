"""Faults that fuzzing has found, one test each."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.monitor.store import example_runs
from torch import nn

import equipoise as eq
from equipoise import theory
from equipoise.lab.report import ledger
from equipoise.lab.train.result import RESULT, Result
from equipoise.lab.train.trial import Trial
from equipoise.lab.train.trial_store import STORED
from equipoise.monitor.store import schema


def stepped(make: Any, start: torch.Tensor, *gradients: torch.Tensor, **options: Any) -> torch.Tensor:
    p = nn.Parameter(start.clone())
    optimizer = make([p], **options)
    for g in gradients:
        p.grad = g.clone()
        optimizer.step()
    return p.detach()


@pytest.mark.parametrize("make", [eq.Adam, eq.AdamW, eq.RMSProp, eq.HyperballAdamW, eq.RotationalAdamW, eq.AdamCPR])
@pytest.mark.parametrize("more", [{}, {"foreach": False}])
def test_no_gradient_and_no_eps_is_no_step(make: Any, more: dict[str, Any]) -> None:
    """It was 0/0."""
    w = torch.tensor([[3.0, 4.0], [1.0, 2.0]])
    left = stepped(make, w, torch.zeros(2, 2), torch.zeros(2, 2), lr=0.1, eps=0.0, **more)
    torch.testing.assert_close(left / left.norm(dim=1, keepdim=True), w / w.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("nested", [False, True])
def test_without_eps_a_gradient_whose_square_is_lost_gives_a_small_step(nested: bool) -> None:
    tiny = torch.full((3,), 1e-30)
    step = stepped(eq.Adam, torch.zeros(3), tiny, lr=1.0, eps=0.0, nested=nested).abs()
    assert (step <= 1.0).all()
    known = stepped(eq.Adam, torch.zeros(3), 1e15 * tiny, lr=1.0, eps=0.0, nested=nested)
    torch.testing.assert_close(known, -torch.ones(3))


@pytest.mark.parametrize(("make", "options"), [(eq.RMSProp, {"alpha": 0.0}), (eq.Adam, {"betas": (0.9, 0.0)})])
def test_a_square_that_was_too_large_is_forgotten(make: Any, options: dict[str, Any]) -> None:
    """It was 0·∞."""
    left = stepped(make, torch.zeros(2), torch.full((2,), 1e30), torch.full((2,), 1e-3), lr=0.1, **options)
    assert left.isfinite().all()


def test_the_paper_leaves_rows_of_zeros() -> None:
    w = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    left = stepped(eq.RotationalAdamW, w, torch.ones(2, 2), lr=0.01, reference="paper")
    assert left[0].tolist() == [0.0, 0.0]
    assert left[1].norm() == pytest.approx(5.0)


def test_small_directions_turn_large_weights() -> None:
    """The square of the step's length was infinite: Rotational shrank the weights to nothing, Hyperball made NaN."""
    w = 1e12 * torch.tensor([[3.0, 4.0]])
    g = 1e-30 * torch.tensor([[4.0, -3.0]])
    for make, options in ((eq.RotationalAdamW, {"angle": 0.1}), (eq.HyperballAdamW, {"lr": 0.1})):
        left = stepped(make, w, g, **options)
        assert left.norm() == pytest.approx(5e12, rel=1e-3)  # such small squares have few digits
    turned = stepped(eq.RotationalAdamW, w, 1e10 * g, angle=0.1)
    cosine = torch.nn.functional.cosine_similarity(turned.double(), w.double())
    assert float(cosine.acos()) == pytest.approx(0.1, rel=1e-3)


def test_a_row_that_starts_at_zero_survives_a_huge_gradient() -> None:
    huge = torch.full((2, 3), 1e30)
    left = stepped(eq.RotationalSGDM, torch.zeros(2, 3), huge, huge, lr=1e-3)
    assert left.isfinite().all()


def test_a_step_of_the_whole_weight_stays_where_it_is() -> None:
    """There w − ‖w‖·u/‖u‖ is 0, and has no direction."""
    left = stepped(eq.HyperballAdamW, torch.full((1, 2), 2.0), torch.ones(1, 2), lr=1.0)
    assert left.tolist() == [[2.0, 2.0]]


@pytest.mark.parametrize("make", [eq.Muon, eq.RotationalMuon, eq.HyperballMuon])
def test_muon_takes_matrices_without_rows(make: Any) -> None:
    empty, w = nn.Parameter(torch.empty(0, 3)), nn.Parameter(torch.eye(3))
    optimizer = make([empty, w])
    w.grad = torch.eye(3)
    optimizer.step()
    assert w.isfinite().all()


def test_centring_takes_parameters_without_rows() -> None:
    eq.RotationalAdamW([nn.Parameter(torch.empty(0))], center=True, rotate=True)


def test_a_rotation_at_the_smallest_lr() -> None:
    w = nn.Parameter(torch.eye(2))
    optimizer = eq.Rotational(torch.optim.AdamW([w], lr=1e-300, weight_decay=0.1))
    w.grad = torch.ones(2, 2)
    optimizer.step()
    assert w.detach().equal(torch.eye(2))


W = [nn.Parameter(torch.ones(2, 3))]
CURVE: Any = eq.schedules.cosine(9)
POINT = [nn.Parameter(torch.tensor(1.0))]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: eq.AdamW(W, lr="0.1"), "lr = '0.1': must be a finite number"),  # type: ignore[arg-type]
        (lambda: eq.AdamW(W, eps="1e-8"), "eps = '1e-8': must be a finite number"),  # type: ignore[arg-type]
        (lambda: eq.AdamW(W, lr=torch.ones(2)), "lr = tensor.*: must be a finite number"),  # type: ignore[arg-type]
        (lambda: eq.AdamW(W, lr=10**400), "lr = 10+…: must be a finite number"),
        (lambda: eq.AdamW(W, betas=0.9), "betas = 0.9: must be two numbers"),  # type: ignore[arg-type]
        (lambda: eq.Lion(W, betas=None), "betas = None: must be two numbers"),  # type: ignore[arg-type]
        (lambda: eq.AdamW(W, decay=["lr"]), r"decay = \['lr'\]: must be one of"),  # type: ignore[arg-type]
        (lambda: eq.AdamW(W, lr_max="x"), "lr_max = 'x': must be a finite number"),  # type: ignore[arg-type]
        (lambda: eq.AdamW(W, maximize="no"), "maximize = 'no': must be True or False"),  # type: ignore[arg-type]
        (lambda: eq.AdamW(W, foreach=torch.ones(2)), "foreach = tensor.*: must be True, False or None"),  # type: ignore[arg-type]
        (lambda: eq.RotationalAdamW(W, rotate="yes"), "rotate = 'yes': must be True, False or None"),  # type: ignore[arg-type]
        (lambda: eq.RotationalAdamW(W, angle=lambda t: float("nan")), r"angle\(1\) = nan: must be a finite number"),
        (lambda: eq.RotationalAdamW(POINT, rotate=True, granularity=3), "granularity = 3: must divide the 1 weights"),
        (lambda: eq.NormalizedGD(POINT, granularity=3), "granularity = 3: must divide the 1 weights"),
        (lambda: eq.Muon(W, adam=5), "adam = 5: must be a dict of options"),  # type: ignore[arg-type]
        (lambda: eq.Muon(W, polar="x"), "polar = 'x': must be a dict of options"),  # type: ignore[arg-type]
        (lambda: eq.Muon(W, polar={"steps": 0}), "steps = 0: must be a whole number"),
        (lambda: eq.SteepestDescent([{"params": W, "role": "x"}]), "role = 'x': must be one of"),
        (lambda: eq.AdamW([{"lr": 1}]), "must be a dict with 'params'"),
        (lambda: eq.Muon("w"), "params is a str: must be a list of parameters or groups"),
        (lambda: eq.AdamW([]), r"params = \[\]: must have at least one parameter"),
        (lambda: eq.AdamW(3), "params is a int: must be a list of parameters"),  # type: ignore[arg-type]
        (lambda: eq.AdamW(torch.ones(2)), "params is a tensor: must be a list of parameters"),
        (lambda: eq.AdamW({"params": W}), "params is a dict: must be a list of parameters or groups"),
        (lambda: eq.AdamW([{"params": set(W)}]), "must be parameters, or .* in a list"),
        (lambda: eq.AdamW([2 * W[0]]), r"a tensor of shape \(2, 3\) that was computed: must be a parameter itself"),
        (lambda: eq.watch("m", eq.AdamW(W), "x"), "model = 'm': must be a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: eq.watch(None, eq.AdamW(W), 3), "path = 3: must be the name of a directory"),  # type: ignore[arg-type]
        (lambda: eq.watch(None, eq.AdamW(W), "x", resume="y"), "resume = 'y': must be"),  # type: ignore[arg-type]
        (lambda: eq.plan("m", eq.AdamW(W), steps=9), "model = 'm': must be a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: eq.Run("runs/a"), r"a run is opened with Run.open\('runs/a'\)"),  # type: ignore[arg-type]
        (lambda: eq.Run.open(3), "path = 3: must be the name of a directory"),  # type: ignore[arg-type]
        (lambda: eq.schedules.from_function(3, 9), "function = 3: must be a function"),  # type: ignore[arg-type]
        (lambda: eq.schedules.from_function(lambda t: "a", 9), r"function\(1\) = 'a': must be a finite number"),
        (lambda: eq.theory.memory(lr=CURVE, weight_decay=0.1), r"give lr = ….values\(steps\)"),
        (lambda: eq.theory.memory(lr="abc", weight_decay=0.1), "lr = 'abc': must be a finite number"),
        (lambda: eq.theory.memory(lr=[[0.1]], weight_decay=0.1), r"lr has shape \(1, 1\): must be one number"),
        (lambda: eq.AdamW([torch.ones(2, dtype=torch.long)]), "int64: must be floating point"),
    ],
)
def test_nonsense_is_refused(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_schedule_that_gives_nonsense_is_refused_before_the_step() -> None:
    w = nn.Parameter(torch.ones(2))
    optimizer = eq.AdamW([w], lr=0.1)
    w.grad = torch.ones(2)
    optimizer.param_groups[0]["lr"] = float("nan")
    with pytest.raises(ValueError, match="lr = nan: must be a finite number"):
        optimizer.step()
    assert w.tolist() == [1.0, 1.0]


def test_an_lr_whose_square_is_lost_is_refused() -> None:
    with pytest.raises(ValueError, match="lr = 1e-300: must be 0 or at least"):
        theory.stationary("adamw", lr=1e-300, weight_decay=0.1, size=1, decay="independent")


def changed(path: Path, sql: str, *values: Any) -> eq.Run:
    """A run in whose file somebody changed something."""
    example_runs.write(path, example_runs.numbers(20))
    db = sqlite3.connect(path / schema.FILE)
    db.execute(sql, values)
    for line in db.execute("SELECT id, life, kind, key, step, time, value FROM records").fetchall():
        db.execute("UPDATE records SET crc = ? WHERE id = ?", (schema.checksum(b"", *line), line[0]))
    db.commit()
    db.close()
    return eq.Run.open(path)


def test_following_leaves_out_steps_that_are_no_numbers(tmp_path: Path) -> None:
    with changed(tmp_path / "run", "UPDATE rows SET step = x'00' WHERE id = 1") as run:
        (found,) = run.follow().read()
    assert found.steps.tolist() == list(range(2, 21))


@pytest.mark.parametrize("value", ["5", "[]", "null", "[" * 5000, '{"columns": 3}', '{"layouts": [[]]}'])
@pytest.mark.parametrize("kind", ["layout", "segment", "finding", "tensor", "quantity"])
def test_records_that_say_nothing_are_damage(tmp_path: Path, kind: str, value: str) -> None:
    insert = "INSERT INTO records (life, kind, key, step, time, value) VALUES (1, ?, 'x', NULL, 0.0, ?)"
    with changed(tmp_path / "run", insert, kind, value) as run:
        assert len(run.series("loss")) == 20
        (finding,) = run.findings
        assert run.tensors == run.quantities == {}
    assert finding.code == "run-damaged"


@pytest.mark.parametrize("change", [{}, {"lr": 0.5}, 5, None, {"lr": "0.5"}, {"lr": None}, [0.5]])
def test_findings_are_read_with_a_change_in_numbers_and_names_only(tmp_path: Path, change: Any) -> None:
    words = ("code", "where", "evidence", "expected", "advice", "source", "paid")
    value = dict.fromkeys(words, "x") | {"severity": "info", "change": change}
    insert = "INSERT INTO records (life, kind, key, step, time, value) VALUES (1, 'finding', 'x', 3, 0.0, ?)"
    with changed(tmp_path / "run", insert, json.dumps(value)) as run:
        (finding,) = run.findings
    if change in ({}, {"lr": 0.5}, {"lr": "0.5"}):
        assert (finding.code, finding.change, finding.paid) == ("x", change, "x")
    else:
        assert finding.code == "run-damaged"


def test_a_life_in_a_state_that_there_is_not(tmp_path: Path) -> None:
    with changed(tmp_path / "run", "UPDATE lives SET status = 'x'") as run:
        assert run.status == "unclosed"


@pytest.mark.parametrize(
    "change", [{"experiment": None, "preset": []}, {"claims": 3}, {"statements": []}, {"versions": 1}]
)
def test_outcomes_that_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    content = json.loads((STORED / "norms.json").read_text()) | change
    (tmp_path / "outcome.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is no outcome of an experiment"):
        ledger.ledger(tmp_path)


@pytest.mark.parametrize("change", [{"tests": [1]}, {"seconds": []}, {"trial": 0}, {"metrics": "x"}, {"x": 1}])
def test_results_that_are_none(tmp_path: Path, change: dict[str, Any]) -> None:
    Result(Trial(), "finished").write(tmp_path)
    content = json.loads((tmp_path / RESULT).read_text()) | change
    (tmp_path / RESULT).write_text(json.dumps(content))
    with pytest.raises(ValueError, match="is no result of a trial"):
        Result.read(tmp_path)


@pytest.mark.parametrize("fields", [{"model": 3}, {"watch": []}, {"channels_last": "no"}, {"lr": "0.1"}, 5])
def test_trials_of_nonsense(fields: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        Trial.from_dict(fields)


def test_a_bound_survives_weights_whose_square_is_infinite() -> None:
    w = torch.nn.Parameter(torch.zeros(1, 1))
    optimizer = eq.AdamCPR([w], lr=1e-3, betas=(0.5, 0.0))
    for g in (1e15, 0.0, 0.0):
        w.grad = torch.full((1, 1), g)
        optimizer.step()
    assert w.abs() > 1e19
    assert torch.isfinite(w).all()
    assert all(torch.isfinite(optimizer.state[w][name]).all() for name in ("multiplier", "growth"))
