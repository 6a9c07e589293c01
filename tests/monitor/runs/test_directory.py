"""Lists of runs: what is known of each, which columns there are, in which order, which runs, and their tags."""

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from equipoise.monitor import Column, Layout, Run, RunError, RunWriter, TensorInfo
from equipoise.monitor.runs import directory
from equipoise.monitor.runs.directory import Directory
from equipoise.monitor.runs.lines import RunRow, row_of
from equipoise.monitor.runs.select_runs import SHOWN, columns_of, known_columns, select, unknown, value_text
from equipoise.monitor.runs.tags import TAGS, change_tags, tags_of
from equipoise.monitor.runs.terminal import render_list

TENSORS = [
    TensorInfo("gain", (8,), "gain", 0),
    TensorInfo("small", (4, 4), "matrix", 1),
    TensorInfo("big", (64, 64), "matrix", 2),
]
MAIN = Layout(tuple(Column(f"{q}/{g}") for q in ("lr", "weight_decay") for g in range(3)))
LOG = Layout((Column("loss"), Column("val_loss"), Column("accuracy"), Column("lr")), kind="log", dtype="float64")


def write(path: Path, steps: int = 400, lr: float = 1e-3, seldom: int = 50, **meta: Any) -> Path:
    with RunWriter(path, meta=meta, tensors=TENSORS, layouts=[MAIN, LOG]) as writer:
        for step in range(1, steps + 1):
            warm = min(1.0, step / 10)
            writer.append(step, [9.0, 8.0, lr * warm, 0.0, 0.5, 0.1])
            rare = step % seldom == 0
            writer.append(step, [4 / step, 5 / step if rare else np.nan, step if rare else np.nan, 7.0], kind="log")
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("runs")
    write(
        top / "a",
        optimizer="AdamW",
        tags=["good", "base line"],
        seed=3,
        config={"depth": 12, "norm": "layer"},
        amp=True,
    )
    write(top / "deep" / "b", steps=100, lr=1e-2, optimizer="Muon", seed=10, lr_note="x")
    write(top / "deep" / "b10", steps=60, lr=1e-2, optimizer="Muon", seed=20)
    RunWriter(top / "empty", meta={"name": "mine"}).close()
    (top / "broken").mkdir()
    (top / "broken" / "run.sqlite").write_bytes(b"nothing" * 1000)
    return top


@pytest.fixture(scope="module")
def lines(root: Path) -> list[RunRow]:
    return Directory(root).lines()


def names(found: list[RunRow]) -> list[Any]:
    return [line.values["name"] for line in found]


def test_a_line_knows_losses_settings_metrics_and_meta(root: Path, lines: list[RunRow]) -> None:
    values = next(line.values for line in lines if line.values["name"] == "a")
    with Run.open(root / "a") as run:
        final, best = run.final, run.best
    assert final is not None
    assert best is not None
    assert (values["loss"], values["last"], values["validation"]) == (final.mean, final.last, best.value)
    assert values["validation_step"] == 400
    assert values["steps"] == 400
    assert (values["lr"], values["wd"]) == (1e-3, 0.1), "of the group with the most weights in matrices"
    assert values["accuracy"] == 400.0, "the last value, also of what is seldom logged"
    assert values["val_loss"] == 5 / 400
    assert values["logged.lr"] == 7.0, "lr is the run's own"
    assert (values["seed"], values["config.depth"], values["config.norm"], values["amp"]) == (3, 12, "layer", "true")
    assert values["tags"] == ["good", "base line"]
    assert values["status"] == "finished"


def test_a_run_without_rows_and_a_broken_one_have_lines(lines: list[RunRow]) -> None:
    found = {line.values["name"]: line for line in lines}
    assert found["empty"].values["status"] == "empty"
    assert found["empty"].values["meta.name"] == "mine"
    assert found["broken"].values["status"] == "broken"
    assert "nothing can be read" in found["broken"].error


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", ["a", "broken", "deep/b", "deep/b10", "empty"]),
        ("DEEP", ["deep/b", "deep/b10"]),
        ("muon b10", ["deep/b10"]),
        ("layer", ["a"]),
        ("good", ["a"]),
        ("lr>1e-3", ["deep/b", "deep/b10"]),
        ("lr>=1e-3", ["a", "deep/b", "deep/b10"]),
        ("lr=1e-3", ["a"]),
        ("lr<0.01 seed=3", ["a"]),
        ("steps<=1e2", ["deep/b", "deep/b10"]),
        ("tags=good", ["a"]),
        ('tags="base line"', ["a"]),
        ("tags!=good", ["broken", "deep/b", "deep/b10", "empty"]),
        ("optimizer=muon", ["deep/b", "deep/b10"]),
        ("status!=finished", ["broken", "empty"]),
        ('"lr>1e-3"', []),
        ("config.depth>=12", ["a"]),
        ("accuracy>99", ["a", "deep/b"]),
    ],
)
def test_filters(lines: list[RunRow], words: str, wanted: list[str]) -> None:
    assert names(select(lines, sort="name", filter=words)) == wanted


@pytest.mark.parametrize("words", ["lr>", "lr>fast", ">3", "="])
def test_a_filter_that_means_nothing_is_refused(lines: list[RunRow], words: str) -> None:
    with pytest.raises(ValueError, match="filter = "):
        select(lines, filter=words)


@given(st.text(max_size=30), st.text(max_size=10))
def test_any_text_is_a_filter_or_an_error(words: str, sort: str) -> None:
    some = [
        RunRow({"name": "a", "lr": 1.0}),
        RunRow({"name": "b", "tags": ["x"]}),
        RunRow({"name": "c", "lr": math.nan}),
    ]
    found: list[RunRow] = []
    with contextlib.suppress(ValueError):
        found = select(some, sort=sort, filter=words)
    assert {id(line) for line in found} <= {id(line) for line in some}
    assert len(select(some, sort=sort)) == 3
    unknown(some, (), sort, words)


def test_order() -> None:
    some = [RunRow({"name": n, "lr": v} if v is not None else {"name": n}) for n, v in
            (("r10", 1.0), ("r9", 1.0), ("none", None), ("nan", math.nan), ("text", "x"), ("low", 0.5))]  # fmt: skip
    assert names(select(some, sort="lr")) == ["low", "r9", "r10", "text", "nan", "none"]
    assert names(select(some, sort="-lr")) == ["text", "r9", "r10", "low", "nan", "none"]
    assert names(select(some, sort="name")) == ["low", "nan", "none", "r9", "r10", "text"]


def test_columns(lines: list[RunRow]) -> None:
    groups = {k.name: k.group for k in known_columns(lines)}
    assert [groups[n] for n in ("loss", "accuracy", "val_loss", "seed", "config.depth")] == [
        "run", "logged", "logged", "meta", "meta",
    ]  # fmt: skip
    assert columns_of(["", ""]) == list(SHOWN)
    assert columns_of(["lr", "name", "lr", "loss"]) == ["name", "lr", "loss"]
    assert unknown(lines, ["lr", "accuracy"], "-seed", "config.depth>3 muon") == ""
    assert unknown(lines, ["los"]) == "column = 'los': no run here has it; there are loss"
    assert "'lrr': no run here has it" in unknown(lines, filter="lrr>1")
    assert "'speed': no run here has it" in unknown(lines, sort="-speed")
    a = next(line for line in lines if line.values["name"] == "a")
    assert [value_text(a, c) for c in ("steps", "lr", "tags", "seed", "nothing")] == [
        "400",
        "0.001",
        "good, base line",
        "3",
        "",
    ]
    assert value_text(a, "changed", now=float(a.values["changed"]) + 300) == "5 min ago"  # type: ignore[arg-type]
    assert value_text(RunRow({"name": "unread"}), "loss") == "…"


def test_the_terminal_lists_what_is_asked_for(lines: list[RunRow]) -> None:
    console = Console(file=io.StringIO(), width=160)
    console.print(render_list(select(lines, sort="name"), ["name", "loss", "validation", "seed", "curve", "status"]))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    (a,) = [line for line in text.splitlines() if line.startswith("a ")]
    final = next(line.values["loss"] for line in lines if line.values["name"] == "a")
    assert f"{final:.4g}" in a
    assert "0.0125" in a
    assert "█" in a
    assert "mean of" in text, "what the loss is"
    assert "broken: " in text, "why it cannot be read"


def test_runs_that_did_not_change_are_not_opened_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def counted(path: Path) -> RunRow:
        opened.append(path.name)
        return row_of(path)

    monkeypatch.setattr(directory, "row_of", counted)
    runs = Directory(root)
    assert sum(line.read for line in runs.lines(seconds=0.0)) == 1, "one at a time where there is no time"
    runs.lines()
    assert len(opened) == 5
    first = runs.lines()
    assert len(opened) == 5
    change_tags(root / "deep" / "b", ["late"])
    assert [line.values.get("tags") for line in runs.lines() if line.values["name"] == "deep/b"] == [["late"]]
    assert len(opened) == 6
    change_tags(root / "deep" / "b", remove=["late"])
    assert names(runs.lines()) == names(first)


def test_tags_are_given_and_taken_away(tmp_path: Path) -> None:
    path = write(tmp_path / "a", steps=2, tags=["first"])
    assert change_tags(path, ["good", "good", "base"]) == ["good", "base"]
    with Run.open(path) as run:
        assert tags_of(run.path, run.meta) == ["first", "good", "base"]
    assert change_tags(path, ["new"], remove=["good", "never"]) == ["base", "new"]
    assert change_tags(path, remove=["base", "new"]) == []
    assert not (path / TAGS).exists()
    for bad in ("", "two words", "a,b", "x" * 61):
        with pytest.raises(ValueError, match="tag = "):
            change_tags(path, [bad])
    with pytest.raises(RunError):
        change_tags(tmp_path / "none", ["good"])


@pytest.mark.parametrize("text", ["", "{", "3", '{"a": 1}', '[1, null, ["x"]]'])
def test_a_file_of_tags_that_is_none_has_none(tmp_path: Path, text: str) -> None:
    (tmp_path / TAGS).write_text(text)
    assert tags_of(tmp_path, {"tags": 5}) == []


def test_tags_behind_a_link_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text(json.dumps(["secret"]))
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / TAGS).symlink_to(tmp_path / "secret.json")
    assert tags_of(tmp_path / "a", {}) == []


def test_a_narrow_terminal_cuts_no_number(tmp_path: Path) -> None:
    """Columns that do not fit are left out, the name and the losses never; what is asked for is folded, not cut."""
    for name, value in (("a-run-with-a-name", 0.123456), ("b", 12.5)):
        with RunWriter(tmp_path / name, meta={"optimizer": "AdamW", "lr": 5.25e-05}) as writer:
            writer.layout(Layout((Column("loss"),), kind="log", dtype="float64"))
            for step in range(1, 11):
                writer.append(step, np.array([value]), kind="log")
    lines = Directory(tmp_path).lines()
    columns = [c for c in columns_of(()) if c == "curve" or any(c in line.values for line in lines)]
    shown = {}
    for width in (45, 60, 90, 200):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(render_list(lines, columns, width))
        text = shown[width] = console.export_text()
        assert max(map(len, text.splitlines())) <= width
        for word in ("a-run-with-a-name", "0.1235", "12.5"):
            assert word in text, (width, text)
    assert len(shown[45].splitlines()[-1].rstrip()) < len(shown[200].splitlines()[-1].rstrip())
