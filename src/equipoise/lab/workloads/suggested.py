"""What settings of `eq.suggest` cost on the workloads, for docs/suggest.md and for the planner, which quotes it."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from equipoise.lab.report.claims import markdown
from equipoise.lab.report.page import write_marked
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import HALVES, Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.policies import SUGGEST
from equipoise.lab.workloads.regret import Surface, regret
from equipoise.lab.workloads.store import STORED, Outcomes, read
from equipoise.lab.workloads.sweep import best
from equipoise.planner.suggestion import SUGGESTED

MARK = "suggested"

FOLDER = STORED / "suggested"
"""Suggested settings that were trained: kept apart from the sweeps, whose best they do not change."""


def wanted(workload: Workload) -> dict[str, Trial]:
    """What is to be trained of a workload, by how it was chosen."""
    trial = SUGGEST.choose(workload, {})
    return {} if trial is None else {"suggested": trial}


@final
@dataclass(frozen=True)
class Cost:
    """What the suggested setting of a workload costs, in percent above the sweep's best.

    Attributes:
        workload: which.
        trial: the setting.
        between: interpolated between stored trials, at the workload's betas.
        nearest: of the nearest stored trial.
        trained: of the setting itself; None where it was not trained.
    """

    workload: Workload
    trial: Trial
    between: float
    nearest: float
    trained: float | None

    @property
    def percent(self) -> float:
        """As it was trained, or else interpolated."""
        return self.between if self.trained is None else self.trained


def costs(every: Mapping[str, Outcomes]) -> list[Cost]:
    """Of every workload that `eq.suggest` speaks to."""
    found = []
    for name, workload in WORKLOADS.items():
        trial = SUGGEST.choose(workload, {})
        if trial is None:
            continue
        known = every[name]
        top = best(workload, known)
        assert top is not None
        surface, shrink = Surface(workload, known), workload.shrink(trial.lr, trial.weight_decay)
        own = regret(trial, top, read(workload, FOLDER) | known)
        found.append(
            Cost(
                workload, trial, surface.regret(trial.lr, shrink), surface.nearest(trial.lr, shrink),
                None if own is None else own.percent,
            )
        )  # fmt: skip
    return found


def said(found: list[Cost]) -> list[str]:
    """A sentence for each half."""
    return [
        f"test loss {_percent(statistics.median(values))} % above the best of a sweep in the median of "
        f"{len(values)} workloads that were {words} it, {_percent(max(values))} % at most"
        for half, words in (("held-out", "not used to set"), ("choosing", "used to set"))
        if (values := [c.percent for c in found if c.workload.half == half])
    ]


def write(found: list[Cost], file: Path = SUGGESTED) -> None:
    """Write what suggestions cost to where the planner reads it."""
    file.write_text(json.dumps(said(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_page(found: list[Cost], page: Path) -> None:
    """Write the table into the page's marked part."""
    write_marked(page, MARK, f"{markdown(halves(found))}\n\n{markdown(rows(found))}")


def halves(found: list[Cost]) -> list[dict[str, str]]:
    """A row for each half."""
    table = []
    for half in HALVES:
        own = [c for c in found if c.workload.half == half]
        kinds = {"suggested": [c.percent for c in own], "nearest stored": [c.nearest for c in own]}
        for name, values in kinds.items():
            table.append({
                "half": half, "setting": name, "workloads": str(len(values)),
                "median": _percent(statistics.median(values)), "worst": _percent(max(values)),
                "≤ 3 %": str(sum(v <= 3 for v in values)), "≤ 10 %": str(sum(v <= 10 for v in values)),
            })  # fmt: skip
    return table


def rows(found: list[Cost]) -> list[dict[str, str]]:
    """A row for each workload."""
    return [
        {
            "workload": c.workload.name, "half": c.workload.half, "lr": f"{c.trial.lr:g}",
            "weight decay": f"{c.trial.weight_decay:g}", "interpolated": _percent(c.between),
            "nearest stored": _percent(c.nearest), "trained": "·" if c.trained is None else _percent(c.trained),
        }
        for c in found
    ]  # fmt: skip


def _percent(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
