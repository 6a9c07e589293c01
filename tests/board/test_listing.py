"""Experiments of the lab on the board: listed, shown with figure and claims, and as safe as runs."""

import html
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.board import example_runs
from tests.board.board_process import board
from tests.board.test_server import ask

from equipoise.board import listing
from equipoise.board.listing import Runs
from equipoise.lab.experiments import Experiment, Outcome
from equipoise.lab.report.claims import Claim, over_seeds
from equipoise.lab.train.run_experiment import run_experiment
from equipoise.lab.train.trial import Trial
from equipoise.monitor.runs.directory import signature
from equipoise.monitor.runs.experiment_summary import FIGURE, SUMMARY, ExperimentSummary
from equipoise.monitor.store.schema import RunError

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")


class Small(Experiment):
    """Three seeds of a few steps."""

    name, source, about = "small", "a test", "Does it run?"
    statements = {"it": f"a test: it learns {example_runs.EVIL}"}  # noqa: RUF012

    def trials(self, preset: str) -> list[Trial]:
        """Three seeds."""
        return [Trial(lr=3e-3, steps=20, seed=seed) for seed in range(3)]

    def analyse(self, done: Any) -> Outcome:
        """With a name that is no good."""
        rows = [
            {"system": example_runs.EVIL, **row}
            for row in over_seeds([d.result for d in done], ["test_accuracy"], ["lr"])
        ]
        return Outcome(rows, [Claim("it", example_runs.EVIL, "accuracy", 0.0, rows[0]["test_accuracy"], "above")])

    def draw(self, outcome: Outcome, figure: Any) -> None:
        """A point."""
        figure.subplots().plot([outcome.rows[0]["test_accuracy"].mean], "o")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("lab")
    root = top / "lab"
    run_experiment(Small(), root / "small")
    shutil.copytree(root / "small", top / "outside")
    (root / "link").symlink_to(top / "outside")
    (root / "linked-file").mkdir()
    (root / "linked-file" / SUMMARY).symlink_to(top / "outside" / SUMMARY)
    (root / "linked-figure").mkdir()
    shutil.copy(root / "small" / SUMMARY, root / "linked-figure" / SUMMARY)
    (root / "linked-figure" / FIGURE).symlink_to(top / "outside" / FIGURE)
    for name, text in {"junk": "<script>", "other": "[]", "half": '{"experiment": 3}'}.items():
        (root / name).mkdir()
        (root / name / SUMMARY).write_text(text)
    return root


@pytest.fixture(scope="module")
def url(lab: Path) -> Iterator[str]:
    with board(lab) as address:
        yield address


def test_experiments_are_listed_with_their_trials(url: str) -> None:
    _, text = ask(f"{url}/api/runs")
    found = json.loads(text)
    lines = {line["name"]: line for line in found["outcomes"]}
    assert lines["small"]["verdicts"] == {"agrees": 1}
    assert lines["small"]["experiment"] == "small"
    for name in ("junk", "other", "half"):
        assert "cannot be read" in lines[name]["error"]
    for name in ("linked-file", "linked-figure"):
        assert "no such experiment" in lines[name]["error"]
    assert "link" not in lines
    assert len([r for r in found["rows"] if r["name"].startswith("small/")]) == 3
    at = [c["name"] for c in found["columns"]].index("loss")
    assert all(float(r["cells"][at]) > 0 for r in found["rows"]), "the lab's loss is train_loss"


def test_its_page_has_figure_claims_table_and_links(url: str) -> None:
    status, text = ask(f"{url}/outcome?at=small")
    assert status == 200
    assert "1 of 1 claims agree with the source" in text
    assert "data:image/svg+xml;base64," in text
    assert example_runs.EVIL not in text
    assert text.count(html.escape(example_runs.EVIL)) >= 2, "the source of the claim, and a cell of the table"
    key = Trial(lr=3e-3, steps=20, seed=1).key
    assert f"run?run=small/{key}/run" in text
    status, page = ask(f"{url}/run?run=small/{key}/run")
    assert status == 200
    assert "no such run" not in page


@pytest.mark.parametrize(
    "name", ["../outside", "/etc", "link", "linked-file", "linked-figure", "nothing", "", "small/.."]
)
def test_nothing_outside_is_read(lab: Path, url: str, name: str) -> None:
    with pytest.raises(RunError, match="no such experiment"):
        Runs(lab).outcome(name)
    status, text = ask(f"{url}/outcome?at={name}")
    assert status == 404
    assert "data:image" not in text


@pytest.mark.parametrize("name", ["a\0b", "x" * 5000])
def test_a_name_that_no_file_can_have(lab: Path, name: str) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        Runs(lab).outcome(name)


def test_an_outcome_that_is_too_large_is_not_read(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.monitor.runs.experiment_summary.LARGEST", 10)
    with pytest.raises(RunError, match="cannot be read"):
        Runs(lab).outcome("small")


def test_any_experiment_is_shown_and_not_only_the_labs(tmp_path: Path) -> None:
    """The board knows the summary alone: no file of the lab's, and nothing of the lab."""
    trials = (("a", "finished"), ("b", "crashed"))
    claims = ({"claim": "it learns", "verdict": "agrees"}, {"claim": "fast", "verdict": "differs"})
    made = ExperimentSummary("mine", "me", "large", "2026-11-18", "1 of 2 finished", ({"lr": "0.1"},), claims, trials)
    made.write(tmp_path / "mine")
    (line,) = Runs(tmp_path).answer({})["outcomes"]
    assert line["verdicts"] == {"agrees": 1, "differs": 1}
    shown = Runs(tmp_path).outcome("mine")
    assert [t["here"] for t in shown["trials"]] == [False, False]
    assert shown["rows"] == ({"lr": "0.1"},)
    source = Path(listing.__file__).parent
    for file in source.rglob("*.py"):
        assert "outcome.json" not in file.read_text(), file


def test_reading_a_run_does_not_make_it_newer(tmp_path: Path) -> None:
    path = example_runs.made(tmp_path / "run", ["a.weight"], rows=5)
    before = signature(path)
    (path / "run.sqlite-wal").touch()  # as readers of a file in WAL mode leave it
    assert signature(path) == before
