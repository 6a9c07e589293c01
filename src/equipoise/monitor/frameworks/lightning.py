"""Watch a Lightning Trainer."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, final

from torch import Tensor

from equipoise import _check
from equipoise._extras import importing
from equipoise.monitor.attach.endings import status_of
from equipoise.monitor.attach.registry import model_of
from equipoise.monitor.attach.watcher import Watch, watch

with importing("lightning", "lightning"):
    import lightning.pytorch as pl


@final
class WatchCallback(pl.Callback):
    """Attaches `eq.watch` to a Trainer: `Trainer(..., callbacks=[WatchCallback("runs/a")])`.

    Steps are the Trainer's. `fit(..., ckpt_path=...)` goes on in the same run, and what was measured after the
    checkpoint is superseded. The loss of every batch is stored as `loss`, and the Trainer's `callback_metrics` after
    every epoch and validation. An exception closes the run as crashed, Ctrl-C as interrupted.

    Args:
        path: directory of the run; `equipoise` in the Trainer's `default_root_dir` if not given.
        optimizer: number of the one to watch, where the module has several. Default: all, as one run.
        quiet: say nothing, as for `eq.watch`.
        options: as for `eq.watch`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        optimizer: int | None = None,
        quiet: bool = False,
        **options: Any,
    ) -> None:
        self._path = path
        self._options: dict[str, Any] = {"quiet": quiet} | options
        self._which = None if optimizer is None else _check.whole("optimizer", optimizer)
        self.watch: Watch | None = None
        """The watch of the last fit, once that has begun."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Attach."""
        self._close("crashed")
        path = os.path.join(trainer.default_root_dir, "equipoise") if self._path is None else self._path
        given: Any = list(trainer.optimizers)
        if self._which is not None:
            if self._which >= len(given):
                raise ValueError(f"optimizer = {self._which}: the module has {len(given)}, counted from 0")
            given = given[self._which]
        options: dict[str, Any] = {"resume": trainer.global_step} if trainer.global_step else {}
        length = trainer.estimated_stepping_batches  # infinite where nobody knows; of one optimizer's steps
        if len(trainer.optimizers) == 1 and math.isfinite(length) and length >= 1:
            options["steps"] = int(length)
        self.watch = watch(model_of(pl_module, given), given, path, **(options | self._options))

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Count as the Trainer does."""
        if self.watch is not None:
            self.watch.step = max(self.watch.step, trainer.global_step)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Store the loss."""
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        if self.watch is not None and isinstance(loss, Tensor) and loss.numel() == 1:
            # What Lightning hands out is divided by the number of batches that are accumulated.
            self.watch.log(loss=loss.detach() * trainer.accumulate_grad_batches)

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store the metrics of the epoch."""
        self._metrics(trainer)

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Store the metrics of the validation."""
        if not trainer.sanity_checking:
            self._metrics(trainer)

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Close the run."""
        self._close("finished")

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        """Close the run as crashed, or as interrupted."""
        self._close(status_of(exception))

    def _metrics(self, trainer: pl.Trainer) -> None:
        if self.watch is not None:
            self.watch.log({name: value for name, value in trainer.callback_metrics.items() if name != "loss"})

    def _close(self, status: str) -> None:
        if self.watch is not None:
            self.watch.close(status)
