"""Fuzzed TOML, run files and outcomes: whatever is in a file, the answer is words and never a traceback.

More cases: EQUIPOISE_DRILLS=50 pytest tests/fuzz/test_files.py, as for the optimizers.
"""

import contextlib
import copy
import io
import json
import random
import shutil
import sqlite3
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests import forked
from tests.fuzz.draw import cases
from tests.monitor import loops

import equipoise
import equipoise as eq
from equipoise.board.listing import Runs
from equipoise.cli import main
from equipoise.lab.train.sweep import read_base
from equipoise.monitor import RunError
from equipoise.monitor.runs.lines import row_of
from equipoise.monitor.store import schema
from equipoise.planner import plan_setting, read_setting


def in_words(job: Callable[[], Any]) -> bool:
    """Run a job; whether it had an answer. An error must be a ValueError that this library raised itself."""
    try:
        job()
    except (ValueError, MemoryError) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        if str(equipoise.__path__[0]) not in last.filename or not str(error).strip():
            raise
        return False
    return True


def command(*words: str) -> tuple[int, str, str]:
    """`equipoise …` in this process: exit code, and what it said; any error that leaves it is raised here."""
    out, err, old = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["equipoise", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.argv = old
    code = left.value.code
    return code if isinstance(code, int) else 0, out.getvalue(), err.getvalue()


def said_in_a_line(code: int, err: str) -> None:
    """A command ends well, or with a code and one line."""
    lines = err.strip().splitlines()
    assert code in (0, 2), err
    assert (code == 0) or (len(lines) == 1 and lines[0].startswith("equipoise: ")), err


# TOML

SETTING = """[optimizer]
name = "adamw"
lr = 3e-4
weight_decay = 0.1
betas = [0.9, 0.95]
[schedule]
name = "cosine"
warmup = 10
final = 0.1
[run]
steps = 100
batch_size = 8
dataset_size = 1000
tokens_per_sample = 16
parameters = 1000
[[tensor]]
name = "up"
shape = [16, 8]
init_rms = 0.02
"""
TRIAL = """data = "synthetic"
model = "mlp"
optimizer = "adamw"
lr = 0.1
steps = 3
seed = 1
limit = 5.0
[model_options]
width = 8
"""
ODD = [
    "0", "-1", "1e400", "nan", "inf", "-inf", "1e-320", "true", '""', '"x"', '"lr"', "[]", "[1]", "[[1]]", "{}",
    "{a = 1}",
    "1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "9223372036854775807", "[0.9, 1.0]", '["a", "b"]', "[nan, 0.9]",
    "[0, 0]", "[-1, 2]", "100000000000000000000000", "'''\n'''", "0x10", "1_0", '"\\u0000"', '"🦀"', "1e308", "0.5",
    '"cosine"', '"wsd"', '"step"', '"sgdm"', '"muon"', '"float16"', '"../x"',
]  # fmt: skip


@st.composite
def toml(draw: Any, base: str) -> bytes:
    """A file that was right before somebody changed it."""
    lines = base.splitlines()
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["value", "value", "value", "key", "drop", "double", "cut", "text"]))
        key, equals, value = lines[at].partition(" = ")
        if how == "value" and equals:
            lines[at] = f"{key} = {draw(st.sampled_from(ODD))}"
        elif how == "key" and equals:
            lines[at] = f"{draw(st.sampled_from(['x', 'lr', 'momentum', 'name', 'steps', 'milestones']))} = {value}"
        elif how == "drop":
            lines[at] = ""
        elif how == "double":
            lines.insert(at, lines[at])
        elif how == "cut":
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
        elif how == "text":
            lines[at] = draw(st.text(max_size=8))
    made = "\n".join(lines).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(made)))
        made = made[:at] + draw(st.binary(max_size=4)) + made[at:]
    return made


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("desk")


def test_settings(desk: Path) -> None:
    answered: list[bool] = []

    @cases(500)
    @given(text=toml(SETTING))
    def fuzz(text: bytes) -> None:
        (desk / "a.toml").write_bytes(text)
        answered.append(in_words(lambda: str(plan_setting(read_setting(desk / "a.toml")).to_dict())))

    fuzz()
    assert 0.1 < sum(answered) / len(answered) < 0.9


@cases(60)
@given(text=toml(SETTING), words=st.sampled_from([(), ("--json",), ("--toml",)]))
def test_commands_that_read_settings(desk: Path, text: bytes, words: tuple[str, ...]) -> None:
    (desk / "a.toml").write_bytes(text)
    for line in (("plan", str(desk / "a.toml"), *words), ("transfer", str(desk / "a.toml"), "--steps", "200")):
        code, _, err = command(*line)
        said_in_a_line(code, err)


@cases(200)
@given(text=toml(TRIAL))
def test_bases_of_sweeps(desk: Path, text: bytes) -> None:
    (desk / "b.toml").write_bytes(text)
    in_words(lambda: read_base(desk / "b.toml").key)


@cases(60)
@given(
    text=toml(TRIAL),
    words=st.sampled_from(["lr=", "lr=x", "x=1", "lr=[1", "lr=1e400", "steps=0", "seed=1", "model_options.=1"]),
)
def test_sweeps_that_cannot_be_made(desk: Path, text: bytes, words: str) -> None:
    """A grid that is wrong, so that nothing is trained whatever the base is."""
    (desk / "b.toml").write_bytes(text)
    with contextlib.chdir(desk):
        code, _, err = command("lab", "sweep", str(desk / "b.toml"), "--grid", words, "--grid", "seed=1")
    said_in_a_line(code, err)
    assert code == 2


# Runs


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a real run."""
    path = tmp_path_factory.mktemp("runs") / "run"
    run, _ = loops.watched(path, lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1), steps=40)
    run.close()
    return path / schema.FILE


def damaged(data: bytes, dice: random.Random) -> bytes:
    """A file after a failing disk."""
    made = bytearray(data)
    how = dice.choice(["flip", "flips", "cut", "zero", "noise", "swap", "grow", "head"])
    page = 4096
    pages = len(made) // page
    if how == "flip":
        made[dice.randrange(len(made))] ^= 1 << dice.randrange(8)
    elif how == "flips":
        for _ in range(dice.choice([10, 100, 1000])):
            made[dice.randrange(len(made))] = dice.randrange(256)
    elif how == "cut":
        del made[dice.randrange(len(made)) :]
    elif how in ("zero", "noise"):
        for _ in range(dice.choice([1, 1, 5])):
            at = page * dice.randrange(pages)
            made[at : at + page] = bytes(page) if how == "zero" else dice.randbytes(page)
    elif how == "swap":
        a, b = (page * dice.randrange(pages) for _ in range(2))
        made[a : a + page], made[b : b + page] = made[b : b + page], made[a : a + page]
    elif how == "grow":
        made += dice.randbytes(10_000)
    else:
        for _ in range(3):
            made[dice.randrange(100)] = dice.randrange(256)
    return bytes(made)


VALUES: list[Any] = [
    None, 0, -1, 2**62, -(2**63), 1.5, float("inf"), "", "x", "null", "[]", "{}", "5", '"x"', "[1, 2]", '{"a": 1}',
    "[" * 5000,
    "NaN", '{"columns": [[1]], "kind": 3, "dtype": "x"}', '{"layouts": 3}', '{"layouts": [[]]}', b"", b"\x00" * 7,
    b"\xff" * 1_000_000, '{"shape": ["x"]}', '{"shape": [-3, 1e400]}',
    '{"columns": [], "kind": "main", "dtype": "float32"}',
    '{"columns": [["a", "b", "c", "d", "e"]], "kind": "main", "dtype": "float32"}', '{"per": []}', '{"per": "x"}',
    '{"columns": [[["a"]]], "kind": "main", "dtype": "float32"}', '{"code": 1}', "running", '{"group": "x", "role": 5}',
]  # fmt: skip
COLUMNS = {
    "lives": ["life", "from_step", "started", "heartbeat", "status", "host", "pid", "dropped", "failure"],
    "records": ["life", "kind", "key", "step", "time", "value"],
    "rows": ["segment", "step", "time", "data"],
    "buckets": ["segment", "level", "tile", "seq", "rows", "first", "last", "time", "data"],
}
KINDS = ["meta", "tensor", "quantity", "layout", "segment", "finding"]


def meddled(path: Path, dice: random.Random, sign: bool) -> None:
    """Change lines of a run's tables; with `sign`, records and rows have the right checksum all the same."""
    db = sqlite3.connect(path)
    for _ in range(dice.choice([1, 1, 3])):
        table = dice.choice(["lives", "records", "records", "rows", "buckets"])
        column, value = dice.choice(COLUMNS[table]), dice.choice(VALUES)
        if table == "records" and dice.random() < 0.7:
            column = "value"
        where = "1" if dice.random() < 0.1 else f"rowid = (SELECT rowid FROM {table} ORDER BY random() LIMIT 1)"
        if column == "value":
            where = f"id = (SELECT id FROM records WHERE kind = '{dice.choice(KINDS)}' LIMIT 1)"
        how = dice.random()
        with contextlib.suppress(sqlite3.Error):
            if how < 0.85:
                db.execute(f"UPDATE {table} SET {column} = ? WHERE {where}", (value,))
            elif how < 0.9:
                db.execute(f"DELETE FROM {table} WHERE {where}")
            elif how < 0.95:
                db.execute(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
            else:
                db.execute(f"ALTER TABLE {table} RENAME TO other_{table}")
    if sign:
        for table, key, data in (("records", COLUMNS["records"], None), ("rows", COLUMNS["rows"][:3], "data")):
            with contextlib.suppress(sqlite3.Error, TypeError, ValueError):
                names = ["id", *key]
                for line in db.execute(f"SELECT {', '.join(names)}, {data or 'NULL'} FROM {table}").fetchall():
                    columns = line[:-1] if table == "records" else line[1:-1]
                    blob = line[-1] if isinstance(line[-1], bytes) else str(line[-1] or "").encode()
                    db.execute(f"UPDATE {table} SET crc = ? WHERE id = ?", (schema.checksum(blob, *columns), line[0]))
    db.commit()
    db.close()


def jobs(run: Any) -> Iterator[Callable[[], Any]]:
    """Every way to read a run."""
    for name in (
        "meta",
        "tensors",
        "quantities",
        "kinds",
        "columns",
        "status",
        "started",
        "findings",
        "timeline",
        "steps",
    ):
        yield lambda name=name: getattr(run, name)
    yield lambda: repr(run)
    yield run.check
    yield lambda: [run.table(kind=k) for k in run.kinds]
    yield lambda: [run.table(kind=k, points=3) for k in run.kinds]
    yield lambda: run.series("norm", "0.weight", points=4)
    yield lambda: run.compare("0.weight")
    yield run.diagnose
    yield run.follow().read


def read_all(path: Path) -> bool:
    """Read all of a run; whether it could be opened."""
    try:
        opened = eq.Run.open(path)
    except RunError:
        return False
    with opened:
        for job in jobs(opened):
            in_words(job)
    assert row_of(path)
    return True


def test_runs_with_damaged_bytes(desk: Path, watched: Path) -> None:
    data, opened = watched.read_bytes(), []

    @cases(150)
    @given(seed=st.integers(0, 2**32))
    def fuzz(seed: int) -> None:
        (desk / "hurt").mkdir(exist_ok=True)
        (desk / "hurt" / schema.FILE).write_bytes(damaged(data, random.Random(seed)))
        opened.append(read_all(desk / "hurt"))

    fuzz()
    assert sum(opened) > len(opened) / 2, "most damage leaves something to read"


def meddled_copy(watched: Path, place: Path, seed: int, sign: bool) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    shutil.copy(watched, place / schema.FILE)
    meddled(place / schema.FILE, random.Random(seed), sign)


def test_runs_with_wrong_lines(desk: Path, watched: Path) -> None:
    opened = []

    @cases(200)
    @given(seed=st.integers(0, 2**32), sign=st.booleans())
    def fuzz(seed: int, sign: bool) -> None:
        meddled_copy(watched, desk / "odd", seed, sign)
        opened.append(read_all(desk / "odd"))

    fuzz()
    assert sum(opened) > len(opened) / 2


@cases(12)
@given(seed=st.integers(0, 2**32), which=st.sampled_from(["bytes", "lines", "signed"]))
def test_commands_that_read_runs(desk: Path, watched: Path, seed: int, which: str) -> None:
    place = desk / "told"
    if which == "bytes":
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        (place / schema.FILE).write_bytes(damaged(watched.read_bytes(), random.Random(seed)))
    else:
        meddled_copy(watched, place, seed, which == "signed")
    for words in (
        ("report", str(place), "-o", str(desk / "told.html")),
        ("export", str(place), "-o", str(desk / "told.csv")),
        ("watch", str(place), "--once"),
    ):
        code, _, err = command(*words)
        assert code in (0, 2), err
        assert "Traceback" not in err
        assert code == 0 or len(err.strip().splitlines()) == 1, err


def test_a_real_command_says_one_line(tmp_path: Path, watched: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / schema.FILE).write_bytes(watched.read_bytes()[:500])
    (tmp_path / "a.toml").write_bytes(b"[optimizer]\nlr = '\xff'")
    for words in (("report", "run"), ("plan", "a.toml"), ("lab", "claims", "run", "--experiment", "x")):
        done = forked.equipoise(*words, cwd=tmp_path)
        said_in_a_line(done.returncode, done.stderr)
        assert done.returncode == 2


# Outcomes of the lab

STORED = Path(equipoise.__path__[0]) / "lab" / "stored"


@st.composite
def outcomes(draw: Any) -> str:
    """A stored outcome with some values changed, or text that is none."""
    files = sorted(STORED.glob("*.json"))
    content = json.loads(files[draw(st.integers(0, len(files) - 1))].read_text())
    odd = st.sampled_from([None, 0, -1, 1e400, "x", "", [], {}, [1], {"a": 1}, True, [[]], [None], {"mean": "x"}])
    for _ in range(draw(st.integers(1, 3))):
        at: Any = content
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = draw(st.sampled_from(keys)) if keys else None
            if key is None:
                break
            if not isinstance(at[key], dict | list) or not at[key] or draw(st.booleans()):
                at[key] = copy.deepcopy(draw(odd))  # a next change may go into it
                break
            at = at[key]
    text = json.dumps(content)
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 5)) == 0 else text


@cases(100)
@given(text=outcomes(), words=st.sampled_from([(), ("--json",), ("--brief",)]))
def test_outcomes(desk: Path, text: str, words: tuple[str, ...]) -> None:
    place = desk / "lab" / "one"
    place.mkdir(parents=True, exist_ok=True)
    (place / "outcome.json").write_text(text)
    code, _, err = command("lab", "claims", str(desk / "lab"), *words)
    said_in_a_line(code, err)
    assert Runs(str(desk / "lab")).outcomes(["one"])[0]["name"] == "one"


@cases(60)
@given(
    change=st.tuples(
        st.sampled_from(["trial", "status", "steps", "metrics", "seconds", "tests", "error", "x", "versions"]),
        st.sampled_from([None, 0, "x", [], {}, [1], {"a": 1}, {"a": "x"}, {"lr": -1}, {"lr": {}}, [[1, 2, 3]], True]),
    ),
    cut=st.integers(0, 400),
)
def test_results_of_trials(desk: Path, change: tuple[str, Any], cut: int) -> None:
    from equipoise.lab.train.result import RESULT, Result
    from equipoise.lab.train.trial import Trial

    place = desk / "trials" / "one"
    place.mkdir(parents=True, exist_ok=True)
    Result(Trial(), "finished", 3, {"train_loss": 1.0}).write(place)
    content = json.loads((place / RESULT).read_text())
    content[change[0]] = change[1]
    text = json.dumps(content)
    (place / RESULT).write_text(text[:cut] if cut < 100 else text)
    code, _, err = command("lab", "table", str(desk / "trials"))
    said_in_a_line(code, err)
