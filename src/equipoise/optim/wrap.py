"""A wrapper that makes the rotational variant of any torch optimizer."""

# pyright: reportIncompatibleVariableOverride=false, reportPrivateImportUsage=false
# (groups, state and defaults are those of the optimizer inside: properties here, attributes in torch; what keeps dynamo
# out has a private name)

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Literal, final

import torch
from torch import Tensor
from torch.optim import Optimizer

from equipoise import _check
from equipoise.optim.dynamics_of import dynamics_of
from equipoise.optim.engine.base import LOW_PRECISION, RuleOptimizer, without_autocast
from equipoise.optim.engine.clock import count_of, value_of
from equipoise.optim.engine.holder import Held, Holder, steppable, within_a_step
from equipoise.optim.engine.rate import known_rate, rate
from equipoise.optim.engine.saved import is_count
from equipoise.optim.engine.validation import check_granularity
from equipoise.optim.moves import Piece, turns, varied
from equipoise.optim.options import GroupOptions, group_options
from equipoise.optim.rows import center_rows
from equipoise.optim.rules import Rule, described
from equipoise.optim.sphere import BY_STEP, Rotate, RowMove, on_sphere
from equipoise.theory import Dynamics

COUNT = "rotations"
"""What `Rotational` calls the number of its steps in the groups of the optimizer inside."""


@final
class _Unknown(Rule):
    """The direction of an optimizer that we did not write: what it does to the weights, over lr."""

    state = ()

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        return {}

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        return g

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described("ngd", known=False)


@final
class Rotational(Holder):
    """The rotational variant of any torch optimizer: rotate every neuron by a given angle, and keep its norm.

    The inner optimizer takes its step, the step is undone, and its direction rotates the weights (`sphere.Rotate`).
    Its own decay lies along the weights and so falls out. Parameters with fewer than two dimensions, or with rows of
    one number, keep the inner step. Groups and state are the inner optimizer's: schedulers and `add_param_group` work
    on either.

    Args:
        optimizer: any torch optimizer with an `lr`.
        angle: rotation per step in radians, or a function of the step; or "step": the inner optimizer's own, the same
            in all rows of a tensor, with its norms. Default: the equilibrium of the inner optimizer's own lr and weight
            decay, where theory knows it (Adam and its kin by betas, SGD by momentum).
        granularity: "neuron", "tensor", or a number of equal parts; a group may have its own.
        center: centre the rows, once now and then their directions.
        track: share of a row's remembered square that is left after a step. Default: 0.9.
        method: "exact" or "small_step", for the default angle.

    Reference: [kosson2024] Algorithm 1.

    >>> w = torch.nn.Parameter(torch.eye(2))
    >>> optimizer = Rotational(torch.optim.NAdam([w], lr=0.1), angle=0.1)
    >>> (w[0, 1] + w[1, 0]).backward(); _ = optimizer.step()
    >>> w = w.detach()
    >>> w.norm(dim=1).allclose(torch.ones(2)), round(float(torch.atan2(-w[0, 1], w[0, 0])), 5)
    (True, 0.1)
    """

    kept = ("inner", "_options", "_rotate", "_rule")

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        angle: float | Callable[[int], float] | Literal["step"] | None = None,
        granularity: str | int = "neuron",
        center: bool = False,
        track: float | None = None,
        method: str = "exact",
    ):
        self.inner = steppable("optimizer", getattr(optimizer, "optimizer", optimizer))
        if isinstance(self.inner, Holder):
            raise ValueError(
                f"optimizer = {type(self.inner).__name__}: must be one that holds no other; for a Switch of rotational "
                "optimizers, wrap each of its two"
            )
        if isinstance(self.inner, RuleOptimizer) and any(
            isinstance(self.inner.pair(group)[1], RowMove) for group in self.inner.groups
        ):
            raise ValueError(f"optimizer = {type(self.inner).__name__}: must be one that does not keep norms itself")
        _check.choice("method", method, ("exact", "small_step"))
        _check.flag("center", center)
        if track is not None:
            _check.number("track", track, low=0, high=1, open_high=True)
        if angle is not None and angle != BY_STEP and not callable(angle):
            _check.number("angle", angle, low=0, high=1.5)
        given = {"angle": angle, "granularity": granularity, "center": center, "track": track, "method": method}
        self._options = Rotate.defaults | given
        self._rotate, self._rule = Rotate(), _Unknown()
        self._hold(self.inner.param_groups)
        for group in self.param_groups:
            self._check_group(group)
        self._take_in(self.param_groups)

    def _check_group(self, group: dict[str, Any]) -> None:
        """Refuse what cannot be turned, and an optimizer without a known rotation now, not at the first step."""
        check_granularity(self._rows_of(group))
        for p in self._turning(group):
            if p.dtype in LOW_PRECISION:
                raise ValueError(f"parameters in {p.dtype}: must be float32; the inner step would be lost to rounding")
            if not p.is_floating_point():
                raise ValueError(
                    f"parameters in {p.dtype}: must be real to be turned; optimize real and imaginary parts, or say "
                    "rotate=False for their group"
                )
            self._wanted(group, tuple(p.shape), 1)

    def _take_in(self, groups: list[dict[str, Any]]) -> None:
        count = self._steps
        for group in groups:
            group.setdefault(COUNT, count)
            if self._options["center"]:
                with torch.no_grad():
                    for p in self._turning(group):
                        center_rows(p, self._own("granularity", group))

    @Held
    def defaults(self) -> dict[str, Any]:
        """The inner optimizer's."""
        return self.inner.defaults

    @Held
    def param_groups(self) -> list[dict[str, Any]]:
        """The inner optimizer's groups themselves."""
        return self.inner.param_groups

    @Held
    def state(self) -> defaultdict[Any, Any]:
        """The inner optimizer's state itself, with the rows' norms and sizes in it."""
        return self.inner.state

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
        before = len(self.inner.param_groups)
        self.inner.add_param_group(param_group)
        added = self.inner.param_groups[before:]
        try:
            for group in added:
                self._check_group(group)
        except ValueError:
            del self.inner.param_groups[before:]
            raise
        self._take_in(added)

    def _own(self, name: str, group: dict[str, Any]) -> Any:
        """An option of a group: its own, or the wrapper's."""
        own = group.get(name)
        return self._options[name] if own is None else own

    def _rows_of(self, group: dict[str, Any]) -> GroupOptions:
        """What says which parameters of a group turn, and what their rows are."""
        rows = {name: self._own(name, group) for name in ("rotate", "granularity")}
        return group_options(rows, params=group["params"])

    def _turning(self, group: dict[str, Any]) -> list[Tensor]:
        """The parameters of a group that turn."""
        rows = self._rows_of(group)
        return [p for p in group["params"] if turns(p, rows)]

    def dynamics(self, group: dict[str, Any]) -> Dynamics:
        """What theory knows of a group: the inner optimizer's rule, with rows that turn by the angle."""
        inner = dynamics_of(self.inner, group)
        angle = self._own("angle", group)
        if angle == BY_STEP:
            return varied(inner, known=False)
        options = {"decay": inner.decay, "lr_max": inner.lr_max, "maximize": inner.maximize}
        options |= {"rotate": group.get("rotate"), "method": self._options["method"]}
        return varied(on_sphere(inner, group_options(options)), angle=math.nan if callable(angle) else angle)

    def _wanted(self, group: dict[str, Any], shape: tuple[int, ...], t: int) -> float | Literal["step"]:
        angle = self._own("angle", group)
        if angle == BY_STEP:
            return BY_STEP
        if angle is not None:
            own = callable(angle)
            return _check.number(f"angle({t})" if own else "angle", angle(t) if own else angle, low=0, high=1.5)
        known = self.dynamics(group)
        if not known.known and "betas" not in group:
            raise ValueError(
                f"angle = None: must be given for {type(self.inner).__name__}, whose rotation is not known"
            )
        lr, wd = known_rate(group_options(group)), float(group.get("weight_decay", 0.0) or 0.0)
        if wd == 0:
            raise ValueError("weight_decay = 0 in the inner optimizer: must be > 0 to set the rotation; or give angle")
        return known.asked(shape, lr=lr, weight_decay=wd)

    @torch._disable_dynamo
    def _step(self) -> None:
        count = self._steps + 1
        turning = [(p, group) for group in self.param_groups for p in self._turning(group) if p.numel()]
        angles = [self._wanted(group, tuple(p.shape), count) for p, group in turning]
        before = [p.detach().clone() for p, _ in turning]
        with without_autocast(), within_a_step():
            self.inner.step()
            for group in self.param_groups:
                group[COUNT] = count
            for (p, group), old, angle in zip(turning, before, angles, strict=True):
                if p.grad is not None:
                    self._turn_one(p, old, group, angle)
                p.copy_(old)

    def _turn_one(self, p: Tensor, old: Tensor, group: dict[str, Any], angle: Any) -> None:
        """Turn the weights of before, in place, along the step that the inner optimizer has taken from them to p."""
        state, lr = self.state[p], rate(group_options(group))
        options = group_options(
            self._options, lr=lr, weight_decay=0.0, decay="lr", lr_max=None, maximize=False, angle=angle,
            granularity=self._own("granularity", group),
        )  # fmt: skip
        stays = isinstance(lr, float) and lr == 0.0
        numbers = None if stays else self._rotate.numbers(self._rule, 1, self._rotate.steps(state), options, ())
        if numbers is None:  # a distributed checkpoint is loaded into the state that a step of lr 0 makes
            self._rotate.start(Piece(old, state), options)
            return
        # What is left of a small step after p was rounded is noise of this size.
        least: Any = 4 * torch.finfo(p.dtype).eps / lr
        noise = (min(least, 1e150) if isinstance(lr, float) else least.clamp_max(1e15)) ** 2 / max(1, p.shape[0])
        self._rotate.move(Piece(old, state), (old - p) / lr, numbers | {"noise": noise}, options)

    def _saved(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def _load(self, state_dict: dict[str, Any]) -> None:
        """A state of the inner optimizer alone serves, too: rows are tracked, and steps counted, from there on."""
        for group in state_dict["param_groups"]:
            if not is_count(group.get(COUNT, 0)):
                raise ValueError(f"{COUNT} = {group[COUNT]!r} in the saved state: must be a whole number ≥ 0")
        self.inner.load_state_dict(state_dict)
        for group in self.param_groups:
            group.setdefault(COUNT, 0)
        for state in self.state.values():
            if "row_step" in state:  # a count of its own, which never lies on a GPU
                state["row_step"] = count_of(value_of(state["row_step"]))
