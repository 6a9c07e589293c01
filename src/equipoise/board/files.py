"""Runs and plans as files, and in notebooks."""

from __future__ import annotations

import html as markup
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from equipoise.board import page
from equipoise.board.gather import NUMBERS, gather
from equipoise.board.page import Section
from equipoise.board.pages.compare_page import MOST, compare_section
from equipoise.board.pages.geometry_page import MOST_STEPS, geometry_section, triangles
from equipoise.board.pages.plan_page import grid_sources, plan_section, title_of
from equipoise.board.pages.run_page import run_section, said, sentence
from equipoise.monitor.store.run import Run
from equipoise.planner import Plan

FRAME = 860
"""Height of a page in a notebook, in pixels."""


def report(runs: Sequence[str | os.PathLike[str]], path: str | os.PathLike[str] = "report.html") -> Path:
    """Write runs, one or several compared, as one self-contained HTML file.

    Args:
        runs: directories of runs.
        path: the file.

    Raises:
        ValueError: there is no run, or too many.
    """
    title, sections = _sections([Path(r) for r in runs])
    return page.write(path, title, sections)


def report_html(runs: Sequence[str | os.PathLike[str]]) -> str:
    """The same as text."""
    return page.html(*_sections([Path(r) for r in runs]))


def plan_html(plan: Plan) -> str:
    """A plan as a page with sliders for lr and weight decay."""
    section = plan_section(grid_sources(plan), finetune=bool(plan.setting.finetune))
    return page.html(f"{title_of(plan.setting)} · equipoise", [section])


def write_plan(plan: Plan, path: str | os.PathLike[str] = "plan.html") -> Path:
    """Write a plan as one HTML file.

    Args:
        plan: the plan.
        path: the file.
    """
    target = Path(path)
    target.write_text(plan_html(plan), encoding="utf-8", errors="backslashreplace")
    return target


def show(thing: Plan | Run, *, height: int = FRAME) -> None:
    """Show a plan or a run: as a page in a notebook, as text elsewhere.

    Args:
        thing: what to show.
        height: of the page, in pixels.
    """
    if not isinstance(thing, Plan | Run):
        raise ValueError(f"thing = {thing!r}: must be a plan or a run")
    if not in_notebook():
        return _say(thing)
    from IPython.display import HTML, display  # type: ignore[import-not-found]

    text = plan_html(thing) if isinstance(thing, Plan) else report_html([thing.path])
    display(HTML(frame(text, height)))


def frame(text: str, height: int = FRAME) -> str:
    """A page within another: its styles and scripts touch nothing outside."""
    # Scripts run, but as a page of no origin: a name in a run cannot reach the notebook.
    rights = "allow-scripts allow-downloads allow-popups"
    style = f"width:100%;height:{height}px;border:0"
    return f'<div><iframe sandbox="{rights}" style="{style}" srcdoc="{markup.escape(text)}"></iframe></div>'


def in_notebook() -> bool:
    """Whether a notebook shows what is displayed."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    return shell is not None and hasattr(shell, "kernel")


def _say(thing: Plan | Run) -> None:
    from rich.markup import escape

    from equipoise._terminal import console as make

    console = make()
    if isinstance(thing, Plan):
        console.print(thing)
        return
    data = gather(thing)
    console.print(f"[bold]{escape(data.name)}[/bold]  {escape(sentence(data))} {said(data)}")
    for f in data.findings:
        console.print(
            f"  {f.severity}: {escape(f.code)}, {escape(f.where)}: {escape(f.evidence)}\n    → {escape(f.advice)}"
        )
    console.print("  [dim]equipoise report shows it in a browser[/dim]")


def _sections(paths: list[Path]) -> tuple[str, list[Section]]:
    if not 1 <= len(paths) <= MOST:
        raise ValueError(f"runs: {len(paths)} were given, must be 1 to {MOST}; use `equipoise board` for more")
    names = _names(paths)
    data, shapes = [], {}
    for path, name in zip(paths, names, strict=True):
        with Run.open(path) as run:
            data.append(gather(run, name, numbers=NUMBERS // len(paths)))
            shapes[name] = triangles(run, steps=max(12, MOST_STEPS // len(paths)))
    if len(data) == 1:
        return f"{names[0]} · equipoise", [run_section(data[0], label="Run"), geometry_section(shapes)]
    each = [run_section(d, key=f"run{i}", label=d.name) for i, d in enumerate(data)]
    together = compare_section(data, beside=[section.key for section in each])
    return f"{', '.join(names)} · equipoise", [together, *each, geometry_section(shapes)]


def _names(paths: list[Path]) -> list[str]:
    """The shortest names that tell the runs apart."""
    parts = [p.resolve().parts for p in paths]
    for depth in range(1, max(map(len, parts)) + 1):
        names = ["/".join(p[-depth:]) for p in parts]
        if len(set(names)) == len(names):
            return names
    return [f"{'/'.join(p[-1:])} ({i + 1})" for i, p in enumerate(parts)]
