"""A run says how it ended, and has all that was logged, however its program ends: real processes."""

import signal
import time
from pathlib import Path

import nbclient
import nbformat
import pytest
from tests import forked

import equipoise as eq
from equipoise.monitor.attach.endings import status_of

PROGRAM = Path(__file__).with_name("unclosed_training.py")


def complete(path: Path, steps: int) -> str:
    """The status of a run, of which all that was logged must be there."""
    with eq.Run.open(path) as run:
        assert run.series("number").steps.tolist() == list(range(1, steps + 1))
        assert run.series("number").values.tolist() == list(range(1, steps + 1))
        assert len(run.series("loss")) == steps
        assert {f.source for f in run.findings}.isdisjoint({"docs/watch.md", "docs/run.md"}), "nothing failed"
        assert run.check() == []
        return run.status


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        ("end", "finished"),
        ("interrupt", "interrupted"),
        ("terminate", "interrupted"),
        ("own handler", "finished"),
        ("child terminated", "finished"),
        ("raise", "crashed"),
        ("exit 0", "finished"),
        ("exit 1", "crashed"),
        ("exit words", "crashed"),
        ("quit 1", "crashed"),
        ("exit inside", "crashed"),
        ("script raises 1", "crashed"),
        ("script raises words", "crashed"),
        ("script raises 0", "finished"),
        ("script raises nothing", "finished"),
        ("script raises computed", "finished"),
        ("script catches", "finished"),
        ("local exit", "crashed"),
        ("local raise", "crashed"),
        ("local end", "finished"),
        ("caught", "finished"),
        ("finally", "crashed"),
        ("thread", "crashed"),
        ("other thread", "finished"),
        ("child fork end", "finished"),
        ("child fork raise", "crashed"),
        ("os._exit", "unclosed"),
    ],
)
def test_how_it_ended(ending: str, status: str, tmp_path: Path) -> None:
    done = forked.run(PROGRAM, tmp_path, 30, ending)
    assert "trained" in done.stdout, done.stderr
    assert "Exception ignored" not in done.stderr
    assert complete(tmp_path, 30) == status
    code = {"terminate": -signal.SIGTERM, "own handler": 3}.get(ending)
    assert code in (None, done.returncode), "the process ends as it would have"
    assert ("mine" in done.stdout) is (ending == "own handler")


def test_many_steps_are_all_there(tmp_path: Path) -> None:
    forked.run(PROGRAM, tmp_path, 3000, "end", check=True)
    assert complete(tmp_path, 3000) == "finished"


def test_an_error_that_is_being_handled_is_not_that_of_a_watch_begun_later(tmp_path: Path) -> None:
    forked.run(PROGRAM, tmp_path, 3, "second", check=True)
    assert complete(tmp_path, 3) == complete(tmp_path / "second", 3) == "finished"


@pytest.mark.parametrize(
    ("ending", "says", "status"), [("pause", "trained", "unclosed"), ("garbage", "collected", "finished")]
)
def test_kill_9_after_a_pause_loses_nothing(ending: str, says: str, status: str, tmp_path: Path) -> None:
    """No further call of `log` is needed to have the last ones stored; garbage is closed at once."""
    with forked.start(PROGRAM, tmp_path, 30, ending, stdout=forked.PIPE) as victim:
        assert victim.stdout is not None
        while victim.stdout.readline().strip() != says:
            assert victim.poll() is None
        time.sleep(0.5)
        with eq.Run.open(tmp_path) as run:
            assert run.status == ("running" if ending == "pause" else "finished")
        victim.kill()
    assert complete(tmp_path, 30) == status


@pytest.mark.parametrize(
    ("last", "status"),
    [
        ("pass", "finished"),
        ("raise ValueError", "crashed"),
        ("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(10)", "interrupted"),
    ],
)
def test_a_notebook_that_is_shut_down(last: str, status: str, tmp_path: Path) -> None:
    """The cell that trained last says how; errors of other cells do not count."""
    start = (
        "import torch, equipoise as eq\nmodel = torch.nn.Linear(4, 3)\n"
        "optimizer = torch.optim.SGD(model.parameters())\nwatch = eq.watch(model, optimizer, 'run')"
    )
    loop = (
        "def train():\n    for _ in range(10):\n        model(torch.ones(2, 4)).sum().backward(); optimizer.step()\n"
        "        watch.log(loss=1.0, number=watch.step)\ntrain()\n"
    )
    cells = [start, loop + "raise ValueError", "train()\n" + last, "undefined"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    where = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=600, resources=where, allow_errors=True).execute()
    assert notebook.cells[-1].outputs[0].ename == "NameError"
    assert complete(tmp_path / "run", 20) == status


def test_the_status_of_an_exception() -> None:
    assert status_of(SystemExit("words")) == "crashed"
    assert status_of(GeneratorExit()) == "finished"
