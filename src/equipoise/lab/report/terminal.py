"""Experiments in the terminal: bars while they run, tables when they are done."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, final

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.markup import escape
from rich.measure import Measurement
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from equipoise.lab.experiments import Done, Outcome, catalogue
from equipoise.lab.report.claims import cell, claim_rows, ends
from equipoise.lab.report.cost import cost, hours
from equipoise.lab.report.ledger import Entry, counts
from equipoise.lab.train.result import Report
from equipoise.lab.train.trial import Trial

COLOURS = {
    "agrees": "green", "holds": "green", "holds partly": "cyan", "differs": "red", "does not hold here": "red",
    "undecided": "yellow", "not tested": "magenta", "not run": "dim",
}  # fmt: skip


SELDOM = 30.0
"""Seconds between lines where there is no terminal for bars."""


@contextmanager
def bars() -> Iterator[Report]:
    """One bar on the error stream, of all trials that are to be trained, with an estimate of what is left.

    It names the trial that told last. Where it is no terminal, a line now and then says the same.
    """
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        bar = progress.add_task("trials", total=1)
        parts: dict[int, float] = {}

        def report(number: int, count: int, trial: Trial, step: int) -> None:
            name = f"{trial.model} {trial.data} {trial.optimizer} seed {trial.seed}"
            parts[number] = step / trial.steps
            progress.update(bar, description=name, total=count, completed=sum(parts.values()))

        yield report


def _lines(console: Console) -> Report:
    parts: dict[int, float] = {}
    began = time.monotonic()
    last = [began]

    def report(number: int, count: int, trial: Trial, step: int) -> None:
        parts[number] = step / trial.steps
        if time.monotonic() > last[0] + SELDOM:
            last[0] = time.monotonic()
            done = sum(parts.values())
            left = (last[0] - began) * (count / done - 1) / 60 if done else float("nan")
            told = f", about {left:.0f} min left" if done else ""
            console.print(f"{done:.1f} of {count} trials{told}", highlight=False)

    return report


@final
class _Fitting:
    """Rows as a table or, where there is no room for its columns, one after the other."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self._rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(*map(escape, self._rows[0]))
        for row in self._rows:
            table.add_row(*row.values())
        if Measurement.get(console, options.update_width(10_000), table).minimum <= options.max_width:
            yield table
            return
        for row in self._rows:
            yield ", ".join(f"{escape(name)} [bold]{value}[/]" for name, value in row.items() if value)
            yield ""


def render_catalogue(preset: str = "medium") -> Table:
    """Every experiment with its source, what it is about, and what is left of a preset."""
    table = Table("experiment", "source", "about", "trials", "stored", "hours left", title=f"preset {preset}")
    for name, experiment in catalogue().items():
        left = cost(experiment(), preset)
        counted = (str(left.trials), str(left.stored), hours(left.seconds))
        table.add_row(name, escape(experiment.source), escape(experiment.about), *counted)
    return table


def render_outcome(outcome: Outcome, done: Sequence[Done]) -> Group:
    """The table, the claims with their verdicts, and how the trials ended."""
    parts: list[Any] = []
    if outcome.rows:
        parts.append(_Fitting([{name: escape(cell(value)) for name, value in row.items()} for row in outcome.rows]))
    if outcome.claims:
        escaped = [{name: escape(text) for name, text in row.items()} for row in claim_rows(outcome.claims)]
        parts.append(_Fitting([row | {"verdict": _coloured(row["verdict"])} for row in escaped]))
    parts.append(ends([d.result for d in done]))
    return Group(*parts)


def render_ledger(entries: Sequence[Entry], *, brief: bool) -> Group:
    """Statements with their verdicts by experiment and, unless brief, what was measured of each part."""
    table = Table.grid(Column(no_wrap=True), Column(), padding=(0, 2))
    for name in dict.fromkeys(entry.experiment for entry in entries):
        table.add_row(f"[bold]{name}[/]", "")
        for entry in (e for e in entries if e.experiment == name):
            table.add_row(_coloured(entry.verdict), f"[bold]{escape(entry.says)}[/]")
            for row in () if brief else claim_rows(entry.claims):
                said, colour = row["source's"], _coloured(row["verdict"])
                told = f"  {row['claim']}: {row['measured']}, {row['interval']}, effect {row['effect']}; said {said} "
                told += f"({row['source']}); {row['seeds']} seeds: "
                why = row.get("why not tested", "")
                table.add_row("", f"{escape(told)}{colour}{escape(f' ({why})' if why else '')}")
    return Group(table, "", counts(entries))


def _coloured(verdict: str) -> str:
    return f"[{COLOURS[verdict]}]{verdict}[/]"
