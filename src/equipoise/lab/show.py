"""Experiments in the terminal: bars while they run, tables when they are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from equipoise.lab.conduct import Report
from equipoise.lab.config import Trial
from equipoise.lab.experiments import Done, Outcome, catalogue
from equipoise.lab.results import cell

COLOURS = {"agrees": "green", "differs": "red", "undecided": "yellow"}


@contextmanager
def bars() -> Iterator[Report]:
    """Two bars on the error stream, of all trials and of the present one; gives what tells them."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed:.0f}/{task.total:.0f}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True) as progress:
        every = progress.add_task("trials", total=1)
        one = progress.add_task("", total=1)

        def report(number: int, count: int, trial: Trial, step: int) -> None:
            name = f"{trial.model} {trial.data} {trial.optimizer} seed {trial.seed}"
            progress.update(every, total=count, completed=number - 1 + step / trial.steps)
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
        table = Table("claim", "source", "expected", "measured", "seeds", "verdict")
        for c in outcome.claims:
            sign = {"about": "", "above": "> ", "below": "< "}[c.relation]
            room = f" ± {c.room:g}" if c.relation == "about" else ""
            verdict = f"[{COLOURS[c.verdict]}]{c.verdict}[/]"
            expected = f"{sign}{c.expected:g}{room}"
            table.add_row(c.quantity, c.source, expected, str(c.measured), str(c.measured.count), verdict)
        parts.append(table)
    ends = [d.result.status for d in done]
    seconds = sum(d.result.seconds for d in done)
    counts = ", ".join(f"{ends.count(s)} {s}" for s in ("finished", "diverged", "failed") if s in ends)
    parts.append(f"{len(done)} trials: {counts}; {seconds:.0f} s of training")
    return Group(*parts)
