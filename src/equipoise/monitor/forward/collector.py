"""Which forward pass is looked at, and where its numbers go."""

from __future__ import annotations

import contextlib
import random
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from equipoise.finding import Finding
from equipoise.monitor.attach import own_findings
from equipoise.monitor.forward.observer import Observer
from equipoise.monitor.forward.places import is_compiled, places_of
from equipoise.monitor.forward.quantities import ENTROPY, FORWARD, META, QUANTITIES, extremes
from equipoise.monitor.measure.tensors import names_of
from equipoise.monitor.store.layout import Column, Layout
from equipoise.monitor.store.writer import RunWriter
from equipoise.optim.model.roles import bare


class _Passed:
    """The numbers of a pass, on their way from the device.

    Args:
        step: of the pass.
        columns: what the numbers are.
        flat: the numbers.
    """

    def __init__(self, step: int, columns: list[Column], flat: Tensor) -> None:
        self.step, self.columns, self._event = step, columns, None
        if flat.is_cuda:
            self._flat = torch.empty(flat.shape, dtype=flat.dtype, pin_memory=True).copy_(flat, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()
        else:
            self._flat = flat.cpu()

    @property
    def arrived(self) -> bool:
        """Whether the numbers can be read without waiting."""
        return self._event is None or self._event.query()

    def read(self) -> NDArray[np.float32]:
        """The numbers, waited for; what is not a number is infinite, as NaN says "not measured"."""
        if self._event is not None:
            self._event.synchronize()
        values = self._flat.numpy().copy()
        entropies = np.array([c.quantity == ENTROPY for c in self.columns], dtype=bool)
        return np.where(np.isnan(values) & ~entropies, np.float32(np.inf), values)


class ForwardPass:
    """Looks at the first training pass of each measured step.

    A hook on the model itself waits for it; all others are there during that pass alone. Where a part of the model is
    compiled, the compiled code stays as it is, and its pass is run a second time before it, eagerly and without
    gradients; buffers and random numbers are then as they were.

    Args:
        model: it may be compiled or wrapped.
        writer: of the run.
        due: a method that tells the step that a pass now belongs to, if that is measured; else None. Its object is
            not kept alive by the model.
        spent: a method that is told the seconds that this took.
        failed: a method that is told what goes wrong.
        sharded: whether parameters are spread over processes.
    """

    def __init__(
        self,
        model: nn.Module,
        writer: RunWriter,
        due: Callable[[], int | None],
        spent: Callable[[float], object],
        failed: Callable[[Exception], object],
        sharded: bool,
    ) -> None:
        self._writer = writer
        self._due, self._spent, self._failed = (
            weakref.WeakMethod(due),
            weakref.WeakMethod(spent),
            weakref.WeakMethod(failed),
        )
        self._places = places_of(model)
        self._weights = names_of(model)
        self._columns: dict[Column, int] = {}
        self._observer: Observer | None = None
        self._held: _Passed | None = None
        self._newest: _Passed | None = None
        self._began = 0.0
        self._last = 0
        self._seconds = 0.0
        self.seen = 0
        """How many passes were looked at."""
        self._asked = False
        self._handles: list[Any] = []
        self._off = sharded and self._places.compiled
        writer.meta(META, {"eager_copy": self._places.compiled, "off": self._off})
        if self._off or isinstance(model, torch.jit.ScriptModule):
            return
        writer.describe(quantities=QUANTITIES)
        self._handles = [
            model.register_forward_pre_hook(self._begin, with_kwargs=True),
            model.register_forward_hook(self._end, always_call=True),
        ]

    # The pass

    def _begin(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.compiler.is_compiling() or not (module.training and torch.is_grad_enabled()):
            return
        start = time.perf_counter()
        due = self._due()
        step = None if due is None else due()
        if step is None or step <= self._last or self._observer is not None or _capturing():
            return
        self._last = step
        observer = Observer(self._places, self._weights)
        try:
            if self._places.compiled or any(map(is_compiled, self._places.names)):
                with aloof(bare(module)) as copy, observer:
                    copy(*args, **kwargs)
                self._keep(step, observer)
            else:
                observer.__enter__()
                self._observer = observer
        except Exception as error:
            self._fail(error)
        self._count(start)

    def _end(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():  # first: what is read before would become a part of the compiled code
            return
        observer = self._observer
        if observer is None:
            return
        start = time.perf_counter()
        self._stop()
        try:
            self._keep(self._last, observer)
        except Exception as error:
            self._fail(error)
        self._count(start, observer.seconds)

    def _stop(self) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.__exit__(None, None, None)

    def _keep(self, step: int, observer: Observer) -> None:
        """Send the numbers of a pass on their way."""
        if observer.error is not None:
            raise observer.error
        if observer.found:
            device = observer.found[0][1].device
            with torch.no_grad():
                flat = torch.cat([numbers.to(device) for _, numbers in observer.found])
            self._held = _Passed(step, [c for columns, _ in observer.found for c in columns], flat)

    def _count(self, start: float, more: float = 0.0) -> None:
        seconds = time.perf_counter() - start + more
        self._seconds += seconds
        spent = self._spent()
        if spent is not None:
            spent(seconds)

    def _fail(self, error: Exception) -> None:
        """Something went wrong: look no more."""
        self.close()
        failed = self._failed()
        if failed is not None:
            failed(error)

    # What becomes of it

    def store(self, step: int) -> float:
        """Store the pass that a step was made of, now that it is taken; of another step it is forgotten.

        Returns:
            The seconds that passes took since the last call.
        """
        self._asked = True
        seconds, self._seconds = self._seconds, 0.0
        held, self._held = self._held, None
        if held is not None and held.step == step:
            self._store(held)
        return seconds

    def _store(self, held: _Passed) -> None:
        self.seen += 1
        new = [c for c in held.columns if c not in self._columns]
        if new:
            self._columns |= {c: len(self._columns) + i for i, c in enumerate(new)}
            self._writer.layout(Layout(tuple(self._columns), kind=FORWARD))
        where, width = [self._columns[c] for c in held.columns], len(self._columns)

        def row() -> NDArray[np.float32]:
            values = np.full(width, np.nan, np.float32)
            values[where] = held.read()
            return values

        self._writer.append(held.step, row, kind=FORWARD)
        self._newest = held

    def summary(self) -> tuple[int, dict[str, float]] | None:
        """For sinks: the step of the newest pass, and the extreme of each quantity; None if they were told before."""
        newest = self._newest
        if newest is None or not newest.arrived:
            return None
        self._newest = None
        found = extremes(zip(newest.columns, newest.read().tolist(), strict=True))
        return newest.step, {f"equipoise/forward/{name}": value for name, (value, _) in found.items()}

    def finish(self) -> list[Finding]:
        """The run ends: take all hooks off; the finding that no pass was looked at, if so."""
        failed = not self._handles and not self._off
        self.close()
        return [] if self.seen or failed or not self._asked else [own_findings.forward_not_seen(self._off)]

    def close(self) -> None:
        """Take all hooks off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._stop()

    def __reduce__(self) -> tuple[Any, ...]:
        # A model that carries hooks must stay copyable, and its copies must not be looked at.
        return _inert, ()


def _inert() -> ForwardPass:
    """One that looks at nothing: what a copy becomes."""
    made = object.__new__(ForwardPass)
    vars(made).update(_observer=None, _handles=[], _due=lambda: None)
    return made


def _capturing() -> bool:
    """Whether a CUDA graph is recorded, into which nothing may go that is not the model's."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


@contextlib.contextmanager
def aloof(model: nn.Module) -> Iterator[nn.Module]:
    """A model whose eager pass leaves no trace: no gradients, and buffers and random numbers as they were.

    What a model's own code keeps elsewhere, such as a counter in an attribute, is not put back.

    Args:
        model: the one inside all wrappers.
    """
    owners = [(m._buffers, dict(m._buffers)) for m in model.modules() if m._buffers]
    kept = [(b, b.detach().clone()) for _, own in owners for b in own.values() if b is not None]
    devices = sorted({b.device.index or 0 for b in (*model.parameters(), *model.buffers()) if b.device.type == "cuda"})
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 (the state that models use)
    cached = torch.is_autocast_cache_enabled()
    try:
        torch.set_autocast_cache_enabled(False)  # weights cast without gradients must not be there for the real pass
        with torch.no_grad(), torch.random.fork_rng(devices), torch.compiler.set_stance("force_eager"):
            yield model
    finally:
        torch.set_autocast_cache_enabled(cached)
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        with torch.no_grad():
            for buffers, own in owners:
                buffers.clear()
                buffers.update(own)
            for buffer, before in kept:
                buffer.copy_(before)
