"""The style of all pages: colours that colour-blind readers can tell apart, and uniform figures.

Light and dark are the business of static/board.css: Bokeh's canvas takes the colours of axes, grids and backgrounds
from CSS variables, so that a page changes its theme without being drawn by Python again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from bokeh.models import BasicTickFormatter, HoverTool, NumeralTickFormatter, Range1d
from bokeh.plotting import figure as bokeh_figure

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31", "#7f7f7f")
"""Okabe and Ito's colours (2008), without the yellow and black that vanish on white or on dark, and two more."""

SERIES_DARK = ("#4aa8e8", "#f28e4b", "#2fc79a", "#e39cc5", "#f0b93a", "#8fd3f7", "#c5a768", "#b0b0b0")
"""The same hues, lighter, for dark pages."""

LOW, HIGH = "#0b5fa5", "#c2410c"
"""Ends of the diverging scale: too slow is blue, too fast is orange."""

MIDDLE, MIDDLE_DARK = "#f4f4f2", "#23272e"
LOW_DARK, HIGH_DARK = "#5db4ff", "#ff9a4d"

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

TOOLS = "xpan,xbox_zoom,xwheel_zoom,reset,save"


def css_variables() -> str:
    """The colours of series and of the heatmap as CSS variables, for light and dark pages."""
    light = [*((f"s{i}", c) for i, c in enumerate(SERIES)), ("low", LOW), ("mid", MIDDLE), ("high", HIGH)]
    dark = [
        *((f"s{i}", c) for i, c in enumerate(SERIES_DARK)),
        ("low", LOW_DARK),
        ("mid", MIDDLE_DARK),
        ("high", HIGH_DARK),
    ]
    blocks = ((":root", light), (':root[data-theme="dark"]', dark))
    return "".join(f"{where}{{{''.join(f'--{k}:{v};' for k, v in colors)}}}" for where, colors in blocks)


def figure(
    name: str,
    *,
    x_label: str = "step",
    y_label: str = "",
    height: int = 240,
    x_range: Range1d | None = None,
    y_type: Literal["linear", "log"] = "linear",
    tooltips: Sequence[tuple[str, str]] | None = None,
    **options: Any,
) -> Any:
    """A figure as all pages have them; colours come from the page.

    Args:
        name: by which the page's scripts find it.
        x_label: what the x axis shows.
        y_label: what the y axis shows.
        height: in pixels; the width is that of its place.
        x_range: shared between figures, so that they zoom together.
        y_type: "linear" or "log".
        tooltips: what to say of what the mouse is over.
        **options: anything else that Bokeh's figure takes.
    """
    given = {"tools": TOOLS, "active_drag": "xbox_zoom", "toolbar_location": "above", "toolbar_inner": True} | options
    fig: Any = bokeh_figure(
        name=name, height=height, sizing_mode="stretch_width", y_axis_type=y_type, output_backend="canvas",
        **({} if x_range is None else {"x_range": x_range}), **given,
    )  # fmt: skip
    fig.toolbar.logo = None
    fig.toolbar.autohide = True
    fig.min_border_right = 20
    fig.xaxis.axis_label, fig.yaxis.axis_label = x_label, y_label
    for axis in (*fig.xaxis, *fig.yaxis):
        axis.axis_label_text_font = axis.major_label_text_font = FONT
        axis.axis_label_text_font_style, axis.axis_label_text_font_size = "normal", "12px"
        axis.major_label_text_font_size = "11px"
        axis.axis_line_alpha, axis.minor_tick_line_alpha = 0.0, 0.0
        axis.major_tick_in, axis.major_tick_out = 0, 4
        axis.axis_label_standoff = 6
    if y_type == "linear":
        fig.yaxis.formatter = BasicTickFormatter(power_limit_low=-5)
    fig.xaxis.formatter = NumeralTickFormatter(format="0,0.[00]")
    fig.outline_line_alpha = 0.0
    fig.xgrid.grid_line_alpha = 0.5
    if tooltips is not None:
        printf: dict[str, Any] = {f"${axis}": "printf" for axis in ("x", "y", "snap_x", "snap_y")}
        fig.add_tools(
            HoverTool(tooltips=list(tooltips), formatters=printf, line_policy="nearest", point_policy="follow_mouse")
        )
    return fig
