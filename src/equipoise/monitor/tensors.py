"""The tensors that a watch looks at: names, rows, sampled neurons, and where their parts lie in blocks of memory."""

# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false
# (torch exports its foreach functions under private names alone; DTensor's methods are not Tensor's)

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.planner.live import muon_scale, stepping

WRAPPERS = re.compile(r"(^|\.)(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|module)(?=\.|$)")
"""Parts of names that compile, FSDP, checkpointing and DDP put in."""

BLOCK = 1 << 18
"""Numbers in a block of a CPU's tensor: two of them and their product stay in the cache."""

BLOCK_GPU = 1 << 24


@dataclass(frozen=True)
class Watched:
    """One parameter: its neurons are rows `first` to `first + rows` of all rows.

    Attributes:
        name: as in the model.
        p: the parameter.
        group: number of its group.
        rows: its neurons, or 1 for fewer than two dimensions.
        first: where they begin among all rows.
        offset: of them, where this process's shard begins.
        scale: by how much the optimizer scales lr for its shape.
        counts: whether this process counts it; of replicas only one does.
    """

    name: str
    p: Tensor
    group: int
    rows: int
    first: int
    offset: int
    scale: float
    counts: bool

    @property
    def local(self) -> Tensor:
        """The part of the parameter on this process."""
        return local(self.p)

    @property
    def low(self) -> bool:
        """Whether its precision is low."""
        return self.p.dtype in (torch.bfloat16, torch.float16)


def local(x: Any) -> Tensor:
    """A DTensor's shard here; any other tensor as it is. Only for use without gradients."""
    if type(x) in (Tensor, torch.nn.Parameter):  # most are, and asking for attributes that are not there is slow
        return x
    return x.detach().to_local() if hasattr(x, "to_local") else x


def like(x: Any, p: Any) -> Any:
    """A gradient or state in the placement of its parameter."""
    if type(x) is Tensor:
        return x
    if hasattr(x, "placements") and hasattr(p, "placements") and x.placements != p.placements:
        return x.redistribute(placements=p.placements)
    return x


def names_of(model: Any) -> dict[int, str]:
    """The name of each parameter by its id; a tied one has its first name."""
    names: dict[int, str] = {}
    taken: set[str] = set()
    for name, p in [] if model is None else model.named_parameters(remove_duplicate=False):
        if id(p) not in names:
            short = WRAPPERS.sub("", name).lstrip(".")
            # A module may itself be called "module": then the long name tells two parameters apart.
            names[id(p)] = name if short in taken else short
            taken.add(names[id(p)])
    return names


def fingerprint(optimizer: Any) -> list[tuple[Any, ...]]:
    """What must be the same for a frame still to fit."""
    return [
        (id(p), p.shape, p.dtype, p.requires_grad)
        for group in optimizer.param_groups
        for p in group["params"]
    ]  # fmt: skip


def watched(optimizer: Any, names: dict[int, str]) -> list[Watched]:
    """The parameters of an optimizer that are trained, with their places.

    Args:
        optimizer: any optimizer.
        names: name of each parameter by its id; others are called by group and number.
    """
    found: list[Watched] = []
    inner = stepping(optimizer)
    muon = type(inner).__name__ == "Muon" and not hasattr(inner, "rule")
    first, taken = 0, set()
    for i, group in enumerate(optimizer.param_groups):
        for j, p in enumerate(group["params"]):
            trained = p.requires_grad and p.numel() and p.is_floating_point() and p.layout == torch.strided
            if not trained or p.is_meta or id(p) in taken:
                continue
            taken.add(id(p))
            name = names.get(id(p), f"group {i}, parameter {j}")
            rows = p.shape[0] if p.ndim > 1 else 1
            offset, counts = _shard(p)
            scale = muon_scale(tuple(p.shape), group) if muon and p.ndim > 1 else 1.0
            found.append(Watched(name, p, i, rows, first, offset if rows > 1 else 0, scale, counts))
            first += rows
    return found


def _shard(p: Any) -> tuple[int, bool]:
    """The row at which this process's shard begins, and whether it counts: of replicas only the first does."""
    if not hasattr(p, "placements"):
        return 0, True
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(p.shape, p.device_mesh, p.placements)
    place = p.device_mesh.get_coordinate()
    counts = place is not None and all(
        c == 0 for c, kind in zip(place, p.placements, strict=True) if kind.is_replicate()
    )
    return (offset[0] if offset else 0), counts


@dataclass(frozen=True)
class Piece:
    """Some rows of a parameter's local part, at a place among the rows of its block."""

    tensor: int
    start: int
    stop: int
    at: int


class Block:
    """Rows of equal width, of one large tensor or of many small ones, that are measured together.

    Args:
        pieces: the rows.
        all_tensors: the tensors that they are of.
        first: the place of the block's first row among the rows of all blocks.
    """

    def __init__(self, pieces: list[Piece], all_tensors: list[Watched], first: int) -> None:
        self.pieces, self.first = pieces, first
        one = all_tensors[pieces[0].tensor].local
        self.rows = pieces[-1].at + pieces[-1].stop - pieces[-1].start
        self.width = _width(one)
        self.dtype, self.device = one.dtype, one.device
        self.work = torch.float64 if one.dtype == torch.float64 else torch.float32
        self.where = slice(first, first + self.rows)
        # A piece of a large tensor in a working precision is measured where it lies.
        self.direct = len(pieces) == 1 and one.dtype == self.work and one.is_contiguous()
        self.tensors = np.array([p.tensor for p in pieces])
        self._indices = self.tensors.tolist()
        self._shapes = [_shape(all_tensors[p.tensor].local) for p in pieces]
        whole = all(p.stop - p.start == rows for p, (rows, _) in zip(pieces, self._shapes, strict=True))
        ndims = {ndim for _, ndim in self._shapes}
        # Vectors alone, or matrices alone, are put together without a view of each.
        self._plain = ndims.copy().pop() if whole and ndims in ({1}, {2}) and len(pieces) > 1 else 0

    def empty(self, dtype: torch.dtype | None = None) -> Tensor:
        """Room for the block's rows."""
        return torch.empty(self.rows, self.width, dtype=dtype or self.work, device=self.device)

    def gather(self, tensors: list[Tensor | None], out: Tensor | None = None) -> Tensor:
        """The block's rows of some tensors: a view if they are one tensor's, else a copy; None counts as zeros.

        Args:
            tensors: for each watched tensor its weight, gradient or state, the local part.
            out: copy into this.
        """
        if self.direct and out is None:
            piece = self.pieces[0]
            source = tensors[piece.tensor]
            if source is not None and source.dtype == self.work and source.is_contiguous():
                return source.view(-1, self.width)[piece.start : piece.stop]
        out = self.empty() if out is None else out
        if self._plain:
            found = [tensors[i] for i in self._indices]
            if not any(x is None for x in found):
                torch.cat(found, out=out.view(-1) if self._plain == 1 else out)  # type: ignore[arg-type]
                return out
        parts = []
        for piece, (rows, ndim) in zip(self.pieces, self._shapes, strict=True):
            part = tensors[piece.tensor]
            if part is None:
                part = torch.zeros(piece.stop - piece.start, self.width, dtype=self.dtype, device=self.device)
            elif ndim < 2:
                part = part.reshape(1, -1)
            else:
                part = part if ndim == 2 else part.reshape(rows, -1)
                if piece.stop - piece.start != rows:
                    part = part[piece.start : piece.stop]
            parts.append(part)
        return torch.cat(parts, out=out) if len(parts) > 1 else out.copy_(parts[0])


def _shape(x: Tensor) -> tuple[int, int]:
    """How many rows a tensor has, of which vectors are one, and how many dimensions."""
    return (x.shape[0] if x.ndim > 1 else 1), x.ndim


def _width(x: Tensor) -> int:
    return math.prod(x.shape[1:]) if x.ndim > 1 else x.numel()


def blocks_of(tensors: list[Watched]) -> list[Block]:
    """Blocks over the local rows of all tensors: small tensors of equal row width share one, large ones have several.

    Args:
        tensors: the watched parameters.
    """
    alike: dict[tuple[Any, ...], list[tuple[int, int, int]]] = {}
    for i, tensor in enumerate(tensors):
        part = tensor.local
        if not part.numel() or not tensor.counts:
            continue
        most = max(1, (BLOCK if part.device.type == "cpu" else BLOCK_GPU) // _width(part))
        rows, _ = _shape(part)
        key = (part.device, part.dtype, _width(part), part.ndim, i if rows > most // 2 else -1)
        for start in range(0, rows, most):
            alike.setdefault(key, []).append((i, start, min(start + most, rows)))
    blocks: list[Block] = []
    first = 0
    for (device, _, width, _, _), ranges in alike.items():
        most = max(1, (BLOCK if device.type == "cpu" else BLOCK_GPU) // width)
        pieces: list[Piece] = []
        at = 0
        for i, start, stop in ranges:
            if pieces and at + stop - start > most:
                blocks.append(Block(pieces, tensors, first))
                first, pieces, at = first + at, [], 0
            pieces.append(Piece(i, start, stop, at))
            at += stop - start
        blocks.append(Block(pieces, tensors, first))
        first += at
    return blocks
