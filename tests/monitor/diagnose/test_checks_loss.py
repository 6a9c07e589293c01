"""The loss is looked at, whatever was measured: each fault is named, and healthy losses are not."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.monitor import Run
from equipoise.monitor.diagnose.checks_loss import check_loss
from equipoise.monitor.store.layout import Column, Layout, TensorInfo
from equipoise.monitor.store.writer import RunWriter

N = 400
T = np.arange(1, N + 1)


def stored(path: Path, losses: Any, name: str = "loss", every: int = 1) -> Run:
    """A run that has nothing but a logged loss, and a head of ten classes."""
    from equipoise.monitor.store.tables import to_log

    with RunWriter(path) as writer:
        writer.describe(tensors=[TensorInfo("head.weight", (10, 32), role="matrix")])
        writer.layout(Layout((Column(name),), kind="log", dtype="float64"))
        for step in range(every, len(losses) + 1, every):
            writer.append(step, np.array([to_log(float(losses[step - 1]))]), kind="log")
    return Run.open(path)


def codes(path: Path, losses: Any, **options: Any) -> list[str]:
    with stored(path, losses, **options) as run:
        return [f.code for f in check_loss(run, ended=True)]


def noise(scale: float, seed: int = 0) -> np.ndarray:
    return scale * np.random.default_rng(seed).standard_normal(N)


def fall(first: float, last: float, pace: float) -> np.ndarray:
    return last + (first - last) * np.exp(-T / pace)


FAULTS = {
    "NaN to the end": (np.where(T < 150, fall(2.3, 0.3, 60), np.nan), "loss-not-finite"),
    "infinite once": (np.where(T == 150, np.inf, fall(2.3, 0.3, 60)), "loss-not-finite"),
    "gradient ascent": (2.3 + 0.02 * T + noise(0.05), "loss-rising"),
    "ascent of a bounded loss": (2.3 + 0.4 * (1 - np.exp(-T / 50)) + noise(0.03), "loss-rising"),
    "diverges": (np.where(T < 200, fall(2.3, 0.5, 50), 5.0) + noise(0.05), "loss-diverged"),
    "diverges to half of its gain": (np.where(T < 200, fall(2.3, 0.5, 50), 1.8) + noise(0.05), "loss-diverged"),
    "never leaves chance": (math.log(10) + noise(0.02), "loss-at-chance"),
    "falls to chance": (fall(4.0, math.log(10), 20) + noise(0.02), "loss-at-chance"),
    "hardly moves": (2.6 - 1e-5 * T + noise(0.05), "loss-flat"),
    "spike": (fall(4.0, 1.0, 60) + np.where(abs(T - 250) < 4, 2.0, 0) + noise(0.05), "loss-spike"),
}


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("key", FAULTS)
def test_a_fault_is_named(tmp_path: Path, key: str, every: int) -> None:
    losses, code = FAULTS[key]
    if every > 1 and key in ("spike", "infinite once"):
        losses = np.where((T >= 240) & (T <= 280), 3.0 if key == "spike" else np.inf, losses)
    assert codes(tmp_path, losses, every=every) == [code]


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("scatter", [0.0, 0.01, 0.1, 0.25])
@pytest.mark.parametrize(
    "shape",
    [
        fall(2.3, 0.02, 40), fall(5.5, 2.4, 100), 10.8 * T**-0.2, np.where(T < 60, 5.5, 5.5 * (T / 60.0) ** -0.3),
        fall(2.3, 0.4, 30) + 0.1 * np.sin(T / 9), -fall(1, 40, 100), fall(3.4, 3.2, 80), fall(0.9, 0.4, 200),
    ],
    ids=["digits", "bytes", "power law", "warmup", "waves", "negative", "fine-tuning", "slow"],
)  # fmt: skip
def test_a_healthy_loss_is_not(tmp_path: Path, shape: np.ndarray, scatter: float, every: int) -> None:
    tails = np.random.default_rng(1).standard_t(4, N)  # batches' losses have tails
    losses = shape + scatter * np.minimum(abs(shape), 1) * 0.5 * tails
    assert codes(tmp_path, losses, every=every) == []


def test_a_validation_loss_is_only_asked_to_be_finite(tmp_path: Path) -> None:
    assert codes(tmp_path / "a", fall(2, 4, 50), name="val_loss") == []
    assert codes(tmp_path / "b", np.full(N, np.nan), name="val_loss") == ["loss-not-finite"]


def test_while_a_run_goes_on_more_is_asked_for(tmp_path: Path) -> None:
    """A loss that stands still for 400 steps may be warming up."""
    with stored(tmp_path, 2.6 + noise(0.05)) as run:
        assert check_loss(run, ended=False) == []
        assert [f.code for f in check_loss(run, ended=True)] == ["loss-flat"]
        assert check_loss(run, ended=True, finetune=True) == []
