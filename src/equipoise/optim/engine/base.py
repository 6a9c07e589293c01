"""The engine that every optimizer of the family runs on: groups, states, low precision, foreach; no equation."""

# pyright: reportPrivateImportUsage=false
# (torch exports its foreach functions under private names alone)

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from equipoise import _check
from equipoise.optim.engine.clock import Clock, count_of, value_of
from equipoise.optim.engine.distributed import mesh_of, summed
from equipoise.optim.engine.rate import check_rate, readable
from equipoise.optim.engine.saved import check_groups, check_saved, check_states, filled
from equipoise.optim.engine.step_layout import StepLayout
from equipoise.optim.engine.tensor_list import TensorList
from equipoise.optim.engine.validation import check_group, check_together, listed, with_params
from equipoise.optim.moves import Move, Piece, direction, turns, varied
from equipoise.optim.options import SHARED, GroupOptions, group_options
from equipoise.optim.rows import all_finite, center_rows, everywhere
from equipoise.optim.rules import Rule
from equipoise.theory import Dynamics
from equipoise.theory.directions import BY_LR_MAX

LOW_PRECISION = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class StepBatch:
    """The parameters of a group that take part in a step, with their states."""

    live: list[Tensor]
    states: list[dict[str, Any]]
    pieces: list[Piece]
    sorts: list[tuple[Any, ...]]
    """Device, dtype of the state, mesh of a DTensor: what may be stepped together."""
    kinds: list[tuple[Any, ...]]
    alike: bool
    """Whether all are of one sort, and their own working weights."""

    def holds(self, live: list[Tensor], states: list[dict[str, Any]]) -> bool:
        """Whether these are the same, one for one."""
        same = len(live) == len(self.live) and all(map(is_, live, self.live))
        return same and all(map(is_, states, self.states)) and all(states) and self.kinds == kinds_of(live)


def kinds_of(live: list[Tensor]) -> list[tuple[Any, ...]]:
    """Type and device of each parameter, which `model.to(...)` may change under the same name."""
    return [(p.dtype, p.device) for p in live]


class RuleOptimizer(Optimizer):
    """A torch optimizer made of a rule and a move. Final classes choose the two and name the hyperparameters.

    State is in float32 or the parameter's own float64; bfloat16 and float16 parameters keep a float32 copy
    (`master`), so that small updates are not lost to rounding.

    Args:
        params: parameters or groups.
        defaults: lr and the rule's own options. Those that all optimizers take, and the move's, need not be given.
            The `angle` of a move that rotates may be a function of the step.
        rule: gradient → direction.
        move: (weight, direction) → weight.
    """

    def __init__(
        self,
        params: Iterable[Any],
        defaults: dict[str, Any],
        *,
        rule: Rule,
        move: Move,
    ):
        self.rule, self.move = rule, move
        self.skipped = 0
        """Steps not taken because a gradient was not finite, where `nonfinite="skip"`."""
        options = SHARED | move.defaults | defaults
        angle = options.get("angle")
        self._angle = angle if callable(angle) else None
        if self._angle is not None:
            options["angle"] = _check.number("angle(1)", self._angle(1), low=0, high=1.5)
        self._fresh()
        super().__init__(listed(params), options)

    def _fresh(self) -> None:
        """What only speeds steps up, and is made again from the rest."""
        self._layouts: dict[tuple[Rule, Move], StepLayout] = {}
        self._clock = Clock("step")
        self._batches: dict[int, StepBatch] = {}

    @property
    def groups(self) -> list[GroupOptions]:
        """`param_groups`, with their options typed."""
        return [group_options(group) for group in self.param_groups]

    def pair(self, group: GroupOptions) -> tuple[Rule, Move]:
        """The rule and the move of a group; the same for all groups, unless an optimizer overrides this."""
        return self.rule, self.move

    def dynamics(self, group: GroupOptions) -> Dynamics:
        """What theory knows about a group: its rule and its move."""
        rule, move = self.pair(group)
        found = move.dynamics(rule.dynamics(group), group)
        if self._angle is None or group.get("own_angle"):
            return found
        return varied(found, angle=math.nan)  # another one at every step

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group and check its options.

        Args:
            param_group: as for any torch optimizer.
        """
        given = "angle" in param_group
        super().add_param_group(with_params(param_group))
        group = group_options(self.param_groups[-1])
        try:
            if "angle" in group:
                group["own_angle"] = given
            self.check_options(group)
            check_together(group)
            if group["lr_max"] is None and group["decay"] in BY_LR_MAX:
                if not readable(group["lr"]):
                    raise ValueError("lr_max = None: must be given where lr is a tensor on a device, which is not read")
                group["lr_max"] = float(group["lr"])
        except ValueError:
            self.param_groups.pop()
            raise
        if group.get("center") and group.get("reference") is None:
            with torch.no_grad(), without_autocast():
                for p in group["params"]:
                    if turns(p, group):
                        center_rows(p, group["granularity"])

    def check_options(self, group: GroupOptions) -> None:
        """Refuse a group's options that make no sense; an optimizer with options of its own extends this."""
        check_group(group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a saved state, also from torch's own optimizer of the same kind.

        Args:
            state_dict: what `state_dict` returned. L2 of torch.optim.SGD, Adam and RMSprop becomes `l2`; options that
                only they have are dropped; what schedulers keep in groups is not.
        """
        hooks = self._optimizer_load_state_dict_pre_hooks
        for hook in hooks.values():
            state_dict = hook(self, state_dict) or state_dict
        check_saved(state_dict)
        groups = filled(state_dict["param_groups"], self.param_groups)
        check_groups(groups, self.param_groups, self.check_options)
        check_states(state_dict, self.param_groups, [self.pair(group) for group in self.groups])
        self._optimizer_load_state_dict_pre_hooks = OrderedDict()  # they have run
        try:
            super().load_state_dict(state_dict | {"param_groups": groups})
        finally:
            self._optimizer_load_state_dict_pre_hooks = hooks
        # torch casts the state to the parameter's dtype; ours is float32 beside low precision, and is copied.
        keys = [i for g in state_dict["param_groups"] for i in g["params"]]
        params = [p for g in self.param_groups for p in g["params"]]
        for key, p in zip(keys, params, strict=True):
            for name, value in state_dict["state"].get(key, {}).items():
                if torch.is_tensor(value):
                    self.state[p][name] = (
                        count_of(value_of(value))
                        if name in ("step", "row_step")
                        else value.detach().to(device=p.device, dtype=state_dtype(p), copy=True)
                    )

    def __getstate__(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("rule", "move", "skipped", "_angle")}
        return super().__getstate__() | own

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.defaults.pop("differentiable", None)  # torch's own option, which it adds to every optimizer's
        self._fresh()
        for group in self.param_groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step.

        Args:
            closure: re-evaluates the model and returns the loss.
        """
        loss = evaluated(closure)
        self._step()
        return loss

    @torch._disable_dynamo
    def _step(self) -> None:
        """The step itself, out of a compiled training step: its step counts would make that recompile every time."""
        with without_autocast():
            self._step_all()

    def _step_all(self) -> None:
        self._refuse_sparse()
        if not self._all_finite():
            self.skipped += 1
            return
        moves = self._moves()
        for group in self.groups:
            before = [] if moves is None else [p.detach().clone() for p in group["params"]]
            self._step_group(group)
            for p, w in zip(group["params"], before, strict=False):
                p.copy_(torch.where(moves.to(p.device), p, w))  # type: ignore[union-attr]

    def _moves(self) -> Tensor | None:
        """Whether this step may move weights, as a tensor, which nobody waits for; None where there is no doubt.

        There is in a first step with lr 0. With gradients of zeros it is the one that torch takes to make empty state
        before it loads a distributed checkpoint; it must not move weights, as independent decay, a bound on norms or
        rounding would.
        """
        if self.state or any(not readable(g["lr"]) or float(g["lr"]) for g in self.param_groups):
            return None
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        found = [everywhere(g.count_nonzero()) for g in grads if g is not None]
        if len(found) < len(grads) or not found:
            return None
        return torch.stack([x.to(found[0].device) for x in found]).any()

    def _refuse_sparse(self) -> None:
        if any(p.grad is not None and p.grad.is_sparse for g in self.param_groups for p in g["params"]):
            raise ValueError("gradient is sparse: use a dense one (torch.nn.Embedding(sparse=False))")

    def _all_finite(self) -> bool:
        """Whether the step may go on; gradients are looked at only where a group asks for it."""
        asked = [g for g in self.param_groups if g["nonfinite"] != "ignore"]
        grads = [p.grad for g in asked for p in g["params"] if p.grad is not None and p.grad.numel()]
        kinds: dict[tuple[Any, ...], list[Tensor]] = {}
        for grad in grads:
            kinds.setdefault((grad.device, grad.dtype, mesh_of(grad)), []).append(grad)
        # Of every kind, also where one is bad: ranks wait for each other.
        well = [_finite(kind, device, mesh) for (device, _, mesh), kind in kinds.items()]
        if all(well):
            return True
        if any(g["nonfinite"] == "error" for g in asked):
            bad = sum(1 for g in grads if not all_finite(g))
            raise ValueError(
                f"gradients of {bad} of {len(grads)} parameters are not finite: no weight was changed; find the cause, "
                "clip, or set nonfinite='skip' to leave such steps out"
            )
        return False

    def _step_group(self, group: GroupOptions) -> None:
        check_rate(group)  # a schedule may have set it, and weight decay, to anything
        _check.number("weight_decay", group["weight_decay"], low=0)
        live = [p for p in group["params"] if p.grad is not None and p.numel()]
        batch = self._batch_of(live, group)
        times = self._clock.tick(batch.states)
        grads: list[Any] = [p.grad for p in live]
        low: list[tuple[Tensor, Tensor]] = []
        buckets: dict[tuple[Any, ...], tuple[list[Piece], list[Tensor]]] = {}
        if batch.alike and len(set(times)) == 1:
            buckets[(*batch.sorts[0], times[0])] = (batch.pieces, grads)
        else:
            for p, piece, sort, t, grad in zip(live, batch.pieces, batch.sorts, times, grads, strict=True):
                if p.dtype in LOW_PRECISION:
                    piece = Piece(_master(p, piece.state), piece.state)
                    low.append((p, piece.w))
                pieces, theirs = buckets.setdefault((*sort, t), ([], []))
                pieces.append(piece)
                theirs.append(grad)
        for (_, dtype, mesh, t), (pieces, grads) in buckets.items():
            if self._angle is not None and not group.get("own_angle"):
                group["angle"] = _check.number(f"angle({t})", self._angle(t), low=0, high=1.5)
            pair = self.pair(group)
            if pair not in self._layouts:
                self._layouts[pair] = StepLayout(*pair)
            pieces, grads = self._layouts[pair].step(pieces, grads, t, group)
            rule = self.pair(group)[0]
            together = len(pieces) > 1 and (mesh is None or rule.shares) and group["foreach"] is not False
            ways = rule.parts([piece.w for piece in pieces], group) if together else [[i] for i in range(len(pieces))]
            for part in ways:
                self._step_together([pieces[i] for i in part], [grads[i] for i in part], dtype, t, together, group)
        for p, w in low:
            p.copy_(w)

    def _batch_of(self, live: list[Tensor], group: GroupOptions) -> StepBatch:
        """The parameters' states and sorts, looked at again only when they are others than last time."""
        states = [self.state[p] for p in live]
        batch = self._batches.get(id(group))
        if batch is None or not batch.holds(live, states):
            for p, state in zip(live, states, strict=True):
                _init_state(p, state, self.pair(group)[0])
            sorts = [(p.device, state_dtype(p), mesh_of(p)) for p in live]
            alike = len(set(sorts)) == 1 and not any(p.dtype in LOW_PRECISION for p in live)
            pieces = [Piece(p, s) for p, s in zip(live, states, strict=True)]
            batch = StepBatch(live, states, pieces, sorts, kinds_of(live), alike)
            self._batches[id(group)] = batch
        return batch

    def _step_together(
        self,
        pieces: list[Piece],
        grads: list[Tensor],
        dtype: torch.dtype,
        t: int,
        together: bool,
        group: GroupOptions,
    ) -> None:
        rule, move = self.pair(group)

        def pack(tensors: list[Tensor]) -> Any:
            return TensorList(tensors) if together else tensors[0]

        grads = [grad if grad.dtype == dtype else grad.to(dtype) for grad in grads]
        g: Any = pack([move.gradient(grad, piece, group) for grad, piece in zip(grads, pieces, strict=True)])
        averages = tuple(pack([piece.state[name] for piece in pieces]) for name in rule.state)
        u = direction(g, pack([piece.w for piece in pieces]), averages, rule=rule, t=t, group=group)
        if together and mesh_of(pieces[0].w) is not None:  # moves take DTensors one by one
            for piece, one in zip(pieces, u.tensors, strict=True):
                move([piece], one, rule=rule, t=t, group=group)
        else:
            move(pieces, u, rule=rule, t=t, group=group)


def _finite(tensors: list[Tensor], device: torch.device, mesh: Any) -> bool:
    """Whether all numbers of some tensors are finite. Ranks count what they see: gloo's maximum loses a NaN."""
    here = [x.to_local() for x in tensors] if mesh is not None else tensors  # type: ignore[attr-defined]
    held = [x for x in here if x.numel()]
    norms = torch._foreach_norm(held, float("inf")) if held else []
    bad = (~torch.isfinite(torch.stack(norms))).sum() if norms else torch.zeros((), dtype=torch.int64, device=device)
    return not bool(summed(bad, mesh))


def _init_state(p: Tensor, state: dict[str, Any], rule: Rule) -> None:
    """What is missing of a parameter's averages: all of them at first, and what another optimizer did not save."""
    for name in rule.state:
        if state.get(name) is None:
            state[name] = torch.zeros_like(p, dtype=state_dtype(p), memory_format=torch.preserve_format)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Autocast would take sums of weights in low precision; a step is not part of the model."""
    with ExitStack() as stack:
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def evaluated(closure: Callable[[], Any] | None) -> Any:
    """The loss that a closure gives, with gradients on; None without a closure."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def state_dtype(p: Tensor) -> torch.dtype:
    """Of the averages of a parameter."""
    return torch.float32 if p.dtype in LOW_PRECISION else p.dtype


def _master(p: Tensor, state: dict[str, Any]) -> Tensor:
    """The float32 copy of a low-precision parameter; where somebody else has changed the parameter, it follows."""
    if "master" not in state:
        state["master"] = p.detach().float()
    else:
        master = state["master"]
        master.copy_(torch.where(master.to(p.dtype) == p, master, p.float()))
    return state["master"]
