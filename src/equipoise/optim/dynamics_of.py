"""What any torch optimizer does, in the terms of theory: (optimizer, group) → `Dynamics`, lr, weight decay.

The one place that knows the class names of torch's and others' optimizers. Ours describe themselves, by their rule and
move. One that is not known is described as the nearest that theory knows, with `known=False`.

Others are told by their class's name and by what their groups have: torch.optim, bitsandbytes, torchao and DeepSpeed
(`AdamW8bit`, `PagedLion`, `FusedAdam`, …), lion-pytorch, schedulefree, and Muon as published (`use_muon` in its
groups), by dion (`algorithm` in its groups) and by torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from equipoise.theory import Dynamics

SCALES = {
    None: "original",
    "original": "original",
    "match_rms_adamw": "adam",
    "spectral_norm": "spectral",
    "rms_norm": "adam",
}
"""What torch's Muon (`adjust_lr_fn`) and dion's (`adjust_lr`) call the scales of theory."""

DECOUPLED = ("adamw", "muon", "lion", "adafactor", "signsgd", "sophia", "adan", "lamb", "dion")
"""Optimizers, by a part of their name, that do w ← (1 − lr·wd)w before their step. Adam, NAdam and RAdam say it."""

PREFIXES = ("paged", "fused", "deepspeedcpu", "cpu", "distributed", "singledevice", "_")
SUFFIXES = ("8bit", "4bit", "32bit", "fp8", "withauxadam", "cpu")
"""What is put before and after a name by those who store or share an optimizer's state in another way."""

SAID = (
    "betas", "momentum", "mu", "alpha", "eps", "nesterov", "dampening", "centered", "amsgrad", "decoupled_weight_decay",
    "adjust_lr_fn", "adjust_lr", "use_muon", "algorithm", "maximize", "ns_steps",
)  # fmt: skip
"""What is read of a group, besides lr and weight decay."""


class GroupState(NamedTuple):
    """What a parameter group does in a step.

    Attributes:
        dynamics: the rule, its averages, kind of decay and move.
        lr: η.
        weight_decay: λ; L2 of ours where that is all there is.
        notes: what was assumed, in words.
    """

    dynamics: Dynamics
    lr: float
    weight_decay: float
    notes: tuple[str, ...] = ()

    @property
    def decays(self) -> float:
        """The share of the weights that decay takes in the long run."""
        return self.dynamics.decay_share(self.lr, self.weight_decay)

    def lost(self, ndim: int) -> float:
        """The share that decoupled decay takes of a tensor with so many dimensions; 0 where the move holds its norm."""
        return 0.0 if self.dynamics.holds(ndim) else self.dynamics.lost(self.lr, self.weight_decay)

    @property
    def coupled(self) -> bool:
        """Whether decay goes through the gradient."""
        return self.dynamics.coupled

    @property
    def maximize(self) -> bool:
        """Whether the step goes up the gradient."""
        return self.dynamics.maximize

    @property
    def cautious(self) -> bool:
        """Whether decay acts only where it agrees with the step."""
        return self.dynamics.decay == "cautious" and self.weight_decay > 0


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


def dynamics_of(optimizer: Any, group: Mapping[str, Any]) -> Dynamics:
    """What an optimizer does to the tensors of one of its groups.

    Args:
        optimizer: any torch optimizer, ours, or one that holds another.
        group: one of its groups, or a copy of one.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.eye(2))], lr=0.1, momentum=0.9, weight_decay=1e-4)
    >>> found = dynamics_of(optimizer, optimizer.param_groups[0])
    >>> found.optimizer, found.betas[0], found.coupled, found.known
    ('sgdm', 0.9, True, True)
    """
    return _described(optimizer, group)[0]


def group_state(optimizer: Any, group: Mapping[str, Any]) -> GroupState:
    """What a group does in the next step, lr and weight decay included; cheap enough for every step.

    Args:
        optimizer: as for `dynamics_of`.
        group: one of its groups, or a copy of one.
    """
    dynamics, notes = _described(optimizer, group)
    wd = float(group.get("weight_decay") or 0.0) or float(group.get("l2") or 0.0)
    return GroupState(dynamics, float(group.get("lr", 1e-3)), wd, notes)


def _described(optimizer: Any, group: Mapping[str, Any]) -> tuple[Dynamics, tuple[str, ...]]:
    one, seen = optimizer, None
    while not hasattr(type(one), "dynamics") and one is not seen:  # out of what describes nothing itself
        seen, one = one, getattr(one, "optimizer", one)
        if hasattr(one, "first") and hasattr(one, "second"):
            one = one.second if one.share == 1.0 else one.first
    if hasattr(type(one), "dynamics"):
        found = one.dynamics(group)
        return found, _own_notes(type(one).__name__, found, bool(group.get("l2") and group.get("weight_decay")))
    said = tuple((name, _plain(group[name])) for name in SAID if name in group)
    return _foreign(type(one).__name__, type(one).__module__, bool(group.get("weight_decay")), said)


@lru_cache(maxsize=256)
def _own_notes(name: str, found: Dynamics, both: bool) -> tuple[str, ...]:
    if found.move != "decay":
        return (f"{name} controls norms itself: the plan is that of {found.optimizer} with its lr and decay",)
    if not found.known:
        return (f"{name} is not known to the theory: read as {found.optimizer} with its lr and weight_decay",)
    return ("coupled L2 is left out beside decoupled decay",) if both else ()


@lru_cache(maxsize=256)
def _foreign(
    name: str, module: str, decays: bool, said: tuple[tuple[str, Any], ...]
) -> tuple[Dynamics, tuple[str, ...]]:
    """The dynamics of a class that is not ours, from its name and what a group says."""
    group = dict(said)
    kind = _kind(name, group)
    momentum = float(group.get("momentum", group.get("mu", 0.0)) or 0.0)
    betas = group["betas"][:2] if "betas" in group else (momentum, 0.999)
    common: dict[str, Any] = {"maximize": bool(group.get("maximize"))}
    if isinstance(group.get("eps"), float):
        common["eps"] = group["eps"]
    decoupled = bool(group.get("decoupled_weight_decay", any(word in name.lower() for word in DECOUPLED)))
    notes: list[str] = []
    match kind:
        case "adam" | "adamw":
            decoupled |= kind == "adamw" or module.startswith("bitsandbytes")
            rule = "adamw" if decoupled else "adam_l2" if decays else "adam"
            if group.get("amsgrad"):
                notes.append("AMSGrad is read as Adam without it")
        case "sgd":
            rule, common["nesterov"] = "sgdm", bool(group.get("nesterov"))
            if group.get("dampening"):
                notes.append(f"SGD's dampening = {group['dampening']:g} is read as a factor on every step")
                common["scale"] = 1 - float(group["dampening"])
        case "rmsprop":
            rule, betas = "rmsprop", (0.0, float(group.get("alpha", 0.99)))
            if decays:  # L2 in the gradient of Adam without an average of gradients
                rule, common["bias_correction"] = "adam_l2", False
            if momentum or group.get("centered"):
                notes.append("RMSprop is read without its momentum and centring")
        case "muon":
            rule, common["nesterov"] = "muon", bool(group.get("nesterov", True))
            common["scale"] = SCALES.get(group.get("adjust_lr_fn", group.get("adjust_lr")), "original")
            betas, common["newton_schulz"] = (momentum, 0.999), int(group.get("ns_steps", 5))
        case "lion":
            rule = "lion"
        case "sign":
            rule, betas = "signsgdm", (momentum or betas[0], 0.999)
        case _:
            common["known"] = False
            like = "AdamW with its lr, weight_decay and betas"
            if "betas" in group:
                rule = "adam_l2" if decays and not decoupled else "adamw"
            else:
                rule, like = "sgdm", "SGD with its lr, weight_decay and momentum"
                common["coupled"] = not decoupled
            notes.append(f"{name} is not known to the theory: read as {like}")
    return Dynamics(rule, betas=betas, **common), tuple(notes)


def _kind(name: str, group: Mapping[str, Any]) -> str:
    """The family that a class's name and group speak of; "" where they say nothing."""
    if "use_muon" in group:
        return "muon" if group["use_muon"] else "adamw"
    word = str(group.get("algorithm", name)).lower()
    while short := next((word.removeprefix(p) for p in PREFIXES if word.startswith(p)), None) or next(
        (word.removesuffix(s) for s in SUFFIXES if word.endswith(s)), None
    ):
        word = short
    if "lion" in word:
        return "lion"
    if "signsgd" in word:
        return "sign"
    return word if word in ("adam", "adamw", "sgd", "rmsprop", "muon") else ""


def _plain(value: Any) -> Any:
    """A value of a group that can be a key: numbers out of tensors, tuples out of lists."""
    if isinstance(value, list | tuple):
        return tuple(float(x) for x in value)
    if hasattr(value, "item"):
        return float(value)
    return value if isinstance(value, bool | str | None) else float(value) if isinstance(value, int | float) else None
