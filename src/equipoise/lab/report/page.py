"""An experiment's page in Markdown. The part between its markers is generated; the rest is written by hand."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from equipoise.lab.experiments.base import Done, Experiment, Outcome
from equipoise.lab.report.claims import claim_rows, ends, markdown
from equipoise.lab.train.run_experiment import write_figure
from equipoise.lab.workloads import floors


def write_page(
    experiment: Experiment, outcome: Outcome, done: Sequence[Done], folder: str | os.PathLike[str], *, preset: str,
    command: str | None = None,
) -> Path:  # fmt: skip
    """Write `NAME.svg` and the marked part of `NAME.md`; make the page where there is none.

    The marked part stands between `<!-- begin: NAME -->` and `<!-- end: NAME -->`, at the end of a page that has none.

    Args:
        experiment: what was run.
        outcome: what it found.
        done: its trials.
        folder: of the page.
        preset: that it was run at.
        command: what was given to `equipoise lab run`. Default: the experiment's name.
    """
    place, name = Path(folder), experiment.name
    place.mkdir(parents=True, exist_ok=True)
    write_figure(experiment, outcome, place / f"{name}.svg")
    where = place.name if place.is_absolute() else place.as_posix()  # no path of one's own machine in a page
    seeds = len({d.trial.seed for d in done})
    repeat = f"To repeat: `equipoise lab run {command or name} --preset {preset} --seeds {seeds} --page {where}`."
    page = place / f"{name}.md"
    if not page.exists():
        page.write_text(f"# {name}\n\n{experiment.about}\n", encoding="utf-8")
    write_marked(page, name, f"{repeat}\n\n{section(outcome, done, name, preset)}")
    return page


def write_marked(page: Path, name: str, content: str) -> None:
    """Put content between a page's markers of a name, at its end where there are none; the rest is kept."""
    begin, end = f"<!-- begin: {name} -->", f"<!-- end: {name} -->"
    part, text = f"{begin}\n{content}\n{end}", page.read_text(encoding="utf-8")
    marked = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", flags=re.DOTALL)
    found = marked.findall(text)
    if len(found) > 1 or (not found and (begin in text or end in text)):
        raise ValueError(f"{page}: must have {begin} and {end} once, in this order, or not at all")
    text = marked.sub(lambda _: part, text) if found else f"{text.rstrip()}\n\n{part}\n"
    new = page.with_suffix(".md.part")
    new.write_text(text, encoding="utf-8")
    new.replace(page)


def section(outcome: Outcome, done: Sequence[Done], name: str, preset: str) -> str:
    """What the code knows: preset, seeds, versions and date, the figure, the table, the claims and their verdicts."""
    seeds = sorted({d.trial.seed for d in done})
    made = sorted({", ".join(f"{k} {v}" for k, v in d.result.versions.items()) for d in done})
    dates = sorted({d.result.date for d in done})
    date = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}" if dates else "—"
    parts = [
        f"Preset `{preset}`; seeds {', '.join(map(str, seeds))}; {date}; {'; '.join(made)}. "
        f"{ends([d.result for d in done])}. ± is the standard deviation of a single seed; an effect is the distance "
        "from the source's number in such deviations; intervals may be looked at five times "
        "([how it is decided](../evidence.md)).",
        f"![{name}]({name}.svg)",
        markdown(outcome.rows),
        markdown(floors.of(d.trial for d in done)),
        markdown(claim_rows(outcome.claims)),
    ]
    return "\n\n".join(part for part in parts if part)
