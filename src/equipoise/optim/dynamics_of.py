"""What any torch optimizer does, in the terms of theory: (optimizer, group) → `Dynamics`, lr, weight decay.

The one place that knows the class names of torch's and others' optimizers. Ours describe themselves, by their rule and
move. One that is not known is described as the nearest that theory knows, with `known=False`.

Others are told by their class's name and by what their groups have: torch.optim, bitsandbytes, torchao and DeepSpeed
(`AdamW8bit`, `PagedLion`, `FusedAdam`, …), lion-pytorch, schedulefree, and Muon as published (`use_muon` in its
groups), by dion (`algorithm` in its groups) and by torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
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

DECOUPLED = (
    "adamw",
    "muon",
    "lion",
    "adafactor",
    "signsgd",
    "sophia",
    "adan",
    "lamb",
    "dion",
    "ademamix",
    "schedulefree",
)
"""Optimizers, by a part of their name, that do w ← (1 − lr·wd)w before their step, where their groups say nothing."""

SAY_DECOUPLED = ("decoupled_weight_decay", "weight_decouple", "decouple_wd")
"""What torch's, pytorch_optimizer's and optimi's groups call it."""

MASKED = ("cautious", "caution")
"""What groups call updates that are masked where they disagree with the gradient, which theory does not know."""

PREFIXES = ("paged", "fused", "deepspeedcpu", "cpu", "distributed", "singledevice", "_")
SUFFIXES = ("8bit", "4bit", "32bit", "fp8", "withauxadam", "cpu")
"""What is put before and after a name by those who store or share an optimizer's state in another way."""

FAMILIES = {"adam": "adam", "adamw": "adamw", "sgd": "sgd", "rmsprop": "rmsprop", "muon": "muon", "lion": "lion"} | {
    "signsgd": "sign",
    "signsgdm": "sign",
}
"""What is left of a class's name, and the rule that it stands for."""

TRANSPARENT = ("accelerate", "lightning", "lightning_fabric", "pytorch_lightning", "deepspeed", "equipoise")
"""Packages whose optimizers hold another and step as it does."""

SAID = (
    "betas", "beta1", "beta2", "momentum", "mu", "alpha", "eps", "nesterov", "dampening", "centered", "amsgrad",
    "adjust_lr_fn", "adjust_lr", "use_muon", "algorithm", "flatten", "maximize", "ns_steps", "fixed_decay",
    "decouple_lr", "max_lr", "cautious_wd", "cautious_factor", *SAY_DECOUPLED, *MASKED,
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


def inwards(optimizer: Any) -> Iterator[Any]:
    """The optimizer, and what accelerate, `Rotational`, `Switch` and the like put it round, from outside in."""
    one = optimizer
    while one is not None:
        yield one
        names = ("optimizer", "inner", "second" if getattr(one, "share", 0.0) == 1.0 else "first")
        held = (getattr(one, name, None) for name in names)
        one = next((h for h in held if h is not one and hasattr(h, "param_groups")), None)


def stepping(optimizer: Any) -> Any:
    """The optimizer that computes the step, out of all that others put round it."""
    *_, inner = inwards(optimizer)
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
    chain = tuple(inwards(optimizer))
    one = next((o for o in chain if hasattr(type(o), "dynamics")), chain[-1])
    round_it = chain[: chain.index(one)]
    outside = next((type(o).__name__ for o in round_it if type(o).__module__.partition(".")[0] not in TRANSPARENT), "")
    if hasattr(type(one), "dynamics"):
        found = one.dynamics(group)
        notes = _own_notes(type(one).__name__, found, bool(group.get("l2") and group.get("weight_decay")))
    else:
        said = tuple((name, _plain(group[name])) for name in SAID if name in group)
        if getattr(one, "decoupled_wd", False):  # lion-pytorch's, which keeps it out of its groups
            said += (("decouple_lr", True), ("max_lr", float(one._init_lr)))
        found, notes = _foreign(type(one).__name__, type(one).__module__, bool(group.get("weight_decay")), said)
    if outside:
        return _held_by(outside, type(one).__name__, found, notes)
    return found, notes


@lru_cache(maxsize=256)
def _held_by(outside: str, inside: str, found: Dynamics, notes: tuple[str, ...]) -> tuple[Dynamics, tuple[str, ...]]:
    note = f"{outside} is not known to the theory: read as the {inside} that it holds"
    return replace(found, known=False), (note, *notes)


@lru_cache(maxsize=256)
def _own_notes(name: str, found: Dynamics, both: bool) -> tuple[str, ...]:
    if found.move != "decay":
        return (f"{name} controls norms itself: the plan is that of {found.optimizer} with its lr and decay",)
    if not found.known:
        return (f"{name} is not known to the theory: read as {found.optimizer} with its lr and weight_decay",)
    if name == "NorMuon" and found.optimizer == "muon":
        return ("NorMuon is read as Muon, whose rows it makes equally long",)
    return ("coupled L2 is left out beside decoupled decay",) if both else ()


@lru_cache(maxsize=256)
def _foreign(
    name: str, module: str, decays: bool, said: tuple[tuple[str, Any], ...]
) -> tuple[Dynamics, tuple[str, ...]]:
    """The dynamics of a class that is not ours, from its name and what a group says."""
    group = dict(said)
    kind = _kind(name, group)
    momentum = _factor(group.get("momentum", group.get("mu")), 0.0)
    betas = _betas(group, momentum)
    common: dict[str, Any] = {"maximize": bool(group.get("maximize"))}
    if isinstance(group.get("eps"), float):
        common["eps"] = group["eps"]
    by_name = any(word in name.lower() for word in DECOUPLED)
    decoupled = bool(next((group[key] for key in SAY_DECOUPLED if key in group), by_name))
    notes: list[str] = []
    strange = ""
    match kind:
        case "adam" | "adamw":
            decoupled |= kind == "adamw" or module.startswith("bitsandbytes")
            rule = "adamw" if decoupled or group.get("decouple_lr") else "adam_l2" if decays else "adam"
            if group.get("amsgrad"):
                notes.append("AMSGrad is read as Adam without it")
        case "sgd":
            rule, common["nesterov"] = "sgdm", bool(group.get("nesterov"))
            common["coupled"] = not (decoupled or group.get("decouple_lr"))
            if damped := group.get("dampening"):
                share = momentum if damped is True else float(damped)  # optimi's is a flag
                notes.append(f"SGD's dampening = {share:g} is read as a factor on every step")
                common["scale"] = 1 - share
        case "rmsprop":
            rule, betas = "rmsprop", (0.0, _factor(group.get("alpha"), betas[0] if "betas" in group else 0.99))
            common["bias_correction"] = False
            if momentum:  # a sum of g/√v, where the nested Adam averages
                rule, betas, common["scale"] = "adam_nested", (momentum, betas[1]), 1 / (1 - momentum)
                strange = "L2 beside RMSprop's momentum" if decays else ""
            elif decays:  # L2 in the gradient of Adam without an average of gradients
                rule = "adam_l2"
            if group.get("centered"):
                notes.append("RMSprop is read without its centring")
        case "muon":
            rule, common["nesterov"] = "muon", bool(group.get("nesterov", True))
            dion = "algorithm" in group
            common["scale"] = SCALES.get(group.get("adjust_lr_fn", group.get("adjust_lr")), "original")
            if dion and group.get("adjust_lr") is None:
                common["scale"] = "none"
            common["stacked"] = not group.get("flatten")
            betas = (momentum, 0.999)
            common["newton_schulz"] = int(group.get("ns_steps", 5))
            common["quintics"] = "dion" if dion else "muon"
        case "lion":
            rule = "lion"
            strange = "" if decoupled or not decays else "L2 in Lion's gradient"
        case "sign":
            rule, betas = "signsgdm", (momentum or betas[0], 0.999)
        case _:
            strange = name
            like = "AdamW with its lr, weight_decay and betas"
            if "betas" in group or "beta1" in group:
                rule = "adam_l2" if decays and not decoupled else "adamw"
            else:
                rule, like = "sgdm", "SGD with its lr, weight_decay and momentum"
                common["coupled"] = not decoupled
            if "schedulefree" in name.lower():
                like += "; what it averages is not followed"
                betas = (0.0, 0.999) if rule == "sgdm" else betas  # its "momentum" weighs that average
            notes.append(f"{name} is not known to the theory: read as {like}")
    if name.lower().endswith(("8bit", "4bit", "fp8")):
        notes.append(f"{name} is read as if its averages were exact")
    if rule != "adam_l2" and not common.get("coupled"):
        if group.get("decouple_lr"):
            common |= {"decay": "schedule", "lr_max": group.get("max_lr")}
        elif group.get("fixed_decay"):
            common["decay"] = "independent"
        elif group.get("cautious_wd"):
            common["decay"] = "cautious"
    if any(group.get(key) for key in MASKED) or group.get("cautious_factor", 1.0) < 1.0:
        strange = strange or "a mask on updates"
    if strange:
        common["known"] = False
        if strange != name:
            notes.append(f"{strange} is not known to the theory: {name} is read without it")
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
    return FAMILIES.get(word, "")


def _betas(group: Mapping[str, Any], momentum: float) -> tuple[float, float]:
    """Averaging factors, under the names that groups have for them."""
    given = group.get("betas") or (group.get("beta1", momentum), group.get("beta2"))
    return _factor(given[0], 0.9), _factor(given[1] if len(given) > 1 else None, 0.999)


def _factor(value: Any, default: float) -> float:
    """A factor that an average can have; of an optimizer that means something else by it, the default."""
    return float(value) if isinstance(value, int | float) and 0 <= value < 1 else default


def _plain(value: Any) -> Any:
    """A value of a group that can be a key: numbers out of tensors, tuples out of lists."""
    if isinstance(value, list | tuple):
        return tuple(map(_plain, value))
    if hasattr(value, "item"):
        return float(value)
    return value if isinstance(value, bool | str | None) else float(value) if isinstance(value, int | float) else None
