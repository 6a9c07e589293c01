"""TensorBoard reads back what was sent."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.monitor.sinks.sent_run import right, run

from equipoise.monitor.sinks import TensorBoard


def read(folder: Path) -> tuple[dict[str, dict[int, float]], dict[str, list[str]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    scalars = {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}
    for tag, values in scalars.items():
        assert len({e.step for e in values}) == len(values), tag
    texts = {
        tag: [t.tensor_proto.string_val[0].decode() for t in events.Tensors(tag)] for tag in events.Tags()["tensors"]
    }
    return {tag: {e.step: e.value for e in values} for tag, values in scalars.items()}, texts


def test_scalars_and_findings_are_read_back(tmp_path: Path) -> None:
    run(tmp_path, "tensorboard")
    scalars, texts = read(tmp_path / "tensorboard")
    for name, values in right(tmp_path).items():
        assert scalars[name] == pytest.approx(values), name
    assert list(scalars["equipoise/worst/0.weight/rotation"]) == [3, 4, 5]
    assert len(scalars) < 45
    (text,) = texts["equipoise/findings/update-lost/text_summary"]
    assert text == "**warning** 0.weight: evidence. Expected: expected. To do: advice. (source)"


def test_a_run_that_goes_back_has_each_step_once(tmp_path: Path) -> None:
    run(tmp_path, "tensorboard")
    run(tmp_path, "tensorboard", resume=3, first=10)
    scalars, _ = read(tmp_path / "tensorboard")
    for name, values in right(tmp_path).items():
        assert scalars[name] == pytest.approx(values), name
        assert list(values) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_directory_of_ones_own(tmp_path: Path) -> None:
    run(tmp_path / "run", TensorBoard(tmp_path / "events"))
    assert len(read(tmp_path / "events")[0]["equipoise/log/loss"]) == 5
