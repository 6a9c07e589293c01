"""What a page reads of the forward pass is what the run has."""

from pathlib import Path

import numpy as np
import pytest

from equipoise.board.gather import gather
from equipoise.board.pages.findings_view import evidence
from equipoise.board.pages.forward_view import MOST
from equipoise.board.pages.run_page import run_sources
from equipoise.finding import Finding
from equipoise.monitor import Column, Layout, Run, RunWriter, TensorInfo

STEPS = 20


def made(path: Path, blocks: int = 3, heads: int = 2) -> Path:
    """A run with a forward pass: block i's RMS is i + step/10, head h's logit h + step."""
    columns = [Column("output_rms", f"layers.{i}") for i in range(blocks)]
    columns += [Column("attention_logit", "layers.0.attention")]
    columns += [Column("attention_logit", "layers.0.attention", neuron=h) for h in range(heads)]
    names = [Column("norm", "layers.0.attention.q.weight"), Column("rotation", "layers.0.attention.q.weight")]
    tensors = [TensorInfo("layers.0.attention.q.weight", (8, 8))]
    layouts = [Layout(tuple(names)), Layout(tuple(columns), kind="forward")]
    with RunWriter(path, tensors=tensors, layouts=layouts) as writer:
        for step in range(1, STEPS + 1):
            writer.append(step, [1.0, 0.1])
            logits = [h + step for h in range(heads)]
            writer.append(step, [i + step / 10 for i in range(blocks)] + [max(logits), *logits], kind="forward")
    return path


def test_lines_are_those_of_the_modules(tmp_path: Path) -> None:
    with Run.open(made(tmp_path)) as run:
        data = gather(run)
    names, lines = data.forward.values["output_rms"]
    assert names == ["layers.0", "layers.1", "layers.2"]
    np.testing.assert_allclose(lines[""], [[i + s / 10 for s in data.forward.steps] for i in range(3)], rtol=1e-6)
    names, lines = data.forward.values["attention_logit"]
    np.testing.assert_array_equal(lines["low"][0], data.forward.steps)
    np.testing.assert_array_equal(lines["high"][0], data.forward.steps + 1)
    sources = run_sources(data)
    assert sources["passes"]["name"][0] == "output_rms layers.0"
    assert sources["passes"]["value"].shape == sources["passes"]["low"].shape == (4, STEPS)
    assert np.isnan(sources["passes"]["low"][0]).all()


def test_of_very_many_modules_some_are_shown(tmp_path: Path) -> None:
    with Run.open(made(tmp_path, blocks=3 * MOST)) as run:
        names, _ = gather(run).forward.values["output_rms"]
    assert len(names) == MOST
    assert {names[0], names[-1]} == {"layers.0", f"layers.{3 * MOST - 1}"}


@pytest.mark.parametrize(
    ("code", "where", "label"),
    [("attention-logits-growing", "layers.0.attention", "largest attention logit"), ("activations-growing", "x", None)],
)
def test_a_finding_has_the_curve_of_its_module(tmp_path: Path, code: str, where: str, label: str | None) -> None:
    with Run.open(made(tmp_path)) as run:
        data = gather(run)
    curve = evidence(Finding(code, "info", where, "", "", "", ""), data)
    assert (None if curve is None else curve["label"]) == label


def test_a_run_without_has_nothing_to_draw(tmp_path: Path) -> None:
    with RunWriter(tmp_path, layouts=[Layout((Column("norm", "w"),))]) as writer:
        writer.append(1, [1.0])
    with Run.open(tmp_path) as run:
        assert run_sources(gather(run))["passes"] == {"name": []}
