"""What rotational twins cost or gain on the lab's workloads, at the settings that were best for the plain optimizer.

    python benchmarks/rotation.py choosing [--limit 3] [--seeds 0 1]    # train what is missing, cheapest first
    python benchmarks/rotation.py --write docs/rotation.md

The plain optimizer's outcome is the stored one of the sweep for seed 0, which its setting was chosen on; others are
trained here. Trials are stored in `rotation.jsonl`.
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
COLD_BEGIN, COLD_END = "<!-- begin: warmup -->", "<!-- end: warmup -->"

VARIANTS: dict[str, dict[str, Any]] = {
    "step": {"angle": "step"},
    "equilibrium": {"angle": "equilibrium"},
    "forecast": {"angle": "forecast"},
    "forecast, gains": {"angle": "forecast", "gains": True},
    "all matrices": {},
}
"""Options of the twin; "all matrices" is the class alone changed, so that embeddings and output layers turn, too."""

LADDER = {"step, lr / 2": 0.5, "step, lr × 2": 2.0}
"""The twin by its own step at other lrs."""

COLD = {"step, no warmup": "step", "equilibrium, no warmup": "equilibrium"}
"""Twins without the warmup that the plain optimizer was best with, and with it."""

PLAIN = "plain"
"""The plain optimizer itself, where it is trained with other seeds than the sweep's."""

EITHER = "step or equilibrium"
"""The one with the lower validation loss: all the tuning that the twin is given here."""

EVERY = (*VARIANTS, *LADDER, *COLD, PLAIN)

HALVES = ("choosing", "held-out")
SEEDS = range(4)

CHEAP = sorted(WORKLOADS, key=lambda name: WORKLOADS[name].seconds)
"""Workloads, those that train fastest first."""

CLASSES = {"adamw": "rotational_adamw", "sgdm": "rotational_sgdm", "lion": "rotational_lion", "muon": "rotational_muon"}


@dataclass(frozen=True)
class Pair:
    """A plain optimizer's best known setting on a workload, and a variant of the same trial."""

    workload: str
    variant: str
    plain: StoredTrial
    trial: Trial


def pairs(half: str, seed: int = 0) -> Iterator[Pair]:
    """All of a half with a seed."""
    for name, known in read_all().items():
        if name not in WORKLOADS or WORKLOADS[name].half != half:  # twins of workloads are stored, too
            continue
        best = min((o for o in known.values() if o.status == "finished"), key=lambda o: o.validation)
        for variant, changes in variants(best.trial).items():
            if seed or variant != PLAIN:
                yield Pair(name, variant, best, best.trial.vary(changes | {"seed": seed}))


def variants(plain: Trial) -> dict[str, dict[str, Any]]:
    """What each variant changes of a plain optimizer's trial."""
    found: dict[str, dict[str, Any]] = {PLAIN: {}}
    for variant, options in VARIANTS.items():
        angle = options.get("angle")
        # An equilibrium needs decay, and a forecast of SGD its gradients.
        if (plain.weight_decay == 0 and angle in (None, "equilibrium")) or (
            plain.optimizer == "sgdm" and angle == "forecast"
        ):
            continue
        found[variant] = {"optimizer_options.twin": options} if options else {"optimizer": CLASSES[plain.optimizer]}
    step = {"optimizer_options.twin": VARIANTS["step"]}
    found |= {variant: step | {"lr": plain.lr * factor} for variant, factor in LADDER.items()}
    if plain.warmup:
        found |= {cold: found[warm] | {"warmup": 0} for cold, warm in COLD.items() if warm in found}
    return found


def read() -> dict[str, dict[str, Any]]:
    """Stored outcomes by the trial's key."""
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    return {one["key"]: one for one in map(json.loads, lines)}


def train(half: str, limit: int | None, only: list[str], wanted: list[str], seeds: list[int]) -> None:
    """Train what is missing: variants in their order, seeds, cheapest workload first."""
    torch.set_num_threads(1)
    done = read()
    ahead = [p for seed in seeds for p in pairs(half, seed) if p.trial.key not in done]
    ahead = [p for p in ahead if (not only or p.workload in only) and p.variant in (wanted or VARIANTS)]
    loaded: dict[str, Data] = {}
    for pair in sorted(ahead, key=lambda p: (EVERY.index(p.variant), p.trial.seed, CHEAP.index(p.workload)))[:limit]:
        with tempfile.TemporaryDirectory() as place:
            result = run_trial(pair.trial, Path(place), loaded)
            shutil.rmtree(place, ignore_errors=True)
        if result.status == "failed":
            print(pair.workload, pair.variant, result.error, flush=True)
            continue
        kept = {k: float(f"{v:.6g}") for k, v in result.metrics.items() if k.endswith("_loss")}
        line = {"key": pair.trial.key, "workload": pair.workload, "variant": pair.variant, "status": result.status}
        line |= {"metrics": kept, "date": result.date, "seconds": round(result.seconds, 1)}
        done = read() | {pair.trial.key: line}  # another process may have stored some
        STORED.write_text("".join(json.dumps(one) + "\n" for _, one in sorted(done.items())), encoding="utf-8")
        print(pair.workload, pair.variant, pair.trial.seed, excess(pair, done), flush=True)


def excess(pair: Pair, done: dict[str, dict[str, Any]]) -> float | None:
    """How far the variant's test loss is above the plain optimizer's, in percent; None if one was not trained."""
    one = done.get(pair.trial.key)
    plain = pair.plain.test
    if pair.trial.seed:
        other = done.get(pair.plain.trial.vary({"seed": pair.trial.seed}).key)
        plain = None if other is None else other["metrics"]["test_loss"]
    if one is None or plain is None:
        return None
    if one["status"] == "diverged":
        return float("inf")
    return 100 * (one["metrics"]["test_loss"] / plain - 1)


def table() -> str:
    """Both halves as Markdown."""
    columns = (*VARIANTS, EITHER)
    lines = [f"| workload | half | plain | {' | '.join(columns)} |", "|---" * (3 + len(columns)) + "|"]
    for half in HALVES:
        found, plain = outcomes(half)
        for name, row in found.items():
            cells = [_cell(row.get(column, [])) for column in columns]
            lines.append(f"| {name} | {half} | {plain[name]:.4f} | {' | '.join(cells)} |")
        of = [[statistics.mean(row[column]) for row in found.values() if column in row] for column in columns]
        cells = [f"{_percent(statistics.median(some))} ({len(some)})" if some else "·" for some in of]
        lines.append(f"| median | {half} |  | {' | '.join(cells)} |")
    return "\n".join(lines)


def cold_table() -> str:
    """What leaving warmup out costs each twin, of the loss with it, as Markdown; seed 0."""
    lines = [f"| workload | half | {' | '.join(COLD.values())} |", "|---" * (2 + len(COLD)) + "|"]
    for half in HALVES:
        found, _ = outcomes(half)
        costs: dict[str, list[float]] = {cold: [] for cold in COLD}
        for name, row in found.items():
            cells = {}
            for cold, warm in COLD.items():
                if cold in row and warm in row:
                    cells[cold] = 100 * ((1 + row[cold][0] / 100) / (1 + row[warm][0] / 100) - 1)
                    costs[cold].append(cells[cold])
            if cells:
                lines.append(f"| {name} | {half} | {' | '.join(_percent(cells.get(cold)) for cold in COLD)} |")
        middles = [f"{_percent(statistics.median(some))} ({len(some)})" if some else "·" for some in costs.values()]
        lines.append(f"| median | {half} | {' | '.join(middles)} |")
    return "\n".join(lines)


def outcomes(half: str) -> tuple[dict[str, dict[str, list[float]]], dict[str, float]]:
    """By workload and variant the excess with each seed, and the plain optimizer's test loss."""
    done, plain = read(), dict[str, float]()
    found: dict[str, dict[str, list[float]]] = {}
    either: dict[str, list[tuple[float, float]]] = {}
    for pair in (p for seed in SEEDS for p in pairs(half, seed)):
        plain[pair.workload] = pair.plain.test
        value = excess(pair, done)
        if value is not None:
            found.setdefault(pair.workload, {}).setdefault(pair.variant, []).append(value)
            if pair.trial.seed == 0 and pair.variant in ("step", "equilibrium"):
                validation = done[pair.trial.key]["metrics"].get("validation_loss", float("inf"))
                either.setdefault(pair.workload, []).append((validation, value))
    for name, some in either.items():
        found[name][EITHER] = [min(some)[1]]
    return found, plain


def _cell(values: list[float]) -> str:
    if len(values) < 2:
        return _percent(values[0] if values else None)
    return f"{_percent(statistics.mean(values))} (seeds: {', '.join(map(_percent, values))})"


def _percent(value: float | None) -> str:
    return "·" if value is None else "diverged" if value == float("inf") else f"{value:+.1f}".replace("-", "−")


def main() -> None:
    """Train, or write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("half", nargs="?", choices=HALVES)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--variants", nargs="*", default=[], choices=EVERY)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--write", type=Path)
    given = parser.parse_args()
    if given.half:
        train(given.half, given.limit, given.only, given.variants, given.seeds)
    if given.write:
        text = given.write.read_text(encoding="utf-8")
        for begin, end, made in ((BEGIN, END, table()), (COLD_BEGIN, COLD_END, cold_table())):
            text = f"{text.split(begin)[0]}{begin}\n{made}\n{end}{text.split(end)[1]}"
        given.write.write_text(text, encoding="utf-8")
    else:
        print(table(), cold_table(), sep="\n\n")


if __name__ == "__main__":
    main()
