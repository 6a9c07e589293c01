"""The page docs/payoff.md, from stored trials: what each way to choose a setting costs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from equipoise.lab.report.claims import Stat, markdown
from equipoise.lab.report.page import write_marked
from equipoise.lab.workloads import duels, floors, follow, suggested
from equipoise.lab.workloads.base import HALVES, Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.floors import Floors
from equipoise.lab.workloads.policies import FIRST, FOLLOWED, POLICIES
from equipoise.lab.workloads.regret import Regret, regrets, tuned
from equipoise.lab.workloads.run import read_all, status
from equipoise.lab.workloads.store import STORED, Outcomes
from equipoise.lab.workloads.sweep import best, others
from equipoise.lab.workloads.twins import TWINS

GROUPS = (
    [policy.name for policy in FIRST],
    [policy.name for policy in FOLLOWED],
    [name for name in POLICIES if name.endswith((", habit's lr", ", best lr"))],
    [name for name in POLICIES if "proxy" in name],
)
"""The policies of a table: a page has room for a few columns."""

MARK = "payoff"
TITLE = "# Payoff\n"


def write(page: Path, folder: Path = STORED) -> None:
    """Write the marked parts of the page and of suggest.md beside it, and what the planner quotes."""
    if folder == STORED:
        follow.write(follow.pairs(read_all(folder)))
        duels.write(read_all(folder))
        costs = suggested.costs(read_all(folder))
        suggested.write(costs)
        if (beside := page.with_name("suggest.md")).exists():
            suggested.write_page(costs, beside)
    if not page.exists():
        page.write_text(TITLE, encoding="utf-8")
    write_marked(page, MARK, content(folder))


def content(folder: Path = STORED) -> str:
    """The tables, as Markdown."""
    every = read_all(folder)
    settings, stages = tuned(every), {s.workload.name: s.stage for s in status(list(WORKLOADS), every)}
    known = {name: regrets(w, every[name], settings) for name, w in WORKLOADS.items()}
    trials = sum(map(len, every.values()))
    hours = sum(one.seconds for outcomes in every.values() for one in outcomes.values()) / 3600
    made = sorted({one.versions for outcomes in every.values() for one in outcomes.values()})
    floor, twins = floors.read(folder), sum(bool(every[name]) for name in TWINS)
    fights, curves = duels.duels(every), duels.schedules(every)
    best_rows = [best_row(w, every[name], floor, stages[name]) for name, w in WORKLOADS.items()]
    parts = [
        f"{trials} stored trials of {len(WORKLOADS)} workloads and {twins} twins, {hours:.1f} hours of training on one "
        f"busy core; the grids of {len(settings)} are done. Made with {'; '.join(made) or 'nothing yet'}. To repeat: "
        "`equipoise lab workloads sweep`, then `equipoise lab workloads payoff docs/payoff.md`.",
        "## What each policy costs\n\n"
        "Regret: how far the test loss is above that of the sweep's best setting, in percent, over the workloads that "
        "a policy speaks to. A workload where it diverges counts as infinite.",
        markdown(summary(known)),
        "## What it pays to follow a finding\n\n"
        "Every stored trial of the first seed is planned. Where a finding asks for a change, and the changed setting "
        "was trained too, the two are a pair: how far the second's test loss is above the first's, in percent.",
        markdown(follow.rows(follow.pairs(every))) or "None yet.",
        "## Which optimizer\n\n"
        "The same task, steps, schedule and lr·wd·T. The first has three lrs, the best on validation between two "
        "neighbours. So has the second where its lrs are 3; fewer are to its disadvantage, and its loss is then an "
        "upper bound. Percent: how far the second's test loss is above the first's. The equivalent lr is the "
        "second's with the memory and norms of the first's best; its regret is what the nearest lr of the grid costs.",
        markdown(duels.duel_rows(fights)) or "None yet.",
        "## Which schedule\n\n"
        "The best setting of the grid, which has a cosine to 0, with another schedule and nothing else changed: how "
        "far the test loss is above the cosine's, in percent. Equal memory is [memory-article] Eq. 16; where "
        "decay is weak it is nearly constant.",
        markdown(duels.schedule_rows(curves)) or "None yet.",
        "## The best of each sweep\n\n"
        "Chosen on validation; the test loss is a mean ± standard deviation over the seeds that there are. The "
        "baseline is the better of what needs no network: frequencies, the bigram table of text and pairs, the linear "
        "model of images. `next` is the stage of the sweep that is not done yet.",
        markdown(best_rows),
        "## Regret by workload, in percent\n\n"
        "With the number of seeds in brackets where there are several. A dot, and a workload "
        "that is left out: the policy does not speak to it, or was not trained there yet.",
        *(markdown(details(known, names)) for names in GROUPS),
    ]
    return "\n\n".join(parts)


def best_row(workload: Workload, known: Outcomes, floor: Floors, stage: str) -> dict[str, Any]:
    """The best setting of a workload."""
    base, top = floor.get(floors.data_key(workload.trial), {}), best(workload, known)
    row: dict[str, Any] = dict.fromkeys(
        ("workload", "half", "trials", "baseline", "test loss", "lr", "weight decay", "lr·wd·T", "schedule, warmup"),
        "·",
    )
    row |= {"workload": workload.name, "half": workload.half, "trials": str(len(known)), "next": stage}
    if base:
        row["baseline"] = f"{min(base.values()):.3f}"
    if top is not None:
        losses = [known[t.key].test for t in (top, *others(top)) if t.key in known]
        row |= {
            "test loss": f"{losses[0]:.4f}" if len(losses) == 1 else str(Stat.of(losses)), "lr": f"{top.lr:g}",
            "weight decay": f"{top.weight_decay:g}", "lr·wd·T": f"{workload.shrink(top.lr, top.weight_decay):.2g}",
            "schedule, warmup": f"{top.schedule}, {top.warmup}",
        }  # fmt: skip
    return row


def summary(known: Mapping[str, Mapping[str, Regret | None]]) -> list[dict[str, Any]]:
    """A row for each policy that was trained somewhere: median and worst regret, and on how many workloads, by half."""
    rows = []
    for policy in POLICIES:
        if all(by.get(policy) is None for by in known.values()):
            continue
        row: dict[str, Any] = {"policy": policy}
        for half in HALVES:
            members = [by.get(policy) for name, by in known.items() if WORKLOADS[name].half == half]
            found = [one.percent for one in members if one is not None]
            row[f"{half}: median"] = _percent(statistics.median(found) if found else math.nan)
            row[f"{half}: worst"] = _percent(max(found, default=math.nan))
            row[f"{half}: workloads"] = str(len(found))
        rows.append(row)
    return rows


def details(known: Mapping[str, Mapping[str, Regret | None]], names: Sequence[str]) -> list[dict[str, Any]]:
    """A row for each workload that one of the policies speaks to, a column for each of them."""
    return [
        {"workload": name} | {policy: _cell(by.get(policy)) for policy in names}
        for name, by in known.items() if any(by.get(policy) is not None for policy in names)
    ]  # fmt: skip


def _cell(one: Regret | None) -> str:
    if one is None:
        return "·"
    return f"{_percent(one.percent)} ({one.seeds})" if one.seeds > 1 else _percent(one.percent)


def _percent(value: float) -> str:
    if math.isnan(value):
        return "·"
    return "diverged" if math.isinf(value) else f"{value:+.1f}"
