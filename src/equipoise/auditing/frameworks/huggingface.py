"""Audit the optimizer of a Hugging Face Trainer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, final

import torch

from equipoise._extras import importing
from equipoise.auditing.auditor import Audit, audit
from equipoise.monitor.attach.registry import model_of

with importing("hf", "transformers"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


@final
class AuditCallback(TrainerCallback):
    """Attaches `eq.audit` to a Trainer: `Trainer(..., callbacks=[AuditCallback()])`.

    After training, or after the steps where `stop` is set, `audit` has the table and the findings.

    Args:
        steps: how many steps to record, from the first of this training.
        memory: as for `eq.audit`.
        previous: as for `eq.audit`; give it to a training that resumes.
        stop: end training when the steps are recorded.
        show: print the table and the findings at the end, on the main process.
    """

    def __init__(
        self, steps: int = 20, *, memory: float = 2e9, stop: bool = False, show: bool = True,
        previous: str | os.PathLike[str] | Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        self._steps, self._memory, self._previous, self._stop, self._show = steps, memory, previous, stop, show
        self.audit: Audit | None = None
        """The audit of the last training, once that has begun."""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Begin to record."""
        if self.audit is not None:
            self.audit.close()
        found = model_of(model, optimizer)
        self.audit = audit(found, optimizer, steps=self._steps, memory=self._memory, previous=self._previous)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop training, if that was asked for."""
        if self._stop and self.audit is not None and self.audit.done:
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Show what was found."""
        if self.audit is not None:
            self.audit.close()
            if self._show and state.is_world_process_zero:
                self.audit.show()
