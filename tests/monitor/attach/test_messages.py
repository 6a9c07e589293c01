"""Warnings, errors and the end of a run are said once: to logging, and in a real terminal, round progress bars."""

import contextlib
import logging
import os
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from tests import forked
from tests.monitor.attach.diverging_training import diverged
from tests.monitor.loops import network, train
from torch import nn
from torch.optim import SGD

import equipoise as eq

LOGGER = logging.getLogger("equipoise")
PROGRAM = Path(__file__).with_name("diverging_training.py")


@contextlib.contextmanager
def terminal() -> Iterator[tuple[int, Callable[[], str]]]:
    """A terminal: where to write, and a function that gives what it has shown."""
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    termios.tcsetwinsize(theirs, (24, 80))

    def shown() -> str:
        parts = []
        with contextlib.suppress(BlockingIOError):
            while True:  # a terminal gives a few lines at a time
                parts.append(os.read(ours, 1 << 20))
        return b"".join(parts).decode().replace("\r\n", "\n")

    yield theirs, shown
    os.close(ours)
    os.close(theirs)


def test_each_error_is_logged_once_and_how_the_run_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "equipoise")
    watch = diverged(tmp_path / "a b")
    said = [r for r in caplog.records if r.name == "equipoise"]
    grave = {f.code: f for f in watch.findings if f.severity in ("error", "warning")}
    assert any(f.severity == "error" for f in grave.values())
    assert sorted(vars(r)["finding"]["code"] for r in said[:-1]) == sorted(grave), "each code once"
    for record in said[:-1]:
        finding = grave[vars(record)["finding"]["code"]]
        assert record.levelname.lower() == finding.severity
        assert finding.where in record.getMessage() or finding.where.startswith("step")
        assert record.getMessage().endswith(f"Look: equipoise report '{tmp_path}/a b'")
    assert said[-1].levelno == logging.INFO
    assert f"{tmp_path}/a b finished after 40 steps, loss NaN" in said[-1].getMessage()
    assert " of 40 steps measured, up to step 40; " in said[-1].getMessage()
    assert all(code in said[-1].getMessage() for code in grave)


def grave(path: Path) -> list[str]:
    """The codes of the warnings and errors of a run."""
    with eq.Run.open(path) as run:
        return sorted({f.code for f in run.findings if f.severity in ("error", "warning")})


def test_a_terminal_shows_each_line_once_above_progress_bars(tmp_path: Path) -> None:
    with terminal() as (where, shown):
        assert forked.start(PROGRAM, tmp_path, stderr=where).wait() == 0
        lines = [line.rpartition("\r")[2].replace("\x1b[K", "") for line in shown().split("\n")]
    ours = [line for line in lines if "equipoise" in line]
    assert all(line.startswith("equipoise: ") for line in ours), "a line of its own each"
    assert sorted(line.split(": ")[2].split(" ")[0] for line in ours[:-1]) == grave(tmp_path)
    assert "finished after 40 steps" in ours[-1]
    assert "3/10" in lines[-2], "the bar is drawn again, below"


def test_what_is_no_terminal_gets_warnings_and_no_summary(tmp_path: Path) -> None:
    """By Python's own rule for logging that nobody has set up."""
    done = forked.run(PROGRAM, tmp_path, check=True)
    assert [done.stderr.count(f": {code} ") for code in grave(tmp_path)] == [1] * len(grave(tmp_path))
    assert "finished" not in done.stderr


@pytest.mark.parametrize("level", [logging.INFO, logging.CRITICAL, None])
def test_a_terminal_that_logging_writes_to_shows_nothing_twice(
    level: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor too little, where logging shows less, or goes somewhere else."""
    monkeypatch.setattr(LOGGER, "level", logging.INFO)
    LOGGER.manager._clear_cache()  # type: ignore[attr-defined]
    with terminal() as (where, shown), os.fdopen(os.dup(where), "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        if level is not None:
            handler = logging.StreamHandler(stream)
            handler.setLevel(level)
            monkeypatch.setattr(LOGGER, "handlers", [handler])
        diverged(tmp_path)
        said = shown()
    assert [said.count(f": {code} ") for code in grave(tmp_path)] == [1] * len(grave(tmp_path))
    assert said.count("finished after 40 steps") == 1
    monkeypatch.undo()
    LOGGER.manager._clear_cache()  # type: ignore[attr-defined]


def test_quiet_says_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "equipoise")
    with terminal() as (where, shown), os.fdopen(os.dup(where), "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        watch = diverged(tmp_path, quiet=True)
        assert not shown()
    assert watch.findings
    assert not caplog.records


def test_the_sink_for_logging_gets_findings_and_they_are_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "equipoise")
    diverged(tmp_path, sinks=["logging"])
    found = [vars(r)["finding"]["code"] for r in caplog.records if "finding" in vars(r)]
    assert found
    assert len(found) == len(set(found))


def test_log_takes_a_mapping(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = network()
    optimizer = SGD(model.parameters(), lr=0.1)
    with eq.watch(model, optimizer, tmp_path) as watch:
        train(model, optimizer, 1)
        watch.log({"loss": torch.tensor(2.0), "train/accuracy": 0.5}, epoch=1)
        for wrong, says in ((3.0, "float"), ([("loss", 1)], "list"), ({1: 2.0}, "1 is not a name")):
            with pytest.raises(ValueError, match=says):
                watch.log(wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'loss' is in the mapping and a keyword"):
            watch.log({"loss": 1.0}, loss=2.0)
        watch.log(step=12, kept=1.0)
        watch.log({"lr/0": 0.1, "step_time": 3.0, "lr": 0.1})
    (refused,) = [f for f in watch.findings if f.code == "row-refused"]
    assert refused.evidence.startswith("step = 12: watch counts the steps itself")
    assert len([r for r in caplog.records if "watch counts the steps itself" in r.getMessage()]) == 1
    with eq.Run.open(tmp_path) as run:
        named = ("loss", "train/accuracy", "epoch", "kept", "lr")
        assert [run.series(name).values.tolist() for name in named] == [[2.0], [0.5], [1.0], [1.0], [0.1]]
        assert run.series("lr/0").values.tolist() == pytest.approx([0.1]), "one kind of rows has it"


def test_an_optimizer_of_another_model_is_refused(tmp_path: Path) -> None:
    model, other = network(), network()
    with pytest.raises(ValueError, match="none of its 6 parameters belong to the model; pass the optimizer"):
        eq.watch(model, SGD(other.parameters(), lr=0.1), tmp_path)
    assert not list(tmp_path.iterdir())
    eq.watch(None, SGD(other.parameters(), lr=0.1), tmp_path / "none").close()


def test_models_that_are_wrapped_or_trained_in_part_are_not(tmp_path: Path) -> None:
    model = network()
    tied = nn.ModuleList([model, model])
    some = [p for p in model.parameters() if p.ndim > 1]
    for k, (given, params) in enumerate(
        [
            (torch.compile(model), model.parameters()),
            (tied, model.parameters()),
            (model, some),
            (tied, tied.parameters()),
        ]
    ):
        watch = eq.watch(given, SGD(params, lr=0.1), tmp_path / str(k))  # type: ignore[arg-type]
        assert not watch.findings
        watch.close()


def test_parameters_beside_the_models_are_a_warning(tmp_path: Path) -> None:
    model, loss = network(), nn.Linear(3, 1)
    optimizer = SGD([*model.parameters(), *loss.parameters()], lr=0.1)
    with eq.watch(model, optimizer, tmp_path) as watch:
        pass
    (found,) = watch.findings
    assert (found.code, found.severity) == ("other-parameters", "warning")
    assert found.evidence == "2 of the optimizer's 8 parameters do not belong to the model"
