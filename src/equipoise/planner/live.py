"""Read a `Setting` from a live model and torch optimizer. The one file of the planner that knows torch objects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from equipoise.optim.dynamics_of import group_state, stepping
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
    names, kinds = _names(model)
    tensors: dict[tuple[Any, ...], Tensor] = {}
    frozen = 0
    for i, group in enumerate(inner.param_groups):
        for j, p in enumerate(group["params"]):
            if not p.requires_grad or p.is_complex():
                frozen += 1
                continue
            name = names.get(id(p), f"group {i}, parameter {j}")
            kind = KIND_OF_ROLE.get(str(group.get("role"))) or kinds.get(id(p))  # groups of `param_groups` say it
            tensor = _tensor(name, p, kind, i)
            if hasattr(inner, "rule") and tensor.dtype in ("bfloat16", "float16"):
                tensor = replace(tensor, dtype="float32")  # ours keep a float32 copy of such weights
            rounded = None if tensor.init_rms is None else float(f"{tensor.init_rms:.1e}")
            key = (tensor.shape, tensor.kind, i, tensor.dtype, rounded)
            seen = tensors.get(key)
            tensors[key] = tensor if seen is None else replace(seen, count=seen.count + 1)
    if not tensors:
        raise ValueError("optimizer: must have at least one trainable parameter")
    left = (f"{frozen} frozen or complex parameters are left out",) if frozen else ()
    return groups, tuple(tensors.values()), (*notes, *scheduled, *left)


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


def read_model(model: torch.nn.Module) -> tuple[Tensor, ...]:
    """The tensors of a model for which an optimizer is only named."""
    names, kinds = _names(model)
    found = tuple(_tensor(names[id(p)], p, kinds.get(id(p)), 0) for p in model.parameters() if p.requires_grad)
    if not found:
        raise ValueError("model: must have at least one trainable parameter")
    return found


def _names(model: Any) -> tuple[dict[int, str], dict[int, str]]:
    """The name and the kind of each parameter of a model by its id, as `param_groups` tells them."""
    if model is not None and not hasattr(model, "named_modules"):
        raise ValueError(f"model = {model!r}: must be a torch.nn.Module, or None")
    known = [] if model is None else known_parameters(model)
    return {id(k.param): k.name for k in known}, {id(k.param): KIND_OF_ROLE[k.role] for k in known}


def _tensor(name: str, p: torch.Tensor, kind: str | None, group: int) -> Tensor:
    known = not p.is_meta and p.numel() and p.is_floating_point()
    return Tensor(
        name=name,
        shape=tuple(p.shape),
        kind=kind or role_by_shape(name, p.ndim),
        init_rms=p.detach().float().square().mean().sqrt().item() if known else None,
        group=group,
        dtype=str(p.dtype).removeprefix("torch."),
    )
