"""Fold gains, standardisation and, on request, the gains and biases of norms into plain weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.utils import parametrize

from equipoise.optim.model.gains import own_tensors
from equipoise.optim.model.roles import is_transformers_conv1d, stored, unmatched

_FEATURE_NORMS = (nn.LayerNorm, nn.RMSNorm)
_CHANNEL_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.GroupNorm)


def fold(model: nn.Module, *, norms: bool | Mapping[str, str | Sequence[str]] = False) -> nn.Module:
    """Absorb our gains and standardisation into plain weights, in place. The model computes the same as before.

    With `norms`, gains and biases of norms move into the layers that follow them: W ← W·diag(γ), b ← b + Wβ, γ ← 1,
    β ← 0. Other parametrisations, such as torch's weight_norm, are not changed. Fold for inference, or before training
    continues with a new optimizer. A folded weight is no longer tied to another one.

    Args:
        model: a model or a single module.
        norms: True for a norm that is followed by a Linear or a convolution in a `torch.nn.Sequential`, where that is
            exact: not into a convolution padded with zeros, or a transposed one, unless β = 0. Or names: for each norm
            the layer, or all layers, that take its output, as `{"ln_1": ["attn.q", "attn.k", "attn.v"]}`. A BatchNorm
            is taken to have its channels where a Linear has its inputs, as in a batch × channels input.

    Returns:
        The model.

    >>> from equipoise.optim import add_gains
    >>> list(fold(add_gains(nn.Linear(3, 2))).state_dict())
    ['weight', 'bias']
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model = {type(model).__name__}: must be a torch.nn.Module")
    if not isinstance(norms, bool | Mapping):
        raise ValueError(f"norms = {norms!r}: must be True, False, or a dict from norms to the layers that follow them")
    todo = [(module, own_tensors(module)) for module in model.modules()]  # all checked before the first is changed
    pairs = list(_named_pairs(model, norms)) if isinstance(norms, Mapping) else []
    for module, names in todo:
        for name in names:
            _fold_one(model, module, name)
    for norm, layers in list(_neighbours(model)) if norms is True else pairs:
        _fold_norm(norm, layers)
    return model


def _fold_one(model: nn.Module, module: nn.Module, name: str) -> None:
    chains: Any = module.parametrizations
    original = chains[name].original
    users = [n for n, p in model.named_parameters(remove_duplicate=False) if p is original]
    if len(users) > 1:  # torch writes the product into the tensor itself, which others use as it is
        chains[name].original = nn.Parameter(original.detach().clone(), requires_grad=original.requires_grad)
    parametrize.remove_parametrizations(module, name, leave_parametrized=True)
    # Weights come before biases, as they did: optimizers and their checkpoints go by the order.
    params: Any = module._parameters
    for other in [n for n in params if n != name and "weight" not in n]:
        params[other] = params.pop(other)


def _neighbours(model: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Module]]]:
    """Norms and the layers right after them in a Sequential, if nothing else can use or change what flows between."""
    uses = Counter(id(module) for _, module in model.named_modules(remove_duplicate=False))
    shared = _shared(model)
    for chain in model.modules():
        if not isinstance(chain, nn.Sequential) or type(chain).forward is not nn.Sequential.forward:
            continue
        pieces = [m for m in chain if not isinstance(m, nn.Identity)]
        for norm, layer in pairwise(pieces):
            plain = type(norm) in (*_FEATURE_NORMS, *_CHANNEL_NORMS)  # a subclass may do anything
            alone = uses[id(norm)] == uses[id(layer)] == 1 and not _hooked(norm) and not _hooked(layer)
            if plain and alone and _why_not(norm, layer, shared) is None:
                yield norm, [layer]


def _hooked(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _named_pairs(
    model: nn.Module, norms: Mapping[str, str | Sequence[str]]
) -> Iterator[tuple[nn.Module, list[nn.Module]]]:
    modules, shared = dict(model.named_modules()), _shared(model)
    taken: dict[str, str] = {}
    for name, followers in norms.items():
        names = [followers] if isinstance(followers, str) else list(followers)
        if not names:
            raise ValueError(f"norms: {name} must have at least one layer that takes its output")
        for each in (name, *names):
            if each not in modules:
                raise ValueError(unmatched("norms", each, modules))
        for follower in names:
            if follower in taken:
                where = "twice" if taken[follower] == name else f"after both {taken[follower]} and {name}"
                raise ValueError(f"norms: {follower} is named {where}: must be named once")
            taken[follower] = name
            why = _why_not(modules[name], modules[follower], shared)
            if why is not None:
                raise ValueError(f"norms: {name} cannot be folded into {follower}: {why}")
        yield modules[name], [modules[n] for n in names]


def _shared(model: nn.Module) -> set[int]:
    """Parameters that are used in several places, by id."""
    every = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    return {p for p, count in every.items() if count > 1}


def _why_not(norm: nn.Module, layer: nn.Module, shared: set[int]) -> str | None:
    """Why a norm's gain and bias cannot be absorbed exactly, or None."""
    linear = isinstance(layer, nn.Linear) or is_transformers_conv1d(layer)
    if not isinstance(norm, (*_FEATURE_NORMS, *_CHANNEL_NORMS)):
        return f"must be a LayerNorm, RMSNorm, BatchNorm or GroupNorm, not {type(norm).__name__}"
    if not linear and not isinstance(layer, _ConvNd):
        return f"must be followed by a Linear or a convolution, not {type(layer).__name__}"
    if norm.weight is None:
        return "must have a gain"
    if isinstance(norm, _FEATURE_NORMS) and not linear:
        return "it has its gain on the last dimension, a convolution its inputs on the second"
    if isinstance(norm, nn.GroupNorm) and linear:
        return "it has its gain on the second dimension, a Linear its inputs on the last"
    for whose, module in (("the norm's", norm), ("its", layer)):
        if foreign := _foreign(module):
            return f"{whose} {foreign} is parametrised by something else"
    for whose, module in (("the norm's", norm), ("its", layer)):
        if _tied(module, "weight", shared):
            return f"{whose} weight is tied to another one"
        if getattr(norm, "bias", None) is not None and _tied(module, "bias", shared):
            return f"{whose} bias is tied to another one"
    inputs = _inputs(layer)
    if tuple(norm.weight.shape) != (inputs,):
        return f"must have a gain for each of the {inputs} inputs, not of shape {tuple(norm.weight.shape)}"
    beta = getattr(norm, "bias", None)
    if isinstance(layer, _ConvNd) and beta is not None and bool((beta != 0).any()):
        padded = layer.padding_mode == "zeros" and layer.padding != "valid" and _any(layer.padding)
        if isinstance(layer, _ConvTransposeNd) or padded:
            return "at the edges zeros come in that the norm's bias has not been added to"
    return None


def _foreign(module: nn.Module) -> str | None:
    """A tensor of a module that something other than our gains computes, as parametrisations, pruning and hooks do."""
    chains: Any = module.parametrizations if parametrize.is_parametrized(module) else {}
    others = sorted(set(chains) - set(own_tensors(module)))
    kept = (*chains, *module._parameters, *module._buffers)
    others += [n for n in ("weight", "bias") if n not in kept and getattr(module, n, None) is not None]
    return others[0] if others else None


def _tied(module: nn.Module, name: str, shared: set[int]) -> bool:
    """Whether a tensor of a module is used elsewhere too; one with our gain is not, once that is folded."""
    if getattr(module, name, None) is None or name in own_tensors(module):
        return False
    return id(stored(module, name)) in shared


def _any(padding: Any) -> bool:
    return padding == "same" or any(padding)


def _inputs(layer: Any) -> int:
    if isinstance(layer, nn.Linear):
        return layer.in_features
    return layer.in_channels if isinstance(layer, _ConvNd) else layer.weight.shape[0]


@torch.no_grad()
def _fold_norm(norm: Any, layers: Sequence[Any]) -> None:
    beta: Tensor | None = getattr(norm, "bias", None)
    shift = beta is not None and bool((beta != 0).any())
    for layer in layers:
        if shift:
            assert beta is not None
            added = _through(layer, beta)
            if layer.bias is None:
                layer.bias = nn.Parameter(added.clone(), requires_grad=layer.weight.requires_grad)
            else:
                layer.bias.add_(added)
        layer.weight.mul_(_spread(layer, norm.weight))
    norm.weight.fill_(1.0)
    if beta is not None:
        beta.zero_()


def _spread(layer: Any, gain: Tensor) -> Tensor:
    """One number for each input, shaped so that it multiplies the weight."""
    weight = layer.weight
    if isinstance(layer, nn.Linear):
        return gain
    if not isinstance(layer, _ConvNd) or isinstance(layer, _ConvTransposeNd):  # inputs come first
        return gain.reshape(-1, *[1] * (weight.ndim - 1))
    rows = gain.reshape(layer.groups, -1).repeat_interleave(weight.shape[0] // layer.groups, dim=0)
    return rows.reshape(*rows.shape, *[1] * (weight.ndim - 2))


def _through(layer: Any, beta: Tensor) -> Tensor:
    """What a constant input, one number for each channel, adds to each output."""
    product = layer.weight * _spread(layer, beta)
    return product.sum(0) if is_transformers_conv1d(layer) else product.flatten(1).sum(1)
