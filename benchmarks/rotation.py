"""What rotational twins cost or gain on the lab's workloads, at the settings that were best for the plain optimizer.

    python benchmarks/rotation.py choosing [--limit 3]    # train what is missing, cheapest first
    python benchmarks/rotation.py --write docs/rotation.md

The plain optimizer's outcome is the stored one of the sweep, of the same seed. Trials are stored in `rotation.jsonl`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from equipoise.lab.data import Data
from equipoise.lab.train.run_trial import run_trial
from equipoise.lab.train.trial import Trial
from equipoise.lab.workloads import WORKLOADS
from equipoise.lab.workloads.run import read_all
from equipoise.lab.workloads.store import StoredTrial

STORED = Path(__file__).with_suffix(".jsonl")
BEGIN, END = "<!-- begin: rotation -->", "<!-- end: rotation -->"

VARIANTS: dict[str, dict[str, Any]] = {
    "step": {"angle": "step"},
    "equilibrium": {"angle": "equilibrium"},
    "forecast": {"angle": "forecast"},
    "forecast, gains": {"angle": "forecast", "gains": True},
    "all matrices": {},
}
"""Options of the twin; "all matrices" is the class alone changed, so that embeddings and output layers turn, too."""

CHEAP = sorted(WORKLOADS, key=lambda name: WORKLOADS[name].seconds)
"""Workloads, those that train fastest first."""

CLASSES = {"adamw": "rotational_adamw", "sgdm": "rotational_sgdm", "lion": "rotational_lion", "muon": "rotational_muon"}


@dataclass(frozen=True)
class Pair:
    """A plain optimizer's best known outcome on a workload, and a variant of the same trial."""

    workload: str
    variant: str
    plain: StoredTrial
    trial: Trial


def pairs(half: str) -> Iterator[Pair]:
    """All of a half; equilibria need a weight decay."""
    for name, known in read_all().items():
        if name not in WORKLOADS or WORKLOADS[name].half != half:  # twins of workloads are stored, too
            continue
        best = min((o for o in known.values() if o.status == "finished"), key=lambda o: o.validation)
        for variant, options in VARIANTS.items():
            trial, angle = best.trial, options.get("angle")
            # An equilibrium needs decay, and a forecast of SGD its gradients.
            if (trial.weight_decay == 0 and angle in (None, "equilibrium")) or (
                trial.optimizer == "sgdm" and angle == "forecast"
            ):
                continue
            changed = {"optimizer_options.twin": options} if options else {"optimizer": CLASSES[trial.optimizer]}
            yield Pair(name, variant, best, trial.vary(changed))


def read() -> dict[str, dict[str, Any]]:
    """Stored outcomes by the trial's key."""
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    return {one["key"]: one for one in map(json.loads, lines)}


def train(half: str, limit: int | None, only: list[str], variants: list[str]) -> None:
    """Train what is missing, cheapest workload first and variants in their order."""
    torch.set_num_threads(1)
    done = read()
    ahead = [p for p in pairs(half) if p.trial.key not in done and (not only or p.workload in only)]
    ahead = [p for p in ahead if not variants or p.variant in variants]
    loaded: dict[str, Data] = {}
    order = list(VARIANTS)
    for pair in sorted(ahead, key=lambda p: (order.index(p.variant) // 2, CHEAP.index(p.workload)))[:limit]:
        with tempfile.TemporaryDirectory() as place:
            result = run_trial(pair.trial, Path(place), loaded)
            shutil.rmtree(place, ignore_errors=True)
        if result.status == "failed":
            print(pair.workload, pair.variant, result.error, flush=True)
            continue
        kept = {k: float(f"{v:.6g}") for k, v in result.metrics.items() if k.endswith("_loss")}
        line = {"key": pair.trial.key, "workload": pair.workload, "variant": pair.variant, "status": result.status}
        done[pair.trial.key] = line | {"metrics": kept, "date": result.date, "seconds": round(result.seconds, 1)}
        STORED.write_text("".join(json.dumps(one) + "\n" for _, one in sorted(done.items())), encoding="utf-8")
        print(pair.workload, pair.variant, excess(pair, done), flush=True)


def excess(pair: Pair, done: dict[str, dict[str, Any]]) -> float | None:
    """How far the variant's test loss is above the plain optimizer's, in percent; None if it was not trained."""
    one = done.get(pair.trial.key)
    if one is None:
        return None
    if one["status"] == "diverged":
        return float("inf")
    return 100 * (one["metrics"]["test_loss"] / pair.plain.test - 1)


def table() -> str:
    """Both halves as Markdown."""
    done, lines = read(), [f"| workload | half | plain | {' | '.join(VARIANTS)} |", "|---" * (3 + len(VARIANTS)) + "|"]
    for half in ("choosing", "held-out"):
        rows: dict[str, dict[str, float | None]] = {}
        plain = {}
        for pair in pairs(half):
            rows.setdefault(pair.workload, {})[pair.variant] = excess(pair, done)
            plain[pair.workload] = pair.plain.test
        for name, row in rows.items():
            if all(value is None for value in row.values()):
                continue
            cells = [_percent(row.get(variant)) for variant in VARIANTS]
            lines.append(f"| {name} | {half} | {plain[name]:.4f} | {' | '.join(cells)} |")
        found = [[v for row in rows.values() if (v := row.get(variant)) is not None] for variant in VARIANTS]
        cells = [f"{_percent(statistics.median(some))} ({len(some)})" if some else "·" for some in found]
        lines.append(f"| median | {half} |  | {' | '.join(cells)} |")
    return "\n".join(lines)


def _percent(value: float | None) -> str:
    return "·" if value is None else "diverged" if value == float("inf") else f"{value:+.1f}".replace("-", "−")


def main() -> None:
    """Train, or write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("half", nargs="?", choices=("choosing", "held-out"))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--variants", nargs="*", default=[], choices=VARIANTS)
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.half:
        train(given.half, given.limit, given.only, given.variants)
    if given.write:
        text = given.write.read_text(encoding="utf-8")
        start, rest = text.split(BEGIN)[0], text.split(END)[1]
        given.write.write_text(f"{start}{BEGIN}\n{table()}\n{END}{rest}", encoding="utf-8")
    else:
        print(table())


if __name__ == "__main__":
    main()
