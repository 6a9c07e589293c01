"""Record what steps do: weights and gradients before and after, by hooks that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from equipoise.optim.dynamics_of import GroupState, group_state, stepping

PROBE = 2048
"""Entries of a tensor whose arriving gradients are summed, to compare them with what the optimizer was given."""

ROWS = 8192
"""Entries that are kept of a tensor that is not kept whole: as many whole rows as fit, at least one."""


class Arrival(NamedTuple):
    """What reached a parameter between two steps.

    Attributes:
        passes: how many backward passes brought a gradient.
        factor: what the sum of them was multiplied by before the step: 1, less where it was clipped.
        before: how much of the last step's gradient was still in it; 1 where it was not zeroed.
        rest: the share that neither explains.
        finite: whether all were finite.
    """

    passes: int
    factor: float
    before: float
    rest: float
    finite: bool


@dataclass
class Track:
    """One parameter and what was recorded of it.

    Attributes:
        name: in the model, or a number.
        param: the parameter.
        owner: number of its optimizer.
        group: number of its group in that optimizer.
        rows: which rows are kept; None for all.
        start: the averages that the optimizer had before the first recorded step, by name.
        steps: the numbers of the recorded steps.
        before: weights before each.
        after: and after.
        grads: gradients as the optimizer was given them; None where it had none.
        grad_norms: of the whole gradient.
        norms: of the whole weight before and after each step.
        moves: norm of the whole step.
        said: what the group said at each step.
        arrivals: what backward passes brought.
        strange: why it cannot be recorded; empty where it can.
    """

    name: str
    param: Tensor
    owner: int
    group: int
    rows: Tensor | None = None
    start: dict[str, Any] = field(default_factory=dict[str, Any])
    steps: list[int] = field(default_factory=list[int])
    before: list[Tensor] = field(default_factory=list[Tensor])
    after: list[Tensor] = field(default_factory=list[Tensor])
    grads: list[Tensor | None] = field(default_factory=list[Tensor | None])
    grad_norms: list[float] = field(default_factory=list[float])
    norms: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    moves: list[float] = field(default_factory=list[float])
    said: list[GroupState] = field(default_factory=list[GroupState])
    arrivals: list[Arrival] = field(default_factory=list[Arrival])
    strange: str = ""
    finer: bool = False
    """Whether weights are those of a float32 copy that the optimizer keeps of a parameter in few bits."""
    _sum: Tensor | None = None
    _last: Tensor | None = None
    _passes: int = 0
    _finite: bool = True
    skipped: int = 0
    """Backward passes with a gradient that was not finite and that no step was taken with."""
    dropped: int = 0
    """Backward passes whose gradient was zeroed before a step."""

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights that are kept."""
        return torch.float32 if self.finer else self.param.dtype

    @property
    def whole(self) -> bool:
        """Whether all of it is kept."""
        return self.rows is None and not hasattr(self.param, "placements")

    def arrive(self, grad: Tensor) -> None:
        """Take in what one backward pass brought."""
        if self.strange or grad.layout != torch.strided:
            return
        probe = _probe(grad)
        zeroed = self.param.grad is None or (self._passes > 0 and not bool(local(self.param.grad).any()))
        if self._passes and zeroed and self._finite:
            self.dropped += 1
            self._sum, self._passes = None, 0
        if self._sum is not None and self._passes and not self._finite and bool(torch.isfinite(probe).all()):
            self.skipped += 1  # the last was not finite, and no step came: a scaler skipped it
            self._sum, self._passes, self._finite = None, 0, True
        self._finite = self._finite and bool(torch.isfinite(probe).all())
        self._sum = probe.double() if self._sum is None else self._sum + probe
        self._passes += 1

    def arrived(self) -> None:
        """Compare what arrived since the last step with the gradient of this one."""
        grad = self.param.grad
        if grad is None or grad.layout != torch.strided:
            self.arrivals.append(Arrival(self._passes, 1.0, 0.0, 0.0, self._finite))
            self._sum, self._passes, self._finite, self._last = None, 0, True, None
            return
        given = _probe(grad).double()
        found = Arrival(self._passes, 1.0, 0.0, 1.0, self._finite)
        size = float(given.square().sum())
        if self._sum is not None and size > 0 and self._finite:
            columns = [self._sum] + ([self._last] if self._last is not None and self._last.any() else [])
            fit = torch.linalg.lstsq(torch.stack(columns, 1), given[:, None]).solution[:, 0]
            rest = given - torch.stack(columns, 1) @ fit
            share = (float(rest.square().sum()) / size) ** 0.5
            found = Arrival(self._passes, float(fit[0]), float(fit[1]) if len(fit) > 1 else 0.0, share, self._finite)
        self.arrivals.append(found)
        self._sum, self._passes, self._finite, self._last = None, 0, True, given

    def kept(self, x: Tensor) -> Tensor:
        """A copy of what is kept of a tensor."""
        x = local(x)
        return x.clone() if self.rows is None else x.reshape(len(x), -1)[self.rows]


def local(x: Tensor) -> Tensor:
    """This rank's part of a tensor, without its graph."""
    x = x.detach()
    return x.to_local() if hasattr(x, "to_local") else x  # type: ignore[operator]


def _probe(x: Tensor) -> Tensor:
    flat = local(x).reshape(-1)
    return flat[:: max(1, flat.numel() // PROBE)]


class Recorder:
    """Hooks on optimizers and parameters, for some steps.

    A step of training goes on until an optimizer steps for the second time.

    Args:
        optimizers: those that step.
        names: of parameters, by id.
        steps: how many steps to record.
        memory: bytes that copies may take; the largest tensors are sampled where all do not fit.
        full: called when all steps are recorded.
    """

    def __init__(
        self,
        optimizers: Sequence[Any],
        names: dict[int, str],
        steps: int,
        memory: float,
        full: Callable[[], None] = lambda: None,
    ) -> None:
        self.optimizers, self.steps, self._full = list(optimizers), steps, full
        self.tracks: dict[int, Track] = {}
        self.over = False
        """Whether all steps are recorded."""
        self.taken = 0
        """Steps of training that were recorded."""
        self.changed: dict[str, int] = {}
        """How often a parameter was changed between two steps."""
        self.closures = False
        """Whether a step called its closure more than once, or not at all."""
        self._open: set[int] = set()
        """Optimizers that are in a step whose closure was not called yet."""
        self.doubled: list[str] = []
        """Parameters that are in more than one group."""
        self._names, self._memory = names, memory
        self._stepped: set[int] = set()
        self._depth = [0] * len(self.optimizers)
        self._handles: list[Any] = []
        for k, one in enumerate(self.optimizers):
            self._attach(k, one)
        self._take_in()

    # Hooks

    def _attach(self, k: int, one: Any) -> None:
        if hasattr(one, "register_step_pre_hook") and hasattr(one, "_optimizer_step_pre_hooks"):
            self._handles.append(one.register_step_pre_hook(lambda o, a, kw: self._before(k, a[1:], kw, (o,))))
            self._handles.append(one.register_step_post_hook(lambda o, a, kw: self._after(k)))
            return
        own = one.step

        def step(*args: Any, **kwargs: Any) -> Any:
            args, kwargs = self._before(k, args, kwargs) or (args, kwargs)
            made = own(*args, **kwargs)
            self._after(k)
            return made

        had = "step" in vars(one)
        one.step = step
        self._handles.append(_Restore(one, own if had else None))

    def detach(self) -> None:
        """Remove all hooks; more calls do nothing."""
        self.over = True
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @torch.no_grad()
    def _before(
        self, k: int, args: tuple[Any, ...], kwargs: dict[str, Any], first: tuple[Any, ...] = ()
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Record what there is before a step; with a closure, once that has computed the gradients.

        Returns:
            The arguments that the step shall have, where they are others.
        """
        self._depth[k] += 1
        if self._depth[k] > 1 or self.over:
            return None
        if not self._stepped or k in self._stepped:
            if self.taken >= self.steps:
                self._end()
                return None
            self._stepped.clear()
            self.taken += 1
        self._stepped.add(k)
        closure = kwargs.get("closure", args[0] if args else None)
        if not callable(closure):
            self._record_all(k)
            return None
        self._open.add(k)
        with_gradients = partial(self._called, k, closure)
        if "closure" in kwargs:
            return (*first, *args), kwargs | {"closure": with_gradients}
        return (*first, with_gradients, *args[1:]), kwargs

    def _called(self, k: int, closure: Callable[[], Any]) -> Any:
        made = closure()
        if k in self._open:
            self._open.discard(k)
            with torch.no_grad():
                self._record_all(k)
        elif not self.over:
            self.closures = True
        return made

    def _record_all(self, k: int) -> None:
        self._take_in()
        one = stepping(self.optimizers[k])
        said = [group_state(one, group) for group in one.param_groups]
        for track in self.tracks.values():
            if track.owner == k and not track.strange:
                self._record(track, one, said[track.group])

    def _end(self) -> None:
        self.over = True  # hooks stay until they are detached: a list of hooks must not change while it is called
        self._full()

    def _record(self, track: Track, one: Any, said: GroupState) -> None:
        p = track.param
        track.strange = _strange(p)
        if track.strange:
            return
        stepped, finer = _stepped(one, p)
        track.finer = track.finer or finer
        w = track.kept(stepped).to(track.dtype)
        if track.after and not _equal(w, track.after[-1]):
            self.changed[track.name] = self.changed.get(track.name, 0) + 1
        elif track.after:
            w = track.after[-1]
        if not track.steps:
            state = one.state.get(p, {}) if hasattr(one, "state") else {}
            track.start = {
                name: track.kept(x) if isinstance(x, Tensor) and x.shape == p.shape else _number(x)
                for name, x in state.items()
            }
        track.arrived()
        track.steps.append(self.taken)
        track.before.append(w)
        track.grads.append(None if p.grad is None else track.kept(p.grad))
        track.grad_norms.append(0.0 if p.grad is None else _norm(p.grad))
        track.said.append(said)

    @torch.no_grad()
    def _after(self, k: int) -> None:
        self._depth[k] -= 1
        if self._depth[k] > 0 or self.over:
            return
        if k in self._open:
            self._open.discard(k)
            self.closures = True
        for track in self.tracks.values():
            if track.owner == k and len(track.after) < len(track.before):
                stepped, finer = _stepped(stepping(self.optimizers[k]), track.param)
                if finer and not track.finer:  # the first step has made the copy
                    track.finer, track.before[-1] = True, track.before[-1].float()
                track.after.append(track.kept(stepped).to(track.dtype))
                if torch.equal(track.after[-1], track.before[-1]):
                    track.after[-1] = track.before[-1]
                whole = track.rows is None
                first, last = track.before[-1].double(), track.after[-1].double()
                track.norms.append((float(first.norm()), float(last.norm())) if whole else (0.0, _norm(track.param)))
                track.moves.append(float((last - first).norm()))
        if self.taken >= self.steps and len(self._stepped) == len(self.optimizers):
            self._end()

    # Parameters

    def _take_in(self) -> None:
        """Follow the parameters of groups, also those that were added since."""
        new: list[Track] = []
        for k, one in enumerate(self.optimizers):
            for i, group in enumerate(stepping(one).param_groups):
                for p in group["params"]:
                    track = self.tracks.get(id(p))
                    if track is None:
                        name = self._names.get(id(p), f"group {i}, number {len(self.tracks)}")
                        new.append(Track(name, p, k, i, strange=_strange(p)))
                        self.tracks[id(p)] = new[-1]
                    elif (track.owner, track.group) != (k, i) and track.name not in self.doubled:
                        self.doubled.append(track.name)
        for track in sorted(new, key=lambda t: t.param.numel()):
            p = track.param
            size = p.element_size()
            need = float(self.steps * p.numel() * (size + max(size, 4)))  # a copy in few bits may have one in float32
            if need <= self._memory or p.ndim == 0 or track.strange:
                self._memory -= need
            else:
                flat = local(p).reshape(len(local(p)), -1)
                count = min(len(flat), max(1, ROWS // max(1, flat.shape[1])))
                track.rows = torch.linspace(0, len(flat) - 1, count, device=flat.device).round().long()
            if p.requires_grad and p.is_leaf and not track.strange:
                self._handles.append(p.register_hook(partial(self._arrive, track)))

    def _arrive(self, track: Track, grad: Tensor) -> None:
        if not self.over:
            track.arrive(grad)


class _Restore:
    """Puts an optimizer's own `step` back."""

    def __init__(self, one: Any, own: Any) -> None:
        self._one, self._own = one, own

    def remove(self) -> None:
        if self._own is None:
            del self._one.step
        else:
            self._one.step = self._own


def _strange(p: Tensor) -> str:
    """Why a parameter cannot be recorded."""
    if p.device.type == "meta":
        return "lies on the meta device: it has no values"
    if p.is_complex():
        return "is complex"
    if not p.is_floating_point():
        return f"has dtype {p.dtype}"
    if p.grad is not None and p.grad.layout != torch.strided:
        return "has a sparse gradient"
    return ""


def _stepped(one: Any, p: Tensor) -> tuple[Tensor, bool]:
    """What the optimizer steps: its float32 copy of a parameter in few bits, or the parameter; whether it is a copy."""
    if p.element_size() < 4:
        for x in getattr(one, "state", {}).get(p, {}).values():
            copied = isinstance(x, Tensor) and x.dtype == torch.float32 and x.shape == p.shape
            if copied and torch.equal(x.to(p.dtype), p):
                return x, True
    return p, False


def _equal(a: Tensor, b: Tensor) -> bool:
    """Whether two are equal, where NaN equals NaN."""
    return torch.equal(a, b) or bool(((a == b) | (a.isnan() & b.isnan())).all())


def _norm(x: Tensor) -> float:
    norm = torch.linalg.vector_norm(x.detach(), dtype=torch.float64 if x.device.type != "mps" else torch.float32)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)  # type: ignore[operator]


def _number(x: Any) -> Any:
    """A number out of an optimizer's state; None for what is none."""
    if isinstance(x, Tensor):
        return float(x) if x.numel() == 1 else None
    return float(x) if isinstance(x, int | float) else None
