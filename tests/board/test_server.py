"""The live board serves the runs of its directory, to who may see them, and nothing else."""

import asyncio
import hashlib
import inspect
import json
import logging
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bokeh.document import Document
from bokeh.server.connection import ServerConnection
from tests.board import example_runs
from tests.board.board_process import board, command
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from equipoise.board.listing import Runs
from equipoise.board.live import plan_page, run_page
from equipoise.board.server import HERE, Left, serve
from equipoise.monitor import RunError
from equipoise.monitor.runs.lines import row_of

OUTSIDE = "outside"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("top")
    example_runs.made(top / OUTSIDE, ["secret.weight"], rows=5)
    runs = top / "runs"
    example_runs.made(runs / "group" / "good", ["a.weight", example_runs.EVIL], rows=20)
    example_runs.empty(runs / "empty")
    (runs / "broken").mkdir()
    (runs / "broken" / "run.sqlite").write_bytes(b"<script>junk</script>" * 50)
    (runs / "link").symlink_to(top / OUTSIDE)
    (runs / "linked-file").mkdir()
    (runs / "linked-file" / "run.sqlite").symlink_to(top / OUTSIDE / "run.sqlite")
    (runs / "inner-link").symlink_to(runs / "group" / "good")
    return runs


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    with board(root) as address:
        yield address


def ask(address: str, **headers: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=300) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.board.live.FIRST", 0.0)


def built(root: Path, run: str) -> Document:
    """The document of a run's page."""
    document = Document()
    run_page(Runs(root), {"run": [run.encode()]})(document)
    return document


def column(document: Document, source: str, name: str) -> Any:
    found: Any = document.get_model_by_name(source)
    return found.data[name]


def said(document: Document) -> Any:
    return json.loads(column(document, "run-notes", "json")[0])


def end(document: Document) -> None:
    """As the server does when a page is closed."""
    for callback in document.session_destroyed_callbacks:
        callback(document.session_context)  # type: ignore[arg-type]


def look(document: Document) -> None:
    """What the server does every second."""
    (periodic,) = document.session_callbacks
    asyncio.run(periodic.callback())  # type: ignore[arg-type]


def test_runs_are_listed_and_links_that_lead_out_are_not(root: Path) -> None:
    assert Runs(root).names() == ["broken", "empty", "group/good"]


def test_the_list_says_how_each_run_is(url: str) -> None:
    status, text = ask(f"{url}/api/runs")
    assert status == 200
    told = json.loads(text)
    columns = [c["name"] for c in told["columns"]]
    rows = {row["name"]: dict(zip(columns, row["cells"], strict=True)) for row in told["rows"]}
    assert rows["group/good"]["status"] == "finished"
    assert rows["group/good"]["steps"] == "20"
    assert rows["group/good"]["lr"] == "0.001"
    assert rows["empty"]["status"] == "empty"
    assert rows["broken"]["status"] == "broken"
    assert "damaged" in next(row["error"] for row in told["rows"] if row["name"] == "broken")
    assert (told["total"], told["fits"], told["unread"], told["wrong"]) == (3, 3, 0, "")


def test_the_list_answers_what_it_is_asked(url: str) -> None:
    def told(**words: str) -> Any:
        return json.loads(ask(f"{url}/api/runs?{urllib.parse.urlencode(words)}")[1])

    told()
    found = told(columns="wd,nor%6D,loss", sort="-name", filter="steps>0 finished")
    assert [c["name"] for c in found["columns"]] == ["name", "wd", "norm", "loss"]
    assert [row["name"] for row in found["rows"]] == ["group/good"]
    assert found["rows"][0]["cells"][1:3] == ["0.1", ""]
    assert "column = 'norm': no run here has it" in found["wrong"]
    assert (found["total"], found["fits"]) == (3, 1)
    assert [row["name"] for row in told(sort="-name")["rows"]] == ["group/good", "empty", "broken"]
    wrong = told(filter="lr>fast")
    assert wrong["wrong"].startswith("filter = 'lr>fast': must compare with a number")
    assert len(wrong["rows"]) == 3, "the list stays while somebody types"
    assert len(told(most="2")["rows"]) == 2


def test_a_slow_list_names_all_and_fills_in_later(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(root)
    monkeypatch.setattr("equipoise.board.listing.SECONDS", 0.0)
    first = runs.answer({"columns": "status"})
    assert sorted(row["name"] for row in first["rows"]) == ["broken", "empty", "group/good"]
    assert (first["unread"], first["total"]) == (2, 3)
    monkeypatch.setattr("equipoise.board.listing.SECONDS", 30.0)
    assert runs.answer({})["unread"] == 0


@pytest.mark.parametrize(
    "name",
    [
        "../outside", "..", "/etc", "group/../../outside", "link", "linked-file", "%2e%2e/outside", "..\\outside",
        "nothing", "", "group", "a\0b", "x" * 5000,
    ],
)  # fmt: skip
def test_nothing_outside_of_the_directory_is_opened(root: Path, url: str, name: str) -> None:
    with pytest.raises(RunError, match="no such run"):
        Runs(root).path(name)
    if "\0" not in name:
        status, text = ask(f"{url}/run?run={urllib.parse.quote(name)}")
        assert status == 200
        assert "no such run" in text
        assert "secret.weight" not in text


def test_a_link_within_the_directory_may_be_followed(root: Path) -> None:
    assert Runs(root).path("inner-link") == (root / "group" / "good").resolve()


def test_a_run_is_sent_to_its_page(root: Path) -> None:
    document = built(root, "group/good")
    assert said(document)["status"] == "finished"
    assert said(document)["name"] == "group/good"
    end(document)


def test_a_page_says_that_forecasts_and_findings_are_loading(root: Path) -> None:
    document = built(root, "group/good")
    assert said(document)["loading"] == "Loading forecasts and findings…"
    look(document)
    assert "loading" not in said(document)
    end(document)


def test_a_broken_run_says_so_and_the_board_goes_on(url: str) -> None:
    status, text = ask(f"{url}/run?run=broken")
    assert status == 200
    assert "nothing can be read" in text
    assert "<script>junk" not in text
    assert ask(f"{url}/run?run=group/good")[0] == 200
    assert ask(f"{url}/compare?run=broken&run=empty")[0] == 200
    assert "must be given once" in ask(f"{url}/run")[1]


def test_other_names_of_this_machine_are_refused(url: str) -> None:
    port = url.rpartition(":")[2]
    for path in ("/", "/api/runs", "/run?run=empty", "/static/js/bokeh.min.js"):
        assert ask(url + path, Host=f"evil.example:{port}")[0] == 403
    for name in HERE:
        assert ask(f"{url}/api/runs", Host=f"{name}:{port}")[0] == 200


def test_every_answer_forbids_foreign_scripts(url: str) -> None:
    for path in ("/", "/api/runs", "/run?run=empty", "/static/js/bokeh.min.js", "/nothing"):
        try:
            headers = urllib.request.urlopen(url + path, timeout=300).headers
        except urllib.error.HTTPError as error:
            headers = error.headers
            error.close()
        policy = headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy, path
        assert "unsafe-eval" not in policy
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize(("origin", "welcome"), [("http://evil.example", False), ("null", False), (None, True)])
def test_websockets_of_foreign_pages_are_refused(url: str, origin: str | None, welcome: bool) -> None:
    page = ask(f"{url}/run?run=empty")[1]
    token = page.partition('"token":"')[2].partition('"')[0]
    address = url.replace("http", "ws") + "/run/ws"

    async def connect() -> None:
        headers = {"Origin": origin or url}
        request = HTTPRequest(address, headers=headers, request_timeout=300)
        opened = await websocket_connect(request, subprotocols=["bokeh", token])
        assert (await opened.read_message()) is not None
        opened.close()

    if welcome:
        asyncio.run(connect())
    else:
        with pytest.raises(HTTPClientError, match="403"):
            asyncio.run(connect())


def test_files_are_only_read(root: Path) -> None:
    run = root / "group" / "good"
    before = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in run.iterdir()}
    end(built(root, "group/good"))
    row_of(run)
    after = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in run.iterdir()}
    assert {k: v for k, v in after.items() if k in before} == before
    assert set(after) - set(before) <= {"run.sqlite-wal", "run.sqlite-shm"}


def test_a_live_page_gets_new_rows(tmp_path: Path) -> None:
    growing = example_runs.Growing(tmp_path / "live", ["a.weight"])
    growing.grow(5)
    document = built(tmp_path, "live")
    assert column(document, "run-axis", "step").tolist() == [1, 2, 3, 4, 5]
    assert said(document)["status"] == "running"
    growing.grow(7)
    look(document)
    assert column(document, "run-axis", "step").tolist() == list(range(1, 13))
    assert column(document, "run-layers", "norm").shape == (1, 12)
    assert "step 12" in said(document)["sentence"]
    growing.close()
    end(document)


def test_a_run_that_goes_wrong_while_it_is_shown_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = example_runs.Growing(tmp_path / "live", ["a.weight"])
    growing.grow(5)
    document = built(tmp_path, "live")
    growing.grow(1)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr("equipoise.board.live.gather", fail)
    look(document)
    assert said(document)["error"] == "the disk is gone"
    assert said(document)["status"] == "running", "the rest stays as it was"
    growing.close()
    end(document)


def test_a_page_that_nobody_sees_is_not_read_again(tmp_path: Path) -> None:
    growing = example_runs.Growing(tmp_path / "live", ["a.weight"])
    growing.grow(5)
    document = built(tmp_path, "live")
    session = SimpleNamespace(connection_count=0)
    document._session_context = lambda: SimpleNamespace(session=session)  # type: ignore[assignment, return-value]
    growing.grow(10)
    before = len(column(document, "run-axis", "step"))
    look(document)
    assert len(column(document, "run-axis", "step")) == before
    session.connection_count = 1
    look(document)
    assert len(column(document, "run-axis", "step")) == before + 10
    growing.close()
    end(document)


def test_knobs_are_computed_and_nonsense_is_answered() -> None:
    document = Document()
    plan_page(Runs(Path(__file__).parent), {})(document)

    def turn(text: str) -> Any:
        control: Any = document.get_model_by_name("plan-control")
        control.data = {"json": [text]}
        return json.loads(column(document, "plan-notes", "json")[0])

    before = column(document, "plan-curves", "rotation").copy()
    answer = turn(
        json.dumps(
            {"knobs": {"lr": 0.01, "steps": 900, "warmup": 9}, "pinned": {"steps": 800, "warmup": 1}, "count": 3}
        )
    )
    assert answer["count"] == 3
    assert "error" not in answer
    assert len(answer["rows"]) == 2
    assert not np.array_equal(column(document, "plan-curves", "rotation")[0], before[0])
    for nonsense in (
        "",
        "[",
        "[]",
        "3",
        '{"knobs": {"lr": -1}}',
        '{"knobs": {"__class__": 1}}',
        '{"knobs": 7, "count": 4}',
    ):
        assert turn(nonsense)["error"], nonsense


def test_what_cannot_be_served_is_said(tmp_path: Path, url: str) -> None:
    with pytest.raises(ValueError, match="must be a directory"):
        serve(str(tmp_path / "nothing"))
    taken = command("board", str(tmp_path), "--port", url.rpartition(":")[2])
    out, _ = taken.communicate(timeout=300)
    assert taken.returncode == 2
    assert "choose another --port" in out


def test_a_browser_that_leaves_early_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    gone: Any = ServerConnection.__new__(ServerConnection)
    gone._session = None
    log = logging.getLogger("equipoise.tests.left")
    log.addFilter(Left())
    with pytest.raises(AssertionError) as left:
        gone.session  # noqa: B018  as Bokeh does when the socket is closed
    log.error("on_close", exc_info=left.value)
    assert not caplog.records
    for other in (AssertionError("ours"), ValueError("ours")):
        log.error("on_close", exc_info=other)
    log.error("plain")
    assert len(caplog.records) == 3


def test_it_listens_on_this_machine_alone(url: str) -> None:
    port = int(url.rpartition(":")[2])
    elsewhere = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in elsewhere:
        if not str(address).startswith("127."):
            with socket.socket() as tried:
                assert tried.connect_ex((address, port)) != 0
    assert inspect.signature(serve).parameters["host"].default == "127.0.0.1"


FROZEN = """
import gc, sys
from equipoise.board import serve

def look(board):
    print(gc.get_freeze_count() / len(gc.get_objects() or [0]))
    board.stop()

for alone in (True, False):
    serve(sys.argv[1], port=0, started=lambda board: board.loop.add_callback(look, board), alone=alone)
    print(gc.get_freeze_count())
"""


def test_pages_that_are_closed_do_not_hold_up_the_others(root: Path) -> None:
    """Bokeh collects garbage twice for each: what was there before any page is left out of it, until the end.

    Not so where something else goes on in the process.
    """
    done = subprocess.run([sys.executable, "-c", FROZEN, root], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    during, after, *other = map(float, done.stdout.split())
    assert during > 10, "what is frozen, over what is not"
    assert after == 0
    assert other == [0, 0]
