"""What settings of `eq.suggest` cost on the workloads, for docs/suggest.md and for the planner, which quotes it.

Suggested settings are trained (`benchmarks/suggesting.py`) and stored apart from the sweeps, whose best they do not
change. Short runs of pilots are stored, too, and replayed: what is wanted follows from them by the planner's own rule.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

import torch

from equipoise.lab.data import Data
from equipoise.lab.report.claims import markdown
from equipoise.lab.report.page import write_marked
from equipoise.lab.train import optimizers, task
from equipoise.lab.train.training import make_model
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads.base import HALVES, USED, Workload
from equipoise.lab.workloads.catalogue import WORKLOADS
from equipoise.lab.workloads.plans import plan_of
from equipoise.lab.workloads.plans import read as described
from equipoise.lab.workloads.regret import Surface, regret
from equipoise.lab.workloads.store import STORED, Outcomes, read
from equipoise.lab.workloads.sweep import best
from equipoise.planner import Setting, Suggestion, suggest_setting
from equipoise.planner.suggestions.pilot import SHARE, Train
from equipoise.planner.suggestions.rules import SCHEDULE, SCHEDULE_FINETUNED
from equipoise.planner.suggestions.suggestion import OPTIMIZERS, SUGGESTED

MARK = "suggested"

FOLDER = STORED / "suggested"
"""Suggested settings that were trained."""

PILOTS = {"pilot": (FOLDER / "pilots.json", SHARE), "long pilot": (FOLDER / "long-pilots.json", 5 / 8)}
"""Short runs of pilots, (lr, mean loss of the last steps, null where it diverged) by workload, and their share of its
steps: five of a hundredth each, and five of an eighth."""

KINDS = ("no pilot", "no pilot, cosine", *PILOTS)
"""How settings are chosen."""

ALIKE = 0.1
"""How far an lr may be off that of a stored short run: another schedule changes a suggestion by some percent."""

Shorts = dict[str, list[tuple[float, float | None]]]


def wanted(workload: Workload) -> dict[str, Trial]:
    """What is to be trained of a workload, by how it was chosen; nothing where the rule does not speak to it."""
    if workload.name not in described():
        return {}
    found: dict[str, Trial] = {}
    if workload.trial.optimizer in OPTIMIZERS:
        plain = suggest_setting(setting_of(workload))
        found["no pilot"] = trial_of(workload, plain)
        if workload.half == "choosing":  # what the schedule was chosen by
            found["no pilot, cosine"] = found["no pilot"].vary({"schedule": "cosine"})
    for how, (_, share) in PILOTS.items():
        if (shorts := pilots(how).get(workload.name)) is not None:
            said = suggest_setting(setting_of(workload), pilot=replayed(shorts), pilot_share=share)
            found[how] = trial_of(workload, said)
    return found


def setting_of(workload: Workload) -> Setting:
    """The run of a workload, with its own schedule: the suggested one changes lr by some percent."""
    return plan_of(workload, workload.at(workload.lrs[0], 1e-3)).setting


def _schedule(workload: Workload) -> str:
    return SCHEDULE_FINETUNED if workload.kind == "fine-tuning" else SCHEDULE


def trial_of(workload: Workload, found: Suggestion) -> Trial:
    """A suggestion as a trial; what Muon leaves to AdamW stays as the workload has it."""
    s = found.setting
    betas = list(s.groups[s.main_group].dynamics.betas)
    options = {"betas": betas} if found.optimizer == "adamw" else {}
    return workload.at(
        found.lr, found.weight_decay, schedule=_schedule(workload),
        optimizer_options={**workload.trial.optimizer_options, **options},
    )  # fmt: skip


def pilots(how: str) -> Shorts:
    """Stored short runs by workload.

    Args:
        how: one of `PILOTS`.
    """
    file, _ = PILOTS[how]
    return json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}


def replayed(shorts: list[tuple[float, float | None]]) -> Train:
    """A pilot that gives stored losses."""

    def train(setting: Setting, steps: int) -> list[float]:
        lr = setting.groups[setting.main_group].lr
        for known, loss in shorts:
            if math.isclose(known, lr, rel_tol=ALIKE):
                return [math.nan if loss is None else loss] * steps
        raise ValueError(f"lr = {lr}: must be one of the stored pilot's; train it anew: benchmarks/suggesting.py")

    return train


def trained(workload: Workload, data: Data) -> Train:
    """A pilot that trains a workload."""

    def train(setting: Setting, steps: int) -> list[float]:
        group = setting.groups[setting.main_group]
        options = {**workload.trial.optimizer_options}
        if group.dynamics.optimizer == "adamw":
            options["betas"] = list(group.dynamics.betas)
        trial = workload.at(group.lr, group.weight_decay, optimizer_options=options)
        model = make_model(trial, data)
        optimizer, _ = optimizers.make(trial, model)
        # The scheduler that comes with the optimizer has set lr to its first step's.
        first, curve = [g["initial_lr"] for g in optimizer.param_groups], setting.schedule.values(steps)
        batch, losses = data.train.batches(trial.batch_size, trial.seed), list[float]()
        for step in range(1, steps + 1):
            for g, lr in zip(optimizer.param_groups, first, strict=True):
                g["lr"] = lr * float(curve[step - 1])
            loss = task.loss(data.task, model, *batch(step), data.smoothing)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
            if not math.isfinite(losses[-1]):
                break
        return losses

    return train


@final
@dataclass(frozen=True)
class Cost:
    """What a suggested setting costs on a workload, in percent above the sweep's best.

    Attributes:
        workload: which.
        how: one of `KINDS`.
        trial: the setting.
        between: of its lr and decay, interpolated between stored trials, at the workload's own schedule and betas.
        trained: of the setting itself; None where it was not trained yet.
    """

    workload: Workload
    how: str
    trial: Trial
    between: float
    trained: float | None

    @property
    def percent(self) -> float:
        """The loss above the best in percent: trained, or else interpolated."""
        return self.between if self.trained is None else self.trained


def costs(every: Mapping[str, Outcomes]) -> list[Cost]:
    """The costs on every workload, for every way to choose there."""
    found = []
    for name, workload in WORKLOADS.items():
        known = every[name]
        top = best(workload, known)
        assert top is not None
        surface, own = Surface(workload, known), read(workload, FOLDER) | known
        for how, trial in wanted(workload).items():
            between = surface.regret(trial.lr, workload.shrink(trial.lr, trial.weight_decay))
            seen = regret(trial, top, own)
            found.append(Cost(workload, how, trial, between, None if seen is None else seen.percent))
    return found


def said(found: list[Cost]) -> list[str]:
    """A sentence for each half, of suggestions without a pilot."""
    sentences = []
    for half in reversed(HALVES):
        values = _values(found, half, "no pilot")
        if values:
            sentences.append(
                f"test loss {_percent(statistics.median(values))} % above the best of a sweep in the median of "
                f"{len(values)} workloads that were {USED[half]}, {_percent(max(values))} % at most"
            )
    return sentences


def _values(found: list[Cost], half: str, how: str) -> list[float]:
    return [c.percent for c in found if c.workload.half == half and c.how == how]


def write(found: list[Cost], file: Path = SUGGESTED) -> None:
    """Write what suggestions cost to where the planner reads it."""
    file.write_text(json.dumps(said(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def write_page(found: list[Cost], page: Path) -> None:
    """Write the table into the page's marked part."""
    write_marked(page, MARK, f"{markdown(halves(found))}\n\n{markdown(rows(found))}")


def halves(found: list[Cost]) -> list[dict[str, str]]:
    """A row for each half and way, as far as settings were trained, and interpolated."""
    table = []
    for half in HALVES:
        for how in KINDS:
            own = [c for c in found if c.workload.half == half and c.how == how]
            kinds = {
                "trained": [c.trained for c in own if c.trained is not None],
                "interpolated": [c.between for c in own if not how.endswith("cosine")],
            }
            table += [{"half": half, "setting": how, "loss": kind} | _spread(v) for kind, v in kinds.items() if v]
    return table


def _spread(values: list[float]) -> dict[str, str]:
    return {
        "workloads": str(len(values)), "median": _percent(statistics.median(values)), "worst": _percent(max(values)),
        "≤ 1 %": str(sum(v <= 1 for v in values)), "≤ 3 %": str(sum(v <= 3 for v in values)),
        "≤ 10 %": str(sum(v <= 10 for v in values)),
    }  # fmt: skip


def rows(found: list[Cost]) -> list[dict[str, str]]:
    """A row for each workload."""
    table = []
    for workload in WORKLOADS.values():
        own = {c.how: c for c in found if c.workload is workload}
        row = {"workload": workload.name, "half": workload.half}
        for how in KINDS:
            c = own.get(how)
            if not how.endswith("cosine"):
                row[f"lr, {how}"] = "·" if c is None else f"{c.trial.lr:g}"
                row[f"{how}, interpolated"] = "·" if c is None else _percent(c.between)
            row[how] = "·" if c is None or c.trained is None else _percent(c.trained)
        table += [row] * bool(own)
    return table


def _percent(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")


def store_pilot(workload: Workload, data: Data, how: str) -> None:
    """Train the short runs of a workload and store them.

    Args:
        workload: which.
        data: its data.
        how: one of `PILOTS`.
    """
    file, share = PILOTS[how]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng():
            found = suggest_setting(setting_of(workload), pilot=trained(workload, data), pilot_share=share).pilot
    finally:
        torch.set_num_threads(threads)
    assert found is not None
    kept = [(r.lr, float(f"{r.loss:.6g}") if math.isfinite(r.loss) else None) for r in found.runs]
    every = dict(sorted({**pilots(how), workload.name: kept}.items()))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(runs)}" for name, runs in every.items())
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part")
    part.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    part.replace(file)
