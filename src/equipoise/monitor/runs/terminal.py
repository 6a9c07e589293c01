"""A run in the terminal: printed once, as a live table, or as a list of runs. Needs no torch."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from equipoise import _terminal
from equipoise.monitor.forward.quantities import LABELS, LEAST
from equipoise.monitor.runs.final_loss import Best, Final, loss_text
from equipoise.monitor.runs.lines import RunRow
from equipoise.monitor.runs.select_runs import COLUMNS as COLUMN_WORDS
from equipoise.monitor.runs.select_runs import ago, is_number, value_text
from equipoise.monitor.runs.short_names import short_names
from equipoise.monitor.runs.snapshot import Layer, Snapshot, SnapshotReader
from equipoise.monitor.store.schema import FILE, RunError
from equipoise.planner.show import finding_line, render_findings, sparkline

STATUS = {
    "running": "green",
    "finished": "cyan",
    "crashed": "bold red",
    "interrupted": "yellow",
    "unclosed": "bold red",
    "empty": "dim",
}
COLUMNS = {
    "norm": ("norm", 9),
    "rotation": ("rotation", 10),
    "ratio": ("÷ median", 10),
    "predicted": ("÷ predicted", 13),
    "relative_update": ("‖U‖/‖w‖", 10),
    "total_decay": ("λ_e", 9),
    "c_err": ("C_err", 8),
    "angle": ("angle", 9),
    "history": ("rotation so far", 17),
}
"""What is shown of a layer, in this order: what it is called, and its width with a gap."""

DISPENSABLE = ("angle", "relative_update", "total_decay", "c_err", "norm")
"""What is left out first where the terminal is narrow."""

NAME = 30
"""Width that the names of layers have at least, if they need it."""

EVERY = 1.0
"""Seconds between looks."""

TOP = 20
"""Layers that are shown where nobody says how many."""

LINES = 4
"""Findings that the live table has room for."""


def runs_in(path: Path) -> list[Path]:
    """The runs of a directory: itself, or those below it, the newest first.

    Raises:
        RunError: there is none.
    """
    if (path / FILE).exists():
        return [path]
    if not path.is_dir():
        raise RunError(f"{path}: there is no such run; give the directory of a run, or of several")
    found = [file.parent for file in path.rglob(FILE)]
    if not found:
        raise RunError(f"{path}: there is no run in it; eq.watch(model, optimizer, {str(path / 'a')!r}) makes one")
    return sorted(found, key=lambda p: -(p / FILE).stat().st_mtime)


def render(snapshot: Snapshot, *, width: int = 120, live: bool = False) -> RenderableType:
    """All of it; a narrow terminal gets fewer columns, and live, findings are a line each."""
    parts: list[RenderableType] = [_title(snapshot), Padding(_numbers(snapshot), (1, 0))]
    if snapshot.layers:
        parts.append(_table(snapshot, width))
    elif snapshot.step is None:
        parts.append(Text("nothing has been measured yet", style="dim"))
    else:
        parts.append(Text("no layer matches this name, or none has been measured yet", style="dim"))
    if snapshot.findings and live:
        parts += [finding_line(f) for f in snapshot.findings[-LINES:]]
    elif snapshot.findings:
        parts.append(render_findings(snapshot.findings))
    elif snapshot.step is not None and not snapshot.coverage.enough and snapshot.status != "running":
        parts.append(Text(snapshot.coverage.verdict, style="yellow"))
    return Group(*parts)


def _title(snapshot: Snapshot) -> Text:
    text = Text(snapshot.path, style="bold")
    text.append(f"  {snapshot.status}", style=STATUS[snapshot.status])
    if snapshot.step is not None and snapshot.age is not None:
        text.append(f"  step {snapshot.step:,}", style="default")
        text.append(f"  {ago(snapshot.age)}", style="dim")
    if snapshot.step is not None:
        text.append(f"  {snapshot.coverage}", style="dim")
    return text


def _numbers(snapshot: Snapshot) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    n = snapshot.numbers
    if snapshot.final is not None or snapshot.best is not None:
        grid.add_row("loss", _loss(snapshot.final, snapshot.best))
    said = snapshot.final.name if snapshot.final is not None else ""
    others = [f"{name} {loss_text(value)}" for name, value in snapshot.logged.items() if name != said]
    if others:
        grid.add_row("logged last", " · ".join(others[:4]))
    if not math.isnan(n.get("step_time", math.nan)):
        grid.add_row("time", f"{_seconds(n['step_time'])} per step{_watching(n.get('watch_share', math.nan))}")
    if "balance_layers" in n:
        balances = f"layers {_number(n['balance_layers'])} · neurons {_number(n['balance_neurons'])}"
        grid.add_row("variation of rotation", balances)
    if snapshot.groups:
        groups = snapshot.groups
        lr, peak = _range([g.lr for g in groups]), _range([g.peak for g in groups])
        peak = "" if peak == lr else f" (peak {peak})"
        grid.add_row("settings", f"lr {lr}{peak} · weight decay {_range([g.weight_decay for g in groups])}")
        left = _range([g.init_share for g in groups], "{:.3g}")
        steps = _range([g.effective_steps for g in groups], "{:,.3g}")
        what = "initialisation" if snapshot.taken_as is None else "initial weights"
        grid.add_row("memory", f"{steps} of {snapshot.coverage.steps:,} steps · {what} left {left}")
    if snapshot.taken_as is not None:
        grid.add_row("treated as", snapshot.taken_as)
    if snapshot.forward:
        short = short_names([place for _, place in snapshot.forward.values()])
        parts = [
            f"{'lowest ' if name in LEAST else ''}{LABELS[name]} {_number(value)} ({short[place] or 'model'})"
            for name, (value, place) in snapshot.forward.items()
        ]
        grid.add_row("forward pass", " · ".join(parts))
    return grid


def _loss(final: Final | None, best: Best | None) -> str:
    """The final loss, and what each of its numbers is."""
    words = []
    if final is not None:
        words.append(f"{final}, last {loss_text(final.last)} at step {final.step:,}")
    if best is not None:
        words.append(f"best {best.name} {loss_text(best.value)} at step {best.step:,}")
    return " · ".join(words)


def _table(snapshot: Snapshot, width: int) -> RenderableType:
    short = short_names(snapshot.names)
    longest = max(len(short[layer.name]) for layer in snapshot.layers)
    known = any(layer.predicted is not None for layer in snapshot.layers)
    shown = [key for key in COLUMNS if known or key != "predicted"]
    for key in DISPENSABLE:
        if min(longest, NAME) + sum(COLUMNS[k][1] for k in shown) > width:
            shown.remove(key)
    space = max(12, width - sum(COLUMNS[key][1] for key in shown))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("layer", no_wrap=longest <= space, overflow="fold")
    for key in shown:
        table.add_column(COLUMNS[key][0], justify="left" if key == "history" else "right", no_wrap=True)
    short = short_names(snapshot.names, space)
    for layer in snapshot.layers:
        table.add_row(Text(short[layer.name]), *(_cell(layer, key) for key in shown))
    words = [f"and {snapshot.hidden} more (--top)"] if snapshot.hidden else []
    words += [f"{snapshot.others} other tensors (--layers '*')"] if snapshot.others else []
    note = [Text(" · ".join(words), style="dim")] if words else []
    return Padding(Group(table, *note), (0, 0, 1, 0))


def _cell(layer: Layer, key: str) -> RenderableType:
    if key == "ratio":
        return _ratio(layer.ratio)
    if key == "predicted":
        return Text("") if layer.predicted is None else _ratio(layer.predicted)
    if key == "history":
        finite = [v for v in layer.history if math.isfinite(v)]
        return sparkline(finite, 15) if finite else ""
    return _number(layer.values[key])


def _ratio(ratio: float) -> Text:
    if math.isnan(ratio):
        return Text("")
    far = abs(math.log(ratio)) if ratio > 0 else math.inf
    return Text(f"{ratio:.2f}", style="bold red" if far > math.log(3) else "yellow" if far > math.log(1.5) else "")


def _number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.3g}"


def _range(values: Sequence[float], form: str = "{:.4g}") -> str:
    """The value of all groups, or their extremes."""
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def _watching(share: float) -> str:
    """What watching took, and why where it is more than usual.

    >>> _watching(0.004), _watching(0.04)
    (' · watching 0.4%', ' · watching 4.0%, to cover a run of short steps')
    """
    if math.isnan(share):
        return ""
    return f" · watching {share:.1%}" + (", to cover a run of short steps" if share > 0.01 else "")


def _seconds(x: float) -> str:
    return f"{1000 * x:.3g} ms" if x < 1 else f"{x:.3g} s"


NAME, FOLDS = 24, ("name", "tags", "findings")
"""Letters of a run's name that a list has room for in a line, and what goes on in the next one."""

SPARED = ("curve", "changed", "optimizer", "measured", "wd", "lr", "tags", "findings", "steps")
"""What a narrow terminal's list leaves out, the first of these first."""


def console() -> Console:
    """Where to print; a pipe, which has no width, gets a wide one."""
    made = _terminal.console()
    return made if made.is_terminal or "COLUMNS" in os.environ else _terminal.console(width=120)


def render_list(lines: Sequence[RunRow], columns: Sequence[str], width: int | None = None) -> RenderableType:
    """Several runs, a line each; one that cannot be read says why.

    Args:
        lines: the runs.
        columns: what to show.
        width: leave out what there is no room for in so many letters. Default: fold it.
    """
    now = time.time()
    heads = {name: _head(name) for name in columns}
    if width is not None:
        columns = _fitting(lines, heads, width, now)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), collapse_padding=True)
    for name in columns:
        folds = width is None or name in FOLDS
        least = min(NAME, _longest(lines, name, now)) if name == "name" else None
        side = "right" if is_number(lines, name) else "left"
        table.add_column(heads[name], justify=side, overflow="fold", no_wrap=not folds, min_width=least)
    for line in lines:
        table.add_row(*(_list_cell(line, name, now) for name in columns))
    broken = [Text(f"{line.values['name']}: {line.error}", style="dim") for line in lines if line.error]
    return Group(table, *broken)


def _head(name: str) -> Text:
    head = Text(name)
    if name in ("loss", "validation"):
        words = COLUMN_WORDS[name].replace(" the", "\nthe").replace(" valid", "\nvalid").replace(" loss", "\nloss")
        head.append("\n" + words, style="dim")
    return head


def _longest(lines: Sequence[RunRow], name: str, now: float) -> int:
    return max((_list_cell(line, name, now).cell_len for line in lines), default=0)


def _fitting(lines: Sequence[RunRow], heads: dict[str, Text], width: int, now: float) -> list[str]:
    """The columns that there is room for, all of their letters; the last of `SPARED` are left out last."""
    taken = {}
    for name, head in heads.items():
        longest = _longest(lines, name, now)
        taken[name] = 2 + max(min(longest, NAME) if name in FOLDS else longest, *map(len, head.plain.split("\n")))
    for name in SPARED:
        if sum(taken.values()) <= width:
            break
        taken.pop(name, None)
    return list(taken)


def _list_cell(line: RunRow, column: str, now: float) -> Text:
    if column == "curve":
        return Text(sparkline(line.curve, 8, zero=False) if line.curve else "")
    text = value_text(line, column, now)
    if column == "findings":  # the worst one; the page and --json have all
        first, *others = text.split(", ")
        text = f"{first} +{len(others)}" if others else first
    style = "bold" if column == "name" else STATUS.get(text, "bold red") if column == "status" else ""
    return Text(text, style=style)


def show(look: SnapshotReader, console: Console, *, top: int | None = None, once: bool = False) -> None:
    """Print a look at a run; again every second while it runs, if the console is a terminal and `once` is not set.

    Args:
        look: at the run.
        console: where to.
        top: how many layers; default: as many as there is room for.
        once: print once and leave.
    """
    now = look.now(TOP if top is None else top)
    if once or not console.is_terminal or now.status != "running":
        console.print(render(now, width=console.width))
        return
    try:
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            while now.status == "running":
                live.update(render(now, width=console.width, live=True), refresh=True)
                time.sleep(EVERY)
                # The lines around the table: title, numbers, heads, note, findings.
                space = max(3, console.height - 13 - min(LINES, len(now.findings)))
                now = look.now(space if top is None else top)
            live.update(render(now, width=console.width), refresh=True)
    except KeyboardInterrupt:
        return
