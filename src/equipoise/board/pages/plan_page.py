"""The page of a plan: change a setting, and see what the run would do."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from bokeh.models import Range1d

from equipoise.board.knobs import SCHEDULES, Knobs, moved, texts
from equipoise.board.page import Section
from equipoise.board.pages.findings_view import as_json
from equipoise.board.pages.layers import lines_figure
from equipoise.board.words import number
from equipoise.planner import Plan, Setting, plan_setting
from equipoise.planner.show import NAMES, percent
from equipoise.theory import OPTIMIZERS

POINTS = 160
GRID_POINTS = 100
SECONDS = 6.0
"""What the grid of a file may cost."""

FELT = "‖update‖/‖w‖"
CURVES = {
    "lr": ("Learning rate", "Set by the schedule.", "learning rate"),
    "effective": ("Effective learning rate", f"{FELT}: the size of a step relative to the weights.", FELT),
    "rms": ("Size of the weights", "Root mean square of the largest matrix.", "RMS"),
    "rotation": ("Rotation", "Angle by which a step rotates the weights.", "radians per step"),
    "share": (
        "Contribution of each batch",
        "To the final weights; 1 if all batches count the same.",
        "times an equal share",
    ),
    "left": ("Initialisation left", "Share of the initial weights in the current ones.", "share"),
}
"""What is drawn: title, words, and the y axis."""

DISTANCE = ("Distance from the start", "‖w − w₀‖/‖w₀‖ of the largest matrix, by a random walk.", "share of ‖w₀‖")
"""What a plan of fine-tuning has in place of what is left of the initialisation."""


def curves_of(plan: Plan, points: int = POINTS) -> dict[str, np.ndarray]:
    """The curves of a plan at about even distances, and at the first steps."""
    steps = plan.setting.steps
    even = np.linspace(0, steps - 1, points - 10).round().astype(int)
    picks = np.unique(np.append(even, np.geomspace(1, steps, 10).astype(int) - 1))
    picks = np.append(picks, np.full(points - len(picks), steps - 1))  # of equal lengths: the last point again
    nothing = np.full(points, np.nan)
    found = {"step": picks + 1.0, "lr": plan.setting.lr(plan.setting.main_group)[picks]}
    found |= dict.fromkeys(("effective", "rms", "rotation", "share", "left"), nothing)
    main = plan.main
    if main.forecast is not None:
        f = main.forecast
        found |= {"effective": f.effective_lr[picks], "rms": f.norm[picks] / math.sqrt(main.tensor.size)}
        found["rotation"] = f.rotation[picks]
    if plan.memory is not None:
        m = plan.memory
        found |= {"share": m.share[picks] * steps, "left": np.cumprod(1 - m.lost)[picks]}
    if plan.setting.finetune:
        far = plan.main_travel
        found["left"] = nothing if far is None or not far.start else far.walk[picks] / far.start
    return found


def summary(plan: Plan) -> list[list[str]]:
    """The numbers that two settings are compared by."""
    m, main = plan.memory, plan.main
    if plan.setting.finetune:
        far = plan.main_travel
        rows = [["RMS, start", number(main.tensor.rms)]]
        if far is not None and far.start:
            rows.append(["distance by a random walk", f"{percent(far.expected)} of ‖w₀‖"])
            rows.append(["if gradients never change", f"{percent(far.farthest)} of ‖w₀‖"])
            rows.append(["removed by decay", f"{percent(far.taken)} of ‖w₀‖"])
        return rows
    time = plan.timescale_steps
    rows = [["timescale, steps", number(time) if math.isfinite(time) else "unlimited"]]
    if m is not None:
        rows.append(["initialisation left", f"{100 * m.init_share:.3g} %"])
        rows.append(["batches remembered", number(m.effective_steps)])
    if main.forecast is not None and main.equilibrium is not None:
        e, root = main.equilibrium, math.sqrt(main.tensor.size)
        rows.append(["RMS, start", number(main.tensor.rms)])
        rows.append(["RMS, end", number(main.forecast.norm[-1] / root)])
        settles = math.isfinite(e.norm)
        rows.append(["RMS, equilibrium", number(e.norm / root) if settles else "grows"])
        rows.append(["rotation, equilibrium", number(e.rotation) if settles else "falls"])
        when = main.steps_to_reach
        rows.append(["equilibrium at step", "never" if when is None else number(when)])
    return rows


def title_of(setting: Setting) -> str:
    """A setting in a line."""
    g = setting.groups[setting.main_group]
    rates = f"lr {number(g.lr)}, wd {number(g.weight_decay)}"
    kind = ", fine-tuning" if setting.finetune else ""
    return f"{NAMES[g.dynamics.optimizer]}, {rates}, {setting.steps:,} steps, {setting.schedule_words}{kind}"


def plan_in_words(plan: Plan) -> dict[str, Any]:
    """What the page says in words of one setting."""
    g = plan.setting.groups[plan.setting.main_group]
    return {
        "title": title_of(plan.setting),
        "summary": summary(plan),
        "findings": [f.to_dict() for f in plan.findings],
        "assumptions": list(plan.setting.assumptions),
        "texts": texts(plan.setting),
        "lr": g.lr,
        "weight_decay": g.weight_decay,
    }


def rows_data(plans: Sequence[Plan], points: int = POINTS) -> dict[str, Any]:
    """The curves of several plans, a line each."""
    found = [curves_of(p, points) for p in plans]
    return {"name": [str(i) for i in range(len(plans))]} | {
        q: np.array([f[q] for f in found], np.float32) for q in ("step", *CURVES)
    }


def live_sources(knobs: Knobs, pinned: Knobs | None = None) -> dict[str, dict[str, Any]]:
    """The numbers of a live page: the setting, and the one that is pinned beside it."""
    plans = [plan_setting(k.setting()) for k in (knobs, pinned) if k is not None]
    notes = {"live": True, "rows": [plan_in_words(p) for p in plans], "knobs": asdict(knobs), "spec": spec()}
    notes["pinned"] = None if pinned is None else asdict(pinned)
    finetune = notes["finetune"] = knobs.start == "trained"
    notes["left"] = DISTANCE if finetune else CURVES["left"]
    curves = rows_data(plans)
    for row, plan in enumerate(plans):
        if bool(plan.setting.finetune) is not finetune:  # the figure shows one of two quantities
            curves["left"][row] = np.nan
    return {"notes": {"json": [as_json(notes)]}, "curves": curves}


def grid_sources(plan: Plan) -> dict[str, dict[str, Any]]:
    """The numbers of a file: the plan for a grid of lr and weight decay round its own."""
    g = plan.setting.groups[plan.setting.main_group]
    start = time.process_time()  # a busy machine makes no coarser file
    plan_setting(plan.setting).findings  # noqa: B018  its cost is what is wanted
    side = _side(time.process_time() - start)
    lrs, decays = _round(g.lr, side), _round(g.weight_decay, side)
    plans = [
        plan if (lr, wd) == (g.lr, g.weight_decay) else plan_setting(moved(plan.setting, lr, wd))
        for lr in lrs
        for wd in decays
    ]
    kept = {
        "optimizer": NAMES[g.dynamics.optimizer],
        "betas": f"{g.dynamics.betas[0]:g}, {g.dynamics.betas[1]:g}",
        "steps": f"{plan.setting.steps:,}",
    }
    kept["schedule"] = plan.setting.schedule_words
    if plan.setting.source is not None:
        kept["warmup"] = f"{plan.setting.warmup:,}"
    notes = {
        "live": False,
        "rows": [plan_in_words(p) for p in plans],
        "knobs": {"lr": g.lr, "weight_decay": g.weight_decay},
        "grid": {"lr": lrs, "weight_decay": decays},
        "kept": kept,
        "finetune": bool(plan.setting.finetune),
        "pinned": None,
    }
    return {"notes": {"json": [as_json(notes)]}, "curves": rows_data(plans, GRID_POINTS)}


def _side(seconds: float) -> int:
    """An odd number of values of each knob, as many as there is time for."""
    most = int(math.sqrt(SECONDS / max(seconds, 1e-3)))
    return max(1, min(13, most - (most + 1) % 2))


def _round(middle: float, side: int) -> list[float]:
    """Values round one, three decades in all; the middle exactly as it was."""
    if middle == 0:
        return [0.0]
    factors = np.logspace(-1.5, 1.5, 13)[6 - side // 2 : 7 + side // 2] if side > 1 else np.ones(1)
    return [middle if abs(f - 1) < 1e-9 else float(f"{middle * f:.3g}") for f in factors]


BEGINNINGS = [["random", "random"], ["trained", "trained before"]]


def spec() -> list[dict[str, Any]]:
    """What the knobs of a live page are."""
    start = Knobs()
    log = [("lr", "learning rate", 1e-6, 10.0), ("weight_decay", "weight decay", 1e-5, 10.0)]
    curves = [[n, n.replace("_", " ")] for n in SCHEDULES]
    found: list[dict[str, Any]] = [
        {"name": "optimizer", "label": "optimizer", "kind": "choice", "values": [[n, NAMES[n]] for n in OPTIMIZERS]},
        {"name": "start", "label": "weights at the start", "kind": "choice", "values": BEGINNINGS},
        *({"name": n, "label": label, "kind": "log", "min": a, "max": b} for n, label, a, b in log),
        {"name": "beta1", "label": "β1, momentum", "kind": "beta", "min": 0.0, "max": 0.999},
        {"name": "beta2", "label": "β2", "kind": "beta", "min": 0.0, "max": 0.9999},
        {"name": "steps", "label": "steps", "kind": "count", "min": 100, "max": 1_000_000},
        {"name": "schedule", "label": "schedule", "kind": "choice", "values": curves},
        {"name": "warmup", "label": "warmup", "kind": "count", "min": 0, "max": 100_000},
        {"name": "final", "label": "last lr, share of the peak", "kind": "linear", "min": 0.0, "max": 1.0},
        {"name": "width", "label": "width", "kind": "count", "min": 16, "max": 65_536},
    ]  # fmt: skip
    return [s | {"start": getattr(start, s["name"])} for s in found]


def plan_section(sources: dict[str, dict[str, Any]], *, finetune: bool = False) -> Section:
    """The section of a page.

    Args:
        sources: what `live_sources` or `grid_sources` gave.
        finetune: whether the plan is of fine-tuning.
    """
    curves = CURVES | ({"left": DISTANCE} if finetune else {})
    control: dict[str, Any] = {"json": [""]}  # what a live page asks for
    return Section("plan", "plan", "Plan", {**sources, "control": control}, plan_figures, context={"curves": curves})


def plan_figures(key: str) -> dict[str, Any]:
    """The figures of the page, empty."""
    shared = Range1d(start=0, end=1, name=f"{key}-x")
    return {
        name: lines_figure(key, name, y, shared, height=220, band=name == "share") for name, (_, _, y) in CURVES.items()
    }
