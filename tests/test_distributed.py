"""Two gloo processes of the distributed example: the weights and the numbers of one, checkpoints, and sudden death.

Weights are held against those of one process in float64, where what is left is the order of sums: 1e-11 of a tensor's
norm. In float32 rounding is left: 1e-5 for rotational AdamW, and 5e-3 for Muon, which makes as much of directions with
small singular values as of the others.
"""

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import equipoise as eq
from tests import ROOT, forked

EXAMPLE = ROOT / "examples" / "distributed.py"
OPTIMIZERS = ("rotational_adamw", "muon")
EXACT = 1e-11
ROUNDED = {"rotational_adamw": 1e-5, "muon": 5e-3}
HALF, WHOLE = 5, 10

pytestmark = pytest.mark.skipif(
    not dist.is_available() or not dist.is_gloo_available() or not Path("/proc/self/environ").exists(),
    reason="needs Linux and torch.distributed with gloo",
)


def torchrun(*command: Any) -> list[str]:
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return [*start, *map(str, command)]


SCRIPT = """
import os, runpy, sys, torch
torch.set_default_dtype(getattr(torch, sys.argv.pop(1)))
torch.set_num_threads(1)
runpy.run_path(sys.argv[0], run_name="__main__")
sys.stderr.flush()
os._exit(0)  # threads of gloo may outlive the group, and abort a process that ends by itself
"""


def example(
    out: Path, optimizer: str, mode: str = "ddp", until: int = WHOLE, *more: str, dtype: str = "float64", ranks: int = 2
) -> None:
    """Run the example in so many processes."""
    program = SCRIPT.replace("sys.argv[0]", repr(str(EXAMPLE)))
    words = ("--output", out, "--optimizer", optimizer, "--mode", mode, "--until", until, *more)
    codes, said = forked.ranks("-c", program, dtype, *words, count=ranks)
    assert codes == [0] * ranks, said
    assert "Traceback" not in said, said
    assert "watching failed" not in said, said


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every run that is not killed: alone, in two processes, and alone from their checkpoints."""
    out, resume = tmp_path_factory.mktemp("runs"), "--resume"
    for name in OPTIMIZERS:
        example(out / f"one-{name}", name, ranks=1)
        for mode in ("ddp", "fsdp"):
            example(out / f"{mode}-{name}", name, mode)
        example(out / f"parts-{name}", name, "fsdp", HALF)
        example(out / f"parts-{name}", name, "fsdp", WHOLE, resume)
        shutil.copytree(out / f"parts-{name}", out / f"fewer-{name}")
        # As if the job had died before its second checkpoint was whole.
        (out / f"fewer-{name}" / f"step-{WHOLE:06}" / ".metadata").unlink()
        example(out / f"fewer-{name}", name, "ddp", WHOLE, resume, ranks=1)
        example(out / f"one-rounded-{name}", name, dtype="float32", ranks=1)
        example(out / f"rounded-{name}", name, "fsdp", dtype="float32")
    example(out / "more", "rotational_adamw", until=HALF, ranks=1)
    example(out / "more", "rotational_adamw", "fsdp", WHOLE, resume)
    example(out / "parts-ddp", "muon", "ddp", HALF)
    example(out / "parts-ddp", "muon", "ddp", WHOLE, resume)
    return out


def weights(out: Path) -> dict[str, torch.Tensor]:
    """The weights of the last checkpoint."""
    dcp_to_torch_save(out / f"step-{WHOLE:06}", out / "whole.pt")
    return torch.load(out / "whole.pt", weights_only=False)["model"]


def apart(one: Path, other: Path) -> float:
    """How far two runs ended from each other, as the largest share of a tensor's norm."""
    here, there = weights(one), weights(other)
    assert here.keys() == there.keys()
    return max(float((here[k] - there[k]).norm() / here[k].norm()) for k in here)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_two_processes_end_with_the_weights_of_one(runs: Path, mode: str, optimizer: str) -> None:
    assert apart(runs / f"one-{optimizer}", runs / f"{mode}-{optimizer}") < EXACT


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_in_float32_they_differ_by_rounding(runs: Path, optimizer: str) -> None:
    assert 0 < apart(runs / f"one-rounded-{optimizer}", runs / f"rounded-{optimizer}") < ROUNDED[optimizer]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_the_run_has_the_numbers_of_whole_tensors(runs: Path, mode: str, optimizer: str) -> None:
    with (
        eq.Run.open(runs / f"one-{optimizer}" / "run") as one,
        eq.Run.open(runs / f"{mode}-{optimizer}" / "run") as two,
    ):
        assert list(one.tensors) == list(two.tensors)
        assert "layers.0.attention.kv.weight" in two.tensors
        for name, tensor in one.tensors.items():
            other = two.tensors[name]
            assert dataclasses.replace(other, info=tensor.info) == tensor
            assert other.info.keys() == tensor.info.keys()
            for key, value in tensor.info.items():  # sums of parts, in another order
                same = pytest.approx(value, rel=1e-12) if isinstance(value, float) else value
                assert other.info[key] == same, key
            for quantity in ("norm", "rotation", "update", "grad_norm", "relative_update", "momentum_norm"):
                here, there = one.series(quantity, name), two.series(quantity, name)
                first = 2 if quantity == "momentum_norm" else 1  # before the first step there is none
                assert there.steps.tolist() == list(range(first, WHOLE + 1)), "every step, once"
                np.testing.assert_allclose(there.values, here.values, rtol=1e-6, err_msg=f"{quantity} of {name}")
        np.testing.assert_allclose(two.series("loss").values, one.series("loss").values, rtol=1e-12)
        assert two.status == "finished"
        assert [f.code for f in two.findings] == [f.code for f in one.findings]
        last = {name: float(two.series("norm", name).values[-1]) for name in two.tensors}
    for name, w in weights(runs / f"{mode}-{optimizer}").items():
        assert last[name] == pytest.approx(float(w.norm()), rel=1e-6), "true norms"


@pytest.mark.parametrize(("name", "writers"), [("ddp-muon", 1), ("fsdp-muon", 1), ("parts-muon", 2)])
def test_one_process_writes_one_run(runs: Path, name: str, writers: int) -> None:
    """And another one after a resume."""
    out = runs / name
    assert {p.name for p in out.iterdir() if p.is_dir()} == {"run", f"step-{HALF:06}", f"step-{WHOLE:06}"}
    with eq.Run.open(out / "run") as run:
        assert run.check() == []
        assert len(run._archive.sessions) == writers


@pytest.mark.parametrize("name", [*OPTIMIZERS, "ddp"])
def test_stopped_and_resumed_is_not_stopped(runs: Path, name: str) -> None:
    """On as many processes: to the bit."""
    whole, parts = weights(runs / ("ddp-muon" if name == "ddp" else f"fsdp-{name}")), weights(runs / f"parts-{name}")
    assert whole.keys() == parts.keys()
    for key, value in whole.items():
        assert torch.equal(value, parts[key]), key


@pytest.mark.parametrize(
    ("saved", "whole"), [("more", "one-rotational_adamw"), *((f"fewer-{o}", f"fsdp-{o}") for o in OPTIMIZERS)]
)
def test_goes_on_with_another_number_of_processes(runs: Path, saved: str, whole: str) -> None:
    """From one process on two, and from two on one; the run goes on, too."""
    assert apart(runs / whole, runs / saved) < EXACT
    with eq.Run.open(runs / saved / "run") as run, eq.Run.open(runs / whole / "run") as right:
        assert run.status == "finished"
        for name in run.tensors:
            series = run.series("norm", name)
            assert series.steps.tolist() == list(range(1, WHOLE + 1))
            np.testing.assert_allclose(series.values, right.series("norm", name).values, rtol=1e-6)


def rank_pids(parent: int) -> dict[int, int]:
    """The processes that torchrun has started, by rank."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                words = dict(w.split("=", 1) for w in (entry / "environ").read_text().split("\0") if "=" in w)
                found[int(words["RANK"])] = int(entry.name)
        except (OSError, KeyError):
            continue
    return found


def steps_of(path: Path) -> int:
    """How many steps of a run can be read now."""
    try:
        with eq.Run.open(path) as run:
            return len(run.series("loss"))
    except ValueError:  # it has not begun
        return 0


@pytest.mark.parametrize(("rank", "mode"), [(1, "fsdp"), (0, "ddp")])
def test_a_process_that_dies_leaves_a_readable_run(tmp_path: Path, rank: int, mode: str) -> None:
    """The second one, and the one that writes."""
    command = torchrun(EXAMPLE, "--output", tmp_path, "--mode", mode, "--until", 1_000_000)
    started = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        end = time.monotonic() + 600
        while (before := steps_of(tmp_path / "run")) < 8 and time.monotonic() < end:
            assert started.poll() is None
            time.sleep(0.2)
        os.kill(rank_pids(started.pid)[rank], signal.SIGKILL)
        assert started.wait(timeout=300) != 0, "torchrun ends the others, and nobody waits for the dead"
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGKILL)
    with eq.Run.open(tmp_path / "run") as run:
        # Where the other one is killed, the one that writes sees an exception, or torchrun's SIGTERM, or is ended.
        assert run.status in (("unclosed",) if rank == 0 else ("unclosed", "crashed", "interrupted"))
        assert run.check() == []
        norms = run.series("norm", "head.weight")
        assert len(norms) >= before >= 8
        assert norms.steps.tolist() == list(range(1, len(norms) + 1))
        assert np.isfinite(norms.values).all()


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 60
