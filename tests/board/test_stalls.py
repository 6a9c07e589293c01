"""Pages that are left, connections that ask for nothing, names with other ports: nobody else waits for them."""

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.board import example_runs
from tests.board.board_process import board
from tests.board.test_server import ask

from equipoise.board import live
from equipoise.board.gather import NUMBERS, gather
from equipoise.board.listing import Runs
from equipoise.board.server import HERE, LARGEST, UNSEEN, _Guarded
from equipoise.monitor import Run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("stalls")
    example_runs.made(top / "a", ["a.weight", "b.weight"], rows=20)
    return top


@pytest.fixture(scope="module")
def url(root: Path) -> Iterator[str]:
    with board(root) as address:
        yield address


def test_pages_for_the_pages_of_others_are_not_made(url: str) -> None:
    assert ask(f"{url}/run/autoload.js?run=a&bokeh-autoload-element=x")[0] == 404
    for dest, welcome in (("image", False), ("script", False), ("iframe", False), ("document", True)):
        headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Dest": dest}
        assert ask(f"{url}/run?run=a", **headers)[0] == (200 if welcome else 403), dest
    assert ask(f"{url}/run?run=a", Origin="http://evil.example")[0] == 403


@pytest.mark.parametrize(
    ("host", "welcome"),
    [
        ("localhost", True), ("localhost:80", True), ("127.0.0.1:9999", True), ("[::1]", True), ("[::1]:5006", True),
        ("LOCALHOST", True), ("evil.example", False), ("evil.example:80", False), ("localhost.evil.example", False),
        ("localhost:80:80", False), ("", False), ("[::1", False), ("board.example.com", True), ("box:81", True),
        ("board.example.com:443", True), ("box", False), ("box:82", False),
    ],
)  # fmt: skip
def test_a_name_counts_at_any_port_and_no_other_name_does(host: str, welcome: bool) -> None:
    known: Any = SimpleNamespace(names=frozenset([*HERE, "board.example.com", "box:81"]))
    assert _Guarded.knows(known, host) == welcome


def test_a_browser_at_port_80_and_behind_a_proxy(url: str) -> None:
    assert ask(f"{url}/api/runs", Host="localhost")[0] == 200
    assert ask(f"{url}/api/runs", Host="evil.example")[0] == 403


def test_only_so_many_pages_are_kept_that_nobody_looks_at(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And of one run that does not change, all are read from the file once."""
    code = """
import asyncio, gc, sys, urllib.request
from bokeh.document import Document
from equipoise.board import live, serve
read, real = [], live.gather
live.gather = lambda *args, **more: read.append(1) or real(*args, **more)

def pages(board):
    def ask():
        for _ in range(60):
            urllib.request.urlopen(f"{board.url}run?run=a", timeout=300).read()

    async def count():
        await asyncio.to_thread(ask)
        for _ in range(200):
            kept = sum(len(list(c.sessions)) for c in board._tornado._applications.values())
            if kept <= int(sys.argv[2]):
                break
            await asyncio.sleep(0.05)
        print(kept, len(read))
        board.stop()

    board.loop.add_callback(count)

serve(sys.argv[1], port=0, started=pages)
"""
    words = [sys.executable, "-c", code, str(root), str(UNSEEN)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kept, read = map(int, done.stdout.split())
    assert 0 < kept <= UNSEEN
    assert read == 1


def test_idle_connections_and_large_requests_stop_nobody(root: Path) -> None:
    code = """
import logging, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
logging.basicConfig()
from equipoise.board import serve
serve(sys.argv[1], port=0, started=lambda board: print(board.url, flush=True))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(root)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    idle: list[socket.socket] = []
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        port = int(address.rstrip("/").rpartition(":")[2])
        with pytest.raises(OSError, match=r"reset|HTTP Error 4|Broken pipe"):
            urllib.request.urlopen(urllib.request.Request(f"{address}run", data=bytes(20 * LARGEST)), timeout=300)
        with urllib.request.urlopen(f"{address}api/runs", timeout=300) as open_already:
            assert json.load(open_already)["total"] == 1
        for _ in range(300):
            idle.append(socket.create_connection(("127.0.0.1", port), timeout=300))
        for one in idle:
            one.close()
        idle.clear()
        for last in range(100, -1, -1):  # until the board has seen that they are gone
            try:
                with urllib.request.urlopen(f"{address}api/runs", timeout=300) as answer:
                    assert json.load(answer)["total"] == 1
                break
            except OSError:
                assert last
                time.sleep(0.1)
    finally:
        for one in idle:
            one.close()
        process.terminate()
        _, err = process.communicate(timeout=300)
    assert "Traceback" not in err
    assert len(err) < 2000, err[:2000]


def test_a_page_is_read_while_others_are_answered(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading happens in a thread: the loop turns meanwhile."""

    async def story() -> int:
        turns, done = 0, asyncio.Event()

        def slow(runs: Runs, arguments: live.Arguments) -> live.Fill:
            loop.call_soon_threadsafe(done.set)
            asyncio.run_coroutine_threadsafe(seen.wait(), loop).result(60)
            return lambda document: None

        loop, seen = asyncio.get_running_loop(), asyncio.Event()
        page = live.Page(slow, Runs(root), lambda: None)
        context = SimpleNamespace(id="x", request=None)
        made = asyncio.ensure_future(page.on_session_created(context))
        await done.wait()
        for _ in range(10):
            turns += 1
            await asyncio.sleep(0)
        seen.set()
        await made
        return turns

    assert asyncio.run(story()) == 10


def test_a_page_of_very_many_layers_keeps_its_promise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"layer.{i}.weight" for i in range(600)]
    example_runs.made(tmp_path / "wide", names, rows=40)
    with Run.open(tmp_path / "wide") as run:
        data = gather(run, numbers=NUMBERS // 20, quick=True)
        total = len(run.tensors)
    drawn = sum(v.size for v in data.layers.values.values())
    assert drawn <= NUMBERS // 20
    assert total == data.known == 600
    assert names[-1] in [t.name for t in data.tensors], "the one that is most off is among them"
