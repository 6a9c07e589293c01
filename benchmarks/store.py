"""Speed of the run store, as ratios measured in one run.

- append: what a training loop pays to hand over a row, over the time of copying the row
- stored: time until all rows are on disk, over that of `np.save` of the same numbers
- size: the file over the bytes of the numbers (the pyramid and SQLite's own pages)
- draw: one series in 2,000 points at most, over `np.load` of all the numbers
- draw all: every series in 2,000 points, over the same
- one series in full: every step of one series, over the same

`--full` is 200 tensors × 10 quantities × 100,000 steps, 800 MB.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import HOST, features
from timing import medians

from equipoise.monitor import Column, Layout, Run, RunWriter


def write(path: Path, values: np.ndarray, layout: Layout) -> tuple[float, float]:
    """Seconds in `append`, and seconds until everything is stored; no row is dropped."""
    start = time.perf_counter()
    spent = 0.0
    with RunWriter(path, layouts=[layout], strict=True) as writer:
        for step, row in enumerate(values, start=1):
            before = time.perf_counter()
            writer.append(step, row)
            spent += time.perf_counter() - before
            if step % 2000 == 0:  # no training is as fast as this loop
                writer.flush()
        writer.flush()
        stored = time.perf_counter() - start
    assert not writer.findings
    return spent, stored


def main() -> None:
    print(features(HOST))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="100,000 steps of 2,000 numbers")
    steps, columns = (100_000, 2000) if parser.parse_args().full else (20_000, 500)
    values = np.random.default_rng(0).normal(size=(steps, columns)).astype(np.float32)
    layout = Layout(tuple(Column("norm", f"t{i}") for i in range(columns)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        spent, stored = write(path, values, layout)
        size = sum(p.stat().st_size for p in path.iterdir()) / values.nbytes
        start = time.perf_counter()
        plain = Path(folder) / "plain.npy"
        np.save(plain, values)
        saved = time.perf_counter() - start
        copied = medians({"copy": lambda: [row.copy() for row in values[:1000]]})["copy"] / 1000

        def draw() -> None:
            with Run.open(path) as run:
                assert 0 < len(run.series("norm", "t7", points=2000)) <= 2000

        def draw_all() -> None:
            with Run.open(path) as run:
                assert run.table(points=2000).values.shape[1] == columns

        def in_full() -> None:
            with Run.open(path) as run:
                assert len(run.series("norm", "t7")) == steps

        seconds = medians(
            {"load": lambda: np.load(plain), "draw": draw, "draw all": draw_all, "in full": in_full}, rounds=3
        )
    load = seconds["load"]
    print(f"append    {spent / steps / copied:7.1f}× copying the row ({1e6 * spent / steps:.0f} µs here)")
    print(f"stored    {stored / saved:7.1f}× np.save ({steps / stored:,.0f} rows a second here)")
    print(f"size      {size:7.2f}× the numbers")
    for name in ("draw", "draw all", "in full"):
        print(f"{name:9} {seconds[name] / load:7.2f}× np.load of everything ({seconds[name]:.3f} s here)")


if __name__ == "__main__":
    main()
