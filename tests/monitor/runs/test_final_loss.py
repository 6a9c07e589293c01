"""The final loss is one number, worked out in one place, and what it is stands beside it."""

import math
from pathlib import Path

import numpy as np
import pytest

from equipoise.monitor import Column, Layout, Run, RunWriter
from equipoise.monitor.runs.final_loss import Best, training_loss, validation_loss
from equipoise.monitor.store.tables import to_log

NAN, INF = math.nan, math.inf


def logged(path: Path, rows: list[dict[str, float]], *, names: tuple[str, ...] = ("loss",), every: int = 1) -> Path:
    """A run of logged numbers alone; names that a row does not have were not logged."""
    layout = Layout(tuple(Column(n) for n in names), kind="log", dtype="float64")
    with RunWriter(path, layouts=[layout], strict=True) as writer:
        for i, row in enumerate(rows, 1):
            writer.append(every * i, [to_log(row[n]) if n in row else NAN for n in names], kind="log")
    return path


@pytest.mark.parametrize("count", [1, 2, 19, 21, 40, 399, 1000, 20_001])
def test_it_is_the_mean_of_the_last_twentieth_of_what_was_logged(tmp_path: Path, count: int) -> None:
    rng = np.random.default_rng(count)
    losses = 3 * np.exp(-np.arange(count) / count) + rng.normal(size=count)
    # Other numbers are logged in between: the share is of the values of the loss.
    rows = [{"loss": x} if i % 3 else {"loss": x, "accuracy": 0.5} for i, x in enumerate(losses)]
    rows += [{"accuracy": 0.5}] * 50
    with Run.open(logged(tmp_path, rows, names=("accuracy", "loss"), every=3)) as run:
        found = run.final
    assert found is not None
    wanted = math.ceil(count / 20)
    assert (found.name, found.values, found.step) == ("loss", wanted, 3 * count)
    assert found.mean == pytest.approx(losses[-wanted:].mean(), rel=1e-12)
    assert found.last == losses[-1]


def test_a_loss_that_ends_as_nan_is_nan_and_never_the_last_finite_one(tmp_path: Path) -> None:
    rows = [{"loss": 2.0}] * 99 + [{"loss": NAN}]
    with Run.open(logged(tmp_path / "a", rows)) as run:
        found = run.final
        assert found is not None
        assert math.isnan(found.last)
        assert math.isnan(found.mean)
        assert str(found) == "loss NaN (mean of the last 5 %)"
    with Run.open(logged(tmp_path / "b", rows * 50 + [{"loss": 1.0}] * 1000)) as run:
        found = run.final
        assert found is not None
        assert (found.mean, found.last) == (1.0, 1.0), "it was NaN long ago"
        assert np.isnan(run.series("loss", points=40).values).any(), "a mean with NaN in it is none"
        assert np.isnan(run.series("loss").values).sum() == 50
    with Run.open(logged(tmp_path / "c", [{"loss": 2.0}] * 4999 + [{"loss": INF}])) as run:
        found = run.final
        assert found is not None
        assert (found.mean, found.last) == (INF, INF), "infinite is not NaN"


def test_the_best_validation_loss_and_its_step(tmp_path: Path) -> None:
    rows: list[dict[str, float]] = [{"loss": 1.0} for _ in range(5000)]
    validation = {100 * i: 2 + (i - 30) ** 2 / 100 for i in range(1, 50)} | {4990: NAN}
    for step, x in validation.items():
        rows[step - 1] |= {"val_loss": x, "test_loss": 0.01}
    with Run.open(logged(tmp_path, rows, names=("loss", "test_loss", "val_loss"))) as run:
        assert run.best == Best("val_loss", 2.0, 3000)
        assert run.final is not None
        assert run.final.name == "loss"


def test_what_a_resumed_run_superseded_is_not_in_it(tmp_path: Path) -> None:
    logged(tmp_path, [{"loss": 100.0}] * 60)
    layout = Layout((Column("loss"),), kind="log", dtype="float64")
    with RunWriter(tmp_path, layouts=[layout], resume=20, strict=True) as writer:
        for step in range(21, 41):
            writer.append(step, [float(step)], kind="log")
    with Run.open(tmp_path) as run:
        found = run.final
    assert found is not None
    assert (found.mean, found.last, found.step, found.values) == (39.5, 40.0, 40, 2)


def test_which_names_are_losses() -> None:
    assert training_loss(["val_loss", "nll_loss", "train/loss"]) == "train/loss"
    assert training_loss(["Loss/train", "Loss/val"]) == "Loss/train"
    assert training_loss(["valLoss", "test_loss", "loss_scale", "accuracy", "glossary"]) is None
    assert validation_loss(["loss", "eval_accuracy", "eval/loss"]) == "eval/loss"
    assert validation_loss(["evalLoss", "val_loss"]) == "val_loss"
    assert validation_loss(["loss", "test_loss", "val_test_loss"]) is None


def test_a_run_without_a_loss_has_no_final_one(tmp_path: Path) -> None:
    with Run.open(logged(tmp_path, [{"accuracy": 1.0}], names=("accuracy", "loss", "val_loss"))) as run:
        assert run.final is None
        assert run.best is None
