"""Print a plan, a comparison or a transfer in the terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise.finding import Finding
from equipoise.planner.planning import Plan, TensorPlan
from equipoise.planner.suggestions.suggestion import Suggestion
from equipoise.planner.transfer import Transfer

MOST_KINDS = 16
"""Kinds of tensors that are shown of a plan of fine-tuning."""

BARS = "▁▂▃▄▅▆▇█"
STYLE = {"error": "bold red", "warning": "yellow", "info": "cyan"}
SIGN = {"error": "✗", "warning": "!", "info": "i"}
NAMES = {
    "sgdm": "SGDM",
    "rmsprop": "RMSProp",
    "adam": "Adam",
    "adamw": "AdamW",
    "adam_l2": "Adam + L2",
    "adam_nested": "nested AdamW",
    "signsgdm": "SignSGDM",
    "lion": "Lion",
    "muon": "Muon",
    "ngd": "normalised GD",
}


def sparkline(values: Sequence[float] | np.ndarray, width: int = 20, *, zero: bool = True) -> str:
    """A row of small bars; from zero, or else from the smallest value.

    >>> sparkline([0, 1, 2, 3], width=4)
    '▁▃▆█'
    """
    x = np.asarray(values, dtype=np.float64)
    picked = x[np.linspace(0, len(x) - 1, min(width, len(x))).round().astype(int)]
    low, high = (0.0 if zero else float(picked.min())), float(picked.max())
    if high <= low:
        return BARS[0] * len(picked)
    scaled = (picked - low) / (high - low) * (len(BARS) - 1)
    return "".join(BARS[int(v)] for v in scaled.round())


def render(plan: Plan, *, width: int = 80) -> RenderableType:
    """The whole plan; a narrow terminal gets no curves of tensors."""
    tensors = _distances if plan.setting.finetune else _tensors
    parts: list[RenderableType] = [_title(plan), _run(plan), tensors(plan, curves=width >= 78)]
    if plan.equivalents:
        parts.append(_equivalents(plan))
    parts.append(render_findings(plan.findings) if plan.findings else _nothing_odd())
    parts += [Text(a if a.startswith("treated as") else f"assumed: {a}", style="dim") for a in plan.setting.assumptions]
    return Group(*parts)


def _title(plan: Plan) -> Text:
    s = plan.setting
    g = s.groups[s.main_group]
    text = Text(NAMES[g.dynamics.optimizer], style="bold")
    first = "momentum" if g.dynamics.optimizer in ("sgdm", "signsgdm", "muon") else None
    betas = f"{first} {g.dynamics.betas[0]:g}" if first else f"betas {g.dynamics.betas[0]:g}, {g.dynamics.betas[1]:g}"
    if g.dynamics.optimizer in ("rmsprop", "ngd"):
        betas = f"alpha {g.dynamics.betas[1]:g}" if g.dynamics.optimizer == "rmsprop" else ""
    words = [f"lr {g.lr:g}", f"weight decay {g.weight_decay:g}", betas, f"{s.steps:,} step{'s' * (s.steps > 1)}"]
    words.append("fine-tuning" if s.finetune else "")
    text.append("  " + " · ".join(w for w in words if w), style="default")
    if len(s.groups) > 1:
        text.append(f"  (the largest of {len(s.groups)} groups)", style="dim")
    return text


def _run(plan: Plan) -> RenderableType:
    s, m = plan.setting, plan.memory
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column()
    lr = s.lr(s.main_group)
    grid.add_row("learning rate", sparkline(lr), f"{lr[0]:.3g} → {lr.max():.3g} → {lr[-1]:.3g}")
    grid.add_row("", "", s.schedule_words)
    main = plan.main
    if main.forecast is not None:
        eff = main.forecast.effective_lr
        grid.add_row("effective rate", sparkline(eff), f"{eff[0]:.3g} → {eff.max():.3g} → {eff[-1]:.3g}")
    if s.finetune and (far := plan.main_travel) is not None and far.start:
        words = f"{percent(far.expected)} of ‖w₀‖ by a random walk, {percent(far.farthest)} if gradients never change"
        grid.add_row("distance from the start", sparkline(far.walk), words)
        grid.add_row("removed by decay", percent(far.taken), "of the initial weights")
    if m is None:
        return Padding(grid, (1, 0))
    tenths = m.parts(10)
    tenths_text = " ".join(f"{100 * p:.0f}" for p in tenths)
    grid.add_row("memory of each tenth", sparkline(np.repeat(tenths, 2)), f"{tenths_text} %")
    if s.finetune:
        return Padding(grid, (1, 0))
    grid.add_row("timescale", _steps(plan.timescale_steps), _other_units(plan))
    grid.add_row("initialisation left", f"{m.init_share:.3%}", "")
    grid.add_row("batches remembered", f"{m.effective_steps:,.0f}", f"of {s.steps:,}")
    return Padding(grid, (1, 0))


def _steps(x: float) -> str:
    return f"{x:,.0f} steps" if math.isfinite(x) else "unlimited"


def _other_units(plan: Plan) -> str:
    s, time = plan.setting, plan.timescale_steps
    if not math.isfinite(time):
        return ""
    words = [f"{time / s.steps:.2g}× the run"]
    if s.steps_per_epoch is not None:
        words.append(f"{time / s.steps_per_epoch:.3g} epochs")
    if s.batch_size is not None and s.tokens_per_sample is not None:
        words.append(f"{time * s.batch_size * s.tokens_per_sample:.3g} tokens")
    return " · ".join(words)


def _tensors(plan: Plan, *, curves: bool) -> RenderableType:
    rotating = [t for t in plan.tensors if t.tensor.rotates and t.forecast is not None]
    others = [t for t in plan.tensors if not t.tensor.rotates and t.forecast is not None]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("tensor", min_width=10, max_width=28, overflow="fold")
    for name in ("", "over the run", "start → end", "equilibrium", "reached at"):
        if curves or name != "over the run":
            table.add_column(name, no_wrap=True)

    def add(row: tuple[str, ...]) -> None:
        table.add_row(*(cell for i, cell in enumerate(row) if curves or i != 2))

    most = 8
    for t in sorted(rotating, key=lambda t: -t.tensor.size * t.tensor.count)[:most]:
        for row in _rotating_rows(t, plan.setting.steps):
            add(row)
    for t in others[:most]:
        add(_update_row(t))
    hidden = max(0, len(rotating) - most) + max(0, len(others) - most)
    note = Text(f"and {hidden} smaller kinds of tensors (all of them with --json)", style="dim")
    return Padding(Group(table, note) if hidden else table, (0, 0, 1, 0))


def _distances(plan: Plan, *, curves: bool) -> RenderableType:
    """How far every kind of tensor goes from its start."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, collapse_padding=True)
    table.add_column("tensor", min_width=10, max_width=40, overflow="fold")
    for name in ("shape", "initial RMS", "distance", "random walk", "at most"):
        if curves or name != "distance":
            table.add_column(name, no_wrap=True)
    pairs = [(t, far) for t, far in zip(plan.tensors, plan.travels, strict=True) if far is not None]
    pairs.sort(key=lambda pair: (not pair[0].tensor.rotates, -pair[0].tensor.size * pair[0].tensor.count))
    for t, far in pairs[:MOST_KINDS]:
        ends = [percent(far.expected), percent(far.farthest)]
        if t.tensor.from_zero:
            ends = [f"RMS {far.walk[-1]:.3g}", f"RMS {far.steady:.3g}"]
        row = [_name(t), _shape(t), f"{far.start:.3g}", sparkline(far.walk, 12), *ends]
        table.add_row(*(cell for i, cell in enumerate(row) if curves or i != 3))
    hidden = len(pairs) - MOST_KINDS
    note = Text(f"and {hidden} smaller kinds of tensors (all of them with --json)", style="dim")
    return Padding(Group(table, note) if hidden > 0 else table, (0, 0, 1, 0))


def _equivalents(plan: Plan) -> RenderableType:
    """What other optimizers would be set to."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False, show_edge=False, collapse_padding=True)
    for name in ("same memory and norms with", "lr", "weight decay", "momentum", "rotation"):
        table.add_column(name, no_wrap=True)
    for e in plan.equivalents:
        betas = f"{e.betas[0]:g}" if e.optimizer in ("muon", "sgdm") else f"{e.betas[0]:g}, {e.betas[1]:g}"
        known = e.lr is not None and e.weight_decay is not None
        pair = (f"{e.lr:g}", f"{e.weight_decay:g}") if known else ("by gradients", f"{e.product:.3g} / lr")
        if not e.product:
            pair = (pair[0], "0")
        table.add_row(NAMES[e.optimizer], *pair, betas, f"{e.rotation:.3g}" if e.rotation else "")
    return Padding(table, (0, 0, 1, 0))


def percent(share: float) -> str:
    """A share in per cent, with two digits.

    >>> percent(0.0245), percent(1.234), percent(1.2e-4)
    ('2.5 %', '123 %', '0.012 %')
    """
    return f"{100 * share:,.0f} %" if share >= 0.995 else f"{100 * share:.2g} %"


def _rotating_rows(t: TensorPlan, steps: int) -> Iterator[tuple[str, ...]]:
    assert t.forecast is not None
    assert t.equilibrium is not None
    f, e, root = t.forecast, t.equilibrium, math.sqrt(t.tensor.size)
    start = 0.0 if t.tensor.from_zero else f.init_norm / root
    if not math.isfinite(e.norm):
        settles, when = "none: grows", ""
    else:
        settles = f"{e.norm / root:.4g}"
        when = "never" if t.steps_to_reach is None else f"{t.steps_to_reach:,.0f}"
        if t.steps_to_reach is not None and t.steps_to_reach > steps:
            when = f"[yellow]~{when}[/yellow]"
    yield _name(t), "RMS", sparkline(f.norm, 12), f"{start:.3g} → {f.norm[-1] / root:.3g}", settles, when
    if t.tensor.from_zero:  # from there a step has no angle
        yield f"[dim]{_shape(t)}[/dim]", "", "", "", "", ""
        return
    ends = f"{f.rotation[0]:.3g} → {f.rotation[-1]:.3g}"
    yield f"[dim]{_shape(t)}[/dim]", "rotation", sparkline(f.rotation, 12), ends, f"{e.rotation:.4g}", ""


def _update_row(t: TensorPlan) -> tuple[str, ...]:
    assert t.forecast is not None
    update = t.forecast.update / math.sqrt(t.tensor.size)
    return _name(t), "update", sparkline(update, 12), f"{update[0]:.3g} → {update[-1]:.3g}", "", ""


def _name(t: TensorPlan) -> str:
    name = escape(t.tensor.name)
    return name if t.tensor.count == 1 else f"{name} (×{t.tensor.count})"


def _shape(t: TensorPlan) -> str:
    return "×".join(str(n) for n in t.tensor.shape)


def _nothing_odd() -> Text:
    return Text("✓ no problems found", style="green")


def render_findings(findings: Sequence[Finding]) -> RenderableType:
    """Findings, the whole of each."""
    parts: list[RenderableType] = []
    for f in findings:
        head = finding_line(f)
        body = Text()
        body.append(f"expected: {f.expected}\n", style="dim")
        body.append(f"→ {f.advice}\n")
        if f.paid:
            body.append(f"paid: {f.paid}\n")
        body.append(f.source, style="dim italic")
        parts += [head, Padding(body, (0, 0, 0, 2))]
    return Group(*parts)


def finding_line(f: Finding) -> Text:
    """A finding in one line: its code, place and evidence."""
    head = Text(f"{SIGN[f.severity]} {f.code}", style=STYLE[f.severity])
    head.append(f"  {f.where}: {f.evidence}", style="default")
    return head


def render_comparison(plans: Sequence[tuple[str, Plan]]) -> RenderableType:
    """Several plans side by side: what is set differently, and what follows from it."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("")
    for name, _ in plans:
        table.add_column(name)
    rows = [_summary(p) for _, p in plans]
    for key in dict.fromkeys(k for row in rows for k in row):
        cells = [row.get(key, "") for row in rows]
        style = "bold" if len(set(cells)) > 1 else "dim"
        table.add_row(key, *(Text(c, style=style) for c in cells))
    return table


def _summary(plan: Plan) -> dict[str, str]:
    s, m, main = plan.setting, plan.memory, plan.main
    g = s.groups[s.main_group]
    lr = s.lr(s.main_group)
    rows: dict[str, Any] = {
        "optimizer": NAMES[g.dynamics.optimizer],
        "lr": f"{g.lr:g}",
        "lr over the run": sparkline(lr, 16),
        "schedule": s.schedule_words,
        "weight decay": f"{g.weight_decay:g}",
        "betas": f"{g.dynamics.betas[0]:g}, {g.dynamics.betas[1]:g}",
        "decay": g.dynamics.decay,
        "steps": f"{s.steps:,}",
        "timescale": _steps(plan.timescale_steps),
    }
    if m is not None:
        rows["initialisation left"] = f"{m.init_share:.3%}"
        rows["batches remembered"] = f"{m.effective_steps:,.0f}"
        rows["memory of each tenth"] = sparkline(np.repeat(m.parts(10), 2), 20)
    if s.finetune and (far := plan.main_travel) is not None and far.start:
        rows["distance from the start"] = f"{percent(far.expected)}, at most {percent(far.farthest)}"
    elif main.forecast is not None and main.equilibrium is not None:
        root = math.sqrt(main.tensor.size)
        rows["RMS of the largest tensor, end"] = f"{main.forecast.norm[-1] / root:.4g}"
        rows["equilibrium RMS"] = f"{main.equilibrium.norm / root:.4g}"
        rows["rotation/step, end"] = f"{main.forecast.rotation[-1]:.4g}"
        rows["equilibrium rotation"] = f"{main.equilibrium.rotation:.4g}"
        rows["reached at"] = "never" if main.steps_to_reach is None else f"{main.steps_to_reach:,.0f}"
    rows["findings"] = ", ".join(f.code for f in plan.findings) or "none"
    return rows


def render_transfer(moved: Transfer) -> RenderableType:
    """What each rule says, side by side."""
    change = ", ".join(f"{k} ×{v:g}" for k, v in vars(moved.change).items() if v != 1) or "no change"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{change}", title_justify="left")
    for name in ("rule", "lr", "weight decay", "betas", "eps"):
        table.add_column(name, no_wrap=True)
    old = moved.old
    table.add_row(
        "as tuned", f"{old.lr:.4g}", f"{old.weight_decay:.4g}", _pair(old.betas), f"{old.eps:.3g}", style="dim"
    )
    for m in moved.moved:
        table.add_row(m.rule.code, f"{m.to.lr:.4g}", f"{m.to.weight_decay:.4g}", _pair(m.to.betas), f"{m.to.eps:.3g}")
    parts: list[RenderableType] = [table]
    for m in moved.moved:
        line = Text(f"{m.rule.code}: ", style="bold")
        line.append(f"{m.rule.says}. Keeps {m.keeps}. ", style="default")
        line.append(f"{m.rule.source}; fitted on: {m.rule.fitted}.", style="dim")
        parts.append(line)
    if not moved.moved:
        parts.append(Text("no rule applies to this change"))
    parts += [Text(f"note: {n}", style="dim") for n in moved.notes]
    return Group(*parts)


def render_suggestion(found: Suggestion) -> RenderableType:
    """Each number with its reason, what such settings cost, and the code."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=True)
    table.add_column("set", no_wrap=True)
    table.add_column("to", ratio=2)
    table.add_column("because", ratio=5)
    for r in found.reasons:
        table.add_row(r.name, escape(r.value), Text(r.why).append(f"  {r.source}" if r.source else "", style="dim"))
    parts: list[RenderableType] = [table]
    if found.regret:
        parts.append(Text("on the workloads: " + found.regret))
    parts += [Text(f"note: {n}", style="dim") for n in found.setting.assumptions]
    if found.groups:
        parts += [Text(), Text(found.code)]
    return Group(*parts, Text(), Text(found.command))


def _pair(betas: tuple[float, float]) -> str:
    return f"{betas[0]:.4g}, {betas[1]:.5g}"
