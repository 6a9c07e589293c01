"""What commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer

from equipoise._terminal import visible


def print_rich(what: Any) -> None:
    """Print what rich can draw."""
    from equipoise._terminal import console

    console().print(what)


def print_json(data: Any) -> None:
    """Print JSON."""
    typer.echo(json.dumps(data, indent=2))


def say(text: str, *, err: bool = False) -> None:
    """Print a line, in which names may be anything."""
    typer.echo(visible(text), err=err)


def size(path: Path) -> str:
    """A file and how large it is."""
    return f"{path} ({path.stat().st_size / 1e6:.1f} MB)"
