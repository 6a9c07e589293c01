"""Watch training: measure every layer, store a run, read it, and find out what is wrong.

Comes in: a model, its optimizer and a loop (`watch`), or the directory of a run (`Run`). Goes out: series, forecasts
laid over them, findings. The way of a measured step, in the order to read: `attach` (the hooks), `measure` (one step,
one row), `forward` (its forward pass), `store` (the file), `runs` (lists, settings, the terminal), `diagnose`
(comparison and findings). `sinks` send numbers elsewhere, `frameworks` are callbacks for trainers.
"""

from typing import TYPE_CHECKING, Any

from equipoise.monitor.forward.positions import by_position
from equipoise.monitor.store.follow import Follower
from equipoise.monitor.store.layout import Column, Layout, Quantity, TensorInfo, make_layout
from equipoise.monitor.store.run import Run
from equipoise.monitor.store.schema import RunError
from equipoise.monitor.store.tables import Rows, Series, Table
from equipoise.monitor.store.writer import RunWriter

if TYPE_CHECKING:
    from equipoise.monitor.attach.watcher import Watch, watch

__all__ = [
    "Column",
    "Follower",
    "Layout",
    "Quantity",
    "Rows",
    "Run",
    "RunError",
    "RunWriter",
    "Series",
    "Table",
    "TensorInfo",
    "Watch",
    "by_position",
    "make_layout",
    "watch",
]


if not TYPE_CHECKING:  # which would take any name for one that is there

    def __getattr__(name: str) -> Any:
        """Import `watch` on first use: reading a run needs no torch."""
        if name not in ("Watch", "watch"):
            raise AttributeError(f"module 'equipoise.monitor' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module("equipoise.monitor.attach.watcher"), name)
