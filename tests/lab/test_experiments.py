"""Every experiment runs at `smoke`, a run experiment is not run again, and one's own is one file."""

import json
from pathlib import Path

import pytest

from equipoise.lab.conduct import conduct, write_figure
from equipoise.lab.experiments import catalogue, find
from equipoise.lab.results import Stat


@pytest.mark.parametrize("name", catalogue())
def test_an_experiment_at_smoke(name: str, tmp_path: Path) -> None:
    experiment = find(name)
    outcome, done = conduct(experiment, tmp_path, preset="smoke")
    assert {d.result.status for d in done} == {"finished"}, [d.result.error for d in done]
    assert outcome.rows
    assert outcome.claims
    names = [claim.name for claim in outcome.claims]
    assert len(set(names)) == len(names)
    stored = json.loads((tmp_path / "outcome.json").read_text())
    assert [c["verdict"] for c in stored["claims"]] == [c.verdict for c in outcome.claims]
    assert {t["key"] for t in stored["trials"]} == {d.folder.name for d in done}
    CHECKS[name](outcome)
    write_figure(experiment, outcome, tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    for preset in ("small", "full"):
        seeds = {t.seed for t in experiment.trials(preset)}
        assert len(seeds) >= 3


def random_walk(outcome) -> None:
    """Few steps and few neurons, so a wide margin; at a large rate, so that RE's limit of small steps shows its error."""
    for row in outcome.rows:
        for what in ("norm", "rotation"):
            ratio = row[f"{what} / exact"]
            wide = 0.25 if row["optimizer"] == "adam_l2" else 0.08
            assert isinstance(ratio, Stat)
            assert abs(ratio.mean - 1) < wide, (row["optimizer"], what, ratio)
    spread = {row["optimizer"]: row["spread of rotation"].mean for row in outcome.rows}
    assert spread["adam_l2"] > 1.5 * spread["adamw"]


CHECKS = {"random-walk": random_walk}
