"""`equipoise lab`: experiments and sweeps."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli._out import print_rich

app = typer.Typer(help="Experiments that test the theory, and one's own.", no_args_is_help=True)


@app.command("list")
def lab_list() -> None:
    """The experiments that there are."""
    from equipoise.lab.show import render_catalogue

    print_rich(render_catalogue())


@app.command("run")
def lab_run(
    name: Annotated[str, typer.Argument(help="An experiment (see equipoise lab list), or a Python file with one.")],
    preset: Annotated[
        str, typer.Option(help="smoke (seconds), small (under half an hour on two cores) or full.")
    ] = "small",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of its trials. Default: lab/NAME-PRESET.")
    ] = None,
    figure: Annotated[Path | None, typer.Option(help="Draw it into this file: PDF, PNG or SVG.")] = None,
    page: Annotated[
        Path | None, typer.Option(help="Write NAME.svg and the marked part of NAME.md into this folder.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run an experiment, or go on with it where it was stopped; print its table and its claims.

    [dim]equipoise lab run random-walk --preset smoke --figure walk.pdf[/dim]
    """
    from equipoise.lab.conduct import OUTCOME, conduct, write_figure
    from equipoise.lab.experiments import find
    from equipoise.lab.show import bars, render_outcome

    experiment = find(name)
    folder = output or Path("lab") / f"{experiment.name}-{preset}"
    with bars() as report:
        outcome, done = conduct(experiment, folder, preset=preset, report=report)
    if figure is not None:
        write_figure(experiment, outcome, figure)
    if page is not None:
        from equipoise.lab.page import write_page

        write_page(experiment, outcome, done, page, preset=preset, command=name)
    typer.echo((folder / OUTCOME).read_text(), nl=False) if json else print_rich(render_outcome(outcome, done))
    for one in done:
        if one.result.status == "failed":
            typer.echo(f"equipoise: trial {one.trial.key} failed: {one.result.error.splitlines()[-1]}", err=True)
