"""The live board: Bokeh's server, bound to this machine, for the runs of one directory."""

from __future__ import annotations

import asyncio
import base64
import errno
import functools
import gc
import json
import logging
import socket
import traceback
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from bokeh.application import Application
from bokeh.resources import Resources
from bokeh.server import connection
from bokeh.server.server import BaseServer
from bokeh.server.tornado import BokehTornado
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.ioloop import IOLoop, PeriodicCallback
from tornado.iostream import IOStream
from tornado.netutil import bind_sockets
from tornado.web import ErrorHandler, OutputTransform, RequestHandler

from equipoise import _check
from equipoise._malloc import give_back
from equipoise._version import __version__
from equipoise.board.listing import Runs
from equipoise.board.live import PAGES, Page, prepare
from equipoise.board.mirror import Mirror, is_address
from equipoise.board.page import BOKEH, scripts, style, templates
from equipoise.monitor.store.schema import RunError

try:
    import resource
except ImportError:  # as on Windows
    resource = None

HERE = ("127.0.0.1", "localhost", "[::1]")
"""Names of this machine, from itself."""

UNSEEN = 16
"""Pages that are kept while nobody looks at them."""

CONNECTIONS, IDLE, LARGEST = 500, 20.0, 100_000
"""Connections at once; seconds that one may wait before it asks; bytes of what it sends."""

UNUSED = 15
"""Seconds that a page is kept which nobody looks at; a browser that lost its connection may come back in time."""

HEADERS = {
    "Content-Security-Policy": "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'"
    "; img-src 'self' data: blob:; connect-src 'self' ws: wss:; frame-ancestors 'self'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class _Headers(OutputTransform):
    """Sets headers on every answer, Bokeh's own included."""

    def transform_first_chunk(
        self, status_code: int, headers: HTTPHeaders, chunk: bytes, finishing: bool
    ) -> tuple[int, HTTPHeaders, bytes]:
        for name, value in HEADERS.items():
            headers[name] = value
        return status_code, headers, chunk


class _Guarded(BokehTornado):
    """Answers who asks for it by a name that it knows: a foreign page that points its own name here gets nothing."""

    names: frozenset[str] = frozenset()
    """Names by which it is known, at any port, or at one where they say so."""
    _forgetting = False

    def resources(self, absolute_url: str | bool | None = None) -> Resources:
        return super().resources(absolute_url).clone(components=list(BOKEH))

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        if request.path.endswith("/autoload.js"):  # made to be put into the pages of others
            return self.get_handler_delegate(request, ErrorHandler, {"status_code": 404})
        if not (self.knows(request.host) and self._asked_here(request)):
            return self.get_handler_delegate(request, ErrorHandler, {"status_code": 403})
        return super().find_handler(request, **kwargs)

    def knows(self, host: str) -> bool:
        """Whether this is one of its names, with a port or without."""
        name, _, port = host.lower().rpartition(":")
        return host.lower() in self.names or (port.isdecimal() and name in self.names)

    def _asked_here(self, request: HTTPServerRequest) -> bool:
        """Whether a page of its own asks, or a person who follows a link."""
        origin = request.headers.get("Origin")
        if origin is not None:  # of a websocket, too; a proxy may have changed the host's name, and not this one
            asker = urlsplit(origin).netloc.lower()
            return asker == request.host.lower() or (asker not in HERE and asker in self.names)
        site = request.headers.get("Sec-Fetch-Site")
        return site != "cross-site" or request.headers.get("Sec-Fetch-Dest") == "document"

    async def forget(self, keep: int, seconds: float = 0.0) -> None:
        """Forget pages that nobody looks at, those that were left first, one at a time.

        Args:
            keep: so many may stay.
            seconds: those that were left so long ago do not stay.
        """
        left = [(s, c) for c in self._applications.values() for s in c.sessions if not s.connection_count]
        left.sort(key=lambda pair: -pair[0].milliseconds_since_last_unsubscribe)
        for i, (session, context) in enumerate(left):
            late = seconds and session.milliseconds_since_last_unsubscribe > 1000 * seconds
            if (late or i < len(left) - keep) and not session.connection_count and not session.destroyed:
                await context._discard_session(session, lambda s: s.connection_count == 0)
                await asyncio.sleep(0)  # others are answered in between

    def make_room(self) -> None:
        """Forget some, soon: who asks for a page does not wait for it."""
        if not self._forgetting:
            self._forgetting = True
            IOLoop.current().add_callback(self._cleanup_sessions)

    async def _cleanup_sessions(self) -> None:
        try:
            await self.forget(UNSEEN, UNUSED)
        finally:
            self._forgetting = False


class _Connections(HTTPServer):
    """Takes so many connections, of which each must ask for something soon, and nothing that is large."""

    most = CONNECTIONS

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        if len(self._connections) >= self.most:
            stream.close()
        else:
            super().handle_stream(stream, address)


class Left(logging.Filter):
    """Keeps out of the log that a browser left while its page was being made, which Bokeh takes for an error."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is news."""
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, AssertionError):
            return True
        last = traceback.extract_tb(error.__traceback__)[-1:]
        return not any(code.name == "session" and code.filename == connection.__file__ for code in last)


def _plain(template: str, title: str, *names: str, **more: Any) -> str:
    """A page without figures of Bokeh."""
    given = {"live": True, "bokeh_js": "", "css": style(), "scripts": scripts("core", *names), "version": __version__}
    given["here"] = template.removesuffix(".html")
    return templates().get_template(template).render(title=title, **given, **more)


class _List(RequestHandler):
    """The page that lists runs."""

    def get(self) -> None:
        self.finish(_plain("list.html", "Runs · equipoise", "listing"))


class _Outcome(RequestHandler):
    """The page of an experiment."""

    def initialize(self, runs: Runs) -> None:
        self._runs = runs

    async def get(self) -> None:
        name = self.get_query_argument("at", ".")
        outcome: dict[str, Any]
        try:
            outcome = await asyncio.to_thread(self._runs.outcome, name)
        except RunError as error:
            self.set_status(404)
            outcome = {"experiment": name, "error": str(error)}
        # As an image an SVG runs no script and loads nothing.
        figure = base64.b64encode(outcome.pop("figure", b"")).decode()
        given = {"outcome": outcome, "error": outcome.get("error"), "figure": figure}
        given["at"] = "" if name == "." else f"{name}/"
        self.finish(_plain("outcome.html", f"{outcome['experiment']} · equipoise", "start", **given))


class _Table(RequestHandler):
    """The runs as JSON."""

    def initialize(self, runs: Runs) -> None:
        self._runs = runs

    async def get(self) -> None:
        asked = {name: self.get_query_argument(name) for name in self.request.query_arguments}
        found = await asyncio.to_thread(self._runs.answer, asked)
        self.set_header("Cache-Control", "no-store")
        self.finish(json.dumps(found))


class Board:
    """A running board; made by `serve`.

    Attributes:
        url: its address.
    """

    def __init__(
        self,
        runs: Runs,
        host: str,
        port: int,
        allow: Sequence[str],
        started: Callable[[Board], None] | None = None,
        alone: bool = False,
    ) -> None:
        self._alone = alone
        sockets = bind_sockets(port, host)
        port = sockets[0].getsockname()[1]
        names = [*HERE, f"[{host}]" if ":" in host else host, *allow]
        apps = {p: Application(Page(read, runs, lambda: self._tornado.make_room())) for p, read in PAGES.items()}
        patterns: list[Any] = [
            (r"/?", _List),
            (r"/api/runs", _Table, {"runs": runs}),
            (r"/outcome", _Outcome, {"runs": runs}),
        ]
        tornado = _Guarded(
            apps, extra_patterns=patterns, extra_websocket_origins=["*"], use_index=False,
            websocket_max_message_size_bytes=1 << 20, unused_session_lifetime_milliseconds=1000 * UNUSED,
            check_unused_sessions_milliseconds=1000 * UNUSED,
        )  # fmt: skip
        tornado.names = frozenset(n.lower() for n in names)
        tornado.transforms.append(_Headers)
        self._tornado = tornado
        http = _Connections(tornado, max_body_size=LARGEST, idle_connection_timeout=IDLE, body_timeout=IDLE)
        http.most = min(CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2) if resource else CONNECTIONS
        http.add_sockets(sockets)
        self.loop = IOLoop.current()
        self._server = BaseServer(self.loop, tornado, http)
        shown = "localhost" if host in ("127.0.0.1", "::1", "0.0.0.0", "::") else host
        self.url = f"http://{shown}:{port}/"
        self._server.start()
        self.loop.add_callback(self._settle)
        if started is not None:
            self.loop.add_callback(functools.partial(started, self))
        self._tidy = PeriodicCallback(give_back, 1000 * UNUSED)
        self._tidy.start()

    def _settle(self) -> None:
        """Make what every page needs; in a process of its own, exempt what there is by now from garbage collection.

        Bokeh collects twice for every page that was closed: with 200,000 objects to go through, a dozen closed pages
        kept the board from answering for seconds.
        """
        prepare()
        if self._alone:
            gc.collect()
            gc.freeze()

    def run(self) -> None:
        """Serve until `stop` or Ctrl-C."""
        try:
            self.loop.start()
        finally:
            if self._alone:
                gc.unfreeze()
            self._tidy.stop()
            self._server.unlisten()
            self._server.stop(wait=False)

    def stop(self) -> None:
        """End `run`; may be called from another thread."""
        self.loop.add_callback(self.loop.stop)


def serve(
    directory: str,
    *,
    port: int = 5006,
    host: str = "127.0.0.1",
    allow: Sequence[str] = (),
    started: Callable[[Board], None] | None = None,
    alone: bool = False,
) -> None:
    """Serve the runs of a directory until Ctrl-C.

    Args:
        directory: where the runs are; nothing outside of it is served. An address that fsspec knows, such as
            s3://bucket/runs, is copied into a local directory every ten seconds.
        port: port to listen on; 0 for any free one.
        host: address to listen on. Everyone who can reach it can read every run of the directory.
        allow: other host names that browsers may use, besides `host` and this machine's own names.
        started: called with the board when it is ready.
        alone: nothing else goes on in this process, so that what was made before may be left out of garbage collection
            while the board runs; it answers sooner when pages were closed.

    Raises:
        ValueError: the directory or the port cannot be used.
    """
    if is_address(directory):
        with Mirror(directory) as mirror:
            here = str(mirror.path)
            serve(here, port=port, host=host, allow=allow, started=started, alone=alone)
        return
    runs = Runs(directory)
    if not 0 <= _check.whole("port", port) <= 65535:
        raise ValueError(f"port = {port}: must be in 0 to 65535")
    # Pages that were closed and names that were refused are no news to who trains in the same terminal.
    for name in ("bokeh", "tornado.access"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    left = Left()
    for name in ("tornado.application", "asyncio"):
        logging.getLogger(name).addFilter(left)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        board = Board(runs, host, port, allow, started, alone)
        board.run()
    except OSError as error:
        what = "host" if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL else "port"
        raise ValueError(f"port = {port} of {host}: cannot listen on it ({error}); choose another --{what}") from None
    finally:
        for name in ("tornado.application", "asyncio"):
            logging.getLogger(name).removeFilter(left)
        asyncio.set_event_loop(None)
        loop.close()
