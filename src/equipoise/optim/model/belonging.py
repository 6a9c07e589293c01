"""Refusals of parameters: those of another model, without a shape, and where there is nothing to train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import is_lazy


def count_shared(model: nn.Module, groups: Iterable[Mapping[str, Any]]) -> tuple[int, int]:
    """How many parameters groups have, and how many of them are a model's.

    Args:
        model: any module.
        groups: of an optimizer.
    """
    known = {id(p) for p in model.parameters()}
    mine = [id(p) in known for group in groups for p in group["params"]]
    return len(mine), sum(mine)


def refuse_others(model: nn.Module, groups: Iterable[Mapping[str, Any]], without: str) -> None:
    """Refuse the groups of another model's optimizer.

    Args:
        model: any module.
        groups: of an optimizer.
        without: what `model=None` is for, as "to watch it without names".
    """
    count, shared = count_shared(model, groups)
    if count and not shared:
        raise ValueError(
            f"optimizer: none of its {count} parameters belong to the model; pass the optimizer that was made from "
            f"this model's parameters, after the model was changed or wrapped, or model=None {without}"
        )


def refuse_lazy(params: Iterable[Tensor]) -> None:
    """Refuse parameters that have no shape before the model has seen a batch.

    Args:
        params: of an optimizer.
    """
    if any(is_lazy(p) for p in params):
        raise ValueError("optimizer: a parameter has no shape yet; run a batch through the model first")


def nothing_to_train(params: Iterable[Tensor]) -> ValueError:
    """The error that none of some parameters can be trained, with the reasons.

    Args:
        params: all of which are frozen, complex, whole numbers, empty, or on meta.

    >>> import torch
    >>> print(nothing_to_train([torch.ones(2), torch.empty(2, requires_grad=True, device="meta")]))
    model, optimizer: must have a trainable parameter; of its 2, 1 is on meta, 1 is frozen (requires_grad=False)
    """
    reasons = {
        "on meta": lambda p: p.is_meta,
        "frozen (requires_grad=False)": lambda p: not p.requires_grad,
        "complex": lambda p: p.is_complex(),
        "empty": lambda p: not p.numel(),
        "of another kind": lambda p: True,
    }
    each = list(params)
    why = [next(reason for reason, holds in reasons.items() if holds(p)) for p in each]
    said = [f"{n} {'is' if n == 1 else 'are'} {reason}" for reason in reasons if (n := why.count(reason))]
    return ValueError(f"model, optimizer: must have a trainable parameter; of its {len(each)}, {', '.join(said)}")
