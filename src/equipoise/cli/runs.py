"""Commands for runs: `equipoise report`, `board`, `runs`, `tag`, `export` and `watch`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli._out import print_json, say, size
from equipoise.cli._read import integer


def report(
    runs: Annotated[list[Path], typer.Argument(help="Directories of runs. Several are compared.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")] = Path("report.html"),
) -> None:
    """Write runs as one HTML file that works on its own."""
    from equipoise.board import report as write

    say(f"{size(write(runs, output))}: open it in a browser")


def board(
    directory: Annotated[
        str, typer.Argument(help="Directory with the runs, or an address such as s3://bucket/runs.")
    ] = ".",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.")] = 5006,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Everyone who can reach it can read every run.")
    ] = "127.0.0.1",
    allow: Annotated[
        list[str] | None, typer.Option(help="Another host name by which browsers reach it. Can be repeated.")
    ] = None,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Show runs in the browser while they are being written, and plans with sliders."""
    from equipoise.board import Board, serve

    def started(running: Board) -> None:
        say(f"Runs of {directory} are at {running.url} (Ctrl-C to stop)")
        if open_browser:
            import webbrowser

            webbrowser.open(running.url)

    serve(directory, port=port, host=host, allow=allow or (), started=started, alone=True)


def runs(
    directory: Annotated[Path, typer.Argument(help="Directory with the runs.")] = Path("."),
    columns: Annotated[
        str, typer.Option(help="Separated by commas: loss,validation,lr,wd, any logged metric, any key of the meta.")
    ] = "",
    sort: Annotated[str, typer.Option(help="Column to sort by, smallest first; -loss: largest first.")] = "-changed",
    filter: Annotated[
        str,
        typer.Option(
            help="Words in the name, tags or meta, and comparisons, for example 'gpt lr>1e-3 tags=good'. All must hold."
        ),
    ] = "",
    top: Annotated[
        int | None, typer.Option(parser=integer(), metavar="COUNT", help="Number of runs to list. Default: all.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON with everything that is known about each run.")
    ] = False,
) -> None:
    """List runs, with the columns, order and filter that you choose. The board uses the same syntax.

    [dim]equipoise runs runs/ --columns loss,validation,lr,wd --sort validation --filter 'lr>1e-3'[/dim]
    """
    _print_runs(directory, [c.strip() for c in columns.split(",")], sort, filter, top, json)


def _print_runs(
    directory: Path, columns: Sequence[str] = (), sort: str = "-changed", filter: str = "", top: int | None = None,
    json: bool = False,
) -> None:  # fmt: skip
    from equipoise.monitor.runs.directory import Directory
    from equipoise.monitor.runs.select_runs import columns_of, select, unknown
    from equipoise.monitor.runs.terminal import console, render_list

    lines = Directory(directory).lines()
    asked = columns_of(columns)
    if any(columns):
        wrong = unknown(lines, asked, sort, filter)
    else:
        asked = [c for c in asked if c == "curve" or any(c in line.values for line in lines)]
        wrong = unknown(lines, (), sort, filter)
    if wrong:
        raise ValueError(wrong)
    found = select(lines, sort=sort, filter=filter)[:top]
    if json:
        print_json([line.values | ({"error": line.error} if line.error else {}) for line in found])
        return
    where = console()
    where.print(render_list(found, asked, None if any(columns) else where.width))
    if len(found) < len(lines):
        say(f"{len(found)} of {len(lines)} runs")


def tag(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
    tags: Annotated[
        list[str] | None, typer.Argument(help="Tags to add. Default: print the tags that the run has.")
    ] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A tag to remove. Can be repeated.")] = None,
) -> None:
    """Add tags to a run. Lists of runs can be filtered by tag.

    [dim]equipoise tag runs/a good baseline --remove draft[/dim]
    """
    from equipoise.monitor.runs.tags import change_tags, tags_of
    from equipoise.monitor.store.run import Run

    if tags or remove:
        change_tags(run, tags or [], remove or [])
    with Run.open(run) as opened:
        say(" ".join(tags_of(opened.path, opened.meta)) or "no tags")


def export(
    run: Annotated[Path, typer.Argument(help="Directory of a run.")],
    to: Annotated[
        str | None, typer.Option(help="parquet or csv. Default: by the ending of the file name, or csv.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write. Default: beside the run, with its name.")
    ] = None,
) -> None:
    """Write everything that a run measured as one table, one number per line."""
    from equipoise.monitor.runs.export import write
    from equipoise.monitor.store.run import Run

    with Run.open(run) as opened:
        target, lines = write(opened, to, output)
        say(f"{lines:,} numbers in {target}")
        for finding in opened.findings:
            if finding.code == "run-damaged":
                say(f"equipoise: {finding.evidence}", err=True)


def watch(
    run: Annotated[Path, typer.Argument(help="Directory of a run, or of several runs, which are then listed.")],
    layers: Annotated[
        str | None,
        typer.Option(help="Only layers whose name matches, for example '*attn*' or mlp. Default: all matrices."),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(help="worst, name, model, norm, rotation, relative_update, total_decay, c_err or angle."),
    ] = "worst",
    top: Annotated[
        int | None,
        typer.Option(parser=integer(), metavar="COUNT", help="Number of layers to show. Default: as many as fit."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit, as without a terminal.")] = False,
) -> None:
    """Show what every layer of a run is doing now, worst first, refreshed every second while it runs.

    [dim]equipoise watch runs/a --layers '*attn*' --sort norm --top 10[/dim]
    """
    from equipoise.monitor.diagnose.compare import Latest
    from equipoise.monitor.runs.snapshot import SnapshotReader
    from equipoise.monitor.runs.terminal import console, runs_in, show
    from equipoise.monitor.store.run import Run

    found = runs_in(run)
    if len(found) > 1:
        _print_runs(run)
        say(f"equipoise watch {found[0]} shows one of them; equipoise runs has other columns, orders and filters")
        return
    with Run.open(found[0]) as opened:
        show(SnapshotReader(opened, layers=layers, sort=sort, predict=Latest(opened)), console(), top=top, once=once)
