"""Line figures with one line per layer, group or run, its forecast dashed, its spread as a band."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, Legend, LegendItem, MultiLine, Range1d
from bokeh.models.glyphs import Patches

from equipoise.board.gather import Curves, RunData
from equipoise.board.style import figure
from equipoise.monitor.runs.short_names import short_names

LABEL = 28
"""Letters of a layer's name beside a plot; its whole name is in the tooltip."""

TOOLTIPS = (("", "@name"), ("at", "$snap_x{%.6g}"), ("value", "$snap_y{%.4g}"))


def lines_figure(
    key: str,
    name: str,
    y_label: str,
    x_range: Range1d | None,
    *,
    dashed: bool = False,
    band: bool = False,
    legend: bool = False,
    **options: Any,
) -> Any:
    """An empty figure with sources `key-name-lines`, `-dashed` and `-band`, which static/curves.js fills.

    Args:
        key: of the section.
        name: of the figure.
        y_label: what is shown.
        x_range: shared with the others.
        dashed: whether there are forecasts.
        band: whether there are spreads.
        legend: whether to name the lines in the figure.
        **options: as `style.figure` takes them.
    """
    given = {"y_range": Range1d(start=0, end=1), "tooltips": TOOLTIPS} | options
    fig = figure(f"{key}-{name}", y_label=y_label, x_range=x_range or Range1d(start=1, end=10), **given)
    nothing = {"xs": [], "ys": [], "name": [], "color": []}

    def source(part: str) -> ColumnDataSource:
        return ColumnDataSource(dict(nothing), name=f"{key}-{name}-{part}")

    # Glyphs by hand: figure.multi_line makes three of each, for selections that there are none of here.
    if band:
        fig.add_glyph(source("band"), Patches(xs="xs", ys="ys", fill_color="color", fill_alpha=0.16, line_alpha=0.0))
    lines = fig.add_glyph(source("lines"), MultiLine(xs="xs", ys="ys", line_color="color", line_width=1.8))
    if dashed:
        fig.add_glyph(
            source("dashed"),
            MultiLine(xs="xs", ys="ys", line_color="color", line_width=1.6, line_dash=[6, 4], line_alpha=0.9),
        )
    if legend:
        fig.add_layout(
            Legend(
                items=[LegendItem(label={"field": "name"}, renderers=[lines])], background_fill_alpha=0.0,
                border_line_alpha=0.0, label_text_font_size="11px", spacing=0,
            )
        )  # fmt: skip
    fig.hover.renderers = [lines]
    return fig


def layers_data(data: RunData) -> dict[str, Any]:
    """Every layer's numbers, a line each."""
    columns: dict[str, Any] = {
        "name": [t.name for t in data.tensors],
        "short": list(short_names((t.name for t in data.tensors), LABEL).values()),
        "role": [t.role for t in data.tensors],
        "shape": ["×".join(str(n) for n in t.shape) or "1" for t in data.tensors],
    }
    if len(data.layers):
        columns |= {q: _float32(v) for q, v in data.layers.values.items()}
    return columns


def axis_data(data: RunData, curves: Curves) -> dict[str, Any]:
    """What a plot's x axis may be."""
    columns = {"step": curves.step.astype(np.float64), "time": np.asarray(curves.time, np.float64)}
    tokens = data.tokens(columns["step"]) if len(curves) else None
    return columns if tokens is None else columns | {"tokens": tokens}


def _float32(values: Any) -> np.ndarray:
    return np.ascontiguousarray(values, dtype=np.float32)
