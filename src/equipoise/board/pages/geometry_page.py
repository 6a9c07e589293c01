"""The geometry of a step: weight, decay and update as a triangle, from the numbers of a run.

After [norm-note]: the update is nearly at a right angle to the weights, so it makes them longer, and decay makes them
shorter; where the two meet, the norm stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from bokeh.models import BasicTicker, BasicTickFormatter, ColumnDataSource, MultiLine, Range1d
from numpy.typing import NDArray

from equipoise.board.page import Section
from equipoise.board.pages.findings_view import as_json
from equipoise.board.pages.layers import LABEL, lines_figure
from equipoise.board.style import figure
from equipoise.monitor.runs.short_names import natural, short_names
from equipoise.monitor.store.layout import Column
from equipoise.monitor.store.run import Run

NEEDS = ("norm", "change", "radial_change", "update", "decay")
NOTHING: dict[str, Any] = {"name": [], "steps": []}
"""What `triangles` gives where there are none."""

MOST_LAYERS = 60
MOST_STEPS = 48


def triangles(run: Run, steps: int = MOST_STEPS) -> dict[str, Any]:
    """Measured steps of matrices, spread over the run on a logarithmic scale, each exactly as it was measured.

    With Δ the change of w, r = ⟨Δ,w⟩/‖w‖ and the norm n after the step, ‖w‖ = √(n² − ‖Δ‖² + r²) − r.

    Args:
        run: the run.
        steps: how many.
    """
    there = set(run.columns)
    names = [t.name for t in run.tensors.values() if len(t.shape) > 1 and Column("change", t.name) in there]
    names = sorted(names, key=natural)[:MOST_LAYERS]
    if not names:
        return dict(NOTHING)
    columns = [Column(q, n) for q in NEEDS for n in names]
    # Which steps there are, at the price of one column.
    measured = run.table(columns[:1], kind="main", points=4000)
    wanted = _spread(measured.last[measured.count[:, 0] > 0], steps)
    rows, at = [], []
    for step in wanted:
        table = run.table(columns, kind="main", start=int(step), stop=int(step) + 1)
        if len(table):
            rows.append(table.values[0].astype(np.float64).reshape(len(NEEDS), len(names)))
            at.append(int(step))
    if not rows:
        return dict(NOTHING)
    after, change, along, update, decay = np.stack(rows, 2)  # each names × steps
    with np.errstate(all="ignore"):
        across = np.sqrt(np.maximum(change**2 - along**2, 0.0))
        before = np.sqrt(np.maximum(after**2 - across**2, 0.0)) - along
        tilt = np.abs(along + decay) / update  # 0 where updates stand across the weights
    parts = {"before": before, "after": after, "along": along, "across": across, "update": update, "decay": decay}
    usual = names[int(np.nanargmin(np.nanmedian(np.nan_to_num(tilt, nan=9.0), 1)))]
    return {"name": names, "steps": at, "usual": usual, "values": {k: v.astype(np.float32) for k, v in parts.items()}}


def _spread(steps: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    if len(steps) <= most:
        return steps
    places = np.geomspace(1, len(steps), most).round().astype(int) - 1
    return steps[np.unique(places)]


def geometry_sources(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The numbers of the page; it begins with the layer whose updates are most at a right angle to its weights."""
    notes = {"steps": found["steps"], "chosen": found.get("usual")}
    names = {"name": found["name"], "short": list(short_names(found["name"], LABEL).values())}
    return {"notes": {"json": [as_json(notes)]}, "triangles": names | found.get("values", {})}


def geometry_section(found: Mapping[str, dict[str, Any]]) -> Section:
    """The section of a page.

    Args:
        found: what `triangles` gave, by the names of runs.
    """
    sources: dict[str, dict[str, Any]] = {}
    for i, mine in enumerate(found.values()):
        sources |= {f"{name}{i or ''}": columns for name, columns in geometry_sources(mine).items()}
    return Section(
        "geometry", "geometry", "Geometry of a step", sources, geometry_figures, context={"names": list(found)}
    )


def geometry_figures(key: str) -> dict[str, Any]:
    """The figures of the page, empty."""
    whole = _drawing(f"{key}-whole", 250, match_aspect=True)
    tip = _drawing(f"{key}-tip", 460)
    budget = lines_figure(key, "budget", "share of ‖w‖² per step", None, height=250, x_axis_type="log", legend=True)
    return {"whole": whole, "tip": tip, "budget": budget}


def _drawing(name: str, height: int, **options: Any) -> Any:
    x_label = "along the weights, from their tip" if name.endswith("tip") else "along the weights"
    fig = figure(
        name, x_label=x_label, y_label="across", height=height, x_range=Range1d(start=0, end=1),
        y_range=Range1d(start=0, end=1), tools="pan,wheel_zoom,reset,save", active_drag="pan", **options,
    )  # fmt: skip
    fig.xaxis.formatter = BasicTickFormatter(power_limit_low=-5)
    if name.endswith("tip"):
        fig.xaxis.ticker = BasicTicker(desired_num_ticks=3)  # numbers such as −1.000e−8 are long
    circle = ColumnDataSource({"xs": [], "ys": [], "color": []}, name=f"{name}-circle")
    fig.add_glyph(circle, MultiLine(xs="xs", ys="ys", line_color="color", line_width=1.2, line_dash=[5, 4]))
    arrows = ColumnDataSource({"xs": [], "ys": [], "color": [], "name": []}, name=f"{name}-arrows")
    fig.add_glyph(arrows, MultiLine(xs="xs", ys="ys", line_color="color", line_width=2.6, line_cap="round"))
    heads = ColumnDataSource({"x": [], "y": [], "angle": [], "color": []}, name=f"{name}-heads")
    fig.scatter("x", "y", marker="triangle", size=10, angle="angle", color="color", source=heads)
    labels = ColumnDataSource(
        {"x": [], "y": [], "text": [], "color": [], "dx": [], "dy": [], "align": []}, name=f"{name}-labels"
    )
    fig.text(
        "x", "y", text="text", text_color="color", x_offset="dx", y_offset="dy", text_align="align", source=labels,
        text_font_size="13px", text_baseline="middle",
    )  # fmt: skip
    return fig
