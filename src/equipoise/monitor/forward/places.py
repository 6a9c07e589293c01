"""The modules of a model that the forward pass is measured at."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from equipoise.optim.model.groups import unwrapped
from equipoise.optim.model.roles import bare

LISTS = (nn.ModuleList, nn.Sequential, nn.ModuleDict)
EXPERTS = "expert"
"""Lists of this name hold experts: these are counted together, and no blocks."""

MOST = 256
"""So many blocks at most, evenly spread."""


@dataclass
class Places:
    """What is looked at.

    Attributes:
        names: of the model itself, which is "", and of every module with modules inside.
        blocks: names of the blocks, by module: members of lists that have modules inside; of a model without any,
            members that have weights, or its direct parts.
        experts: for each module that holds experts, how many.
        compiled: whether a part is compiled, where hooks see nothing.
    """

    names: dict[nn.Module, str] = field(default_factory=dict)
    blocks: dict[nn.Module, str] = field(default_factory=dict)
    experts: dict[nn.Module, int] = field(default_factory=dict)
    compiled: bool = False


def is_compiled(module: nn.Module) -> bool:
    """Whether calling a module runs compiled code."""
    marked = any(hasattr(x, "_torchdynamo_orig_callable") for x in (module, getattr(module, "forward", None)))
    return marked or getattr(module, "_compiled_call_impl", None) is not None


def places_of(model: nn.Module) -> Places:
    """What to look at in a model.

    Args:
        model: it may be compiled or wrapped.

    >>> layer = lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    >>> list(places_of(nn.Sequential(layer(), layer(), nn.Linear(4, 2))).blocks.values())
    ['0', '1']
    """
    root = bare(model)
    found = Places(compiled=any(is_compiled(m) for m in model.modules()))
    leaves: dict[nn.Module, str] = {}
    for name, module in root.named_modules():
        name = unwrapped(name)
        if module is root or next(module.children(), None) is not None:
            found.names[module] = name
        experts = _experts(module)
        if experts:
            found.experts[module] = experts
        if isinstance(module, LISTS) and EXPERTS not in name.rpartition(".")[2].lower():
            for part, member in _members(module):
                full = f"{name}.{part}" if name else part
                if next(member.children(), None) is not None:
                    found.blocks.setdefault(member, full)
                elif next(member.parameters(), None) is not None:
                    leaves.setdefault(member, full)
    direct = {m: unwrapped(n) for n, m in root.named_children() if next(m.parameters(), None) is not None}
    blocks = list((found.blocks or leaves or direct).items())
    step = max(1, -(-len(blocks) // MOST))
    found.blocks = dict(blocks[::step])
    return found


def _members(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    for name, member in module.named_children():
        if not isinstance(member, LISTS) or isinstance(member, nn.Sequential):
            yield unwrapped(name), member


def _experts(module: nn.Module) -> int:
    """How many experts a module holds: in a list of that name, or as stacks of matrices; 0 without."""
    for name, child in module.named_children():
        if EXPERTS in name.lower():
            if isinstance(child, LISTS) and len(child) > 1:
                return len(child)
            stack = _stack(child)
            if stack:
                return stack
    return 0 if isinstance(module, nn.modules.conv._ConvNd) else _stack(module)


def _stack(module: nn.Module) -> int:
    counts = {p.shape[0] for p in module.parameters(recurse=False) if p.ndim == 3 and p.shape[0] > 1}
    return counts.pop() if len(counts) == 1 else 0


def tensor_in(found: Any) -> torch.Tensor | None:
    """The first tensor of numbers in what a module takes or gives; None without."""
    if isinstance(found, torch.Tensor):
        return found if found.is_floating_point() and found.ndim > 1 else None
    values = found.values() if isinstance(found, dict) else found if isinstance(found, list | tuple) else ()
    for value in values:
        inside = tensor_in(value)
        if inside is not None:
            return inside
    return None
