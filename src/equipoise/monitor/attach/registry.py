"""The optimizers of a watch: one, or several, such as Muon for matrices and AdamW for the rest."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from equipoise.finding import Finding
from equipoise.monitor.attach import own_findings
from equipoise.monitor.measure.quantities import PER_GROUP
from equipoise.monitor.store.layout import Quantity
from equipoise.optim.dynamics_of import stepping
from equipoise.optim.model.belonging import count_shared, refuse_lazy, refuse_others


class OptimizerRegistry:
    """Optimizers whose groups are counted through, and whose steps make up one step of training.

    A step of training goes on until an optimizer steps for the second time: where all of them step in turn, each step
    has all of them; where one steps more often, as a GAN's discriminator, some steps have that one alone.

    Args:
        given: an optimizer, or a list of them; accelerate's are looked into for the ones inside.
    """

    def __init__(self, given: Any) -> None:
        several = given if isinstance(given, list | tuple) else [given]
        if not several:
            raise ValueError("optimizer = []: must be an optimizer, or a list of at least one")
        self.each = [_hooked(one) for one in several]
        if len({id(one) for one in self.each}) < len(self.each):
            raise ValueError("optimizer: the same one is in the list twice; list each once")
        seen: dict[int, int] = {}
        for k, one in enumerate(self.each):
            for p in (p for group in groups_in(one) for p in group["params"]):
                if seen.setdefault(id(p), k) != k:
                    raise ValueError(
                        f"optimizer: a parameter of shape {tuple(p.shape)} is in number {seen[id(p)]} and in number "
                        f"{k} of the list; must be in only one of them; or watch them as separate runs"
                    )
        self._alone = [stepping(one) is one for one in self.each]
        self.stepped: set[int] = set()
        """Numbers of the optimizers that have stepped, or begun to, in the step of training."""

    def __len__(self) -> int:
        return len(self.each)

    def check(self, model: Any) -> None:
        """Refuse the optimizers of another model, and parameters without a shape.

        Args:
            model: a module; None is that of any.
        """
        refuse_lazy(p for group in self.param_groups for p in group["params"])
        if model is not None:
            refuse_others(model, self.param_groups, "to watch it without names")

    def others(self, model: Any) -> Finding | None:
        """The finding that some parameters are not the model's, if so.

        Args:
            model: as for `check`.
        """
        count, shared = (0, 0) if model is None else count_shared(model, self.param_groups)
        return None if shared == count else own_findings.other_parameters(count - shared, count)

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The groups of all, in order."""
        if len(self.each) == 1:
            return groups_in(self.each[0])
        return [group for one in self.each for group in groups_in(one)]

    def groups(self, owner: int) -> list[dict[str, Any]]:
        """The groups of an optimizer."""
        one = self.each[owner]
        return one.param_groups if self._alone[owner] else groups_in(one)

    def groups_of(self, owner: int) -> range:
        """The numbers of an optimizer's groups."""
        before = sum(len(groups_in(one)) for one in self.each[:owner])
        return range(before, before + len(groups_in(self.each[owner])))

    # Steps

    def begins(self, owner: int) -> bool:
        """Take note that an optimizer steps; whether a new step of training begins with it."""
        new = not self.stepped or owner in self.stepped
        if new:
            self.stepped.clear()
        self.stepped.add(owner)
        return new

    @property
    def complete(self) -> bool:
        """Whether all have stepped."""
        return len(self.stepped) == len(self.each)

    # What they say

    @property
    def name(self) -> str:
        """Their types."""
        return " + ".join(type(one).__name__ for one in self.each)

    @property
    def sharded(self) -> bool:
        """Whether parameters are spread over several processes."""
        return any(hasattr(p, "placements") for group in self.param_groups for p in group["params"])

    @property
    def quantities(self) -> list[Quantity]:
        """The quantities that there is one of for each group."""
        count = len(self.param_groups)
        return [
            Quantity(f"{q.name}/{i}", q.unit, "global", f"{q.description}: {i}")
            for q in PER_GROUP
            for i in range(count)
        ]


def _hooked(optimizer: Any) -> Any:
    """The optimizer whose step has hooks: inside accelerate's, its own."""
    one = optimizer
    while not hasattr(one, "_optimizer_step_pre_hooks"):
        if not hasattr(one, "optimizer"):
            raise ValueError(
                f"optimizer = {type(optimizer).__name__}: must be a torch.optim.Optimizer, or hold one as .optimizer; "
                "give the optimizer whose step() your loop calls"
            )
        one = one.optimizer
    return one


def model_of(model: Any, optimizer: Any) -> Any:
    """A model, or None where it has none of the optimizer's parameters, as with DeepSpeed's, which are copies.

    Args:
        model: the model that a framework trains.
        optimizer: its optimizers.
    """
    registry = OptimizerRegistry(optimizer)
    return None if model is None or not count_shared(model, registry.param_groups)[1] else model


def groups_in(optimizer: Any) -> list[dict[str, Any]]:
    """The groups of the optimizer that computes the step: of a `Switch`, those of the one whose turn it is."""
    return stepping(optimizer).param_groups


def has_closure(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a step was called with a closure, in which the gradients are computed."""
    return kwargs.get("closure") is not None or (len(args) > 1 and args[1] is not None)


def cheap(groups: list[dict[str, Any]]) -> bool:
    """Whether the lr of groups can be read without waiting for a device."""
    for group in groups:
        lr = group.get("lr")
        if isinstance(lr, Tensor) and lr.device.type != "cpu":
            return False
    return True
