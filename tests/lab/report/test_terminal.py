"""What is said while trials run: one bar, or a line now and then, with an estimate of what is left."""

import io
import re

import pytest
from rich.console import Console

from equipoise.lab.report import terminal as progress
from equipoise.lab.train.trial import Trial

TRIAL = Trial(steps=100)


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_has_an_estimate(terminal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said = io.StringIO()
    monkeypatch.setattr(progress, "SELDOM", -1.0)
    monkeypatch.setattr(progress, "Console", lambda **_: Console(file=said, force_terminal=terminal, width=100))
    with progress.bars() as report:
        report(1, 4, TRIAL, 0)
        report(1, 4, TRIAL, 100)
        report(2, 4, TRIAL, 50)
        report(5, 8, TRIAL, 50)  # a second round
    text = said.getvalue()
    if terminal:
        assert "mlp digits adamw seed 0" in text
        assert re.search(r"2/8|1/4", text), "all trials in one bar"
        assert text.count("mlp digits") <= text.count("\n") + 1, "no second bar"
    else:
        lines = text.splitlines()
        assert lines[0] == "0.0 of 4 trials"
        assert re.fullmatch(r"1\.5 of 4 trials, about \d+ min left", lines[2])
        assert lines[3].startswith("2.0 of 8 trials, about ")
