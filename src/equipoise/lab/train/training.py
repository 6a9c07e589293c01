"""Train one trial, watch it, and store its result. After a kill it continues where it was, bit for bit."""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn

import equipoise as eq
from equipoise import _check
from equipoise.lab import models
from equipoise.lab.data import Data, load
from equipoise.lab.train import optimizers, task
from equipoise.lab.train.gradient_structure import structure
from equipoise.lab.train.result import RESULT, RUN, Result, versions
from equipoise.lab.train.start import load_start, save_weights
from equipoise.lab.train.trial import Trial

CHECK = 20
"""Steps after which the loss is looked at; its mean over them is what is logged as `train_loss`."""

CHECKPOINT = "checkpoint.pt"
Progress = Callable[[int, float], None]
"""Called with the step and the mean loss, every `CHECK` steps."""


def train(
    trial: Trial, path: str | os.PathLike[str], *, data: Data | None = None, device: str | None = None,
    save: float = 30.0, progress: Progress | None = None, keep: str | os.PathLike[str] | None = None,
) -> Result:  # fmt: skip
    """Train a trial, or go on with it, or give its result where it is done.

    The directory has `result.json` when it is done, `run` (what `eq.watch` measured), and until then `checkpoint.pt`.

    Args:
        trial: what to train.
        path: directory of the trial.
        data: the trial's data where it is loaded already.
        device: where to train. Default: a GPU if there is one.
        save: seconds between checkpoints.
        progress: is told how far it is.
        keep: file for the trained weights; a trial that is done without it is trained again.

    Returns:
        The result; that of a trial whose loss went beyond all bounds has the status "diverged".
    """
    folder = Path(path)
    if (folder / RESULT).exists():
        result = Result.read(folder)
        if result.trial != trial:
            raise ValueError(f"path = {str(path)!r}: has the result of another trial; give another directory")
        if keep is None or Path(keep).exists() or result.status == "diverged":
            return result
    folder.mkdir(parents=True, exist_ok=True)
    with torch.random.fork_rng():
        return _Training(trial, folder, data, device, keep).go(save, progress)


def make_model(trial: Trial, data: Data, device: torch.device | str = "cpu") -> nn.Module:
    """The model of a trial as it is before the first step, trained weights included where it starts from some."""
    torch.manual_seed(trial.seed)
    options = dict(trial.model_options)
    start = options.pop("start", None)
    model = models.make(trial.model, data, trial.seed, **options).to(device)
    if start is not None:
        load_start(model, start, device)
    return model


@dataclass
class _Progress:
    """What a checkpoint holds besides tensors."""

    step: int = 0
    window: list[float] = field(default_factory=list)
    tests: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    seconds: float = 0.0


@final
class _Training:
    def __init__(
        self, trial: Trial, folder: Path, data: Data | None, device: str | None, keep: str | os.PathLike[str] | None
    ) -> None:
        self.trial, self.folder, self.keep = trial, folder, keep
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.data = (data or load(trial.data, **trial.data_options)).to(self.device)
        self.batch = self.data.train.batches(trial.batch_size, trial.seed)
        model = make_model(trial, self.data, self.device)
        if trial.channels_last:
            model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.model: nn.Module = model
        self.optimizer, self.schedule = optimizers.make(trial, model)
        self.params = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.structure = _check.whole("watch.structure", trial.watch.get("structure", 0))
        self.done = _Progress()
        self.load()

    def load(self) -> None:
        file = self.folder / CHECKPOINT
        if not file.exists():
            shutil.rmtree(self.folder / RUN, ignore_errors=True)  # of a life that was killed before it saved anything
            return
        saved = torch.load(file, map_location=self.device, weights_only=True)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(saved["optimizer"])
        self.schedule.load_state_dict(saved["schedule"])
        torch.set_rng_state(saved["random"].cpu())
        self.done = _Progress(**saved["done"])

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(), "random": torch.get_rng_state(), "done": vars(self.done),
        }  # fmt: skip
        part = self.folder / f"{CHECKPOINT}.part"
        torch.save(state, part)
        part.replace(self.folder / CHECKPOINT)  # whole, or not at all

    def go(self, save: float, progress: Progress | None) -> Result:
        trial, done = self.trial, self.done
        meta = {"trial": trial.key, "name": f"{trial.model} {trial.data} {trial.optimizer} seed {trial.seed}"}
        resume: bool | int = done.step if done.step else False
        watch = {"every": None, "diagnose": False, "quiet": True} | {
            k: v for k, v in trial.watch.items() if k != "structure"
        }
        diverged = False
        began = saved = time.perf_counter()
        before = done.seconds
        with eq.watch(self.model, self.optimizer, self.folder / RUN, resume=resume, meta=meta, **watch) as seen:
            for start in range(done.step, trial.steps, CHECK):
                stop = min(start + CHECK, trial.steps)
                total = float(self.steps(start + 1, stop, seen.log))  # the one place that waits for the device
                mean = total / (stop - start)
                done.step = stop
                done.window.append(mean)
                seen.log(train_loss=mean)
                diverged = self.diverged()
                if not diverged and trial.evaluate and stop // trial.evaluate > start // trial.evaluate:
                    seen.log(**_of_test(self.test(stop)))
                now = time.perf_counter()
                done.seconds = before + now - began
                if progress is not None:
                    progress(stop, mean)
                if diverged:
                    break
                if now - saved >= save and stop < trial.steps:
                    self.save()
                    saved = time.perf_counter()
            if not diverged:
                seen.log(**_of_test(self.test(done.step)))
            done.seconds = before + time.perf_counter() - began
        return self.finish(diverged)

    def steps(self, first: int, last: int, log: Callable[..., None]) -> Tensor:
        """Train these steps, log what gradients look like; the sum of the losses, still on the device."""
        trial, model, optimizer = self.trial, self.model, self.optimizer
        losses, autocast = [], self.autocast()
        for step in range(first, last + 1):
            x, y = self.batch(step)
            if trial.channels_last:
                x = x.contiguous(memory_format=torch.channels_last)
            with autocast:
                loss = task.loss(self.data.task, model, x, y, self.data.smoothing)
            for param in self.params:
                param.grad = None  # as zero_grad does, which also tells profilers of it
            loss.backward()
            looked = self.structure and (step == 1 or step % self.structure == 0)
            found = structure(model) if looked else {}
            optimizer.step()
            self.schedule.step()
            if found:
                log(**found)
            losses.append(loss.detach())
        return torch.stack(losses).sum()

    def autocast(self) -> AbstractContextManager[Any]:
        if self.trial.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, torch.bfloat16)

    def diverged(self) -> bool:
        mean, first, limit = self.done.window[-1], self.done.window[0], self.trial.limit
        if not math.isfinite(mean):
            return True
        return limit is not None and self.data.task != "walk" and mean > limit * first

    def test(self, step: int) -> dict[str, float]:
        """Test now, unless it has been done at this step; what it found, by the names of metrics."""
        if self.data.test is None:
            return {}
        if not self.done.tests or self.done.tests[-1][0] != step:
            with self.autocast():
                found = {
                    f"{of}_{name}": value
                    for of, samples in {"test": self.data.test, **self.data.probes}.items()
                    for name, value in task.evaluate(self.data.task, self.model, samples).items()
                }
            self.done.tests.append((step, found))
        return self.done.tests[-1][1]

    def finish(self, diverged: bool) -> Result:
        done = self.done
        metrics: dict[str, float] = {}
        if not diverged:
            late = done.window[-max(1, len(done.window) // 10) :]
            metrics = {"train_loss": sum(late) / len(late), **(done.tests[-1][1] if done.tests else {})}
        content = hashlib.sha256()
        for tensor in self.model.state_dict().values():
            content.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        result = Result(
            trial=self.trial, status="diverged" if diverged else "finished", steps=done.step, metrics=metrics,
            seconds=done.seconds, weights=content.hexdigest(), data=self.data.checksum, versions=versions(),
            date=time.strftime("%Y-%m-%d", time.gmtime()), tests=done.tests,
        )  # fmt: skip
        if self.keep is not None and not diverged:
            save_weights(self.model, self.keep)
        result.write(self.folder)
        (self.folder / CHECKPOINT).unlink(missing_ok=True)
        return result


def _of_test(found: dict[str, float]) -> dict[str, float]:
    """Without the probes, which may be many: the result has them."""
    return {name: value for name, value in found.items() if name.startswith("test_")}
