"""Runs to look at: trained, crashed, empty, odd names, and large, made without training."""

import contextlib
from pathlib import Path
from typing import Any

import demo
import numpy as np

from equipoise.monitor import Column, Layout, Quantity, RunWriter, TensorInfo

EVIL = "<script>window.hacked=1</script>"
EVIL_TOO = '"><img src=x onerror="window.hacked=1">$$x$$'
PER_TENSOR = (
    "norm", "rotation", "update", "decay", "change", "radial_change", "relative_update", "effective_lr",
    "radial_decay", "c_err", "grad_norm",
)  # fmt: skip


def trained(path: Path, steps: int = 60, **options: float) -> Path:
    """A small network, watched."""
    demo.train(path, steps=steps, **options)  # type: ignore[arg-type]
    return path


def crashed(path: Path) -> Path:
    with contextlib.suppress(RuntimeError):
        demo.train(path, steps=60, fail_at=30)
    return path


def empty(path: Path) -> Path:
    RunWriter(path, meta={"optimizer": "AdamW"}).close()
    return path


def layout_of(names: list[str]) -> Layout:
    columns = [Column("lr/0"), Column("weight_decay/0"), Column("memory/0"), Column("init_share/0")]
    columns += [Column(q, name) for name in names for q in PER_TENSOR]
    columns += [Column(q, n, quantile=share) for n in names for q in ("norm", "rotation") for share in (0.1, 0.5, 0.9)]
    return Layout(tuple(columns))


def rows_of(steps: np.ndarray, tensors: int, lr: float = 1e-3, wd: float = 0.1) -> np.ndarray:
    """Numbers like those of a run: norms that settle, rotation about √(2·lr·wd), the last layer twice as fast."""
    rng = np.random.default_rng(0)
    whole = np.stack([np.full(len(steps), lr), np.full(len(steps), wd), np.minimum(steps, 1 / (lr * wd))], 1)
    share = np.exp(-lr * wd * steps)[:, None]
    factor = np.where(np.arange(tensors) == tensors - 1, 2.0, 1.0)
    norm = 10 * (1 + np.exp(-2 * lr * wd * steps))[:, None] * np.linspace(0.9, 1.1, tensors)
    turn = np.sqrt(2 * lr * wd) * factor * np.exp(0.1 * rng.normal(size=norm.shape))
    update = norm * turn
    parts = [
        norm, turn, update, lr * wd * norm, update, -lr * wd * norm, turn, lr / norm,
        0 * norm, 1 + 0 * norm, 1 + 0 * norm,
    ]  # fmt: skip
    per_tensor = np.stack(parts, 2).reshape(len(steps), -1)
    bands = np.stack([q * k for q in (norm / 8, turn) for k in (0.8, 1.0, 1.2)], 2).reshape(len(steps), -1)
    return np.concatenate([whole, share, per_tensor, bands], 1).astype(np.float32)


class Growing:
    """A run that is written row after row, by the test."""

    def __init__(self, path: Path, names: list[str], *, loss: bool = True, width: int = 64) -> None:
        tensors = [TensorInfo(n, (width, width), "matrix", 0, (0,), {"dtype": "float32"}) for n in names]
        quantities = [Quantity(q) for q in PER_TENSOR] + [Quantity("loss", per="global")]
        layouts = [layout_of(names)] + ([Layout((Column("loss"),), kind="log")] if loss else [])
        self.names, self.step, self._loss = names, 0, loss
        self.writer = RunWriter(
            path, meta={"optimizer": "AdamW"}, tensors=tensors, quantities=quantities, layouts=layouts, strict=True
        )

    def grow(self, rows: int) -> None:
        steps = np.arange(self.step + 1, self.step + rows + 1)
        for start in range(0, rows, 1000):
            some = steps[start : start + 1000]
            for step, row in zip(some, rows_of(some, len(self.names)), strict=True):
                self.writer.append(int(step), row)
                if self._loss:
                    self.writer.append(int(step), [2 / np.sqrt(step)], kind="log")
            self.writer.flush()
        self.step += rows

    def close(self, status: str = "finished") -> None:
        self.writer.close(status)


def made(path: Path, names: list[str], rows: int = 200, status: str = "finished") -> Path:
    """A run of made-up rows."""
    run = Growing(path, names)
    run.grow(rows)
    run.close(status)
    return path


def logged(path: Path, *, lr: float, meta: dict[str, Any], steps: int = 20) -> Path:
    """A run with a validation loss, a metric and a meta of its own."""
    layouts = [Layout((Column("lr/0"), Column("weight_decay/0")))]
    layouts += [Layout((Column("loss"), Column("val_loss"), Column("accuracy")), kind="log", dtype="float64")]
    with RunWriter(path, meta={"optimizer": "AdamW"} | meta, layouts=layouts) as writer:
        for step in range(1, steps + 1):
            writer.append(step, [lr, 0.1])
            writer.append(step, [lr + 2 / step, lr + 3 / step if step % 5 == 0 else np.nan, 0.75], kind="log")
    return path


def large(path: Path, tensors: int = 200, steps: int = 100_000) -> Path:
    """As many tensors and steps as a board must open quickly."""
    return made(
        path,
        [f"blocks.{i // 4}.{('attn.qkv', 'attn.out', 'mlp.up', 'mlp.down')[i % 4]}.weight" for i in range(tensors)],
        steps,
    )
