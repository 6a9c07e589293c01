"""Optimizers round optimizers: the rotational variant of any torch optimizer, and a switch between two."""

# pyright: reportIncompatibleVariableOverride=false
# (groups and state are those of the optimizers inside: properties here, attributes in torch)

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from equipoise import theory
from equipoise.optim.base import LOW_PRECISION, RuleOptimizer, evaluated, without_autocast
from equipoise.optim.checks import check_granularity
from equipoise.optim.moves import Piece, turns
from equipoise.optim.rotate import Rotate, RowMove, settled
from equipoise.optim.rows import center_rows
from equipoise.optim.rules import Rule
from equipoise.theory import _check

COUNT = "rotations"
"""What `Rotational` calls the number of its steps in the groups of the optimizer inside."""


@final
class _Unknown(Rule):
    """The direction of an optimizer that we did not write: what it does to the weights, over lr."""

    state = ()

    def numbers(self, t: int, group: dict[str, Any]) -> dict[str, float]:
        return {}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: dict[str, Any]) -> Any:
        return g

    def theory(self, group: dict[str, Any]) -> dict[str, Any]:
        return {"optimizer": "ngd"}


@final
class Rotational(Optimizer):
    """The rotational variant of any torch optimizer: its direction, every neuron turned by a wanted angle, norms kept.

    The inner optimizer takes its step, the step is taken back, and its direction turns the weights (`rotate.Rotate`).
    Its own decay lies along the weights and so falls out. Parameters with fewer than two dimensions, or with rows of
    one number, keep the inner step. Groups and state are the inner optimizer's: schedulers and `add_param_group` work
    on either.

    Args:
        optimizer: any torch optimizer with an `lr`.
        angle: rotation per step in radians, or a function of the step. Default: the equilibrium of the inner
            optimizer's own lr and weight decay, where theory knows it (Adam and its kin by betas, SGD by momentum).
        granularity: "neuron", "tensor", or a number of equal parts; a group may have its own.
        center: centre the rows, once now and then their directions.
        track: averaging factor of the size of the direction.
        method: "exact" or "small_step", for the default angle.

    Reference: RE Algorithm 1.

    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> optimizer = Rotational(torch.optim.NAdam([w], lr=0.1), angle=0.1)
    >>> (w[0, 1] + w[1, 0]).backward(); _ = optimizer.step()
    >>> w = w.detach()
    >>> w.norm(dim=1).allclose(torch.ones(2)), round(float(torch.atan2(-w[0, 1], w[0, 0])), 5)
    (True, 0.1)
    """

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        angle: float | Callable[[int], float] | None = None,
        granularity: str | int = "neuron",
        center: bool = False,
        track: float = 0.99,
        method: str = "exact",
    ):
        self.inner = _steppable("optimizer", getattr(optimizer, "optimizer", optimizer))
        if isinstance(self.inner, Rotational | Switch):
            raise ValueError(
                f"optimizer = {type(self.inner).__name__}: must be one that holds no other; for a Switch of rotational "
                "optimizers, wrap each of its two"
            )
        if isinstance(self.inner, RuleOptimizer) and any(
            isinstance(self.inner.pair(group)[1], RowMove) for group in self.inner.param_groups
        ):
            raise ValueError(f"optimizer = {type(self.inner).__name__}: must be one that does not keep norms itself")
        _check.choice("method", method, ("exact", "small_step"))
        _check.flag("center", center)
        _check.number("track", track, low=0, high=1, open_high=True)
        if angle is not None and not callable(angle):
            _check.number("angle", angle, low=0, high=1.5)
        self._angle = angle
        self._options = Rotate.defaults | {
            "granularity": granularity, "center": center, "track": track, "method": method,
        }  # fmt: skip
        self._rotate, self._rule = Rotate(), _Unknown()
        self._ready = False
        super().__init__([p for g in self.inner.param_groups for p in g["params"]], {"lr": 0.0})
        self._ready = True
        for group in self.param_groups:
            own = {"granularity": self._parts(group), "rotate": group.get("rotate"), "params": group["params"]}
            check_granularity(own)
            if any(self._turns(p, group) for p in group["params"]):
                self._wanted(group, 1)  # an optimizer without a known rotation is refused now, not at the first step
        low = next((p for p in self._turning() if p.dtype in LOW_PRECISION), None)
        if low is not None:
            raise ValueError(f"parameters in {low.dtype}: must be float32; the inner step would be lost to rounding")
        if center:
            with torch.no_grad():
                for group in self.param_groups:
                    self._center(group)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The inner optimizer's groups themselves."""
        return self.inner.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Torch's constructor sets them; they are the inner optimizer's, whatever it sets."""

    @property
    def state(self) -> defaultdict[Any, Any]:
        """The inner optimizer's state itself, with the rows' norms and sizes in it."""
        return self.inner.state

    @state.setter
    def state(self, state: defaultdict[Any, Any]) -> None:
        """Torch's constructor sets it; it is the inner optimizer's, whatever it sets."""

    @property
    def _steps(self) -> int:
        return max((group.get(COUNT, 0) for group in self.param_groups), default=0)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group to the inner optimizer.

        Args:
            param_group: as for the inner optimizer.
        """
        if not self._ready:
            return
        self.inner.add_param_group(param_group)
        if self._options["center"]:
            with torch.no_grad():
                self._center(self.inner.param_groups[-1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_optimizer_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _revive(self)

    def _parts(self, group: dict[str, Any]) -> str | int:
        """The granularity of a group: its own, or the wrapper's."""
        return group.get("granularity", self._options["granularity"])

    def _center(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            if self._turns(p, group):
                center_rows(p, self._parts(group))

    def _turning(self) -> list[Tensor]:
        return [p for g in self.param_groups for p in g["params"] if self._turns(p, g)]

    def _turns(self, p: Tensor, group: dict[str, Any]) -> bool:
        return turns(p, {"rotate": group.get("rotate"), "granularity": self._parts(group)})

    def _wanted(self, group: dict[str, Any], t: int) -> float:
        if group.get("angle") is not None:
            return _check.number("angle", group["angle"], low=0, high=1.5)
        if callable(self._angle):
            return _check.number(f"angle({t})", self._angle(t), low=0, high=1.5)
        if self._angle is not None:
            return float(self._angle)
        if isinstance(self.inner, RuleOptimizer):
            return settled(self.inner.pair(group)[0], group | {"method": self._options["method"]}).rotation
        lr, wd = float(group["lr"]), float(group.get("weight_decay", 0.0) or 0.0)
        known: dict[str, Any]
        if "betas" in group:
            known = {"optimizer": "lion" if "lion" in type(self.inner).__name__.lower() else "adamw"}
            known["betas"] = tuple(float(b) for b in group["betas"][:2])
        elif type(self.inner).__name__ == "SGD":
            known = {"optimizer": "sgdm", "momentum": float(group["momentum"]), "nesterov": bool(group["nesterov"])}
        else:
            raise ValueError(
                f"angle = None: must be given for {type(self.inner).__name__}, whose rotation is not known"
            )
        if wd == 0:
            raise ValueError("weight_decay = 0 in the inner optimizer: must be > 0 to set the rotation; or give angle")
        name = known.pop("optimizer")
        return theory.stationary(name, lr=lr, weight_decay=wd, size=1, method=self._options["method"], **known).rotation

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step.

        Args:
            closure: re-evaluates the model and returns the loss.
        """
        loss = evaluated(closure)
        with without_autocast():
            self._turn()
        return loss

    def _turn(self) -> None:
        turning = [p for p in self._turning() if p.numel()]
        groups = {id(p): g for g in self.param_groups for p in g["params"]}
        turned = {id(groups[id(p)]): groups[id(p)] for p in turning}
        angles = {key: self._wanted(group, self._steps + 1) for key, group in turned.items()}
        before = [p.detach().clone() for p in turning]
        self.inner.step()
        count = self._steps + 1
        for group in self.param_groups:
            group[COUNT] = count
        for p, old in zip(turning, before, strict=True):
            if p.grad is not None:
                self._turn_one(p, old, groups[id(p)], angles[id(groups[id(p)])])
            p.copy_(old)

    def _turn_one(self, p: Tensor, old: Tensor, group: dict[str, Any], angle: float) -> None:
        """Turn the weights of before, in place, along the step that the inner optimizer has taken from them to p."""
        state, lr = self.state[p], float(group["lr"])
        options = self._options | {"lr": lr, "weight_decay": 0.0, "decay": "lr", "lr_max": None}
        options |= {"angle": angle, "granularity": self._parts(group)}
        numbers = self._rotate.numbers(self._rule, 1, self._rotate.steps(state), options, ()) if lr else None
        if numbers is None:  # a distributed checkpoint is loaded into the state that a step of lr 0 makes
            self._rotate.start(Piece(old, state), options)
            return
        # What is left of a small step after p was rounded is noise of this size.
        noise = min(4 * torch.finfo(p.dtype).eps / lr, 1e150) ** 2 / max(1, p.shape[0])
        self._rotate.move(Piece(old, state), (old - p) / lr, numbers | {"noise": noise}, options)

    def state_dict(self) -> dict[str, Any]:
        """The inner optimizer's, which has the sizes that rows are tracked by in it."""
        return self.inner.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state_dict: what `state_dict` returned, or a state of the inner optimizer alone: rows are then tracked, and
                steps counted for `angle`, from there on.
        """
        if not {"state", "param_groups"} <= set(state_dict):
            raise ValueError("state_dict: must be one that an optimizer saved, with state and param_groups")
        self.inner.load_state_dict(state_dict)
        for p in self._turning():
            state = self.state.get(p, {})
            if "row_step" in state:  # a copy, as it is changed in place; never on a GPU
                state["row_step"] = state["row_step"].detach().float().cpu().clone()


@final
class Switch(Optimizer):
    """One optimizer until a step, another after it, abruptly or blended.

    During a blend both take their step from the same weights, and the weights move by (1−s) of the first's change and s
    of the second's, s rising from 0 to 1 in a line.

    Args:
        first: the optimizer of the first `at` steps.
        second: the optimizer of the rest, over the same parameters.
        at: number of steps that are the first's alone.
        blend: number of steps over which one turns into the other.

    Reference: thesis 3.2, Adam2SGD and SGD2Adam.

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> optimizer = Switch(torch.optim.SGD([w], lr=0.1), torch.optim.SGD([w], lr=0.5), at=1)
    >>> for _ in range(2):
    ...     w.grad = torch.ones(1)
    ...     _ = optimizer.step()
    >>> round(w.item(), 6)
    0.4
    """

    def __init__(self, first: Optimizer, second: Optimizer, at: int, *, blend: int = 0):
        for name, one in (("first", first), ("second", second)):
            _steppable(name, one)
        mine, theirs = ({id(p) for g in o.param_groups for p in g["params"]} for o in (first, second))
        if mine != theirs:
            raise ValueError(f"second has {len(theirs)} parameters: must be the same {len(mine)} as first's")
        self.first, self.second = first, second
        self.at, self.blend = _check.whole("at", at), _check.whole("blend", blend)
        self._steps = 0
        self._ready = False
        super().__init__([p for g in first.param_groups for p in g["params"]], {"lr": 0.0})
        self._ready = True

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of the optimizer whose turn it is; attach schedulers to `first` and `second`."""
        return (self.second if self.share == 1.0 else self.first).param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        """Torch's constructor sets them; they are those of the two, whatever it sets."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: the two optimizers may need different options.

        Args:
            param_group: a group.
        """
        if self._ready:
            raise ValueError("add_param_group: must be called on first and on second, each with its own options")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if not name.startswith("_optimizer_")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        _revive(self)

    @property
    def share(self) -> float:
        """s, the second optimizer's share of the next step."""
        if self._steps < self.at:
            return 0.0
        return min(1.0, (self._steps - self.at + 1) / (self.blend + 1))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step.

        Args:
            closure: re-evaluates the model and returns the loss.
        """
        loss = evaluated(closure)
        s = self.share
        if s in (0.0, 1.0):
            (self.second if s else self.first).step()
        else:
            params = [p for g in self.first.param_groups for p in g["params"] if p.grad is not None]
            before = [p.detach().clone() for p in params]
            self.first.step()
            after = [p.detach().clone() for p in params]
            for p, old in zip(params, before, strict=True):
                p.copy_(old)
            self.second.step()
            for p, one in zip(params, after, strict=True):
                p.lerp_(one, 1 - s)
        self._steps += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        """The states of both, and the step."""
        return {"first": self.first.state_dict(), "second": self.second.state_dict(), "steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state_dict: what `state_dict` returned.
        """
        if not {"first", "second", "steps"} <= set(state_dict):
            raise ValueError("state_dict: must be one that a Switch saved, with first, second and steps")
        self.first.load_state_dict(state_dict["first"])
        self.second.load_state_dict(state_dict["second"])
        self._steps = int(state_dict["steps"])


def _steppable(name: str, optimizer: Any) -> Optimizer:
    """A torch optimizer whose step needs no closure."""
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(f"{name} = {type(optimizer).__name__}: must be a torch optimizer whose step needs no closure")
    return optimizer


def _revive(optimizer: Optimizer) -> None:
    """What torch's own `__setstate__` gives an optimizer that comes out of a copy or a pickle: empty hooks."""
    for name in ("pre", "post"):
        optimizer.__dict__[f"_optimizer_step_{name}_hooks"] = OrderedDict()
        for kind in ("state_dict", "load_state_dict"):
            optimizer.__dict__[f"_optimizer_{kind}_{name}_hooks"] = OrderedDict()
    optimizer._patch_step_function()
