"""`equipoise lab` as a user meets it."""

import io
import json
import subprocess
from pathlib import Path

import pytest
from rich.console import Console
from tests import forked

from equipoise.lab.experiments import Outcome, catalogue
from equipoise.lab.report.terminal import render_outcome

OWN = '''
"""One's own."""
from equipoise.lab.train.trial import Trial
from equipoise.lab.experiments import Experiment, Outcome
from equipoise.lab.report.claims import Claim, over_seeds


class Own(Experiment):
    """Three seeds of a regression."""

    name, source, about = "own", "me", "Does it learn?"

    def trials(self, preset):
        base = Trial(data="regression", model_options={"depth": 0}, lr=0.1, steps=40)
        return [*(base.vary({"seed": s}) for s in range(3)), base.vary({"data": "nothing"})]

    def analyse(self, done):
        rows = over_seeds([d.result for d in done], ["test_loss"], by=["data"])
        return Outcome(rows, [Claim("learns", "me", "test loss", 100.0, rows[0]["test_loss"], "below")])

    def draw(self, outcome, figure):
        figure.subplots().plot([1, 2])
'''


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return forked.equipoise("lab", *arguments, cwd=cwd)


def test_list_and_run(tmp_path: Path) -> None:
    shown = run("list", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "random-walk" in shown.stdout
    (tmp_path / "own.py").write_text(OWN)
    done = run("run", "own.py", "--preset", "smoke", "--figure", "own.png", cwd=tmp_path)
    assert done.returncode == 1, "a trial failed"
    assert "3 finished, 1 failed" in done.stdout
    assert "data = 'nothing': must be one of" in done.stderr
    assert (tmp_path / "own.png").read_bytes().startswith(b"\x89PNG")
    again = json.loads(run("run", "own.py", "--preset", "smoke", "--json", cwd=tmp_path).stdout)
    assert again["rows"][0]["finished"] == 3
    assert again["claims"][0]["verdict"] == "agrees"


def test_a_page_keeps_what_was_written_by_hand(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    command = ("run", "own.py", "--preset", "smoke", "--page", "pages")
    assert run(*command, cwd=tmp_path).returncode == 1, "a trial failed"
    page = tmp_path / "pages" / "own.md"
    made = page.read_text()
    assert made.startswith(
        "# own\n\nDoes it learn?\n\n<!-- begin: own -->\nTo repeat: `equipoise lab run own.py --preset"
    )
    stored = json.loads((tmp_path / "lab" / "own-smoke" / "outcome.json").read_text())
    mean = stored["claims"][0]["measured"]["mean"]
    (claim,) = [line for line in made.splitlines() if line.startswith("| test loss |")]
    cells = [part.strip() for part in claim.strip("|").split("|")]
    assert cells[:3] == ["test loss", "me", "< 100"]
    assert float(cells[3].split(" ± ")[0]) == pytest.approx(mean, rel=0.01)
    low, high = stored["claims"][0]["interval"]
    assert [float(end) for end in cells[4].split(" to ")] == pytest.approx([low, high], rel=0.05, abs=0.05)
    assert cells[5].endswith(" σ")
    assert cells[6:] == ["3", "agrees"]
    assert "Preset `smoke`; seeds 0, 1, 2; 20" in made
    assert "3 finished, 1 failed" in made
    picture = (tmp_path / "pages" / "own.svg").read_bytes()
    assert b"<svg" in picture
    page.write_text("# By hand\n\nBefore.\n\n" + made[made.index("<!--") :].replace("agrees", "wrong") + "\nAfter.\n")
    assert run(*command, cwd=tmp_path).returncode == 1, "a trial failed"
    again = page.read_text()
    assert again == "# By hand\n\nBefore.\n\n" + made[made.index("<!--") :] + "\nAfter.\n"
    assert (tmp_path / "pages" / "own.svg").read_bytes() == picture
    page.write_text("# Broken\n<!-- begin: own -->\n")
    broken = run(*command, cwd=tmp_path)
    assert broken.returncode == 2
    assert "must have <!-- begin: own -->" in broken.stderr


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        (("run", "nonsense"), f"experiment = 'nonsense': must be one of {', '.join(catalogue())}"),
        (("run", "norms", "--preset", "huge"), "preset = 'huge': must be one of full, medium, small, smoke"),
        (("run", "none.py"), "experiment = 'none.py': must be a file that exists"),
    ):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.strip() == f"equipoise: {message}"


@pytest.mark.parametrize(("columns", "tabular"), [(3, True), (30, False)])
def test_a_table_without_room_for_its_columns_is_a_list(columns: int, tabular: bool) -> None:
    rows = [{f"column {i}": float(i + k) for i in range(columns)} for k in range(2)]
    console = Console(width=80, file=io.StringIO())
    console.print(render_outcome(Outcome(rows, ()), []))
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("│" in said) is tabular
    assert f"{columns - 1}" in said
    assert tabular or f"column {columns - 1} {columns}" in " ".join(said.split())
