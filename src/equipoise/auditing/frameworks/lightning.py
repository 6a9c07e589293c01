"""Audit the optimizers of a Lightning Trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, final

from equipoise._extras import importing
from equipoise.auditing.auditor import Audit, audit
from equipoise.monitor.attach.registry import model_of

with importing("lightning", "lightning"):
    import lightning.pytorch as pl


@final
class AuditCallback(pl.Callback):
    """Attaches `eq.audit` to a Trainer: `Trainer(..., callbacks=[AuditCallback()])`.

    After fit, or after the steps where `stop` is set, `audit` has the table and the findings.

    Args:
        steps: how many steps to record, from the first of this fit.
        memory: as for `eq.audit`.
        previous: as for `eq.audit`; give it to a fit that resumes.
        stop: end the fit when the steps are recorded.
        show: print the table and the findings at the end, on the main process.
    """

    def __init__(
        self, steps: int = 20, *, memory: float = 2e9, stop: bool = False, show: bool = True,
        previous: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._steps, self._memory, self._previous, self._stop, self._show = steps, memory, previous, stop, show
        self.audit: Audit | None = None
        """The audit of the last fit, once that has begun."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Begin to record."""
        if self.audit is not None:
            self.audit.close()
        optimizers: Any = list(trainer.optimizers)
        found = model_of(pl_module, optimizers)
        self.audit = audit(found, optimizers, steps=self._steps, memory=self._memory, previous=self._previous)

    def on_train_batch_end(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Stop the fit, if that was asked for."""
        if self._stop and self.audit is not None and self.audit.done:
            trainer.should_stop = True

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Show what was found."""
        if self.audit is not None:
            self.audit.close()
            if self._show and trainer.is_global_zero:
                self.audit.show()
