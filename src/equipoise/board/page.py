"""Put figures into a page: the same template as a file of its own, and as the document of a server."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bokeh.document import Document
from bokeh.embed import file_html
from bokeh.resources import INLINE
from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from equipoise._version import __version__
from equipoise.board.style import css_variables

STATIC = Path(__file__).parent / "static"
POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"
"""A file may run what it holds, and neither load nor send anything, whatever a name in it says."""

SCRIPTS = ("core", "curves", "findings", "heat", "run", "compare", "geometry", "plan", "start")


@dataclass(frozen=True)
class Section:
    """A part of a page: figures, and the HTML around them.

    Attributes:
        kind: its template: "run", "compare", "plan" or "geometry".
        key: tells it from other sections; names of its models begin with it.
        label: what its tab says.
        figures: by name, each called `key-name`.
        context: what else its template takes.
    """

    kind: str
    key: str
    label: str
    figures: Mapping[str, Any]
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


def context(sections: Sequence[Section], *, live: bool = False, home: bool = False) -> dict[str, Any]:
    """What the template takes.

    Args:
        sections: the parts of the page.
        live: whether a server keeps it up to date.
        home: whether there is a list of runs to go back to.
    """
    return {
        "sections": sections,
        "css": css_variables() + (STATIC / "board.css").read_text(encoding="utf-8"),
        "scripts": [(STATIC / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPTS],
        "policy": POLICY,
        "live": live,
        "home": home,
        "version": __version__,
    }


def fill(document: Document, title: str, sections: Sequence[Section], **options: Any) -> None:
    """Make a document of sections, for a server."""
    with document.models.freeze():  # models are collected once, not after each root
        for section in sections:
            for figure in section.figures.values():
                document.add_root(figure)
    document.title = title
    document.template = shell()
    document.template_variables.update(context(sections, **options))


def html(title: str, sections: Sequence[Section]) -> str:
    """A whole page in one text: it needs nothing from anywhere."""
    document = Document()
    fill(document, title, sections)
    return file_html(
        document, INLINE, title=title, template=document.template, template_variables=document.template_variables,
        suppress_callback_warning=True,
    )  # fmt: skip


def write(path: str | os.PathLike[str], title: str, sections: Sequence[Section]) -> Path:
    """Write a page into a file."""
    target = Path(path)
    target.write_text(html(title, sections), encoding="utf-8")
    return target
