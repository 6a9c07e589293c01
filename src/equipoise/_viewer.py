"""The registered viewer of plans and runs, so that `planner` and `monitor` need not import the board."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

_viewer: Callable[[Any], None] | None = None


def use(viewer: Callable[[Any], None]) -> None:
    """Show things with this function from now on."""
    global _viewer
    _viewer = viewer


def show(thing: Any) -> None:
    """Show a plan or a run."""
    if _viewer is None:
        raise RuntimeError("no viewer is known: import equipoise first")
    _viewer(thing)
