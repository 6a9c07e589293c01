"""Workloads in the terminal: the progress of each, and a bar during a sweep."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Column, Table

from equipoise.lab.workloads.run import Next, Status, Tell
from equipoise.lab.workloads.sweep import STAGES


def render(found: Sequence[Status]) -> Group:
    """A row for each workload, and what all of them have to come."""
    table = Table(Column("workload", no_wrap=True), "half", "stored", "open", "next", "s/trial")
    for one in found:
        counts = (str(one.stored), str(one.open) if one.open else "", one.stage, f"{one.seconds:.0f}")
        table.add_row(one.workload.name, one.workload.half, *counts)
    left = sum(one.open * one.seconds for one in found)
    total = f"{sum(one.stored for one in found)} trials are stored"
    more = f"what is open takes about {span(left)}, and later stages come after it" if left else "nothing is open"
    return Group(table, f"{total}; {more}.")


def rows(found: Sequence[Status]) -> list[dict[str, object]]:
    """The same for JSON."""
    return [
        {
            "workload": one.workload.name, "half": one.workload.half, "kind": one.workload.kind,
            "optimizer": one.workload.trial.optimizer, "stored": one.stored, "open": one.open, "next": one.stage,
            "seconds": round(one.seconds, 1), "about": one.workload.about,
        }
        for one in found
    ]  # fmt: skip


@contextmanager
def bar() -> Iterator[Tell]:
    """One bar on the error stream, in seconds of training; where it is no terminal, a line when a trial begins."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("workloads", total=1, left="")

        def tell(one: Next, step: int, done: float, left: float) -> None:
            name = f"{one.workload.name}, {STAGES[one.stage]}, {step}/{one.trial.steps}"
            progress.update(task, description=name, total=done + left, completed=done, left=f"about {span(left)} left")

        yield tell


def span(seconds: float) -> str:
    """Seconds in words.

    >>> span(50), span(600), span(9000)
    ('50 s', '10 min', '2.5 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _lines(console: Console) -> Tell:
    last = [""]

    def tell(one: Next, _: int, __: float, left: float) -> None:
        if one.trial.key != last[0]:
            last[0] = one.trial.key
            lr, decay = one.trial.lr, one.trial.weight_decay
            what = f"{one.workload.name}: {STAGES[one.stage]}, lr {lr:g}, weight decay {decay:g}, seed {one.trial.seed}"
            console.print(f"{what}; about {span(left)} left", highlight=False)

    return tell
