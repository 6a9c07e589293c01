"""Read a `Setting` from a live model and torch optimizer. The one file of the planner that knows torch objects."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from equipoise import _check
from equipoise.optim.dynamics_of import group_state, stepping
from equipoise.optim.model.belonging import nothing_to_train, refuse_lazy, refuse_others
from equipoise.optim.model.roles import known_parameters, role_by_shape
from equipoise.planner.pretrained import Verdict, judge
from equipoise.planner.setting import KIND_OF_ROLE, Group, Tensor

if TYPE_CHECKING:
    import torch


def read_optimizer(
    model: torch.nn.Module | None, optimizer: torch.optim.Optimizer
) -> tuple[tuple[Group, ...], tuple[Tensor, ...], tuple[str, ...]]:
    """Groups, tensors and assumptions of an optimizer; the model, where given, names its tensors.

    Any `torch.optim` optimizer works, fused and foreach too; one that theory does not know is read as the nearest
    that it does, and the assumption is stated.
    """
    inner = stepping(optimizer)
    groups, notes = read_groups(optimizer)
    groups, scheduled = _unscheduled(groups, inner.param_groups)
    tensors, left = _read_tensors(model, inner.param_groups, ours=hasattr(inner, "rule"))
    return groups, tensors, (*notes, *scheduled, *left)


def read_model(model: torch.nn.Module) -> tuple[Tensor, ...]:
    """The tensors of a model for which an optimizer is only named."""
    return _read_tensors(model, [{"params": list(model.parameters())}], ours=False)[0]


def _read_tensors(
    model: torch.nn.Module | None, groups: Sequence[Mapping[str, Any]], *, ours: bool
) -> tuple[tuple[Tensor, ...], tuple[str, ...]]:
    """The tensors of groups, one for those that are alike, and what was left out."""
    if model is not None and not hasattr(model, "named_modules"):
        raise ValueError(f"model = {_check.shown(model)}: must be a torch.nn.Module, or None")
    every = [p for group in groups for p in group["params"]]
    if model is None:
        refuse_lazy(every)
    else:
        refuse_others(model, groups, "to plan it without names")
    known = {} if model is None else {id(k.param): k for k in known_parameters(model)}
    tensors: dict[tuple[Any, ...], Tensor] = {}
    frozen = 0
    for i, group in enumerate(groups):
        for j, p in enumerate(group["params"]):
            if not p.requires_grad or p.is_complex() or not p.numel():
                frozen += 1
                continue
            named = known.get(id(p))
            name = f"group {i}, parameter {j}" if named is None else named.name
            role = str(group.get("role"))  # groups of `param_groups` say it
            if role not in KIND_OF_ROLE:
                role = role_by_shape(name, p.ndim) if named is None else named.role
            dtype = str(p.dtype).removeprefix("torch.")
            if ours and dtype in ("bfloat16", "float16"):
                dtype = "float32"  # ours keep a float32 copy of such weights
            there = not p.is_meta and p.is_floating_point()
            rms = p.detach().float().square().mean().sqrt().item() if there else None
            if rms is not None and not math.isfinite(rms):
                raise ValueError(f"{name} has weights that are NaN, infinite or too large to square; set them first")
            one = Tensor(name, tuple(p.shape), KIND_OF_ROLE[role], rms, i, dtype=dtype)
            key = (one.shape, one.kind, i, dtype, None if rms is None else f"{rms:.1e}")
            tensors[key] = replace(tensors[key], count=tensors[key].count + 1) if key in tensors else one
    if not tensors:
        raise nothing_to_train(every)
    some = f"{frozen} parameter{' is' if frozen == 1 else 's are'} left out: frozen, complex or empty"
    return tuple(tensors.values()), (some,) if frozen else ()


def read_groups(optimizer: Any) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """The groups of an optimizer in theory's words, and what was assumed."""
    held = stepping(optimizer).param_groups
    read = [group_state(optimizer, group) for group in held]
    groups = (Group(s.dynamics, s.lr, s.weight_decay, str(g.get("name", ""))) for s, g in zip(read, held, strict=True))
    return tuple(groups), tuple(dict.fromkeys(note for s in read for note in s.notes))


def _unscheduled(
    groups: tuple[Group, ...], held: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Group, ...], tuple[str, ...]]:
    """The groups with their lr before a scheduler changed it, and the assumptions to state.

    A torch scheduler overwrites `lr` as soon as it is made, for example with the first value of a warmup, and keeps
    the original as `initial_lr`. OneCycleLR starts below its peak and keeps the peak as `max_lr`.
    """
    found, said = [], []
    for group, has in zip(groups, held, strict=True):
        kept = {key: float(has[key]) for key in ("initial_lr", "max_lr") if has.get(key) is not None}
        key = max(kept, key=kept.__getitem__) if "initial_lr" in kept else None
        if key is not None and kept[key] != group.lr:
            change = f"a scheduler has set lr to {group.lr:.3g}: {key} = {kept[key]:.3g} is used"
            said.append(f"{change}; pass the scheduler as `schedule` to plan its curve")
            group = replace(group, lr=kept[key])
        found.append(group)
    return tuple(found), tuple(dict.fromkeys(said))


def judge_optimizers(model: torch.nn.Module | None, optimizers: Sequence[Any], finetune: bool | None) -> Verdict:
    """Whether optimizers fine-tune a model; one that has stepped has shaped the weights itself.

    Args:
        model: the model, or None.
        optimizers: those that train it.
        finetune: what the user says; None asks the weights.
    """
    inner = [stepping(o) for o in optimizers]
    params = [p for o in inner for group in o.param_groups for p in group["params"]]
    return judge(model, params, finetune=finetune, stepped=any(map(_stepped, inner)))


def _stepped(optimizer: Any) -> bool:
    first = next((s for s in getattr(optimizer, "state", {}).values() if s), None)
    return first is not None and float(first.get("step", 1)) > 0  # some make their state before the first step
