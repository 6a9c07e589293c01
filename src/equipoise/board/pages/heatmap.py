"""A heatmap of layers × time, which shows which layer is off."""

from __future__ import annotations

from typing import Any

import numpy as np
from bokeh.models import (
    ColorBar,
    ColumnDataSource,
    FixedTicker,
    HBar,
    Image,
    LinearColorMapper,
    Range1d,
)

from equipoise.board.style import FONT, HIGH, LOW, MIDDLE, figure

RANGE = 2.0
"""The scale goes from 2^−RANGE to 2^RANGE."""


def heatmap(key: str, x_range: Range1d | None, name: str = "heat") -> Any:
    """An empty heatmap with sources `key-name-image` and `key-name-marks`, which static/heat.js fills.

    Args:
        key: of the section.
        x_range: shared with the others.
        name: of the figure.
    """
    fig = figure(
        f"{key}-{name}",
        x_range=x_range,
        height=300,
        y_range=Range1d(start=0.5, end=-0.5),
        tools="xpan,box_zoom,xwheel_zoom,reset,save",
        active_drag="box_zoom",
    )
    mapper = LinearColorMapper(palette=[LOW, MIDDLE, HIGH], low=-RANGE, high=RANGE, nan_color="rgba(0,0,0,0)")
    mapper.name = f"{key}-{name}-colors"
    image = ColumnDataSource(
        {"image": [np.zeros((1, 1), np.float32)], "x": [0.0], "y": [0.0], "dw": [0.0], "dh": [0.0]},
        name=f"{key}-{name}-image",
    )
    fig.add_glyph(image, Image(image="image", x="x", y="y", dw="dw", dh="dh", color_mapper=mapper))
    marks = ColumnDataSource({"y": [], "left": [], "right": [], "color": []}, name=f"{key}-{name}-marks")
    frame = HBar(y="y", left="left", right="right", height=0.92, fill_alpha=0, line_color="color", line_width=2)
    fig.add_glyph(marks, frame)
    fig.grid.visible = False
    bar = ColorBar(
        color_mapper=mapper, ticker=FixedTicker(ticks=[-2, -1, 0, 1, 2]), width=10,
        title="", label_standoff=6, padding=8, border_line_alpha=0.0, background_fill_alpha=0.0, bar_line_alpha=0.0,
        major_label_text_font=FONT, major_label_text_font_size="11px", major_tick_line_alpha=0.0,
    )  # fmt: skip
    fig.add_layout(bar, "right")
    return fig
