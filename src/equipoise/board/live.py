"""Documents of the live board: the same sections as in a file, refreshed while training writes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from bokeh.application.handlers.handler import Handler
from bokeh.document import Document
from bokeh.models import ColumnDataSource

from equipoise.board.gather import NUMBERS, RunData, gather
from equipoise.board.knobs import Knobs
from equipoise.board.listing import Runs
from equipoise.board.page import Section, blank_figures, fill
from equipoise.board.pages.compare_page import MOST, compare_section, compare_sources
from equipoise.board.pages.findings_view import as_json
from equipoise.board.pages.geometry_page import NOTHING, geometry_figures, geometry_section, geometry_sources, triangles
from equipoise.board.pages.plan_page import live_sources, plan_figures, plan_section
from equipoise.board.pages.run_page import run_figures, run_section, run_sources
from equipoise.monitor.runs.directory import signature, spelled
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.schema import RunError

EVERY = 1000
"""Milliseconds between looks at a run's file."""

REST = 4.0
"""After a refresh, this many times as long as it took passes before the next."""

FIRST = 1.0
"""Seconds from a browser's coming to the first look, which takes long in a large run: the page is drawn meanwhile."""


Arguments = dict[str, list[bytes]]
"""Of a page's address."""

LOADING, LOADING_STEPS = "Loading forecasts and findings…", "Loading the measured steps…"
"""What a page says until the first look."""


Fill = Callable[[Document], None]
"""Makes the document of a page; what takes long has been read by then."""


def run_page(runs: Runs, arguments: Arguments) -> Fill:
    """The page of one run."""
    (name,) = _names(arguments, most=1)
    path = runs.path(name)
    run = Run.open(path)
    title = spelled(path.name) if name == "." else name

    def sources() -> dict[str, dict[str, Any]]:
        data = gather(run, title)
        found = {f"run-{k}": v for k, v in run_sources(data).items()}
        return found | {f"geometry-{k}": v for k, v in geometry_sources(triangles(run)).items()}

    # The page comes first, and what takes long with the first look.
    first = runs.recent([path], lambda: _unfinished(run_section(gather(run, title, quick=True), label="Run")))

    def make(document: Document) -> None:
        document.on_session_destroyed(lambda context: run.close())
        fill(document, title, [first, _unfinished(geometry_section({title: NOTHING}), LOADING_STEPS)])
        _follow(document, [path], sources, notes="run-notes")

    return make


def compare_page(runs: Runs, arguments: Arguments) -> Fill:
    """The page of several runs."""
    names = _names(arguments, most=MOST)
    paths = [runs.path(n) for n in names]
    opened = [Run.open(p) for p in paths]

    def close(context: Any) -> None:
        for run in opened:
            run.close()

    def read(*, quick: bool) -> list[RunData]:
        share = NUMBERS // len(names)
        return [gather(r, n, numbers=share, quick=quick) for r, n in zip(opened, names, strict=True)]

    def sources() -> dict[str, dict[str, Any]]:
        return {f"compare-{k}": v for k, v in compare_sources(read(quick=False)).items()}

    first = runs.recent(paths, lambda: _unfinished(compare_section(read(quick=True))))

    def make(document: Document) -> None:
        document.on_session_destroyed(close)
        fill(document, "Compare", [first])
        _follow(document, paths, sources, notes="compare-notes")

    return make


def plan_page(runs: Runs, arguments: Arguments) -> Fill:
    """The page of plans, whose knobs are turned in the browser and computed here."""
    return _plan


def _plan(document: Document) -> None:
    fill(document, "Plan", [plan_section(live_sources(Knobs()))])
    control, notes, curves = (_source(document, f"plan-{n}") for n in ("control", "notes", "curves"))

    def turned(attribute: str, old: Any, new: Any) -> None:
        asked: dict[str, Any] = {}
        try:
            asked = json.loads(str(new["json"][0])[:10_000])
            pinned = asked.get("pinned")
            found = live_sources(Knobs.read(asked.get("knobs")), None if pinned is None else Knobs.read(pinned))
            said = json.loads(found["notes"]["json"][0]) | {"count": asked.get("count")}
            curves.data = found["curves"]
        except (ValueError, TypeError, KeyError, AttributeError, MemoryError, OverflowError) as error:
            count = asked.get("count") if isinstance(asked, dict) else None
            said = json.loads(notes.data["json"][0]) | {"error": str(error) or "too large", "count": count}
        notes.data = {"json": [as_json(said)]}

    control.on_change("data", turned)


def prepare() -> None:
    """Make what every page of a run and of a plan needs, before the first is asked for."""
    for parts in (((run_figures, "run", ()), (geometry_figures, "geometry", ())), ((plan_figures, "plan", ()),)):
        blank_figures(parts)
    live_sources(Knobs())


PAGES: dict[str, Callable[[Runs, Arguments], Fill]] = {"/run": run_page, "/compare": compare_page, "/plan": plan_page}


class Page(Handler):
    """A page of the board: what it shows is read in a thread, one page after another, while others are answered.

    Args:
        read: reads what the page shows.
        runs: the runs.
        make_room: called before a page is made.
    """

    _one = asyncio.Lock()

    def __init__(self, read: Callable[[Runs, Arguments], Fill], runs: Runs, make_room: Callable[[], None]) -> None:
        super().__init__()
        self._read, self._runs, self._make_room = read, runs, make_room
        self._ready: dict[str, Fill] = {}

    async def on_session_created(self, session_context: Any) -> None:
        """Read what the page shows; a broken run has a page that says so, and the board goes on."""
        self._make_room()
        request = session_context.request
        arguments = dict(request.arguments) if request is not None else {}
        await self._one.acquire()
        # Bokeh makes the page in the same turn of the loop; who waits for something small comes before the next page.
        try:
            made = await asyncio.to_thread(self._read, self._runs, arguments)
        except Exception as error:
            made = _refused(error, arguments)
        finally:
            asyncio.get_running_loop().call_soon(self._one.release)
        self._ready[session_context.id] = made

    def modify_document(self, doc: Document) -> None:
        """Fill the document with what was read."""
        context = doc.session_context
        assert context is not None
        self._ready.pop(context.id)(doc)


def _refused(error: Exception, arguments: Arguments) -> Fill:
    message = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
    label = ", ".join(a.decode("utf-8", "replace") for a in arguments.get("run", [])) or "This page"
    section = Section("error", "error", spelled(label), context={"message": spelled(message)})
    return lambda document: fill(document, spelled(label), [section])


def _names(arguments: Arguments, most: int) -> list[str]:
    names = [a.decode("utf-8", "replace") for a in arguments.get("run", [])]
    if not 1 <= len(names) <= most:
        raise RunError(f"run: must be given once{f' to {most} times' if most > 1 else ''}; go back to the list")
    return list(dict.fromkeys(names))


def _unfinished(section: Section, words: str = LOADING) -> Section:
    """The section, saying that more will come with the first look."""
    plain = json.loads(section.sources["notes"]["json"][0])
    notes = {"json": [as_json(plain | {"loading": words})]}
    return replace(section, sources={**section.sources, "notes": notes})


def _source(document: Document, name: str) -> Any:
    found = document.get_model_by_name(name)
    assert isinstance(found, ColumnDataSource), name
    return found


def _follow(
    document: Document, paths: Sequence[Path], sources: Callable[[], dict[str, dict[str, Any]]], *, notes: str
) -> None:
    """Send the numbers again whenever a run's file has changed, and what went wrong if reading fails."""
    state: dict[str, Any] = {"mark": None, "rest": None, "alive": 0.0}
    said = _source(document, notes)

    async def look() -> None:
        now = time.monotonic()
        session = getattr(document.session_context, "session", None)
        if session is not None and not session.connection_count:
            return  # nobody sees it: a page that was closed is kept for a while
        if state["rest"] is None:
            state["rest"] = now + FIRST
        mark = [signature(p) for p in paths]
        # A run that is killed writes nothing more: look at its state now and then all the same.
        if now < state["rest"] or (mark == state["mark"] and now < state["alive"]):
            return
        state["mark"] = mark
        try:
            found = await asyncio.to_thread(sources)
        except Exception as error:  # the file may be gone, or be written anew
            plain = json.loads(said.data["json"][0])
            said.data = {"json": [as_json(plain | {"error": str(error)})]}
            found = {}
        for name, data in found.items():
            _source(document, name).data = data
        took = time.monotonic() - now
        state["rest"], state["alive"] = time.monotonic() + REST * took, time.monotonic() + 10.0

    document.add_periodic_callback(look, EVERY)  # type: ignore[arg-type]  # coroutines are welcome
