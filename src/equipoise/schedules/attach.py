"""The one torch-facing file: curves written into the parameter groups of an optimizer, step by step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from equipoise import _check
from equipoise._check import Array
from equipoise.schedules import decay as decays
from equipoise.schedules.base import Schedule, as_schedule

Curve = Schedule | ArrayLike
"""What a hyperparameter may be given as: a schedule, a constant, one value a step."""

HYPERPARAMETERS = ("lr", "weight_decay", "beta1", "beta2", "momentum", "eps")
"""What a `Scheduler` can drive; betas are driven one by one."""

_BELOW_ONE = ("beta1", "beta2", "momentum")
_BLOCK = 512


class Scheduler(LRScheduler):
    """Drives lr, weight decay, betas, momentum and eps of every parameter group of a torch optimizer.

    Before the first step, and after each `scheduler.step()`, the groups hold the values of the step to come: the t-th
    `optimizer.step()` uses `curve(t)`, bit for bit. It is an `LRScheduler`, so loops, Lightning, accelerate and the
    Hugging Face Trainer take it as one (tell Lightning `"interval": "step"`).

    A hyperparameter without a curve is left alone: a `Scheduler` of weight decay works next to any other of lr. Where
    lr is a tensor, as compiled optimizers want it, it is filled in place.

    Args:
        optimizer: any torch optimizer.
        lr: curve of the learning rate: a schedule, a number, or one value a step.
        weight_decay: curve of the weight decay, of the kind that `decay` says.
        betas: curves of both betas, as a pair.
        beta1: curve of the first beta alone.
        beta2: curve of the second beta alone.
        momentum: curve of the momentum (SGD, RMSprop).
        eps: curve of eps.
        groups: what is different for a group, by its index or its `group["name"]`: hyperparameter → a number, which is
            a factor on the shared curve, or a curve of its own. Groups that were set apart with weight decay 0 must be
            named here when weight decay gets a shared curve.
        relative: curves are factors on what each group had when it first got a scheduler (`initial_lr` and so on),
            as torch's own schedulers mean them, not values.
        decay: one of `theory.DECAYS` but "cautious". torch multiplies `weight_decay` by lr, so that is written which
            makes their product the decay of this kind; without a curve for it, each group's own weight decay is taken
            as a constant. torch's SGD and Adam put it into the gradient instead, where the kinds mean less.
        lr_max: η_max of the kinds "schedule" and "corrected". Default: the largest value of each group's lr curve.
            Factors of groups apply to it.
        last_epoch: steps already taken, less one, as torch counts.

    Raises:
        ValueError: for a group or hyperparameter that the optimizer does not have, and a value out of its range.

    >>> import torch
    >>> from equipoise.schedules import constant, warmup_cosine
    >>> optimizer = torch.optim.AdamW([{"params": [torch.zeros(2, 2)]}, {"params": [torch.zeros(2)], "name": "gains"}])
    >>> s = Scheduler(optimizer, lr=warmup_cosine(100, warmup=4, peak=0.01), weight_decay=0.1,
    ...               groups={"gains": {"weight_decay": 0.0}})
    >>> optimizer.step(); s.step()
    >>> [(g["lr"], g["weight_decay"]) for g in optimizer.param_groups]
    [(0.005, 0.1), (0.005, 0.0)]
    """

    curves: tuple[dict[str, Schedule], ...]
    """For each group: hyperparameter → the curve that is written into it."""

    def __init__(
        self,
        optimizer: Optimizer,
        *,
        lr: Curve | None = None,
        weight_decay: Curve | None = None,
        betas: tuple[Curve, Curve] | None = None,
        beta1: Curve | None = None,
        beta2: Curve | None = None,
        momentum: Curve | None = None,
        eps: Curve | None = None,
        groups: Mapping[int | str, Mapping[str, Any]] | None = None,
        relative: bool = False,
        decay: str = "lr",
        lr_max: float | None = None,
        last_epoch: int = -1,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ValueError(f"optimizer = {type(optimizer).__name__}: must be a torch.optim.Optimizer")
        given = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "beta1": beta1, "beta2": beta2}
        shared = _expand("", {k: v for k, v in (given | {"momentum": momentum, "eps": eps}).items() if v is not None})
        special = _by_index(optimizer, groups or {})
        kind = decays.check_kind("decay", decay)
        if "weight_decay" in shared and not relative:
            _check_undecayed(optimizer, special)
        self.curves = tuple(
            _group_curves(optimizer, i, shared, special.get(i, {}), relative=relative, kind=kind, lr_max=lr_max)
            for i in range(len(optimizer.param_groups))
        )
        for i, own in enumerate(self.curves):
            for key, curve in own.items():
                _check_values(i, key, 1, curve.values(curve.end or 1))
        for group in optimizer.param_groups:
            _initial(group, "lr")
        self._block: tuple[dict[str, list[float]], ...] = ()
        self._block_start = 1 - _BLOCK
        self._written = -1
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """The learning rate of each group at the step to come."""
        block, i = self._read()
        groups = self.optimizer.param_groups
        return [own["lr"][i] if "lr" in own else group["lr"] for own, group in zip(block, groups, strict=True)]

    def step(self, epoch: int | None = None) -> None:
        """Write the values of the next step into the groups; call it after `optimizer.step()`."""
        super().step(epoch)
        if self._written != self.last_epoch:  # an older torch, whose step does not go through _update_lr
            self._write()

    def _update_lr(self, epoch: int | None = None) -> None:
        # Torch's own writes lr, and again what it was written as; SequentialLR starts a scheduler through this.
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._write()

    def _write(self) -> None:
        block, i = self._read()
        for own, group in zip(block, self.optimizer.param_groups, strict=True):
            for key, values in own.items():
                _write(group, key, values[i])
        self._last_lr = [_copied(group["lr"]) for group in self.optimizer.param_groups]
        self._written = self.last_epoch

    def _read(self) -> tuple[tuple[dict[str, list[float]], ...], int]:
        """Every curve in a block of steps, and where in it the step to come is.

        A call for one step costs as much as one for hundreds, so a block is read at once.
        """
        self._check_groups()
        t: int = self.last_epoch + 1
        if not self._block_start <= t < self._block_start + _BLOCK:
            first = (t - 1) // _BLOCK * _BLOCK + 1
            steps = np.arange(first, first + _BLOCK, dtype=np.float64)
            read = [{key: curve(steps) for key, curve in own.items()} for own in self.curves]
            for group, own in enumerate(read):
                for key, values in own.items():
                    _check_values(group, key, first, values)
            self._block = tuple({key: values.tolist() for key, values in own.items()} for own in read)
            self._block_start = first
        return self._block, t - self._block_start

    def _check_groups(self) -> None:
        if len(self.optimizer.param_groups) != len(self.curves):
            raise ValueError(
                f"optimizer has {len(self.optimizer.param_groups)} parameter groups: must have {len(self.curves)}, as "
                "when the scheduler was made; after add_param_group make a new one, with its last_epoch"
            )

    def fingerprint(self) -> str:
        """Sixteen hex digits that tell these curves from any others."""
        return hashlib.sha256(repr(self._described).encode()).hexdigest()[:16]

    @cached_property
    def _described(self) -> list[dict[str, str]]:
        return [{key: str(curve) for key, curve in own.items()} for own in self.curves]

    def state_dict(self) -> dict[str, Any]:
        """The step, a fingerprint of the curves, and what they are in words: plain data only."""
        return {
            "last_epoch": self.last_epoch,
            "_step_count": self._step_count,
            "_last_lr": [_copied(lr) for lr in self._last_lr],
            "fingerprint": self.fingerprint(),
            "curves": [dict(own) for own in self._described],
        }

    def load_state_dict(self, state_dict: dict[str, Any], *, strict: bool = True) -> None:
        """Go to the saved step and write its values into the groups.

        Args:
            state_dict: what `state_dict` gave.
            strict: refuse a state of other curves. With False only the step is taken from it, to go on with a changed
                schedule on purpose.

        Raises:
            ValueError: where the saved curves are others than these, naming each that differs.
        """
        if not {"last_epoch", "_step_count", "fingerprint", "curves"} <= set(state_dict):
            raise ValueError(
                f"state_dict has {', '.join(sorted(state_dict))}: must be a state of equipoise's Scheduler"
            )
        if strict and state_dict["fingerprint"] != self.fingerprint():
            raise ValueError(
                "state_dict is of other curves: "
                + "; ".join(_differences(state_dict["curves"], self._described))
                + ". Attach the saved ones, or load_state_dict(..., strict=False) to go on with these"
            )
        self.last_epoch = state_dict["last_epoch"]
        self._step_count = state_dict["_step_count"]
        self._write()


def _expand(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The given curves with betas taken apart."""
    out = dict(given)
    if "betas" in out:
        pair = out.pop("betas")
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"{where}betas = {pair!r}: must be a pair, of beta1 and beta2")
        if both := sorted({"beta1", "beta2"} & set(out)):
            raise ValueError(f"{where}{both[0]} and {where}betas: must give one of the two")
        out |= {"beta1": pair[0], "beta2": pair[1]}
    for key in out:
        _check.choice(f"{where}hyperparameter", key, HYPERPARAMETERS)
    return out


def _by_index(optimizer: Optimizer, groups: Mapping[int | str, Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    names = [g.get("name") for g in optimizer.param_groups]
    out: dict[int, dict[str, Any]] = {}
    for key, special in groups.items():
        if isinstance(key, str):
            found = [i for i, name in enumerate(names) if name == key]
            if not found:
                known = ", ".join(repr(n) for n in names if n is not None) or "none"
                raise ValueError(f"groups[{key!r}]: must be the name of a parameter group; there are {known}")
        else:
            found = [_check.whole("groups: index", key)]
            if found[0] >= len(names):
                raise ValueError(f"groups[{key}]: must be < {len(names)}, the number of parameter groups")
        for i in found:
            if i in out:
                raise ValueError(f"groups[{key!r}]: must be given once, but it is group {i}, which is there already")
            out[i] = _expand(f"groups[{key!r}]: ", special)
    return out


def _group_curves(
    optimizer: Optimizer,
    index: int,
    shared: Mapping[str, Any],
    special: Mapping[str, Any],
    *,
    relative: bool,
    kind: str,
    lr_max: float | None,
) -> dict[str, Schedule]:
    """The curves of one group, with its factors, its base values and the decay kind worked in."""
    group = optimizer.param_groups[index]
    curves: dict[str, Schedule] = {}
    lr_factor = 1.0
    for key in HYPERPARAMETERS:
        if key not in shared and key not in special:
            continue
        if not _has(group, key):
            has = ", ".join(k for k in HYPERPARAMETERS if _has(group, k))
            raise ValueError(f"{key} is no hyperparameter of {type(optimizer).__name__}'s group {index}: it has {has}")
        factor = 1.0
        if key in special and np.ndim(special[key]) == 0 and not isinstance(special[key], Schedule):
            factor = _check.number(f"factor on {key} of group {index}", special[key], low=0)
            if key not in shared:
                raise ValueError(f"groups: {key} = {special[key]!r} is a factor: must have a shared curve for {key}")
            curve = as_schedule(key, shared[key])
        else:
            curve = as_schedule(key, special.get(key, shared.get(key)))
        if relative:
            factor *= _initial(group, key)
        curves[key] = curve if factor == 1 else curve * factor
        lr_factor = factor if key == "lr" else lr_factor
    if kind != "lr":
        if "lr" not in curves:
            raise ValueError(f"decay = {kind!r}: must be 'lr' where lr has no curve")
        if not _has(group, "weight_decay"):
            raise ValueError(f"decay = {kind!r}: {type(optimizer).__name__}'s group {index} has no weight_decay")
        wanted = curves.get("weight_decay", as_schedule("weight_decay", _initial(group, "weight_decay")))
        top = None if lr_max is None else _check.number("lr_max", lr_max, low=0, open_low=True) * lr_factor
        curves["weight_decay"] = decays.torch_decay(wanted, lr=curves["lr"], kind=kind, lr_max=top)
    return curves


def _check_undecayed(optimizer: Optimizer, special: Mapping[int, Mapping[str, Any]]) -> None:
    """Refuse to guess whether a curve of weight decay is meant for the groups that were set apart without any."""
    initial = {i: _initial(g, "weight_decay") for i, g in enumerate(optimizer.param_groups) if "weight_decay" in g}
    apart = [i for i, value in initial.items() if value == 0 and "weight_decay" not in special.get(i, {})]
    if apart and any(initial.values()):
        i = apart[0]
        raise ValueError(
            f"group {i} has weight_decay = 0 and others have not: must say whether the curve is for it too: "
            f'groups={{{i}: {{"weight_decay": 0.0}}}} keeps it at 0, 1.0 gives it the curve'
        )


def _check_values(group: int, key: str, first: int, values: Array) -> None:
    """Refuse a curve that leaves the range of its hyperparameter; no curve is below 0."""
    if key in _BELOW_ONE and (bad := values >= 1).any():
        t = int(np.argmax(bad))
        raise ValueError(f"{key} of group {group} at step {first + t} = {float(values[t])!r}: must be in [0, 1)")


def _differences(saved: list[dict[str, str]], here: list[dict[str, str]]) -> list[str]:
    if len(saved) != len(here):
        return [f"it has {len(saved)} parameter groups and here are {len(here)}"]
    out = []
    for i, (old, new) in enumerate(zip(saved, here, strict=True)):
        for key in HYPERPARAMETERS:
            if old.get(key) != new.get(key):
                out.append(f"{key} of group {i} was {old.get(key, 'left alone')} and is {new.get(key, 'left alone')}")
    return out


def _has(group: Mapping[str, Any], key: str) -> bool:
    if key in ("beta1", "beta2"):
        return "betas" in group
    return isinstance(group.get(key), int | float | torch.Tensor)  # Adafactor's eps is a pair


def _initial(group: dict[str, Any], key: str) -> float:
    """What the group had before any scheduler; kept in the group, as torch keeps `initial_lr`."""
    now = group["betas"][0 if key == "beta1" else 1] if key in ("beta1", "beta2") else group[key]
    return float(group.setdefault(f"initial_{key}", _copied(now)))


def _write(group: dict[str, Any], key: str, value: float) -> None:
    if key in ("beta1", "beta2"):
        pair = list(group["betas"])
        _put(pair, 0 if key == "beta1" else 1, value)
        group["betas"] = tuple(pair)
    else:
        _put(group, key, value)


def _put(where: Any, key: Any, value: float) -> None:
    if isinstance(where[key], torch.Tensor):
        where[key].fill_(value)
    else:
        where[key] = value


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
