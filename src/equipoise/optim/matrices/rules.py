"""Rules for matrices: Muon, and steepest descent in any norm.

Letters as in `rules`: g gradient, m its average, u the direction; UVᵀ the polar factor of a matrix UΣVᵀ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from equipoise import geometry
from equipoise.geometry import Norm, Operator
from equipoise.optim.engine.distributed import divided, mesh_of, orthogonalization_cost, whole
from equipoise.optim.engine.tensor_list import TensorList
from equipoise.optim.options import GroupOptions
from equipoise.optim.rules import Rule, described
from equipoise.theory import Dynamics


def averaged(g: Any, m: Any, *, take: float, momentum: float, nesterov: bool) -> Any:
    """m ← βm + (1−β)g,  x = m;  Nesterov: x = βm + (1−β)g.  [jordan2024]; as torch.optim.Muon."""
    m.lerp_(g, take)
    return g.lerp(m, momentum) if nesterov else m


class MatrixRule(Rule):
    """Directions of whole matrices from the averaged gradient."""

    state = ("momentum_buffer",)
    compiles = False
    shares = True

    def numbers(self, t: int, group: GroupOptions) -> dict[str, float]:
        return {"take": 1 - group["momentum"], "momentum": group["momentum"]}

    def parts(self, tensors: Sequence[Tensor], group: GroupOptions) -> list[list[int]]:
        """Small tensors together, up to `geometry.chunk` entries, equal shapes next to each other; large ones alone.

        So no more than a part's directions and temporaries are held at once. Of DTensors each rank has one in a part.
        """
        mesh = mesh_of(tensors[0])
        ranks, most = (1 if mesh is None else mesh.size()), geometry.chunk(tensors[0].device.type)
        shapes = [tuple(x.shape) for x in tensors]
        order = sorted(range(len(tensors)), key=lambda i: (-orthogonalization_cost(shapes[i]), shapes[i]))
        made: list[list[int]] = []
        size = 0
        for i in order:
            if not made or (size + math.prod(shapes[i]) > most and len(made[-1]) % ranks == 0):
                made.append([])
                size = 0
            made[-1].append(i)
            size += math.prod(shapes[i])
        return made


@final
class MuonRule(MatrixRule):
    """u = scale · UVᵀ of the averaged gradient, matrices of one shape together."""

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        x = averaged(g, *averages, nesterov=group["nesterov"], **numbers)
        tensors = x.tensors if isinstance(x, TensorList) else [x]
        own = bool(group["nesterov"])  # else it is the average itself
        if mesh_of(tensors[0]) is None:
            made = self._polar(tensors, group, own)
        else:
            made = divided(tensors, lambda t: self._polar([t], group, False)[0])
        return TensorList(made) if isinstance(x, TensorList) else made[0]

    def _polar(self, tensors: list[Tensor], group: GroupOptions, own: bool) -> list[Tensor]:
        sorts: dict[tuple[int, int, float], list[int]] = {}
        views = []
        dynamics = self.dynamics(group)
        for i, x in enumerate(tensors):
            layout = dynamics.layout(tuple(x.shape))
            assert layout is not None
            views.append(x.reshape(layout[:3]))
            sorts.setdefault(layout[1:], []).append(i)
        made: list[Tensor] = list(tensors)
        for (*_, scale), members in sorts.items():
            alone = len(members) == 1
            stack = views[members[0]] if alone else torch.cat([views[i] for i in members])
            u = geometry.polar(stack, **group["polar"], overwrite=own or not alone)
            u = u if scale == 1.0 else u.mul_(scale)
            for i, part in zip(members, u.split([len(views[i]) for i in members]), strict=True):
                made[i] = part.reshape(tensors[i].shape)
        return made

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described(
            "muon", betas=(group["momentum"], 0.999), nesterov=bool(group["nesterov"]), scale=group["scale"],
            stacked=not group["flatten"] and group.get("role") != "conv", split=int(group["split"]),
        )  # fmt: skip


@final
class DualRule(MatrixRule):
    """u = dualize(x)/s in the group's norm, x the averaged gradient, s the layer's scale.  [theory] 8."""

    def __call__(self, g: Any, averages: tuple[Any, ...], numbers: dict[str, Any], group: GroupOptions) -> Any:
        x = averaged(g, *averages, nesterov=group["nesterov"], **numbers)
        tensors = x.tensors if isinstance(x, TensorList) else [x]
        made = divided(tensors, lambda t: self.direction(t, group))
        return TensorList(made) if isinstance(x, TensorList) else made[0]

    @staticmethod
    def direction(x: Tensor, group: GroupOptions) -> Tensor:
        """dualize(x)/s."""
        return _seen(x, group, lambda norm, y: _dualized(norm, y, group)) / group["layer_scale"]

    @staticmethod
    def dual(x: Tensor, group: GroupOptions) -> Tensor:
        """‖x‖†/s."""
        return _seen(whole(x), group, lambda norm, y: _dual(norm, y, group)).sum() / group["layer_scale"]

    def dynamics(self, group: GroupOptions) -> Dynamics:
        return described("ngd", known=False)  # a step of fixed length in its norm; the nearest that theory knows


STEEPEST = {"accuracy": 1e-2}
"""Of `geometry.polar` for steepest descent, where nothing else is asked for."""


def _options(x: Tensor, group: GroupOptions) -> dict[str, Any]:
    """Options of `geometry.polar` for a matrix: the group's, or the exact factor in float64 and else the iteration."""
    return group["polar"] or ({"method": "svd"} if x.dtype == torch.float64 else STEEPEST)


def _dualized(norm: Norm, x: Tensor, group: GroupOptions) -> Tensor:
    if isinstance(norm, Operator) and norm.spectral and norm.steps is None:
        return norm.iterated(x, **_options(x, group))
    return norm.dualize(x)


def _dual(norm: Norm, x: Tensor, group: GroupOptions) -> Tensor:
    if isinstance(norm, Operator) and norm.spectral and norm.steps is None:
        return (x * _dualized(norm, x, group)).sum()
    return norm.dual(x)


def _seen(x: Tensor, group: GroupOptions, what: Callable[[Norm, Tensor], Any]) -> Tensor:
    """What a norm says of a parameter: as a vector, or as the matrix outputs × inputs that it is.

    An embedding has one token, that is one input, in each row.
    """
    norm = geometry.named(group["norm"]) if isinstance(group["norm"], str) else group["norm"]
    if norm_dims(norm) == 1:
        made = what(norm, x.reshape(-1))
        return made.reshape(x.shape) if made.ndim else made
    matrix = x.reshape(x.shape[0] if x.ndim else 1, -1)
    made = what(norm, matrix.mT if group["role"] == "embedding" else matrix)
    if made.ndim < 2:
        return made
    return (made.mT if group["role"] == "embedding" else made).reshape(x.shape)


def norm_dims(norm: Norm) -> int:
    """How many dimensions a norm takes: 1 for vectors, 2 for matrices."""
    return int(getattr(norm, "dims", 2))
