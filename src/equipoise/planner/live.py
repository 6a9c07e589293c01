"""Read a `Setting` off a live model and torch optimizer. The one file of the planner that knows torch objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from equipoise.planner.setting import KINDS, Group, Tensor

if TYPE_CHECKING:
    import torch

    from equipoise.planner.pretrained import Verdict


def read_optimizer(
    model: torch.nn.Module | None, optimizer: torch.optim.Optimizer
) -> tuple[tuple[Group, ...], tuple[Tensor, ...], tuple[str, ...]]:
    """Groups, tensors and assumptions of an optimizer; the model, where given, names its tensors.

    Any `torch.optim` optimizer works, fused and foreach too; one that theory does not know is read as the nearest
    that it does, and the assumption is stated.
    """
    inner = stepping(optimizer)
    groups, assumptions = read_groups(optimizer)
    names, kinds = _names(model)
    tensors: dict[tuple[Any, ...], Tensor] = {}
    frozen = 0
    for i, (group, read) in enumerate(zip(inner.param_groups, groups, strict=True)):
        for j, p in enumerate(group["params"]):
            if not p.requires_grad or p.is_complex():
                frozen += 1
                continue
            name = names.get(id(p), f"group {i}, parameter {j}")
            kind = KIND.get(str(group.get("role"))) or kinds.get(id(p))  # groups of `param_groups` say it
            tensor = _tensor(name, p, kind, i, group if read.optimizer == "muon" else {})
            if hasattr(inner, "rule") and tensor.dtype in ("bfloat16", "float16"):
                tensor = replace(tensor, dtype="float32")  # ours keep a float32 copy of such weights
            rounded = None if tensor.init_rms is None else float(f"{tensor.init_rms:.1e}")
            key = (tensor.shape, tensor.matrix, tensor.kind, i, tensor.dtype, rounded)
            seen = tensors.get(key)
            tensors[key] = tensor if seen is None else _with_count(seen)
    if frozen:
        assumptions.append(f"{frozen} frozen or complex parameters are left out")
    if not tensors:
        raise ValueError("optimizer: must have at least one parameter that is trained")
    return tuple(groups), tuple(tensors.values()), tuple(assumptions)


def stepping(optimizer: Any) -> Any:
    """The optimizer that computes the step, out of what accelerate, `Rotational` or `Switch` put round it."""
    inner, seen = optimizer, None
    while inner is not seen:
        seen = inner
        for name in ("optimizer", "inner", "second" if getattr(inner, "share", 0.0) == 1.0 else "first"):
            if hasattr(inner, name):
                inner = getattr(inner, name)
                break
    if not hasattr(inner, "param_groups"):
        raise ValueError(f"optimizer = {type(optimizer).__name__}: must be a torch optimizer with param_groups")
    return inner


def judge_optimizers(model: torch.nn.Module | None, optimizers: Sequence[Any], finetune: bool | None) -> Verdict:
    """Whether optimizers fine-tune a model; one that has stepped has shaped the weights itself.

    Args:
        model: the model, or None.
        optimizers: those that train it.
        finetune: what the user says; None asks the weights.
    """
    from equipoise.planner.pretrained import judge

    inner = [stepping(o) for o in optimizers]
    params = [p for o in inner for group in o.param_groups for p in group["params"]]
    return judge(model, params, finetune=finetune, stepped=any(map(_stepped, inner)))


def _stepped(optimizer: Any) -> bool:
    first = next((s for s in getattr(optimizer, "state", {}).values() if s), None)
    return first is not None and float(first.get("step", 1)) > 0  # some make their state before the first step


def read_groups(optimizer: Any) -> tuple[list[Group], list[str]]:
    """The groups of an optimizer in theory's words, and what was assumed."""
    inner = stepping(optimizer)
    groups: list[Group] = []
    assumptions: list[str] = []
    for group in inner.param_groups:
        read, notes = _own_group(inner, group) if hasattr(inner, "rule") else _group(type(inner), group)
        groups.append(read)
        assumptions += [n for n in notes if n not in assumptions]
    return groups, assumptions


def read_model(model: torch.nn.Module) -> tuple[Tensor, ...]:
    """The tensors of a model for which an optimizer is only named."""
    names, kinds = _names(model)
    found = tuple(_tensor(names[id(p)], p, kinds.get(id(p)), 0, {}) for p in model.parameters() if p.requires_grad)
    if not found:
        raise ValueError("model: must have at least one parameter that is trained")
    return found


KIND = {"conv": "matrix", "head": "matrix"} | {kind: kind for kind in KINDS}
"""What the plan calls a role."""


def _names(model: Any) -> tuple[dict[int, str], dict[int, str]]:
    """The name and the kind of each parameter of a model by its id, as `param_groups` tells them."""
    if model is not None and not hasattr(model, "named_modules"):
        raise ValueError(f"model = {model!r}: must be a torch.nn.Module, or None")
    if model is None:
        return {}, {}
    from equipoise.optim.roles import known_parameters  # here, as it imports torch, which reading a run does without

    known = known_parameters(model)
    return {id(k.param): k.name for k in known}, {id(k.param): KIND[k.role] for k in known}


def _tensor(name: str, p: torch.Tensor, kind: str | None, group: int, muon: dict[str, Any]) -> Tensor:
    from equipoise.optim.dynamics_of import matrix_layout

    if kind is None:
        kind = "matrix" if p.ndim >= 2 else "bias" if name.endswith("bias") else "gain"
    rms = (
        None
        if p.is_meta or p.numel() == 0 or not p.is_floating_point()
        else p.detach().float().square().mean().sqrt().item()
    )
    shape = tuple(p.shape)
    layout = matrix_layout(shape, muon) if muon and len(shape) > 1 else None
    return Tensor(
        name=name,
        shape=shape,
        kind=kind,
        init_rms=rms,
        group=group,
        dtype=str(p.dtype).removeprefix("torch."),
        update_scale=1.0 if layout is None else layout.scale,
        matrix=None if layout is None else layout[:3],
    )


def _with_count(tensor: Tensor) -> Tensor:
    return replace(tensor, count=tensor.count + 1)


def _own_group(optimizer: Any, group: dict[str, Any]) -> tuple[Group, list[str]]:
    """A group of one of our own optimizers, whose rule says what theory calls it."""
    notes = []
    known = optimizer.pair(group)[0].theory(group)
    name = known["optimizer"]
    betas = known.get("betas", (known.get("momentum", 0.0), 0.999))
    wd, coupled = float(group["weight_decay"]), False if name == "sgdm" else None
    if group["l2"] and type(optimizer.move).__name__ == "Decay":
        if wd:
            notes.append("coupled L2 is left out beside decoupled decay")
        elif name in ("sgdm", "adamw"):
            wd, coupled, name = float(group["l2"]), True, "adam_l2" if name == "adamw" else name
    if type(optimizer.move).__name__ != "Decay":
        notes.append(
            f"{type(optimizer).__name__} controls norms itself: the plan is that of {name} with its lr and decay"
        )
    read = Group(
        optimizer=name,
        lr=float(group["lr"]),
        weight_decay=wd,
        betas=betas,
        eps=float(group.get("eps", 1e-8)),
        nesterov=bool(known.get("nesterov", False)),  # not the group's: Muon's AdamW groups have the word, too
        decay="lr" if coupled else group["decay"],
        coupled=coupled,
        lr_max=None if group["lr_max"] is None else float(group["lr_max"]),
        bias_correction=group.get("bias_correction"),
        name=str(group.get("name", "")),
    )
    return read, notes


def _group(kind: type, group: dict[str, Any]) -> tuple[Group, list[str]]:
    """One parameter group in theory's words."""
    name, notes = kind.__name__, []
    lr, wd = float(group.get("lr", 1e-3)), float(group.get("weight_decay", 0.0) or 0.0)
    betas = tuple(float(b) for b in group["betas"][:2]) if "betas" in group else None
    momentum = float(group.get("momentum", 0.0) or 0.0)
    fields: dict[str, Any] = {"betas": betas}
    lowered = name.lower()
    if lowered in ("adamw", "adam"):
        decoupled = lowered == "adamw" or group.get("decoupled_weight_decay", False)
        optimizer = "adamw" if decoupled else "adam_l2" if wd > 0 else "adam"
    elif lowered == "sgd":
        optimizer = "sgdm"
        fields = {"betas": (momentum, 0.999), "nesterov": bool(group.get("nesterov"))}
        if group.get("dampening"):
            notes.append(f"SGD's dampening = {group['dampening']:g} is read as a smaller lr after the first step")
            lr *= 1 - float(group["dampening"])
    elif lowered == "rmsprop":
        optimizer, fields = "rmsprop", {"betas": (0.0, float(group.get("alpha", 0.99)))}
        if momentum or group.get("centered"):
            notes.append("RMSprop is read without its momentum and centring")
        if wd:
            notes.append("RMSprop's L2 is read as decoupled decay")
    elif lowered == "muon":
        optimizer = "muon"
        fields = {"betas": (momentum, 0.999), "nesterov": bool(group.get("nesterov"))}
    elif "lion" in lowered:
        optimizer = "lion"
    elif "sign" in lowered:
        optimizer, fields = "signsgdm", {"betas": (momentum or (betas or (0.9,))[0], 0.999)}
    elif "betas" in group:
        optimizer = "adamw"
        notes.append(f"{name} is not known to the theory: read as AdamW with its lr, weight_decay and betas")
    else:
        optimizer, fields = "sgdm", {"betas": (momentum, 0.999)}
        notes.append(f"{name} is not known to the theory: read as SGD with its lr, weight_decay and momentum")
    if "eps" in group and isinstance(group["eps"], float):
        fields["eps"] = group["eps"]
    label = str(group.get("name", ""))
    return Group(optimizer=optimizer, lr=lr, weight_decay=wd, name=label, **fields), notes
