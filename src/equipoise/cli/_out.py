"""What commands print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer


def print_rich(what: Any) -> None:
    """Print what rich can draw."""
    from rich.console import Console

    Console().print(what)


def print_json(data: Any) -> None:
    """Print JSON."""
    typer.echo(json.dumps(data, indent=2))


def size(path: Path) -> str:
    """A file and how large it is."""
    return f"{path} ({path.stat().st_size / 1e6:.1f} MB)"
