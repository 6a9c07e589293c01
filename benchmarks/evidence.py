"""Run every experiment of the lab, write its page and its outcome, and the ledger of claims: docs/evidence.md.

Trials that are stored with the package or lie in `lab/NAME-PRESET` are not run again, so that a killed run goes on.
`--only` takes some alone. Seeds come in rounds until all claims are decided, within `--seeds` and `--hours`. `--again`
trains nothing: it makes outcomes, pages and ledger again from the trials that are stored.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from equipoise.lab.experiments import PRESETS, catalogue, find
from equipoise.lab.report.cost import write as write_cost
from equipoise.lab.report.ledger import evidence, is_kept, keep, ledger, outcomes
from equipoise.lab.report.page import write_marked, write_page
from equipoise.lab.report.terminal import bars
from equipoise.lab.train.run_experiment import OUTCOME, run_experiment
from equipoise.lab.workloads import floors

DOCS = Path("docs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=PRESETS, default="medium")
    parser.add_argument("--output", type=Path, default=Path("lab"), help="folder of trials")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seeds", type=int, help="at most so many of a setting; default: the preset's")
    parser.add_argument("--hours", type=float, help="of training an experiment, at most")
    parser.add_argument(
        "--only", nargs="*", choices=list(catalogue()), help="these experiments alone; none: the ledger"
    )
    parser.add_argument("--again", action="store_true", help="train nothing; judge what is stored again")
    given = parser.parse_args()
    kept = {name: content for name, content in outcomes().items() if is_kept(name, content)}
    for name in kept if given.again else catalogue() if given.only is None else given.only:
        preset = kept[name]["preset"] if given.again else given.preset
        seeds = kept[name]["seeds"] if given.again else given.seeds
        experiment, folder = find(name), given.output / f"{name}-{preset}"
        began = time.perf_counter()
        with bars() as report:
            outcome, done = run_experiment(
                experiment, folder, preset=preset, workers=given.workers, report=report, seeds=seeds, hours=given.hours
            )
        floors.measure(trials=[d.trial for d in done])
        write_page(experiment, outcome, done, DOCS / "lab", preset=preset)
        keep(folder / OUTCOME)
        failed = [d.result.error.splitlines()[-1] for d in done if d.result.status == "failed"]
        told = f"; {len(failed)} FAILED: {failed[0]}" if failed else ""
        print(f"{name}: {len(done)} trials, {time.perf_counter() - began:.0f} s{told}")
    write_marked(DOCS / "evidence.md", "evidence", evidence(ledger()))
    write_cost(DOCS / "lab.md", given.preset)


if __name__ == "__main__":
    main()
