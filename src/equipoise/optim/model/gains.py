"""Learnable gains and weight standardisation, as parametrisations, without replacing modules.

A rotational optimizer keeps the norm of the weights it turns. Where that norm matters, because no normalisation
follows, a learnable gain gives the network its size back ([kosson2024] sections M and O). `fold` makes plain weights of
it for inference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.utils import parametrize

from equipoise import _check
from equipoise.optim.model.roles import is_transformers_conv1d, output_dim, unmatched


class _Scaled(nn.Module, ABC):
    """A weight made of a direction and a gain."""

    gain: nn.Parameter | None

    def __init__(self, weight: Tensor, dim: int, per: str, gain: bool):
        super().__init__()
        self.dims = tuple(d for d in range(weight.ndim) if per == "tensor" or d != dim)
        """What is summed over for each gain."""
        shape = [1 if d in self.dims else n for d, n in enumerate(weight.shape)]
        self.gain = nn.Parameter(torch.ones(shape, dtype=weight.dtype, device=weight.device)) if gain else None

    def _norm(self, weight: Tensor, what: str) -> Tensor:
        """The norm for each gain, refused where it is zero, as there is no direction then."""
        norm = torch.linalg.vector_norm(weight, dim=self.dims, keepdim=True)
        if bool((norm == 0).any()):
            raise ValueError(
                f"weight: {int((norm == 0).sum())} neurons {what}; must have a direction, so give them one"
            )
        return norm

    @abstractmethod
    def right_inverse(self, weight: Tensor) -> Tensor:
        """What must be stored so that `weight` comes out; sets the gain.

        Args:
            weight: the weight that the module shall have.
        """


@final
class Gain(_Scaled):
    """W = g·V, or W = g·V/‖V‖ if normalised, with a learnable g for each output or for the whole tensor.

    Args:
        weight: the weight to start from.
        dim: the output dimension.
        per: "neuron" or "tensor".
        normalize: divide by the norm; the gain starts at it, and at 1 otherwise.

    Reference: [kosson2024] section M; normalised: [salimans2016].
    """

    def __init__(self, weight: Tensor, *, dim: int = 0, per: str = "neuron", normalize: bool = False):
        super().__init__(weight, dim, per, gain=True)
        self.normalize = normalize
        self.right_inverse(weight)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight that the module computes with.

        Args:
            weight: V, the trained tensor.
        """
        assert self.gain is not None
        if not self.normalize:
            return weight * self.gain
        return weight * (self.gain / torch.linalg.vector_norm(weight, dim=self.dims, keepdim=True))

    @torch.no_grad()
    def right_inverse(self, weight: Tensor) -> Tensor:
        """V = W, with the gain set to 1, or to ‖W‖ if normalised.

        Args:
            weight: W.
        """
        assert self.gain is not None
        self.gain.copy_(self._norm(weight, "are all zero") if self.normalize else torch.ones_like(self.gain))
        return weight


@final
class Standardized(_Scaled):
    """W = g·(V − mean V)/‖V − mean V‖ for each output, g learnable or 1.

    Args:
        weight: the weight to start from.
        dim: the output dimension.
        gain: whether g is learnable. It starts at the norm of the centred weight.

    Reference: [qiao2019]; rows of norm 1 as in [brock2021], where Qiao's have norm
    √inputs, which suits only a norm right after it.
    """

    def __init__(self, weight: Tensor, *, dim: int = 0, gain: bool = True):
        super().__init__(weight, dim, "neuron", gain)
        self.right_inverse(weight)

    def forward(self, weight: Tensor) -> Tensor:
        """The weight that the module computes with.

        Args:
            weight: V, the trained tensor.
        """
        centred = weight - weight.mean(self.dims, keepdim=True)
        norm = torch.linalg.vector_norm(centred, dim=self.dims, keepdim=True)
        return centred * ((1.0 if self.gain is None else self.gain) / norm)

    @torch.no_grad()
    def right_inverse(self, weight: Tensor) -> Tensor:
        """V = W, with the gain set to the norm of the centred W.

        Args:
            weight: W. Its row means are lost, and without a gain its size.
        """
        norm = self._norm(weight - weight.mean(self.dims, keepdim=True), "have equal weights only")
        if self.gain is not None:
            self.gain.copy_(norm)
        return weight


def add_gains(
    model: nn.Module,
    *,
    per: str = "neuron",
    normalize: bool = False,
    modules: str | Sequence[str] = "*",
    embeddings: bool = False,
) -> nn.Module:
    """Give the weights of a model learnable gains, in place; the model computes the same as before.

    Weights of Linear, convolutions, transformers' Conv1D and MultiheadAttention get gains, on the dimension of the
    outputs; with `embeddings` those of Embedding too, one for each token. Recurrent layers, which keep their weights in
    a second place, are left out. In a grouped transposed convolution the groups share their gains. `fold` takes the
    gains away again.

    Args:
        model: a model or a single module.
        per: "neuron", a gain for each output, or "tensor", one for the whole.
        normalize: W = g·V/‖V‖ instead of g·V, so that the norm of V has no effect.
        modules: names or patterns of the modules.
        embeddings: also embeddings.

    Returns:
        The model.

    >>> layer = add_gains(nn.Linear(3, 2))
    >>> [(name, tuple(p.shape)) for name, p in layer.named_parameters()][1:]
    [('parametrizations.weight.original', (2, 3)), ('parametrizations.weight.0.gain', (2, 1))]
    """
    _check.choice("per", per, ("neuron", "tensor"))
    return _registered(
        model,
        [
            (module, name, Gain(weight.detach(), dim=output_dim(module), per=per, normalize=normalize))
            for module, name, weight in _weights(model, modules, embeddings=embeddings)
        ],
    )


def standardize(model: nn.Module, *, gain: bool = True, modules: str | Sequence[str] = "*") -> nn.Module:
    """Standardise the weights of a model, in place: every output's weights centred and of norm 1, times a gain.

    For Linear, convolutions, transformers' Conv1D and MultiheadAttention. With the gain, only the centring changes what
    the model computes at first. `fold` makes plain weights of it.

    Args:
        model: a model or a single module.
        gain: a learnable gain for each output, which starts at the norm of the centred weights; without it the norm
            is 1.
        modules: names or patterns of the modules.

    Returns:
        The model.

    >>> layer = standardize(nn.Linear(3, 2), gain=False)
    >>> layer.weight.sum(1).abs().max().item() < 1e-6, layer.weight.norm(dim=1).allclose(torch.ones(2))
    (True, True)
    """
    return _registered(
        model,
        [
            (module, name, Standardized(weight.detach(), dim=output_dim(module), gain=gain))
            for module, name, weight in _weights(model, modules, embeddings=False)
        ],
    )


def _registered(model: nn.Module, made: Sequence[tuple[nn.Module, str, nn.Module]]) -> nn.Module:
    for module, name, parametrization in made:
        # Unsafe means unchecked: torch's check of a second parametrisation would set its gain anew.
        parametrize.register_parametrization(module, name, parametrization, unsafe=True)
    return model


def own_tensors(module: nn.Module) -> list[str]:
    """The tensors of a module that have one of our parametrisations, and none of others.

    Args:
        module: any module.
    """
    if not parametrize.is_parametrized(module):
        return []
    found = []
    lists: Any = module.parametrizations
    for name, chain in lists.items():
        ours = [isinstance(piece, _Scaled) for piece in chain]
        if any(ours) and not all(ours):
            others = ", ".join(type(p).__name__ for p in chain if not isinstance(p, _Scaled))
            raise ValueError(
                f"{name} of {type(module).__name__} is also parametrised by {others}: must be removed first"
            )
        if any(ours):
            found.append(name)
    return found


def _weights(
    model: nn.Module, patterns: str | Sequence[str], *, embeddings: bool
) -> Iterator[tuple[nn.Module, str, Tensor]]:
    """The weights to be parametrised, all checked before the first is given out."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"model = {type(model).__name__}: must be a torch.nn.Module")
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    named = {n: m for n, m in model.named_modules() if "parametrizations" not in n.split(".")}
    for pattern in patterns:
        if not any(fnmatchcase(n, pattern) for n in named):
            raise ValueError(unmatched("modules", pattern, named))
    found = []
    for path, module in named.items():
        if not any(fnmatchcase(path, pattern) for pattern in patterns):
            continue
        for name in _tensors(module, embeddings):
            weight = getattr(module, name, None)
            if weight is None:
                continue
            if parametrize.is_parametrized(module, name) and name in own_tensors(module):
                raise ValueError(f"{path or 'model'}.{name} has a gain already: must be folded first")
            found.append((module, name, weight))
    if not found:
        raise ValueError(f"modules = {patterns!r}: must match a Linear, a convolution or another module with weights")
    yield from found


def _tensors(module: nn.Module, embeddings: bool) -> tuple[str, ...]:
    if isinstance(module, nn.MultiheadAttention):
        return ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
    if isinstance(module, nn.Linear | _ConvNd) or is_transformers_conv1d(module):
        return ("weight",)
    return ("weight",) if embeddings and isinstance(module, nn.Embedding) else ()
