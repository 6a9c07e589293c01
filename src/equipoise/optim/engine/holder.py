"""Shared by optimizers that wrap others: hooks that run once, copies, states."""

# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch has hooks, and what keeps dynamo out, under private names alone)

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.optim.optimizer as torchs
from torch.optim import Optimizer

from equipoise.optim.engine.base import evaluated
from equipoise.optim.engine.saved import check_saved


class Held(property):
    """What a holder answers by the optimizers inside: torch's constructor sets it, which changes nothing."""

    def __set__(self, instance: Any, value: Any) -> None:
        pass


class Holder(Optimizer):
    """A torch optimizer that steps others: its hooks run once a step, as do those that torch has for all optimizers."""

    kept: ClassVar[tuple[str, ...]]
    """Names of the attributes that copies and pickles have."""

    _ready: bool = True

    def _hold(self, groups: list[dict[str, Any]]) -> None:
        """Become an optimizer of parameters that those inside have already: torch's constructor adds none."""
        self._ready = False
        super().__init__([p for group in groups for p in group["params"]], self.defaults)
        self._ready = True

    @abstractmethod
    def _step(self) -> None:
        """Take one step with the gradients that there are."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Take one step.

        Args:
            closure: re-evaluates the model and returns the loss.
        """
        loss = evaluated(closure)
        self._step()
        return loss

    @abstractmethod
    def _saved(self) -> dict[str, Any]:
        """The state to save, as torch has it: "state" and "param_groups"."""

    @abstractmethod
    def _load(self, state_dict: dict[str, Any]) -> None:
        """Go on from a state that has "state" and "param_groups"."""

    def state_dict(self) -> dict[str, Any]:
        """The state to save, as torch has it: `state` by the number of the parameter, and `param_groups`."""
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        state = self._saved()
        for hook in self._optimizer_state_dict_post_hooks.values():
            changed = hook(self, state)
            state = state if changed is None else changed
        return state

    @torch._disable_dynamo
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from a saved state.

        Args:
            state_dict: what `state_dict` returned.
        """
        state = dict(state_dict) if isinstance(state_dict, dict) else state_dict
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state)
            state = state if changed is None else changed
        check_saved(state)
        before = self._saved()
        try:
            self._load(state)
        except Exception:
            self._load(before)  # one of two may have loaded its part
            raise
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for name in ("pre", "post"):  # as torch's own copies, without hooks
            self.__dict__[f"_optimizer_step_{name}_hooks"] = OrderedDict()
            for kind in ("state_dict", "load_state_dict"):
                self.__dict__[f"_optimizer_{kind}_{name}_hooks"] = OrderedDict()
        self._warned_capturable_if_run_uncaptured = True
        self._patch_step_function()


def steppable(name: str, optimizer: Any) -> Optimizer:
    """A torch optimizer whose step needs no closure."""
    if not isinstance(optimizer, Optimizer) or isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(f"{name} = {type(optimizer).__name__}: must be a torch optimizer whose step needs no closure")
    return optimizer


@contextmanager
def within_a_step() -> Iterator[None]:
    """Steps in here are parts of a step whose global hooks run already: they have their own hooks alone.

    Torch looks its global hooks up at every step and has no other way to leave them out, so they are out of its sight
    for a while, for other threads, too.
    """
    kept = torchs._global_optimizer_pre_hooks, torchs._global_optimizer_post_hooks
    torchs._global_optimizer_pre_hooks, torchs._global_optimizer_post_hooks = OrderedDict(), OrderedDict()
    try:
        yield
    finally:
        torchs._global_optimizer_pre_hooks, torchs._global_optimizer_post_hooks = kept
