"""The examples run, and what was stopped and resumed ends with the weights of what was not."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import equipoise as eq
from tests import ROOT, forked

EXAMPLES = ROOT / "examples"


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def _loaded(path: Path, *keys: str) -> dict[str, torch.Tensor]:
    found: Any = torch.load(path, weights_only=False)
    for key in keys:
        found = found[key]
    return found


CASES: dict[str, tuple[str | None, Callable[[Path], dict[str, torch.Tensor]]]] = {
    "plain": (None, lambda out: _loaded(out / "checkpoint.pt", "model")),
    "accelerated": ("accelerate", lambda out: _safetensors(out / "checkpoint" / "model.safetensors")),
    "hugging_face": ("transformers", lambda out: _safetensors(out / "checkpoint-40" / "model.safetensors")),
    "lightning_fit": ("lightning", lambda out: _loaded(out / "last.ckpt", "state_dict")),
}


LOADED = {
    "plain": (),
    "accelerated": ("accelerate",),
    "hugging_face": (
        "transformers.trainer",
        "transformers.models.gpt2.modeling_gpt2",
        "equipoise.monitor.frameworks.huggingface",
    ),
    "lightning_fit": ("lightning", "equipoise.monitor.frameworks.lightning"),
}
"""What takes long to import, besides torch."""


def train(name: str, *commands: Sequence[Any]) -> None:
    """The example, once for each command, each in a process of its own."""
    loaded = forked.Server(*LOADED[name], within=forked.server())
    try:
        for words in commands:
            done = loaded.run(EXAMPLES / f"{name}.py", *words)
            assert done.returncode == 0, done.stderr
    finally:
        loaded.close()


@pytest.mark.parametrize("name", CASES)
def test_stopped_and_resumed_is_not_stopped(name: str, tmp_path: Path) -> None:
    needs, weights = CASES[name]
    if needs:
        pytest.importorskip(needs)
    train(name, [tmp_path / "whole"], [tmp_path / "parts", "--until", 20], [tmp_path / "parts"])
    one, two = weights(tmp_path / "whole"), weights(tmp_path / "parts")
    assert one.keys() == two.keys()
    for key, value in one.items():
        assert torch.equal(value, two[key]), key
    with eq.Run.open(tmp_path / "whole" / "run") as whole, eq.Run.open(tmp_path / "parts" / "run") as parts:
        assert whole.status == parts.status == "finished"
        tensor = next(t for t, info in whole.tensors.items() if len(info.shape) == 2)
        long, short = whole.series("norm", tensor), parts.series("norm", tensor)
        # Each part measures its first steps: where both measured, they saw the same.
        _, at, to = np.intersect1d(long.steps, short.steps, return_indices=True)
        assert len(at) >= 5
        assert long.values[at].tolist() == short.values[to].tolist()
        assert short.steps.tolist() == sorted(set(short.steps.tolist()))


def test_a_gpt_is_tuned(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    command = [sys.executable, str(EXAMPLES / "tune_gpt.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"STEPS": "20"}, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("lr ")
    assert 3 < float(done.stdout.split()[-1]) < 7  # ln 256 = 5.5
    assert "8/8" in done.stderr


ENDED = """
import os, runpy, sys
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
os._exit(0)  # the example leaves its process group to the end, where threads of gloo may abort it
"""


@pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs torch.distributed with gloo")
def test_accelerate_steps_the_schedule_once_on_two_processes(tmp_path: Path) -> None:
    """Its own way is once for each process."""
    pytest.importorskip("accelerate")
    codes, said = forked.ranks("-c", ENDED, EXAMPLES / "accelerated.py", tmp_path, "--until", 20)
    assert codes == [0, 0], said
    with eq.Run.open(tmp_path / "run") as run:
        used = run.series("lr/0")
        assert used.steps[-1] > 10
        assert used.values == pytest.approx(eq.schedules.cosine(40, peak=1e-2).values(40)[used.steps - 1])


@pytest.mark.parametrize("name", CASES)
def test_is_short(name: str) -> None:
    assert len((EXAMPLES / f"{name}.py").read_text().splitlines()) < 60
