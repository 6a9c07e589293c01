"""How Sphinx makes the site (`make docs`): pages are Markdown, and the API is made from docstrings."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

import equipoise
from equipoise import sources

ROOT = Path(__file__).parents[1]
PAGES = {"tour": "README.md", "changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
"""Pages of the site that are files in the root of the repository."""

project = "Equipoise"
author = "The Equipoise authors"
copyright = "The Equipoise authors, Apache-2.0"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["images/*.py"]
suppress_warnings = ["myst.header"]  # the changelog repeats its headings

html_theme = "furo"
html_title = "Equipoise"
html_static_path = ["_static"]
html_css_files = ["style.css"]
html_favicon = "images/favicon.svg"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#00796b", "color-brand-content": "#00796b"},
    "dark_css_variables": {"color-brand-primary": "#4db6ac", "color-brand-content": "#4db6ac"},
}

myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    name: name for name in ("ArrayLike", "Array", "Params", "Angle", "DecayKind", "Nonfinite", "Texts")
}
napoleon_use_ivar = True
napoleon_use_rtype = False
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
add_module_names = False


def repository_page(app: Sphinx, name: str, content: list[str]) -> None:
    """Fill in pages from the repository's root, and turn links to them and from them."""
    names = {file: f"{page}.md" for page, file in PAGES.items()}
    if name in PAGES:
        text = (ROOT / PAGES[name]).read_text(encoding="utf-8")
        text = re.sub(r"\]\((?:docs/)?((?!https?:|docs/)[\w./-]+)", lambda m: f"]({names.get(m[1], m[1])}", text)
        content[0] = text.replace("](examples/", "](../examples/")
    else:
        content[0] = re.sub(r"\]\(\.\./([A-Z]+\.md)\)", lambda m: f"]({names[m[1]]})", content[0])


INLINE = re.compile(r"(`+)(.+?)\1")
SECTION = re.compile(r"(Args|Attributes|Returns|Yields|Raises|Example|Examples|References):$")


def escaped(text: str) -> str:
    """A line of a docstring, whose only markup is `code`, as reStructuredText."""
    out, at = [], 0
    for found in INLINE.finditer(text):
        code = found[2]
        after = "" if not re.match(r"\w", text[found.end() :][:1] or " ") else "\\ "
        before = "\\ " if found.start() and re.match(r"[\w(\[{=/·×≤≥<>'\"|*-]", text[found.start() - 1]) else ""
        out += [re.sub(r"([\\*|_])", r"\\\1", text[at : found.start()]), f"{before}``{code}``{after}"]
        at = found.end()
    return "".join([*out, re.sub(r"([\\*|_])", r"\\\1", text[at:])])


def restructured(lines: list[str]) -> list[str]:
    """A docstring as reStructuredText: inline code, equations and tables set apart, examples as they are."""
    out: list[str] = []
    section = example = literal = False
    for i, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if not line.strip():
            example = False
            out.append("")
            continue
        if indent == 0:
            section, literal = bool(SECTION.match(line)), False
        if line.lstrip().startswith(">>>"):
            example = True
        table = bool(re.match(r"\|[ -].*\|$", line))
        if table and not (out and out[-1].startswith("   |")):
            out += [".. code-block:: text", ""]
        if table:
            out.append(f"   {line}")
        elif example:
            out.append(line)
        elif indent >= 4 and not section:
            if not literal and (not out or not out[-1].strip()):
                out += [".. code-block:: text", ""]
                literal = True
            out.append(line if literal else escaped(line))
        else:
            out.append(escaped(line))
        if i + 1 < len(lines) and not example and lines[i + 1].lstrip().startswith(">>>"):
            out.append("")
    return out


def api_docstring(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make reStructuredText of a docstring before napoleon reads its sections."""
    if what == "data" or (what == "attribute" and not lines):
        lines[:] = [*said_of(name), ""]
    lines[:] = restructured(lines)


def said_of(name: str) -> list[str]:
    """What stands under a constant, in whichever module of its package it is defined."""
    package, _, constant = name.rpartition(".")
    try:
        folder = Path(importlib.import_module(package).__file__ or "").parent
    except ImportError:
        return []
    for path in sorted(folder.glob("*.py")):
        module = package if path.stem == "__init__" else f"{package}.{path.stem}"
        found = ModuleAnalyzer.for_module(module).find_attr_docs().get(("", constant))
        if found:
            return found
    return []


class Public(SphinxDirective):
    """`.. public:: equipoise.theory`: what a package says of itself, and every name of its `__all__`."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        """Hand the names to autodoc, each by its kind."""
        package = importlib.import_module(self.arguments[0])
        lines = restructured((package.__doc__ or "").splitlines())
        rows = []
        for name in package.__all__:
            thing = getattr(package, name)
            if inspect.ismodule(thing):
                continue  # it has a page, or a line in the text, of its own
            home = equipoise._FROM.get(name) if package is equipoise else None
            if home and name in importlib.import_module(f"equipoise.{home}").__all__:
                about = escaped((inspect.getdoc(thing) or "").split("\n")[0])
                rows.append(f"   * - :py:obj:`{name} <equipoise.{home}.{name}>`\n     - {about}")
                continue
            kind = "autoclass" if inspect.isclass(thing) else "autofunction" if callable(thing) else "autodata"
            lines += ["", f".. {kind}:: {package.__name__}.{name}", *(["   :no-value:"] if kind == "autodata" else [])]
        if rows:
            lines += ["", ".. list-table::", "   :widths: auto", "", *"\n".join(rows).splitlines()]
        node = nodes.container()
        self.state.nested_parse(StringList(lines, self.arguments[0]), self.content_offset, node)
        return node.children


KEYS = "|".join(map(re.escape, sorted(sources.SOURCES)))
CITED = re.compile(rf"(<pre.*?</pre>|<code.*?</code>|<a\b.*?</a>|<[^>]+>)|\[({KEYS})\]", re.DOTALL)


def link_sources(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Make every citation a link to its entry on the page of sources."""
    if "body" in context:
        pathto = context["pathto"]

        def linked(found: re.Match[str]) -> str:
            place = pathto("theory") if found[2] == "theory" else f"{pathto('sources')}#{found[2]}"
            return found[1] or f'<a href="{place}">[{found[2]}]</a>'

        context["body"] = CITED.sub(linked, context["body"])


def setup(app: Sphinx) -> None:
    """Register what is done besides Sphinx's own."""
    app.add_directive("public", Public)
    app.connect("source-read", repository_page)
    app.connect("autodoc-process-docstring", api_docstring, priority=100)
    app.connect("html-page-context", link_sources)
