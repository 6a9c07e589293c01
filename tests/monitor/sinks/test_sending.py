"""Sinks never stop or slow training, whatever they do; what is sent is small and sound."""

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import forked
from tests.monitor.loops import network, train
from tests.monitor.sinks.sent_run import ODD, note, run

import equipoise as eq
from equipoise.finding import Finding
from equipoise.monitor import Column, TensorInfo
from equipoise.monitor.diagnose.ranking import Followed, deviation, worst_first
from equipoise.monitor.sinks import Sink
from equipoise.monitor.sinks.sink_thread import BURST, MOST, SinkThread
from equipoise.monitor.sinks.summary import OVER_LAYERS, StepSummary


class Kept:
    """A user's own sink."""

    def __init__(self, every_seconds: float = 0.0, after: int = 0) -> None:
        self.every_seconds, self.after = every_seconds, after
        self.sent: list[tuple[int, dict[str, float]]] = []
        self.found: list[tuple[int, Finding]] = []
        self.status = ""
        self.open = threading.Event()
        self.open.set()

    def send(self, step: int, numbers: Mapping[str, float]) -> None:
        self.open.wait(20)
        self.sent.append((step, dict(numbers)))

    def finding(self, step: int, finding: Finding) -> None:
        self.found.append((step, finding))

    def close(self, status: str) -> None:
        self.status = status


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def test_any_object_with_the_three_methods_is_a_sink(tmp_path: Path) -> None:
    sink = Kept()
    assert isinstance(sink, Sink)
    run(tmp_path, sink)
    assert [step for step, _ in sink.sent] == [1, 2, 3, 4, 5]
    assert sink.found == [(5, ODD)]
    assert sink.status == "finished"


def test_a_crash_is_told_to_the_sink(tmp_path: Path) -> None:
    sink, model = Kept(), network()
    with pytest.raises(ZeroDivisionError), eq.watch(model, adamw(model), tmp_path, sinks=[sink]):
        raise ZeroDivisionError
    assert sink.status == "crashed"


@pytest.mark.parametrize("where", ["send", "finding", "close"])
def test_a_sink_that_fails_is_one_finding_and_off(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Kept(), Kept()
    calls = []

    def fail(*_: object) -> None:
        calls.append(1)
        raise OSError("no route to host")

    monkeypatch.setattr(bad, where, fail)
    model = network()
    optimizer = adamw(model)
    with eq.watch(model, optimizer, tmp_path, every=1, sinks=[bad, good]) as watch:
        note(watch)
        for step in range(4):
            train(model, optimizer, 1, first=step)
            for lane in watch._sending._threads:
                lane.settle()
    assert [f.code for f in watch.findings] == ["update-lost", "sink-failed"]
    assert watch.findings[1].where == "sink Kept"
    assert watch.findings[1].evidence == "OSError: no route to host"
    assert len(calls) == 1
    assert [step for step, _ in good.sent] == [1, 2, 3, 4]
    if where != "close":  # the others are told, while they are there
        assert [f.code for _, f in good.found] == ["update-lost", "sink-failed"]
    assert len([r for r in caplog.records if "sink-failed in sink Kept: OSError" in r.message]) == 1
    with eq.Run.open(tmp_path) as stored:
        assert [f.code for f in stored.findings] == ["update-lost", "sink-failed"]
        assert len(stored.series("norm", "0.weight")) == 4


def test_a_sink_that_hangs_holds_up_neither_training_nor_other_sinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.monitor.sinks.sending.PATIENCE", 0.2)
    stuck, good = Kept(), Kept()
    stuck.open.clear()
    model = network()
    optimizer = adamw(model)
    with eq.watch(model, optimizer, tmp_path, every=1, sinks=[stuck, good]) as watch:
        train(model, optimizer, 5)
    assert [step for step, _ in good.sent] == [1, 2, 3, 4, 5]
    assert [(f.code, f.evidence) for f in watch.findings] == [
        ("sink-failed", "TimeoutError: did not answer within 0.2 s")
    ]
    stuck.open.set()


def test_a_slow_sink_gets_the_newest_of_each_number() -> None:
    sink = Kept()
    sink.open.clear()
    lane = SinkThread("slow", sink)
    for step in range(1, 10 * MOST):
        lane.send(step, {"a": step, **({"b": step} if step == 7 else {})})
    sink.open.set()
    lane.close("finished", 10)
    assert len(sink.sent) <= 2 * MOST, "those that it had begun with, and those that wait"
    assert sink.sent[-1] == (10 * MOST - 1, {"a": 10 * MOST - 1})
    assert [step for step, numbers in sink.sent if "b" in numbers] == [7]
    assert [step for step, _ in sink.sent] == sorted(step for step, _ in sink.sent)


def test_after_the_first_hundred_every_seconds_counts() -> None:
    sink = Kept(every_seconds=0.4)
    lane = SinkThread("seldom", sink)
    for step in range(1, BURST + 1):
        lane.send(step, {"a": step})
        assert lane.settle()
    start = time.monotonic()
    step = BURST
    while time.monotonic() - start < 1.0:
        step += 1
        lane.send(step, {"a": step})
        time.sleep(0.002)
    lane.close("finished", 10)
    steps = [s for s, _ in sink.sent]
    assert steps[:BURST] == list(range(1, BURST + 1))
    assert 2 <= len(steps) - BURST <= 4
    assert steps[-1] == step, "the last one is sent in any case"


def test_sending_counts_as_watching(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink, model = Kept(), network()

    def work(step: int, numbers: Mapping[str, float]) -> None:
        start = time.thread_time()
        while time.thread_time() - start < 0.1:
            pass

    monkeypatch.setattr(sink, "send", work)
    optimizer = adamw(model)
    with eq.watch(model, optimizer, tmp_path, every=1, sinks=[sink]) as watch:
        for step in range(3):
            train(model, optimizer, 1, first=step)
            for lane in watch._sending._threads:
                lane.settle()
        train(model, optimizer, 1, first=3)
        assert watch._cadence.watched > 0.19


@pytest.mark.parametrize(
    ("sinks", "message"),
    [
        ("wandb", r"sinks = 'wandb': must be a list"),
        (["tensorbord"], r"sinks = 'tensorbord': must be one of logging, mlflow, tensorboard, trackio, wandb"),
        ([3], r"sinks = 3: must be one of .* or an object with send, finding and close"),
        ([Kept], r"or an object with send, finding and close"),
    ],
)
def test_what_is_no_sink_is_refused(sinks: object, message: str, tmp_path: Path) -> None:
    model = network()
    with pytest.raises(ValueError, match=message):
        eq.watch(model, adamw(model), tmp_path / "a", sinks=sinks)  # type: ignore[arg-type]
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("name", ["tensorboard", "wandb", "mlflow", "trackio"])
def test_a_library_that_is_not_there_is_said_at_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not there
    model = network()
    with pytest.raises(ImportError, match=rf"{name} is not installed: pip install 'equipoise\[{name}\]'"):
        eq.watch(model, adamw(model), tmp_path, sinks=[name])


def test_a_tool_that_cannot_be_opened_is_a_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    model = network()
    optimizer = adamw(model)
    caplog.set_level(logging.INFO, "equipoise.watch")
    with eq.watch(model, optimizer, tmp_path, every=1, sinks=["tensorboard", "logging"]) as watch:
        train(model, optimizer, 2)
    (finding,) = watch.findings
    assert (finding.code, finding.where) == ("sink-failed", "sink tensorboard")
    assert next(r.message for r in caplog.records if r.name == "equipoise.watch").startswith("step 1:")


def summarise(
    rotations: list[list[float]], groups: int = 1, expected: np.ndarray | None = None
) -> list[dict[str, float]]:
    count = len(rotations[0])
    tensors = [TensorInfo(f"w{i}", (4, 4)) for i in range(count)] + [TensorInfo("bias", (4,))]
    columns = [Column("balance_layers"), *(Column(f"lr/{i}") for i in range(groups)), Column("norm", "w0")]
    row = np.array([0.5, *(0.1 * (i + 1) for i in range(groups)), 9.0])
    made = StepSummary(2)
    return [
        made.numbers(
            tensors, {name: np.array([*rotation, 77.0]) for name in (*OVER_LAYERS, "norm")}, columns, row, expected
        )
        for rotation in rotations
    ]


def test_aggregates_are_over_matrices_and_leave_out_what_is_missing() -> None:
    (numbers,) = summarise([[0.1, 0.4, 0.2, np.nan]])
    assert numbers["equipoise/rotation/median"] == pytest.approx(0.2)
    assert (numbers["equipoise/rotation/min"], numbers["equipoise/rotation/max"]) == (0.1, 0.4)
    assert numbers["equipoise/balance/layers"] == 0.5
    assert numbers["equipoise/lr/0"] == 0.1
    (numbers,) = summarise([[np.nan, np.nan]])
    assert not any(name.startswith("equipoise/rotation") for name in numbers)


def test_many_groups_are_sent_as_a_range() -> None:
    (numbers,) = summarise([[0.1]], groups=30)
    assert numbers["equipoise/lr/min"] == pytest.approx(0.1)
    assert numbers["equipoise/lr/max"] == pytest.approx(3.0)
    assert "equipoise/lr/0" not in numbers


def test_worst_is_far_from_the_median_or_from_what_is_predicted() -> None:
    rotation = np.array([0.1, 0.1, 0.025, 0.2, np.nan, 0.0])
    assert worst_first(rotation).tolist() == [5, 2, 3, 0, 1]
    assert deviation(rotation)[[2, 3, 4]].tolist() == pytest.approx([np.log(4), np.log(2), -1])
    assert worst_first(rotation, np.array([0.1, 0.5, 0.025, 0.2, 1.0, 0.0]))[0] == 1


def test_followed_layers_stay_and_are_few() -> None:
    rows = summarise([[0.1, 0.11, 0.3, 0.09]] * 3 + [[0.1, 0.5, 0.1, 0.1]] * 3)
    layers = [{name.split("/")[2] for name in row if "/worst/" in name} for row in rows]
    assert layers == [set(), set(), {"w2", "w3"}, {"w2", "w3"}, {"w2", "w3"}, {"w1", "w2", "w3"}]
    assert rows[2]["equipoise/worst/w2/rotation_over_median"] == pytest.approx(0.3 / 0.105)
    rows = summarise([[0.1, 0.2]] * 3, expected=np.array([0.05, 0.2, 1.0]))
    assert rows[2]["equipoise/worst/w0/rotation_over_predicted"] == pytest.approx(2.0)
    followed, chosen = Followed(1), []
    names = [f"w{i}" for i in range(20)]
    for worst in range(10):
        for _ in range(3):
            chosen = followed.look(names, np.array([9.0 if i == worst else 1.0 for i in range(20)]))
    assert chosen == ["w0", "w1", "w2"]


def test_one_blip_is_not_followed() -> None:
    followed = Followed(1)
    for step in range(20):
        worst = step % 3
        assert followed.look(["a", "b", "c", "d", "e"], np.array([9.0 if i == worst else 1.0 for i in range(5)])) == []


def test_watching_imports_none_of_the_tools() -> None:
    code = (
        "import sys; import equipoise as eq; eq.watch; "
        "found = {'lightning', 'mlflow', 'tensorboard', 'trackio', 'transformers', 'wandb'} & set(sys.modules); "
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("ends", "status"), [("", "finished"), ("raise ZeroDivisionError", "crashed")])
def test_a_watch_that_is_never_closed_sends_what_it_has(ends: str, status: str, tmp_path: Path) -> None:
    code = f"""
import sys
import torch
import equipoise as eq

class Printed:
    def send(self, step, numbers): print(step, flush=True)
    def finding(self, step, finding): pass
    def close(self, status): print(status, flush=True)

weight = torch.nn.Parameter(torch.ones(3, 3))
optimizer = torch.optim.SGD([weight], lr=0.1)
watch = eq.watch(None, optimizer, sys.argv[1], every=1, sinks=[Printed()])
for _ in range(3):
    weight.grad = torch.ones(3, 3)
    optimizer.step()
{ends}
"""
    done = forked.run("-c", code, tmp_path)
    assert done.stdout.split() == ["1", "2", "3", status], done.stderr
