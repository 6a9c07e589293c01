"""Training steps with and without watching, as ratios measured in one run, interleaved, medians.

    python benchmarks/watch.py
    python benchmarks/watch.py --short

A GPT of about 5 M weights, and a network of 200 small tensors. "every step" measures each step for each layer
(`every=1, neurons=0`), "every step, neurons" with quantiles over neurons, too. The default decides by time which steps
it measures: its ratio is over all steps of a run, the first ones included. Memory is what torch allocates in a measured
optimizer step over what it allocates in one that is not, as a multiple of the weights.

`--short` has only whole runs of a few hundred short steps, where coverage costs more than the 1 % that long runs pay.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import device, features, wait
from numpy.typing import NDArray
from torch import Tensor, nn

import equipoise as eq


class Mlp(nn.Module):
    """Many small layers in a row."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class Gpt(nn.Module):
    """A small GPT: 6 blocks of width 256, 512 tokens known, tied output."""

    def __init__(self, width: int = 256, depth: int = 6, tokens: int = 512) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        make = lambda: nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, batch_first=True, norm_first=True)  # noqa: E731
        self.blocks = nn.ModuleList(make() for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(128))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = self.embedding(x)
        for block in self.blocks:
            x = block(x, src_mask=self.mask, is_causal=True)
        return self.norm(x) @ self.embedding.weight.T


def gpt_loop() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = Gpt().to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = (torch.randint(512, (4, 128)).to(device()) for _ in range(2))

    def step() -> Tensor:
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


def mlp_loop() -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]:
    torch.manual_seed(0)
    model = Mlp(100, 64).to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(512, 64).to(device())

    def step() -> Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


WAYS: dict[str, dict[str, Any]] = {
    "every step": {"every": 1, "neurons": 0, "spectra": 0},
    "every step, neurons": {"every": 1, "spectra": 0},
}


def ratios(make: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]], rounds: int) -> None:
    """Print the ratio of each way of watching to not watching."""
    with tempfile.TemporaryDirectory() as folder:
        jobs: dict[str, Callable[[], object]] = {"not watched": make()[2]}
        watches = []
        for name, options in WAYS.items():
            model, optimizer, step = make()
            seen = eq.watch(model, optimizer, Path(folder, name), **options)
            watches.append(seen)
            jobs[name] = lambda step=step, seen=seen: seen.log(loss=step())
        wall, cpu = both_ratios(jobs, rounds)
        for name in WAYS:
            print(f"  {name}: {wall[name]:.3f}; by the process's CPU time {cpu[name]:.3f}")
        for seen in watches:
            seen.close()


def both_ratios(jobs: dict[str, Callable[[], object]], rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    """How much longer each job takes than the first, by the clock and by CPU time, all threads together.

    The jobs are interleaved, in an order that changes from round to round, as what a job leaves in the caches is paid
    for by the next one. The median of the rounds' own ratios is taken: a machine that slows down slows whole rounds.
    """
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    order = list(jobs)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds + 2):
        shuffle(order)
        for name in order:
            start, work = time.perf_counter(), time.process_time()
            jobs[name]()
            wait(device())
            times[name].append((time.perf_counter() - start, time.process_time() - work))
    base, *others = times
    wall, cpu = (
        {n: statistics.median(t[i] / b[i] for t, b in zip(times[n][2:], times[base][2:], strict=True)) for n in others}
        for i in (0, 1)
    )
    return wall, cpu


def whole_run(make: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]], steps: int) -> None:
    """Print the ratio of the default over all steps of a run, each step beside one that is not watched."""
    with tempfile.TemporaryDirectory() as folder:
        plain = make()[2]
        model, optimizer, step = make()
        for job in (plain, step):
            job()
        watched: list[tuple[float, float]] = []
        bare: list[tuple[float, float]] = []
        with eq.watch(model, optimizer, Path(folder, "run")) as seen:

            def logged() -> None:
                seen.log(loss=step())

            for _ in range(steps):
                for job, times in ((plain, bare), (logged, watched)):
                    start, work = time.perf_counter(), time.process_time()
                    job()
                    wait(device())
                    times.append((time.perf_counter() - start, time.process_time() - work))
            share = seen.share
        with eq.Run.open(Path(folder, "run")) as run:
            rows = len(run.series("balance_layers"))
    ratio, work = (sum(t[i] for t in watched) / sum(t[i] for t in bare) for i in (0, 1))
    # One slow step of a busy machine moves a sum: the median of the steps' own ratios says what most of them pay.
    middle = statistics.median(w[1] / b[1] for w, b in zip(watched, bare, strict=True))
    print(f"  default, {steps} steps, {rows} of them measured: {ratio:.3f}; by CPU time {work:.3f}")
    print(f"    median of the steps' own ratios of CPU time {middle:.3f}, watch's own count {1 + share:.3f}")


SHORT = (
    (4, 32, 64), (4, 128, 64), (4, 128, 256), (4, 128, 512), (4, 128, 1024), (4, 256, 256), (4, 512, 256),
    (16, 32, 64), (16, 64, 128),
)  # fmt: skip
"""Layers, width and batch of networks, from steps of a fraction of a millisecond up."""


def short_loop(layers: int, width: int, batch: int) -> tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]:
    torch.manual_seed(0)
    hidden = [module for _ in range(layers - 1) for module in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(width, 10)).to(device())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x, y = torch.randn(batch, width).to(device()), torch.randint(10, (batch,)).to(device())

    def step() -> Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, optimizer, step


def short_run(size: tuple[int, int, int], steps: int, watched: bool) -> tuple[float, float, float, int, float]:
    """A whole run of a new network, watched by the default or not.

    Returns:
        Seconds by the clock and of the processor, all threads together, of all steps; seconds of the clock that
        beginning and ending to watch took; measured steps; the share that watch says it took.
    """
    model, optimizer, step = short_loop(*size)
    for _ in range(5):
        step()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        seen = eq.watch(model, optimizer, Path(folder, "run"), quiet=True) if watched else None
        start, work = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = step().item()
            if seen is not None:
                seen.log(loss=loss)
        wall, cpu, end = time.perf_counter() - start, time.process_time() - work, time.perf_counter()
        if seen is None:
            return wall, cpu, 0.0, 0, 0.0
        seen.close()
        around = start - begin + time.perf_counter() - end
        with eq.Run.open(Path(folder, "run")) as run:
            return wall, cpu, around, len(run.series("balance_layers")), seen.share


def short_runs(repeats: int = 5) -> None:
    """Print what watching takes of whole short runs, one with and one without in turn; medians of their ratios."""
    short_run(SHORT[0], 50, True)  # loads code
    print("  layers  width  batch  a step    steps  measured  watching adds  by CPU time  it says  begin and end")
    for size, steps in ((SHORT[0], 4000), *((size, 400) for size in SHORT)):
        found = []
        for k in range(1 if steps > 400 else 3 if size[1] > 256 else repeats):
            pair = {watched: short_run(size, steps, watched) for watched in ((False, True), (True, False))[k % 2]}
            found.append((pair[False], pair[True]))
        wall, cpu = (100 * (statistics.median(w[i] / p[i] for p, w in found) - 1) for i in (0, 1))
        bare = 1e3 * statistics.median(p[0] for p, _ in found) / steps
        around, share = 1e3 * statistics.median(w[2] for _, w in found), statistics.median(w[4] for _, w in found)
        print(f"  {size[0]:6} {size[1]:6} {size[2]:6} {bare:6.2f} ms {steps:7,} {found[0][1][3]:9}", end="")
        print(f" {wall:12.1f} % {cpu:10.1f} % {100 * share:6.1f} % {around:9.0f} ms", flush=True)


def memory(make: Callable[[], tuple[nn.Module, torch.optim.Optimizer, Callable[[], Tensor]]]) -> None:
    """Print the memory of a measured step, and what is left of it, as multiples of the weights."""
    model, optimizer, step = make()
    step()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    with tempfile.TemporaryDirectory() as folder, eq.watch(model, optimizer, Path(folder, "run"), every=4, spectra=0):
        held: list[NDArray[np.int64]] = []
        for _ in range(8):  # steps 1, 4 and 8 are measured
            held.append(allocated(optimizer.step))
    most, least = held[7].max(initial=0), held[6].max(initial=0)
    print(f"  memory of a measured step: {(most - least) / size:.2f} of the weights", end="")
    print(f" ({(most - least - size) / 2**20:+.1f} MB beside one copy); left after it: {held[7][-1] / size:.3f}")


def allocated(job: Callable[[], object]) -> NDArray[np.int64]:
    """Bytes that torch holds more than before a job, after each allocation in it."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
        job()
    events: list[Any] = [e for e in seen.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    return np.cumsum([0, *(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns()))])


def main() -> None:
    print(features())
    if "--short" in sys.argv[1:]:
        return short_runs()
    for title, make, rounds, steps in (("GPT, 5 M weights", gpt_loop, 80, 200), ("200 tensors", mlp_loop, 300, 800)):
        model = make()[0]
        print(f"{title}: {sum(p.numel() for p in model.parameters()):,} weights; time with watching / without")
        ratios(make, rounds)
        whole_run(make, steps)
        memory(make)
    print("Short runs; time that watching adds to all steps, by the clock and by CPU time of all threads")
    short_runs()


if __name__ == "__main__":
    main()
