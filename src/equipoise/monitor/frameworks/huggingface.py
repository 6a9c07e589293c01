"""Watch a Hugging Face Trainer."""

from __future__ import annotations

import os
from numbers import Real
from types import TracebackType
from typing import Any, Self, final

import torch

from equipoise._extras import importing
from equipoise.monitor.attach.endings import status_of
from equipoise.monitor.attach.registry import model_of
from equipoise.monitor.attach.watcher import Watch, watch

with importing("hf", "transformers"):
    from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


@final
class WatchCallback(TrainerCallback):
    """Attaches `eq.watch` to a Trainer: `Trainer(..., callbacks=[WatchCallback("runs/a")])`.

    Steps are the Trainer's. Training that resumes from a checkpoint goes on in the same run, and what was measured
    after the checkpoint is superseded. What the Trainer logs is stored as well.

    The Trainer tells callbacks of no exception. Use the callback as a context round `trainer.train()` to have the run
    closed as crashed at once; without it that is done when the program ends, or training begins again.

    Args:
        path: directory of the run; `equipoise` in the Trainer's `output_dir` if not given.
        quiet: say nothing, as for `eq.watch`.
        options: as for `eq.watch`.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None, *, quiet: bool = False, **options: Any) -> None:
        self._path = path
        self._options: dict[str, Any] = {"quiet": quiet} | options
        self.watch: Watch | None = None
        """The watch of the last training, once that has begun."""

    def on_train_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: torch.nn.Module | None = None,
        optimizer: Any = None,
        **kwargs: Any,
    ) -> None:
        """Attach."""
        self.close("crashed")
        path = os.path.join(args.output_dir or ".", "equipoise") if self._path is None else self._path
        options: dict[str, Any] = {"resume": state.global_step} if state.global_step else {}
        if state.max_steps > 0:
            options["steps"] = state.max_steps
        self.watch = watch(model_of(model, optimizer), optimizer, path, **(options | self._options))

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Count as the Trainer does, which counts steps that a gradient scaler skips."""
        if self.watch is not None:
            self.watch.step = max(self.watch.step, state.global_step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Store the numbers that the Trainer logs."""
        if self.watch is not None:
            self.watch.log({name: float(value) for name, value in (logs or {}).items() if isinstance(value, Real)})

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Close the run."""
        self.close()

    def close(self, status: str | None = None) -> None:
        """Close the run, if it is open.

        Args:
            status: as for `Watch.close`.
        """
        if self.watch is not None:
            self.watch.close(status)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(status_of(error))
