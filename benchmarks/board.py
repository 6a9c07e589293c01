"""Weight of the board's pages, and time until they are drawn, as ratios measured in one run.

- weight: bytes of a file over those of BokehJS alone, which every page must carry
- make: seconds to write the file over those of Bokeh's `file_html` of one empty figure
- drawn: time until a browser has drawn it, over that of a page with one empty figure (needs chromium)
- live: the same for a page of the live board, its server included
- list (`--runs 1000`): to read so many runs, and to answer the page of the list when all are read, over reading one

The pages are of a run of 20 layers × 2,000 steps, one of 200 layers × 100,000 steps (`--full`; else 5,000 steps),
and of a plan.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bokeh.embed import file_html
from bokeh.plotting import figure
from bokeh.resources import INLINE
from machine import HOST, features

import equipoise as eq
from equipoise.board.listing import Runs

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "examples")]
from tests.board import example_runs  # noqa: E402

READY = "document.body.dataset.ready === '1'"
EMPTY = "window.Bokeh && Bokeh.documents.length > 0 && Bokeh.documents[0].is_idle"


def empty_page(path: Path) -> Path:
    fig: Any = figure(height=200)
    fig.line([1, 2], [1, 2])
    path.write_text(file_html(fig, INLINE, title="empty"))
    return path


def drawn(browser: Any, address: str, condition: str) -> float:
    """Milliseconds from asking for a page until it is drawn."""
    page = browser.new_page()
    start = time.perf_counter()
    page.goto(address)
    while not page.evaluate(condition):
        time.sleep(0.005)
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    spent = 1e3 * (time.perf_counter() - start)
    page.close()
    return spent


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    path = job()
    return time.perf_counter() - start, path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="100,000 steps of 200 layers")
    parser.add_argument("--runs", type=int, default=100, help="runs of the list")
    given = parser.parse_args()
    print(features(HOST))
    steps = 100_000 if given.full else 5_000
    lists(given.runs)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        runs = root / "runs"
        example_runs.made(runs / "small", [f"layer{i}.weight" for i in range(20)], rows=2000)
        example_runs.large(runs / "large", steps=steps)
        plan = eq.plan(optimizer="adamw", lr=3e-4, weight_decay=0.1, steps=20_000, schedule="cosine", warmup=500)
        eq.board.report([runs / "small"], root / "warm.html")  # imports, templates
        base, empty = timed(lambda: empty_page(root / "empty.html"))
        jobs: dict[str, Callable[[], Path]] = {
            "run of 20 layers": lambda: eq.board.report([runs / "small"], root / "small.html"),
            f"run of 200 layers × {steps:,}": lambda: eq.board.report([runs / "large"], root / "large.html"),
            "two runs": lambda: eq.board.report([runs / "small", runs / "large"], root / "two.html"),
            "plan": lambda: eq.board.write_plan(plan, root / "plan.html"),
        }
        pages = {name: timed(job) for name, job in jobs.items()}
        for name, (seconds, path) in pages.items():
            size, whole = path.stat().st_size / 1e6, path.stat().st_size / empty.stat().st_size
            print(
                f"{name:28} weight {whole:5.2f}× ({size:.2f} MB)   make {seconds / base:5.1f}× ({seconds:.2f} s here)"
            )
        browse(empty, {name: path for name, (_, path) in pages.items()}, runs)


def lists(count: int) -> None:
    """Print what a list of so many runs costs."""
    with tempfile.TemporaryDirectory() as folder:
        for i in range(count):
            meta = {"seed": i, "model": f"gpt{i % 3}", "tags": ["good"] if i % 10 == 0 else []}
            example_runs.logged(Path(folder) / f"sweep{i % 7}" / f"run{i}", lr=10.0 ** -(i % 4), meta=meta, steps=120)
        runs = Runs(folder)
        names = runs.names()
        read, _ = timed(lambda: runs.lines(names=names))
        asks = {"as it opens": {}, "filtered and sorted": {"filter": "lr>1e-3 tags=good", "sort": "validation"}}
        print(f"{f'list of {count:,} runs':28} read   {read:5.2f} s here")
        for name, asked in asks.items():
            seconds, _ = timed(lambda asked=asked: runs.answer(asked))
            print(f"{'':28} {name}: {seconds * count / read:5.1f}× reading one run ({1e3 * seconds:.0f} ms here)")


def browse(empty: Path, pages: dict[str, Path], runs: Path) -> None:
    """Print how long pages take to be drawn."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium here: time to the first plot is not measured")
        return
    from playwright.sync_api import sync_playwright

    server = subprocess.Popen(
        [sys.executable, "-u", "-m", "equipoise.cli", "board", str(runs), "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    found = re.search(r"http://\S+:\d+/", server.stdout.readline())
    assert found is not None
    todo = {name: (path.as_uri(), READY) for name, path in pages.items()}
    todo |= {f"live, {n}": (f"{found.group()}run?run={n}", READY) for n in ("small", "large")}
    todo["live, plan"] = (f"{found.group()}plan", READY)
    try:
        with sync_playwright() as engine:
            browser = engine.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            times: dict[str, list[float]] = {name: [] for name in ("", *todo)}
            for _ in range(4):  # interleaved, so that a noisy machine hits all alike
                times[""].append(drawn(browser, empty.as_uri(), EMPTY))
                for name, (address, condition) in todo.items():
                    times[name].append(drawn(browser, address, condition))
            browser.close()
    finally:
        server.terminate()
        server.wait()
    base = statistics.median(times[""][1:])
    for name in todo:
        took = statistics.median(times[name][1:])
        print(f"{name:28} drawn  {took / base:5.2f}× an empty page of Bokeh ({took / 1e3:.2f} s here)")


if __name__ == "__main__":
    main()
