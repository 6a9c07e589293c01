"""Validation of parameters and options, alone and in combination."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from equipoise import _check
from equipoise.optim.engine.rate import check_rate, known_rate
from equipoise.optim.moves import turns
from equipoise.optim.options import GroupOptions
from equipoise.optim.rows import row_count
from equipoise.optim.sphere import BY_STEP, NO_DECAY
from equipoise.theory import DECAYS

NONFINITE = ("ignore", "skip", "error")
_UNIT = {"low": 0, "high": 1, "open_high": True}


def listed(params: Any) -> list[Any]:
    """What is to be optimized: parameters, pairs or groups, at least one, in an order."""
    if torch.is_tensor(params) or isinstance(params, str | dict | set) or not isinstance(params, Iterable):
        what = "a tensor" if torch.is_tensor(params) else f"a {type(params).__name__}"
        raise ValueError(f"params is {what}: must be a list of parameters or groups, such as model.parameters()")
    found = list(params)
    if not found:
        raise ValueError("params = []: must have at least one parameter; is the model empty, or its iterator used up?")
    return found


def with_params(group: Any) -> dict[str, Any]:
    """A group whose parameters are a list, and their names another, if it has them; refused if they are none."""
    if not isinstance(group, dict) or "params" not in group:
        raise ValueError(f"group = {group!r}: must be a dict with 'params'")
    params = group["params"]
    if isinstance(params, str | set) or not isinstance(params, Iterable):
        raise ValueError(f"params = {params!r}: must be parameters, or (name, parameter) pairs, in a list")
    given = [params] if torch.is_tensor(params) else list(params)
    pairs = [item for item in given if isinstance(item, tuple) and len(item) == 2]
    if pairs and len(pairs) != len(given):
        raise ValueError(f"params has {len(pairs)} names for {len(given)} parameters: must be one for each, or none")
    listed = [p for _, p in pairs] if pairs else given
    for p in listed:
        _check_param(p)
    if len({id(p) for p in listed}) != len(listed):
        raise ValueError("params has a parameter twice: must have each once; are two layers tied?")
    if pairs:
        return group | {"params": listed, "param_names": [name for name, _ in pairs]}
    if "param_names" not in group:
        return group | {"params": listed}
    names = group["param_names"]
    names = [names] if isinstance(names, str) else list(names)
    if len(names) != len(listed):
        raise ValueError(f"param_names has {len(names)} names: must be one for each of the {len(listed)} parameters")
    return group | {"params": listed, "param_names": names}


def split_group(group: Any, is_first: Callable[[torch.Tensor], bool]) -> list[tuple[bool, dict[str, Any]]]:
    """A group as one of the parameters that are so and one of the others, with their names; what is empty is left out.

    Args:
        group: as for any torch optimizer.
        is_first: whether a parameter belongs to the first part.
    """
    group = with_params(group)
    parts = []
    for wanted in (True, False):
        chosen = [i for i, p in enumerate(group["params"]) if is_first(p) is wanted]
        lists = {name: [group[name][i] for i in chosen] for name in ("params", "param_names") if name in group}
        if chosen or (wanted and not group["params"]):  # a group without parameters stays one
            parts.append((wanted, group | lists))
    return parts


def _check_param(p: Any) -> None:
    if not torch.is_tensor(p):
        raise ValueError(f"params has {p!r}: must be a parameter, or a (name, parameter) pair")
    if not p.is_leaf:
        shape = tuple(p.shape)
        raise ValueError(f"params has a tensor of shape {shape} that was computed: must be a parameter itself")
    if not p.is_floating_point():
        more = "; optimize real and imaginary parts" if p.is_complex() else ""
        raise ValueError(f"params has one of {p.dtype}: must be floating point, others are not supported{more}")


def check_group(group: GroupOptions) -> None:
    """Refuse options that make no sense, by argument, value and range."""
    check_rate(group)
    _check.number("weight_decay", group["weight_decay"], low=0)
    _check.number("l2", group["l2"], low=0)
    _check.choice("decay", group["decay"], DECAYS)
    _check.choice("nonfinite", group["nonfinite"], NONFINITE)
    if group["lr_max"] is not None:
        _check.number("lr_max", group["lr_max"], low=0)
    for name in ("compile", "foreach", "rotate", "muon"):
        _check.flag(name, group.get(name), optional=True)
    for name in ("maximize", "nesterov", "zero_init", "bias_correction", "nested", "center", "flatten"):
        _check.flag(name, group.get(name, False))
    if "betas" in group:
        group["betas"] = _check.betas(group["betas"])
    if "eps" in group:
        group["eps"] = _check.number("eps", group["eps"], low=0)
    for name in ("trust", "row_eps", "floor", "delta", "gain_rate", "turn_decay", "turn_power"):
        if name in group:
            group[name] = _check.number(name, group[name], low=0)
    if group.get("clip") is not None:
        group["clip"] = _check.number("clip", group["clip"], low=0, open_low=True)
    for name in ("outward", "inward", "wd_ratio"):
        if name in group:
            group[name] = _check.number(name, group[name], low=0, high=1)
    for name in ("momentum", "alpha", "track", "beta2"):
        if name in group and (name != "track" or group[name] is not None):
            group[name] = _check.number(name, group[name], **_UNIT)
    if "granularity" in group:
        check_granularity(group)
    if "bound" in group:
        _check_constraint(group)
    if "method" in group:
        _check.choice("method", group["method"], ("exact", "small_step"))
        if group["reference"] is not None:
            _check.choice("reference", group["reference"], ("paper",))
        if group["norm"] is not None:
            _check.number("norm", group["norm"], low=0, open_low=True)
        if group["angle"] == BY_STEP:
            _check_by_step(group)
        elif isinstance(group["angle"], str):
            raise ValueError(f"angle = {group['angle']!r}: must be a number, a function of the step, 'step' or None")
        elif group["angle"] is not None:
            _check.number("angle", group["angle"], low=0, high=1.5)


def check_together(group: GroupOptions) -> None:
    """Refuse options that do not go together. A saved state may have them: a schedule may just have set decay to 0."""
    if group.get("nesterov") and group["momentum"] == 0:
        raise ValueError("nesterov = True with momentum = 0: must have momentum > 0")
    if "bound" in group and group["weight_decay"]:
        raise ValueError(f"weight_decay = {group['weight_decay']!r}: must be 0; the bound takes its place")
    if "method" in group and group["angle"] is None and any(turns(p, group) for p in group["params"]):
        known_rate(group)
        if group["weight_decay"] == 0:
            raise ValueError(NO_DECAY)


def _check_by_step(group: GroupOptions) -> None:
    if group["decay"] == "cautious":
        raise ValueError("decay = 'cautious': must be another with angle = 'step', as it is not of whole rows")
    for name in ("norm", "reference"):
        if group[name] is not None:
            raise ValueError(f"{name} = {group[name]!r}: must be None with angle = 'step', which has its own norms")


def check_granularity(group: GroupOptions) -> None:
    """Refuse a granularity, or speeds, that the group's parameters cannot have."""
    parts = group["granularity"]
    if isinstance(parts, bool) or not isinstance(parts, int) or parts < 1:
        _check.choice("granularity", parts, ("neuron", "tensor"))
    turning = [p for p in group["params"] if p.numel() and ("rotate" not in group or turns(p, group))]
    if isinstance(parts, int):
        for p in turning:
            if p.numel() % parts:
                raise ValueError(f"granularity = {parts}: must divide the {p.numel()} weights of each parameter")
    speeds = group.get("speeds")
    if speeds is None:
        return
    if not torch.is_tensor(speeds) or speeds.ndim != 1 or speeds.is_complex() or not bool((speeds >= 0).all()):
        raise ValueError("speeds: must be a one-dimensional tensor of numbers ≥ 0, one for each row")
    for p in turning:
        rows = row_count(p, parts)
        if len(speeds) != rows:
            raise ValueError(f"speeds has {len(speeds)} values: must be one for each of the {rows} rows")


def _check_constraint(group: GroupOptions) -> None:
    if isinstance(group["bound"], str):
        _check.choice("bound", group["bound"], ("inflection", "warm_start"))
    else:
        _check.number("bound", group["bound"], low=0, open_low=True)
    group["rate"] = _check.number("rate", group["rate"], low=0)
    if group["warm_start"] is None:
        group["warm_start"] = 1000 if group["bound"] == "warm_start" else 200
    _check.whole("warm_start", group["warm_start"], low=1)
