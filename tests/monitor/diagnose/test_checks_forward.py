"""Findings about the forward pass say what a run's numbers show, at the right module, and nothing of a steady run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.finding import Finding
from equipoise.monitor import Column, Layout, Run, RunWriter, TensorInfo
from equipoise.monitor.diagnose.checks_forward import CHECKS
from equipoise.monitor.diagnose.diagnosis import review

STEPS = 40
SAID = {"activations-growing", "attention-logits-growing", "experts-unbalanced", "units-dead"}


def found(path: Path, numbers: dict[Column, Callable[[float], float]], rows: int = STEPS) -> dict[str, Finding]:
    """The findings of a run whose numbers are functions of the share of the run that is over."""
    layouts = [Layout((Column("norm", "w"), Column("rotation", "w"))), Layout(tuple(numbers), kind="forward")]
    with RunWriter(path, tensors=[TensorInfo("w", (4, 4), "matrix")], layouts=layouts) as writer:
        for step in range(1, STEPS + 1):
            writer.append(step, [1.0, 0.1])
            if step <= rows:
                writer.append(step, [f(step / STEPS) for f in numbers.values()], kind="forward")
    with Run.open(path) as run:
        return {f.code: f for f in review(run, ended=True) if f.code in SAID}


def test_a_steady_run_has_none(tmp_path: Path) -> None:
    steady = {
        Column("attention_logit", "a"): lambda t: 500.0,  # large from the start, and not rising
        Column("attention_logit", "b"): lambda t: 40 * t,  # rising, and small
        Column("output_rms", "a"): lambda t: 0.01 if t < 0.1 else 1 + t,  # grows from small weights
        Column("units_dead", "w"): lambda t: 0.2,
        Column("expert_load", "a", neuron=0): lambda t: 1.8,
        Column("expert_load", "a", neuron=1): lambda t: 0.2,
    }
    assert found(tmp_path, steady) == {}


def test_rising_logits_are_said_with_their_heads(tmp_path: Path) -> None:
    numbers: dict[Column, Callable[[float], float]] = {
        Column("attention_logit", "a"): lambda t: 1000 * t,
        Column("attention_logit", "a", neuron=0): lambda t: 1000 * t,
        Column("attention_logit", "a", neuron=1): lambda t: 1.0,
        Column("attention_entropy", "a"): lambda t: 0.25,
        Column("attention_logit", "b"): lambda t: 100 * t,
    }
    finding = found(tmp_path, numbers)["attention-logits-growing"]
    assert finding.where == "a"
    assert "in 1 of 2 heads" in finding.evidence
    assert "0.25 of that of equal ones" in finding.evidence
    assert "1 other module too" in finding.evidence


def test_the_first_block_that_grows_is_named(tmp_path: Path) -> None:
    numbers: dict[Column, Callable[[float], float]] = {
        Column("output_rms", "layers.0"): lambda t: 1.0,
        Column("output_rms", "layers.1"): lambda t: 2 ** (8 * t),
        Column("output_rms", "layers.2"): lambda t: 1 + 2 ** (9 * t),
    }
    finding = found(tmp_path, numbers)["activations-growing"]
    assert finding.where == "layers.1"
    assert finding.severity == "info"


def test_dead_units_and_starved_experts_are_those_of_the_end(tmp_path: Path) -> None:
    numbers: dict[Column, Callable[[float], float]] = {
        Column("units_dead", "w"): lambda t: 0.1 if t < 0.7 else 0.5,
        Column("units_dead", "v"): lambda t: 0.5 if t < 0.7 else 0.1,
        Column("expert_load", "m", neuron=0): lambda t: 2.0,
        Column("expert_load", "m", neuron=1): lambda t: 1.0,
        Column("expert_load", "m", neuron=2): lambda t: 0.0,
    }
    made = found(tmp_path, numbers)
    assert made["units-dead"].where == "w"
    assert "50%" in made["units-dead"].evidence
    assert "1 of its 3 experts" in made["experts-unbalanced"].evidence
    assert "2×" in made["experts-unbalanced"].evidence


@pytest.mark.parametrize("rows", [0, 5])
def test_little_is_not_judged(tmp_path: Path, rows: int) -> None:
    numbers: dict[Column, Callable[[float], float]] = {
        Column("attention_logit", "a"): lambda t: 1e6 * t,
        Column("units_dead", "w"): lambda t: 1.0,
    }
    assert found(tmp_path, numbers, rows) == {}
    assert len(CHECKS) == len(SAID)
