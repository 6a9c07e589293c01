"""The `equipoise` command: parse, call, print. Everything heavy is imported by the command that needs it.

Comes in: words of the command line. Goes out: text, or JSON with `--json`. Read `plan` (plan and transfer), `suggest`,
`tune`, `runs` (report, board, runs, tag, export, watch), `audit`, `lab`; `_read` parses flags, `_out` prints.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from equipoise._extras import MissingExtraError
from equipoise.cli import audit, lab, plan, runs, suggest, tune
from equipoise.cli._out import say

app = typer.Typer(
    help="See, plan and control what learning rate and weight decay really do to every layer.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from equipoise._version import __version__

        typer.echo(f"equipoise {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for _command in (
    plan.plan,
    suggest.suggest,
    tune.tune,
    plan.transfer,
    runs.report,
    runs.board,
    runs.runs,
    runs.tag,
    runs.export,
    runs.watch,
    audit.audit,
):
    app.command()(_command)
app.add_typer(lab.app, name="lab")


def main() -> None:
    """Run the command; what is wrong with the input, or not installed, is one line and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # where letters such as η cannot be printed, the rest still is
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        code = app(standalone_mode=False)
    except (ValueError, MemoryError, MissingExtraError) as error:
        say(f"equipoise: {error or 'not enough memory'}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None:
            raise
        say(f"equipoise: {error.filename}: cannot be read or written ({error.strerror})", err=True)
        sys.exit(2)
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except Exception as error:
        # Wrong flags: click's own errors know their message and where to look for help.
        if not hasattr(error, "format_message"):
            raise
        message = error.format_message().strip()  # type: ignore[attr-defined]
        if hasattr(error.__cause__, "errors"):  # of pydantic, whose words leave out the value
            message += f", got {error.__cause__.errors()[0]['input']!r}"  # type: ignore[union-attr]
        if message:  # none where no command was given, and the help has been shown
            context = getattr(error, "ctx", None)
            say(f"equipoise: {message} (see {getattr(context, 'command_path', 'equipoise')} --help)", err=True)
        sys.exit(getattr(error, "exit_code", 2))
    sys.exit(code if isinstance(code, int) else 0)
