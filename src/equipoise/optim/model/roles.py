"""The role of every parameter of a model, from the type of its module."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

ROLES = ("matrix", "conv", "embedding", "head", "gain", "bias")
"""matrix: linear maps inside the network; conv: convolutions; embedding: tables of tokens and positions; head: the
output layer; gain: weights of norms, scales, anything else with one dimension; bias: what is added."""

_NORMS = (_NormBase, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm)
_FUSED = (nn.MultiheadAttention, nn.RNNBase, nn.RNNCellBase)
_CONTAINERS = (nn.ModuleList, nn.ModuleDict)
_NORM_NAME = re.compile(r"Norm(\d[dD])?$")  # RMSNorms of any library; NormalizedLinear is none
_BIAS = re.compile(r"(^|_)(bias(es)?|beta|shift)(_|\d|$)|^b(\d*|_\w+)$")
_TOKENS = re.compile(
    r"(^|_)(emb|embed|embeds|embedding|embeddings|tokens?|prompts?|wte|wpe)$|(^|_)pos(ition(al)?)?(_|$)"
)
_PARAMETRIZED = re.compile(r"^(?:(.*)\.)?parametrizations\.([^.]+)\.(.+)$")
_SURE_HEAD = re.compile(r"^(\w+_)?head$|^head_\w+$|^(classifier|score|logits)$")
_PARALLEL_HEADS = re.compile(r"^(\w+_)?(heads|classifiers|outputs|predictors|readouts)$")
_MAYBE_HEAD = re.compile(
    r"^(fc|fc_?out|out|output|output_(layer|projection|proj)|decoder|generator|unembed|embed_out|proj_out|qa_outputs|"
    r"to_logits|readout|predictions?)$"
)


_ROUND_ALL = ("OptimizedModule", "DistributedDataParallel", "DataParallel")


def bare(model: nn.Module) -> nn.Module:
    """The model inside of what compiles or replicates the whole of it, where names are the plain ones.

    Args:
        model: any module.
    """
    while type(model).__name__ in _ROUND_ALL:  # by name: the first of them is of the compiler, which is slow to import
        model = next(model.children())
    return model


@dataclass(frozen=True)
class ParameterRole:
    """One parameter: its name, what it is for, and how it lies in memory."""

    name: str
    param: Tensor
    role: str
    """One of `ROLES`."""
    rows: bool
    """Whether the first dimension counts outputs (or tokens), so that a row is a neuron."""
    names: tuple[str, ...]
    """All names that lead to it: several where it is tied, and the plain one where it is parametrised."""
    tied: tuple[str, ...]
    """The other places where it is used."""


def role_by_shape(name: str, ndim: int) -> str:
    """The role of a parameter of which nothing is known but its name and how many dimensions it has."""
    return "matrix" if ndim > 1 else "bias" if name.endswith("bias") else "gain"


def known_parameters(model: nn.Module, *, head: str | Sequence[str] | None = None) -> list[ParameterRole]:
    """Every parameter of a model once, with its role, in the model's order.

    Args:
        model: any module; names are those of the model inside of torch.compile and DDP.
        head: names or patterns of the output layers; None finds them, an empty list says that there is none.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(f"model = {type(model).__name__}: must be a torch.nn.Module")
    model = bare(model)
    heads = _heads(model, head)
    places: dict[int, list[tuple[str, Tensor]]] = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        if is_lazy(p):
            raise ValueError(f"model: {name} has no shape yet; run a batch through the model first")
        places.setdefault(id(p), []).append((name, p))
    return [_known(model, found, heads) for found in places.values()]


def _known(model: nn.Module, found: list[tuple[str, Tensor]], heads: set[int]) -> ParameterRole:
    names, roles, rows = [], [], True
    for name, p in found:
        inside = _PARAMETRIZED.match(name)
        if inside is None:
            path, _, short = name.rpartition(".")
            plain, own = name, True
        else:
            path, short, rest = inside.groups()
            own = rest.startswith("original")
            plain = ".".join(filter(None, (path, short))) if own and rest[8:] in ("", "1") else name
        owner = model.get_submodule(path or "")
        if not own:  # a weight of the parametrisation itself, as a gain
            roles.append(_raw(owner, name.rpartition(".")[2], p))
        elif inside is not None and _is_size(owner, short, name, p):
            roles.append("gain")
        else:
            role = _role(owner, short, p)
            roles.append("head" if id(owner) in heads and role in ("matrix", "conv") else role)
            rows = rows and output_dim(owner) == 0
        names += [name, plain]
    # A weight that is both table and output layer is used as a table by tokens and initialised as one.
    role = next((r for r in ("embedding", "head") if r in roles), roles[0])
    first = found[0]
    tied = tuple(name for name, _ in found[1:])
    return ParameterRole(first[0], first[1], role, rows, tuple(dict.fromkeys(names)), tied)


def output_dim(module: nn.Module) -> int:
    """The dimension of a module's weight that counts outputs: 1 in transposed convolutions and transformers' Conv1D.

    Args:
        module: the module that owns the weight.

    >>> output_dim(nn.Linear(2, 3)), output_dim(nn.ConvTranspose1d(2, 3, 1))
    (0, 1)
    """
    return 1 if isinstance(module, _ConvTransposeNd) or is_transformers_conv1d(module) else 0


def is_transformers_conv1d(module: nn.Module) -> bool:
    """Whether a module is the linear layer of Hugging Face's GPT-2, whose weight is inputs × outputs.

    Args:
        module: any module.
    """
    return any(c.__name__ == "Conv1D" for c in type(module).__mro__) and not isinstance(module, _ConvNd)


def stored(module: nn.Module, name: str) -> Tensor:
    """A module's tensor as it is stored: under a parametrisation, what it is made from.

    Args:
        module: the module.
        name: of the tensor.
    """
    if not parametrize.is_parametrized(module, name):
        return getattr(module, name)
    lists: Any = module.parametrizations
    return lists[name].original if lists[name].is_tensor else lists[name].original0


def _role(owner: nn.Module, short: str, p: Tensor) -> str:
    """The role of the tensor `short` of a module."""
    if isinstance(owner, _NORMS) or any(_NORM_NAME.search(c.__name__) for c in type(owner).__mro__):
        return "bias" if _BIAS.search(short) else "gain"
    if isinstance(owner, nn.PReLU) or short in ("weight_g", "bias_g"):  # weight_g: size of the old weight_norm
        return "gain"
    if isinstance(owner, _FUSED) and ("bias" in short or "weight" in short):  # in_proj_weight, bias_k, weight_hh_l0
        return "bias" if "bias" in short else "matrix"
    if short.startswith("bias"):
        return "bias"
    if short.startswith("weight"):
        if isinstance(owner, nn.Embedding | nn.EmbeddingBag):
            return "embedding"
        if isinstance(owner, _ConvNd):
            return "conv"
        if isinstance(owner, nn.Linear | nn.Bilinear) or is_transformers_conv1d(owner):
            return "matrix"
    return _raw(owner, short, p)


def _raw(owner: nn.Module, short: str, p: Tensor) -> str:
    """The role of a bare parameter, by its name and shape."""
    if _BIAS.search(short):
        return "bias"
    if p.numel() == 1:
        return "gain"
    if _TOKENS.search(short):
        return "embedding"
    if p.ndim < 2 or p.numel() == max(p.shape):  # also gains of shape (C, 1, 1)
        return "gain"
    kind = type(owner).__name__
    if "Embed" in kind:
        return "embedding"
    return "conv" if "Conv" in kind and p.ndim > 2 else "matrix"


def _is_size(owner: nn.Module, short: str, name: str, p: Tensor) -> bool:
    """Whether an original tensor of a parametrisation is a size beside a direction, as weight_norm's g."""
    if name.endswith(".original"):
        return False
    parametrizations: Any = owner.parametrizations
    kinds = [type(m).__name__ for m in parametrizations[short]]
    if kinds[:1] == ["_WeightNorm"]:
        return name.endswith(".original0")
    return p.ndim < 2 or p.numel() == max(p.shape)


def _heads(model: nn.Module, head: str | Sequence[str] | None) -> set[int]:
    """The modules that are output layers, by id."""
    modules = {n: m for n, m in model.named_modules() if "parametrizations" not in n.split(".")}
    if head is not None:
        found: set[int] = set()
        for pattern in [head] if isinstance(head, str) else head:
            hits = [m for n, m in modules.items() if fnmatchcase(n, pattern)]
            if not hits:
                raise ValueError(unmatched("head", pattern, modules))
            found |= {id(layer) for m in hits for layer in _outputs(m, named=True)}
        return found
    owners = [m for m in modules.values() if list(m.parameters(recurse=False)) or _is_linear(m)]
    named = {id(m) for m in (_told(model), *_sure_heads(modules, owners)) if m is not None}
    if named:
        return named
    tables = {id(stored(m, "weight")) for m in modules.values() if isinstance(m, nn.Embedding)}
    tied = {id(m) for m in modules.values() if isinstance(m, nn.Linear) and id(stored(m, "weight")) in tables}
    if tied:
        return tied
    linear = [(n, m) for n, m in modules.items() if _is_linear(m) and not _in_attention(n, modules)]
    maybe = [m for n, m in linear if _MAYBE_HEAD.match(n.rpartition(".")[2]) and not _numbers(n.split(".")[:-1])]
    if maybe:
        return {id(maybe[-1])}
    # A Hugging Face model that names no output layer is a body without one; others may be plain chains.
    if not linear or hasattr(model, "get_output_embeddings"):
        return set()
    name, last = linear[-1]
    if owners[-1] is not last:
        return set()
    path = name.split(".")
    for i in range(len(path)):  # entries of a container that come last together
        around = modules.get(".".join(path[:i]))
        if around is not None and not _numbers(path[:i]) and _are_parallel(around, named=False):
            return {id(m) for m in _outputs(around, named=False)}
    return set() if _is_repeated(name, [n for n, _ in linear]) else {id(last)}


def _told(model: nn.Module) -> nn.Module | None:
    """The output layer that a Hugging Face model names itself."""
    try:
        layer: Any = model.get_output_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError, TypeError):
        return None
    return layer if isinstance(layer, nn.Module) else None


def _sure_heads(modules: dict[str, nn.Module], owners: Sequence[nn.Module]) -> list[nn.Module]:
    """The output layers of modules called a head, outside of repeated blocks, and of lists of heads at the end.

    OptimizerRegistry are the modules with parameters, in the model's order.
    """
    sure, lists = [], []
    for name, module in modules.items():
        *path, last = name.split(".")
        if _numbers(path) or any(_SURE_HEAD.match(n) for n in path):
            continue
        if _SURE_HEAD.match(last):
            around = modules.get(".".join(path))
            sure.append(around if around is not None and _are_parallel(around, named=False) else module)
        elif _PARALLEL_HEADS.match(last) and isinstance(module, _CONTAINERS) and not _in_attention(name, modules):
            lists.append(module)
    parts = {id(m) for module in (*sure, *lists) for m in module.modules()}
    body = max((i for i, m in enumerate(owners) if id(m) not in parts), default=-1)
    late = {id(m) for m in owners[body + 1 :]}
    last_ones = [m for m in lists if any(id(piece) in late for piece in m.modules())]
    return [layer for m in (*sure, *last_ones) for layer in _outputs(m, named=True)]


def _outputs(module: nn.Module, named: bool) -> list[nn.Module]:
    """The output layers of a module: the last layer, or that of each entry of a list or dict of parallel ones.

    A list or dict is taken to be parallel more readily if it is named as an output.
    """
    if _is_layer(module):
        return [module]
    pieces = [(n, m) for n, m in module.named_children() if _layers(m)]
    if _are_parallel(module, named):
        return [layer for _, m in pieces for layer in _outputs(m, named)]
    return _outputs(pieces[-1][1], bool(_PARALLEL_HEADS.match(pieces[-1][0]))) if pieces else []


def _are_parallel(module: nn.Module, named: bool) -> bool:
    """Whether the entries of a list or dict of modules are side by side, and do not follow one another."""
    if not isinstance(module, _CONTAINERS):
        return False
    layers = [_layers(m) for m in module.children()]
    if not layers or not all(layers):  # activations and norms stand in chains
        return False
    inputs, outputs = [_widths(each[0])[0] for each in layers], [_widths(each[-1])[1] for each in layers]
    fits = all(out == into for out, into in zip(outputs[:-1], inputs[1:], strict=True))
    return not (fits and len(set(inputs)) > 1) if named else not fits and len(set(inputs)) == 1


def _widths(layer: Any) -> tuple[int, int]:
    """How many inputs and outputs a layer has."""
    if isinstance(layer, nn.Linear):
        return layer.in_features, layer.out_features
    return (layer.in_channels, layer.out_channels) if isinstance(layer, _ConvNd) else tuple(layer.weight.shape)


def _layers(module: nn.Module) -> list[nn.Module]:
    return [m for m in module.modules() if _is_layer(m)]


def _is_layer(module: nn.Module) -> bool:
    return _is_linear(module) or isinstance(module, _ConvNd)


def _in_attention(name: str, modules: Mapping[str, nn.Module]) -> bool:
    """Whether a module is a part of an attention layer."""
    path = name.split(".")
    around = {n: modules.get(n) for n in (".".join(path[:i]) for i in range(len(path)))}
    return any(
        isinstance(m, nn.MultiheadAttention) or (n and type(m).__name__.endswith("Attention"))
        for n, m in around.items()
    )


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) or is_transformers_conv1d(module)


def _numbers(path: Sequence[str]) -> bool:
    return any(piece.isdigit() for piece in path)


def _is_repeated(name: str, names: Sequence[str]) -> bool:
    """Whether a layer is one of several at the same place of numbered blocks."""

    def place(n: str) -> tuple[str, ...]:
        *path, last = n.split(".")
        return (*("*" if piece.isdigit() else piece for piece in path), last)

    return _numbers(name.split(".")[:-1]) and sum(place(n) == place(name) for n in names) > 1


def unmatched(argument: str, pattern: str, names: Iterable[str]) -> str:
    """The message for a pattern that matches nothing, with the names nearest to it.

    Args:
        argument: what the pattern was given as.
        pattern: the pattern.
        names: what there is.
    """
    names = [n for n in names if n]
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.3) or list(names)[:3]
    return f"{argument} = {pattern!r}: must match a name of the model, such as {', '.join(near) or '(it has none)'}"
