"""Experiments in the terminal: bars while they run, tables when they are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from equipoise.lab.config import Trial
from equipoise.lab.experiments import Done, Outcome, catalogue
from equipoise.lab.ledger import Entry, counts
from equipoise.lab.result import Report
from equipoise.lab.results import cell, claim_rows, ends

COLOURS = {
    "agrees": "green", "holds": "green", "holds partly": "cyan", "differs": "red", "does not hold here": "red",
    "undecided": "yellow", "not run": "dim",
}  # fmt: skip


@contextmanager
def bars() -> Iterator[Report]:
    """Two bars on the error stream, of all trials and of the last that told; gives what tells them."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        every = progress.add_task("trials", total=1)
        one = progress.add_task("", total=1)
        parts: dict[int, float] = {}

        def report(number: int, count: int, trial: Trial, step: int) -> None:
            name = f"{trial.model} {trial.data} {trial.optimizer} seed {trial.seed}"
            parts[number] = step / trial.steps
            progress.update(every, total=count, completed=sum(parts.values()))
            progress.update(one, description=name, total=trial.steps, completed=step)

        yield report


def render_catalogue() -> Table:
    """Every experiment with its source and what it is about."""
    table = Table("experiment", "source", "about")
    for name, experiment in catalogue().items():
        table.add_row(name, experiment.source, experiment.about)
    return table


def render_outcome(outcome: Outcome, done: Sequence[Done]) -> Group:
    """The table, the claims with their verdicts, and how the trials ended."""
    parts: list[Any] = []
    if outcome.rows:
        table = Table(*outcome.rows[0])
        for row in outcome.rows:
            table.add_row(*(cell(value) for value in row.values()))
        parts.append(table)
    if outcome.claims:
        rows = claim_rows(outcome.claims)
        table = Table(*rows[0])
        for row in rows:
            table.add_row(*(row | {"verdict": _coloured(row["verdict"])}).values())
        parts.append(table)
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
                told = f"  {row['claim']}: {row['measured']}; said {said} ({row['source']}); {row['seeds']} seeds: "
                table.add_row("", f"{escape(told)}{colour}")
    return Group(table, "", counts(entries))


def _coloured(verdict: str) -> str:
    return f"[{COLOURS[verdict]}]{verdict}[/]"
