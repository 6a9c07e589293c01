"""A track of optimizers: the fewest steps to a target loss, with the model, data and batch fixed.

    python benchmarks/track.py [--only muon step] [--limit 4]    # go on where it was
    python benchmarks/track.py --write docs/rotation.md

The rules are those of [modded-nanogpt]'s optimizer track: an entry chooses its optimizer, its numbers and the length of
its run, whose schedule ends with it. A length counts if the mean validation loss of eight seeds is below the target
with p < 0.01, one-sided. The target is the mean loss of tuned AdamW after `REFERENCE` steps. Lengths are on a ladder of
8 %: an entry goes down it with one seed while its loss is below the target, then up with eight seeds until a length
passes. Outcomes are stored in `track.jsonl` as they come, so that any machine can go on. Entries are in the order of
what they say: tuned AdamW sets the target, tuned Muon is what others are measured by.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from scipy import stats

from equipoise.lab.data import Data
from equipoise.lab.train.run_trial import run_trial
from equipoise.lab.train.trial import Trial

STORED = Path(__file__).with_suffix(".jsonl")
BEGIN, END = "<!-- begin: track -->", "<!-- end: track -->"
REFERENCE, RATIO, SEEDS, LEVEL = 500, 1.08, 8, 0.01
LOWEST, HIGHEST = -20, 10
"""Rungs of the ladder; 0 is the reference."""

TASK = Trial(
    data="enwik8", data_options={"size": 10_000_000, "length": 64, "held": 64_000}, model="gpt",
    model_options={"size": "3M", "tied": True, "std": 0.05}, batch_size=16, schedule="cosine", steps=REFERENCE,
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """An optimizer with its numbers; warmup is a share of the run.

    Attributes:
        name: as in the table.
        optimizer: name in the lab.
        lrs: those that are tried at `REFERENCE` steps; the best is used for all lengths. One is not tuned.
        weight_decay: decoupled.
        options: of the optimizer.
        warmup: share of the run.
    """

    name: str
    optimizer: str
    lrs: tuple[float, ...]
    weight_decay: float = 0.1
    options: Mapping[str, Any] = field(default_factory=dict)
    warmup: float = 0.05

    def trial(self, lr: float, steps: int, seed: int) -> Trial:
        """Its run of that length."""
        return TASK.vary(
            {
                "optimizer": self.optimizer, "lr": lr, "weight_decay": self.weight_decay, "steps": steps, "seed": seed,
                "warmup": round(self.warmup * steps), "optimizer_options": dict(self.options),
            }
        )  # fmt: skip


ADAMW: dict[str, Any] = {"betas": [0.9, 0.95]}
ENTRIES = (
    Entry("adamw", "adamw", (1e-3, 2e-3, 4e-3, 8e-3), options=ADAMW),
    Entry("muon", "muon", (0.01, 0.02, 0.04, 0.08)),
    Entry("muon, at equilibrium", "muon", (0.02,), options={"twin": {"angle": "equilibrium"}}),
    Entry("muon, rotation by its step", "muon", (0.02,), options={"twin": {"angle": "step"}}),
    Entry("muon, at equilibrium, no warmup", "muon", (0.02,), options={"twin": {"angle": "equilibrium"}}, warmup=0.0),
    Entry("adamw, rotation by its step", "adamw", (2e-3, 4e-3), options=ADAMW | {"twin": {"angle": "step"}}),
    Entry("angular muown", "angular_muown", (0.02, 0.04), weight_decay=0.0),
    Entry("magnitude–direction, muon", "md_muon", (0.02, 0.04), weight_decay=0.0),
    Entry("magnitude–direction, no warmup", "md_muon", (0.02,), weight_decay=0.0, warmup=0.0),
    Entry("hyperball", "hyperball_muon", (0.01, 0.02, 0.04), weight_decay=0.0),
    Entry("normuon", "nor_muon", (3e-3, 6e-3)),
    Entry("floor", "floor_muon", (0.02, 0.04), weight_decay=0.025),
    Entry("brake", "brake_muon", (0.02, 0.04), weight_decay=0.0),
    Entry("magnitude–direction, adam", "md_adam", (2e-3, 4e-3), weight_decay=0.0),
    Entry("adamp", "adamp", (2e-3, 4e-3), options=ADAMW),
    Entry("nero", "nero", (5e-3, 0.01), weight_decay=0.0),
)

Losses = dict[str, float]
"""Final validation losses by the trial's key; infinite where it diverged."""


def passes(losses: Sequence[float], target: float, *, seeds: int = SEEDS) -> bool | None:
    """Whether the mean is below the target; None: not known yet, more seeds are needed.

    A first loss that is above the target by more than 1 % ends it: no other seeds are trained.
    """
    if losses and losses[0] > 1.01 * target:
        return False
    if len(losses) < seeds:
        return None
    if not all(map(math.isfinite, losses)):
        return False
    spread = statistics.stdev(losses)
    if spread == 0:
        return statistics.mean(losses) < target
    t = (statistics.mean(losses) - target) / (spread / len(losses) ** 0.5)
    return float(stats.t.cdf(t, len(losses) - 1)) < LEVEL


def rung(number: int) -> int:
    """The length of a run on the ladder; rung 0 is the reference."""
    return round(REFERENCE * RATIO**number)


def next_rung(known: Mapping[int, bool]) -> int | None:
    """Where an entry goes on: down from its shortest pass, up from its longest failure; None where it is known."""
    passed = [n for n, well in known.items() if well]
    if not known:
        return 0
    if not passed:
        return None if max(known) >= HIGHEST else max(known) + 1
    below = min(passed) - 1
    return None if below in known or below < LOWEST else below


def read() -> Losses:
    """Stored losses."""
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    return {one["key"]: one["loss"] if one["loss"] is not None else math.inf for one in map(json.loads, lines)}


def best_lr(entry: Entry, done: Losses) -> float | None:
    """The lr with the lowest loss at the reference length, seed 0; None where one was not trained."""
    found = {lr: done.get(entry.trial(lr, REFERENCE, 0).key) for lr in entry.lrs}
    if len(found) > 1 and any(loss is None for loss in found.values()):
        return None
    return min(found, key=lambda lr: found[lr] or 0.0)


def target(done: Losses) -> float | None:
    """The mean loss of tuned AdamW after the reference; None where it is not known."""
    lr = best_lr(ENTRIES[0], done)
    losses = [done.get(ENTRIES[0].trial(lr, REFERENCE, seed).key) for seed in range(SEEDS)] if lr else [None]
    return statistics.mean(x for x in losses if x is not None) if None not in losses else None


def ahead(entry: Entry, done: Losses) -> Trial | None:
    """What an entry trains next."""
    lr = best_lr(entry, done)
    if lr is None:
        return next(t for x in entry.lrs if (t := entry.trial(x, REFERENCE, 0)).key not in done)
    aim = target(done)
    if aim is None:
        if entry is not ENTRIES[0]:
            return None
        return next(t for seed in range(SEEDS) if (t := entry.trial(lr, REFERENCE, seed)).key not in done)
    number, known = ladder(entry, lr, aim, done)
    if number is None:
        return None
    return entry.trial(lr, rung(number), len(known))


def ladder(entry: Entry, lr: float, aim: float, done: Losses) -> tuple[int | None, list[float]]:
    """The rung that is not decided and its losses so far; None and the shortest pass's where the entry is done."""
    scouted: dict[int, bool] = {}
    while (number := next_rung(scouted)) is not None:
        first = losses_of(entry, lr, number, done)[:1]
        if not first:
            return number, []
        scouted[number] = first[0] < aim
    for number in range(min((n for n, well in scouted.items() if well), default=HIGHEST + 1), HIGHEST + 1):
        losses = losses_of(entry, lr, number, done)
        well = passes(losses, aim)
        if well is not False:
            return (number, losses) if well is None else (None, losses)
    return None, []


def losses_of(entry: Entry, lr: float, number: int, done: Losses) -> list[float]:
    """The losses of a rung that are known, seed by seed."""
    found = [done.get(entry.trial(lr, rung(number), seed).key) for seed in range(SEEDS)]
    return [x for x in found[: found.index(None) if None in found else SEEDS] if x is not None]


def fewest(entry: Entry, done: Losses) -> int | None:
    """The shortest run that passes; None where none did, or it is not known."""
    lr, aim = best_lr(entry, done), target(done)
    if lr is None or aim is None or ladder(entry, lr, aim, done)[0] is not None:
        return None
    lengths = range(LOWEST, HIGHEST + 1)
    return next((rung(n) for n in lengths if passes(losses_of(entry, lr, n, done), aim)), None)


def train(limit: int | None, only: Sequence[str]) -> None:
    """Train what is missing, the reference first."""
    torch.set_num_threads(1)
    loaded: dict[str, Data] = {}
    count = 0
    while limit is None or count < limit:
        done = read()
        some = [t for e in ENTRIES if (not only or e.name in only) and (t := ahead(e, done)) is not None]
        if not some:
            break
        with tempfile.TemporaryDirectory() as place:
            result = run_trial(some[0], Path(place), loaded)
            shutil.rmtree(place, ignore_errors=True)
        if result.status == "failed":
            raise SystemExit(result.error)
        loss = result.metrics.get("validation_loss")
        line = {"key": some[0].key, "optimizer": some[0].optimizer, "lr": some[0].lr, "steps": some[0].steps}
        line |= {"seed": some[0].seed, "loss": loss, "seconds": round(result.seconds, 1), "date": result.date}
        with STORED.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(some[0].optimizer, some[0].lr, some[0].steps, some[0].seed, loss, flush=True)
        count += 1


def table() -> str:
    """The track as Markdown."""
    done = read()
    least = fewest(ENTRIES[1], done)
    known = {key for key in done if math.isfinite(done[key])}
    begun = [e for e in ENTRIES if any(e.trial(lr, REFERENCE, 0).key in known for lr in e.lrs)]
    if not begun:
        return f"None of the {len(ENTRIES)} entries has been trained."
    lines = ["| optimizer | lr | fewest steps | over tuned Muon's |", "|---|---|---|---|"]
    for entry in begun:
        lr, steps = best_lr(entry, done), fewest(entry, done)
        ratio = f"{steps / least:.2f}" if steps and least else "·"
        lines.append(f"| {entry.name} | {lr or '·'} | {steps or '·'} | {ratio} |")
    return "\n".join(lines)


def main() -> None:
    """Train, or write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=[], choices=[entry.name for entry in ENTRIES])
    parser.add_argument("--limit", type=int)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.write:
        text = given.write.read_text(encoding="utf-8")
        start, rest = text.split(BEGIN)[0], text.split(END)[1]
        given.write.write_text(f"{start}{BEGIN}\n{table()}\n{END}{rest}", encoding="utf-8")
        return
    train(given.limit, given.only)
    print(table())


if __name__ == "__main__":
    main()
