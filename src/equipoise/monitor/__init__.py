"""Watch a run: what is measured, where it is stored, and how it is read."""

from equipoise.monitor.follow import Follower
from equipoise.monitor.layout import Column, Layout, Quantity, TensorInfo, make_layout
from equipoise.monitor.run import Run
from equipoise.monitor.schema import RunError
from equipoise.monitor.tables import Rows, Series, Table
from equipoise.monitor.writer import RunWriter

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
    "make_layout",
]
