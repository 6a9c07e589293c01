"""Saved states: in our words, and refused before anything is changed where a step could make no sense of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from equipoise.optim.engine.rate import hollow
from equipoise.optim.moves import Move
from equipoise.optim.options import GroupOptions, group_options
from equipoise.optim.rules import Rule
from equipoise.theory.directions import BY_LR_MAX

Groups = list[dict[str, Any]]

BESIDE = ("params", "param_names", "initial_lr", "max_lr", "min_lr", "max_momentum", "base_momentum", "swa_lr")
"""What groups have that is no option of an optimizer: torch's schedulers keep numbers there."""


COUNTS = ("step", "row_step")
"""What of a state is a number of steps."""


def check_saved(state_dict: Any) -> None:
    """Refuse what no optimizer saved."""
    wanted = "state_dict: must be one that an optimizer saved, with state and param_groups"
    if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= set(state_dict):
        raise ValueError(wanted)
    state, groups = state_dict["state"], state_dict["param_groups"]
    if not isinstance(state, dict) or not isinstance(groups, list | tuple):
        raise ValueError(wanted)
    if not all(isinstance(group, dict) and isinstance(group.get("params"), list | tuple) for group in groups):
        raise ValueError(f"{wanted}, whose groups have params")
    if not all(isinstance(key, int | str) for group in groups for key in group["params"]):
        raise ValueError(f"{wanted}, whose params are numbers or names")
    if not all(isinstance(one, dict) for one in state.values()):
        raise ValueError(f"{wanted}, which have a dict for each parameter")


def filled(saved: Groups, here: Groups) -> Groups:
    """Saved groups in our words; what they do not say stays as it is here."""
    if len(saved) != len(here):
        return saved  # torch says why not
    kept = [{k: v for k, v in g.items() if k not in ("params", "param_names")} for g in here]
    return [mine | _ours(group, mine) for mine, group in zip(kept, saved, strict=True)]


def check_groups(saved: Groups, here: Groups, check: Callable[[GroupOptions], None]) -> None:
    """Refuse saved options that make no sense; the others become numbers and tuples where they were read so.

    Args:
        saved: what `filled` returned.
        here: the groups that they are loaded into.
        check: refuses those of a group.
    """
    for group, mine in zip(saved, here, strict=True) if len(saved) == len(here) else ():
        options = group_options(group | {"params": mine["params"]})
        try:
            check(options)
            if options["lr_max"] is None and options["decay"] in BY_LR_MAX:
                raise ValueError(f"lr_max = None: must be a number where decay = {options['decay']!r}")
        except ValueError as error:
            raise ValueError(f"{error} (in the saved state)") from None
        group.update({name: value for name, value in options.items() if name != "params"})


def check_states(state_dict: dict[str, Any], here: Groups, pairs: Sequence[tuple[Rule, Move]]) -> None:
    """Refuse numbers of steps that are none, and what has not the shape that a step needs.

    Args:
        state_dict: what was saved.
        here: the groups that it is loaded into.
        pairs: the rule and the move of each group.
    """
    for group, mine, (rule, move) in zip(state_dict["param_groups"], here, pairs, strict=False):
        for key, p in zip(group["params"], mine["params"], strict=False):
            shapes = dict.fromkeys((*rule.state, "master"), tuple(p.shape)) | move.shapes
            for name, found in state_dict["state"].get(key, {}).items():
                wanted = shapes.get(name)
                if name in COUNTS:
                    if not is_count(found):
                        raise ValueError(f"{name} = {found!r} in the saved state: must be a whole number ≥ 0")
                elif name in rule.state and found is None:
                    pass  # torch.optim.SGD has no momentum before its first step
                elif wanted is not None and not (torch.is_tensor(found) and tuple(found.shape) == wanted):
                    what = f"of shape {tuple(found.shape)}" if torch.is_tensor(found) else repr(found)
                    raise ValueError(f"{name} in the saved state is {what}: must be a tensor of shape {wanted}")


def is_count(value: Any) -> bool:
    """Whether a value is a number of steps."""
    if torch.is_tensor(value):
        if value.numel() != 1 or value.is_complex():
            return False
        if hollow(value):
            return True
        value = value.item()
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 <= value <= 2**53 and value == int(value)


def _ours(saved: dict[str, Any], here: dict[str, Any]) -> dict[str, Any]:
    """A saved group in our words: where torch's weight_decay is L2, it is `l2` here.

    What we lack is refused where it would change steps, and left out where not.
    """
    if "l2" in saved:
        return saved
    for key, plain in (("amsgrad", False), ("centered", False), ("dampening", 0)):
        if saved.get(key, plain) != plain:
            raise ValueError(f"{key} = {saved[key]!r} in the saved state: must be {plain}; this optimizer has no {key}")
    coupled = "dampening" in saved or "centered" in saved or saved.get("decoupled_weight_decay") is False
    known = {name: value for name, value in saved.items() if name in here or name in BESIDE}
    if not coupled or not saved.get("weight_decay"):
        return known
    return known | {"l2": saved["weight_decay"], "weight_decay": 0.0}
