"""Pages as files: whole, light, safe, and right about the state of a run."""

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from tests.board import example_runs
from typer.testing import CliRunner

import equipoise as eq
from equipoise.board import report, report_html, show, write_plan
from equipoise.board.files import _names, frame
from equipoise.board.gather import gather
from equipoise.board.pages.findings_view import evidence, tensor_of
from equipoise.board.pages.run_page import chosen, notes, run_section
from equipoise.board.words import by_severity
from equipoise.cli import app
from equipoise.monitor import Run
from equipoise.planner import Finding


class Tags(HTMLParser):
    """Collects the elements of a page; scripts are text to it, as to a browser."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return example_runs.trained(tmp_path_factory.mktemp("runs") / "small", steps=60)


def test_a_file_needs_nothing_from_anywhere(run: Path, tmp_path: Path) -> None:
    path = report([run], tmp_path / "report.html")
    assert path.stat().st_size < 3e6
    tags = Tags(path.read_text()).found
    assert not [a for _, a in tags if a.get("src") or (a.get("href") or "#")[0] != "#"]
    assert not [t for t, _ in tags if t in ("link", "iframe", "object", "embed", "base", "form")]
    (policy,) = [a["content"] for t, a in tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy
    assert policy.startswith("default-src 'none'")
    assert "connect-src" not in policy


def test_names_stay_text(tmp_path: Path) -> None:
    names = [example_runs.EVIL, example_runs.EVIL_TOO, "</script><script>window.hacked=1</script>"]
    path = example_runs.made(tmp_path / "<u>run", names, rows=20)
    page = report_html([path])
    tags = Tags(page).found
    assert not [t for t, a in tags if t in ("img", "u") or "onerror" in a]
    for inert in ("<script>window.hacked", "<img src=x", "<u>run"):
        assert inert not in page


def test_several_runs_share_a_page(run: Path, tmp_path: Path) -> None:
    other = example_runs.crashed(tmp_path / "crashed")
    page = report_html([run, other])
    assert len(page) < 3e6
    sections = [a.get("data-kind") for t, a in Tags(page).found if t == "section" and "data-kind" in a]
    assert sections == ["compare", "run", "run", "geometry"]
    with pytest.raises(ValueError, match="must be 1 to"):
        report_html([run] * 13)
    with pytest.raises(ValueError, match=re.escape("run.sqlite")):
        report_html([tmp_path / "nothing"])


def test_names_tell_runs_apart() -> None:
    assert _names([Path("/x/a"), Path("/x/b")]) == ["a", "b"]
    assert _names([Path("/x/1/run"), Path("/x/2/run")]) == ["1/run", "2/run"]
    assert len(set(_names([Path("/x/a"), Path("/x/a")]))) == 2


@pytest.mark.parametrize(
    ("make", "status", "says"),
    [
        (example_runs.empty, "empty", "Finished without a single measured step"),
        (example_runs.crashed, "crashed", "Crashed at step 30"),
        (lambda p: example_runs.trained(p, steps=10), "finished", "Finished after 10 steps"),
    ],
    ids=["empty", "crashed", "finished"],
)
def test_a_page_says_how_the_run_is(tmp_path: Path, make, status: str, says: str) -> None:
    make(tmp_path)
    with Run.open(tmp_path) as run:
        said = notes(gather(run))
    assert said["status"] == status
    assert said["sentence"].startswith(says)


def test_a_run_on_its_way_says_so(tmp_path: Path) -> None:
    growing = example_runs.Growing(tmp_path, ["a"])
    with Run.open(tmp_path) as run:
        assert "no step has been measured yet" in notes(gather(run))["sentence"]
        growing.grow(5)
        said = notes(gather(run))
    growing.close()
    assert said["status"] == "running"
    assert said["sentence"].startswith("Running: step 5 after")


def test_findings_are_shown_worst_first_with_their_curves(tmp_path: Path) -> None:
    growing = example_runs.Growing(tmp_path, ["block.1.weight", "block.10.weight"])
    growing.grow(30)
    for severity, where in (("info", "group 0"), ("error", "block.10.weight, step 7"), ("warning", "the disk")):
        code = "rotation-off" if severity == "error" else f"lr-{severity}" if severity == "info" else "rows-dropped"
        growing.writer.finding(Finding(code, severity, where, "e", "x", "a", "s"), 7)
    growing.close()
    with Run.open(tmp_path) as run:
        data = gather(run)
        measured = run.series("rotation", "block.10.weight").values
    assert [f.severity for f in data.findings] == ["error", "warning", "info"]
    assert tensor_of(data.findings[0], data) == "block.10.weight", "the longer of two names that fit"
    plot = evidence(data.findings[0], data)
    assert plot is not None
    np.testing.assert_allclose(plot["y"], measured, rtol=1e-3)
    assert evidence(data.findings[1], data) is None
    assert evidence(data.findings[2], data)["label"] == "lr"  # type: ignore[index]
    assert chosen(data)[0] == "block.10.weight"
    assert len(by_severity([*data.findings, *data.findings])) == 3


def test_numbers_that_are_not_finite_do_not_break_the_page(tmp_path: Path) -> None:
    growing = example_runs.Growing(tmp_path, ["a"])
    growing.grow(3)
    row = example_runs.rows_of(np.array([4]), 1)[0]
    row[:] = np.inf
    growing.writer.append(4, row)
    growing.writer.append(4, [np.inf], kind="log")
    growing.writer.finding(Finding("odd", "warning", "a", "e", "x", "a", "s"), 4)
    growing.close()
    with Run.open(tmp_path) as run:
        section = run_section(gather(run))
    json.loads(section.sources["notes"]["json"][0], parse_constant=lambda c: pytest.fail(f"{c} is not JSON"))


def test_show_speaks_outside_of_a_notebook(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Run.open(run) as opened:
        opened.show()
    assert "Finished after 60 steps" in capsys.readouterr().out
    eq.plan(lr=1e-3, weight_decay=0.1, steps=1000).show()
    assert "AdamW" in capsys.readouterr().out
    with pytest.raises(ValueError, match="must be a plan or a run"):
        show("a run")  # type: ignore[arg-type]


def test_show_gives_a_notebook_a_page(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import IPython.display as display

    shown: list[str] = []
    monkeypatch.setattr("equipoise.board.files.in_notebook", lambda: True)
    monkeypatch.setattr(display, "display", lambda thing: shown.append(thing.data))
    with Run.open(run) as opened:
        opened.show()
    eq.plan(lr=1e-3, weight_decay=0.1, steps=1000).show()
    for text in shown:
        (_, (tag, attributes)) = Tags(text).found
        assert tag == "iframe"
        assert "allow-same-origin" not in (attributes["sandbox"] or "")
        assert (attributes["srcdoc"] or "").startswith("<!doctype html>")
    assert len(shown) == 2


def test_frames_are_escaped() -> None:
    assert Tags(frame('<p title="x">"</p>')).found[1][1]["srcdoc"] == '<p title="x">"</p>'


def test_a_plan_is_a_file(tmp_path: Path) -> None:
    path = write_plan(eq.plan(lr=1e-3, weight_decay=0.1, steps=2000), tmp_path / "plan.html")
    assert 1e6 < path.stat().st_size < 3e6


def test_the_commands_write_files(run: Path, tmp_path: Path) -> None:
    target, page = tmp_path / "report.html", tmp_path / "plan.html"
    done = CliRunner().invoke(app, ["report", str(run), "-o", str(target)])
    assert done.exit_code == 0, done.output
    assert f"{target} (1." in done.output
    done = CliRunner().invoke(app, ["plan", "--lr", "1e-3", "--wd", "0.1", "--steps", "500", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert "What will these settings do?" in page.read_text()
    done = CliRunner().invoke(app, ["plan", "--lr", "1e-3", "--steps", "500", "--html", str(page), "--json"])
    assert isinstance(done.exception, ValueError)


def test_a_run_knows_when_it_began(tmp_path: Path) -> None:
    before = time.time()
    example_runs.made(tmp_path, ["a"], rows=3)
    with Run.open(tmp_path) as opened:
        assert before <= opened.started <= opened.table(kind="main").times[0]


def test_importing_equipoise_does_not_import_bokeh() -> None:
    import subprocess
    import sys

    code = "import sys, equipoise, equipoise.cli; equipoise.plan; equipoise.Run; sys.exit('bokeh' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
