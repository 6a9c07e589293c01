"""Command `equipoise audit`: does the optimizer of a script do what it says?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from equipoise.cli._out import print_json, print_rich, size
from equipoise.cli._read import integer


def audit(
    script: Annotated[Path, typer.Argument(help="A Python script that trains.")],
    args: Annotated[list[str] | None, typer.Argument(help="The script's own arguments, after --.")] = None,
    steps: Annotated[
        int, typer.Option(parser=integer(), metavar="COUNT", help="Steps to record, after the script's first two.")
    ] = 20,
    fail_on: Annotated[
        str | None, typer.Option(help="Exit with code 1 if a finding is as severe: error, warning or info.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write a file: HTML if it ends in .html, else JSON.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a script for some steps, and compare what its optimizer does with what it says.

    [dim]equipoise audit train.py --fail-on warning -- --batch-size 8[/dim]
    """
    import contextlib
    import sys

    from equipoise import _check
    from equipoise.auditing import audit_script
    from equipoise.finding import SEVERITIES

    if fail_on is not None:
        _check.choice("fail_on", fail_on, SEVERITIES)
    with contextlib.redirect_stdout(sys.stderr) if json else contextlib.nullcontext():
        seen = audit_script(script, args or [], steps=steps)
    if json:
        print_json(seen.to_dict())
    else:
        print_rich(seen)
    if output is not None:
        typer.echo(size(seen.save(output)), err=json)
    if fail_on is not None and seen.worse_than(fail_on):
        raise typer.Exit(1)
