"""The options that optimizers share: their defaults, what each does, and how constructors document and pass them on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast

if TYPE_CHECKING:
    from torch import Tensor

Params = Iterable[Any]
DecayKind = Literal["lr", "schedule", "independent", "corrected", "cautious"]
Nonfinite = Literal["ignore", "skip", "error"]


class GroupOptions(TypedDict):
    """A group of parameters as the engine, the rules and the moves read it.

    It is torch's own dict, so that schedulers and checkpoints work as on any optimizer; this says what is in it. The
    options of a rule or a move are there where the optimizer has that rule or move; its constructor explains them.
    """

    params: list[Tensor]
    param_names: list[str]
    name: str
    role: str

    lr: float | Tensor
    weight_decay: float
    decay: DecayKind
    lr_max: float | None
    l2: float
    maximize: bool
    foreach: bool | None
    compile: bool | None
    nonfinite: Nonfinite

    # Rules
    momentum: float
    nesterov: bool
    betas: tuple[float, float]
    alpha: float
    eps: float
    zero_init: bool
    bias_correction: bool
    nested: bool

    # Rules of whole matrices
    muon: bool
    polar: dict[str, Any]
    scale: str
    split: int
    flatten: bool
    layer_scale: float
    beta2: float
    row_eps: float

    # Moves
    rotate: bool | None
    granularity: str | int
    angle: float | Literal["step"] | None
    own_angle: bool
    center: bool
    track: float | None
    method: str
    reference: str | None
    norm: Any
    speeds: Tensor | None
    bound: str | float
    rate: float
    warm_start: int | None
    trust: float
    clip: float | None
    floor: float
    outward: float
    inward: float
    delta: float
    wd_ratio: float
    gain_rate: float
    turn_decay: float
    turn_power: float
    turn_warmup: int


def group_options(group: Mapping[str, Any], **changes: Any) -> GroupOptions:
    """A torch group with its options typed: the dict itself, or with changes a copy.

    Args:
        group: of an optimizer of ours.
        changes: options that are others in the copy.
    """
    return cast(GroupOptions, {**group, **changes} if changes else group)


SHARED: dict[str, Any] = {
    "weight_decay": 0.0,
    "decay": "lr",
    "lr_max": None,
    "l2": 0.0,
    "maximize": False,
    "foreach": None,
    "compile": None,
    "nonfinite": "ignore",
}
"""The options that every optimizer takes, besides lr."""

PLAIN_ADAM: dict[str, Any] = {"zero_init": True, "bias_correction": True, "nested": False}
"""Adam's switches, where a constructor does not offer them; a group may still set them."""

TEXTS = {
    "{shared}": """
        decay: what weight decay removes per step: "lr" ηλ, "schedule" λη/lr_max, "independent" λ, "corrected"
            λη²/lr_max, "cautious" ηλ where u·w ≥ 0.
        lr_max: the peak of lr, for decay by "schedule" and "corrected". Default: the lr that a group starts with.
        l2: L2 term added to the gradient, as torch.optim.SGD's weight_decay is.
        maximize: follow the gradient upwards.
        foreach: step many tensors at once. None: wherever that is possible.
        compile: run the step as a compiled kernel. None: once that pays, soon for large groups.
        nonfinite: if a gradient is not finite, "ignore" it, "skip" the step, or raise an "error".
""",
    "{rotation}": """
        angle: the rotation per step in radians, or a function of the step; or "step": the plain optimizer's, the same
            in all rows of a tensor, whose norms are then the plain optimizer's, too. Default: the equilibrium rotation.
        granularity: what rotates as one vector: "neuron", "tensor", or a number of equal parts, such as heads.
        center: keep the mean of each row at 0.
        track: share of a row's remembered square ‖d‖² that is left after a step. Default: 0.9; in Algorithm 1, an
            averaging factor, 0.99.
        method: where the default angle comes from: "exact", or "small_step" for [kosson2024] Table 1.
        reference: "paper" for [kosson2024] Algorithm 1 to the letter, flaws included.
        norm: the norm to keep. Default: that of each row at the start.
        speeds: one factor of the angle per row.
        rotate: whether parameters rotate. Default: those with two dimensions or more.
""",
}
"""Entries of `Args:` that many classes share, by what stands for them in a docstring."""

_ENTRY = re.compile(r"^ {8}\w+: .*\n(?: {12}.*\n)*", re.MULTILINE)

Class = TypeVar("Class", bound=type)


def documented(cls: Class) -> Class:
    """Write the shared entries of `Args:` into the docstring of a class, but those that it has of its own.

    Example:
        >>> @documented
        ... class Some:
        ...     '''A class.
        ...
        ...     Args:
        ...         lr: learning rate.
        ...         {shared}
        ...     '''
        >>> "maximize: follow the gradient" in Some.__doc__
        True
    """
    doc = cls.__doc__ or ""  # Python may have been asked to drop docstrings
    for name, text in TEXTS.items():
        entries = [entry for entry in _ENTRY.findall(text) if f"\n{entry.split(':')[0]}:" not in doc]
        doc = doc.replace(f"        {name}\n", "".join(entries))
    cls.__doc__ = doc
    return cls


def given(scope: dict[str, Any]) -> dict[str, Any]:
    """The options that a constructor was called with: all its arguments but the parameters. Call it first of all.

    Args:
        scope: `locals()` of the constructor.
    """
    return {name: value for name, value in scope.items() if name not in ("self", "params", "__class__")}
