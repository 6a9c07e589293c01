"""Alerts reach a real server and a real shell, hold back what is too much, and say so."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

import equipoise as eq
from equipoise.finding import Finding
from equipoise.monitor.sinks import Command, Webhook, alerts


def found(code: str = "loss-spike", severity: str = "warning", where: str = "loss") -> Finding:
    return Finding(code, severity, where, "jumped", "no jumps", "look", "the loss")


class Server:
    """A server that keeps what it is sent."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.answers: list[int] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.got.append(json.loads(body) | {"token": self.headers.get("Authorization")})
                self.send_response(outer.answers.pop(0) if outer.answers else 200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/secret"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(alerts, "PAUSE", 0.01)
    made = Server()
    yield made
    made.close()


def test_a_run_that_goes_wrong_calls_the_webhook(server: Server, tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    sink = Webhook(server.url, headers={"Authorization": "Bearer x"})
    watch = eq.watch(model, optimizer, tmp_path / "a", sinks=[sink], every=1, quiet=True)
    for step in range(40):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).square().sum().backward()
        if step == 20:
            model.weight.grad[0, 0] = torch.nan  # type: ignore[index]
        optimizer.step()
    watch.close("crashed")
    first, last = server.got[0], server.got[-1]
    assert first["finding"]["code"] == "not-finite"
    assert first["run"] == str(tmp_path / "a")
    assert "not-finite" in first["text"]
    assert first["text"] == first["content"]
    assert first["token"] == "Bearer x"
    assert last["status"] == "crashed"
    with eq.Run.open(tmp_path / "a") as run:
        assert "secret" not in json.dumps(run.meta)


def test_severities_and_the_hour_are_limits(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(alerts.time, "monotonic", lambda: now[0])
    sink = Webhook(server.url, per_hour=2)
    for step in range(5):
        sink.finding(step, found())
        sink.finding(step, found(severity="info"))
    assert [g["step"] for g in server.got] == [0, 1]
    now[0] = 3601.0
    sink.finding(9, found())
    assert server.got[-1]["held_back"] == 3
    assert "3 more were held back" in server.got[-1]["text"]
    sink.close("finished")
    assert len(server.got) == 3


def test_a_webhook_that_fails_is_tried_again_and_does_not_tell_its_url(server: Server) -> None:
    sink = Webhook(server.url)
    server.answers = [500, 503]
    sink.finding(1, found())
    assert len(server.got) == 3
    server.answers = [404] * 3
    with pytest.raises(RuntimeError, match="answered 404, 3 times") as caught:
        sink.finding(2, found())
    assert "secret" not in str(caught.value)
    server.close()
    with pytest.raises(RuntimeError, match="refused") as caught:
        Webhook(server.url).finding(2, found())
    assert "secret" not in str(caught.value)


def test_a_command_gets_what_was_found_and_runs_none_of_it(tmp_path: Path) -> None:
    out = tmp_path / "out"
    sink = Command(f'printf "%s|%s|%s" "$EQUIPOISE_CODE" "$EQUIPOISE_WHERE" "$EQUIPOISE_STEP" > {out}; cat >> {out}')
    sink.run = "runs/a"
    evil = f"$(touch {tmp_path / 'evil'})`touch {tmp_path / 'evil'}`; touch {tmp_path / 'evil'}"
    sink.finding(7, found(where=evil))
    head, _, body = out.read_text().partition("{")
    assert head == f"loss-spike|{evil}|7"
    assert json.loads("{" + body)["finding"]["where"] == evil
    assert not (tmp_path / "evil").exists()
    Command(["sh", "-c", f'printf "%s" "$EQUIPOISE_STATUS" > {out}']).close("interrupted")
    assert out.read_text() == "interrupted"


def test_a_command_that_fails_ends_alerts_and_not_training(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters())
    sinks = [Command("echo no such phone >&2; exit 3")]
    with eq.watch(model, optimizer, tmp_path / "a", sinks=sinks, every=1, quiet=True) as watch:
        for _ in range(20):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).square().sum().backward()
            model.weight.grad[0, 0] = torch.nan  # type: ignore[index]
            optimizer.step()
    failed = [f for f in watch.findings if f.code == "sink-failed"]
    assert "code 3: no such phone" in failed[0].evidence
    with eq.Run.open(tmp_path / "a") as run:
        assert run.status == "finished"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Webhook("file:///etc/passwd"), "url"),
        (lambda: Webhook("http://a", severities="error"), r"\['error'\]"),
        (lambda: Webhook("http://a", severities=["fatal"]), "severities"),
        (lambda: Webhook("http://a", per_hour=0), "per_hour"),
        (lambda: Command(""), "command"),
        (lambda: Command("true", timeout=0), "timeout"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
