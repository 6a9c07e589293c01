"""Memory of a watched training and of a live board that is looked at, over time.

    python benchmarks/soak.py --minutes 60

A small network is trained under watch, every step measured, in one process; `equipoise board` shows its directory from
another. The list, its JSON and the page of the run are asked for again and again, and one page stays open and takes
every refresh. Printed: steps, views and the resident memory of both; at the end the growth per 1,000 steps and per
view, by a straight line through the second half. The board's memory is a saw: a page of a longer run reads more, up to
the next coarser level of the file, where it falls. `--steps N` lets the training wait after N steps: a board that still
grows then does so with its views alone. Needs Linux, which says in /proc how much memory a process has.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

BOARD = ("-m", "equipoise.cli", "board", "--port", "0")


@dataclass(frozen=True)
class Sample:
    """How far both are, and their memory in MB."""

    seconds: float
    steps: int
    views: int
    trainer: float
    board: float
    late: int = 0
    """Views that had no answer in Bokeh's 20 s, as when other work takes the processors."""


def train(folder: Path, pause: float, steps: int | None) -> None:
    """Train and watch, so many steps or for ever, until the process is ended."""
    import torch
    from torch import nn

    import equipoise as eq

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.LayerNorm(32), nn.Linear(32, 32), nn.Linear(32, 4))
    optimizer = eq.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    with eq.watch(model, optimizer, folder, every=1) as watch:
        for _ in itertools.count() if steps is None else range(steps):
            optimizer.zero_grad()
            loss = (model(torch.randn(16, 16)) - 1).square().mean()
            loss.backward()
            optimizer.step()
            watch.log(loss=loss)
            time.sleep(pause)
        threading.Event().wait()


def resident(pid: int) -> float:
    """Memory of a process that is in RAM, in MB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def ask(address: str) -> bytes:
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read()


@contextmanager
def process(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A Python process, ended at the end."""
    env = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    made = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, text=True, env=env)
    try:
        yield made
    finally:
        made.terminate()
        made.communicate(timeout=60)


def soak(
    folder: Path, seconds: float, *, every: float, pause: float, steps: int | None = None, board: Sequence[str] = BOARD
) -> Iterator[Sample]:
    """Train, show and look, and say how it is every so many seconds.

    Args:
        folder: an empty directory.
        seconds: how long.
        every: seconds between samples.
        pause: seconds between steps of training, and between views.
        steps: after these the training waits; None: it goes on.
        board: arguments of Python that start a board; the directory is added.
    """
    from bokeh.client import pull_session

    with ExitStack() as stack:
        bound = () if steps is None else ("--steps", str(steps))
        trainer = stack.enter_context(process(__file__, "--train", str(folder / "run"), "--pause", str(pause), *bound))
        shown = stack.enter_context(process(*board, str(folder)))
        assert shown.stdout is not None
        line = shown.stdout.readline()
        found = re.search(r"(http://\S+:\d+)/", line)
        if found is None:
            raise RuntimeError(f"the board did not start: {line}{shown.stdout.read()}")
        url = found.group(1)
        begun, views, late = time.monotonic(), 0, 0
        while not json.loads(ask(f"{url}/api/runs"))["rows"]:
            time.sleep(0.1)
            if trainer.poll() is not None or time.monotonic() > begun + 60:
                raise RuntimeError("the training did not start")
        kept = pull_session(url=f"{url}/run", arguments={"run": "run"})
        stack.callback(kept.close)
        begun = last = time.monotonic()
        while (now := time.monotonic()) < begun + seconds:
            ask(f"{url}/")
            rows = json.loads(ask(f"{url}/api/runs?columns=steps"))["rows"]
            ask(f"{url}/run?run=run")
            try:
                view = pull_session(url=f"{url}/run", arguments={"run": "run"})
            except OSError:
                late += 1
                if shown.poll() is not None:
                    raise
                continue
            assert view.document.get_model_by_name("run-notes") is not None, "the page shows no run"
            view.close()
            kept.force_roundtrip()  # takes in what the board has sent
            views += 1
            if now >= last + every:
                last = now
                for name, one in (("training", trainer), ("board", shown)):
                    if one.poll() is not None:
                        raise RuntimeError(f"the {name} has ended, with {one.returncode}")
                steps = int(rows[0]["cells"][-1].replace(",", "") or 0)
                yield Sample(now - begun, steps, views, resident(trainer.pid), resident(shown.pid), late)
            time.sleep(pause)


def growth(samples: Sequence[Sample], memory: str, over: str) -> float:
    """MB per 1,000 steps or views, by a straight line through the second half."""
    late = samples[len(samples) // 2 :]
    x, y = (np.array([getattr(s, name) for s in late], float) for name in (over, memory))
    return 1000 * float(np.polyfit(x, y, 1)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between steps, and between views")
    parser.add_argument("--steps", type=int, help="train so many steps, then wait. Default: train on")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train is not None:
        train(given.train, given.pause, given.steps)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # and so end both processes
    samples: list[Sample] = []
    print("   minutes      steps      views   training MB   board MB", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        seconds, every = 60 * given.minutes, min(30.0, 6 * given.minutes)
        for s in soak(Path(folder), seconds, every=every, pause=given.pause, steps=given.steps):
            samples.append(s)
            print(f"{s.seconds / 60:10.1f} {s.steps:10,} {s.views:10,} {s.trainer:13.1f} {s.board:10.1f}", flush=True)
    if len(samples) > 3:
        if given.steps is None:
            print(f"training: {growth(samples, 'trainer', 'steps'):+.3f} MB per 1,000 steps")
        per = growth(samples, "board", "views") / 1000
        print(f"board: {per:+.3f} MB per view; {samples[-1].late} had no answer")


if __name__ == "__main__":
    main()
