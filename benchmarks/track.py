"""A track of optimizers: the fewest steps to a target loss, with the model, data and batch fixed.

    python benchmarks/track.py [--only muon step] [--limit 4]    # go on where it was
    python benchmarks/track.py --write docs/rotation.md

The rules are those of [modded-nanogpt]'s optimizer track: an entry chooses its optimizer, its numbers and the length of
its run, whose schedule ends with it. A length counts if the mean validation loss of eight seeds is below the target
with p < 0.01, one-sided. The target is the mean loss of tuned AdamW after `REFERENCE` steps. Lengths are on a ladder of
8 %: an entry goes down it while it passes, and up while it fails, and what fails plainly with the first seed gets no
others. Outcomes are stored in `track.jsonl`, so that any machine can go on.
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
REFERENCE, RATIO, SEEDS, LEVEL = 1500, 1.08, 8, 0.01

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
    Entry("adamw, rotation by its step", "adamw", (2e-3, 4e-3), options=ADAMW | {"twin": {"angle": "step"}}),
    Entry("muon, rotation by its step", "muon", (0.02, 0.04), options={"twin": {"angle": "step"}}),
    Entry("muon, at equilibrium", "muon", (0.02, 0.04), options={"twin": {"angle": "equilibrium"}}),
    Entry("muon, at equilibrium, no warmup", "muon", (0.02,), options={"twin": {"angle": "equilibrium"}}, warmup=0.0),
    Entry("hyperball", "hyperball_muon", (0.01, 0.02, 0.04), weight_decay=0.0),
    Entry("normuon", "nor_muon", (3e-3, 6e-3)),
    Entry("floor", "floor_muon", (0.02, 0.04), weight_decay=0.025),
    Entry("brake", "brake_muon", (0.02, 0.04), weight_decay=0.0),
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


def next_rung(known: Mapping[int, bool], *, lowest: int = -20, highest: int = 10) -> int | None:
    """Where an entry goes on: down from its shortest pass, up from its longest failure; None where it is known."""
    passed = [n for n, well in known.items() if well]
    if not known:
        return 0
    if not passed:
        return None if max(known) >= highest else max(known) + 1
    below = min(passed) - 1
    return None if below in known or below < lowest else below


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
    if number is None or known is None:
        return None
    return entry.trial(lr, rung(number), len(known))


def ladder(entry: Entry, lr: float, aim: float, done: Losses) -> tuple[int | None, list[float] | None]:
    """The rung that is not decided and its losses so far; None and None where the entry is done."""
    known: dict[int, bool] = {}
    while (number := next_rung(known)) is not None:
        losses: list[float] = []
        while (loss := done.get(entry.trial(lr, rung(number), len(losses)).key)) is not None and len(losses) < SEEDS:
            losses.append(loss)
        well = passes(losses, aim)
        if well is None:
            return number, losses
        known[number] = well
    return None, None


def fewest(entry: Entry, done: Losses) -> int | None:
    """The shortest run that passes; None where none did, or it is not known."""
    lr, aim = best_lr(entry, done), target(done)
    if lr is None or aim is None or ladder(entry, lr, aim, done) != (None, None):
        return None
    passed = []
    for number in range(-20, 11):
        losses = [done.get(entry.trial(lr, rung(number), seed).key) for seed in range(SEEDS)]
        if None not in losses and passes([x for x in losses if x is not None], aim):
            passed.append(rung(number))
    return min(passed, default=None)


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
    lines = ["| optimizer | lr | fewest steps | over tuned Muon's |", "|---|---|---|---|"]
    for entry in ENTRIES:
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
