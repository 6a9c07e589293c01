"""What `eq.audit` says of sound setups, how exact its numbers are, and what it costs.

    python benchmarks/audit.py                  all three, for docs/audit.md
    python benchmarks/audit.py --part setups    sound setups: optimizer × model × way to train; no warning is right
    python benchmarks/audit.py --part ranks     the same on two ranks: DDP and FSDP2
    python benchmarks/audit.py --part numbers   inferred lr, decay and averaging factors against those that were set
    python benchmarks/audit.py --part cost      20 steps of 35 M weights with and without an audit, as a ratio

Setups are those of `tests/auditing/setups.py` and `two_ranks.py`; the Trainers and accelerate are in
`tests/auditing/frameworks`.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.auditing.loops import warned  # noqa: E402
from tests.auditing.setups import run, setups  # noqa: E402

import equipoise as eq  # noqa: E402

STEPS = 20


def sound(first: int = 0, every: int = 1) -> None:
    """Run sound setups, and print a row for each way and what was raised."""
    count: Counter[str] = Counter()
    raised: Counter[str] = Counter()
    for name, model, way in setups()[first::every]:
        torch.manual_seed(0)
        try:
            told = warned(run(name, model, way, STEPS))
        except Exception as error:  # a row of the table, like any other
            told = [f"{type(error).__name__}: {error}"]
        count[way] += 1
        raised[way] += bool(told)
        if sum(count.values()) % 50 == 0:
            print(f"{sum(count.values())} setups", file=sys.stderr, flush=True)
        if told:
            print(f"{name} · {model} · {way}: {', '.join(told)}", file=sys.stderr, flush=True)
    print("| way | setups | with a warning |\n|---|---|---|")
    for way, n in count.items():
        print(f"| {way} | {n} | {raised[way]} |")
    print(f"| all | {sum(count.values())} | {sum(raised.values())} |\n")


def ranks() -> None:
    """The sound setups on two ranks, and the faults that must be named."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "told.json"
        launch = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            "2",
            "-m",
            "tests.auditing.two_ranks",
        ]
        subprocess.run([sys.executable, *launch, str(out)], cwd=ROOT, check=True, stderr=subprocess.DEVNULL)
        told = json.loads(out.read_text())
    bad = {k: v[0]["warned"] for k, v in told.items() if "·" in k and (v[0]["warned"] or v[1]["warned"])}
    faults = {k: "audit-ranks" in v[0]["warned"] for k, v in told.items() if "·" not in k and k != "alone"}
    print(f"two ranks: {sum('·' in k for k in told)} setups, with a warning: {bad or 0}; faults named: {faults}\n")


def numbers() -> None:
    """Deviations of inferred numbers from those that were set, on all setups whose rule is known."""
    kinds: dict[tuple[str, str], list[float]] = {}
    silent: Counter[tuple[str, str]] = Counter()
    for name, model, way in setups():
        if name in ("AdamW maximize", "Adagrad") or name.startswith("eq.AdamW first"):
            continue
        torch.manual_seed(0)
        bits = "bfloat16" if way == "bf16, kept" else "float32"
        seen = run(name, "wide" if bits == "bfloat16" else model, way, STEPS)
        for track, did, _ in seen._inferred:
            said = track.said[0]
            if (
                not said.dynamics.known
                or said.notes  # what the optimizer is read without
                or did.candidate is None
                or did.candidate.by_rows
                or said.dynamics.move != "decay"
            ):
                continue
            for quantity, value, error, wanted in _quantities(track, did):
                if math.isfinite(error):
                    kinds.setdefault((bits, quantity), []).append(
                        abs(value - wanted) / (wanted if "beta" not in quantity else 1)
                    )
                else:
                    silent[bits, quantity] += 1
    print(
        "| weights | number | tensors that tell it | off by: median | 99 % of them | most | tensors that do not |\n"
        + "|---" * 7
        + "|"
    )
    for (bits, quantity), off in sorted(kinds.items()):
        off.sort()
        late = off[min(len(off) - 1, int(0.99 * len(off)))]
        print(
            f"| {bits} | {quantity} | {len(off)} | {statistics.median(off):.1g} | {late:.1g} | {off[-1]:.1g} "
            f"| {silent[bits, quantity]} |"
        )
    print()


def _quantities(track: Any, did: Any) -> list[tuple[str, float, float, float]]:
    from equipoise.auditing.infer import said_of

    first = track.said[0]
    found = [("lr", abs(did.lr.value), did.lr.error, 1.0)]
    lrs = [s.lr for s in track.said if s.lr > 0]
    if first.weight_decay and did.kind and lrs:
        wanted = first.weight_decay
        if not first.dynamics.coupled:
            wanted = sum(s.dynamics.lost(s.lr, s.weight_decay) * s.lr for s in track.said) / sum(x * x for x in lrs)
        found.append(("weight decay", did.decay.value, did.decay.error, wanted))
    for factor, wanted in said_of(track).named.items():
        if factor in did.factors:
            found.append(("betas", did.factors[factor].value, did.factors[factor].error, wanted))
    return found


def cost(rounds: int) -> None:
    """Time of 20 steps with an audit over that without one, in turn; its analysis apart."""
    from equipoise.lab.models.gpt import Gpt

    torch.manual_seed(0)
    model = Gpt(1000, 64, depth=7, width=640, heads=10)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randint(1000, (2, 64))

    def steps() -> None:
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(x).float().square().mean().backward()
            optimizer.step()

    steps()
    plain, watched, after, count = [], [], [], 0
    for _ in range(rounds):
        begun = time.process_time()
        steps()
        plain.append(time.process_time() - begun)
        begun = time.process_time()
        with eq.audit(model, optimizer, steps=STEPS) as seen:
            steps()
        watched.append(time.process_time() - begun)
        begun = time.process_time()
        count = len(seen.findings)
        after.append(time.process_time() - begun)
    weights = sum(p.numel() for p in model.parameters()) / 1e6
    base = statistics.median(plain)
    print(
        f"{weights:.0f} M weights, {STEPS} steps of {x.numel()} tokens, processor time with an audit / without: "
        f"{statistics.median(watched) / base:.2f}; its analysis takes {statistics.median(after) / base:.2f} of the time"
        f" without ({count} findings)"
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("setups", "ranks", "numbers", "cost"))
    parser.add_argument("--every", type=int, default=1, help="of the setups, only every so many")
    parser.add_argument("--first", type=int, default=0, help="and from which on, to run them in parts")
    parser.add_argument("--rounds", type=int, default=3, help="of the cost")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    for part, job in (("setups", lambda: sound(given.first, given.every)), ("ranks", ranks), ("numbers", numbers),
                      ("cost", lambda: cost(given.rounds))):  # fmt: skip
        if given.part in (None, part):
            job()
