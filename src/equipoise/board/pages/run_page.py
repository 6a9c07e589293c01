"""The page of a run: its state, its findings, and what every layer does."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from bokeh.models import ColumnDataSource, MultiLine, Range1d

from equipoise.board.gather import OF_GROUPS, OF_LAYERS, OF_SPECTRA, Curves, RunData, main_group
from equipoise.board.page import Section
from equipoise.board.pages.findings_view import MOST, as_json, finding_dict, tensor_of
from equipoise.board.pages.forward_view import forward_sources
from equipoise.board.pages.heatmap import heatmap
from equipoise.board.pages.layers import axis_data, layers_data, lines_figure
from equipoise.board.pages.memory_view import memory_data
from equipoise.board.words import count, duration, number, tally
from equipoise.monitor.forward.quantities import LABELS
from equipoise.monitor.measure.quantities import distances
from equipoise.monitor.runs.final_loss import LABEL, loss_text
from equipoise.monitor.runs.recorded import taken_as
from equipoise.planner.show import percent

AGAINST = {"forecast": "the forecast", "layers": "the median layer"}
"""What the heatmap can hold rotation against."""


def run_section(data: RunData, key: str = "run", label: str | None = None) -> Section:
    """A run as a section of a page.

    Args:
        data: what was read of the run.
        key: of the section.
        label: what its tab says.
    """
    return Section("run", key, label or data.name, run_sources(data), run_figures)


def run_figures(key: str) -> dict[str, Any]:
    """The figures of the page, empty."""
    shared = Range1d(start=0, end=1, name=f"{key}-x")
    common: dict[str, Any] = {"x_range": shared}
    return {
        "loss": _loss_figure(key, shared),
        "schedule": lines_figure(key, "schedule", "learning rate", legend=True, **common),
        "heat": heatmap(key, shared),
        "norm": lines_figure(key, "norm", "‖w‖", dashed=True, band=True, **common),
        "rotation": lines_figure(key, "rotation", "radians per step", dashed=True, band=True, **common),
        "effective": lines_figure(key, "effective", "", **common),
        "radial": lines_figure(key, "radial", "", **common),
        "spectrum": lines_figure(key, "spectrum", "", **common),
        "forward": lines_figure(key, "forward", "", band=True, **common),
        "memory": lines_figure(key, "memory", "times an equal share", band=True, **common),
    }


def run_sources(data: RunData) -> dict[str, dict[str, Any]]:
    """The numbers of the page; the server sends them again as they change."""
    logged = axis_data(data, data.logged)
    for name, values in data.logged.values.items():
        logged |= {f"v:{name}": np.asarray(values, np.float64)}
        low, high = (np.asarray(part[name], np.float64) for part in (data.logged.low, data.logged.high))
        if not np.array_equal(low, high, equal_nan=True):
            logged |= {f"l:{name}": low, f"h:{name}": high}
    spectra = {q: np.ascontiguousarray(v, np.float32) for q, v in data.spectra.values.items()}
    shares = memory_data(data)
    if (tokens := data.tokens(np.asarray(shares["step"]))) is not None:
        shares["tokens"] = tokens
    shares["time"] = np.interp(shares["step"], *_clock(data))
    passes = Curves(data.forward.steps, data.forward.times)
    return {
        "notes": {"json": [as_json(notes(data))]},
        "layers": layers_data(data),
        "axis": axis_data(data, data.layers),
        "settings": axis_data(data, data.schedule)
        | {name: np.asarray(v, np.float64) for name, v in data.schedule.values.items()},
        "logged": logged,
        "spectra": spectra or {"none": []},
        "spectra-axis": axis_data(data, data.spectra),
        "remembered": shares,
        **forward_sources(data, axis_data(data, passes)),
    }


def notes(data: RunData) -> dict[str, Any]:
    """All that the page says in words."""
    return {
        "name": data.name,
        "status": data.status,
        "sentence": sentence(data),
        "tally": tally(data.findings) if data.findings else "",
        "verdict": said(data),
        "clear": data.reviewed and data.coverage.enough,
        "facts": facts(data),
        "findings": [finding_dict(f, data) for f in data.findings[:MOST]],
        "chosen": chosen(data),
        "forecast": data.held_to_forecast,
        "finetune": data.finetune,
        "against": "layers" if any(f.code.startswith("layers-") for f in data.findings) else None,
        "labels": OF_LAYERS | OF_SPECTRA | OF_GROUPS | AGAINST | LABELS,
    }


ENDS = {"crashed": "Crashed", "interrupted": "Interrupted", "unclosed": "Killed, or ended without closing,"}
"""How a run ended that did not finish."""


def sentence(data: RunData) -> str:
    """The state of the run in one sentence."""
    took = duration(data.seconds)
    level = f", {data.final}" if data.final is not None else ""
    if not data.last:
        return {
            "running": "Training has started, but no step has been measured yet.",
            "empty": "Finished without a single measured step: was optimizer.step() called?",
        }.get(data.status, f"{ENDS.get(data.status, 'Crashed')} before a step was measured.")
    if data.status == "running":
        ago = max(0.0, time.time() - data.since - data.seconds)
        seen = f", last update {duration(ago)} ago" if ago > 5 else ""
        return f"Running: step {data.last:,} after {took}{level}{seen}."
    if data.status in ENDS:
        return f"{ENDS[data.status]} at step {data.last:,}, after {took}{level}."
    return f"Finished after {count(data.coverage.steps, 'step')} in {took}{level}."


def said(data: RunData) -> str:
    """What was found, and if nothing was, what that means."""
    if data.findings:
        return tally(data.findings)
    return data.coverage.verdict if data.reviewed else "Not reviewed yet."


def facts(data: RunData) -> list[list[str]]:
    """What is good to know beside the plots: settings, sizes, memory."""
    rows = [["optimizer", str(data.meta["optimizer"])]] if "optimizer" in data.meta else []
    for name, said in (("lr", "peak lr"), ("weight_decay", "peak weight decay")):
        groups = [top for key, top in data.peaks.items() if key.partition("/")[0] == name]
        tops = dict.fromkeys(number(top) for top in groups)  # of groups, each value once
        if tops:
            rows.append([said, ", ".join(tops)])
    rows += _over_the_run(data)
    rows.append(["measured", str(data.coverage).replace(" measured", "")])
    rows += loss_facts(data)
    if data.tensors:
        some = f"the {len(data.tensors):,} most off of {data.known:,}" if data.known > len(data.tensors) else ""
        rows.append(["tensors", some or f"{data.known:,}, {_matrices(data):,} of them matrices"])
    tuning = taken_as(data.meta)
    if tuning is not None:
        rows.append(["treated as", tuning])
        rows += _distance(data)
    found = data.remembered
    if found is not None and tuning is not None:
        rows.append(["removed by decay", f"{percent(1 - found.init_share)} of the initial weights"])
    elif found is not None:
        rows.append(["batches remembered", f"{number(found.effective_steps)} of {data.coverage.steps:,}"])
        rows.append(["initialisation left", f"{100 * found.init_share:.3g} %"])
    rows += _from_zero(data)
    known = {"optimizer", "lr", "weight_decay"}
    plain = {k: v for k, v in data.meta.items() if k not in known and isinstance(v, str | int | float | bool)}
    return rows + [[str(k), number(v) if isinstance(v, float) else str(v)] for k, v in list(plain.items())[:8]]


def _over_the_run(data: RunData) -> list[list[str]]:
    """Lr and weight decay of the main group where they change: at the first step, each quarter, and the last."""
    rows, group, curve = [], main_group(data.tensors), data.schedule
    for name, what in (("lr", "lr over the run"), ("weight_decay", "weight decay over the run")):
        values = curve.values.get(f"{name}/{group}")
        if values is not None and np.isfinite(values).all() and np.ptp(values) > 1e-6 * np.abs(values).max():
            quarters = np.interp(np.linspace(curve.step[0], curve.step[-1], 5).round(), curve.step, values)
            rows.append([what, " → ".join(number(float(x)) for x in quarters)])
    return rows


def loss_facts(data: RunData) -> list[list[str]]:
    """How the run ended."""
    rows = []
    if data.final is not None:
        rows.append([f"{data.final.name}, {LABEL}", loss_text(data.final.mean)])
        rows.append([f"{data.final.name}, last", loss_text(data.final.last)])
    if data.best is not None:
        rows.append([f"best {data.best.name}", f"{loss_text(data.best.value)} at step {data.best.step:,}"])
    return rows


def _distance(data: RunData) -> list[list[str]]:
    """How far layers are from where they began, as the median of the matrices."""
    norm, angle = (_last(data, q) for q in ("norm", "angle"))
    start = np.array([t.info.get("init_norm", np.nan) for t in data.tensors], np.float64)
    far = distances(norm, angle, start)[[len(t.shape) > 1 for t in data.tensors]]
    far = far[np.isfinite(far)]
    if not len(far):
        return []
    return [["distance from the start", f"{percent(float(np.median(far)))} of ‖w₀‖, up to {percent(float(far.max()))}"]]


def _from_zero(data: RunData) -> list[list[str]]:
    """How large the matrices that began at 0 have grown."""
    new = [i for i, t in enumerate(data.tensors) if len(t.shape) > 1 and t.info.get("init_norm") == 0]
    sizes = _last(data, "norm")[new] / np.sqrt([float(np.prod(data.tensors[i].shape)) for i in new])
    if not np.isfinite(sizes).any():
        return []
    return [["started at 0", f"{count(len(new), 'tensor')}, now of RMS {number(float(np.nanmedian(sizes)))}"]]


def _last(data: RunData, quantity: str) -> np.ndarray:
    """The last measured value of each tensor."""
    values = data.layers.values.get(quantity)
    if values is None or not values.shape[1]:
        return np.full(len(data.tensors), np.nan)
    return np.asarray(values[:, -1], np.float64)


def chosen(data: RunData) -> list[str]:
    """The layers to look at first: those that findings name, then the one that is most off, then a usual one."""
    names = [n for f in data.findings if (n := tensor_of(f, data)) is not None]
    matrices = [i for i, t in enumerate(data.tensors) if len(t.shape) > 1] or list(range(len(data.tensors)))
    if matrices and len(data.layers):
        ratio = np.abs(np.log2(np.clip(data.ratio[matrices], 1e-6, 1e6)))
        late = ratio[:, ratio.shape[1] // 2 :]
        off = np.array([np.median(r[np.isfinite(r)]) if np.isfinite(r).any() else 0.0 for r in late])
        order = [data.tensors[matrices[i]].name for i in np.argsort(-off, kind="stable")]
        names += [order[0], order[len(order) // 2], order[-1]]
    return list(dict.fromkeys(names))[:3]


def _clock(data: RunData) -> tuple[Any, Any]:
    there = len(data.layers) > 0
    return (data.layers.step, data.layers.time) if there else (np.zeros(1), np.zeros(1))


def _matrices(data: RunData) -> int:
    return sum(len(t.shape) > 1 for t in data.tensors)


def _loss_figure(key: str, shared: Range1d) -> Any:
    fig = lines_figure(key, "loss", "loss", shared, band=True)
    raw = ColumnDataSource({"xs": [], "ys": [], "name": [], "color": []}, name=f"{key}-loss-raw")
    faint = MultiLine(xs="xs", ys="ys", line_color="color", line_width=1, line_alpha=0.3)
    fig.add_glyph(raw, faint).level = "underlay"
    return fig
