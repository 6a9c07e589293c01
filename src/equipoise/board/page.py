"""Render figures into a page: one template for files and for the server."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bokeh.core.json_encoder import serialize_json
from bokeh.document import Document
from bokeh.models import ColumnDataSource
from bokeh.resources import Resources
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from equipoise._version import __version__
from equipoise.board.style import css_variables

STATIC = Path(__file__).parent / "static"
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""A file may run what it holds, and neither load nor send anything, whatever a name in it says."""

BOKEH = ("bokeh",)
"""What pages need of BokehJS: of its five files the first."""

SCRIPTS = ("core", "places", "curves", "findings", "heat", "run", "compare", "geometry", "plan", "start")


@dataclass(frozen=True)
class Section:
    """A part of a page: numbers and words, the figures that show them, and the HTML around.

    Attributes:
        kind: its template: "run", "compare", "plan" or "geometry".
        key: tells it from other sections; names of its models begin with it.
        label: what its tab says.
        sources: columns of numbers and words by name, each called `key-name`.
        draw: makes its figures, called with its key and `shape`; they are empty, and the page's scripts fill them.
        shape: all that its figures depend on.
        context: what else its template takes.
    """

    kind: str
    key: str
    label: str
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    draw: Callable[..., Mapping[str, Any]] | None = None
    shape: tuple[Any, ...] = ()
    context: Mapping[str, Any] = field(default_factory=dict)


@functools.cache
def templates() -> Environment:
    """The templates; everything that they are given is escaped."""
    # The page's own text is trusted, names from models and files are not: autoescape is the rule, |safe the exception.
    return Environment(
        loader=FileSystemLoader(STATIC),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def shell() -> Template:
    """The template of whole pages."""
    return templates().get_template("page.html")


def context(sections: Sequence[Section], figures: str, *, live: bool = False, **more: Any) -> dict[str, Any]:
    """What the template takes.

    Args:
        sections: the parts of the page.
        figures: their models as JSON.
        live: whether a server keeps it up to date, which also has a list of runs to go back to.
        **more: what Bokeh gives where it serves the page.
    """
    return more | {
        "sections": sections,
        "figures": figures,
        "css": style(),
        "scripts": scripts(*SCRIPTS),
        "policy": POLICY,
        "live": live,
        "version": __version__,
    }


def style() -> str:
    """The style of all pages."""
    return css_variables() + (STATIC / "board.css").read_text(encoding="utf-8")


def scripts(*names: str) -> list[str]:
    """Texts of scripts."""
    return [(STATIC / f"{name}.js").read_text(encoding="utf-8") for name in names]


def fill(document: Document, title: str, sections: Sequence[Section]) -> None:
    """Make a document of sections, for a server: it keeps what changes, and figures are the browser's alone."""
    for source in _sources(sections):
        document.add_root(source)
    document.title = title
    document.template = shell()
    blank = blank_figures(tuple((s.draw, s.key, s.shape) for s in sections if s.draw is not None))
    document.template_variables.update(context(sections, blank, live=True))


def html(title: str, sections: Sequence[Section]) -> str:
    """A whole page in one text: it needs nothing from anywhere."""
    figures = [f for s in sections if s.draw is not None for f in s.draw(s.key, *s.shape).values()]
    packed = _packed([*_sources(sections), *figures])
    return shell().render(context(sections, packed, title=title, bokeh_js=_bokeh_inline(), plot_script="", roots=()))


def write(path: str | os.PathLike[str], title: str, sections: Sequence[Section]) -> Path:
    """Write a page into a file."""
    target = Path(path)
    target.write_text(html(title, sections), encoding="utf-8", errors="backslashreplace")
    return target


@functools.lru_cache(maxsize=16)
def blank_figures(drawings: tuple[tuple[Callable[..., Mapping[str, Any]], str, tuple[Any, ...]], ...]) -> str:
    """Figures as JSON, without a number in them: the same for every run, so made once."""
    return _packed([figure for draw, key, shape in drawings for figure in draw(key, *shape).values()])


@functools.cache
def _bokeh_inline() -> str:
    return Resources(mode="inline", components=list(BOKEH)).render_js()


def _sources(sections: Sequence[Section]) -> list[ColumnDataSource]:
    return [
        ColumnDataSource(dict(columns), name=f"{section.key}-{name}")
        for section in sections
        for name, columns in section.sources.items()
    ]


def _packed(models: Sequence[Any]) -> str:
    # The one root draws nothing: static/core.js makes a figure a root when its place comes into sight.
    document = Document()
    document.add_root(ColumnDataSource({}, name="page", tags=list(models)))
    return serialize_json(document.to_json(deferred=False)).replace("<", "\\u003c")
