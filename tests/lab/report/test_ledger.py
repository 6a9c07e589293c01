"""The ledger of claims: from stored outcomes alone, with a verdict for every statement."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import ROOT
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.lab.experiments import Done, catalogue, find
from equipoise.lab.report import ledger as ledger_module
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.report.ledger import OLDER, SEEDS, VERDICTS, Entry, evidence, is_kept, keep, ledger, outcomes
from equipoise.lab.statistics import Check
from equipoise.lab.statistics.rounds import run_rounds
from equipoise.lab.train.run_experiment import OUTCOME, run_experiment
from equipoise.lab.train.trial import Trial
from equipoise.lab.train.trial_store import STORED, TrialStore, stored_trials

OWN = '''
from equipoise.lab.train.trial import Trial
from equipoise.lab.experiments import Experiment, Outcome
from equipoise.lab.report.claims import Claim, Stat
from equipoise.lab.statistics import Check
from equipoise.lab.train.trial_store import STORED


class Own(Experiment):
    """Few steps learn something, and not all."""

    name, source, about = "own", "me", "Is it learnt?"
    statements = {"learns": "me: it learns", "perfect": "me: it makes no errors", "later": "me: not measured"}

    def trials(self, preset):
        return [Trial(lr=3e-3, steps=20, seed=s) for s in range(1 if preset == "smoke" else 3)]

    def analyse(self, done):
        found = Stat.of([d.result.metrics["test_accuracy"] for d in done])
        found = Stat(found.mean, 1e-3, found.count)  # as if seeds were alike
        return Outcome(
            [{"accuracy": found}],
            [
                Claim("learns/some", "me", "accuracy", 0.15, found, "above"),
                Claim("learns/most", "me", "accuracy", 0.999, found, "above"),
                Claim("perfect", "me", "accuracy", 1.0, found, tolerance=0.0),
            ],
        )

    def draw(self, outcome, figure):
        figure.subplots()
'''


def run(tmp_path: Path, preset: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    run_experiment(
        find(str(tmp_path / "own.py")),
        tmp_path / f"lab/own-{preset}",
        preset=preset,
        seeds=1 if preset == "smoke" else 3,
    )


def own(tmp_path: Path) -> dict[str, Entry]:
    return {e.name: e for e in ledger(tmp_path / "lab") if e.experiment == "own"}


def test_ones_own_outcome_makes_entries_of_the_largest_preset(tmp_path: Path) -> None:
    run(tmp_path, "smoke")
    assert {e.verdict for e in own(tmp_path).values()} == {"not run"}, "one seed is not enough"
    run(tmp_path, "small")
    entries = own(tmp_path)
    assert {n: e.verdict for n, e in entries.items()} == {
        "learns": "holds partly", "perfect": "does not hold here", "later": "not run",
    }  # fmt: skip
    assert entries["learns"].parts == "1 agree, 1 differ"
    assert entries["perfect"].made["preset"] == "small"
    stored = outcomes(tmp_path / "lab")["own"]
    assert stored["config"]["lr"] == 3e-3
    assert [t["config"] for t in stored["trials"]] == [{"seed": s} for s in range(3)]
    assert {v["torch"] for v in stored["versions"]} == {torch.__version__}


def test_what_is_kept_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path, "small")
    monkeypatch.setattr("equipoise.lab.report.ledger.STORED", tmp_path / "stored")
    keep(tmp_path / "lab/own-small" / OUTCOME)
    kept, whole = outcomes()["own"], outcomes(tmp_path / "lab")["own"]
    lines = [json.loads(line) for line in (tmp_path / "stored/trials/own.jsonl").read_text().splitlines()]
    assert [line["key"] for line in lines] == sorted(t["key"] for t in whole["trials"])
    assert all("test_accuracy" in line["metrics"] and line["config"]["lr"] == 3e-3 for line in lines)
    assert kept == whole


def test_a_long_value_is_stored_as_its_hash(tmp_path: Path) -> None:
    curve = "{'curves': {'lr': from_array([1.0] * 200).to_dict()}}"
    text = OWN.replace("steps=20,", f"steps=20, data_options={{'test': 0.2}}, optimizer_options={curve},")
    (tmp_path / "own.py").write_text(f"from equipoise.schedules import from_array\n{text}")
    run_experiment(find(str(tmp_path / "own.py")), tmp_path / "lab/own-smoke", preset="smoke")
    stored = outcomes(tmp_path / "lab")["own"]["config"]
    assert stored["optimizer_options.curves"].startswith("sha256:")
    assert stored["data_options.test"] == 0.2


def test_what_is_stored_belongs_to_the_experiments() -> None:
    """A stored claim whose statement was renamed would vanish from the ledger."""
    known, stored = catalogue(), outcomes()
    assert stored.keys() <= known.keys()
    for name, content in stored.items():
        names = {claim["name"].partition("/")[0] for claim in content["claims"]}
        assert names <= known[name].statements.keys(), name
        assert content["config"]
        assert content["versions"]
        assert content["date"]
        keys = {t.key for t in known[name]().trials(content["preset"])}
        stale = keys - {t["key"] for t in content["trials"]}  # trials that follow from others may come on top
        assert not stale, f"{name}: its trials have changed since; run it again"


@pytest.mark.parametrize("name", [n for n, content in outcomes().items() if is_kept(n, content)])
def test_verdicts_come_from_stored_trials(name: str) -> None:
    """What the ledger says is what today's code makes of the trials that are stored, number by number."""
    content, experiment = outcomes()[name], find(name)
    store = TrialStore(stored_trials(name))

    def stored(trials: Sequence[Trial]) -> list[Done]:
        found = [store.get(trial, experiment.version) for trial in trials]
        assert None not in found, "a trial is missing"
        return [done for done in found if done is not None]

    # The smallest budget that has the same seeds: it must have stopped there.
    finding = run_rounds(experiment, content["preset"], stored, seeds=content["seeds"])
    again = json.loads(json.dumps([claim.to_dict() for claim in finding.outcome.claims]))
    assert [claim["name"] for claim in again] == [claim["name"] for claim in content["claims"]]
    for new, old in zip(again, content["claims"], strict=True):
        assert new["verdict"] == old["verdict"], new["name"]
        assert new["measured"]["mean"] == pytest.approx(old["measured"]["mean"], rel=1e-6, abs=1e-9, nan_ok=True)
        for check, kept in zip(new["checks"], old["checks"], strict=True):
            number = isinstance(kept["measured"], float)
            about = pytest.approx(kept["measured"], rel=1e-6, abs=1e-9) if number else kept["measured"]
            assert check == kept | {"measured": about}


def test_older_runs_say_that_they_are_older() -> None:
    page = evidence(ledger())
    for name, content in outcomes().items():
        section = page.split(f"## {name}\n")[1].split("\n## ")[0]
        assert (OLDER in section) == (not is_kept(name, content)), name


def test_every_experiment_makes_statements() -> None:
    for name, experiment in catalogue().items():
        assert experiment.statements, name
        for text in experiment.statements.values():
            assert ": " in text, f"{name}: a statement begins with its source: {text}"


def test_the_page_is_what_the_ledger_says() -> None:
    page = (ROOT / "docs" / "evidence.md").read_text()
    inner = page.split("<!-- begin: evidence -->\n")[1].split("\n<!-- end: evidence -->")[0]
    assert inner == evidence(ledger())


@pytest.mark.parametrize(
    ("means", "verdict"),
    [
        ((1.0, 1.0), "holds"), ((1.0, 2.0), "holds partly"), ((2.0, 2.0), "does not hold here"),
        ((2.0, 1.05), "does not hold here"), ((1.05, 1.05), "undecided"), ((1.0, 1.05), "holds partly"),
        ((None,), "not tested"), ((1.0, None), "holds partly"), ((2.0, None), "does not hold here"),
        ((1.05, None), "undecided"),
        ((), "not run"),
    ],
)  # fmt: skip
def test_parts_are_judged_together(means: tuple[float | None, ...], verdict: str) -> None:
    """None: a part that agrees, if only it had been tested."""
    failed = Check.between("rotation as asked", 0.15, 0.9, 1.1)
    parts = [
        Claim(f"a/{i}", "[kosson2024]", "x", 1.0, Stat(mean or 1.0, 0.004, SEEDS), checks=() if mean else [failed])
        for i, mean in enumerate(means)
    ]
    entry = Entry("x", "a", "…", parts)
    assert entry.verdict == verdict
    assert verdict in VERDICTS
    assert entry.reason == ("rotation as asked: 0.15, needs 0.9 to 1.1" if None in means else "")


def test_the_part_that_a_verdict_hangs_on() -> None:
    """What differs before what is undecided, and of the same the least clear; what was not tested comes last."""
    failed = [Check.between("rotation as asked", 0.15, 0.9, 1.1)]
    clear, unclear = (Claim(f"a/{m}", "[kosson2024]", "x", 1.0, Stat(m, 0.001, SEEDS)) for m in (1.0, 1.03))
    open_, wrong = (Claim(f"a/{m}", "[kosson2024]", "x", 1.0, Stat(m, 0.004, SEEDS)) for m in (1.05, 2.0))
    untested = Claim("a/0", "[kosson2024]", "x", 1.0, Stat(9.0, 0.004, SEEDS), checks=failed)
    assert Entry("x", "a", "…", [clear, unclear, untested]).telling == unclear
    assert Entry("x", "a", "…", [clear, open_, unclear]).telling == open_
    assert Entry("x", "a", "…", [open_, wrong]).telling == wrong
    assert Entry("x", "a", "…", [untested]).telling == untested
    assert Entry("x", "a", "…").telling is None


def test_checks_are_stored_and_read_again() -> None:
    made = Claim("a", "[kosson2024]", "x", 1.0, Stat(1.0, 0.01, 3), checks=[Check.between("b", 2.0, high=1.0)])
    again = ledger_module._claim(json.loads(json.dumps(made.to_dict())))
    assert again.verdict == "not tested"
    assert again.reason == made.reason == "b: 2, needs at most 1"
    assert made.to_dict()["interval"] == list(made.interval)
    assert Check.between("b", None, high=1.0).reason == "b: not recorded, needs at most 1"
    assert not Check.between("b", None, high=1.0).passed
    assert not Check.between("b", float("nan"), low=1.0).passed


def test_the_command(tmp_path: Path) -> None:
    run(tmp_path, "small")
    call = CliRunner().invoke
    shown = call(app, ["lab", "claims", str(tmp_path / "lab"), "--experiment", "own"])
    assert shown.exit_code == 0
    for word in ("it learns", "holds partly", "does not hold", "not run", "3 statements"):
        assert word in shown.output
    listed = json.loads(
        call(app, ["lab", "claims", str(tmp_path / "lab"), "--json", "--verdict", "holds partly"]).output
    )
    assert [(e["experiment"], e["statement"], len(e["claims"])) for e in listed] == [("own", "learns", 2)]
    brief = call(app, ["lab", "claims", "--brief"])
    assert brief.exit_code == 0
    assert "random-walk" in brief.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--verdict", "true"], "verdict = 'true': must be one of"),
        (["--experiment", "walks"], "experiment = 'walks': must be one of"),
        (["nowhere"], "nowhere: must be a directory"),
    ],
)
def test_wrong_input(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(app, ["lab", "claims", *arguments])
    assert result.exit_code != 0
    assert said in result.output or said in str(result.exception)


def test_a_broken_outcome_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / OUTCOME).write_text("{}")
    with pytest.raises(ValueError, match=r"a/outcome.json: is no outcome"):
        outcomes(tmp_path)


@pytest.mark.parametrize(
    "wrong",
    [
        {"expected": "0.1"},
        {"name": 3},
        {"checks": [{"name": "a"}]},
        {"checks": [3]},
        {"measured": {"mean": [1], "std": 0, "count": 3}},
    ],
)
def test_a_claim_without_numbers_is_no_outcome(tmp_path: Path, wrong: dict[str, Any]) -> None:
    stored = json.loads(next(STORED.glob("*.json")).read_text())
    stored["claims"][0] |= wrong
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / OUTCOME).write_text(json.dumps(stored))
    with pytest.raises(ValueError, match=r"a/outcome.json: is no outcome"):
        outcomes(tmp_path)
