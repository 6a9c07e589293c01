"""Python's logging gets a line a step, and findings at their level."""

import logging
from pathlib import Path

import pytest
from tests.monitor.sinks.sent_run import right, run


def test_lines_and_levels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "equipoise.watch"):
        run(tmp_path, "logging")
    lines = [r for r in caplog.records if r.name == "equipoise.watch"]
    assert sorted(r.levelname for r in lines) == ["INFO"] * 6 + ["WARNING"]
    values = right(tmp_path)
    steps = {vars(r)["step"]: r for r in lines if "numbers" in vars(r)}
    for name, series in values.items():
        assert {s: vars(r)["numbers"][name] for s, r in steps.items()} == pytest.approx(series)
    assert steps[2].getMessage().startswith(f"step 2: loss {values['equipoise/log/loss'][2]:.4g}, rotation ")
    (finding,) = [r for r in lines if r.levelno == logging.WARNING]
    assert finding.getMessage().startswith("step 5: update-lost: 0.weight: evidence.")
    assert lines[-1].getMessage() == "finished"
